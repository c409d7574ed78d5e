"""What logging epsilon costs, as a part of the time that private training takes.

    python benchmarks/callback_cost.py --model linear --epochs 3 --steps 500

A private model trains on synthetic data by `fit` again and again, with an `EpsilonLogger` and
without, alternately, in one process; the first fit of each kind is left out. Printed are medians:
the time inside the callback's methods as a part of the fit's, in wall time and in processor time
(which a busy machine disturbs less), and the two kinds of fits side by side, which holds
everything, and the noise of the machine. All fits write to one ledger, which grows.
"""

import argparse
import functools
import json
import statistics
import time
import warnings

import keras
import numpy as np

import tfdp

layers = keras.layers

MODELS = {
    "linear": ((20,), lambda: [layers.Dense(2)]),
    "cnn": (
        (28, 28, 1),
        lambda: [
            layers.Conv2D(16, 8, strides=2, padding="same", activation="relu"),
            layers.MaxPooling2D(2, strides=1),
            layers.Conv2D(32, 4, strides=2, activation="relu"),
            layers.MaxPooling2D(2, strides=1),
            layers.Flatten(),
            layers.Dense(32, "relu"),
            layers.Dense(10),
        ],
    ),
}
ACCOUNTANTS = ("prv", "rdp", "pld")
METHODS = ("on_train_begin", "on_train_batch_end", "on_epoch_end")


class Stopwatch:
    """Adds up the wall time and the processor time of the functions that it wraps."""

    def __init__(self):
        self.wall = self.processor = 0.0

    def wrap(self, function):
        @functools.wraps(function)
        def timed(*args, **kwargs):
            wall, processor = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.wall += time.perf_counter() - wall
                self.processor += time.thread_time() - processor

        return timed


def make_fit(arguments: argparse.Namespace):
    """Returns a function that trains once, with these callbacks, and returns its seconds of wall
    and of processor time.
    """
    shape, make_layers = MODELS[arguments.model]
    rng = np.random.default_rng(0)
    batch, steps = arguments.batch_size, arguments.steps
    x = rng.normal(size=(batch * steps, *shape)).astype("float32")
    y = rng.integers(0, 2, len(x))
    model = tfdp.keras.make_private(keras.Sequential([keras.Input(shape), *make_layers()]))
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=batch)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.01), query), loss=loss)

    def fit(callbacks) -> tuple[float, float]:
        start = time.perf_counter(), time.process_time()
        model.fit(x, y, batch_size=batch, epochs=arguments.epochs, verbose=0, callbacks=callbacks)
        return time.perf_counter() - start[0], time.process_time() - start[1]

    return fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="linear")
    parser.add_argument("--accountant", choices=ACCOUNTANTS, default="prv")
    parser.add_argument("--epochs-only", action="store_true", help="not within epochs")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="steps of an epoch")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")

    fit = make_fit(arguments)
    fits: dict[str, list[float]] = {"with": [], "without": []}
    wall, processor = [], []
    for repeat in range(arguments.repeats + 1):
        watch = Stopwatch()
        logger = tfdp.keras.EpsilonLogger(
            1e-5, arguments.accountant, within_epochs=not arguments.epochs_only
        )
        for method in METHODS:
            setattr(logger, method, watch.wrap(getattr(logger, method)))
        seconds = {"with": fit([logger]), "without": fit([])}
        if repeat:
            for kind, (value, _) in seconds.items():
                fits[kind].append(value)
            wall.append(watch.wall / seconds["with"][0])
            processor.append(watch.processor / seconds["with"][1])
    medians = {kind: statistics.median(values) for kind, values in fits.items()}
    result = {
        "milliseconds_an_epoch": 1e3 * medians["without"] / arguments.epochs,
        "milliseconds_inside_an_epoch": 1e3
        * statistics.median(wall)
        * medians["with"]
        / arguments.epochs,
        "part_inside": statistics.median(wall),
        "part_inside_processor": statistics.median(processor),
        "fit_with_over_without": medians["with"] / medians["without"],
    }
    if arguments.json:
        print(json.dumps({**vars(arguments), **result}))
        return
    print(f"an epoch without it        {result['milliseconds_an_epoch']:10.2f} ms")
    print(f"inside the callback        {result['milliseconds_inside_an_epoch']:10.3f} ms an epoch")
    print(f"part of the fit, wall      {100 * result['part_inside']:10.3f} %")
    print(f"part of the fit, processor {100 * result['part_inside_processor']:10.3f} %")
    print(f"fit with / fit without     {result['fit_with_over_without']:10.3f}")


if __name__ == "__main__":
    main()
