"""Cost of a step with a large embedding table: Keras', private, and private with selected rows.

    python benchmarks/sparse_embedding.py [--json]

A table of 250,000 x 64 and two dense layers train with SGD on synthetic texts, one epoch of 20
batches after the other, with each way in turn, in one process. Printed are medians of the time of
a step, and the median of the ratios to Keras' step of the same round.
"""

import argparse
import json
import statistics
import time
import warnings

import keras
import numpy as np

import tfdp

ROWS, WIDTH, LENGTH, STEPS = 250_000, 64, 20, 20
# Of 250,000 unused rows 8 are selected.
SELECTION_STDDEV, THRESHOLD = 5.0, 20.0


def network() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(ROWS, WIDTH),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(2),
        ]
    )


def make_model(way: str, batch: int) -> keras.Model:
    model, optimizer = network(), keras.optimizers.SGD(0.1)
    if way != "Keras":
        model = tfdp.keras.make_private(model)
        rest = tfdp.GaussianSumQuery(1.0, 1.0)
        query: tfdp.DPQuery = tfdp.GaussianAverageQuery(
            1.0, noise_multiplier=1.0, denominator=batch
        )
        if way == "selected rows":
            table = tfdp.query.SparseEmbeddingSumQuery(
                1.0, 1.0, 1.0, SELECTION_STDDEV, threshold=THRESHOLD
            )
            sums = tfdp.query.NestedQuery({"table": table, "rest": rest})
            average = tfdp.NormalizedQuery(sums, batch)
            query = tfdp.query.ArrangedQuery(average, {"table": [0], "rest": [1, 2, 3, 4]})
        optimizer = tfdp.keras.DPOptimizer(optimizer, query)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")

    rng = np.random.default_rng(0)
    number = arguments.batch * STEPS
    x = np.minimum(rng.zipf(1.2, (number, LENGTH)), ROWS - 1).astype("int32")
    y = rng.integers(0, 2, number)
    ways = ("Keras", "all rows", "selected rows")
    models = {way: make_model(way, arguments.batch) for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for round_number in range(arguments.rounds + 1):
        for way, model in models.items():
            start = time.perf_counter()
            model.fit(x, y, batch_size=arguments.batch, verbose=0)
            if round_number:  # The first round builds the step.
                seconds[way].append((time.perf_counter() - start) / STEPS)
    result = {
        way: {
            "milliseconds": 1e3 * statistics.median(values),
            "over_keras": statistics.median(
                value / plain for value, plain in zip(values, seconds["Keras"], strict=True)
            ),
        }
        for way, values in seconds.items()
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for way, row in result.items():
        print(f"{way:14} {row['milliseconds']:8.2f} ms a step {row['over_keras']:7.2f} of Keras'")


if __name__ == "__main__":
    main()
