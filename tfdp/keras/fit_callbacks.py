"""The callbacks by which `fit` tells the optimizer where an epoch ends and a step begins."""

from typing import Any

import keras

from tfdp.keras.callbacks import epsilon_first
from tfdp.keras.optimizer import DPOptimizer


class _PassEnds(keras.callbacks.Callback):
    """Tells the optimizer that the next epoch starts from the beginning of the data."""

    def __init__(self, optimizer: DPOptimizer):
        super().__init__()
        self._optimizer = optimizer

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._optimizer.begin_pass()


class _StepBegins(keras.callbacks.Callback):
    """Tells the optimizer that the step that comes next is one of `fit`; the last callback."""

    def __init__(self, optimizer: DPOptimizer):
        super().__init__()
        self._optimizer = optimizer

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._optimizer.charging.samples.expect_step_of_fit()


def with_callbacks_of_fit(callbacks: Any, optimizer: DPOptimizer) -> Any:
    """Returns the user's callbacks between those of `fit`: a list, or the `CallbackList` given."""
    first, last = _PassEnds(optimizer), _StepBegins(optimizer)
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks[:] = [first, *epsilon_first(callbacks.callbacks), last]
        return callbacks
    others = epsilon_first([] if callbacks is None else keras.tree.flatten(callbacks))
    return [first, *others, last]
