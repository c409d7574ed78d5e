"""The callbacks by which `fit` tells the optimizer where an epoch ends and a step begins."""

from typing import Any

import keras

from tfdp.keras.callbacks import PrivacyBudget, epsilon_first
from tfdp.keras.optimizer import DPOptimizer
from tfdp.keras.sampling_of_steps import Fitting
from tfdp.keras.target import SaysBeyondTarget


class _PassEnds(keras.callbacks.Callback):
    """Tells the optimizer that the next epoch starts from the beginning of the data."""

    def __init__(self, optimizer: DPOptimizer, fit: Fitting):
        super().__init__()
        self._optimizer, self._fit = optimizer, fit

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._optimizer.charging.samples.end_epoch(self._fit)


class _StepBegins(keras.callbacks.Callback):
    """Tells the optimizer that the step that comes next is one of `fit`; the last callback."""

    def __init__(self, optimizer: DPOptimizer, fit: Fitting):
        super().__init__()
        self._optimizer, self._fit = optimizer, fit

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._optimizer.charging.samples.expect_step_of_fit(self._fit)


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
    found = [*first, *epsilon_first(given), _StepBegins(optimizer, fit)]
    if not is_list:
        return found
    callbacks.callbacks[:] = found
    return callbacks
