"""Errors of running sums by every factorization: of noise with sensitivity 1.

    PYTHONPATH=. python benchmarks/factorizations.py [--json] [--steps 1024 4096]

Root mean squared error over all running sums, and the standard deviation of the last, the largest.
One participation in the run, unless --period is given. With --step-time: the fastest of 12 private
steps of a dense network, 784-1000-1000-10, on batches of 256, with one thread.
"""

import argparse
import json
import time
from typing import Any

from tfdp.factorizations import (
    BinaryTree,
    banded_inverse_square_root,
    banded_square_root,
    independent,
    one_step_back,
    optimal_banded,
    optimal_buffered,
)

BANDS = (2, 4, 16, 64)
BUFFERS = (1, 2, 4)


def factorizations(num_steps: int, period: int | None) -> dict[str, Any]:
    """Returns every factorization by the name that the table gives it."""
    found: dict[str, Any] = {
        "independent": independent(),
        "one step back, 0.9": one_step_back(0.9),
        "binary tree": BinaryTree(efficient=False),
        "binary tree, estimates from below": BinaryTree(),
    }
    for bands in BANDS:
        found[f"square root, {bands} bands"] = banded_square_root(bands)
        found[f"inverse square root, {bands} bands"] = banded_inverse_square_root(bands)
        found[f"optimal, {bands} bands"] = optimal_banded(num_steps, bands, period)
        found[f"optimal for the last, {bands} bands"] = optimal_banded(
            num_steps, bands, period, error="max"
        )
    for buffers in BUFFERS:
        found[f"optimal, {buffers} buffers"] = optimal_buffered(num_steps, buffers, period)
    if num_steps <= 1024:
        found["square root, all bands"] = banded_square_root(num_steps)
    return found


def measure(num_steps: int, period: int | None) -> list[dict[str, float | str]]:
    """Returns a row for every factorization."""
    return [
        {
            "factorization": name,
            "steps": num_steps,
            "root_mean_squared": each.root_mean_squared_error(num_steps, period),
            "max": each.max_error(num_steps, period),
        }
        for name, each in factorizations(num_steps, period).items()
    ]


def step_time(factorization: Any) -> float:
    """Returns seconds of a private step with such noise; None is plain DP-SGD."""
    import keras
    import numpy as np

    import tfdp

    layers = [keras.layers.Dense(1000, "relu"), keras.layers.Dense(1000, "relu")]
    model = keras.Sequential([keras.layers.Input((784,)), *layers, keras.layers.Dense(10)])
    query: tfdp.query.DPQuery = tfdp.query.GaussianSumQuery(1.0, 1.0)
    if factorization is not None:
        query = tfdp.query.CorrelatedGaussianSumQuery(
            1.0, 1.0, factorization, 10_000, 1, model.trainable_variables
        )
    query = tfdp.query.NormalizedQuery(query, 256)
    model = tfdp.keras.make_private(model)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(256, 784)).astype("float32"), rng.integers(0, 10, 256)
    model.train_on_batch(x, y)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        model.train_on_batch(x, y)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--period", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step-time", action="store_true")
    arguments = parser.parse_args()
    if arguments.step_time:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        kinds = {
            "independent": None,
            "4 bands": banded_square_root(4),
            "16 bands": banded_square_root(16),
            "2 buffers": optimal_buffered(10_000, 2),
            "4 buffers": optimal_buffered(10_000, 4),
            "binary tree": BinaryTree(),
        }
        for name, factorization in kinds.items():
            print(f"{name}: {1000 * step_time(factorization):.1f} ms")
        return
    rows = [row for n in arguments.steps for row in measure(n, arguments.period)]
    if arguments.json:
        print(json.dumps(rows))
        return
    print("| factorization | steps | root mean squared | last |\n|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['factorization']} | {row['steps']} | {row['root_mean_squared']:.3f} "
            f"| {row['max']:.3f} |"
        )


if __name__ == "__main__":
    main()
