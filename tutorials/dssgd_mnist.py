"""MNIST by distributed selective SGD, and with uploads that protect the participants' data.

    python tutorials/dssgd_mnist.py --show table --model mlp --standardized
    python tutorials/dssgd_mnist.py --show figure9 --plot figure9.png
    python tutorials/dssgd_mnist.py --show private

Each participant has 600 images, 1 % of the data, drawn without regard to the others'. Models, table
and figures are those of Shokri and Shmatikov 2015, "Privacy-Preserving Deep Learning"; figures are
printed as tables too. Accuracy is that of the server's parameters on the test data.
"""

import argparse
import itertools
import math
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import dssgd_plots
import keras
import numpy as np

import tfdp
from tfdp.federated import selective

# Table 4 of the paper: the largest accuracy on MNIST.
PAPER = {
    "mlp": {"sgd": 0.9810, 0.1: 0.98, 0.01: 0.9707, 0.001: 0.9171, "standalone": 0.8832},
    "cnn": {"sgd": 0.9917, 0.1: 0.9914, 0.01: 0.9871, 0.001: 0.9645, "standalone": 0.9316},
}
IMAGES_EACH = 600
# Mean and standard deviation of all pixels of the 60,000 images, filled up with zeros, in [0, 1].
PIXELS = 0.1000, 0.2752


class Data(NamedTuple):
    """Images, 32 x 32 as the paper's models take them, and labels."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class Setting(NamedTuple):
    """Who exchanges what, and in which order."""

    participants: int
    epochs: int
    theta_u: float = 0.1
    theta_d: float = 1.0
    gamma: float = 10.0
    tau: float | None = None  # None: the largest values.
    order: str = "round robin"
    batches: int | None = None  # Between download and upload. None: an epoch.
    training_share: float = 1.0  # Of a participant's time, if the exchange is asynchronous.


def load_data(path: str | None, standardized: bool = False) -> Data:
    """Returns the data of an mnist.npz; None downloads it by Keras.

    Pixels are in [0, 1], or standardized: less their mean, over their standard deviation.
    """
    if path is None:
        (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    else:
        with np.load(path) as data:
            x_train, y_train, x_test, y_test = (
                data[k] for k in ("x_train", "y_train", "x_test", "y_test")
            )

    def padded(x: np.ndarray) -> np.ndarray:
        x = np.pad(x[..., None].astype("float32") / 255, [(0, 0), (2, 2), (2, 2), (0, 0)])
        return (x - np.float32(PIXELS[0])) / np.float32(PIXELS[1]) if standardized else x

    return Data(padded(x_train), y_train.astype("int32"), padded(x_test), y_test.astype("int32"))


def make_model(kind: str) -> keras.Model:
    """Returns the paper's network, of 140,106 (mlp) or 105,506 (cnn) parameters."""
    layers = keras.layers
    if kind == "mlp":
        hidden = [
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(64, activation="relu"),
        ]
    else:
        hidden = [
            layers.Conv2D(32, 5, activation="relu"),
            layers.MaxPooling2D(3),
            layers.Conv2D(64, 5, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(200, activation="relu"),
        ]
    return keras.Sequential([keras.Input((32, 32, 1)), *hidden, layers.Dense(10)])


class Trainer:
    """Trains one model in every setting, from the same initial parameters."""

    def __init__(self, kind: str, data: Data, learning_rate: float, batch_size: int, seed: int):
        self.data, self._seed, self._batch_size = data, seed, batch_size
        keras.utils.set_random_seed(seed)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
        self.sgd = selective.LocalSGD(make_model(kind), loss, learning_rate, batch_size)

    def accuracy(self, parameters: np.ndarray) -> float:
        return self.sgd.accuracy(parameters, self.data.x_test, self.data.y_test)

    def shares(
        self, number: int, batches: int | None = None
    ) -> list[Callable[[np.ndarray], np.ndarray]]:
        """Returns the training of so many participants, each on images of its own."""
        rng, size = np.random.default_rng(self._seed), len(self.data.x_train)
        rows = [rng.choice(size, min(IMAGES_EACH, size), replace=False) for _ in range(number)]
        x, y = self.data.x_train, self.data.y_train
        return [self.sgd.on(x[r], y[r], batches) for r in rows]

    def alone(self, train: Callable[[np.ndarray], np.ndarray], epochs: int) -> list[float]:
        """Returns accuracies after every epoch of one training."""
        parameters, found, bar = self.sgd.parameters(), [], _bar(epochs)
        for epoch in range(epochs):
            parameters = train(parameters)
            found.append(self.accuracy(parameters))
            bar.update(epoch + 1)
        return found

    def together(
        self, setting: Setting, make_upload: Callable | None = None
    ) -> tuple[list[float], selective.ParameterServer]:
        """Returns accuracies after every epoch, and the server."""
        server = selective.ParameterServer(self.sgd.parameters())
        upload = make_upload or (lambda: plain_upload(setting))
        participants = {
            i: selective.Participant(train, upload(), setting.theta_d)
            for i, train in enumerate(self.shares(setting.participants, setting.batches))
        }
        found, turns, bar = [], 1, _bar(setting.epochs)
        if setting.batches:
            images = min(IMAGES_EACH, len(self.data.x_train))
            turns = math.ceil(images // self._batch_size / setting.batches)
        for epoch in exchange(server, participants, setting, turns):
            found.append(self.accuracy(server.parameters))
            bar.update(epoch + 1)
        return found, server


def _bar(epochs: int) -> keras.utils.Progbar:
    return keras.utils.Progbar(epochs, unit_name="epoch", verbose=int(sys.stdout.isatty()))


def plain_upload(setting: Setting) -> Callable:
    """Returns what selects the changes that are shared as they are."""
    if setting.tau is None:
        return selective.LargestValues(setting.theta_u, setting.gamma)
    return selective.RandomAboveThreshold(setting.theta_u, setting.gamma, setting.tau)


def exchange(
    server: selective.ParameterServer, participants: dict, setting: Setting, turns: int = 1
):
    """Yields after every epoch, in which every participant has so many turns (on average)."""
    if setting.order == "asynchronous":
        # From one upload to the next everyone takes 0.5 to 1.5 units of time, 1 on average.
        rng, share = np.random.default_rng(setting.participants), setting.training_share
        asynchronous = selective.AsynchronousExchange(server)
        for name, participant in participants.items():
            time_of_turn = float(rng.uniform(0.5, 1.5))
            asynchronous.add(name, participant, share * time_of_turn, (1 - share) * time_of_turn)
    for epoch in range(setting.epochs):
        if setting.order == "asynchronous":
            until = (epoch + 1.0) * turns
            failed = [turn for turn in asynchronous.run(until) if turn.error]
        else:
            is_random = setting.order == "random order"
            failed = []
            for _ in range(turns):
                order = selective.random_order(participants) if is_random else None
                failed += list(selective.run_epoch(server, participants, order))
        if failed:
            raise RuntimeError(f"Turns failed, in one process: {failed[:3]}.")
        yield epoch


def show_table(trainer: Trainer, options: argparse.Namespace) -> None:
    """Prints table 4 beside the paper's."""
    paper = PAPER[options.model]
    print(
        f"{options.model}, {options.participants[0]} participants, batches of "
        f"{options.batch_size}, {options.epochs} epochs; largest accuracy, and the last one"
    )
    everything = trainer.sgd.on(trainer.data.x_train, trainer.data.y_train)
    found: dict = {"sgd": trainer.alone(everything, options.epochs_of_sgd)}
    _print_row("sgd", found["sgd"], paper)
    for theta_u in options.theta_u:
        setting = Setting(options.participants[0], options.epochs, theta_u)
        found[theta_u], server = trainer.together(setting)
        sent = server.bytes_received / 2**20 / options.epochs
        _print_row(theta_u, found[theta_u], paper, f"uploads of an epoch: {sent:.2f} MB")
    standalone = [trainer.alone(train, options.epochs) for train in trainer.shares(3)]
    _print_row("standalone", np.mean(standalone, axis=0), paper, "mean of 3 participants")
    if options.plot:
        curves = {str(name): list(values) for name, values in found.items() if name != "sgd"}
        dssgd_plots.accuracies(options.plot, curves, dict(paper))


def _print_row(name, accuracies: Sequence[float], paper: dict, more: str = "") -> None:
    published = f"{paper[name]:.4f}" if name in paper else "   -  "
    title = name if isinstance(name, str) else f"theta_u = {name:g}"
    numbers = f"{max(accuracies):.4f} {accuracies[-1]:.4f}"
    print(f"{title:18} {numbers}   paper {published}  {more}", flush=True)


def settings_of(figure: str, options: argparse.Namespace) -> dict[str, Setting]:
    """Returns the settings of a figure, by what its legend says."""
    numbers, epochs = options.participants, options.epochs
    first = Setting(numbers[0], epochs)
    if figure == "figure9":
        orders = ("round robin", "random order", "asynchronous")
        return {
            f"N = {n}, {order}, theta_u = {theta_u:g}": Setting(
                n,
                epochs,
                theta_u,
                order=order,
                batches=options.batches,
                training_share=options.training_share,
            )
            for n, order, theta_u in itertools.product(numbers, orders, options.theta_u)
        }
    if figure == "figure10":
        return {
            f"theta_d = {d:g}, theta_u = {u:g}": first._replace(theta_u=u, theta_d=d)
            for d, u in itertools.product((0.1, 0.5, 1.0), options.theta_u)
        }
    return {
        f"gamma = {g:g}, tau = {t:g}": first._replace(theta_u=options.theta_u[0], gamma=g, tau=t)
        for g, t in itertools.product((0.001, 0.01, 10.0), (0.0, 0.0001, 0.01))
    }


def show_figure(trainer: Trainer, options: argparse.Namespace) -> None:
    """Prints, and plots, accuracies over epochs."""
    found = {}
    for name, setting in settings_of(options.show, options).items():
        found[name] = trainer.together(setting)[0]
        _print_row(name, found[name], {})
    if options.plot:
        dssgd_plots.accuracies(options.plot, found, dict(PAPER[options.model]))


def show_private(trainer: Trainer, options: argparse.Namespace) -> None:
    """Prints figure 13 with what it costs in truth, beside the Gaussian uploads."""
    theta_u, epochs = options.theta_u[0], options.epochs
    count = math.floor(theta_u * len(trainer.sgd.parameters()))
    setting = Setting(options.participants[0], epochs, theta_u)
    print(
        f"{setting.participants} participants, {epochs} epochs, {count} numbers an upload; "
        f"epsilon of one participant's data, delta = {options.delta:g}"
    )
    print("upload                         accuracy  MB/epoch  eps/parameter  eps/epoch  eps, all")
    points: dict[str, list[tuple[float, float]]] = {}

    def row(kind: str, label: str, make: Callable, per_parameter: str) -> None:
        ledgers = [tfdp.PrivacyLedger() for _ in range(setting.participants)]
        unused = iter(ledgers)
        accuracies, server = trainer.together(setting, lambda: make(next(unused)))
        once = tfdp.PrivacyLedger()
        once.append(make(once).event(len(server.parameters)))
        one, total = (book.epsilon(options.delta, "rdp") for book in (once, ledgers[0]))
        print_costs(label, max(accuracies), server.bytes_received, per_parameter, one, total)
        points.setdefault(kind, []).append((total, max(accuracies)))

    def print_costs(label, accuracy, received, per_parameter, one, total) -> None:
        numbers = f"{accuracy:8.4f} {received / 2**20 / epochs:9.3f} {per_parameter:>14}"
        print(f"{label:30} {numbers} {one:10.4g} {total:9.4g}", flush=True)

    plain, server = trainer.together(setting)
    print_costs("none: the largest", max(plain), server.bytes_received, "inf", math.inf, math.inf)
    for epsilon in options.epsilon_per_parameter:

        def sparse(ledger, total=epsilon * count):
            return selective.SparseVectorUpload(theta_u, options.gamma, options.tau, total, ledger)

        row("sparse vector", f"sparse vector, gamma {options.gamma:g}", sparse, f"{epsilon:g}")
    for multiplier in options.noise_multiplier:

        def gaussian(ledger, multiplier=multiplier):
            return selective.GaussianUpload(theta_u, options.l2_norm_clip, multiplier, 10.0, ledger)

        row("Gaussian", f"Gaussian, C {options.l2_norm_clip:g}, z {multiplier:g}", gaussian, "-")
    print("Epsilon per parameter is the paper's account. The last column is what the ledger says.")
    if options.plot:
        dssgd_plots.against_epsilon(options.plot, points, max(plain))


def main() -> None:
    """Trains, and prints what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="an mnist.npz; by default Keras downloads it")
    shown = ["table", "figure9", "figure10", "figure11", "private"]
    parser.add_argument("--standardized", action="store_true", help="pixels; else in [0, 1]")
    parser.add_argument("--show", choices=shown, default="table")
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--participants", type=int, nargs="+", default=[90])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--epochs-of-sgd", type=int, default=15)
    parser.add_argument("--theta-u", type=float, nargs="+", default=[0.1, 0.01, 0.001])
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0, help="of images and first parameters")
    nine = parser.add_argument_group("--show figure9")
    nine.add_argument("--batches", type=int, help="from download to upload; by default an epoch")
    nine.add_argument("--training-share", type=float, default=1.0, help="of a participant's time")
    parser.add_argument("--plot", type=pathlib.Path, help="where to write a PNG")
    private = parser.add_argument_group("--show private, which takes the first --theta-u")
    private.add_argument("--epsilon-per-parameter", type=float, nargs="*", default=[0.1, 1, 10])
    private.add_argument("--gamma", type=float, default=0.01)
    private.add_argument("--tau", type=float, default=0.0001)
    private.add_argument("--noise-multiplier", type=float, nargs="*", default=[0.03, 0.1, 0.3, 1])
    private.add_argument("--l2-norm-clip", type=float, default=0.3)
    private.add_argument("--delta", type=float, default=1e-5)
    options = parser.parse_args()
    start = time.perf_counter()
    data = load_data(options.data, options.standardized)
    trainer = Trainer(options.model, data, options.learning_rate, options.batch_size, options.seed)
    print(f"{len(trainer.sgd.parameters()):,} parameters")
    show = {"table": show_table, "private": show_private}.get(options.show, show_figure)
    show(trainer, options)
    print(f"took {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
