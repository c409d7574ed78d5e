"""Adam whose second moment grows and shrinks by steps of one size."""

from typing import Any

import keras
from keras import ops

from tfdp.events.arguments import real_number
from tfdp.gradients.keras_internals import index_of


@keras.saving.register_keras_serializable("tfdp")
class Yogi(keras.optimizers.Optimizer):
    """Yogi; at the server of `tfdp.federated` it is FedYogi.

        m' = beta_1 m + (1 - beta_1) g
        v' = v - (1 - beta_2) g^2 sign(v - g^2)
        w' = w - learning_rate m' / (sqrt(v') + epsilon)

    There is no bias correction. Where g^2 is suddenly small, Adam's v forgets in proportion to
    itself, and Yogi's by no more than (1 - beta_2) g^2.

    Args:
        learning_rate: A number or a schedule.
        beta_1: Decay of the first moment; in [0, 1).
        beta_2: Decay of the second moment; in [0, 1).
        epsilon: tau of the paper; positive.
        initial_accumulator_value: v before the first step; at least 0. By default epsilon^2, as in
            the paper.
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
        name: str = "yogi",
        **kwargs: Any,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.beta_1 = real_number("beta_1", beta_1, minimum=0, inclusive=True, maximum=1 - 1e-9)
        self.beta_2 = real_number("beta_2", beta_2, minimum=0, inclusive=True, maximum=1 - 1e-9)
        self.epsilon = real_number("epsilon", epsilon, minimum=0, inclusive=False)
        value = self.epsilon**2 if initial_accumulator_value is None else initial_accumulator_value
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

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        index = index_of(self, variable)
        momentum, velocity = self._momentums[index], self._velocities[index]
        rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        self.assign(momentum, self.beta_1 * momentum + (1 - self.beta_1) * gradient)
        square = ops.square(gradient)
        self.assign_sub(velocity, (1 - self.beta_2) * square * ops.sign(velocity - square))
        self.assign_sub(variable, rate * momentum / (ops.sqrt(velocity) + self.epsilon))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        names = ("beta_1", "beta_2", "epsilon", "initial_accumulator_value")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
