"""What every accountant promises."""

import abc
import collections

from tfdp.accounting.normal_form import (
    Protection,
    SampledGaussian,
    collapse,
    common_protection,
    protection,
)
from tfdp.ledger.events import (
    Event,
    NeighboringRelation,
    UnsupportedEventError,
    positive_integer,
    real_number,
)


class Accountant(abc.ABC):
    """Prices composed events.

    Guarantees:
        The answer depends only on how often each event was composed: not on the order, and not on
        whether k equal events came at once or one by one. It is never smaller than the true cost.

    Edge cases:
        An event that cannot be priced is refused by name and leaves the accountant as it was. So
        are events under different neighbouring relations or about different privacy units: no
        epsilon is about both. Of nothing, epsilon and delta are zero. With no noise, seeded noise
        or a NonPrivateEvent epsilon is infinite and delta one.
    """

    def __init__(self):
        self._counts: collections.Counter[Event] = collections.Counter()
        self._protection: Protection | None = None

    @property
    def neighboring_relation(self) -> NeighboringRelation | None:
        """The relation of the events composed so far, or None where there are none."""
        return None if self._protection is None else self._protection.neighboring_relation

    def compose(self, event: Event, count: int = 1) -> "Accountant":
        """Accounts for `count` more events like this one, and returns the accountant.

        Raises:
            UnsupportedEventError: this event, or one inside it, cannot be priced, or not beside the
                others.
            TypeError: `event` is not an Event or `count` not an integer.
            ValueError: `count` is smaller than one.
        """
        count = positive_integer("count", count)
        common = self._check(event)
        self._protection = common
        self._counts[event] += count
        return self

    def supports(self, event: Event) -> bool:
        """Whether `compose` would accept this event now."""
        try:
            self._check(event)
        except UnsupportedEventError:
            return False
        return True

    def get_epsilon(self, target_delta: float) -> float:
        """Returns an epsilon such that everything composed is (epsilon, target_delta)-private.

        Raises:
            ValueError: `target_delta` is not strictly between 0 and 1.
            TypeError: it is not a number.
        """
        delta = real_number("target_delta", target_delta, minimum=0, inclusive=False, maximum=1)
        if delta == 1:
            raise ValueError(
                "target_delta must be smaller than 1; choose it well below 1 / number of records. "
                f"Received: target_delta={target_delta!r}."
            )
        return self._epsilon(delta)

    def get_delta(self, target_epsilon: float) -> float:
        """Returns a delta such that everything composed is (target_epsilon, delta)-private.

        Raises:
            ValueError: `target_epsilon` is negative or not finite.
            TypeError: it is not a number.
        """
        return self._delta(real_number("target_epsilon", target_epsilon, minimum=0, inclusive=True))

    def _check(self, event: Event) -> Protection | None:
        if not isinstance(event, Event):
            raise TypeError(f"event must be an Event. Received: event={event!r}.")
        collapse(event, 1)
        before = [] if self._protection is None else [self._protection]
        return common_protection([*before, protection(event)])

    def _terms(self) -> list[tuple[SampledGaussian, int]]:
        """Returns the distinct mechanisms composed so far, sorted, so that no order matters."""
        totals: collections.Counter[SampledGaussian] = collections.Counter()
        for event, count in self._counts.items():
            for mechanism, number in collapse(event, count):
                totals[mechanism] += number
        return sorted(totals.items())

    @abc.abstractmethod
    def _epsilon(self, delta: float) -> float:
        """Returns epsilon for a delta in (0, 1)."""

    @abc.abstractmethod
    def _delta(self, epsilon: float) -> float:
        """Returns delta for a finite epsilon of at least zero."""
