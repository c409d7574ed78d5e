"""Non-private and private training side by side, on data that need no download.

    python tutorials/digits_demo.py --out demo_output

scikit-learn ships 1797 handwritten digits of 8 x 8 pixels. Two equal models are trained on 1500 of
them: one by Keras as always, one with differential privacy. The private one writes a ledger, from
which three accountants compute epsilon.
"""

import argparse
import pathlib
import sys

import numpy as np
import quiet
from sklearn.datasets import load_digits

with quiet.starting():
    import curves
    import keras

    import tfdp.keras

NUM_TRAIN = 1500
BATCH_SIZE = 250
DELTA = 1e-4  # Well below 1 / 1500.


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns (x_train, y_train, x_test, y_test); pixels in [0, 1]."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x = (digits.images[order, ..., None] / 16).astype("float32")
    y = digits.target[order]
    return x[:NUM_TRAIN], y[:NUM_TRAIN], x[NUM_TRAIN:], y[NUM_TRAIN:]


def make_model() -> keras.Model:
    """Returns a small convolutional network."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def table(accuracies: dict[str, list[float]], epsilon: float) -> str:
    """Returns what each training reached, and what it cost, as rows of a table."""
    rows = [("training", "test accuracy", f"epsilon by rdp, delta {DELTA:g}")]
    for name, values in accuracies.items():
        cost = f"{epsilon:.3f}" if name == "private" else "infinite"
        rows.append((name, f"{values[-1]:.3f}", cost))
    return "\n".join(f"{name:<14}{accuracy:>13}{cost:>30}" for name, accuracy, cost in rows)


def main() -> None:
    """Trains both models and writes the ledger, the model and a plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo_output"))
    parser.add_argument("--epochs", type=int, default=40)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    x_train, y_train, x_test, y_test = load_data()

    plain = make_model()
    plain.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    private = tfdp.keras.make_private(make_model())
    private.compile(
        optimizer=tfdp.keras.DPOptimizer(
            keras.optimizers.SGD(0.5, momentum=0.5),
            query=tfdp.GaussianAverageQuery(
                l2_norm_clip=1.0, noise_multiplier=2.5, denominator=BATCH_SIZE
            ),
        ),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )

    accuracies: dict[str, list[float]] = {"not private": [], "private": []}
    steps = []
    bar = keras.utils.Progbar(
        arguments.epochs,
        verbose=int(sys.stdout.isatty()),
        unit_name="epoch",
        stateful_metrics=["not private", "private", "epsilon"],
    )
    for epoch in range(arguments.epochs):
        for name, model in (("not private", plain), ("private", private)):
            model.fit(x_train, y_train, batch_size=BATCH_SIZE, verbose=0)
            accuracies[name].append(model.evaluate(x_test, y_test, verbose=0)[1])
        steps.append(private.ledger.total_count)
        (epsilon,) = curves.epsilon_after(private.ledger, steps[-1:], DELTA)
        bar.update(
            epoch + 1,
            [(name, values[-1]) for name, values in accuracies.items()] + [("epsilon", epsilon)],
        )

    print(table(accuracies, epsilon))
    private.ledger.save(arguments.out / "digits.ledger", overwrite=True)
    private.save(arguments.out / "digits.keras")
    curves.print_epsilons(arguments.out / "digits.ledger", DELTA)
    curves.plot(
        arguments.out / "digits.png",
        steps,
        curves.epsilon_after(private.ledger, steps, DELTA),
        accuracies,
    )
    print(
        f"the same from the shell: tfdp replay {arguments.out / 'digits.ledger'} --accountant rdp "
        f"--delta {DELTA:g}"
    )


if __name__ == "__main__":
    main()
