"""One run of `fit` with canaries: what is measured of the epsilon that its ledger claims.

python benchmarks/canaries.py [--data mnist.npz] [--epochs 1] [--seed 0]
python benchmarks/canaries.py --soundness [--audits 1000]

A convolutional network is trained by `fit` on MNIST (scikit-learn's digits without --data), once
with white-box canaries and once with mislabelled records. With --soundness, one step of `fit` with
as many canaries as there are audits of 1,000 makes as many independent audits of a Gaussian: how
many of them prove more than is true?
"""

import argparse
import dataclasses
import functools

import keras
import numpy as np

import tfdp
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.accounting.registry import make_accountant
from tfdp.audit import (
    CanarySums,
    GradientCanaries,
    correct_guesses,
    epsilon_lower_bound_of_guesses,
    fair_coins,
    membership_scores,
    mislabelled_canaries,
    mu_lower_bound_of_guesses,
    mu_lower_bound_of_independent_guesses,
    p_value_of_independent_guesses,
    sampled_gaussian_scores,
    sensitivity_factor_lower_bound,
)
from tfdp.events import NeighboringRelation, SampledEvent, scale_sensitivity
from tfdp.report.tradeoff import make_profile
from tfdp.sampling import FullBatch, Poisson

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
LOSS = "sparse_categorical_crossentropy"
DELTA = 1e-5
CONFIDENCE = 0.95
CLIP, RATE = 1.0, 0.25
# Of the canaries: what shows most where they may depend on each other, and where they do not.
FEW, MANY = 0.1, 0.7
IN_ONE_AUDIT = 1000


def load(path):
    """Returns (images [records, height, width, 1], labels)."""
    if path is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        return (digits.images[..., None] / 16).astype("float32"), digits.target
    with np.load(path) as data:
        return data["x_train"][..., None].astype("float32") / 255, data["y_train"].astype(int)


def classifier(shape):
    """Returns a network of two strided convolutions."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(16, 5, 2, "same", activation="tanh"),
            layers.Conv2D(32, 4, 2, "same", activation="tanh"),
            layers.Flatten(),
            layers.Dense(32, activation="tanh"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def train(model, loss, records, arguments, callbacks=()):
    """Trains with Poisson samples of the batch size in the mean; returns the ledger."""
    count = len(records[1][0] if isinstance(records[1], list) else records[1])
    # A public number, that no coin of a canary moves.
    probability = arguments.batch_size / arguments.records
    private = tfdp.keras.make_private(model)
    query = tfdp.GaussianAverageQuery(
        CLIP, noise_multiplier=arguments.noise_multiplier, denominator=arguments.batch_size
    )
    private.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(RATE), query), loss=loss)
    print(f"training on {count} records")
    private.fit(
        *records,
        sampling=Poisson(probability, None, ADD),
        steps_per_epoch=round(1 / probability),
        epochs=arguments.epochs,
        callbacks=list(callbacks),
        verbose=arguments.verbose,
    )
    return private.ledger, probability


def accountant(ledger, factor):
    """Returns the accountant of the ledger, for records that weigh so much more than claimed."""
    made = make_accountant("prv")
    for entry in ledger:
        event = entry.event
        if not isinstance(event, SampledEvent):
            raise TypeError(f"Only sampled sums are known here. Received: {event!r}.")
        heavier = scale_sensitivity(event.event, factor)
        made.compose(dataclasses.replace(event, event=heavier), entry.count)
    return made


def against_the_ledger(name, scores, inserted, ledger):
    """Prints what the scores prove, beside what the ledger claims."""
    canaries = len(scores)
    few, many = (
        (correct_guesses(scores, inserted, round(s * canaries)), round(s * canaries), canaries)
        for s in (FEW, MANY)
    )

    @functools.cache
    def rates_of(factor):
        made = accountant(ledger, factor)
        return make_profile(made.get_epsilon, made.get_delta, points=24).true_positive_rate

    factor = sensitivity_factor_lower_bound(*many, rates_of, CONFIDENCE)
    claimed = accountant(ledger, 1.0).get_epsilon(DELTA)
    measured = accountant(ledger, factor).get_epsilon(DELTA) if factor > 0 else 0.0
    whatever = epsilon_lower_bound_of_guesses(*few, DELTA, CONFIDENCE)
    mu = mu_lower_bound_of_guesses(*few, CONFIDENCE)
    p = p_value_of_independent_guesses(*many, rates_of(1.0))
    print(
        f"| {name} | {canaries} | {many[0]} of {many[1]} | {claimed:.3f} | {measured:.3f} "
        f"({measured / claimed:.0%}) | {gaussian_epsilon(mu, DELTA) if mu > 0 else 0.0:.3f} | "
        f"{whatever:.3f} | {p:.2g} |",
        flush=True,
    )


def one_run(arguments):
    """Trains twice, with canaries of each kind."""
    x, y = load(arguments.data)
    arguments.records = len(x)
    canaries = GradientCanaries(classifier(x.shape[1:]), arguments.canaries)
    inserted = fair_coins(arguments.canaries, arguments.seed)
    released = CanarySums(canaries, RATE, arguments.batch_size)
    ledger, probability = train(
        canaries.model, canaries.losses(LOSS), canaries.records(x, y, inserted), arguments,
        [released],
    )  # fmt: skip
    planted = mislabelled_canaries(x, y, arguments.canaries, 10, arguments.seed)
    model = classifier(x.shape[1:])
    black_box, _ = train(model, LOSS, (planted.x, planted.y), arguments)
    p = model.predict(planted.canaries_x, verbose=0)
    print(
        "| canaries and their score | canaries | right guesses | claimed epsilon | measured | "
        "measured, any canaries (mu) | measured, any canaries (epsilon) | p-value of the claim |"
    )
    print("|---|---|---|---|---|---|---|---|")
    stddev = CLIP * arguments.noise_multiplier
    ratios = sampled_gaussian_scores(released.sums, stddev, probability, CLIP)
    against_the_ledger("gradients, released sums", ratios, inserted, ledger)
    change = released.sums.sum(axis=0)
    against_the_ledger("gradients, change of weights", change, inserted, ledger)
    scores = membership_scores("scaled confidence", p, planted.canaries_y)
    against_the_ledger("wrong labels, predictions", scores, planted.inserted, black_box)


def soundness(arguments):
    """One step with mu = 1, and an audit for each thousand of its canaries."""
    count = arguments.audits * IN_ONE_AUDIT
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, activation="softmax")])
    canaries = GradientCanaries(model, count)
    inserted = fair_coins(count, arguments.seed)
    released = CanarySums(canaries, RATE, 1.0)
    private = tfdp.keras.make_private(canaries.model)
    query = tfdp.GaussianAverageQuery(CLIP, stddev=CLIP, denominator=1.0)
    optimizer = tfdp.keras.DPOptimizer(
        keras.optimizers.SGD(RATE), query, physical_batch_size=100_000
    )
    private.compile(optimizer, loss=canaries.losses(LOSS))
    records = canaries.records(np.zeros((1, 1), "float32"), np.zeros(1, int), inserted)
    private.fit(
        *records, sampling=FullBatch(neighboring_relation=ADD), callbacks=[released], verbose=0
    )
    scores = released.sums[0].reshape(arguments.audits, IN_ONE_AUDIT)
    coins = inserted.reshape(scores.shape)
    truth = gaussian_epsilon(1.0, DELTA)
    print(
        f"{arguments.audits} audits of {IN_ONE_AUDIT} canaries each, in one step of fit with "
        f"mu = 1: epsilon = {truth:.3f} at delta = {DELTA:g}, confidence {CONFIDENCE:g}"
    )
    print("| bound | share guessed | mean of what is proven | above the claim |")
    print("|---|---|---|---|")

    def epsilon_of(bound):
        return lambda *counts: gaussian_epsilon(mu, DELTA) if (mu := bound(*counts)) > 0 else 0.0

    for name, bound, share in (
        ("epsilon, any canaries", lambda *c: epsilon_lower_bound_of_guesses(*c, DELTA), FEW),
        ("mu, any canaries", epsilon_of(mu_lower_bound_of_guesses), FEW),
        ("mu, independent canaries", epsilon_of(mu_lower_bound_of_independent_guesses), MANY),
        ("mu, independent canaries", epsilon_of(mu_lower_bound_of_independent_guesses), 1.0),
    ):
        guesses = round(share * IN_ONE_AUDIT)
        cached = functools.cache(functools.partial(bound))
        proven = np.array(
            [
                cached(correct_guesses(*audit, guesses), guesses, IN_ONE_AUDIT)
                for audit in zip(scores, coins, strict=True)
            ]
        )
        print(
            f"| {name} | {share:.0%} | {proven.mean():.3f} ({proven.mean() / truth:.0%}) | "
            f"{np.mean(proven > truth):.1%} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="mnist.npz")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--noise-multiplier", type=float, default=0.6)
    parser.add_argument("--canaries", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="of the canaries and their coins")
    parser.add_argument("--verbose", type=int, default=1, help="0 for no progress bar")
    parser.add_argument("--soundness", action="store_true")
    parser.add_argument("--audits", type=int, default=1000)
    arguments = parser.parse_args()
    if arguments.soundness:
        soundness(arguments)
    else:
        one_run(arguments)


if __name__ == "__main__":
    main()
