"""Records that are planted to be looked for: mislabelled ones, users, runs with one and without.

White-box canaries, whose gradients are chosen, are in `gradient_canaries.py`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tfdp.events.arguments import positive_integer, real_number

# From (whether the canary is in, seed) to a score of the run.
TrainAndScore = Callable[[bool, int], float]


def fair_coins(canaries: int, seed: int) -> np.ndarray:
    """Returns for each canary whether it goes into the data: booleans, by fair coins.

    Args:
        canaries: How many.
        seed: The coins are a function of it. Nobody who makes scores may know it.

    Raises:
        ValueError: a number is out of range.
        TypeError: a number is no integer.

    Example:
        >>> bool(abs(fair_coins(10_000, seed=1).mean() - 0.5) < 0.03)
        True
    """
    canaries = positive_integer("canaries", canaries)
    return np.random.default_rng(seed).integers(0, 2, canaries) == 1


@dataclasses.dataclass(frozen=True, eq=False)
class PlantedRecords:
    """Training data with canaries, and all canaries, for an attack afterwards.

    Attributes:
        x: What to train on.
        y: Labels of `x`.
        canaries_x: Every canary, those that are not in the data included.
        canaries_y: Labels of the canaries, all of them wrong.
        inserted: One boolean per canary: whether it is in the data.
    """

    x: np.ndarray
    y: np.ndarray
    canaries_x: np.ndarray
    canaries_y: np.ndarray
    inserted: np.ndarray


def mislabelled_canaries(
    x: Any, y: Any, canaries: int, classes: int, seed: int = 0
) -> PlantedRecords:
    """Takes records out of the data, gives them wrong labels, and puts half of them back.

    A model has no other reason to believe in a wrong label than to have seen it. So the score of a
    canary is what the trained model says of it: `membership_scores("scaled confidence",
    model.predict(canaries_x), canaries_y)`. That is a black-box audit: it sees predictions only.

    Where each record is all that one user gives, x is [users, examples, ...] and y is [users,
    examples]. Then a canary is a user, all of whose labels are wrong.

    Guarantees:
        Which records are canaries, their labels and their coins depend on the seed alone, and the
        coins of different canaries are independent. No canary is in the data with its own label.

    Args:
        x: [records, ...] array.
        y: [records, ...] array of integer labels in [0, classes).
        canaries: How many.
        classes: Of labels.
        seed: Of the choice, of the wrong labels and of the coins.

    Raises:
        ValueError: x and y are not of one length, hold fewer records than canaries, or a label is
            out of range.
        TypeError: labels or counts are not integers.

    References:
        Steinke, Nasr and Jagielski 2023, arXiv:2305.08846, section 6 (black-box canaries).
    """
    x, y = np.asarray(x), np.asarray(y)
    canaries = positive_integer("canaries", canaries)
    classes = positive_integer("classes", classes)
    if y.dtype.kind not in "iu":
        raise TypeError(f"Labels must be integers. Received: dtype={y.dtype}.")
    if len(x) != len(y) or canaries >= len(x):
        raise ValueError(
            "x and y must be of one length, which is larger than the number of canaries. "
            f"Received: {len(x)} and {len(y)} records, canaries={canaries}."
        )
    if classes < 2 or y.min() < 0 or y.max() >= classes:
        raise ValueError(
            "Labels must be in [0, classes), and there must be a wrong one for each. "
            f"Received: {y.min()} to {y.max()}, classes={classes}."
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    chosen, rest = order[:canaries], order[canaries:]
    wrong = (y[chosen] + rng.integers(1, classes, y[chosen].shape)) % classes
    wrong = wrong.astype(y.dtype)
    inserted = rng.integers(0, 2, canaries) == 1
    return PlantedRecords(
        np.concatenate([x[rest], x[chosen][inserted]]),
        np.concatenate([y[rest], wrong[inserted]]),
        x[chosen],
        wrong,
        inserted,
    )


def scores_of_runs(
    train_and_score: TrainAndScore,
    runs: int,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores of independent runs with a canary, and of as many without.

    They are what `epsilon_lower_bound` and `mu_lower_bound` take. Runs with the canary and without
    take turns, so that whatever drifts over time meets both alike.

    Args:
        train_and_score: Called with (whether the canary is in the data, a seed of this run's own).
            Trains from new weights, with noise of its own, and returns a score, such as the
            canary's loss.
        runs: How many in all; an even number, four or more.
        seed: Of the first run; the others have the next ones.
        progress: Called with (runs that are done, all) after each.

    Raises:
        ValueError: `runs` is odd or too small, or a score is NaN.
    """
    runs = positive_integer("runs", runs)
    if runs % 2 or runs < 4:
        raise ValueError(
            "runs must be even, for as many with the canary as without, and four or more: one of "
            f"each kind chooses the threshold, another one is measured. Received: runs={runs}."
        )
    scores = np.empty(runs)
    for run in range(runs):
        scores[run] = train_and_score(run % 2 == 0, seed + run)
        if np.isnan(scores[run]):
            raise ValueError(f"The score of run {run} is NaN.")
        if progress is not None:
            progress(run + 1, runs)
    return scores[::2], scores[1::2]


def sampled_gaussian_scores(
    sums: Any, noise_stddev: float, sampling_probability: float, moved: float = 1.0
) -> np.ndarray:
    """Returns how likely the sums of all steps are with the canary, against without: log ratios.

    The best score there is for a canary that is in every step with the given probability,
    independently, and moves what is seen of it by `moved`:

        sum over steps of log(1 - q + q exp((2 moved s - moved^2) / (2 stddev^2))).

    Args:
        sums: [steps, canaries], such as `GradientCanaries.sums`.
        noise_stddev: Of the noise on a sum.
        sampling_probability: q, in (0, 1]; 1 where every record is in every step.
        moved: By how much the canary moves a sum: its clip norm.

    Raises:
        ValueError: a number is out of range, or `sums` has not two axes.
        TypeError: a number is none.

    Example:
        >>> sampled_gaussian_scores([[1.0, 0.0], [1.0, 0.0]], 1.0, 1.0).tolist()
        [1.0, -1.0]
    """
    sums = np.asarray(sums, np.float64)
    if sums.ndim != 2:
        raise ValueError(f"sums must be [steps, canaries]. Received: shape={sums.shape}.")
    stddev = real_number("noise_stddev", noise_stddev, minimum=0, inclusive=False)
    q = real_number(
        "sampling_probability", sampling_probability, minimum=0, inclusive=False, maximum=1
    )
    moved = real_number("moved", moved, minimum=0, inclusive=False)
    log_ratio = moved * (sums - moved / 2) / stddev**2
    with np.errstate(divide="ignore"):
        absent = np.log1p(-q)
    return np.sum(np.logaddexp(absent, np.log(q) + log_ratio), axis=0)
