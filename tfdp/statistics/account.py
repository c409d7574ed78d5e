"""Where questions are charged, and where their noise comes from."""

import dataclasses

import numpy as np

from tfdp.accounting import Budget
from tfdp.events import Event, NonPrivateEvent, ParallelComposition
from tfdp.ledger import PrivacyLedger
from tfdp.noise import RandomSource, system_random_source


@dataclasses.dataclass(frozen=True)
class Account:
    """The ledger of a data set, what may be spent on it, and a source of random bits."""

    ledger: PrivacyLedger
    budget: Budget | None
    source: RandomSource | None

    def charge(self, event: Event, groups: "Groups | None") -> None:
        """Writes the event, of which there is one for each group, to the ledger, or refuses it."""
        if self.random_source.seeded:
            event = NonPrivateEvent()
        elif groups is not None:
            event = ParallelComposition((event,))
        permit = None if self.budget is None else self.budget.permit
        self.ledger.append(event, permit=permit)

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
