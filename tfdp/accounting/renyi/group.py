"""Renyi differential privacy of groups: data sets that differ in several units."""

from collections.abc import Callable

import numpy as np

from tfdp.events.arguments import positive_integer

# Time and memory grow with the size of groups.
_LARGEST_GROUP = 1000


def check_group_size(group_size: int) -> int:
    """Returns the size of groups.

    Raises:
        ValueError: it is smaller than one, or above 1000.
        TypeError: it is not an integer.
    """
    size = positive_integer("group_size", group_size)
    if size > _LARGEST_GROUP:
        raise ValueError(
            f"group_size must be at most {_LARGEST_GROUP}. Received: group_size={size}. "
            "tfdp.accounting.group_epsilon gives a bound for groups of any size."
        )
    return size


def group_rdp(
    rdp: Callable[[np.ndarray], np.ndarray], group_size: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the divergence between data sets that are `group_size` neighbours apart.

    With D_k for k neighbours in a row, the weak triangle inequality (Mironov 2017,
    arXiv:1702.07476, proposition 11) with p = 1 + (a - 1) (k - 1) / a is

        D_k(a) <= k a / (1 + k (a - 1)) D_1(1 + k (a - 1)) + D_(k-1)(k a / (k - 1)).

    Guarantees:
        Where D_1(a) is proportional to a, as for Gaussians without sampling, the result is
        k^2 D_1(a), which is exact.

    Args:
        rdp: A function from a vector of orders to the divergences of neighbours, in both
            directions.
        group_size: k, at least 1.

    Raises:
        ValueError: `group_size` is smaller than one or above 1000.
        TypeError: it is not an integer.

    Example:
        >>> gaussian = lambda orders: orders / 2
        >>> group_rdp(gaussian, 3)(np.array([2.0])).round(9)
        array([9.])
    """
    group_size = check_group_size(group_size)
    if group_size == 1:
        return rdp

    def of_group(orders: np.ndarray) -> np.ndarray:
        order = np.asarray(orders, dtype=np.float64)
        total = np.zeros(order.shape)
        for k in range(group_size, 1, -1):
            further = 1 + k * (order - 1)
            total += k * order / further * rdp(further)
            order = k * order / (k - 1)
        return total + rdp(order)

    return of_group
