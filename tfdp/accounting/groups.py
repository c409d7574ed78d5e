"""Privacy of groups: several neighbours in a row, such as all records of one user."""

import math
from typing import Protocol

from tfdp.accounting.accountant import Accountant
from tfdp.events.arguments import positive_integer, real_number


class _PricesDelta(Protocol):
    def get_delta(self, target_epsilon: float) -> float: ...


def _on_the_way(accountant: _PricesDelta, group_size: int) -> _PricesDelta:
    """Returns what prices each two neighbours between data sets that are so many apart."""
    return accountant.on_the_way(group_size) if isinstance(accountant, Accountant) else accountant


def group_delta(accountant: _PricesDelta, group_size: int, target_epsilon: float) -> float:
    """Returns the delta of data sets that are `group_size` neighbours apart.

    What is (epsilon, delta)-private for neighbours is (k epsilon, delta_k)-private for k in a row
    (Vadhan 2017, The complexity of differential privacy, lemma 2.2), with

        delta_k = sum_{i=0}^{k-1} exp(i epsilon) delta.

    Guarantees:
        Valid for every accountant and under every neighbouring relation, and mostly far from
        tight: `RDPAccountant(group_size=...)` and `PRVAccountant(group_size=...)` know more.
        With records as privacy units, k is the largest number of records of one user. On the way
        from one data set to the other there may be fewer units than in either event
        (`tfdp.accounting.sampling_rules`): tfdp's accountants price these neighbours. Whatever else
        has a `get_delta` must do so itself.

    Args:
        accountant: Anything with `get_delta`.
        group_size: k, at least 1.
        target_epsilon: Epsilon of the group.

    Raises:
        ValueError: `group_size` is smaller than one, or `target_epsilon` negative or not finite.
        TypeError: they are not numbers.
    """
    k = positive_integer("group_size", group_size)
    total = real_number("target_epsilon", target_epsilon, minimum=0, inclusive=True)
    return _delta_in_a_row(_on_the_way(accountant, k), k, total)


def _delta_in_a_row(accountant: _PricesDelta, k: int, total: float) -> float:
    epsilon = total / k
    delta = accountant.get_delta(epsilon)
    if delta == 0:
        return 0.0
    log_factor = math.log(k)
    if epsilon > 0:
        # (e^(k epsilon) - 1) / (e^epsilon - 1), without overflow.
        log_factor = total - epsilon + math.log(math.expm1(-total) / math.expm1(-epsilon))
    return math.exp(min(0.0, math.log(delta) + log_factor))


def group_epsilon(accountant: _PricesDelta, group_size: int, target_delta: float) -> float:
    """Returns an epsilon of data sets that are `group_size` neighbours apart.

    The inverse of `group_delta`, which says what is guaranteed.

    Args:
        accountant: Anything with `get_delta`.
        group_size: k, at least 1.
        target_delta: Delta of the group, between 0 and 1.

    Returns:
        Epsilon; infinity where there is none below 1e6.

    Raises:
        ValueError: `group_size` is smaller than one, or `target_delta` not between 0 and 1.
        TypeError: they are not numbers.

    Example:
        >>> from tfdp.accounting import PRVAccountant
        >>> from tfdp.events import GaussianSumEvent
        >>> accountant = PRVAccountant().compose(GaussianSumEvent(1.0, noise_stddev=10.0))
        >>> round(accountant.get_epsilon(1e-5), 2), round(group_epsilon(accountant, 3, 1e-5), 2)
        (0.34, 1.14)
    """
    k = positive_integer("group_size", group_size)
    delta = real_number("target_delta", target_delta, minimum=0, inclusive=False, maximum=1)
    neighbours = _on_the_way(accountant, k)
    if _delta_in_a_row(neighbours, k, 0.0) <= delta:
        return 0.0
    high = 1.0
    while _delta_in_a_row(neighbours, k, high) > delta:
        high *= 2
        if high > 1e6:
            return math.inf
    low = 0.0
    # The end that is returned was seen to be within delta.
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if _delta_in_a_row(neighbours, k, middle) > delta:
            low = middle
        else:
            high = middle
    return high
