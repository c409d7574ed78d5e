"""The host's side of a step: what is written to the ledger before the step may run."""

import contextlib
import logging
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tfdp.events import Event, SampledEvent
from tfdp.keras import charges
from tfdp.keras.errors import LedgerMismatchError
from tfdp.keras.sampling_of_steps import Batch, SamplingOfSteps
from tfdp.ledger import PrivacyLedger
from tfdp.ledger.errors import PassTakenError

_logger = logging.getLogger("tfdp")

# A function of the ledger and the next event. It may raise, which stops the step, or return how
# many such steps the ledger may reserve at most.
Guard = Callable[[PrivacyLedger, Event], int | None]


class Charging:
    """Commits the event of each step to a ledger, unless a guard or the ledger itself objects.

    Args:
        ledger: Where events go. By default a new one, in whose place the ledger of weights that
            were privately trained is continued.

    Attributes:
        samples: How the samples of steps are drawn.
        guards: Functions of (ledger, next event), called before each step; they may raise.
        error: What stopped the last step from being charged. A graph reports only the text of an
            error that is raised inside it; whoever runs the graph finds the error itself here.
        turn: Held by the thread that takes steps with this optimizer, outside of graphs.
        was_restored: Whether the file that was read last held a private optimizer's state.
        called_by_graphs: Functions that the graphs of steps call; see `distribution.on_host`.
    """

    def __init__(self, ledger: PrivacyLedger | None = None):
        self._is_chosen = ledger is not None
        self._ledger = PrivacyLedger() if ledger is None else ledger
        self.samples = SamplingOfSteps(self._ledger)
        self.guards: tuple[Guard, ...] = ()
        self.error: Exception | None = None
        self.turn = threading.RLock()
        self._writing = threading.RLock()  # Graphs write on threads of their own, during a turn.
        self._guarding = threading.RLock()
        self._blocks: list[_Block] = []  # Of temporary guards; the last is the innermost.
        self.was_restored = False
        self.called_by_graphs: list[Callable[..., Any]] = []

    def add_guard(self, guard: Guard) -> None:
        """Registers a function of (ledger, next event), called before each step; it may raise."""
        with self._guarding:
            self.guards = (*self.guards, guard)

    def remove_guard(self, guard: Guard) -> None:
        """Removes a function that `add_guard` registered, once: it may have been added again."""
        with self._guarding:
            if guard in self.guards:
                last = len(self.guards) - 1 - self.guards[::-1].index(guard)
                self.guards = self.guards[:last] + self.guards[last + 1 :]

    @contextlib.contextmanager
    def temporary_guards(self) -> Iterator[None]:
        """Removes at the end, also after an error, the guards that were added in the block.

        If a block that began later goes on, its guards must stay. It then removes those of both.
        """
        block = _Block(self.guards)
        self._blocks.append(block)
        try:
            yield
        finally:
            with self._guarding:
                place = self._blocks.index(block)
                del self._blocks[place]
                if place < len(self._blocks):
                    self._blocks[place].before = block.before
                else:
                    self.guards = tuple(guard for guard in self.guards if guard in block.before)

    def remembering(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context that keeps for `take_error` what is raised in it inside a graph."""
        return _Remember(self)

    def take_error(self) -> Exception | None:
        """Returns, once, the error that stopped a step inside a graph, before it was charged."""
        error, self.error = self.error, None
        return error

    @property
    def ledger(self) -> PrivacyLedger:
        """The ledger that the next step is written to."""
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: PrivacyLedger) -> None:
        if not isinstance(ledger, PrivacyLedger):
            raise TypeError(f"ledger must be a tfdp.PrivacyLedger. Received: ledger={ledger!r}.")
        self._continue(ledger)
        self._is_chosen = True

    def _continue(self, ledger: PrivacyLedger) -> None:
        self._ledger = ledger
        self.samples.continue_in(ledger)

    @property
    def _is_free(self) -> bool:
        """Whether nobody chose this ledger and nothing is in it."""
        return not (self._is_chosen or self._ledger.total_count)

    @property
    def is_unused(self) -> bool:
        """Whether nothing was charged, and nobody chose a ledger, a guard, or a sampling."""
        return self._is_free and not (self.guards or self.samples.is_declared)

    def join(self, variables: Sequence[Any]) -> None:
        """Makes sure that the ledger holds what was paid for the variables so far.

        Where nobody chose the ledger, and nothing is in it yet, the variables' own is continued.

        Raises:
            LedgerMismatchError: it does not, and is not to be replaced.
        """
        if ledger := self._joined(charges.charges_of(variables)):
            _logger.warning(
                "These weights were privately trained: their ledger, %s, of %d events, is "
                "continued.",
                ledger.ledger_id,
                ledger.total_count,
            )
            self._continue(ledger)

    def _joined(self, paid: Sequence[charges.Charge]) -> PrivacyLedger | None:
        """Returns the ledger to continue in place of this one, or None if this one holds
        everything.
        """
        if all(charge.is_held_by(self._ledger) for charge in paid):
            return None
        ledger = charges.common_ledger(paid) if self._is_free else None
        if ledger is None:
            raise LedgerMismatchError(charges.mismatch(paid, self._ledger))
        return ledger

    @contextlib.contextmanager
    def kept_unless_done(self) -> Iterator[None]:
        """Puts the previous ledger back if the block raises."""
        with self.samples.kept_unless_done(), contextlib.ExitStack() as undo:
            undo.callback(self._put_back, self._ledger, self._is_chosen)
            yield
            undo.pop_all()

    def _put_back(self, ledger: PrivacyLedger, is_chosen: bool) -> None:
        if ledger is not self._ledger:
            self._continue(ledger)  # Passes of a `fit` that goes on are numbered in it again.
        self._is_chosen = is_chosen

    def take_over(
        self, restored: Sequence[charges.Charge], variables: Sequence[Any]
    ) -> list[charges.Charge]:
        """Makes sure that the ledger holds what a file says was paid for its weights.

        Args:
            restored: From the file, with copies of the ledgers as they were.
            variables: Into which the weights were loaded.

        Returns:
            The charges, in the ledger that the next step is written to.

        Raises:
            LedgerMismatchError: it does not hold them, and is not to be replaced.
        """
        if self._is_free and len(restored) == 1:
            self._continue(restored[0].ledger)
        for ledger, position, fingerprint in restored:
            if not self._ledger.continues(ledger, position, fingerprint):
                raise LedgerMismatchError(
                    "This run's ledger does not continue the checkpoint's. Load the checkpoint "
                    "before training, leave `ledger` out of the optimizer's arguments, or set "
                    "`model.ledger` to the ledger of that run. "
                    f"Received: a ledger of {self._ledger.total_count} events, and a checkpoint's "
                    f"of {ledger.total_count}."
                )
        self.join(variables)
        return [charges.Charge(self._ledger, *place) for _, *place in restored]

    def commit(
        self,
        make_event: Callable[[], SampledEvent],
        variables: Sequence[Any],
        position: int,
        fingerprint: int,
        batch: Batch = Batch(),  # noqa: B008 - immutable
        others: Sequence[Any] = (),
    ) -> tuple[int, int]:
        """Writes the event of the step that is about to run, or raises.

        Args:
            make_event: Returns the event.
            variables: Those that the step will change.
            position: How many events the ledger held after the optimizer's last step.
            fingerprint: Which ledger that was; see `PrivacyLedger.watermark`.
            batch: What is known of the sample.
            others: Further variables that the step reads; what was paid for them must be in the
                ledger, too.

        Returns:
            Position and fingerprint after this step.

        Raises:
            LedgerMismatchError: the ledger does not hold the steps that the weights come from.
            NotPrivateError: the batch cannot be a sample as it was declared.
        """
        with self._writing, _Remember(self):
            self._write(make_event, variables, position, fingerprint, batch, others)
            return self._ledger.watermark()

    # Several processes that take every step together keep a ledger each.

    def try_commit(self, *arguments: Any) -> tuple[int, int, int]:
        """As `commit`, but returns a third number instead of raising: 0 where the step is refused,
        else one that stands for the event. `agree` compares the processes' numbers.

        Args:
            *arguments: Those of `commit`.
        """
        with self._writing, _Remember(self, raises=False):
            event = self._write(*arguments)
            return *self._ledger.watermark(), 1 + zlib.crc32(repr(event).encode())
        return 0, 0, 0

    def agree(self, codes: np.ndarray) -> tuple[int]:
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
        return (1,)

    def _write(
        self,
        make_event: Callable[[], SampledEvent],
        variables: Sequence[Any],
        position: int,
        fingerprint: int,
        batch: Batch = Batch(),  # noqa: B008 - immutable
        others: Sequence[Any] = (),
    ) -> SampledEvent:
        self.join([*variables, *others])
        last_step = charges.Charge(self._ledger, int(position), int(fingerprint))
        if not last_step.is_held_by(self._ledger):
            raise LedgerMismatchError(charges.mismatch([last_step], self._ledger))
        self.samples.check_size(batch)
        # No other thread may take the number of a pass that this event begins.
        with self._ledger.appending():
            event = make_event()
            try:
                self._ledger.append(event, permit=self._permit)
            except PassTakenError:
                # Another process took this number for a pass of its own. The ledger has read that
                # by now, so a new pass gets a number after it.
                self.samples.begin_pass_of(batch)
                event = make_event()
                self._ledger.append(event, permit=self._permit)
            self.samples.advance(batch, event.sampling)
        charges.paid(variables, charges.Charge(self._ledger, *self._ledger.watermark()))
        return event

    def _permit(self, ledger: PrivacyLedger, event: Event) -> int | None:
        ledger.check_unit(event)
        limits = [guard(ledger, event) for guard in self.guards]
        if event.run_start() is not None:
            limits.append(1)  # Every step of a run is an event of its own: none can be reserved.
        return min((limit for limit in limits if limit is not None), default=None)


class _Block:
    """A block with temporary guards.

    Attributes:
        before: The guards that stay after it.
    """

    def __init__(self, before: tuple[Guard, ...]):
        self.before = before


class _Remember:
    """Keeps whatever error is raised in the block as `Charging.error`, and raises it too, unless
    told not to.
    """

    def __init__(self, charging: Charging, raises: bool = True):
        self._charging = charging
        self._raises = raises

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self._charging.error = error
        return not self._raises and isinstance(error, Exception)
