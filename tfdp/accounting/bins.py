"""What steps cost together whose units are in bins that were drawn once for all of them.

A unit is in bin j of b, uniformly, and in every step that is about bin j. Let every bin have had E
steps at most. Independent Gaussian noise of multiplier z in each of them is that of one step with
noise z / sqrt(E): the pair is the mixture over j of N(sqrt(E) e_j, z^2 I), or less where a bin had
fewer steps. Steps of different multipliers add up their E / z^2.

The steps of a run of correlated noise are one mechanism (`tfdp.accounting.correlated`). Each step
that was taken m times at most is in m times as many rows, so that all products of what units in
different bins move are at most m times as large. That is what noise divided by sqrt(m) makes them.

Whatever else the same bins are used for, such as two runs, costs at most what it costs where it is
known which bin the unit is in. The reason is that outputs are mixtures over the bin, and
divergences are jointly quasi-convex.
"""

import collections
import dataclasses
import math
from collections.abc import Hashable, Iterator
from typing import Any

from tfdp.accounting.mechanisms import (
    AllocatedGaussian,
    BinnedGaussian,
    Mechanism,
    NoPrivacy,
    RemoveThenAdd,
)
from tfdp.accounting.passes import known_step
from tfdp.accounting.ranges import within_range

# The mechanisms of a step, or of a run, and the first step of the run.
_Kind = tuple[tuple[Mechanism, ...], Hashable]


class _Most:
    """How often the slot was used that was used most."""

    def __init__(self) -> None:
        self._uses: collections.Counter[Hashable] = collections.Counter()
        # How many slots were used once, twice, ...
        self._slots: collections.Counter[int] = collections.Counter()

    def add(self, slot: Hashable, count: int) -> None:
        for number, change in ((self._uses[slot], -1), (self._uses[slot] + count, 1)):
            self._slots[number] += change
            if number == 0 or not self._slots[number]:
                del self._slots[number]
        self._uses[slot] += count

    @property
    def value(self) -> int:
        return max(self._slots, default=0)


class Kinds:
    """What the bins of one draw were used for; iteration gives each kind, and how often it counts.

    The time that a further step takes does not depend on the number of steps.
    """

    def __init__(self) -> None:
        self._kinds: dict[_Kind, _Most] = {}

    def add(self, form: Any, count: int) -> None:
        """Adds steps of a `tfdp.accounting.normal_form.NormalForm`; a negative count takes them
        back.
        """
        kind = form.mechanisms, None if form.run is None else form.run.start
        most = self._kinds.setdefault(kind, _Most())
        most.add(form.slot, count)
        if not most.value:
            del self._kinds[kind]

    def __iter__(self) -> Iterator[tuple[_Kind, int]]:
        return ((kind, most.value) for kind, most in self._kinds.items())


def of_bins(kinds: Kinds) -> Iterator[tuple[Mechanism, int]]:
    """Yields the mechanisms that everything about the bins of one draw amounts to, each with its
    number.
    """
    used = [(mechanisms, start, most) for (mechanisms, start), most in kinds if mechanisms]
    together = _together(used)
    if together is not None:
        yield together, 1
        return
    for mechanisms, _, most in used:
        yield from ((known_step(each), most) for each in mechanisms)


def _together(used: list[tuple[tuple[Mechanism, ...], Hashable, int]]) -> Mechanism | None:
    """Returns the one mixture over bins that everything is; None where none is known."""
    inverses, inner = [], set()
    for mechanisms, start, most in used:
        once: Any = mechanisms[0]
        if len(mechanisms) > 1 or (start and len(used) > 1):
            return None
        if isinstance(once, BinnedGaussian):
            releases = tuple((c, z / math.sqrt(most)) for c, z in once.releases)
            return _within(dataclasses.replace(once, releases=releases))
        each = once.mechanism if isinstance(once, RemoveThenAdd) else once
        if not isinstance(each, AllocatedGaussian):
            return None
        inverses.append(math.sqrt(most) / each.noise_multiplier)
        inner.add((type(once), each.num_steps))
    if len(inner) != 1:
        return None
    ((kind, num_bins),) = inner
    # Exactly z of a single step.
    z = each.noise_multiplier if used == [(mechanisms, start, 1)] else 1 / math.hypot(*inverses)
    found = AllocatedGaussian(num_bins, z)
    return _within(RemoveThenAdd(found) if kind is RemoveThenAdd else found)


def _within(mechanism: Mechanism) -> Mechanism | None:
    found = within_range(mechanism)
    return None if isinstance(found, NoPrivacy) else found
