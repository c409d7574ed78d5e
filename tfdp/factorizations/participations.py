"""How far one unit moves C g where it may be in any steps that are far enough apart.

A unit is in at most k steps, any two of them at least b steps apart (b-min-separation: McMahan, Xu,
Zhang 2024, arXiv:2408.08868). What it moves is sum_i C_(t_i) u_i with vectors u_i of norm 1. The
squared norm is sum_ij <C_(t_i), C_(t_j)> <u_i, u_j>. So with no negative entry in C the worst u_i
are equal. The square is then the sum of the inner products of the columns.
"""

import itertools
import math

import numpy as np

# Sums that `most_squares_of_tree` may take; with more it would need more than seconds.
_MOST_SUMS = 2**30


def squares_of_columns(column: np.ndarray, separation: int, participations: int | None) -> float:
    """Returns the largest squared norm of a sum of columns of a Toeplitz matrix.

    Of the absolute values of `column` the smallest sequence d_0 >= d_1 >= ... above them is taken.

    Proof that the steps 0, b, 2b, ... are the worst for it. The inner product of columns s < t is
    sum_{v < n - t} d_v d_(v + t - s). It falls with t, because there are fewer terms, and with
    t - s, because d falls. Of steps t_0 < t_1 < ... every t_i is at least i b, and every t_i - t_j
    at least (i - j) b. So no inner product is larger than that of the steps 0, b, 2b, ...; and as
    none is negative, as many participations as there can be count most. Where d is the column
    itself this value is reached, so that it is exact; else it is an upper bound.

    Args:
        column: The first column, [n].
        separation: b.
        participations: k; None: as many as there are.
    """
    envelope = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
    total = np.zeros(len(column))
    for start in range(0, len(column), separation)[:participations]:
        total[start:] += envelope[: len(column) - start]
    return math.fsum(total * total)


def squares_of_tree(n: int, separation: int, participations: int | None, efficient: bool) -> int:
    """Returns the largest sum, over nodes of a binary tree, of squared numbers of a unit's steps.

    Exact, by dynamic programming over the levels, where that takes below 2^30 sums; else an upper
    bound, level by level. A node of w steps has at most ceil(w / b) of the unit's. Squares add up
    to most where as few nodes as possible have them all.

    Args:
        n: Steps.
        separation: b.
        participations: k; None: as many as there can be.
        efficient: Whether right nodes count, too, as in `BinaryTree`.
    """
    b = min(separation, n)
    k = min(-(-n // b), n if participations is None else participations)
    if b**3 * k**2 * n.bit_length() > _MOST_SUMS:
        return _bound_of_tree(n, b, k)
    return _most_of_tree(n, b, k, efficient)


def _bound_of_tree(n: int, b: int, k: int) -> int:
    total = 0
    for level in range(n.bit_length()):
        in_node = min(k, -(-(1 << level) // b))
        total += k // in_node * in_node**2 + (k % in_node) ** 2
    return total


def _most_of_tree(n: int, b: int, k: int, efficient: bool) -> int:
    """Returns the largest sum of squares, from the leaves up.

    A table says how much c of the unit's steps in a node are at most, with at least i steps before
    the first of them and j after the last. That is table[c - 1][i, j], 0 <= i, j < b. Nodes of one
    level are alike.
    """
    leaf = np.full([b, b], -np.inf)
    leaf[0, 0] = 0.0
    whole: list[np.ndarray] = []
    inner, width, width_before = [leaf], 1, 0
    for level in itertools.count():
        left = _counted(inner)
        if n >> level & 1:
            # Nodes that no node above holds; the smaller ones come later, and all are left ones.
            whole = _joined(left, whole, width, width_before, b, k)
            width_before += width
        if n >> level == 1:
            break
        inner = _joined(left, left if efficient else inner, width, width, b, k)
        width *= 2
    return int(max(table[0, 0] for table in whole))


def _counted(tables: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the tables of a node that counts itself."""
    return [table + (c + 1) ** 2 for c, table in enumerate(tables)]


def _joined(
    left: list[np.ndarray],
    right: list[np.ndarray],
    left_width: int,
    right_width: int,
    b: int,
    k: int,
) -> list[np.ndarray]:
    """Returns the tables of two neighbours together; their widths are in steps."""
    most = min(k, len(left) + len(right))
    joined = [np.full([b, b], -np.inf) for _ in range(most)]
    gaps = np.arange(b)
    # All of the unit's steps are on one side, and the other side is part of a gap.
    for c, table in enumerate(left):
        shifted = table[:, np.maximum(gaps - right_width, 0)]
        joined[c] = np.maximum(joined[c], shifted)
    for c, table in enumerate(right):
        shifted = table[np.maximum(gaps - left_width, 0)]
        joined[c] = np.maximum(joined[c], shifted)
    # Or on both: with j steps after the last of the left ones, and i before the first of the right
    # ones, these two are i + j + 1 apart.
    for c, one in enumerate(left):
        for d, other in enumerate(right):
            if c + d + 2 > most:
                break
            for j in range(b):
                pair = one[:, j, None] + other[b - 1 - j]
                np.maximum(joined[c + d + 1], pair, out=joined[c + d + 1])
    return joined
