"""Noise of running sums from the nodes of a binary tree over the steps."""

import dataclasses
import functools
import math

import numpy as np

from tfdp.factorizations.participations import squares_of_tree
from tfdp.factorizations.toeplitz import check_participations, check_steps

# Nodes times bins that are looked at together.
_AT_ONCE = 2**22


@dataclasses.dataclass(frozen=True)
class BinaryTree:
    """C has a row for every whole node of a binary tree over the steps: the sum of its steps.

    Noise of a running sum is that of the few nodes that make it up, one for every 1 in the binary
    number of its steps. With `efficient`, a node's noise is that of the best estimate of its sum by
    all nodes below it (Honaker 2015, estimation from below), at most half the variance in the end.

    Step t makes the node of level l(t), which is how often 2 divides t, counted from 1, and all
    nodes below it that end there. So one vector of noise is drawn in a step, and one vector for
    every level is all that has to be kept:

        kept_l = scale_l z + sum_{j < l} gain_{l, j} kept_j,   then kept_j = 0 for j < l
        noise of the running sum = sum_j weight_j kept_j

    Attributes:
        efficient: Whether nodes below a node take part in its estimate.

    References:
        Dwork, Naor, Pitassi, Rothblum 2010; Chan, Shi, Song 2011; Honaker 2015, "Efficient use of
        differentially private binary trees"; Kairouz et al. 2021, arXiv:2103.00039, appendix B.
    """

    efficient: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.efficient, bool):
            raise TypeError(f"efficient must be a bool. Received: {self.efficient!r}.")

    def memory(self, num_steps: int) -> int:
        """Returns how many numbers the noise of a coordinate remembers: one for every level."""
        return check_steps("num_steps", num_steps).bit_length()

    def scales(self, num_steps: int) -> np.ndarray:
        """Returns, of every level, the deviation of what is fresh in a node, [levels].

        That of a node and of all nodes that end with it, whose noise nothing else ever uses: one
        draw stands for all of them.
        """
        levels = np.arange(self.memory(num_steps))
        return np.sqrt((4 - 4.0**-levels) / 3) if self.efficient else np.ones(len(levels))

    def gains(self, num_steps: int) -> np.ndarray:
        """Returns how much a node of level l has of what is kept of level j, [l, j]; j < l."""
        levels = np.arange(self.memory(num_steps))
        if not self.efficient:
            return np.zeros([len(levels)] * 2)
        return np.tril(2.0 ** (levels[None, :] - levels[:, None]), -1)

    def weights(self, num_steps: int) -> np.ndarray:
        """Returns how much of what is kept of a level is in a running sum, [levels]."""
        levels = np.arange(self.memory(num_steps))
        return 1 / (2 - 0.5**levels) if self.efficient else np.ones(len(levels))

    def sensitivity(self, num_steps: int, period: int | None = None) -> float:
        """Returns how far C g moves, in l2 norm, when one unit's sums of norm 1 are taken away.

        The unit is in steps i, i + period, i + 2 period, ... for some i < period.

        Guarantees:
            Exact: C has no negative entry, so the unit's vectors count most where all are equal,
            and all i are tried.

        Args:
            num_steps: n.
            period: Steps between two participations; 1 is every step. None: the unit is in one
                step.
        """
        n = check_steps("num_steps", num_steps)
        period = n if period is None else min(check_steps("period", period), n)
        return math.sqrt(_most_squares(n, period, self.efficient)) * (1 + 1e-12)

    def sensitivity_to_participations(
        self, num_steps: int, min_separation: int, max_participations: int | None = None
    ) -> float:
        """Returns how far C g moves, in l2 norm, when one unit's sums of norm 1 are taken away.

        The unit is in at most `max_participations` steps, any two at least `min_separation` apart.

        Guarantees:
            Exact, by dynamic programming, where that takes no more than seconds; else an upper
            bound: see `tfdp.factorizations.participations`.

        Args:
            num_steps: n.
            min_separation: Steps between two participations, at least; 1: they may be neighbours.
            max_participations: None: as many as there can be.
        """
        n, separation, most = check_participations(num_steps, min_separation, max_participations)
        squares = squares_of_tree(n, separation, most, self.efficient)
        return math.sqrt(squares) * (1 + 1e-12)

    def products_of_turns(self, num_steps: int, period: int) -> np.ndarray:
        """Returns <C s_i, C s_j> for all i, j < period, where s_i is 1 in the steps i, i + period,
        i + 2 period, ... and 0 in others; [period, period].

        Args:
            num_steps: n.
            period: Steps between two participations.
        """
        n, period = check_steps("num_steps", num_steps), check_steps("period", period)
        found = np.zeros((period, period))
        for level in range(n.bit_length()):
            nodes = np.arange(0, n >> level, 1 if self.efficient else 2)
            for some in np.array_split(nodes, -(-len(nodes) * period // _AT_ONCE)):
                # How many of the steps i, i + period, ... are before each end of a node.
                first, last = (
                    -(-((some[:, None] + end << level) - np.arange(period)) // period)
                    for end in (0, 1)
                )
                counts = (last - first).astype(np.float64)
                found += counts.T @ counts
        return found

    def column_norm(self, num_steps: int) -> float:
        """Returns the largest l2 norm of a column of C: the sensitivity to one participation."""
        return self.sensitivity(num_steps)

    def max_error(self, num_steps: int, period: int | None = None) -> float:
        """Returns the largest standard deviation of the error of a running sum.

        In units of what noise of standard deviation `sensitivity` makes: for one Gaussian mechanism
        with noise multiplier 1, whatever the factorization.
        """
        return self.sensitivity(num_steps, period) * math.sqrt(self._variances(num_steps).max())

    def root_mean_squared_error(self, num_steps: int, period: int | None = None) -> float:
        """Returns the same, of all running sums on average."""
        return self.sensitivity(num_steps, period) * math.sqrt(self._variances(num_steps).mean())

    def _variances(self, num_steps: int) -> np.ndarray:
        """Returns the variances of the noise of running sums, [num_steps]."""
        steps = np.arange(1, check_steps("num_steps", num_steps) + 1)
        # The variance of a node's estimate is the weight that makes it one.
        return sum(
            (steps >> level & 1) * weight for level, weight in enumerate(self.weights(num_steps))
        )


@functools.lru_cache(maxsize=256)
def _most_squares(n: int, period: int, efficient: bool) -> int:
    """Returns the largest sum, over nodes, of squared numbers of a unit's steps in the node.

    Of an efficient tree every whole node counts; else left ones alone, because the sums that end
    with a right one are made up of the node above it.
    """
    squares = np.zeros(period, np.int64)
    for level in range(n.bit_length()):
        width = 1 << level
        nodes = n >> level
        if width <= period:
            # A unit is in a node of this level once at most.
            steps = np.arange(nodes << level)
            if not efficient:
                steps = steps[(steps >> level) % 2 == 0]
            squares += np.bincount(steps % period, minlength=period)
            continue
        # How many of the steps i, i + period, ... are before each border between nodes.
        borders = np.arange(nodes + 1)[None, :] * width - np.arange(period)[:, None]
        counts = np.diff(-(-borders // period), axis=1)
        squares += (counts[:, :: 1 if efficient else 2] ** 2).sum(axis=1)
    return int(squares.max())
