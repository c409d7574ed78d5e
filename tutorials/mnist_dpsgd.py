"""MNIST with differential privacy: DP-SGD on a small convolutional network.

    python tutorials/mnist_dpsgd.py --epsilon 1.19 --epochs 15 --plot mnist.png

Samples are Poisson, of 256 expected examples. The noise is what RDP asks for to stay within
--epsilon over all epochs. The network is that of TensorFlow Privacy's tutorial, 26,010 parameters.
"""

import argparse
import math
import pathlib
import time

import curves
import keras
import numpy as np

import tfdp


def load_data(path: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns (x_train, y_train, x_test, y_test) from an mnist.npz; None downloads it by Keras."""
    if path is None:
        (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    else:
        with np.load(path) as data:
            x_train, y_train, x_test, y_test = (
                data[k] for k in ("x_train", "y_train", "x_test", "y_test")
            )
    # Constants, the same for any images: statistics of private data would have to be paid for.
    x_train, x_test = ((x[..., None].astype("float32") - 32) / 80 for x in (x_train, x_test))
    return x_train, y_train, x_test, y_test


def make_model() -> keras.Model:
    """Returns the network, with logits as outputs."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 8, strides=2, padding="same", activation="relu"),
            layers.MaxPooling2D(2, strides=1),
            layers.Conv2D(32, 4, strides=2, activation="relu"),
            layers.MaxPooling2D(2, strides=1),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )


def make_query(
    clipping: str, model: keras.Model, l2_norm_clip: float, noise_multiplier: float, batch_size: int
) -> tfdp.DPQuery:
    """Returns the mechanism; all three have the same noise multiplier, and so the same epsilon."""
    if clipping == "per-layer":
        return tfdp.query.per_layer(model, l2_norm_clip, noise_multiplier, denominator=batch_size)
    if clipping == "joint":
        # Small variables, the biases, get less of the norm and less of the noise.
        sizes = [math.prod(v.shape) for v in model.trainable_variables]
        scales = [math.sqrt(math.sqrt(size / max(sizes))) for size in sizes]
        joint = tfdp.JointClippingQuery(scales, l2_norm_clip, noise_multiplier)
        return tfdp.NormalizedQuery(joint, batch_size)
    return tfdp.GaussianAverageQuery(
        l2_norm_clip, noise_multiplier=noise_multiplier, denominator=batch_size
    )


def main() -> None:
    """Trains, and prints accuracy and epsilon."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="an mnist.npz; by default Keras downloads it")
    parser.add_argument("--clipping", choices=["flat", "per-layer", "joint"], default="flat")
    parser.add_argument("--epsilon", type=float, default=1.19)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=1.0)
    parser.add_argument("--l2-norm-clip", type=float, default=0.5)
    parser.add_argument("--ledger", type=pathlib.Path, default=pathlib.Path("mnist.ledger"))
    parser.add_argument("--plot", type=pathlib.Path, help="where to write a PNG")
    arguments = parser.parse_args()
    if arguments.ledger.exists():  # Found now, not after the training.
        parser.error(f"{arguments.ledger} is the ledger of an earlier run; give another --ledger.")
    x_train, y_train, x_test, y_test = load_data(arguments.data)

    steps_per_epoch = round(len(x_train) / arguments.batch_size)
    num_steps = steps_per_epoch * arguments.epochs
    noise_multiplier = tfdp.noise_for_budget(
        arguments.epsilon,
        arguments.delta,
        population_size=len(x_train),
        batch_size=arguments.batch_size,
        steps=num_steps,
        accountant="rdp",
    )
    print(f"noise multiplier {noise_multiplier} for {num_steps} steps")

    model = tfdp.keras.make_private(make_model())
    query = make_query(
        arguments.clipping, model, arguments.l2_norm_clip, noise_multiplier, arguments.batch_size
    )
    # The rate falls to a tenth, and weights are averaged over the last thousand steps or so: both
    # take out noise, and neither touches the data.
    learning_rate = keras.optimizers.schedules.PolynomialDecay(
        arguments.learning_rate, num_steps, end_learning_rate=arguments.learning_rate / 10
    )
    model.compile(
        optimizer=tfdp.keras.DPOptimizer(
            keras.optimizers.SGD(learning_rate, use_ema=True, ema_momentum=0.999), query
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    budget = tfdp.keras.PrivacyBudget(arguments.epsilon, arguments.delta)
    start = time.perf_counter()
    history = model.fit(
        x_train,
        y_train,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        steps_per_epoch=steps_per_epoch,
        validation_data=(x_test, y_test),
        validation_batch_size=1000,
        callbacks=[budget],
        verbose=2,
    )
    print(f"trained in {time.perf_counter() - start:.0f} s")
    accuracies = history.history["val_accuracy"]
    # fit has put the averages in place of the weights.
    accuracies[-1] = model.evaluate(x_test, y_test, batch_size=1000, verbose=0)[1]
    print(f"test accuracy {accuracies[-1]:.4f}")
    model.ledger.save(arguments.ledger)
    curves.print_epsilons(arguments.ledger, arguments.delta)
    if arguments.plot:
        steps = [steps_per_epoch * (epoch + 1) for epoch in range(len(accuracies))]
        epsilons = curves.epsilon_after(model.ledger, steps, arguments.delta)
        curves.plot(arguments.plot, steps, epsilons, {"private": accuracies})


if __name__ == "__main__":
    main()
