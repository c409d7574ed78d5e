"""Accuracy at equal epsilon: noise that remembers against DP-SGD, in a fixed order and sampled.

    PYTHONPATH=. python benchmarks/correlated_accuracy.py --data mnist.npz [--json]

MNIST: a multi-layer perceptron (784-64-10), batches of 500, SGD with momentum 0.9, clip 1, delta
1e-5. Where the file holds features of images, as `tutorials/scattering.py --cache` writes them,
every image's features are normalized in groups of three channels, and the model is linear.
"Fixed order" draws no samples, so nothing is amplified; DP-SGD there has independent noise.
"Sampled" is Poisson for DP-SGD, and groups that take turns for banded noise. Of every row the best
of the learning rates is shown, by the mean of the seeds: that choice is not paid for, in any row.
"""

import argparse
import json
from typing import Any

import keras
import numpy as np

import tfdp
from tfdp.accounting import calibrate_correlated, noise_for_budget
from tfdp.sampling import CyclicPoisson, FixedOrder, Poisson

BATCH, DELTA = 500, 1e-5
LEARNING_RATES = (0.05, 0.2, 0.8)
FIXED, SAMPLED = "fixed order", "sampled"
# Setting, name, and what `calibrate_correlated` is asked for; None is DP-SGD with Poisson samples.
ROWS: list[tuple[str, str, dict[str, Any] | None]] = [
    (FIXED, "independent", {"mechanism": "bandmf", "bands": 1}),
    (FIXED, "binary tree", {"mechanism": "tree"}),
    (FIXED, "16 bands", {"mechanism": "bandmf", "bands": 16}),
    (FIXED, "4 buffers", {"mechanism": "blt", "bands": 4}),
    (SAMPLED, "independent", None),
    (SAMPLED, "4 bands", {"mechanism": "bandmf", "bands": 4, "sampling": "cyclic_poisson"}),
    (SAMPLED, "16 bands", {"mechanism": "bandmf", "bands": 16, "sampling": "cyclic_poisson"}),
]


def load(path: str) -> tuple[Any, Any, Any, Any]:
    """Returns x, y of training and of testing, in one order that was drawn before."""
    with np.load(path) as data:
        x, y, x_test, y_test = (data[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    order = np.random.default_rng(0).permutation(len(x))
    scaled = [_scaled(x[order]), _scaled(x_test)]
    return scaled[0], y[order], scaled[1], y_test


def _scaled(x: np.ndarray) -> np.ndarray:
    """Returns float32 [n, ...] of images, or [n, ..., channels] of features, as rows."""
    if x.dtype == np.uint8:
        return (x.reshape(len(x), -1).astype("float32") - 32) / 80
    rows = np.empty([len(x), x[0].size], "float32")
    for start in range(0, len(x), 1000):
        part = x[start : start + 1000].astype("float32")
        groups = part.reshape(len(part), -1, part.shape[-1] // 3, 3)
        mean = groups.mean((1, 3), keepdims=True)
        spread = groups.std((1, 3), keepdims=True) + 1e-5
        rows[start : start + 1000] = ((groups - mean) / spread).reshape(len(part), -1)
    return rows


def accuracy(
    data: Any, asked: dict[str, Any] | None, epsilon: float, epochs: int, rate: float, seed: int
) -> float:
    """Returns the test accuracy of one run."""
    x, y, x_test, y_test = data
    keras.utils.set_random_seed(seed)
    layers: list[Any] = [keras.layers.Dense(10)]
    if x.shape[1] == 784:
        layers = [keras.layers.Dense(64, activation="tanh"), *layers]
    model = tfdp.keras.make_private(keras.Sequential([keras.Input((x.shape[1],)), *layers]))
    size = {"population_size": len(x), "batch_size": BATCH, "epochs": epochs}
    query: tfdp.DPQuery
    if asked is None:
        noise = noise_for_budget(epsilon, DELTA, **size)
        query, sampling = tfdp.GaussianSumQuery(1.0, noise), Poisson()
    else:
        plan = calibrate_correlated(target_epsilon=epsilon, target_delta=DELTA, **size, **asked)
        query = tfdp.query.CorrelatedGaussianSumQuery(
            1.0,
            plan.noise_multiplier,
            plan.factorization,
            plan.steps,
            plan.period,
            model.trainable_variables,
        )
        ordered = plan.sampling == "fixed_order"
        sampling = FixedOrder() if ordered else CyclicPoisson(plan.period)
    optimizer = tfdp.keras.DPOptimizer(
        keras.optimizers.SGD(rate, momentum=0.9), tfdp.NormalizedQuery(query, BATCH)
    )
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=BATCH, epochs=epochs, sampling=sampling, verbose=0)
    spent = model.ledger.replay(tfdp.accounting.PRVAccountant()).get_epsilon(DELTA)
    if not 0.9 * epsilon < spent <= 1.02 * epsilon:
        raise RuntimeError(f"The run cost {spent}, and {epsilon} was asked.")
    return model.evaluate(x_test, y_test, verbose=0)[1]


def best(data: Any, asked: Any, epsilon: float, epochs: int, seeds: int) -> dict[str, Any]:
    """Returns the learning rate with the highest mean, and its accuracies."""
    found = {
        rate: [accuracy(data, asked, epsilon, epochs, rate, seed) for seed in range(seeds)]
        for rate in LEARNING_RATES
    }
    rate = max(found, key=lambda r: np.mean(found[r]))
    return {"learning_rate": rate, "accuracies": found[rate]}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="an mnist.npz as Keras has it, or features")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 8.0])
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    data = load(arguments.data)
    print("| data | noise | epochs | epsilon | learning rate | test accuracy |")
    print("|---|---|---|---|---|---|")
    rows = []
    for epochs in arguments.epochs:
        for epsilon in arguments.epsilon:
            for setting, name, asked in ROWS:
                row = best(data, asked, epsilon, epochs, arguments.seeds)
                rows.append(
                    {"data": setting, "noise": name, "epochs": epochs, "epsilon": epsilon, **row}
                )
                shown = ", ".join(f"{100 * value:.1f} %" for value in row["accuracies"])
                print(
                    f"| {setting} | {name} | {epochs} | {epsilon:g} | {row['learning_rate']:g} "
                    f"| {shown} |",
                    flush=True,
                )
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
