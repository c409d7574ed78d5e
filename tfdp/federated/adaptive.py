"""The server's adaptive optimizers of Reddi et al.: FedAdagrad, FedAdam and FedYogi."""

import abc
from typing import Any

import keras
from keras import ops

from tfdp.events.arguments import real_number
from tfdp.gradients.keras_internals import index_of


class _Adaptive(keras.optimizers.Optimizer, abc.ABC):
    """m' = beta_1 m + (1 - beta_1) g;  w' = w - learning_rate m' / (sqrt(v') + epsilon), where v'
    is what a subclass makes of v and g^2. There is no bias correction.
    """

    beta_1: float
    epsilon: float
    initial_accumulator_value: float

    def _set_common(self, beta_1: float, epsilon: float, start: float | None) -> None:
        self.beta_1 = _decay("beta_1", beta_1)
        self.epsilon = real_number("epsilon", epsilon, minimum=0, inclusive=False)
        value = self.epsilon**2 if start is None else start
        self.initial_accumulator_value = real_number(
            "initial_accumulator_value", value, minimum=0, inclusive=True
        )

    def build(self, variables: list[Any]) -> None:
        """Creates the moments."""
        if self.built:
            return
        super().build(variables)
        start = keras.initializers.Constant(self.initial_accumulator_value)
        self._momentums = [self.add_variable_from_reference(v, "momentum") for v in variables]
        self._velocities = [
            self.add_variable_from_reference(v, "velocity", initializer=start) for v in variables
        ]

    @abc.abstractmethod
    def _second_moment(self, velocity: Any, square: Any) -> Any:
        """Returns v' from v and g^2."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        index = index_of(self, variable)
        momentum, velocity = self._momentums[index], self._velocities[index]
        rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        self.assign(momentum, self.beta_1 * momentum + (1 - self.beta_1) * gradient)
        self.assign(velocity, self._second_moment(velocity, ops.square(gradient)))
        self.assign_sub(variable, rate * momentum / (ops.sqrt(velocity) + self.epsilon))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        names = ("beta_1", "beta_2", "epsilon", "initial_accumulator_value")
        own = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return {**super().get_config(), **own}


def _decay(name: str, value: float) -> float:
    decay = real_number(name, value, minimum=0, inclusive=True)
    if decay >= 1:
        raise ValueError(f"{name} must be at least 0 and below 1. Received: {name}={value!r}.")
    return decay


@keras.saving.register_keras_serializable("tfdp")
class FedAdagrad(_Adaptive):
    """FedAdagrad: the second moment is the sum of all squares.

        m' = beta_1 m + (1 - beta_1) g
        v' = v + g^2
        w' = w - learning_rate m' / (sqrt(v') + epsilon)

    Keras' Adagrad has no m, begins with v = 0.1, and divides by sqrt(v' + epsilon).

    Args:
        learning_rate: A number or a schedule.
        beta_1: Decay of the first moment; in [0, 1). The paper's experiments have 0.
        epsilon: tau of the paper; positive.
        initial_accumulator_value: v before the first step; at least 0. By default epsilon^2.
        name: Name of the optimizer.
        **kwargs: As in Keras.

    Raises:
        ValueError: a number is out of range.

    References:
        Reddi et al. 2021, arXiv:2003.00295, algorithm 2.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        beta_1: float = 0.0,
        epsilon: float = 1e-3,
        initial_accumulator_value: float | None = None,
        name: str = "fed_adagrad",
        **kwargs: Any,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self._set_common(beta_1, epsilon, initial_accumulator_value)

    def _second_moment(self, velocity: Any, square: Any) -> Any:
        return velocity + square


@keras.saving.register_keras_serializable("tfdp")
class FedAdam(_Adaptive):
    """FedAdam: Adam without bias correction, whose second moment begins at epsilon^2.

        m' = beta_1 m + (1 - beta_1) g
        v' = beta_2 v + (1 - beta_2) g^2
        w' = w - learning_rate m' / (sqrt(v') + epsilon)

    Keras' Adam begins with v = 0, and multiplies the learning rate by
    sqrt(1 - beta_2^t) / (1 - beta_1^t) in step t.

    Args:
        learning_rate: A number or a schedule.
        beta_1: Decay of the first moment; in [0, 1).
        beta_2: Decay of the second moment; in [0, 1).
        epsilon: tau of the paper; positive.
        initial_accumulator_value: v before the first step; at least 0. By default epsilon^2.
        name: Name of the optimizer.
        **kwargs: As in Keras.

    Raises:
        ValueError: a number is out of range.

    References:
        Reddi et al. 2021, arXiv:2003.00295, algorithm 2.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        epsilon: float = 1e-3,
        initial_accumulator_value: float | None = None,
        name: str = "fed_adam",
        **kwargs: Any,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self._set_common(beta_1, epsilon, initial_accumulator_value)
        self.beta_2 = _decay("beta_2", beta_2)

    def _second_moment(self, velocity: Any, square: Any) -> Any:
        return self.beta_2 * velocity + (1 - self.beta_2) * square


@keras.saving.register_keras_serializable("tfdp")
class FedYogi(_Adaptive):
    """FedYogi: the second moment grows and shrinks by steps of one size.

        m' = beta_1 m + (1 - beta_1) g
        v' = v - (1 - beta_2) g^2 sign(v - g^2)
        w' = w - learning_rate m' / (sqrt(v') + epsilon)

    Where g^2 is suddenly small, Adam's v forgets in proportion to itself, and Yogi's by no more
    than (1 - beta_2) g^2.

    Args:
        learning_rate: A number or a schedule.
        beta_1: Decay of the first moment; in [0, 1).
        beta_2: Decay of the second moment; in [0, 1).
        epsilon: tau of the paper; positive.
        initial_accumulator_value: v before the first step; at least 0. By default epsilon^2.
        name: Name of the optimizer.
        **kwargs: As in Keras.

    Raises:
        ValueError: a number is out of range.

    References:
        Zaheer et al. 2018 (NeurIPS), algorithm 2; Reddi et al. 2021, arXiv:2003.00295, algorithm 2.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        epsilon: float = 1e-3,
        initial_accumulator_value: float | None = None,
        name: str = "fed_yogi",
        **kwargs: Any,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self._set_common(beta_1, epsilon, initial_accumulator_value)
        self.beta_2 = _decay("beta_2", beta_2)

    def _second_moment(self, velocity: Any, square: Any) -> Any:
        return velocity - (1 - self.beta_2) * square * ops.sign(velocity - square)
