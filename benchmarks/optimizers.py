"""Cost of a private step with optimizers that know about noise, beside private Adam.

    python benchmarks/optimizers.py [--json]
    python benchmarks/optimizers.py --ways Adam scaled "FTRL, tree"

A network of two layers (by default with 1.8 million parameters) trains on synthetic data, one epoch
of 20 steps of 256 records in a fixed order after the other, in each way in turn, in one process.
Printed are medians of the processor time of a step, and the median of the ratios to the first way
of the same round.
"Scaled" is ScaleThenPrivatizeQuery; "FTRL" is SGD with momentum and noise that remembers.
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
# Name: class of the inner optimizer and its arguments, what the query is.
WAYS = {
    "Adam": (keras.optimizers.Adam, {}, "average"),
    "AdamBC": (tfdp.keras.AdamBC, {}, "average"),
    "scaled": (keras.optimizers.Adam, {}, "scaled"),
    "FTRL, tree": (keras.optimizers.SGD, {"momentum": 0.9}, "tree"),
    "FTRL, 2 buffers": (keras.optimizers.SGD, {"momentum": 0.9}, "buffers"),
}
RUN = 2**13  # Steps of a run of noise that remembers.


def make_model(optimizer: type, arguments: dict, kind: str, width: int) -> keras.Model:
    layers = [keras.layers.Dense(width, "relu"), keras.layers.Dense(width, "relu")]
    network = keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])
    model = tfdp.keras.make_private(network)
    query: tfdp.DPQuery = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=BATCH)
    if kind == "scaled":
        query = tfdp.query.ScaleThenPrivatizeQuery(query, model.trainable_variables)
    elif kind != "average":
        factorization = (
            tfdp.factorizations.BinaryTree()
            if kind == "tree"
            else tfdp.factorizations.optimal_buffered(RUN, 2, STEPS)
        )
        total = tfdp.query.CorrelatedGaussianSumQuery(
            1.0, 1.0, factorization, RUN, STEPS, model.trainable_variables
        )
        query = tfdp.NormalizedQuery(total, BATCH)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfdp.keras.DPOptimizer(optimizer(1e-3, **arguments), query), loss)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["Adam", "AdamBC"])
    parser.add_argument("--width", type=int, default=1000, help="of both hidden layers")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")

    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH * STEPS, 784)).astype("float32")
    y = rng.integers(0, 10, len(x))
    models = {name: make_model(*WAYS[name], arguments.width) for name in arguments.ways}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(arguments.rounds + 1):
        for name, model in models.items():
            start = time.process_time()
            model.fit(x, y, batch_size=BATCH, sampling=tfdp.sampling.FixedOrder(), verbose=0)
            if number:  # The first round builds the step.
                seconds[name].append((time.process_time() - start) / STEPS)
    result = {
        name: {
            "milliseconds": 1e3 * statistics.median(values),
            "over_first": statistics.median(
                value / first
                for value, first in zip(values, seconds[arguments.ways[0]], strict=True)
            ),
        }
        for name, values in seconds.items()
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, row in result.items():
        print(
            f"{name:20} {row['milliseconds']:8.2f} ms a step  {row['over_first']:6.3f} of "
            f"{arguments.ways[0]}"
        )


if __name__ == "__main__":
    main()
