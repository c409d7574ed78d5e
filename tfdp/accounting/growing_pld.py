"""Privacy loss distributions of a run that grows, for curves over steps."""

from typing import Any

from tfdp.accounting.losses.window import has_grid
from tfdp.accounting.pld import (
    LARGEST_EPSILON,
    MOST_POINTS,
    PLDAccountant,
    composed,
    fits,
    largest_loss,
    one_step,
)
from tfdp.accounting.rdp import renyi_curve

# Of so few distinct mechanisms, composing all anew is cheaper than adding what is new.
_FEW = 2


class GrowingPLDAccountant(PLDAccountant):
    """A `PLDAccountant` that is asked again and again while events are added.

    What was composed when it was last asked is kept, and only what is new is composed with it.

    Guarantees:
        As those of `PLDAccountant`. Its numbers depend, in their last digits, on when it was asked:
        sums are rounded in another order, and each addition gives up a tail of 1e-15, to infinity.
    """

    def __init__(self, value_discretization_interval: float = 1e-4):
        super().__init__(value_discretization_interval)
        self._grown: tuple[float, dict[Any, int], Any] | None = None

    def _distribution(self, terms: list[tuple[Any, int]]) -> Any:
        if len(terms) <= _FEW:
            return super()._distribution(terms)
        interval = max(self._interval, 2 * largest_loss(terms) / MOST_POINTS)
        before: dict[Any, int] = {}
        total = None
        if self._grown is not None and self._grown[0] == interval:
            _, before, total = self._grown
        now = dict(terms)
        if not has_grid(renyi_curve(terms), LARGEST_EPSILON) or not fits(
            [(one_step(mechanism, interval), count) for mechanism, count in terms]
        ):
            return None
        if any(now.get(mechanism, 0) < count for mechanism, count in before.items()):
            # Gaussians without sampling were merged to another one.
            before, total = {}, None
        for mechanism, count in terms:
            more = count - before.get(mechanism, 0)
            if more:
                step = composed(one_step(mechanism, interval), more)
                total = step if total is None else total.compose(step)
        self._grown = interval, now, total
        return total
