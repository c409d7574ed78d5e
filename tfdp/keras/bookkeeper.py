"""The host's side of a step: what is written to the ledger before the step may run."""

import zlib
from collections.abc import Callable

import numpy as np

from tfdp.events import Event, NeighboringRelation, SampledEvent
from tfdp.keras.errors import LedgerMismatchError
from tfdp.ledger import PrivacyLedger
from tfdp.ledger.errors import PassTakenError
from tfdp.sampling import SamplingPolicy, Unknown
from tfdp.sampling.clock import PassClock

# May raise, or return how many such steps the ledger may reserve at most.
Guard = Callable[[PrivacyLedger, Event], int | None]


class Bookkeeper:
    """Commits the event of each step to a ledger, unless a guard or the ledger itself objects.

    Attributes:
        guards: Functions of (ledger, next event), called before each step; they may raise.
        error: What stopped the last step from being charged. A graph reports only the text of an
            error that is raised inside it; whoever runs the graph finds the error itself here.
    """

    def __init__(self, ledger: PrivacyLedger):
        self._ledger = ledger
        self._clock = PassClock(Unknown(), ledger)
        self.guards: tuple[Guard, ...] = ()
        self.error: Exception | None = None

    @property
    def ledger(self) -> PrivacyLedger:
        """The ledger that the next step is written to."""
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: PrivacyLedger) -> None:
        if not isinstance(ledger, PrivacyLedger):
            raise TypeError(f"ledger must be a tfdp.PrivacyLedger. Received: ledger={ledger!r}.")
        self._ledger = ledger
        self._clock = PassClock(self._clock.policy, ledger)

    @property
    def sampling(self) -> SamplingPolicy:
        """How the samples of the next steps are drawn."""
        return self._clock.policy

    @sampling.setter
    def sampling(self, policy: SamplingPolicy) -> None:
        if not isinstance(policy, SamplingPolicy):
            raise TypeError(
                f"sampling must be a policy from tfdp.sampling. Received: sampling={policy!r}."
            )
        self._clock = PassClock(policy, self._ledger)

    def begin_pass(self) -> None:
        """Says that a new pass over the data begins, for policies that have passes."""
        self._clock.begin_pass()

    def sampled(self, event: Event, privacy_unit: str) -> SampledEvent:
        """Returns `event` with the sampling of the next step."""
        relation: NeighboringRelation = self._clock.policy.neighboring_relation
        return SampledEvent(self._clock.peek(), event, relation, privacy_unit)

    def commit(
        self, make_event: Callable[[], SampledEvent], position: int, ledger_key: int
    ) -> tuple[np.int64, np.int64]:
        """Writes the event of the step that is about to run, or raises.

        Args:
            make_event: Returns the event.
            position: How many events the ledger held after the step that the weights come from.
            ledger_key: Which ledger that was; see `PrivacyLedger.place`.

        Returns:
            Position and key after this step.

        Raises:
            LedgerMismatchError: the ledger does not hold the steps that the weights come from.
        """
        with _Remember(self):
            self._write(make_event, position, ledger_key)
            return self._place()

    # Several processes that take every step together keep a ledger each.

    def try_commit(
        self, make_event: Callable[[], SampledEvent], position: int, ledger_key: int
    ) -> tuple[np.int64, np.int64, np.int64]:
        """As `commit`, but returns a third number instead of raising: 0 where the step is refused,
        else one that stands for the event. `agree` compares the processes' numbers.
        """
        with _Remember(self, raises=False):
            event = self._write(make_event, position, ledger_key)
            return *self._place(), np.int64(1 + zlib.crc32(repr(event).encode()))
        return np.int64(0), np.int64(0), np.int64(0)

    def agree(self, codes: np.ndarray) -> tuple[np.int64]:
        """Raises in every process, if one of them refused the step or wrote another event.

        Args:
            codes: What `try_commit` returned, for every replica of every process.

        Raises:
            LedgerMismatchError: another process refused the step, or wrote another event. A process
                that refused it raises its own error.
        """
        if self.error is not None:
            raise self.error
        with _Remember(self):
            if not all(codes):
                raise LedgerMismatchError(
                    "Another process of the strategy refused this step; its error says why. "
                    f"Replicas of such processes: {np.flatnonzero(codes == 0).tolist()}."
                )
            if len(set(codes.tolist())) > 1:
                raise LedgerMismatchError(
                    "The processes of the strategy wrote different events for the same step. "
                    "Configure the query, the sampling and the data alike in all of them."
                )
        return (np.int64(1),)

    def _write(
        self, make_event: Callable[[], SampledEvent], position: int, ledger_key: int
    ) -> SampledEvent:
        if not self._ledger.holds(int(position), int(ledger_key)):
            raise LedgerMismatchError(
                f"The weights come from a run that had written {int(position)} events to its "
                f"ledger, which is not this one (of {self._ledger.total_count} events). Set "
                "`model.ledger` to the ledger of that run: tfdp.PrivacyLedger.load(path) if it "
                "was saved, tfdp.PrivacyLedger.open(path) if it was opened."
            )
        event = make_event()
        try:
            self._ledger.append(event, permit=self._permit)
        except PassTakenError:
            # The ledger has read what the other process wrote; the clock numbers passes after it.
            self._clock = PassClock(self._clock.policy, self._ledger)
            event = make_event()
            self._ledger.append(event, permit=self._permit)
        self._clock.advance()
        return event

    def _permit(self, ledger: PrivacyLedger, event: Event) -> int | None:
        limits = [guard(ledger, event) for guard in self.guards]
        return min((limit for limit in limits if limit is not None), default=None)

    def _place(self) -> tuple[np.int64, np.int64]:
        position, key = self._ledger.place()
        return np.int64(position), np.int64(key)


class _Remember:
    """Keeps what is raised, of whatever kind, as the bookkeeper's error; raises it all the same,
    unless told not to.
    """

    def __init__(self, bookkeeper: Bookkeeper, raises: bool = True):
        self._bookkeeper = bookkeeper
        self._raises = raises

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self._bookkeeper.error = error
        return not self._raises and isinstance(error, Exception)
