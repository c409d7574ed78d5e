"""The callbacks by which `fit` tells the optimizer where an epoch ends and a step begins."""

from typing import Any

import keras

from tfdp.keras.callbacks import EpsilonLogger, PrivacyBudget, epsilon_first
from tfdp.keras.optimizer import DPOptimizer
from tfdp.keras.sampling_of_steps import Fitting
from tfdp.keras.target import SaysBeyondTarget

# What Keras calls around every step.
_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
# Those of Keras and ours whose hooks do nothing by which it matters when they are called.
_LOOK_NOW_AND_THEN = (EpsilonLogger, PrivacyBudget, keras.callbacks.ProgbarLogger)
_SAVE = (keras.callbacks.BackupAndRestore, keras.callbacks.ModelCheckpoint)


class _PassEnds(keras.callbacks.Callback):
    """Tells the optimizer that the next epoch starts from the beginning of the data."""

    def __init__(self, optimizer: DPOptimizer, fit: Fitting):
        super().__init__()
        self._optimizer, self._fit = optimizer, fit

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._optimizer.charging.samples.end_epoch(self._fit)


class _StepBegins(keras.callbacks.Callback):
    """Tells the optimizer that the step that comes next is one of `fit`; the last callback.

    Args:
        optimizer: The model's.
        fit: What stands for this `fit` with the optimizer.
        others: The other callbacks.
    """

    def __init__(self, optimizer: DPOptimizer, fit: Fitting, others: list[Any]):
        super().__init__()
        self._optimizer, self._fit = optimizer, fit
        self._others, self._is_seen = others, True
        self._budgets = [each for each in others if isinstance(each, PrivacyBudget)]

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Others may have got their hooks when training or this epoch began.
        self._is_seen = any(map(_looks_at_steps, self._others))

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        steps = (self.params or {}).get("steps")
        # Where a callback said so before the step, Keras ends after it.
        is_next_seen = self._is_seen or steps is None or self.model.stop_training
        unseen = 1 if is_next_seen else steps - batch
        if unseen > 1:
            unseen = min([unseen, *(budget.steps_unseen() for budget in self._budgets)])
        self._optimizer.charging.samples.expect_step_of_fit(self._fit, unseen)


def with_callbacks_of_fit(callbacks: Any, optimizer: DPOptimizer, epochs: int, fit: Fitting) -> Any:
    """Returns the user's callbacks between those of `fit`: a list, or the `CallbackList` given.

    Args:
        callbacks: As given to `fit`.
        optimizer: The model's.
        epochs: How many are to come.
        fit: What stands for this `fit` with the optimizer.
    """
    is_list = isinstance(callbacks, keras.callbacks.CallbackList)
    given = callbacks.callbacks if is_list else keras.tree.flatten(callbacks or [])
    # A `CallbackList` that was given before still holds those of the `fit` before.
    given = [each for each in given if not isinstance(each, (_PassEnds, _StepBegins))]
    first: list[keras.callbacks.Callback] = [_PassEnds(optimizer, fit)]
    if optimizer.target is not None and not any(isinstance(c, PrivacyBudget) for c in given):
        first.append(SaysBeyondTarget(optimizer, epochs))
    found = [*first, *epsilon_first(given), _StepBegins(optimizer, fit, given)]
    if not is_list:
        return found
    callbacks.callbacks[:] = found
    return callbacks


def _looks_at_steps(callback: Any) -> bool:
    """Returns whether it may matter to a callback that steps after the one that it is called for
    were taken already.
    """
    kind = type(callback)
    if kind in _LOOK_NOW_AND_THEN or (kind in _SAVE and callback.save_freq == "epoch"):
        return False
    return any(
        hook in getattr(callback, "__dict__", {})
        or getattr(kind, hook, None) is not getattr(keras.callbacks.Callback, hook)
        for hook in _HOOKS
    )
