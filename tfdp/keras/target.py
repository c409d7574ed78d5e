"""What an optimizer was calibrated to, and whether a `fit` keeps within it."""

import logging
from typing import Any, NamedTuple

import keras

from tfdp.accounting.registry import AccountantChoice, replayed
from tfdp.events import Event, UnsupportedEventError
from tfdp.events.shown import shown_up
from tfdp.ledger import PrivacyLedger

_logger = logging.getLogger("tfdp")

# By so much, relatively, a run that was calibrated may exceed its target: numbers are rounded.
_ROUNDING = 1e-6


class Target(NamedTuple):
    """A budget that noise was calibrated to.

    Attributes:
        epsilon: Of a whole run.
        delta: Likewise.
        accountant: By which.
    """

    epsilon: float
    delta: float
    accountant: AccountantChoice

    def exceeded_by(
        self, ledger: PrivacyLedger, event: Event | None = None, count: int = 0
    ) -> float | None:
        """Returns what a ledger costs with so many events more, or None where that is within.

        Raises:
            UnsupportedEventError: the accountant has no price for it.
        """
        entries = ledger if event is None else [*ledger, (event, count)]
        epsilon = float(replayed(entries, self.accountant).get_epsilon(self.delta))
        return None if epsilon <= self.epsilon * (1 + _ROUNDING) else epsilon


class SaysBeyondTarget(keras.callbacks.Callback):
    """Logs a warning where `fit` goes beyond what the optimizer was calibrated to: before it does,
    where samples are drawn independently, else afterwards.

    Args:
        optimizer: The `DPOptimizer`.
        epochs: How many are to come; none or fewer where `fit` has nothing to do.
    """

    def __init__(self, optimizer: Any, epochs: int):
        super().__init__()
        self._optimizer, self._epochs = optimizer, epochs
        self._has_said = epochs < 1

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._has_said:
            return
        steps, event = self.params.get("steps"), self._optimizer.next_event()
        # Events of passes differ from pass to pass, and those of a run are priced as a whole.
        independent = self._optimizer.charging.samples.are_independent
        if steps and independent and event.run_start() is None:
            self._say("would end at", event, steps * self._epochs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if not self._has_said:
            self._say("ended at")

    def _say(self, when: str, event: Event | None = None, count: int = 0) -> None:
        target, ledger = self._optimizer.target, self._optimizer.ledger
        try:
            epsilon = target.exceeded_by(ledger, event, count)
        except UnsupportedEventError as error:
            self._has_said = True
            _logger.warning("The target of for_budget says nothing of this fit. %s", error)
            return
        if epsilon is not None:
            self._has_said = True
            _logger.warning(
                "This fit %s epsilon=%s at delta=%r, the whole ledger with it, and the optimizer "
                "was made for epsilon=%r: these are not the steps that its noise was computed for. "
                "tfdp.keras.PrivacyBudget among the callbacks stops a run before that.",
                when,
                shown_up(epsilon),
                target.delta,
                target.epsilon,
            )
