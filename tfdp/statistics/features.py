"""Which columns matter, and in which directions rows vary: what comes before training."""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdp.events import ComposedEvent
from tfdp.events.arguments import positive_integer, real_number
from tfdp.query import ReportNoisyMaxQuery
from tfdp.query.scores import STEPS as SCORE_STEPS
from tfdp.statistics.account import Account
from tfdp.statistics.noise import STEPS

_ROWS_AT_ONCE = 2**14
# Relative; rounding of a norm and of products is less.
_ROUNDING = 1e-12


class Components(NamedTuple):
    """Directions in which rows vary.

    Attributes:
        directions: float64 [number, columns], orthonormal, the most varying one first.
        scatter: Of each, sum_i (direction . (row_i - center))^2, noised; float64 [number].
    """

    directions: np.ndarray
    scatter: np.ndarray


def select(
    account: Account,
    columns: Mapping[Hashable, np.ndarray],
    target: np.ndarray,
    number: int,
    epsilon: float,
) -> list[Hashable]:
    """Returns names of columns, one selection after another; see `PrivateData.select_features`.

    Of each column that is left there are two candidates, whose scores are the products and the
    negative products. The larger sum is the absolute one, and a row moves both by at most one.

    Args:
        account: Is charged once for all selections.
        columns: float64 [n] each.
        target: float64 [n].
        number: How many to select.
        epsilon: What they cost together.
    """
    number = positive_integer("number", number)
    if number > len(columns):
        raise ValueError(f"There are {len(columns)} columns to select from. Received: {number=}.")
    query = ReportNoisyMaxQuery(
        real_number("epsilon", epsilon, minimum=0, inclusive=False, maximum=1e6)
        / (number * account.contributions),
        1.0,
        random_source=account.random_source,
    )
    account.charge(ComposedEvent((query.derive_event(()),) * number), None)
    sums = {
        name: int(np.sum(_scores(column, target), dtype=np.int64))
        for name, column in columns.items()
    }
    chosen: list[Hashable] = []
    while len(chosen) < number:
        left = [name for name in sums if name not in chosen]
        totals = [sums[name] for name in left]
        state = tf.constant([*totals, *(-total for total in totals)], tf.int64)
        index = int(query.get_noised_result(state, ())[0])
        chosen.append(left[index % len(left)])
    return chosen


def _scores(column: np.ndarray, target: np.ndarray) -> np.ndarray:
    product = np.clip(column, -1.0, 1.0) * np.clip(target, -1.0, 1.0)
    product[~(np.isfinite(column) & np.isfinite(target))] = 0.0
    return (product * SCORE_STEPS).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Scatter:
    """sum_i x_i x_i^T with noise, of rows x_i = row_i - center that are clipped to a norm C.

    The entries on and above the diagonal are released. Their norm is at most that of the whole
    matrix, |x|^2 <= C^2, by which a row moves them.

    Attributes:
        l2_norm_clip: C.
        noise_multiplier: Of discrete Gaussian noise on every entry, in units of C^2.
        center: Public; None for zero.

    References:
        Dwork, Talwar, Thakurta, Zhang 2014, "Analyze Gauss", algorithm 1.
    """

    l2_norm_clip: float
    noise_multiplier: float
    center: Sequence[float] | None = None

    def released(self, account: Account, rows: np.ndarray) -> np.ndarray:
        """Returns the noised, symmetric matrix, [columns, columns], after it was charged."""
        noise = account.noise(None, self.noise_multiplier)
        limits = {"minimum": 1e-12, "inclusive": True, "maximum": 1e18}
        clip = real_number("l2_norm_clip", self.l2_norm_clip, **limits)
        width = rows.shape[1]
        center = np.zeros(width) if self.center is None else np.asarray(self.center, np.float64)
        if center.shape != (width,) or not np.all(np.isfinite(center)):
            raise ValueError(f"center must be {width} numbers. Received: {self.center!r}.")
        upper = np.triu_indices(width)
        account.charge(noise.event(coordinates=len(upper[0])), None)
        total = np.zeros((width, width), np.int64)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            total += _products(rows[start : start + _ROWS_AT_ONCE] - center, clip)
        noised = np.zeros((width, width))
        noised[upper] = noise.add(total[upper], account.random_source) * clip * clip
        return noised + np.triu(noised, 1).T


def _products(rows: np.ndarray, clip: float) -> np.ndarray:
    """Returns sum_i x_i x_i^T / C^2 in steps, int64 [columns, columns].

    Rows are rounded towards zero to integers of norm sqrt(STEPS) at most. Sums of their products
    are integers below 2^53, which float64 holds exactly, in whatever order they are added.
    """
    is_finite = np.all(np.isfinite(rows), axis=1) & np.all(np.abs(rows) < 1e100, axis=1)
    rows = np.where(is_finite[:, None], rows, 0.0) / clip
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / np.maximum(norms, 1.0) * (1 - _ROUNDING)
    whole = np.trunc(rows * math.isqrt(STEPS))
    return (whole.T @ whole).astype(np.int64)


def principal_components(
    account: Account, rows: np.ndarray, number: int, scatter: Scatter
) -> Components:
    """Returns the leading eigenvectors of the noised scatter matrix.

    Args:
        account: Is charged for the matrix; what follows is post-processing.
        rows: float64 [n, columns]; one with a number that is not finite is left out.
        number: How many.
        scatter: How the matrix is released.
    """
    number = positive_integer("number", number)
    if number > rows.shape[1]:
        raise ValueError(f"There are {rows.shape[1]} columns. Received: {number=}.")
    values, vectors = np.linalg.eigh(scatter.released(account, rows))
    return Components(vectors.T[::-1][:number], values[::-1][:number])
