"""Where questions are charged, and where their noise comes from."""

import dataclasses

import numpy as np

from tfdp.accounting import Budget
from tfdp.events import (
    Event,
    FullBatchSampling,
    NeighboringRelation,
    NonPrivateEvent,
    ParallelComposition,
    SampledEvent,
)
from tfdp.ledger import PrivacyLedger
from tfdp.noise import RandomSource, system_random_source
from tfdp.statistics.noise import Noise


@dataclasses.dataclass(frozen=True)
class Account:
    """The ledger of a data set, what may be spent on it, and a source of random bits.

    Attributes:
        ledger: Of the data set.
        budget: What all of the ledger may cost.
        source: Of random bits; None for the operating system's.
        persons: Whether persons are protected; else rows.
        contributions: How many rows of one person there are at most.
    """

    ledger: PrivacyLedger
    budget: Budget | None
    source: RandomSource | None
    persons: bool = False
    contributions: int = 1

    def charge(self, event: Event, groups: "Groups | None") -> None:
        """Writes to the ledger what was released about each group, or refuses it.

        Args:
            event: What a row costs: of one group, or where a person may be in several, of all
                groups as one vector, or as selections whose costs add up.
            groups: Whose release it is; None for that of all rows.
        """
        self.charge_units(
            event if self.contributions == 1 else event.of_group(self.contributions), groups
        )

    def charge_units(self, event: Event, groups: "Groups | None" = None) -> None:
        """As `charge`, where the event is already what a row, or a person, costs.

        Raises:
            UnsupportedEventError: the ledger is about another unit: what is paid for a row does not
                protect a person of several.
        """
        if self.random_source.seeded:
            event = NonPrivateEvent()
        elif groups is not None and self.contributions == 1:
            event = ParallelComposition((event,))
        relation = NeighboringRelation.ADD_OR_REMOVE_ONE
        unit = "user" if self.persons else "example"
        event = SampledEvent(FullBatchSampling(), event, relation, unit)
        self.ledger.append(event, permit=self._permit)

    def _permit(self, ledger: PrivacyLedger, event: Event) -> int | None:
        """Refuses an event before it is written: those of two units have no common epsilon, for
        good. While this is asked, nobody else writes.
        """
        ledger.check_unit(event)
        return None if self.budget is None else self.budget.permit(ledger, event)

    def noise(self, epsilon: float | None, noise_multiplier: float | None) -> Noise:
        """Returns the noise of a question: what a row has, so that all of a person cost that."""
        return Noise.of(epsilon, noise_multiplier).of_each(self.contributions)

    def coordinates(self, number: int, groups: "Groups | None") -> int:
        """Returns how many numbers a release has that one unit may move, of `number` a group."""
        several = groups is not None and self.contributions > 1
        return number * max(len(groups.keys), 1) if several and groups is not None else number

    @property
    def random_source(self) -> RandomSource:
        """The given one, or the operating system's."""
        return self.source or system_random_source()


@dataclasses.dataclass(frozen=True)
class Groups:
    """Disjoint groups of the rows.

    Attributes:
        keys: What they are called; public.
        rows: int64, the group of every row, -1 for none; private.
    """

    keys: tuple
    rows: np.ndarray

    def sum(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the sum of int64 [n] over each group."""
        total = np.zeros(len(self.keys) + 1, np.int64)
        np.add.at(total, self.rows, numbers)  # The last place is that of no group.
        return total[:-1]
