"""Which pass over the data a step belongs to."""

import dataclasses
import itertools

from tfdp.events import Sampling
from tfdp.ledger.ledger import PrivacyLedger
from tfdp.sampling.policy import SamplingPolicy


@dataclasses.dataclass
class _Way:
    """One way in which declared samples may come, and how far their pass is if they do.

    Attributes:
        goes_on: Whether a pass goes on at the end of an epoch, or a new one begins there.
        keeps_last: Whether a pass has its smaller last batch, where sizes do not tell.
        steps: Of the pass, so far.
    """

    goes_on: bool
    keeps_last: bool
    steps: int = 0

    def is_over(self, policy: SamplingPolicy, size: int | None) -> bool:
        """Returns whether the next step, on `size` units, begins a pass."""
        if size is None and self.keeps_last:
            return not self.steps or self.steps == policy.steps_per_pass
        return not self.steps or policy.is_over(self.steps, size)


class PassClock:
    """Describes one step after another, numbering the passes of policies that have them.

    A pass ends where the policy says so, or earlier at `begin_pass`. No number is of steps of two
    passes, in which a unit could be twice: where the noise changes from step to step, two dear
    steps would be charged as one. Where it is not known whether a pass has ended, both are
    supposed, and numbers are shorter than passes. The number is taken from the ledger when the
    first step of the pass is, so that several clocks on one ledger never share one.

    Args:
        policy: How steps are sampled.
        ledger: Its passes keep their numbers; new ones come after them.
        drawn: Whether tfdp draws the samples; else they are declared, and of a step whose size is
            not known it is taken that it may begin a new pass, where it could.
        goes_on: Whether declared samples go on at the end of an epoch, or begin anew there; None
            where that is not known.
    """

    def __init__(
        self,
        policy: SamplingPolicy,
        ledger: PrivacyLedger,
        drawn: bool = True,
        goes_on: bool | None = None,
    ):
        self.policy = policy
        self.drawn = drawn
        self.ledger = ledger
        self._goes_on_at_ends = goes_on
        self._steps = 0
        ways = itertools.product((False, True), repeat=2)
        self._ways = [_Way(*way) for way in ways if goes_on in (None, way[0])]
        self._taken = 0
        self._pass_index = -1
        self._is_renumbered = False
        self._needs_number = False
        policy.description(0)  # A policy that cannot describe its steps says so now.

    def begin_pass(self) -> None:
        """Starts a new pass, unless the present one has not begun: it is known that samples are
        drawn anew from here on. Where they go on, it is `renumber`.
        """
        self._steps = 0
        for way in self._ways:
            way.steps = 0

    def end_epoch(self) -> None:
        """Says that an epoch ends, after which samples that tfdp draws are drawn anew."""
        if self.drawn:
            self.begin_pass()
        for way in self._ways:
            if not way.goes_on:
                way.steps = 0

    def renumber(self) -> None:
        """Gives what is left of the present pass a number of its own. Drawn samples go on, and it
        ends where it did: else a later pass would begin within one that is drawn, and a unit could
        be in two steps of one number. Declared ones go on, or begin anew as at the end of an epoch.
        """
        self._is_renumbered = self.drawn and self._steps > 0
        self._needs_number = not self.drawn
        if not self.drawn:
            self.end_epoch()

    @property
    def is_within_order(self) -> bool:
        """Whether parts of the data that follow each other have begun, and are not all over."""
        place = self.policy.description(0).place
        return place is not None and self._taken % place[1] != 0

    def moved_to(self, ledger: PrivacyLedger) -> "PassClock":
        """Returns a clock that goes on in another ledger: with a new pass, where the parts of the
        data and drawn passes are.
        """
        moved = PassClock(self.policy, ledger, self.drawn, self._goes_on_at_ends)
        moved._taken, moved._steps = self._taken, self._steps
        moved._ways = [dataclasses.replace(way) for way in self._ways]
        moved.renumber()
        return moved

    def peek(self, size: int | None = None) -> Sampling:
        """Returns the description of the next step, on `size` units (None: not known)."""
        index = self._taken if self.policy.is_ordered else self._next_index(size)
        return self.policy.description(index)

    def advance(self, sampling: Sampling, size: int | None = None) -> None:
        """Counts a step that `peek` described so, once it is in the ledger."""
        self._taken += 1
        for way in self._ways:
            way.steps = 1 if way.is_over(self.policy, size) else way.steps + 1
        index = sampling.pass_number
        if index != self._pass_index and not self._goes_on:
            self._steps = 0
        self._pass_index, self._is_renumbered, self._needs_number = index, False, False
        self._steps += 1

    @property
    def _goes_on(self) -> bool:
        """Whether the next step is of the same draw as the last, though of another number."""
        return self._is_renumbered and self._steps != self.policy.steps_per_pass

    def _next_index(self, size: int | None) -> int:
        begins = self._is_renumbered or self._begins(size)
        return self.ledger.next_pass if begins else self._pass_index

    def _begins(self, size: int | None) -> bool:
        if not self.drawn:
            ends = any(way.is_over(self.policy, size) for way in self._ways)
            return ends or self._needs_number
        if size is None:
            return self._steps in (0, self.policy.steps_per_pass)
        return not self._steps or self.policy.is_over(self._steps, size)
