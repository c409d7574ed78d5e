"""A Keras optimizer in which another one makes the updates."""

from typing import Any

import keras
import numpy as np

from tfdp.keras.inputs import check_learning_rate

# What Keras reads of the optimizer that makes the updates.
_OF_THE_INNER = {
    "clipnorm",
    "clipvalue",
    "ema_momentum",
    "ema_overwrite_frequency",
    "global_clipnorm",
    "gradient_accumulation_steps",
    "use_ema",
    "weight_decay",
}


class WrappingOptimizer(keras.optimizers.Optimizer):
    """What Keras expects of an optimizer that wraps another: abstract.

    Args:
        inner_optimizer: The optimizer that makes the updates and has the learning rate.
        loss_scale_factor: As in Keras.
        name: As in Keras.
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        *,
        loss_scale_factor: float | None = None,
        name: str | None = None,
    ):
        super().__init__(learning_rate=0.0, loss_scale_factor=loss_scale_factor, name=name)
        self.inner_optimizer = inner_optimizer

    @property
    def own_variables(self) -> list[Any]:
        """The variables that the inner optimizer does not have."""
        return super().variables

    @property
    def variables(self) -> list[Any]:
        return self.own_variables + self.inner_optimizer.variables

    @property
    def slots(self) -> list[Any]:
        """The variables of the inner optimizer that follow gradients: momenta, moments, averages of
        weights.
        """
        found = []
        for part in parts(self.inner_optimizer):
            others = part.iterations, part.learning_rate
            found += [v for v in part.variables if not any(v is other for other in others)]
        return found

    @property
    def learning_rate(self) -> Any:
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        check_learning_rate(learning_rate)
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        return self.inner_optimizer.iterations

    def exclude_from_weight_decay(
        self, var_list: list[Any] | None = None, var_names: list[str] | None = None
    ) -> None:
        for part in parts(self.inner_optimizer):
            part.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OF_THE_INNER and hasattr(self, "inner_optimizer"):
            raise AttributeError(
                f"{name} is the inner optimizer's, which makes the updates, and would be ignored "
                f"here. Give it to that one: keras.optimizers.Adam(..., {name}=...)."
            )
        if name == "inner_optimizer" and hasattr(self, name):
            raise AttributeError(
                "The inner optimizer cannot be replaced: steps that were traced before would go on "
                "with the old one. Make a new optimizer around the other one, and compile again, "
                "which continues the ledger."
            )
        super().__setattr__(name, value)

    def finalize_variable_values(self, var_list: list[Any]) -> None:
        self.inner_optimizer.finalize_variable_values(var_list)

    def save_own_variables(self, store: Any) -> None:
        for index, variable in enumerate(self.variables):
            store[str(index)] = variable.numpy()
        store["inner_optimizer"] = self._inner_name()

    def load_own_variables(self, store: Any) -> None:
        """Restores what `save_own_variables` wrote. A file of another kind of optimizer holds
        nothing of that, and changes nothing.

        Raises:
            ValueError: the file is of a wrapping optimizer that is not like this one.
        """
        if not is_of_wrapping(store):
            return
        if (
            not self.built
            or any(str(index) not in store.keys() for index in range(len(self.variables)))
            or str(len(self.variables)) in store.keys()
            or not np.array_equal(store["inner_optimizer"], self._inner_name())
        ):
            raise ValueError(
                "The checkpoint's optimizer does not match this one. Build the model, compile it "
                "with the same inner optimizer and query, call "
                "optimizer.build(model.trainable_variables), and load again."
            )
        for index, variable in enumerate(self.variables):
            variable.assign(store[str(index)])

    def _inner_name(self) -> np.ndarray:
        """Returns the class of the inner optimizer: others may have slots of the same shapes."""
        inner = self.inner_optimizer
        classes = [inner, *(part for part in parts(inner) if part is not inner)]
        names = " ".join(type(each).__name__ for each in classes)
        return np.frombuffer(names.encode(), np.uint8)


def parts(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizers that make the updates: those in a `keras.optimizers.MultiOptimizer`,
    and in one in it, else the optimizer itself.
    """
    # Earlier versions of Keras have none.
    kind = getattr(keras.optimizers, "MultiOptimizer", ())
    if not isinstance(optimizer, kind):
        return [optimizer]
    return [part for each in optimizer.optimizers for part in parts(each)]


def is_of_wrapping(store: Any) -> bool:
    """Returns whether a file's variables are those of a wrapping optimizer."""
    return "inner_optimizer" in store.keys()
