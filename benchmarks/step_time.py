"""Time of a private training step against Keras' ordinary one.

    python benchmarks/step_time.py --workload cnn --engine vectorized

Both models train on the same synthetic batches of fixed size, alternately, in one process; warm-up
and compilation are left out. Printed are medians and their ratio. The ordinary step is the faster
of Keras with and without XLA.
"""

import argparse
import json
import statistics
import time
import warnings

import keras
import numpy as np
import tensorflow as tf

import tfdp

layers = keras.layers


def mlp():
    return [layers.Dense(1000, "relu"), layers.Dense(1000, "relu"), layers.Dense(10)], (784,)


def cnn():
    return [
        layers.Conv2D(16, 8, strides=2, padding="same", activation="relu"),
        layers.MaxPooling2D(2, strides=1),
        layers.Conv2D(32, 4, strides=2, activation="relu"),
        layers.MaxPooling2D(2, strides=1),
        layers.Flatten(),
        layers.Dense(32, "relu"),
        layers.Dense(10),
    ], (28, 28, 1)


WORKLOADS = {"mlp": mlp, "cnn": cnn}


def make_step(workload: str, x: np.ndarray, y: np.ndarray, optimizer, jit_compile: bool):
    """Returns a function that trains one step on the batch and waits for it."""
    stack, shape = WORKLOADS[workload]()
    model = keras.Sequential([keras.Input(shape), *stack])
    if isinstance(optimizer, tfdp.keras.DPOptimizer):
        model = tfdp.keras.make_private(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, jit_compile=jit_compile)
    model.train_on_batch(x, y)
    data = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    return lambda: float(model.train_function(data)["loss"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="cnn")
    parser.add_argument("--engine", choices=["loop", "vectorized"], default="vectorized")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")

    rng = np.random.default_rng(0)
    shape = WORKLOADS[arguments.workload]()[1]
    x = rng.normal(size=(arguments.batch_size, *shape)).astype("float32")
    y = rng.integers(0, 10, arguments.batch_size)
    query = tfdp.GaussianAverageQuery(1.0, 1.0, denominator=arguments.batch_size)
    private = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query, engine=arguments.engine)
    steps = {
        "keras": make_step(arguments.workload, x, y, keras.optimizers.SGD(0.1), False),
        "keras_xla": make_step(arguments.workload, x, y, keras.optimizers.SGD(0.1), True),
        "private": make_step(arguments.workload, x, y, private, False),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(arguments.repeats + 3):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if repeat >= 3:
                times[name].append(1e3 * (time.perf_counter() - start))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["private"] / min(medians["keras"], medians["keras_xla"])
    if arguments.json:
        print(json.dumps({**vars(arguments), "milliseconds": medians, "ratio": ratio}))
        return
    for name, value in medians.items():
        print(f"{name:10} {value:8.1f} ms")
    print(f"private / best ordinary step: {ratio:.1f}")


if __name__ == "__main__":
    main()
