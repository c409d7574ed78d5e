"""Cost of a private step with optimizers that know about noise, beside private Adam.

    python benchmarks/optimizers.py [--json]

A two-layer network of 1.8 million parameters trains on synthetic data, one epoch of 20 steps of 256
records after the other, with each optimizer in turn, in one process. Printed are medians of the
processor time of a step, and the median of the ratios to Adam of the same round.
"""

import argparse
import json
import statistics
import time
import warnings

import keras
import numpy as np

import tfdp

BATCH, STEPS = 256, 20
OPTIMIZERS = {"Adam": keras.optimizers.Adam, "AdamBC": tfdp.keras.AdamBC}


def make_model(inner: keras.optimizers.Optimizer) -> keras.Model:
    layers = [keras.layers.Dense(1000, "relu"), keras.layers.Dense(1000, "relu")]
    network = keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])
    model = tfdp.keras.make_private(network)
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=BATCH)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.keras.DPOptimizer(inner, query), loss)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")

    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH * STEPS, 784)).astype("float32")
    y = rng.integers(0, 10, len(x))
    models = {name: make_model(make(1e-3)) for name, make in OPTIMIZERS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(arguments.rounds + 1):
        for name, model in models.items():
            start = time.process_time()
            model.fit(x, y, batch_size=BATCH, verbose=0)
            if number:  # The first round builds the step.
                seconds[name].append((time.process_time() - start) / STEPS)
    result = {
        name: {
            "milliseconds": 1e3 * statistics.median(values),
            "over_adam": statistics.median(
                value / adam for value, adam in zip(values, seconds["Adam"], strict=True)
            ),
        }
        for name, values in seconds.items()
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, row in result.items():
        print(f"{name:8} {row['milliseconds']:8.2f} ms a step  {row['over_adam']:6.3f} of Adam's")


if __name__ == "__main__":
    main()
