"""Batch normalization in private training: accuracies on digits, and whole backbones.

    PYTHONPATH=. python benchmarks/batch_norm.py [--json]
    PYTHONPATH=. python benchmarks/batch_norm.py --backbones

Accuracies are on 450 test digits of scikit-learn's 1,797, of a convolutional network trained for 20
epochs of batches of 128: without privacy, with moving statistics that are estimated privately, with
group normalization, and with statistics that stay as they are. The private ones spend the same
(epsilon, 1e-5), statistics included. With --backbones one step of ResNet50 and MobileNet of
keras.applications, as they are, on images of 32 x 32: what it releases.
"""

import argparse
import json
import time
from typing import Any

import keras
import numpy as np

import tfdp

L = keras.layers
EPSILON, DELTA, BATCH, EPOCHS = 4.0, 1e-5, 128, 20


def digits() -> tuple[Any, Any, Any, Any]:
    """Returns x, y of training and of testing."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order].reshape(-1, 8, 8, 1)).astype("float32"), y[order]
    return x[450:], y[450:], x[:450], y[:450]


def network(seed: int) -> keras.Model:
    """Returns a small network with three layers of batch normalization; inputs are 0 to 16."""
    keras.utils.set_random_seed(seed)
    layers = [L.BatchNormalization(momentum=0.9, center=False, scale=False)]
    for filters in (16, 32):
        layers += [
            L.Conv2D(filters, 3, padding="same", use_bias=False),
            L.BatchNormalization(momentum=0.9),
            L.ReLU(),
            L.MaxPooling2D(),
        ]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers, L.Flatten(), L.Dense(10)])


def accuracy(kind: str, seed: int) -> float:
    """Returns the test accuracy of a kind of training."""
    x, y, x_test, y_test = digits()
    plain = network(seed)
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    if kind == "not private":
        plain.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
        plain.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
        return plain.evaluate(x_test, y_test, verbose=0)[1]
    extra = {}
    if kind == "private":
        extra = {"batch_norm_noise_multiplier": 8.0}
    if kind == "constant":
        for layer in plain.layers:
            if isinstance(layer, L.BatchNormalization):
                layer.trainable = False
    model = tfdp.keras.make_private(plain, batch_norm=None if kind == "constant" else kind)
    optimizer = tfdp.keras.DPOptimizer.for_budget(
        keras.optimizers.Adam(0.01),
        1.0,
        batch_size=BATCH,
        target_epsilon=EPSILON,
        target_delta=DELTA,
        population_size=len(x),
        epochs=EPOCHS,
        **extra,
    )
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    return model.evaluate(x_test, y_test, verbose=0)[1]


def backbone(name: str) -> dict[str, Any]:
    """Returns what one private step of a model of keras.applications releases and takes."""
    plain = getattr(keras.applications, name)(weights=None, input_shape=(32, 32, 3), classes=10)
    start = time.perf_counter()
    model = tfdp.keras.make_private(plain, batch_norm="private")
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=8)
    optimizer = tfdp.keras.DPOptimizer(
        keras.optimizers.SGD(0.1), query, batch_norm_noise_multiplier=8.0
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(), jit_compile=False)
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (8, 32, 32, 3)).astype("float32"), rng.integers(0, 10, 8)
    model.train_on_batch(x, y)
    first = time.perf_counter() - start
    start = time.perf_counter()
    model.train_on_batch(x, y)
    sums = list(model.ledger)[0].event.event.events
    return {
        "model": name,
        "layers": len(sums) - 1,
        "first_step_s": first,
        "step_s": time.perf_counter() - start,
        "finite": bool(all(np.all(np.isfinite(v)) for v in model.get_weights())),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbones", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.backbones:
        for name in ("MobileNet", "ResNet50"):
            print(json.dumps(backbone(name)))
        return
    rows = {
        kind: [accuracy(kind, seed) for seed in range(arguments.seeds)]
        for kind in ("not private", "private", "group", "constant")
    }
    if arguments.json:
        print(json.dumps(rows))
        return
    print("| batch normalization | test accuracy |\n|---|---|")
    for kind, values in rows.items():
        print(f"| {kind} | {', '.join(f'{100 * value:.1f} %' for value in values)} |")


if __name__ == "__main__":
    main()
