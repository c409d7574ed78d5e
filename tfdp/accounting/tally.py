"""What composed events amount to together, kept up to date with every one that is added."""

import collections
import math
from collections.abc import Hashable, Iterator
from typing import Any

from tfdp.accounting.bins import Kinds, of_bins
from tfdp.accounting.correlated import repeated
from tfdp.accounting.mechanisms import Mechanism, NoPrivacy
from tfdp.accounting.normal_form import NormalForm
from tfdp.accounting.passes import known_step, of_pass
from tfdp.events import Event, UnsupportedEventError


class Tally:
    """How often each event was composed, and what all of them come down to.

    An event that is added moves only the sums that it is a part of. These are the sum of its own
    kind, of its pass (if the steps of a pass count together), or of its run. So a ledger that grows
    by a step is priced in a time that does not depend on its length.

    Guarantees:
        The answers depend only on how often each event was added.
    """

    def __init__(self) -> None:
        self._forms: dict[Event, NormalForm] = {}
        self._counts: collections.Counter[Event] = collections.Counter()
        # The events of each pass.
        self._passes: dict[Hashable, dict[Event, None]] = {}
        # Of each draw that is in use for all steps.
        self._draws: dict[Hashable, Kinds] = {}
        # Of each run, by its first step: how many steps of it were taken once, twice, ...
        self._runs: dict[Event, collections.Counter[int]] = {}
        # Of each pass the runs whose samples are its own, by their first steps.
        self._runs_of_passes: dict[Hashable, dict[Event, NormalForm]] = {}
        self._terms: collections.Counter[Mechanism] = collections.Counter()
        self._failures: collections.Counter[float] = collections.Counter()
        self._lost: collections.Counter[float] = collections.Counter()

    def events(self) -> list[tuple[Event, int]]:
        """Returns the distinct events and how often each was added."""
        return list(self._counts.items())

    def form(self, event: Event) -> NormalForm | None:
        """Returns what an event amounts to that was added before; None of another one."""
        return self._forms.get(event)

    def add(self, event: Event, form: NormalForm, count: int) -> None:
        """Adds an event `count` times; a negative count takes it back, all of it at most.

        Args:
            event: The event.
            form: What it amounts to, the same every time.
            count: How often.

        Raises:
            UnsupportedEventError: so many of them are not priced; nothing was added.
        """
        moved: collections.Counter[Mechanism] = collections.Counter()
        for mechanism, number in self._part(event, form):
            moved[mechanism] -= number
        self._count(event, form, count)
        try:
            for mechanism, number in self._part(event, form):
                moved[mechanism] += number
        except UnsupportedEventError:
            self._count(event, form, -count)
            raise
        for mechanism, number in moved.items():
            _move(self._terms, mechanism, number)
        if form.failure_probability:
            _move(self._failures, form.failure_probability, count)
        if form.lost_probability:
            _move(self._lost, form.lost_probability, count)

    def _count(self, event: Event, form: NormalForm, count: int) -> None:
        before = self._counts[event]
        _move(self._counts, event, count)
        if event in self._counts:
            self._forms[event] = form
        else:
            del self._forms[event]
        if form.slot is not None:
            self._draws.setdefault(form.drawn_together, Kinds()).add(form, count)
        elif form.run is not None:
            times = self._runs.setdefault(form.run.start, collections.Counter())
            for number, change in ((before, -1), (before + count, 1)):
                if number:
                    _move(times, number, change)
            if form.drawn_together is not None:
                runs = self._runs_of_passes.setdefault(form.drawn_together, {})
                runs[form.run.start] = form
                if not times:
                    del runs[form.run.start]
        elif form.drawn_together is not None:
            members = self._passes.setdefault(form.drawn_together, {})
            members[event] = None
            if event not in self._counts:
                del members[event]

    def _part(self, event: Event, form: NormalForm) -> Iterator[tuple[Mechanism, int]]:
        """Yields what all events amount to that count together with this one, itself included."""
        if form.slot is not None:
            yield from of_bins(self._draws.get(form.drawn_together) or Kinds())
        elif form.drawn_together is not None:
            yield from self._of_pass(form.drawn_together)
        elif form.run is not None:
            yield from self._of_run(form)
        else:
            number = -(-self._counts[event] // form.events_per_mechanism)
            yield from ((each, number * form.times(each)) for each in form.mechanisms)

    def _of_run(self, form: NormalForm) -> Iterator[tuple[Mechanism, int]]:
        run: Any = form.run
        most = max(self._runs.get(run.start) or {0: 0})
        if most:
            yield from (repeated(mechanism, run, most) for mechanism in form.mechanisms)

    def _of_pass(self, drawn: Hashable) -> Iterator[tuple[Mechanism, int]]:
        runs = list(self._runs_of_passes.get(drawn, {}).values())
        steps = [(self._forms[each], self._counts[each]) for each in self._passes.get(drawn, {})]
        steps = [(form, count) for form, count in steps if form.mechanisms]
        parts = [self._of_run(form) for form in runs]
        if steps:
            first, kinds = steps[0][0], [(form.mechanisms, count) for form, count in steps]
            parts.append(of_pass(kinds, first.events_per_mechanism, first.repetitions))
        # One draw stands behind all of them, so that several are no mixtures of their own: they
        # cost at most what they do where it is known which steps a unit is in.
        for part in parts:
            yield from ((known_step(m) if len(parts) > 1 else m, number) for m, number in part)

    def terms(self) -> list[tuple[Mechanism, int]]:
        """Returns the distinct mechanisms and how often each counts."""
        return list(self._terms.items())

    @property
    def is_non_private(self) -> bool:
        """Whether any event has no privacy at all."""
        # One that has little is one that has none where its steps count together.
        return NoPrivacy() in self._terms

    def failure_probability(self) -> float:
        """Returns the probability with which outputs are not those of the mechanisms."""
        # A sample that fails counts once a step, however many steps make a mechanism.
        return math.fsum(probability * count for probability, count in self._failures.items())

    def lost_probability(self) -> float:
        """Returns the probability with which one of the releases is told apart with certainty."""
        # The sum is exact where there is one; the product is below it where there are many.
        total = math.fsum(lost * count for lost, count in self._lost.items())
        if 1 in self._lost:
            return 1.0
        product = math.fsum(count * math.log1p(-lost) for lost, count in self._lost.items())
        return min(total, -math.expm1(product))


def _move(totals: collections.Counter[Any], key: Hashable, change: int) -> None:
    totals[key] += change
    if not totals[key]:
        del totals[key]
