"""A table of people: private logistic regression, trees of features and a network, side by side.

    python tutorials/tabular.py --seeds 3

Rows are made, in the likeness of the census data of the Adult set: four numbers, four categories,
and whether somebody earns much. Three private models are trained within each epsilon:

- logistic regression on the columns;
- logistic regression on the leaves of random trees. A tree asks whether some columns are above a
  quantile, or in a set of categories. The quantiles are private statistics, on the ledger of the
  training; all else about a tree is drawn without data;
- a network on the columns.

Bounds of the columns are public. Beside them stand the same models without privacy.
"""

import argparse
import sys
import time

import keras
import numpy as np
from sklearn.metrics import roc_auc_score

import tfdp
from tfdp.statistics import PrivateData

# Public: what the columns can be.
BOUNDS = {"age": (17, 90), "education": (1, 16), "hours": (1, 99), "gains": (0, 50_000)}
CATEGORIES = {"sex": 2, "household": 5, "occupation": 10, "region": 8}
QUANTILES = (0.25, 0.5, 0.75)


def people(rows: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns columns [rows] by name, and whether each row earns much, int64 [rows]."""
    rng = np.random.default_rng(seed)
    sex, region = rng.integers(2, size=rows), rng.integers(8, size=rows)
    age = np.clip(17 + rng.gamma(2.2, 10, rows), 17, 90)
    education = np.clip(np.round(rng.normal(10, 2.6, rows)), 1, 16)
    # Who is older is rather married (0); who learned longer rather has a later occupation.
    married = rng.random(rows) < 1 / (1 + np.exp(-(age - 32) / 6))
    household = np.where(married, 0, rng.integers(1, 5, rows))
    occupation = np.clip(np.round(education / 2 + rng.normal(0, 1.6, rows)), 0, 9).astype(int)
    hours = np.clip(np.round(rng.normal(38 + 4 * sex, 10, rows)), 1, 99)
    gains = np.where(rng.random(rows) < 0.02 + 0.01 * education, rng.lognormal(8, 1, rows), 0)
    logit = (
        0.35 * (education - 10)
        - 0.0025 * (age - 50) ** 2
        + 0.03 * (hours - 40) * (occupation > 4)
        + 2.2 * (household == 0)
        + np.where(gains > 5000, 3.0, 0.0)
        + 0.6 * sex * (occupation > 6)
        + 0.2 * np.sin(region)
        - 1.9
    )
    earns = rng.random(rows) < 1 / (1 + np.exp(-1.4 * logit))
    columns = {
        "age": age,
        "education": education,
        "hours": hours,
        "gains": np.clip(gains, 0, 50_000),
        "sex": sex,
        "household": household,
        "occupation": occupation,
        "region": region,
    }
    return columns, earns.astype(np.int64)


def scaled(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Returns numbers in [-1, 1] by their public bounds, and categories as unit vectors."""
    numbers = [2 * (columns[k] - a) / (b - a) - 1 for k, (a, b) in BOUNDS.items()]
    units = [np.eye(n)[columns[name]] for name, n in CATEGORIES.items()]
    return np.concatenate([np.stack(numbers, axis=1), *units], axis=1).astype(np.float32)


def private_quantiles(data: PrivateData, epsilon: float) -> dict[str, list[float]]:
    """Returns quantiles of the columns of numbers, for epsilon in all."""
    each = epsilon / (len(BOUNDS) * len(QUANTILES))
    return {
        name: [
            data[name].quantile(q, epsilon=each, candidates=np.linspace(low, high, 74))
            for q in QUANTILES
        ]
        for name, (low, high) in BOUNDS.items()
    }


class Trees:
    """Random trees; all nodes of a level ask the same question.

    Args:
        quantiles: Of the columns of numbers: where they are split.
        number: Of trees.
        depth: Questions of a tree.
        seed: Of the questions.
    """

    def __init__(self, quantiles: dict[str, list[float]], number: int, depth: int, seed: int):
        rng = np.random.default_rng(seed)
        names = [*BOUNDS, *CATEGORIES]
        self._questions = []
        for _ in range(number):
            for name in rng.choice(names, depth, replace=False):
                if name in BOUNDS:
                    self._questions.append((name, rng.choice(quantiles[name])))
                else:
                    self._questions.append((name, rng.random(CATEGORIES[name]) < 0.5))
        self._number, self._depth = number, depth

    def leaves(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        """Returns float32 [rows, trees 2^depth]: a one in the leaf of each tree, over sqrt(trees).

        So every row has norm one, and its gradient needs no clipping by much.
        """
        answers = [
            columns[name] > asked if name in BOUNDS else asked[columns[name]]
            for name, asked in self._questions
        ]
        bits = np.reshape(np.stack(answers, axis=1), [-1, self._number, self._depth])
        leaf = bits @ (1 << np.arange(self._depth))
        ones = np.eye(2**self._depth, dtype=np.float32)[leaf]
        return np.reshape(ones, [len(ones), -1]) / np.sqrt(self._number, dtype=np.float32)


def train(x, y, epsilon: float | None, ledger, options, seed, hidden=(), rate=0.05):
    """Returns a model trained on what the ledger leaves of epsilon; with None, not private."""
    keras.utils.set_random_seed(seed)
    dense = [keras.layers.Dense(units, activation="tanh") for units in hidden]
    # A logit, which is zero at first where nothing is hidden.
    last = keras.layers.Dense(1, kernel_initializer="glorot_uniform" if hidden else "zeros")
    model = keras.Sequential([keras.Input((x.shape[1],)), *dense, last])
    steps = max(1, round(options.epochs * len(x) / options.batch_size))
    decay = keras.optimizers.schedules.CosineDecay(rate, steps)
    optimizer = keras.optimizers.Adam(decay)
    if epsilon is not None:
        noise = tfdp.noise_for_budget(
            epsilon,
            options.delta,
            population_size=len(x),
            batch_size=options.batch_size,
            steps=steps,
            ledger=ledger,  # What was asked before is paid from the same budget.
        )
        query = tfdp.GaussianAverageQuery(
            options.l2_norm_clip, noise_multiplier=noise, denominator=options.batch_size
        )
        optimizer = tfdp.keras.DPOptimizer(optimizer, query, ledger=ledger)
        model = tfdp.keras.make_private(model)
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    shown = int(sys.stdout.isatty())
    model.fit(x, y, batch_size=options.batch_size, epochs=options.epochs, verbose=shown)
    return model


def regression(columns, y, epsilon, ledger, options, seed):
    """Returns a function from columns to scores: logistic regression."""
    model = train(scaled(columns), y, epsilon, ledger, options, seed)
    return lambda others: model.predict(scaled(others), verbose=0)[:, 0]


def trees(columns, y, epsilon, ledger, options, seed):
    """As `regression`, on the leaves of random trees at private quantiles."""
    data = PrivateData(columns, ledger=ledger)
    # Without privacy: so large an epsilon that quantiles are exact.
    quantiles = private_quantiles(data, 1e4 if epsilon is None else 0.1 * epsilon)
    forest = Trees(quantiles, options.trees, options.depth, seed)
    rate = 0.05 * np.sqrt(options.trees)  # Of inputs that are so much smaller.
    model = train(forest.leaves(columns), y, epsilon, ledger, options, seed, rate=rate)
    return lambda others: model.predict(forest.leaves(others), verbose=0)[:, 0]


def network(columns, y, epsilon, ledger, options, seed):
    """As `regression`, with a hidden layer."""
    hidden = (options.hidden,)
    model = train(scaled(columns), y, epsilon, ledger, options, seed, hidden, rate=0.01)
    return lambda others: model.predict(scaled(others), verbose=0)[:, 0]


def main() -> None:
    """Trains every model within every epsilon, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 3.0])
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--l2-norm-clip", type=float, default=1.0)
    parser.add_argument("--trees", type=int, default=60)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=1, help="of rows, trees and weights")
    options = parser.parse_args()
    start = time.perf_counter()
    print(
        "| model | epsilon | test accuracy, and its range | AUC, and its range |\n|---|---|---|---|"
    )
    for make in (regression, trees, network):
        for epsilon in (*options.epsilon, None):
            accuracies, areas, costs = [], [], []
            for seed in range(options.seeds):
                columns, y = people(options.rows, seed)
                others, answers = people(10_000, 1_000_000 + seed)
                ledger = tfdp.PrivacyLedger()
                scores = make(columns, y, epsilon, ledger, options, seed)(others)
                accuracies.append(np.mean((scores > 0) == answers))
                areas.append(roc_auc_score(answers, scores))
                costs.append(np.inf if epsilon is None else ledger.epsilon(options.delta))
            spreads = (
                f"{np.mean(found):.3f} ({min(found):.3f} to {max(found):.3f})"
                for found in (accuracies, areas)
            )
            row = (make.__name__, f"{max(costs):.3f}", *spreads)
            print(f"| {' | '.join(row)} |", flush=True)
    print(f"Who earns little: {1 - np.mean(answers):.3f}. Took {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
