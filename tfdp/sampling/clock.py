"""Which pass over the data a step belongs to."""

from tfdp.events import Sampling
from tfdp.ledger.ledger import PrivacyLedger
from tfdp.sampling.policy import SamplingPolicy


class PassClock:
    """Describes one step after another, numbering the passes of policies that have them.

    A pass ends where the policy says so, or earlier at `begin_pass`. Calling it too often charges
    more, never less: every pass in which a unit may appear has a number of its own. The number is
    taken from the ledger when the first step of the pass is, so that several clocks on one ledger
    never share one.

    Args:
        policy: How steps are sampled.
        ledger: Its passes keep their numbers; new ones come after them.
        drawn: Whether tfdp draws the samples; else they are declared, and of a step whose size is
            not known it is taken that it begins a new pass, where it could.
    """

    def __init__(self, policy: SamplingPolicy, ledger: PrivacyLedger, drawn: bool = True):
        self.policy = policy
        self.drawn = drawn
        self.ledger = ledger
        self._steps = 0
        self._taken = 0
        self._pass_index = -1
        self._is_renumbered = False
        policy.description(0)  # A policy that cannot describe its steps says so now.

    def begin_pass(self) -> None:
        """Starts a new pass, unless the present one has not begun: of drawn samples, that they are
        drawn anew from here on. Where they go on, it is `renumber`.
        """
        self._steps = 0

    def renumber(self) -> None:
        """Gives what is left of the present pass a number of its own. Of drawn samples it ends
        where it did: else a later pass would begin within one that is drawn, and a unit could be in
        two steps of one number.
        """
        self._is_renumbered = self.drawn and self._steps > 0
        if not self.drawn:
            self.begin_pass()

    @property
    def is_within_order(self) -> bool:
        """Whether parts of the data that follow each other have begun, and are not all over."""
        place = self.policy.description(0).place
        return place is not None and self._taken % place[1] != 0

    def moved_to(self, ledger: PrivacyLedger) -> "PassClock":
        """Returns a clock that goes on in another ledger: with a new pass, where the parts of the
        data and drawn passes are.
        """
        moved = PassClock(self.policy, ledger, self.drawn)
        moved._taken, moved._steps = self._taken, self._steps
        moved.renumber()
        return moved

    def peek(self, size: int | None = None) -> Sampling:
        """Returns the description of the next step, on `size` units (None: not known)."""
        index = self._taken if self.policy.is_ordered else self._next_index(size)
        return self.policy.description(index)

    def advance(self, sampling: Sampling) -> None:
        """Counts a step that `peek` described so, once it is in the ledger."""
        self._taken += 1
        index = sampling.pass_number
        if index != self._pass_index and not self._goes_on:
            self._steps = 0
        self._pass_index, self._is_renumbered = index, False
        self._steps += 1

    @property
    def _goes_on(self) -> bool:
        """Whether the next step is of the same draw as the last, though of another number."""
        return self._is_renumbered and self._steps != self.policy.steps_per_pass

    def _next_index(self, size: int | None) -> int:
        begins = self._is_renumbered or self._begins(size)
        return self.ledger.next_pass if begins else self._pass_index

    def _begins(self, size: int | None) -> bool:
        if not self._steps:
            return True
        if size is None and self.drawn:
            return self.policy.steps_per_pass == self._steps
        return self.policy.is_over(self._steps, size)
