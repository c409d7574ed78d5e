"""One attack on three models of the same data: not private, epsilon 10, epsilon 1.

    python tutorials/attack_private_models.py --plot attack.png
    python tutorials/attack_private_models.py --data mnist.npz --plot attack.png

Each network is trained on the same members. Then somebody who sees only its predictions says who
was a member. The attacker has a network of their own, trained on other records: the score of a
record is how much more the attacked network believes in its label. Part of the labels is wrong, of
all records alike: a network that knows the wrong label of a record must have seen it. The figure
has what the attack achieves, and what no attack can exceed, by the ledger of each private training.
"""

import argparse
import pathlib

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


def load_data(path: pathlib.Path | None, members: int) -> tuple[np.ndarray, np.ndarray]:
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
    order = np.random.default_rng(0).permutation(len(x))[: 3 * members]
    return x[order].astype("float32"), y[order]


def with_wrong_labels(y: np.ndarray, share: float) -> np.ndarray:
    """Returns the labels, of which so large a share was replaced by another class."""
    rng = np.random.default_rng(1)
    wrong = rng.random(len(y)) < share
    return np.where(wrong, (y + rng.integers(1, CLASSES, len(y))) % CLASSES, y)


def train(
    x: np.ndarray, y: np.ndarray, epsilon: float | None, epochs: int
) -> tuple[keras.Model, tfdp.PrivacyLedger | None]:
    """Returns a trained network and its ledger, None where it is not private."""
    keras.utils.set_random_seed(0)
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


def main() -> None:
    """Trains and attacks three models, prints a table and draws the curves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, help="mnist.npz; default: small digits")
    parser.add_argument("--members", type=int, default=590)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--wrong-labels", type=float, default=0.2, help="share of all labels")
    parser.add_argument("--plot", type=pathlib.Path, help="*.png, *.svg or *.pdf")
    arguments = parser.parse_args()
    x, true_labels = load_data(arguments.data, arguments.members)
    y = with_wrong_labels(true_labels, arguments.wrong_labels)
    # The last third is the attacker's.
    known = slice(2 * arguments.members, None)
    print("training: the attacker's own network, not private")
    own, _ = train(x[known], y[known], None, arguments.epochs)
    x, y, true_labels = (array[: 2 * arguments.members] for array in (x, y, true_labels))
    expected = membership_scores("scaled confidence", own.predict(x, verbose=0), y)
    members = np.arange(len(x)) < arguments.members
    lines: dict[str, list[tuple[float, float]]] = {}
    rows = []
    for name, epsilon in (("not private", None), ("epsilon 10", 10.0), ("epsilon 1", 1.0)):
        print(f"training: {name}")
        model, ledger = train(x[members], y[members], epsilon, arguments.epochs)
        predicted = model.predict(x, verbose=0)
        scores = membership_scores("scaled confidence", predicted, y) - expected
        found = attack("more confident than expected", scores, members)
        bound = None
        if ledger is not None:
            headline = gather(ledger, DELTA, ["prv"]).costs.headline
            if headline is None or headline.profile is None:
                raise ValueError(f"There is no price for this ledger: {ledger!r}.")
            bound = headline.profile
        lines |= curves(name, found, bound)
        right = predicted.argmax(axis=1) == true_labels
        low, one = found.true_positive_rates.values()
        proven = "1" if bound is None else f"{bound.advantage:.3f}"
        rows.append(
            f"| {name} | {right[~members].mean():.3f} | {found.auc.value:.3f} "
            f"({found.auc.lower:.3f} to {found.auc.upper:.3f}) | {found.advantage:.3f} | {proven} "
            f"| {low.value:.1%} | {one.value:.1%} |"
        )
    print(
        "| model | accuracy on others, true labels | AUC | advantage | proven: at most | "
        "TPR at FPR 0.1 % | TPR at FPR 1 % |"
    )
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    if arguments.plot is not None:
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
