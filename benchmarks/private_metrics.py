"""Cost of a private step that releases metrics, beside one that shows raw ones.

    python benchmarks/private_metrics.py [--json]

A two-layer network of 1.8 million parameters trains on synthetic data, one epoch of 20 steps of 256
records after the other, without and with private metrics in turn, in one process. Printed are
medians of the processor time of a step, and the median of the ratios to raw metrics of the same
round.
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
METRICS = {
    "raw": [],
    "private": [
        tfdp.keras.PrivateAccuracy(noise_multiplier=10.0),
        tfdp.keras.PrivateLoss(noise_multiplier=10.0, l2_norm_clip=4.0),
        tfdp.keras.PrivateClassCounts(noise_multiplier=10.0, num_classes=10),
    ],
}


def make_model(metrics: list[tfdp.keras.PrivateMetric]) -> keras.Model:
    layers = [keras.layers.Dense(1000, "relu"), keras.layers.Dense(1000, "relu")]
    network = keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])
    model = tfdp.keras.make_private(network)
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=BATCH)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query, private_metrics=metrics)
    model.compile(optimizer, loss, metrics=["accuracy"])
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
    models = {name: make_model(metrics) for name, metrics in METRICS.items()}
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
            "over_raw": statistics.median(
                value / raw for value, raw in zip(values, seconds["raw"], strict=True)
            ),
        }
        for name, values in seconds.items()
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, row in result.items():
        print(f"{name:8} {row['milliseconds']:8.2f} ms a step  {row['over_raw']:6.3f} of raw")


if __name__ == "__main__":
    main()
