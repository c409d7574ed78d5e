"""Adam that takes the variance of the privacy noise off its second moment."""

from typing import Any

import keras
from keras import ops

from tfdp.events.arguments import real_number
from tfdp.gradients.keras_internals import index_of
from tfdp.keras.serialization import PACKAGE
from tfdp.query import AutomaticClippingSumQuery, GaussianSumQuery, NormalizedQuery
from tfdp.query.dp_query import DPQuery


@keras.saving.register_keras_serializable(PACKAGE)
class AdamBC(keras.optimizers.Optimizer):
    """Adam with a bias correction for the noise in private gradients.

        update = learning_rate * m_t / sqrt(max(v_t - noise_stddev^2, floor))

    where m_t and v_t are Adam's moments of the noised gradients, divided by 1 - beta^t. The noise
    adds its variance to the second moment of every coordinate. Where it is larger than the
    gradients, Adam divides all coordinates by about the same number, and is no more than SGD with
    momentum. Without the variance of the noise the second moment is that of the gradients again.

    Guarantees:
        It sees private gradients only, so it costs nothing.

    Edge cases:
        Where gradients are far below the noise, the corrected moment is mostly error and falls
        below `floor`: there a coordinate moves by learning_rate * m_t / sqrt(floor). A floor that
        is too small makes such steps long.

    Args:
        learning_rate: As in `keras.optimizers.Adam`.
        beta_1: Likewise.
        beta_2: Likewise.
        noise_stddev: Standard deviation of the noise in every coordinate of the gradient, that is,
            after the division by the batch size; or None: `DPOptimizer` sets that of its query.
        floor: The smallest second moment, positive. The paper tunes it between 1e-10 and 1e-6.
        name: As in `keras.optimizers.Adam`.
        **kwargs: Others of `keras.optimizers.Optimizer` (`weight_decay`, `use_ema`, ...).

    Raises:
        TypeError: an argument is not a number.
        ValueError: an argument is out of range.

    Example:
        >>> import tfdp
        >>> query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=2.0, denominator=100)
        >>> optimizer = tfdp.keras.DPOptimizer(AdamBC(0.01), query)
        >>> optimizer.inner_optimizer.noise_stddev
        0.02

    References:
        Tang, Shpilevskiy and Lecuyer 2023, DP-AdamBC, arXiv:2312.14334, algorithm 1.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        *,
        noise_stddev: float | None = None,
        floor: float = 5e-8,
        name: str = "adam_bc",
        **kwargs: Any,
    ):
        if noise_stddev is not None:
            noise_stddev = real_number("noise_stddev", noise_stddev, minimum=0, inclusive=True)
        betas = {"minimum": 0, "inclusive": True, "maximum": 1}
        super().__init__(learning_rate, name=name, **kwargs)
        self.beta_1 = real_number("beta_1", beta_1, **betas)
        self.beta_2 = real_number("beta_2", beta_2, **betas)
        self.noise_stddev = noise_stddev
        self.floor = real_number("floor", floor, minimum=0, inclusive=False)

    def take_noise_of(self, query: DPQuery) -> None:
        """Sets `noise_stddev` to that of the query's result, where it is not set.

        Raises:
            ValueError: the query's coordinates do not all have one noise that stays.
        """
        if self.noise_stddev is None:
            self.noise_stddev = _noise_of_result(query)

    def build(self, var_list: list[Any]) -> None:
        if self.noise_stddev is None:
            raise ValueError(
                "AdamBC does not know the noise in its gradients. Wrap it in a "
                "tfdp.keras.DPOptimizer, or give noise_stddev."
            )
        if self.built:
            return
        super().build(var_list)
        self._first, self._second = self.add_optimizer_variables(var_list, ["momentum", "velocity"])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        dtype = variable.dtype
        gradient = ops.cast(gradient, dtype)
        step = ops.cast(self.iterations + 1, dtype)
        index = index_of(self, variable)
        m, v = self._first[index], self._second[index]
        self.assign_add(m, (gradient - m) * (1 - self.beta_1))
        self.assign_add(v, (ops.square(gradient) - v) * (1 - self.beta_2))
        first = m / (1 - ops.power(ops.cast(self.beta_1, dtype), step))
        second = v / (1 - ops.power(ops.cast(self.beta_2, dtype), step))
        corrected = ops.maximum(second - self.noise_stddev**2, self.floor)
        self.assign_sub(variable, ops.cast(learning_rate, dtype) * first / ops.sqrt(corrected))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "noise_stddev": self.noise_stddev,
            "floor": self.floor,
        }


def _noise_of_result(query: DPQuery) -> float:
    """Returns the standard deviation of the noise in every coordinate of a query's result."""
    if isinstance(query, NormalizedQuery):
        return _noise_of_result(query.numerator_query) / query.denominator
    if isinstance(query, (AutomaticClippingSumQuery, GaussianSumQuery)):
        return query.stddev
    raise ValueError(
        f"The noise of a {type(query).__name__} is not one number for all coordinates and steps, "
        "as far as AdamBC knows. Give it: AdamBC(noise_stddev=...)."
    )
