"""Which pass over the data a step belongs to."""

from tfdp.events import Sampling, ShuffledSampling
from tfdp.ledger.ledger import PrivacyLedger
from tfdp.sampling.policy import SamplingPolicy


class PassClock:
    """Describes one step after another, numbering the passes of policies that have them.

    A pass ends after `steps_per_pass` steps, or earlier at `begin_pass`. Calling it too often
    charges more, never less: every pass in which a unit may appear has a number of its own.

    Args:
        policy: How steps are sampled.
        ledger: Its passes keep their numbers; new ones come after them.
    """

    def __init__(self, policy: SamplingPolicy, ledger: PrivacyLedger):
        self.policy = policy
        self._pass_index = 1 + max((_pass_index(entry.event) for entry in ledger), default=-1)
        self._steps = 0
        policy.event(self._pass_index)  # A policy that cannot describe its steps says so now.

    def begin_pass(self) -> None:
        """Starts a new pass, unless the present one has not begun."""
        if self._steps:
            self._pass_index += 1
            self._steps = 0

    def peek(self) -> Sampling:
        """Returns the description of the next step."""
        if self._steps == self.policy.steps_per_pass:
            self.begin_pass()
        return self.policy.event(self._pass_index)

    def advance(self) -> None:
        """Counts the step that `peek` described."""
        self._steps += 1


def _pass_index(event) -> int:
    sampling = getattr(event, "sampling", None)
    return sampling.pass_index if isinstance(sampling, ShuffledSampling) else -1
