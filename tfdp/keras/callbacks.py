"""Callbacks that know the ledger."""

import abc
import dataclasses
import logging
import math
import time
from collections.abc import Hashable
from typing import Any

import keras

from tfdp.accounting.planning.budget import check_budget, check_price, kind_of
from tfdp.accounting.planning.target_delta import delta_warning, largest_population
from tfdp.accounting.registry import DEFAULT_ACCOUNTANT, AccountantChoice, check_proven
from tfdp.accounting.spent import Spent
from tfdp.events import Event
from tfdp.keras.errors import NotPrivateError, PrivacyBudgetExceededError
from tfdp.keras.optimizer import DPOptimizer
from tfdp.ledger import PrivacyLedger

_logger = logging.getLogger("tfdp")

# Which share of the time of training goes to epsilon within epochs, and after how long it is
# computed there for the first time.
_LARGEST_PART = 0.005
_FIRST_SECONDS = 1.0


def epsilon_first(callbacks: list[keras.callbacks.Callback]) -> list[keras.callbacks.Callback]:
    """Returns the callbacks, those first whose logs the others should see.

    Raises:
        ValueError: two of them write the same key.
    """
    names = [callback.log_name for callback in callbacks if isinstance(callback, LogsEpsilon)]
    if len(set(names)) < len(names):
        raise ValueError(
            f"Several callbacks write an epsilon to the same key of the logs: {names}. "
            "PrivacyBudget writes 'epsilon' by itself; give an EpsilonLogger beside it another "
            "name."
        )
    return sorted(callbacks, key=lambda callback: not isinstance(callback, LogsEpsilon))


class LogsEpsilon(keras.callbacks.Callback, abc.ABC):
    """The common part of callbacks that write an epsilon to the logs.

    Attributes:
        log_name: The key in the logs.
    """

    log_name: str

    @abc.abstractmethod
    def __init__(
        self, target_delta: float, accountant: AccountantChoice, log_name: str = "epsilon"
    ):
        super().__init__()
        _, self._target_delta = check_budget(1.0, target_delta)
        self._accountant = accountant
        self._spent = Spent(accountant)
        self.log_name = log_name

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        # Metrics that were never computed are not in the logs, and Keras cannot name them.
        built = all(getattr(metric, "built", True) for metric in self.model.metrics)
        if built and self.log_name in self.model.get_metrics_result():
            raise ValueError(
                f"The model has a metric {self.log_name!r}, the key of the logs under which "
                f"{type(self).__name__} writes the epsilon. Rename the metric."
            )
        population = largest_population([self._optimizer().next_event()])
        if (problem := delta_warning(self._target_delta, population)) is not None:
            _logger.warning("%s.", problem)

    def _optimizer(self) -> DPOptimizer:
        if not isinstance(self.model.optimizer, DPOptimizer):
            raise NotPrivateError(
                f"{type(self).__name__} needs a model compiled with a tfdp.keras.DPOptimizer. "
                f"Received: optimizer={self.model.optimizer!r}."
            )
        return self.model.optimizer

    def _log(self, logs: dict[str, float] | None) -> None:
        if logs is None:
            return
        if self.log_name in logs:
            raise ValueError(
                f"Another callback wrote {self.log_name!r} to the logs. Name the epsilon "
                "otherwise: EpsilonLogger(..., name='epsilon_spent')."
            )
        logs[self.log_name] = self._spent.epsilon(self._optimizer().ledger, self._target_delta)


class EpsilonLogger(LogsEpsilon):
    """Adds the epsilon spent so far to the logs of every epoch, and to the progress bar meanwhile.

    So it is in `History` and in what `TensorBoard` and `CSVLogger` write, wherever they stand in
    the list of callbacks: `fit` of a private model runs this one first. In a loop that calls a
    `keras.callbacks.CallbackList` itself, put it before them.

    Guarantees:
        The epsilon is that of the whole ledger, earlier runs that it holds included, when the logs
        are written. An accountant that refuses the steps says so when training begins.

    Edge cases:
        Only what came since the last time is composed. Within an epoch, epsilon is computed only as
        often as takes less than 0.5 % of the time. It is then in the logs of these steps, and the
        progress bar shows the last one. `benchmarks/callback_cost.py` measures both.

    Args:
        target_delta: In (0, 1).
        accountant: A name in `tfdp.accounting.ACCOUNTANTS`, a class or an empty accountant.
            "rdp" takes less time than the default, "prv", and gives a larger epsilon.
        within_epochs: Whether to show it within epochs, too.
        name: The key in the logs.

    Raises:
        ValueError: an argument is out of range.
        TypeError: an argument is of the wrong type.

    Example:
        >>> callback = EpsilonLogger(target_delta=1e-5)
        >>> callback.log_name
        'epsilon'
    """

    def __init__(
        self,
        target_delta: float,
        accountant: AccountantChoice = DEFAULT_ACCOUNTANT,
        within_epochs: bool = True,
        name: str = "epsilon",
    ):
        super().__init__(target_delta, accountant, name)
        if not isinstance(name, str) or not name:
            raise TypeError(f"name must be text. Received: name={name!r}.")
        if not isinstance(within_epochs, bool):
            raise TypeError(
                f"within_epochs must be True or False. Received: within_epochs={within_epochs!r}."
            )
        self._within_epochs = within_epochs
        self._due = math.inf  # When epsilon may be computed within an epoch.

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        optimizer = self._optimizer()
        check_price(optimizer.ledger, optimizer.next_event(), self._accountant)
        self._due = time.perf_counter() + _FIRST_SECONDS

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._within_epochs and time.perf_counter() >= self._due:
            self._log(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._log(logs)

    def _log(self, logs):
        begin = time.perf_counter()
        super()._log(logs)
        end = time.perf_counter()
        self._due = end + (end - begin) * (1 / _LARGEST_PART - 1)


@dataclasses.dataclass(eq=False)
class _Planned:
    """How many more steps of a kind a ledger affords, as long as nothing else is written to it.

    Attributes:
        ledger: The ledger.
        revision: The ledger's, when it was asked.
        position: Likewise, how many events it held.
        kind: What the steps cost (`kind_of`).
        affordable: So many further ones were affordable then.
        permitted: So many were permitted since.
        last: The one that was permitted last.
    """

    ledger: PrivacyLedger
    revision: int
    position: int
    kind: Hashable
    affordable: int
    permitted: int = 0
    last: Event | None = None

    def holds(self, ledger: PrivacyLedger, event: Event) -> bool:
        """Whether nothing but what was permitted came since, and the event is of the kind."""
        # Another run that writes to the same ledger may have written an event that costs more.
        return (
            ledger is self.ledger
            and ledger.revision == self.revision
            and ledger.total_count == self.position + self.permitted
            and (self.last is None or ledger.ends_with(self.last, 1))
            and (event == self.last or kind_of(event) == self.kind)
        )


def _more(steps: int) -> str:
    return "one more step" if steps == 1 else f"{steps} more steps, which run as one"


class PrivacyBudget(LogsEpsilon):
    """Stops training before the step that would spend more than (target_epsilon, target_delta).

    The whole ledger counts, earlier runs that it holds included. The epsilon spent so far is added
    to the logs of every epoch as "epsilon", as by `EpsilonLogger`.

    Guarantees:
        A step that would exceed the budget is not run: `fit` ends before it, and should anything
        try to run it all the same, it is refused with `PrivacyBudgetExceededError`.

    Args:
        target_epsilon: The most that may be spent; positive.
        target_delta: In (0, 1).
        accountant: Decides; a name in `tfdp.accounting.ACCOUNTANTS`, a class or an empty
            accountant. The default is that of `DPOptimizer.for_budget`, so that a run that was
            calibrated to a budget runs all its steps within it.

    Raises:
        ValueError: a target is out of range.
    """

    def __init__(
        self,
        target_epsilon: float,
        target_delta: float,
        accountant: AccountantChoice = DEFAULT_ACCOUNTANT,
    ):
        super().__init__(target_delta, accountant)
        check_proven(accountant)
        self._target_epsilon, _ = check_budget(target_epsilon, target_delta)
        self._planned: _Planned | None = None
        self._has_said = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        optimizer = self._optimizer()
        self._planned, self._has_said = None, False
        optimizer.charging.add_guard(self._guard)
        needed = self._next_together(0)
        if self._affordable(optimizer.ledger, optimizer.next_event(), needed) < needed:
            optimizer.charging.remove_guard(self._guard)
            raise PrivacyBudgetExceededError(
                f"The budget of epsilon={self._target_epsilon} at delta={self._target_delta} does "
                f"not cover {_more(needed)}: {optimizer.ledger.total_count} steps are spent. Raise "
                "the budget or the noise, or sample fewer."
            )

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._stop_if_spent(batch + 1)

    def _next_together(self, taken: int) -> int:
        """Returns how many steps the next call takes, after so many of an epoch."""
        steps = self.params.get("steps") or math.inf
        # Keras counts an execution that an epoch cuts short as if it were whole.
        left = steps - min(taken, steps) or steps
        return int(min(self.model.steps_per_execution, left))

    def _stop_if_spent(self, taken: int) -> None:
        optimizer, needed = self._optimizer(), self._next_together(taken)
        if self._affordable(optimizer.ledger, optimizer.next_event(), needed) < needed:
            self.model.stop_training = True
            if not self._has_said:
                self._has_said = True
                _logger.warning(
                    "The budget of epsilon=%g at delta=%g is spent after %d steps: it does not "
                    "cover %s. fit() ends.",
                    self._target_epsilon,
                    self._target_delta,
                    optimizer.ledger.total_count,
                    _more(needed),
                )

    def steps_unseen(self) -> int:
        """Returns how many steps `fit` may take before this looks whether there may be another.

        Half of those that the budget affords: others may write to the ledger meanwhile.
        """
        optimizer = self._optimizer()
        if not optimizer.steps_are_alike:
            return 1
        return max(1, self._affordable(optimizer.ledger, optimizer.next_event(), 1) // 2)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._log(logs)
        self._stop_if_spent(0)  # The next epoch may begin a new pass, whose steps cost more.

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._optimizer().charging.remove_guard(self._guard)

    def _guard(self, ledger: PrivacyLedger, event: Event) -> int:
        affordable = self._affordable(ledger, event, 1)
        if affordable >= 1 and self._planned is not None:
            self._planned.permitted += 1
            self._planned.last = event
        if affordable < 1:
            raise PrivacyBudgetExceededError(
                f"The next step would spend more than epsilon={self._target_epsilon} at "
                f"delta={self._target_delta}; {ledger.total_count} steps are spent."
            )
        return affordable

    def _affordable(self, ledger: PrivacyLedger, event: Event, needed: int) -> int:
        """Returns how many more times `event` fits in the budget (2^40 is as good as always).

        Of a step of a run, which is an event of its own, not more than `needed` are counted.
        """
        if event.run_start() is not None:
            self._planned = None  # What was planned did not count this step.
            return self._spent.affordable_events(
                ledger, event, self._target_epsilon, self._target_delta, needed
            )
        plan = self._planned
        if plan is not None and plan.holds(ledger, event) and plan.permitted < plan.affordable:
            return plan.affordable - plan.permitted
        affordable = self._spent.affordable_events(
            ledger, event, self._target_epsilon, self._target_delta
        )
        self._planned = _Planned(
            ledger, ledger.revision, ledger.total_count, kind_of(event), affordable
        )
        return affordable
