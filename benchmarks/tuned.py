"""Accuracy at an epsilon that holds the choice of the learning rate, too.

    PYTHONPATH=. python benchmarks/tuned.py --data mnist.npz [--json]

MNIST, a multi-layer perceptron (784-64-10), clip 1, batches of 500, SGD with momentum 0.9, delta
1e-5. 5,000 images of the 60,000 are for scores: a run's score is how many of them it has right,
with Gaussian noise, as private as the rest. `tfdp.tuning.private_search` draws the learning rate of
every run, and how many runs there are. The noise of a run is such that the whole search costs
--epsilon. Beside it: the test accuracy of each learning rate, if nobody had had to find it, at the
same noise and at the noise of one run for the same epsilon.
"""

import argparse
import dataclasses
import json
from typing import Any

import keras
import numpy as np
from correlated_accuracy import load

import tfdp
from tfdp.events import FullBatchSampling, GaussianSumEvent, NeighboringRelation, SampledEvent
from tfdp.noise import SystemRandomSource
from tfdp.tuning import TruncatedNegativeBinomialRuns, private_search

BATCH, DELTA, HELD_OUT = 500, 1e-5, 5000
RATES = (0.0125, 0.05, 0.2, 0.8, 3.2)
# Of the number of right answers, which one image moves by 1.
SCORE = SampledEvent(FullBatchSampling(), GaussianSumEvent(1.0, 50.0), NeighboringRelation.ZERO_OUT)


def trained(x: Any, y: Any, rate: float, noise: float, epochs: int, ledger: Any) -> keras.Model:
    layers = [keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(10)]
    model = tfdp.keras.make_private(keras.Sequential([keras.Input((x.shape[1],)), *layers]))
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=noise, denominator=BATCH)
    inner = keras.optimizers.SGD(rate, momentum=0.9)
    optimizer = tfdp.keras.DPOptimizer(inner, query, ledger=ledger)
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0)
    return model


def score(model: keras.Model, x: Any, y: Any, ledger: Any) -> float:
    """Returns the noised number of right answers, which is charged first."""
    ledger.append(SCORE)
    right = np.sum(model.predict(x, verbose=0).argmax(axis=1) == y)
    return float(right + SCORE.event.noise_stddev * SystemRandomSource().normal([], "float64"))


def of_noise(rehearsed: list[tuple[Any, int]], noise: float) -> list[tuple[Any, int]]:
    """Returns what a run with this noise multiplier writes to its ledger."""
    sum_of_step = GaussianSumEvent(1.0, noise)
    return [
        (event if event == SCORE else dataclasses.replace(event, event=sum_of_step), count)
        for event, count in rehearsed
    ]


def costs(pairs: Any, numbers: TruncatedNegativeBinomialRuns | None) -> float:
    """Returns epsilon of a run, or of a search among such runs."""
    ledger = tfdp.PrivacyLedger()
    if numbers is None:
        for event, count in pairs:
            ledger.append(event, count=count)
    else:
        # A search that draws no run: what is charged is the same.
        events, counts = zip(*pairs, strict=True)
        ledger.append(numbers.event((tfdp.events.RunEvent(events, counts),)))
    return ledger.epsilon(DELTA, "rdp")


def noise_for(epsilon: float, rehearsed: Any, numbers: Any) -> float:
    """Returns the smallest noise multiplier, up to 0.1 %, at which it costs no more."""
    low, high = 0.3, 30.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        enough = costs(of_noise(rehearsed, middle), numbers) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high


def main() -> None:
    """Prints the winner of a search, and what stands beside it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--runs", type=float, default=5.0, help="on average")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    x, y, x_test, y_test = load(arguments.data)
    held, (x, y) = (x[:HELD_OUT], y[:HELD_OUT]), (x[HELD_OUT:], y[HELD_OUT:])
    numbers = TruncatedNegativeBinomialRuns(1 / arguments.runs)

    def run_with(noise: float, x: Any, y: Any) -> Any:
        def run(rate: float, ledger: tfdp.PrivacyLedger) -> tuple[float, Any]:
            model = trained(x, y, rate, noise, arguments.epochs, ledger)
            return score(model, *held, ledger), model.evaluate(x_test, y_test, verbose=0)[1]

        return run

    rehearsal = tfdp.PrivacyLedger()  # On data that are made up.
    run_with(1.0, np.zeros_like(x), np.zeros_like(y))(RATES[0], rehearsal)
    rehearsed = [(entry.event, entry.count) for entry in rehearsal]
    searched = noise_for(arguments.epsilon, rehearsed, numbers)
    alone = noise_for(arguments.epsilon, rehearsed, None)
    plan, ledger = of_noise(rehearsed, searched), tfdp.PrivacyLedger()
    best = private_search(run_with(searched, x, y), RATES, plan, numbers, ledger=ledger)
    result = {
        "epsilon": ledger.epsilon(DELTA, "rdp"),
        "epsilon_of_a_run": costs(plan, None),
        "noise_multiplier": searched,
        "noise_multiplier_of_a_run_alone": alone,
        "learning_rate": best.candidate,
        "test_accuracy": best.output,
        "beside": {
            f"{rate:g}": [
                run_with(noise, x, y)(rate, tfdp.PrivacyLedger())[1] for noise in (searched, alone)
            ]
            for rate in RATES
        },
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
