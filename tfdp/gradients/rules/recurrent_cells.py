"""What a step of SimpleRNN, LSTM, GRU and ConvLSTM does with the states, and its way back."""

import abc
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.gradients.rules.state_product import StateProduct, parts_first

Activation = Callable[[tf.Tensor], tf.Tensor]


class Cell(abc.ABC):
    """What happens at a step, given `sums`, which do not depend on the states.

    Below, `sums` are those of one step, or of all of them, with the axis of steps in front; u is
    the number of units. Those of a convolution have spatial axes in front of the last one.

    Attributes:
        activation: An elementwise function. (Only `step` takes others, along the last axis.)
        recurrent_activation: Likewise; None where the cell has none.
    """

    # For how many parts of the recurrent kernel each product with it is; None: one, for all.
    parts_of_products: tuple[int, ...] | None = None
    # How many tensors of the same width `step` keeps.
    number_kept = 1
    # Whether `factors` is called for one step at a time.
    by_step = False

    def __init__(self, activation: Activation, recurrent_activation: Activation | None = None):
        self.activation, self.recurrent_activation = activation, recurrent_activation

    @abc.abstractmethod
    def step(
        self, sums: tf.Tensor, products: Sequence[StateProduct], states: Sequence[tf.Tensor]
    ) -> tuple:
        """Takes a step.

        Args:
            sums: [n, parts * u].
            products: With the recurrent kernel.
            states: The output before, and what else there is, each [n, u].

        Returns:
            (the states after the step, the tensors that `factors` needs as `kept`, together as
            wide as the recurrent kernel).
        """

    @abc.abstractmethod
    def factors(
        self,
        sums: tf.Tensor,
        kept: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        after: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Returns the factors of `back` for all steps, or for one (t = 1), each [t, n, ...].

        Args:
            sums: [t, n, parts * u].
            kept: What `step` kept, each [t, n, ...].
            before: The states before each step, each [t, n, u].
            after: Those after it, likewise.
        """

    @abc.abstractmethod
    def back(
        self,
        factors: list[tf.Tensor],
        gradients: list[tf.Tensor],
        products: Sequence[StateProduct],
    ) -> tuple:
        """Goes back one step.

        Args:
            factors: Of this step.
            gradients: At the states after it.
            products: As for `step`.

        Returns:
            (the gradient at `sums`, the gradients at the states before).
        """


class SimpleCell(Cell):
    """h' = activation(sums + h U)."""

    def step(
        self, sums: tf.Tensor, products: Sequence[StateProduct], states: Sequence[tf.Tensor]
    ) -> tuple:
        total = sums + products[0].of(states[0])
        return [self.activation(total)], [total]

    def factors(
        self,
        sums: tf.Tensor,
        kept: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        after: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        return [_with_slope(self.activation, kept[0])[1](tf.ones_like(kept[0]))]

    def back(
        self,
        factors: list[tf.Tensor],
        gradients: list[tf.Tensor],
        products: Sequence[StateProduct],
    ) -> tuple:
        at_sums = gradients[0] * factors[0]
        return at_sums, [products[0].back(at_sums)]


class LSTMCell(Cell):
    """c' = f c + i g and h' = o activation(c'), with gates i, f, g, o of sums + h U."""

    def step(
        self, sums: tf.Tensor, products: Sequence[StateProduct], states: Sequence[tf.Tensor]
    ) -> tuple:
        total = sums + products[0].of(states[0])
        return self._next(tf.split(total, 4, -1), states[1]), [total]

    def _next(self, gates: Sequence[tf.Tensor], c: tf.Tensor) -> list[tf.Tensor]:
        """Returns the states after a step."""
        i, f, g, o = gates
        c = self.recurrent_activation(f) * c
        c += self.recurrent_activation(i) * self.activation(g)
        return [self.recurrent_activation(o) * self.activation(c), c]

    def factors(
        self,
        sums: tf.Tensor,
        kept: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        after: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        at_i, at_f, at_g, *others = self._by_gate(_parts(kept[0], 4), before[1], after[1])
        return [tf.concat([at_i, at_f, at_g], -1), *others]

    def _by_gate(
        self, gates: Sequence[tf.Tensor], before: tf.Tensor, after: tf.Tensor
    ) -> list[tf.Tensor]:
        """Returns the factors, apart.

        Args:
            gates: What they were made of.
            before: c.
            after: c'.
        """
        i, f, g, o = gates
        i, at_i = _with_slope(self.recurrent_activation, i)
        f, at_f = _with_slope(self.recurrent_activation, f)
        g, at_g = _with_slope(self.activation, g)
        o, at_o = _with_slope(self.recurrent_activation, o)
        shown, at_c = _with_slope(self.activation, after)
        return [at_i(g), at_f(before), at_g(i), at_o(shown), at_c(o), f]

    def back(
        self,
        factors: list[tf.Tensor],
        gradients: list[tf.Tensor],
        products: Sequence[StateProduct],
    ) -> tuple:
        from_c, from_h, h_to_c, forget = factors
        h, c = gradients
        c += h * h_to_c
        at_sums = tf.concat([tf.concat([c] * 3, -1) * from_c, h * from_h], -1)
        return at_sums, [products[0].back(at_sums), c * forget]


class ConvLSTMCell(LSTMCell):
    """An LSTM of images: gates stay apart, and factors are made when they are used.

    So no pass over all steps moves gates, and what factors are made of is still in the cache. For
    vectors fewer operations are faster.
    """

    number_kept = 4
    by_step = True

    def step(
        self, sums: tf.Tensor, products: Sequence[StateProduct], states: Sequence[tf.Tensor]
    ) -> tuple:
        gates = tf.split(sums + products[0].of(states[0]), 4, -1)
        return self._next(gates, states[1]), gates

    def factors(
        self,
        sums: tf.Tensor,
        kept: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        after: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        return self._by_gate(kept, before[1], after[1])

    def back(
        self,
        factors: list[tf.Tensor],
        gradients: list[tf.Tensor],
        products: Sequence[StateProduct],
    ) -> tuple:
        *from_c, from_h, h_to_c, forget = factors
        h, c = gradients
        c += h * h_to_c
        at_sums = tf.concat([*(c * factor for factor in from_c), h * from_h], -1)
        return at_sums, [products[0].back(at_sums), c * forget]


class GRUCell(Cell):
    """h' = z h + (1 - z) activation(a + r b), with gates z and r.

    The reset gate is applied to the sum over the states, b, before that is added to the sum over
    the inputs, a. So `sums` has four parts: a; and, to which h U is added, those of z, r and b.
    """

    def step(
        self, sums: tf.Tensor, products: Sequence[StateProduct], states: Sequence[tf.Tensor]
    ) -> tuple:
        units = states[0].shape[-1]
        a, others = tf.split(sums, [units, 3 * units], -1)
        total = others + products[0].of(states[0])
        z, r, b = tf.split(total, 3, -1)
        z, r = self.recurrent_activation(z), self.recurrent_activation(r)
        new = self.activation(a + r * b)
        return [new + z * (states[0] - new)], [total]

    def factors(
        self,
        sums: tf.Tensor,
        kept: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        after: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        a = _parts(sums, 4)[0]
        z, r, b = _parts(kept[0], 3)
        z, at_z = _with_slope(self.recurrent_activation, z)
        r, at_r = _with_slope(self.recurrent_activation, r)
        new, at_new = _with_slope(self.activation, a + r * b)
        to_a = at_new(1 - z)
        return [tf.concat([to_a, at_z(before[0] - new), at_r(to_a * b), to_a * r], -1), z]

    def back(
        self,
        factors: list[tf.Tensor],
        gradients: list[tf.Tensor],
        products: Sequence[StateProduct],
    ) -> tuple:
        h, units = gradients[0], gradients[0].shape[-1]
        at_sums = tf.concat([h] * 4, -1) * factors[0]
        return at_sums, [products[0].back(at_sums[:, units:]) + h * factors[1]]


class ResetFirstGRUCell(Cell):
    """h' = z h + (1 - z) activation(a + (r h) V), with gates z and r of sums + h U.

    The reset gate is applied to the state, before the product with the last part of the recurrent
    kernel. `sums` has the parts of z, r and a.
    """

    parts_of_products = (2, 1)

    def step(
        self, sums: tf.Tensor, products: Sequence[StateProduct], states: Sequence[tf.Tensor]
    ) -> tuple:
        units = states[0].shape[-1]
        gates, a = tf.split(sums, [2 * units, units], -1)
        gates += products[0].of(states[0])
        z, r = map(self.recurrent_activation, tf.split(gates, 2, -1))
        a += products[1].of(r * states[0])
        new = self.activation(a)
        return [new + z * (states[0] - new)], [tf.concat([gates, a], -1)]

    def factors(
        self,
        sums: tf.Tensor,
        kept: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        after: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        z, r, a = _parts(kept[0], 3)
        z, at_z = _with_slope(self.recurrent_activation, z)
        r, at_r = _with_slope(self.recurrent_activation, r)
        new, at_new = _with_slope(self.activation, a)
        return [at_new(1 - z), at_z(before[0] - new), at_r(before[0]), r, z]

    def back(
        self,
        factors: list[tf.Tensor],
        gradients: list[tf.Tensor],
        products: Sequence[StateProduct],
    ) -> tuple:
        h = gradients[0]
        to_a, to_z, to_r, r, z = factors
        at_a = h * to_a
        at_reset = products[1].back(at_a)
        gates = tf.concat([h * to_z, at_reset * to_r], -1)
        before = products[0].back(gates) + at_reset * r + h * z
        return tf.concat([gates, at_a], -1), [before]

    def reset(self, kept: Sequence[tf.Tensor], before: tf.Tensor) -> tf.Tensor:
        """Returns the states after the reset gate, given what the steps kept and the states before
        them, [..., u].
        """
        return self.recurrent_activation(tf.split(kept[0], 3, -1)[1]) * before


class DifferentiatedCell(Cell):
    """A cell whose functions need not be elementwise. To go back a step, the step is taken once
    more, and TensorFlow differentiates it.

    Args:
        cell: What happens at a step.
    """

    def __init__(self, cell: Cell):
        super().__init__(cell.activation, cell.recurrent_activation)
        self._cell, self.parts_of_products = cell, cell.parts_of_products
        self.number_kept = cell.number_kept

    def step(
        self, sums: tf.Tensor, products: Sequence[StateProduct], states: Sequence[tf.Tensor]
    ) -> tuple:
        return self._cell.step(sums, products, states)

    def factors(
        self,
        sums: tf.Tensor,
        kept: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        after: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        return [sums, *before]

    def back(
        self,
        factors: list[tf.Tensor],
        gradients: list[tf.Tensor],
        products: Sequence[StateProduct],
    ) -> tuple:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(factors)
            after, _ = self.step(factors[0], products, factors[1:])
        at_sums, *before = tape.gradient(
            after,
            factors,
            output_gradients=gradients,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return at_sums, before


def _parts(tensor: tf.Tensor, number: int) -> list[tf.Tensor]:
    """Returns what `tf.split` along the last axis does, in half the time where rows are many."""
    parts = tf.unstack(parts_first(tf.reshape(tensor, [-1, tensor.shape[-1]]), number))
    width = parts[0].shape[-1]
    shape = tf.concat([tf.shape(tensor)[:-1], [width]], 0)
    return [tf.ensure_shape(tf.reshape(p, shape), [*tensor.shape[:-1], width]) for p in parts]


def _with_slope(
    function: Activation, x: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Returns an elementwise function of x, and what multiplies with its derivative there."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        y = function(x)

    def times_slope(factor: tf.Tensor) -> tf.Tensor:
        zero = tf.UnconnectedGradients.ZERO
        return tape.gradient(y, x, output_gradients=factor, unconnected_gradients=zero)

    return y, times_slope
