"""Cost of several views of each example in a private step, beside as many steps with one view.

    python benchmarks/views.py [--views 4]

Models train on synthetic data in batches of fixed size, in turn in one process: as Keras does it,
privately, and privately with several views. Printed is the processor time of a step, as a multiple
of Keras' (medians over rounds): K views are cheap where theirs is below K of the others.
"""

import argparse
import statistics
import time
import warnings

import inputs
import keras
import workloads

import tfdp

STEPS = 8


def make(name: str, batch: int, private: bool) -> keras.Model:
    """Returns a compiled model of a workload."""
    model = workloads.build(name, {})
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.01)
    if private:
        query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=batch)
        model = tfdp.keras.make_private(model)
        optimizer = tfdp.keras.DPOptimizer(optimizer, query)
    model.compile(optimizer, loss)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=["mlp", "cnn", "transformer"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.workloads:
        x, y = inputs.batch(name, inputs.sizes(name, batch_size=options.batch * STEPS))
        sampling = {"sampling": tfdp.sampling.Shuffled()}
        ways = {
            "keras": (make(name, options.batch, False), {}),
            "private": (make(name, options.batch, True), sampling),
            "views": (make(name, options.batch, True), {**sampling, "views": options.views}),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(options.rounds + 1):
            for way, (model, arguments) in ways.items():
                start = time.process_time()
                model.fit(x, y, batch_size=options.batch, verbose=0, **arguments)
                if number:  # The first round builds the step.
                    seconds[way].append((time.process_time() - start) / STEPS)
        of = {
            way: statistics.median(found) / statistics.median(seconds["keras"])
            for way, found in seconds.items()
        }
        print(
            f"{name}: keras {1e3 * statistics.median(seconds['keras']):.1f} ms a step; private "
            f"{of['private']:.2f} of it; with {options.views} views {of['views']:.2f}, which is "
            f"{of['views'] / of['private']:.2f} private steps",
            flush=True,
        )


if __name__ == "__main__":
    main()
