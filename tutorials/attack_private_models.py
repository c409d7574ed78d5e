"""One attack on three models of the same data: not private, epsilon 10, epsilon 1.

    python tutorials/attack_private_models.py --plot attack.png
    python tutorials/attack_private_models.py --data mnist.npz --seeds 3 --plot attack.png

Each network is trained on the same members. Then somebody who sees only its predictions says who
was a member. The attacker has a network of their own, trained on other records: the score of a
record is how much more the attacked network believes in its label. Part of the labels is wrong, of
all records alike: a network that knows the wrong label of a record must have seen it. The figure
has what the attack achieves, and what no attack can exceed, by the ledger of each private training.
With several seeds the table has means and ranges, and the figure is that of the first seed.
"""

import argparse
import pathlib
from typing import NamedTuple

import keras
import numpy as np

import tfdp
from tfdp.accounting.planning.plots import line_plot
from tfdp.audit import Attack, attack, membership_scores
from tfdp.report import gather
from tfdp.report.tradeoff import Profile

CLASSES = 10
DELTA = 1e-4
BATCH_SIZE = 59
SMALLEST_RATE = 1e-3
MODELS = {"not private": None, "epsilon 10": 10.0, "epsilon 1": 1.0}


class Outcome(NamedTuple):
    """What one attack on one model came to."""

    accuracy: float
    found: Attack
    bound: Profile | None

    def numbers(self) -> list[float]:
        """Returns accuracy, AUC, advantage, and the rates at 0.1 % and 1 %."""
        low, one = self.found.true_positive_rates.values()
        return [self.accuracy, self.found.auc.value, self.found.advantage, low.value, one.value]


def load_data(path: pathlib.Path | None, members: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (pixels in [0, 1], flat, and labels) of three times as many records as members."""
    if path is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        x, y = digits.data / 16, digits.target
    else:
        with np.load(path) as data:
            x, y = data["x_train"].reshape(-1, 784) / 255, data["y_train"].astype(int)
    if 3 * members > len(x):
        raise ValueError(f"There are {len(x)} records, and {3 * members} are needed.")
    order = np.random.default_rng(seed).permutation(len(x))[: 3 * members]
    return x[order].astype("float32"), y[order]


def with_wrong_labels(y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Returns the labels, of which so large a share was replaced by another class."""
    rng = np.random.default_rng([seed, 1])
    wrong = rng.random(len(y)) < share
    return np.where(wrong, (y + rng.integers(1, CLASSES, len(y))) % CLASSES, y)


def train(
    x: np.ndarray, y: np.ndarray, epsilon: float | None, epochs: int, seed: int
) -> tuple[keras.Model, tfdp.PrivacyLedger | None]:
    """Returns a trained network and its ledger, None where it is not private."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    if epsilon is None:
        optimizer = keras.optimizers.Adam(5e-3)
    else:
        model = tfdp.keras.make_private(model)
        optimizer = tfdp.keras.DPOptimizer.for_budget(
            keras.optimizers.SGD(0.25),
            1.0,
            batch_size=BATCH_SIZE,
            target_epsilon=epsilon,
            target_delta=DELTA,
            population_size=len(x),
            epochs=epochs,
        )
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    bar = keras.utils.Progbar(epochs, unit_name="epoch")
    for epoch in range(epochs):
        history = model.fit(x, y, batch_size=BATCH_SIZE, verbose=0)
        bar.update(epoch + 1, [("loss", history.history["loss"][-1])])
    return model, None if epsilon is None else model.ledger


def curves(name: str, found: Attack, bound: Profile | None) -> dict[str, list[tuple[float, float]]]:
    """Returns the lines of one model: what the attack achieves, and what is proven."""
    rates = np.geomspace(SMALLEST_RATE, 1, 100).tolist()
    lines = {name: [(x, max(found.roc.true_positive_rate(x), SMALLEST_RATE)) for x in rates]}
    if bound is not None:
        lines[f"{name}: no attack is above"] = [(x, bound.true_positive_rate(x)) for x in rates]
    return lines


def attack_all(arguments: argparse.Namespace, seed: int) -> dict[str, Outcome]:
    """Trains three models on the same members, and attacks each."""
    x, true_labels = load_data(arguments.data, arguments.members, seed)
    y = with_wrong_labels(true_labels, arguments.wrong_labels, seed)
    # The last third is the attacker's.
    known = slice(2 * arguments.members, None)
    print(f"seed {seed}, training: the attacker's own network, not private")
    own, _ = train(x[known], y[known], None, arguments.epochs, seed)
    x, y, true_labels = (array[: 2 * arguments.members] for array in (x, y, true_labels))
    expected = membership_scores("scaled confidence", own.predict(x, verbose=0), y)
    members = np.arange(len(x)) < arguments.members
    outcomes = {}
    for name, epsilon in MODELS.items():
        print(f"seed {seed}, training: {name}")
        model, ledger = train(x[members], y[members], epsilon, arguments.epochs, seed)
        predicted = model.predict(x, verbose=0)
        scores = membership_scores("scaled confidence", predicted, y) - expected
        found = attack("more confident than expected", scores, members)
        bound = None
        if ledger is not None:
            headline = gather(ledger, DELTA, ["prv"]).costs.headline
            if headline is None or headline.profile is None:
                raise ValueError(f"There is no price for this ledger: {ledger!r}.")
            bound = headline.profile
        right = predicted.argmax(axis=1) == true_labels
        outcomes[name] = Outcome(right[~members].mean(), found, bound)
    return outcomes


def row(name: str, outcomes: list[Outcome]) -> str:
    """Returns a line of the table: the mean of the seeds, and their range."""
    several = np.array([outcome.numbers() for outcome in outcomes])
    forms = (".3f", ".3f", ".3f", ".1%", ".1%")
    cells = []
    for form, values in zip(forms, several.T, strict=True):
        cells.append(f"{values.mean():{form}} ({values.min():{form}} to {values.max():{form}})")
    # That of the ledger, which is the same with every seed.
    bound = outcomes[0].bound
    cells.insert(3, "1" if bound is None else f"{bound.advantage:.3f}")
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Trains and attacks three models, prints a table and draws the curves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, help="mnist.npz; default: small digits")
    parser.add_argument("--members", type=int, default=590)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--wrong-labels", type=float, default=0.2, help="share of all labels")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--plot", type=pathlib.Path, help="*.png, *.svg or *.pdf")
    arguments = parser.parse_args()
    runs = [attack_all(arguments, seed) for seed in range(arguments.seeds)]
    print(
        "| model | accuracy on others, true labels | AUC | advantage | proven: at most | "
        "TPR at FPR 0.1 % | TPR at FPR 1 % |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in MODELS:
        print(row(name, [run[name] for run in runs]))
    if arguments.plot is not None:
        lines: dict[str, list[tuple[float, float]]] = {}
        for name, outcome in runs[0].items():
            lines |= curves(name, outcome.found, outcome.bound)
        rates = np.geomspace(SMALLEST_RATE, 1, 100).tolist()
        lines["guessing"] = [(x, x) for x in rates]
        line_plot(
            arguments.plot,
            lines,
            x_label="false positive rate",
            y_label="true positive rate",
            title="who was a member?",
            logarithmic=True,
        )
        print(f"wrote {arguments.plot}")


if __name__ == "__main__":
    main()
