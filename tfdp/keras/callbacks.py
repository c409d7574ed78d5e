"""Callbacks that know the ledger."""

import math
from collections.abc import Callable

import keras

from tfdp.accounting import Accountant, RDPAccountant
from tfdp.keras.errors import NotPrivateError, PrivacyBudgetExceededError
from tfdp.keras.optimizer import DPOptimizer
from tfdp.ledger import PrivacyLedger
from tfdp.ledger.events import Event, real_number


class PrivacyBudget(keras.callbacks.Callback):
    """Stops training before the step that would spend more than (target_epsilon, target_delta).

    The whole ledger counts, earlier runs that it holds included. The epsilon spent so far is added
    to the logs of every epoch as "epsilon".

    Guarantees:
        A step that would exceed the budget is not run: `fit` ends before it, and should anything
        try to run it all the same, it is refused with `PrivacyBudgetExceededError`.

    Args:
        target_epsilon: The most that may be spent; positive.
        target_delta: In (0, 1).
        accountant: Makes the accountant that decides; `tfdp.accounting.RDPAccountant` by default.

    Raises:
        ValueError: a target is out of range.
    """

    def __init__(
        self,
        target_epsilon: float,
        target_delta: float,
        accountant: Callable[[], Accountant] = RDPAccountant,
    ):
        super().__init__()
        self._target_epsilon = real_number(
            "target_epsilon", target_epsilon, minimum=0, inclusive=False
        )
        self._target_delta = real_number(
            "target_delta", target_delta, minimum=0, inclusive=False, maximum=1
        )
        if self._target_delta == 1:
            raise ValueError("target_delta must be less than 1. Received: target_delta=1.")
        if not callable(accountant):
            raise TypeError(
                "accountant must be something that makes one, such as the class "
                f"tfdp.accounting.RDPAccountant. Received: accountant={accountant!r}."
            )
        self._make_accountant = accountant
        self._planned = None  # (event, ledger, its length, affordable further steps at that point)

    def on_train_begin(self, logs=None):
        optimizer = self._optimizer()
        self._planned = None
        optimizer.add_guard(self._guard)
        needed = min(self.model.steps_per_execution, self.params.get("steps") or math.inf)
        if self._affordable(optimizer.ledger, optimizer.next_event()) < needed:
            optimizer.remove_guard(self._guard)
            steps = "one more step" if needed == 1 else f"{needed} more steps, which run as one"
            raise PrivacyBudgetExceededError(
                f"The budget of epsilon={self._target_epsilon} at delta={self._target_delta} does "
                f"not cover {steps}: {optimizer.ledger.total_count} steps are spent. Raise the "
                "budget or the noise, or sample fewer."
            )

    def on_train_batch_end(self, batch, logs=None):
        self._stop_if_spent()

    def _stop_if_spent(self):
        optimizer = self._optimizer()
        if (
            self._affordable(optimizer.ledger, optimizer.next_event())
            < self.model.steps_per_execution
        ):
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["epsilon"] = self._epsilon(self._optimizer().ledger)
        self._stop_if_spent()  # The next epoch may begin a new pass, whose steps cost more.

    def on_train_end(self, logs=None):
        self._optimizer().remove_guard(self._guard)

    def _optimizer(self) -> DPOptimizer:
        if not isinstance(self.model.optimizer, DPOptimizer):
            raise NotPrivateError(
                "PrivacyBudget needs a model compiled with a tfdp.keras.DPOptimizer. "
                f"Received: optimizer={self.model.optimizer!r}."
            )
        return self.model.optimizer

    def _guard(self, ledger: PrivacyLedger, event: Event) -> None:
        if self._affordable(ledger, event) < 1:
            raise PrivacyBudgetExceededError(
                f"The next step would spend more than epsilon={self._target_epsilon} at "
                f"delta={self._target_delta}; {ledger.total_count} steps are spent."
            )

    def _epsilon(self, ledger: PrivacyLedger, event: Event | None = None, count: int = 0) -> float:
        accountant = ledger.replay(self._make_accountant())
        if count:
            accountant.compose(event, count)
        return accountant.get_epsilon(self._target_delta)

    def _affordable(self, ledger: PrivacyLedger, event: Event) -> int:
        """Returns how many more times `event` fits in the budget (2^40 is as good as always)."""
        if self._planned is not None:
            planned, planned_ledger, position, steps = self._planned
            since = ledger.total_count - position
            entries = list(ledger)
            # Whoever else writes to the ledger may have written something dearer.
            as_planned = since == 0 or (entries[-1].event == event and entries[-1].count >= since)
            if planned_ledger is ledger and planned == event and as_planned and steps > since:
                return steps - since
        low, high = 0, 1
        while high < 2**40 and self._fits(ledger, event, high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(ledger, event, middle) else (low, middle)
        self._planned = (event, ledger, ledger.total_count, low)
        return low

    def _fits(self, ledger: PrivacyLedger, event: Event, count: int) -> bool:
        return self._epsilon(ledger, event, count) <= self._target_epsilon
