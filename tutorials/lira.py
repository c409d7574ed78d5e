"""The likelihood ratio attack (Carlini et al. 2022) and its relatives, on a network for a CPU.

    python tutorials/lira.py
    python tutorials/lira.py --data cifar10_jpeg.npz --workers 2 --plot lira.png

A network is trained on one half of the records, and shadow models on other random halves. Then
somebody who has the shadow models says of each record whether the attacked network was trained on
it. The file has the JPEG bytes of the images ("jpeg_train", "offsets_train") and "y_train".
"""

import argparse
import functools
import pathlib
import time
from collections.abc import Callable

import keras
import numpy as np

from tfdp.accounting.planning.plots import line_plot
from tfdp.audit import Attack, attack, lira, membership_scores, rmia, shadow_models
from tfdp.audit.predictions import probabilities_of_logits
from tfdp.audit.shadows import random_halves

CLASSES = 10
SMALLEST_RATE = 1e-4


def load_data(path: pathlib.Path | None, records: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (images with values from 0 to 255, labels)."""
    if path is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        x, y = (digits.images[..., None] * 255 / 16).astype(np.uint8), digits.target
        order = np.random.default_rng(0).permutation(len(x))[:records]
        return x[order], y[order]
    import tensorflow as tf

    with np.load(path) as data:
        jpeg, offsets, y = data["jpeg_train"], data["offsets_train"], data["y_train"].astype(int)
    order = np.random.default_rng(0).permutation(len(y))[:records]
    files = [jpeg[offsets[i] : offsets[i + 1]].tobytes() for i in order]
    return np.stack([tf.io.decode_jpeg(file).numpy() for file in files]), y[order]


def make_model(
    x: np.ndarray, y: np.ndarray, seed: int, epochs: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Trains a small network and returns its probabilities, as a function of images."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential([keras.Input(x.shape[1:]), layers.Rescaling(1 / 255)])
    for filters in (32, 64, 64):
        model.add(layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu"))
    model.add(layers.Flatten())
    model.add(layers.Dense(128, activation="relu"))
    model.add(layers.Dense(CLASSES))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    model.fit(x, y, batch_size=100, epochs=epochs, verbose=0)
    return lambda x: probabilities_of_logits(model.predict(x, batch_size=500, verbose=0))


def attacks(
    p: np.ndarray,
    y: np.ndarray,
    members: np.ndarray,
    predictions: np.ndarray,
    memberships: np.ndarray,
) -> list[Attack]:
    """Returns what each attack achieves on the attacked network's probabilities p."""
    target = membership_scores("scaled confidence", p, y)
    statistics = np.stack([membership_scores("scaled confidence", q, y) for q in predictions])
    scores = {"one threshold of the loss": membership_scores("loss", p, y)}
    for online in (True, False):
        words = "online" if online else "offline"
        found = lira(target, statistics, memberships, online=online, fixed_variance=True)
        scores[f"LiRA, {words}, fixed variance"] = found
    if memberships.sum(axis=0).min() >= 2:
        scores["LiRA, online, a variance for each record"] = lira(target, statistics, memberships)
    return [attack(name, values, members) for name, values in scores.items()]


def population_attack(
    p: np.ndarray, y: np.ndarray, members: np.ndarray, predictions: np.ndarray, mask: np.ndarray
) -> Attack:
    """Returns what RMIA achieves, offline, with one model as its only reference.

    Only records that the reference has not seen are asked about. Half of those that the attacked
    network has not seen either are its population.
    """
    records = np.arange(len(y))
    chosen = ~mask
    own, reference = p[records, y], predictions[records, y]
    population = chosen & ~members & (records % 2 == 0)
    asked = chosen & ~population
    scores = rmia(
        own[asked],
        reference[None, asked],
        np.zeros((1, asked.sum()), bool),
        own[population],
        reference[None, population],
        online=False,
    )
    return attack("RMIA, offline, one reference model", scores, members[asked])


def main() -> None:
    """Trains all models, prints a table of attacks and draws their curves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, help="default: small digits")
    parser.add_argument("--records", type=int, default=10_000, help="at most; half are members")
    parser.add_argument("--shadows", type=int, default=16, help="an even number, four or more")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=pathlib.Path, help="*.png, *.svg or *.pdf")
    arguments = parser.parse_args()
    if arguments.shadows < 4:
        parser.error("--shadows must be 4 or more, so that each record is in two of them.")
    x, y = load_data(arguments.data, arguments.records)
    # Halves of another seed than that of the shadow models.
    members = random_halves(2, len(x), arguments.seed + 1_000_000)[0]
    begun = time.perf_counter()
    train = functools.partial(make_model, epochs=arguments.epochs)
    p = train(x[members], y[members], arguments.seed + 1_000_000)(x)
    bar = keras.utils.Progbar(arguments.shadows, unit_name="model")
    shadows = shadow_models(
        train,
        x,
        y,
        arguments.shadows,
        arguments.workers,
        arguments.seed,
        progress=lambda done, _: bar.update(done),
    )
    right = p.argmax(axis=1) == y
    print(
        f"{len(x)} records, {members.sum()} of them members, {arguments.shadows} shadow models, "
        f"{time.perf_counter() - begun:.0f} s; accuracy of the attacked network "
        f"{right[members].mean():.3f} on members, {right[~members].mean():.3f} on others"
    )
    found = attacks(p, y, members, shadows.predictions, shadows.memberships)
    found.append(population_attack(p, y, members, shadows.predictions[0], shadows.memberships[0]))
    print("| attack | AUC | advantage | TPR at FPR 0.1 % | TPR at FPR 1 % |")
    print("|---|---|---|---|---|")
    for each in found:
        low, one = each.true_positive_rates.values()
        print(
            f"| {each.name} | {each.auc.value:.3f} ({each.auc.lower:.3f} to {each.auc.upper:.3f}) "
            f"| {each.advantage:.3f} | {low.value:.2%} ({low.lower:.2%} to {low.upper:.2%}) "
            f"| {one.value:.1%} |"
        )
    if arguments.plot is not None:
        rates = np.geomspace(SMALLEST_RATE, 1, 200).tolist()
        lines = {
            each.name: [(r, max(each.roc.true_positive_rate(r), SMALLEST_RATE)) for r in rates]
            for each in found
        }
        lines["guessing"] = [(r, r) for r in rates]
        line_plot(
            arguments.plot,
            lines,
            x_label="false positive rate",
            y_label="true positive rate",
            title="who was a member?",
            logarithmic=True,
        )
        print(f"wrote {arguments.plot}")


if __name__ == "__main__":
    main()
