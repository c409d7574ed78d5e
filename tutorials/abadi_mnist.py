"""MNIST as in Abadi et al. 2016: private principal components, then DP-SGD, on one ledger.

    python tutorials/abadi_mnist.py --epsilon 2
    python tutorials/abadi_mnist.py --show figure2 --plot figure2.png
    python tutorials/abadi_mnist.py --show effects --epsilon 2 --plot effects.png

Images of norm one are projected to 60 directions, which are the principal components of all of them
with noise. A layer of 1000 ReLU is trained on lots of 600, gradients clipped to norm 4. The ledger
has both, so that the epsilon which is printed is that of everything. The training takes as many
steps as the budget leaves. Architecture, lots, clip and noise of the components are from section
5.2 of the paper (arXiv:1607.00133); the learning rate falls to zero over all steps, and inputs are
larger. Both were chosen on training images that were held out, as --validation does.
"""

import argparse
import pathlib
import sys
import time
from typing import NamedTuple

import curves
import keras
import numpy as np

import tfdp
from tfdp.statistics import PrivateData

# Epsilon -> the paper's accuracy at delta = 1e-5, the noise multiplier of a step, and that of the
# components, which is the paper's. With its steps (8, 4 and 2) today's accountants leave the budget
# for 100 to 950 epochs. With less noise there are 25 to 65, which is minutes.
PAPER = {0.5: (0.90, 4.0, 16.0), 2.0: (0.95, 1.5, 7.0), 8.0: (0.97, 0.8, 4.0)}


class TooFewSteps(SystemExit):
    """The budget leaves less than an epoch of steps, beside the components."""


class Setting(NamedTuple):
    """What figures 4 and 5 of the paper vary, and the noise."""

    noise_multiplier: float
    pca_noise_multiplier: float
    dimensions: int = 60
    hidden: int = 1000
    lot: int = 600
    learning_rate: float = 0.2
    l2_norm_clip: float = 4.0
    input_scale: float = 6.0
    whiten: float = 0.0


def load_data(path: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns images [n, 784] of norm one and labels, for training and test."""
    if path is None:
        (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    else:
        with np.load(path) as data:
            x_train, y_train, x_test, y_test = (
                data[k] for k in ("x_train", "y_train", "x_test", "y_test")
            )

    def normed(images: np.ndarray) -> np.ndarray:
        rows = images.reshape(len(images), -1).astype("float64")
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)

    return normed(x_train), y_train.astype("int32"), normed(x_test), y_test.astype("int32")


def scaled_directions(components, whiten: float) -> np.ndarray:
    """Returns float64 [784, dimensions]: directions, each over its noised scatter to a power.

    Their mean square, weighed by scatter, is that of the directions times the root of their number,
    so that inputs are of about one size, whatever the images are. The larger they are, the larger
    are the gradients of the first layer beside the noise. What is noised costs nothing more.
    """
    scatter = np.maximum(components.scatter, 1.0)
    sizes = scatter**-whiten
    sizes *= np.sqrt(len(scatter) * np.sum(scatter) / np.sum(scatter * sizes**2))
    return components.directions.T * sizes


def train(data, setting: Setting, budget: tfdp.accounting.Budget, seed: int, verbose: int):
    """Returns the test accuracy after every epoch, and the ledger of components and training."""
    keras.utils.set_random_seed(seed)
    x_train, y_train, x_test, y_test = data
    ledger = tfdp.PrivacyLedger()
    components = PrivateData(x_train, ledger=ledger, budget=budget).principal_components(
        setting.dimensions, l2_norm_clip=1.0, noise_multiplier=setting.pca_noise_multiplier
    )
    scaled = setting.input_scale * scaled_directions(components, setting.whiten)
    x_train, x_test = ((x @ scaled).astype("float32") for x in (x_train, x_test))

    plan = tfdp.accounting.TrainingPlan(len(x_train), setting.lot, 1, setting.noise_multiplier)
    steps = ledger.remaining(budget.epsilon, budget.delta, event=plan.event()).events
    per_epoch = max(1, round(len(x_train) / setting.lot))
    epochs = steps // per_epoch
    if epochs == 0:
        raise TooFewSteps(f"The budget leaves {steps} steps, less than an epoch.")
    model = tfdp.keras.DPSequential(
        [
            keras.Input((setting.dimensions,)),
            keras.layers.Dense(setting.hidden, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    # To zero: the noise of the last steps would stay in the weights.
    rate = keras.optimizers.schedules.PolynomialDecay(
        setting.learning_rate, epochs * per_epoch, end_learning_rate=0.0
    )
    query = tfdp.GaussianAverageQuery(
        setting.l2_norm_clip, noise_multiplier=setting.noise_multiplier, denominator=setting.lot
    )
    model.compile(
        optimizer=tfdp.keras.DPOptimizer(keras.optimizers.SGD(rate), query, ledger=ledger),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        x_train,
        y_train,
        batch_size=setting.lot,
        epochs=epochs,
        steps_per_epoch=per_epoch,
        validation_data=(x_test, y_test),
        validation_batch_size=1000,
        validation_freq=epochs if verbose == 0 else 1,
        verbose=verbose,
    )
    return history.history["val_accuracy"], ledger


def make_setting(options: argparse.Namespace) -> Setting:
    """Returns what the command line says, and the noise of `PAPER` where it says none."""
    given = (options.noise, options.pca_noise)
    usual = PAPER.get(options.epsilon, (None, None, None))[1:]
    noise = [number or default for number, default in zip(given, usual, strict=True)]
    if None in noise:
        raise SystemExit("Give --noise and --pca-noise, or --epsilon 0.5, 2 or 8.")
    return Setting(
        *noise,
        lot=options.lot,
        learning_rate=options.learning_rate,
        input_scale=options.input_scale,
        whiten=options.whiten,
    )


def show_training(data, options: argparse.Namespace) -> None:
    """Prints the accuracy and epsilon of several seeds, and saves the first ledger."""
    published = PAPER.get(options.epsilon, (float("nan"),))[0]
    budget = tfdp.accounting.Budget(options.epsilon, options.delta)
    setting = make_setting(options)
    print(setting)
    found = []
    for seed in range(options.seeds):
        start, processor = time.perf_counter(), time.process_time()
        accuracies, ledger = train(data, setting, budget, seed, options.verbose)
        found.append(accuracies[-1])
        print(
            f"seed {seed}: test accuracy {accuracies[-1]:.4f}, epsilon "
            f"{ledger.epsilon(options.delta):.4f}, of which components alone "
            f"{_first_event(ledger, options.delta):.4f}, {ledger.total_count - 1} steps, "
            f"{time.perf_counter() - start:.0f} s ({time.process_time() - processor:.0f} s of "
            "processors)",
            flush=True,
        )
        if seed == 0 and options.ledger:
            ledger.save(options.ledger)
            curves.print_epsilons(options.ledger, options.delta, ("prv", "rdp", "pld"))
    print(
        f"epsilon {options.epsilon:g}: mean {np.mean(found):.4f}, from {min(found):.4f} to "
        f"{max(found):.4f}; paper {published:.2f}"
    )


def _first_event(ledger: tfdp.PrivacyLedger, delta: float) -> float:
    one = tfdp.PrivacyLedger()
    event, _ = next(iter(ledger))
    one.append(event)
    return one.epsilon(delta)


def show_figure2(data, options: argparse.Namespace) -> None:
    """Prints epsilon over epochs, by the moments accountant and by strong composition."""
    epochs = [1, 10, 25, 50, 100, 200, 400]
    print("q = 0.01, noise multiplier 4; epsilon at delta = 1e-5\nepochs  moments  strong")
    found: dict[str, list[float]] = {"moments": [], "strong": []}
    for number in epochs:
        plan = tfdp.accounting.TrainingPlan(60_000, 600, 100 * number, 4.0)
        for name, values in found.items():
            values.append(plan.epsilon(options.delta, name))
        print(f"{number:6}  {found['moments'][-1]:7.3f}  {found['strong'][-1]:6.3f}")
    if options.plot:
        _plot(options.plot, {"epochs": (epochs, found)}, "epsilon")


def show_effects(data, options: argparse.Namespace) -> None:
    """Prints the accuracy at one budget when one setting varies, as figures 4 and 5 do."""
    budget = tfdp.accounting.Budget(options.epsilon, options.delta)
    usual = make_setting(options)
    varied = {
        "dimensions": (10, 30, 60, 120, 200),
        "hidden": (200, 500, 1000, 2000),
        "lot": (300, 600, 1200, 2400),
        "learning_rate": (0.025, 0.05, 0.1, 0.2, 0.4, 0.8),
        "l2_norm_clip": (1.0, 2.0, 4.0, 8.0),
        "noise_multiplier": tuple(
            usual.noise_multiplier * factor for factor in (0.8, 1.0, 1.5, 2.0)
        ),
    }
    panels = {}
    for name in options.vary or varied:
        found = {}
        for value in varied[name]:
            try:
                found[value] = train(data, usual._replace(**{name: value}), budget, 0, 0)[0][-1]
            except TooFewSteps as reason:
                print(f"{name:18} {value:8g}  left out. {reason}", flush=True)
                continue
            print(f"{name:18} {value:8g}  accuracy {found[value]:.4f}", flush=True)
        if found:
            panels[name] = (list(found), {"accuracy": list(found.values())})
    if options.plot and panels:
        _plot(options.plot, panels, "test accuracy")


def _plot(path: pathlib.Path, panels: dict, ylabel: str) -> None:
    """Writes a PNG with one panel for each name -> (x, label -> y), at most three in a row."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.2 * columns + 1, 3 * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.ravel()[len(panels) :]:
        axis.axis("off")
    for axis, (name, (x, lines)) in zip(axes.flat, panels.items(), strict=False):
        for label, y in lines.items():
            axis.plot(x, y, marker="o", label=label)
        axis.set(xlabel=name.replace("_", " "), ylabel=ylabel, xscale="log")
        axis.set_xticks(x, [f"{value:g}" for value in x])
        axis.set_xticks([], minor=True)
        if len(lines) > 1:
            axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"wrote {path}")


def main() -> None:
    """Trains, or shows a figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="an mnist.npz; by default Keras downloads it")
    parser.add_argument("--show", choices=["training", "figure2", "effects"], default="training")
    parser.add_argument("--epsilon", type=float, default=2.0, help="of components and training")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--noise", type=float, help="noise multiplier of a step")
    parser.add_argument("--pca-noise", type=float, help="noise multiplier of the components")
    parser.add_argument("--lot", type=int, default=600, help="expected images in a sample")
    parser.add_argument("--learning-rate", type=float, default=0.2, help="of the first step")
    parser.add_argument("--input-scale", type=float, default=6.0)
    parser.add_argument("--whiten", type=float, default=0.0, help="a power, up to 0.5: all alike")
    parser.add_argument("--validation", type=int, metavar="N", help="test on N training images")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--vary", nargs="*", help="with --show effects: only these")
    parser.add_argument("--ledger", type=pathlib.Path, help="where to save the first ledger")
    parser.add_argument("--plot", type=pathlib.Path, help="where to write a PNG")
    parser.add_argument("--verbose", type=int, default=int(sys.stdout.isatty()), help="of fit")
    options = parser.parse_args()
    data = None if options.show == "figure2" else load_data(options.data)
    if options.validation:
        x, y, *_ = data
        n = options.validation
        data = x[:-n], y[:-n], x[-n:], y[-n:]
    show = {"training": show_training, "figure2": show_figure2, "effects": show_effects}
    show[options.show](data, options)


if __name__ == "__main__":
    main()
