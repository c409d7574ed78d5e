"""Errors of running sums by every factorization: of noise with sensitivity 1.

    PYTHONPATH=. python benchmarks/factorizations.py [--json] [--steps 1024 4096]

Root mean squared error over all running sums, and the standard deviation of the last, the largest.
One participation in the run, unless --period is given. With --step-time: medians of the processor
time of a private step, batches of 256, one thread, with each noise in turn. --model dense is
784-1000-1000-10; convolutional has six 3 x 3 layers of 32 to 128 filters on 32 x 32 images. With
--rounding: by how much noise of buffers in float32 is off, in its standard deviations.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

from tfdp.factorizations import (
    BinaryTree,
    banded_inverse_square_root,
    banded_square_root,
    independent,
    one_step_back,
    optimal_banded,
    optimal_buffered,
    optimal_one_step_back,
)

BANDS = (2, 4, 16, 64)
BUFFERS = (1, 2, 4)


def factorizations(num_steps: int, period: int | None) -> dict[str, Any]:
    """Returns every factorization by the name that the table gives it."""
    found: dict[str, Any] = {
        "independent": independent(),
        "one step back, 0.9": one_step_back(0.9),
        "one step back, best": optimal_one_step_back(num_steps, period),
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


def private_model(factorization: Any, kind: str, steps: int) -> tuple[Any, Any, Any]:
    """Returns (compiled model, inputs, labels) of one batch; without a factorization DP-SGD."""
    import keras
    import numpy as np

    import tfdp

    layers = keras.layers
    rng = np.random.default_rng(0)
    if kind == "dense":
        hidden = [layers.Dense(1000, "relu"), layers.Dense(1000, "relu")]
        network = keras.Sequential([layers.Input((784,)), *hidden, layers.Dense(10)])
    else:
        network = keras.Sequential([layers.Input((32, 32, 3))])
        for filters in (32, 64, 128):
            network.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
            network.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
            network.add(layers.MaxPooling2D())
        for layer in (layers.Flatten(), layers.Dense(128, "relu"), layers.Dense(10)):
            network.add(layer)
    query: tfdp.query.DPQuery = tfdp.query.GaussianSumQuery(1.0, 1.0)
    if factorization is not None:
        query = tfdp.query.CorrelatedGaussianSumQuery(
            1.0, 1.0, factorization, steps, 1, network.trainable_variables
        )
    model = tfdp.keras.make_private(network)
    optimizer = tfdp.keras.DPOptimizer(
        keras.optimizers.SGD(0.1), tfdp.query.NormalizedQuery(query, 256)
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True))
    x = rng.normal(size=(256, *network.input_shape[1:])).astype("float32")
    return model, x, rng.integers(0, 10, 256)


def step_times(kind: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Yields the processor time of a private step with each noise, and its ratio to DP-SGD's."""
    kinds = {
        "independent": None,
        "4 bands": banded_square_root(4),
        "16 bands": banded_square_root(16),
        "2 buffers": optimal_buffered(10_000, 2),
        "4 buffers": optimal_buffered(1_000, 4),  # Longer runs of them need float64.
        "binary tree": BinaryTree(),
    }
    models = {
        name: private_model(each, kind, 1_000 if name == "4 buffers" else 10_000)
        for name, each in kinds.items()
    }
    parameters = models["independent"][0].count_params()
    times: dict[str, list[float]] = {name: [] for name in models}
    for number in range(rounds + 2):
        for name, (model, x, y) in models.items():
            start = time.process_time()
            model.train_on_batch(x, y)
            if number > 1:  # The first steps build and warm up.
                times[name].append(time.process_time() - start)
    for name, values in times.items():
        ratio = statistics.median(
            value / plain for value, plain in zip(values, times["independent"], strict=True)
        )
        yield {
            "network": kind,
            "parameters": parameters,
            "noise": name,
            "processor_milliseconds": 1000 * statistics.median(values),
            "over_independent": ratio,
        }


def rounding(num_steps: int, buffers: int) -> dict[str, float]:
    """Returns by how much C y differs from z, in standard deviations of z, in a run that XLA
    compiles, and the estimate of it.
    """
    import numpy as np
    import tensorflow as tf
    from scipy import signal

    from tfdp.factorizations.modes import modes, rounding_of
    from tfdp.query.run_noise import filtered, memory_shapes

    factorization = optimal_buffered(num_steps, buffers)
    fresh = np.random.default_rng(0).standard_normal((num_steps, 16)).astype(np.float32)

    @tf.function(jit_compile=True)
    def run(fresh):
        def step(i, memory, noises):
            position = tf.cast(i, tf.int64)
            (noise,), (new,) = filtered(factorization, num_steps, position, [fresh[i]], [memory])
            return i + 1, new, tf.tensor_scatter_nd_update(noises, [[i]], noise[None])

        memory = tuple(tf.zeros(s) for s in memory_shapes(factorization, num_steps, [16]))
        start = (tf.constant(0), memory, tf.zeros_like(fresh))
        return tf.while_loop(lambda i, *_: i < num_steps, step, start)[2]

    noises = run(tf.constant(fresh)).numpy().astype(float)
    column = factorization.column(num_steps)[:, None]
    off = np.std(signal.fftconvolve(column, noises, axes=0)[:num_steps] - fresh)
    estimate = rounding_of(factorization, modes(factorization), num_steps) * 2.0**-24
    return {"steps": num_steps, "buffers": buffers, "off": float(off), "estimate": estimate}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--period", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step-time", action="store_true")
    parser.add_argument("--rounding", action="store_true")
    parser.add_argument("--model", choices=["dense", "convolutional"], default="dense")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    if arguments.step_time:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        for row in step_times(arguments.model, arguments.rounds):
            print(
                f"{row['network']}, {row['parameters']:,} parameters, {row['noise']:12} "
                f"{row['processor_milliseconds']:8.1f} ms  {row['over_independent']:.2f}"
            )
        return
    if arguments.rounding:
        print("| steps | buffers | off by | estimate |\n|---|---|---|---|")
        for n in arguments.steps:
            for buffers in (2, 4):
                row = rounding(n, buffers)
                print(f"| {n} | {buffers} | {row['off']:.1e} | {row['estimate']:.1e} |", flush=True)
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
