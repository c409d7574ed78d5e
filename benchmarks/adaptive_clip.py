"""Accuracy with a clip that adapts, begun far too large and far too small, and with fixed clips.

    python benchmarks/adaptive_clip.py --data mnist.npz [--epochs 5] [--seeds 2] [--json]

The data are an archive of NumPy as Keras' own mnist.npz: x_train, y_train, x_test, y_test. Every
run has the same noise multiplier in all, the count's share included, so all cost the same.
Updates are in units of the clip: fixed clips have a learning rate that is divided by them.
"""

import argparse
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402

import tfdp  # noqa: E402

BATCH, NOISE, COUNT_STDDEV, LEARNING_RATE = 512, 1.0, 512 / 20, 1.0
FIXED = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
FACTOR = 100.0


def fixed(clip):
    """Returns (a query with a fixed clip, the learning rate for it)."""
    query = tfdp.GaussianAverageQuery(clip, noise_multiplier=NOISE, denominator=BATCH)
    return query, LEARNING_RATE / clip


def adaptive(clip):
    """Returns (a query whose clip begins here and goes to the median of the norms, its rate)."""
    multiplier = tfdp.query.adaptive_clip_noise_multiplier(NOISE, COUNT_STDDEV)
    query = tfdp.QuantileAdaptiveClipSumQuery(
        clip, multiplier, 0.5, 0.2, COUNT_STDDEV, BATCH, normalize_by_clip=True
    )
    return tfdp.NormalizedQuery(query, BATCH), LEARNING_RATE


def accuracy(query, learning_rate, data, epochs, seed):
    """Returns (accuracy on the test records in percent, the last clip if it adapts, ledger)."""
    (x, y), test = data
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = tfdp.keras.make_private(
        keras.Sequential(
            [
                keras.Input((784,)),
                layers.Dense(64, activation="tanh"),
                layers.Dense(10),
            ]
        )
    )
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(learning_rate), query)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0)
    state = [float(v) for v in optimizer.variables if v.name == "query_state"]
    _, share = model.evaluate(*test, batch_size=1000, verbose=0)
    return 100 * share, (state or [None])[0], model.ledger


def load(path):
    """Returns ((x, y), (x, y)) of the records to train on and those to test on."""
    with np.load(path) as archive:
        parts = [
            (archive[f"x_{part}"].reshape(-1, 784).astype("float32") / 255, archive[f"y_{part}"])
            for part in ("train", "test")
        ]
    return [(x, y.astype("int32")) for x, y in parts]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    data = load(arguments.data)

    def runs(settings):
        outcomes = [accuracy(*settings, data, arguments.epochs, s) for s in range(arguments.seeds)]
        spent = outcomes[0][2].replay(tfdp.accounting.RDPAccountant()).get_epsilon(1e-5)
        return {
            "accuracies": [outcome[0] for outcome in outcomes],
            "accuracy": float(np.mean([outcome[0] for outcome in outcomes])),
            "last_clips": [outcome[1] for outcome in outcomes],
            "epsilon": spent,
            "rows_of_the_ledger": len(list(outcomes[0][2])),
        }

    table = {f"fixed {clip:g}": runs(fixed(clip)) for clip in FIXED}
    best = max(FIXED, key=lambda clip: table[f"fixed {clip:g}"]["accuracy"])
    for name, clip in (("too large", best * FACTOR), ("too small", best / FACTOR)):
        table[f"adaptive, {name}: {clip:g}"] = runs(adaptive(clip))
    if arguments.json:
        print(json.dumps(table))
        return
    for name, row in table.items():
        clips = ", ".join(f"{clip:.3g}" for clip in row["last_clips"] if clip is not None)
        print(
            f"{name:28} {row['accuracy']:6.2f} %  epsilon {row['epsilon']:.3f}"
            + (f"  last clips {clips}" if clips else "")
        )


if __name__ == "__main__":
    main()
