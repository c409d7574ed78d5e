"""What every accountant promises."""

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from tfdp.accounting.dp_events import from_dp_event, is_dp_event
from tfdp.accounting.mechanisms import (
    DEARER,
    Mechanism,
    NoPrivacy,
    PureEpsilon,
    SampledGaussian,
    SeparatedGaussian,
    WorstPart,
    without_parts,
)
from tfdp.accounting.normal_form import NormalForm, normal_form
from tfdp.accounting.tally import Tally
from tfdp.events import Event, NeighboringRelation, UnsupportedEventError
from tfdp.events.arguments import positive_integer, real_number
from tfdp.events.protection import Protection, common_protection, protection
from tfdp.ledger.entry import LedgerEntry, PassNumbers

# Solving for an epsilon beside a failure probability stops when it moves by less than this, which
# doubles after so many steps, so that there are never many.
_RELATIVE_STEP, _SMALL_STEPS = 1e-9, 10
# A smaller delta is charged as none: shares of it could not be told from zero.
_SMALLEST_DELTA = 1e-280
# A larger delta is charged as this, a larger epsilon as that.
_LARGEST_DELTA, _LARGEST_EPSILON = 1 - 1e-9, 1e100
# Where a delta is bounded by that at a smaller epsilon.
_EPSILONS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# Epsilons that are remembered, with what they are of.
_MOST_ANSWERS = 8


class Accountant:
    """Prices composed events.

    A subclass declares what it prices in the table `prices`, mechanism type -> pricing function,
    and implements `_epsilon` and `_delta` from `_terms()`. A mechanism that is not in the table is
    charged as the next dearer one that is (`tfdp.accounting.mechanisms.DEARER`), or refused. Three
    things never reach the subclass: what has no privacy at all, what releases nothing, and the
    probabilities with which a truncated sample or an (epsilon, delta)-private release fails. An
    accountant that wants to do all of this itself need not be a subclass. It implements `compose`
    and `get_epsilon`.

    Guarantees:
        The answer depends only on how often each event was composed: not on the order, and not on
        whether k equal events came at once or one by one. It is never smaller than the true cost.

    Edge cases:
        An event that cannot be priced is refused by name and leaves the accountant as it was. So
        are events about different privacy units: no epsilon is about both. Beside events under
        another neighbouring relation, an event's price counts for ZERO_OUT, which each of them
        covers. Of nothing, epsilon and delta are zero. With no noise, seeded noise
        or a NonPrivateEvent epsilon is infinite and delta one.

    Attributes:
        prices: The table.
        computes_distributions: Whether it computes a whole distribution for every kind of step,
            which takes long where there are many kinds.
        takes_many_kinds: Whether a further kind of steps is no work worth mentioning.
        confidence: With which probability all that it says holds; None where that is proven.
        is_predicted: Whether one epsilon takes so long that a search for a budget asks
            `PRVAccountant` first, and this one only to verify what was found.
    """

    prices: ClassVar[Mapping[type[Mechanism], Callable[..., Any]]] = {}
    computes_distributions: ClassVar[bool] = False
    takes_many_kinds: ClassVar[bool] = False
    is_predicted: ClassVar[bool] = False
    confidence: float | None = None
    # How many neighbours the data sets are apart that epsilon and delta are about; and those of
    # which each two neighbours on the way are priced.
    _group_size = _apart = 1

    def __init__(self):
        self._tally = Tally()
        self._protection: Protection | None = None
        self._terms_now: list[tuple[Mechanism, int]] | None = None
        self._answers: dict[Hashable, float] = {}
        self._passes = PassNumbers()
        self._runs: dict[int, Event] = {}

    def __getstate__(self) -> dict[str, Any]:
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made._forget()
        return vars(made)

    def _forget(self) -> None:
        """Drops the functions that it remembers, which cannot be pickled."""

    def growing(self) -> "Accountant":
        """Returns an empty accountant like this one, for whoever asks again and again while events
        are added.
        """
        return self

    def on_the_way(self, group_size: int) -> "Accountant":
        """Returns an accountant of what was composed, for each two neighbours on the way between
        data sets that are so many of them apart.

        There may be fewer units on the way than an event says, and samples of fixed size cost more
        of fewer (`tfdp.accounting.sampling_rules`). An accountant that composes in a way of its own
        is returned as it is.

        Raises:
            UnsupportedEventError: an event cannot be priced there.
        """
        if group_size == 1 or not self.takes_back:
            return self
        made = copy.copy(self)
        Accountant.__init__(made)
        made._apart = self._apart * group_size
        for event, count in self._tally.events():
            made._add(event, count)
        return made

    @property
    def neighboring_relation(self) -> NeighboringRelation | None:
        """The relation of the events composed so far, or None where there are none."""
        return None if self._protection is None else self._protection.neighboring_relation

    def compose(self, event: Event, count: int = 1) -> "Accountant":
        """Accounts for `count` more events like this one, and returns the accountant.

        Args:
            event: An event of ours, or of dp-accounting (`from_dp_event`), which is read under the
                relation of what was composed before, by default add-or-remove-one.
            count: How often it happened.

        Raises:
            UnsupportedEventError: this event, or one inside it, cannot be priced, or not beside the
                others.
            TypeError: `event` is not an Event or `count` not an integer.
            ValueError: `count` is smaller than one.
        """
        count = positive_integer("count", count)
        if is_dp_event(event):
            entries = self._converted(event)
            for each, _ in entries:
                self._check(each)
            for each, number in entries:
                self.compose(each, number * count)
            return self
        self._add(event, count)
        return self

    def _add(self, event: Event, count: int) -> NormalForm:
        form, common = self._tally.form(event), self._protection
        if form is None:
            form, common = self._check(event)
        self._tally.add(event, form, count)
        self._protection, self._terms_now = common, None
        if form.run is not None:
            self._runs.update((number, form.run.start) for number in form.run.ids)
        return form

    @property
    def takes_back(self) -> bool:
        """Whether `composed_meanwhile` works: not where a subclass composes in its own way."""
        return type(self).compose is Accountant.compose

    @contextlib.contextmanager
    def composed_meanwhile(self, event: Event, count: int = 1) -> Iterator[None]:
        """Accounts for `count` more events like this one until the block ends.

        Args:
            event: An event of ours.
            count: How often it would happen.

        Raises:
            UnsupportedEventError: as `compose`.
        """
        before, known = self._protection, self._runs.keys() & set(event.run_ids())
        form = self._add(event, count)
        try:
            yield
        finally:
            self._tally.add(event, form, -count)
            self._protection, self._terms_now = before, None
            for number in set(event.run_ids()) - known:
                del self._runs[number]

    def _converted(self, event: Any) -> list[LedgerEntry]:
        relation = self.neighboring_relation
        return from_dp_event(event, relation or NeighboringRelation.ADD_OR_REMOVE_ONE)

    def compose_entries(self, entries: Iterable[tuple[Event, int]]) -> "Accountant":
        """Composes the (event, count) pairs of a ledger, fast where few events stand in many.

        Passes over shuffled data are other ones than those of ledgers that were composed before.

        Raises:
            UnsupportedEventError: as `compose`; what stands before has then been composed, or not.
        """
        totals: dict[int, list[Any]] = {}
        for event, count in entries:
            # By identity: comparing events takes as long as composing them.
            known = totals.get(id(event))
            if known is None:
                totals[id(event)] = [event, count]
            else:
                known[1] += count
        self._passes.begin_ledger()
        for event, count in totals.values():
            self.compose(self._passes.renumbered(event), count)
        return self

    def supports(self, event: Event) -> bool:
        """Whether `compose` would accept this event now."""
        try:
            for each, _ in self._converted(event) if is_dp_event(event) else [(event, 1)]:
                self._check(each)
        except UnsupportedEventError:
            return False
        return True

    def get_epsilon(self, target_delta: float) -> float:
        """Returns an epsilon such that everything composed is (epsilon, target_delta)-private.

        Args:
            target_delta: At least 0 and below 1. At 0 epsilon is finite only where all mechanisms
                are pure; so it is below 1e-280.

        Raises:
            ValueError: `target_delta` is out of range.
            TypeError: it is not a number.
        """
        delta = real_number("target_delta", target_delta, minimum=0, inclusive=True, maximum=1)
        if delta == 1:
            raise ValueError(
                "target_delta must be smaller than 1; choose it well below 1 / number of records. "
                f"Received: target_delta={target_delta!r}."
            )
        if self._is_non_private():
            return math.inf
        failure, lost = self._failure_probability(), self._lost_probability()
        # A further step of a run, or of a pass, often changes nothing of this.
        asked = tuple(self._terms()), failure, lost, delta
        if asked not in self._answers:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            self._answers[asked] = self._epsilon_beside(failure, lost, delta)
        return self._answers[asked]

    def _epsilon_beside(self, failure: float, lost: float, delta: float) -> float:
        if not self._terms() and failure == 0 and lost <= delta:
            return 0.0
        # With h(epsilon) the delta of the mechanisms, that of all is lost + (1 - lost) h(epsilon),
        # and what failures add to it.
        if delta - lost < _SMALLEST_DELTA:
            return self._pure_epsilon() if failure == 0 and lost <= delta else math.inf
        delta, epsilon = min((delta - lost) / (1 - lost), _LARGEST_DELTA), 0.0
        failure /= 1 - lost
        for number in itertools.count():
            # P and Q fail with this probability: P(S) <= e^epsilon Q(S) + delta becomes
            # P'(S) <= e^epsilon Q'(S) + delta + (1 + e^epsilon) failure.
            share = delta - (1 + math.exp(min(epsilon, 700.0))) * failure
            if share < _SMALLEST_DELTA:
                return math.inf
            needed = min(self._epsilon(share), self._most_epsilon()) if self._terms() else 0.0
            if math.isnan(needed):  # An accountant of another package has lost its way.
                return math.inf
            if needed <= epsilon or failure == 0:
                return max(needed, epsilon)
            # The smallest solution is approached from below; the last step goes beyond it.
            epsilon = needed * (1 + _RELATIVE_STEP * 2.0 ** max(0, number - _SMALL_STEPS))
        raise AssertionError  # The step grows until one of the two ends it.

    def get_delta(self, target_epsilon: float) -> float:
        """Returns a delta such that everything composed is (target_epsilon, delta)-private.

        Args:
            target_epsilon: At least 0; infinity asks for the probability of what no epsilon covers.

        Raises:
            ValueError: `target_epsilon` is negative or not a number.
            TypeError: it is not a real number.
        """
        if isinstance(target_epsilon, float) and target_epsilon == math.inf:
            epsilon = math.inf
        else:
            epsilon = real_number("target_epsilon", target_epsilon, minimum=0, inclusive=True)
        if self._is_non_private():
            return 1.0
        failure, lost = self._failure_probability(), self._lost_probability()
        if failure == 0 and (epsilon == math.inf or not self._terms()):
            return lost
        # Failures weigh e^epsilon, so that a smaller epsilon may show a smaller delta.
        smaller = [e for e in _EPSILONS if e < epsilon] if failure > 0 else []
        most = self._most_epsilon()
        return min(
            1.0,
            *(
                (1 - lost) * (self._delta(e) if self._terms() and e <= most else 0.0)
                + (1 + math.exp(min(e, 700.0))) * failure
                + lost
                for e in [min(epsilon, _LARGEST_EPSILON), *smaller]
            ),
        )

    def _check(self, event: Event) -> tuple[NormalForm, Protection | None]:
        if not isinstance(event, Event):
            raise TypeError(f"event must be an Event. Received: event={event!r}.")
        form = normal_form(event, self._apart)
        if form.otherwise is not None and not self.computes_distributions:
            form = form.otherwise
        if form.run is not None:
            form.run.check(self._runs)
        mechanisms = form.mechanisms
        if WorstPart not in self.prices:
            mechanisms = tuple(without_parts(mechanisms))
        if form.run is None and SeparatedGaussian not in self.prices:
            # What is charged in its place counts for each step of a pass that a unit may be in.
            mechanisms = tuple(map(_once, mechanisms))
        form = form._replace(mechanisms=tuple(self._priced(m, event) for m in mechanisms))
        before = [] if self._protection is None else [self._protection]
        return form, common_protection([*before, protection(event)])

    def _priced(self, mechanism: Mechanism, event: Event) -> Mechanism:
        """Returns the mechanism, or where there is no price for it the next dearer one."""
        found = mechanism
        while type(found) not in self.prices and type(found) is not NoPrivacy:
            if type(found) not in DEARER:
                relation = protection(event).neighboring_relation
                raise UnsupportedEventError(
                    f"{type(self).__name__} cannot price {mechanism!r}, which is what this amounts "
                    f"to under {relation.name}: {event!r}. It prices "
                    f"{', '.join(kind.__name__ for kind in self.prices)}. Ask 'rdp', which prices "
                    "every mechanism."
                )
            found = DEARER[type(found)](found)
        return found

    def _is_non_private(self) -> bool:
        return self._tally.is_non_private

    def _failure_probability(self) -> float:
        return self._tally.failure_probability()

    def _lost_probability(self) -> float:
        return self._tally.lost_probability()

    def _fails(self) -> bool:
        """Whether there is a probability with which the mechanisms' divergences say nothing."""
        return self._failure_probability() + self._lost_probability() > 0

    def _pure_epsilon(self) -> float:
        """Returns the sum of the epsilons at delta zero, infinity where there is none."""
        total = 0.0
        for mechanism, count in self._terms():
            charged = mechanism
            while type(charged) in DEARER:
                charged = DEARER[type(charged)](charged)
            total += count * charged.epsilon if isinstance(charged, PureEpsilon) else math.inf
        return total * self._group_size

    def _most_epsilon(self) -> float:
        """Returns what epsilon is at most, at every delta."""
        return self._pure_epsilon()

    def _terms(self) -> list[tuple[Any, int]]:
        """Returns the distinct mechanisms composed so far, sorted, so that no order matters."""
        if self._terms_now is None:
            self._terms_now = sorted(self._tally.terms(), key=_sort_key)
        return self._terms_now

    def _epsilon(self, delta: float) -> float:
        """Returns epsilon for a delta from 1e-280 to 1 - 1e-9, of at least one term."""
        raise NotImplementedError(f"{type(self).__name__} has no epsilon for a delta.")

    def _delta(self, epsilon: float) -> float:
        """Returns delta for an epsilon from 0 to 1e100, of at least one term."""
        raise NotImplementedError(f"{type(self).__name__} has no delta for an epsilon.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _once(mechanism: Mechanism) -> Mechanism:
    """Returns what one step costs, of all those that a `SeparatedGaussian` stands for."""
    if type(mechanism) is not SeparatedGaussian:
        return mechanism
    return SampledGaussian(1.0, mechanism.noise_multiplier)


def _sort_key(term: tuple[Mechanism, int]) -> tuple[Any, ...]:
    mechanism = term[0]
    return type(mechanism).__name__, repr(mechanism)
