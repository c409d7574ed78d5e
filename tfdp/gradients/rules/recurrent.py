"""SimpleRNN, LSTM and GRU: matrices that are used at every step of a sequence."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.forms.per_record import Explicit
from tfdp.gradients.forms.products import matrix_gradient
from tfdp.gradients.keras_internals import LOOP, is_recomputed, run_loop
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.dense import bias_gradient
from tfdp.gradients.rules.rule import (
    LayerRule,
    RecordWise,
    has_known_activations,
    is_patched,
    register_rule,
)

_CELLS = (keras.layers.SimpleRNNCell, keras.layers.LSTMCell, keras.layers.GRUCell)


class RecurrentRule(LayerRule):
    """The kernel's gradient is sum_t outer(input_t, gradient_t), and the recurrent kernel's is
    sum_t outer(state_{t-1}, gradient_t), with gradients at the sums that the gates are made of.

    The layer's own loop runs on the whole batch. Products of inputs are made before it, for all
    steps at once, and given to the cell as a bias. The states before each step come out of the loop
    beside its outputs. Dropout of inputs, which is the same at all steps, is applied before that.
    """

    def holds_for(self, layer: Any) -> bool:
        cell = layer.cell
        return (
            type(cell) in _CELLS
            and not is_patched(cell)
            and has_known_activations(cell)
            and not (layer.stateful or cell.dropout >= 1 or cell.recurrent_dropout)
            # In a keras.RematScope the layer is called a second time in the backward pass, where
            # the rule would not see it.
            and not is_recomputed(cell)
            # With another implementation the sums of the gates are not made of two matrix products.
            and getattr(cell, "implementation", 2) == 2
            and getattr(cell, "reset_after", True)
        )

    def variables(self, layer: Any) -> Iterable[Any]:
        cell = layer.cell
        return [v for v in (cell.kernel, cell.recurrent_kernel, cell.bias) if v is not None]

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        # The rule needs what the loop of the layer receives, so it takes the place of that loop.
        def loop(sequences, initial_state, mask, training=False):
            cell = (_GRUCell if isinstance(layer.cell, keras.layers.GRUCell) else _Cell)(
                recording, layer.cell, _dropped(layer.cell, sequences) if training else sequences
            )
            layer.cell.reset_dropout_mask()
            with (
                recording.replaced(layer.cell, "dropout", 0.0),
                recording.replaced(layer, "return_sequences", True),
                recording.replaced(layer.cell, "call", cell.call),
            ):
                last, outputs, states = run_loop(
                    layer,
                    cell.sums.tensor,
                    initial_state,
                    mask[0] if isinstance(mask, (list, tuple)) else mask,
                    training,
                )
            units = layer.cell.units
            before = outputs[..., units:]
            cell.add(tf.reverse(before, [1]) if layer.go_backwards else before)
            return last[..., :units], outputs[..., :units], states

        with recording.replaced(layer, LOOP, loop):
            return call(*args, **kwargs)


def _dropped(cell: Any, sequences: tf.Tensor) -> tf.Tensor:
    """Returns sequences, [n, t, ...], after the cell's dropout; every record has its own mask."""
    mask = cell.get_dropout_mask(sequences[:, 0])
    return sequences if mask is None else sequences * mask[:, tf.newaxis]


class _Cell:
    """A cell that receives, in place of its inputs, their products with the kernel plus the bias.

    At every step it returns its output and, behind it, the state before the step.

    Attributes:
        sums: A tap at what it receives, [n, t, ...].
    """

    def __init__(self, recording: Any, cell: Any, inputs: tf.Tensor):
        self.recording, self.cell, self.inputs = recording, cell, inputs
        self._call = cell.call
        kernel = tf.cast(cell.kernel.value, inputs.dtype)
        self._no_inputs = tf.zeros([tf.shape(inputs)[0], 0], inputs.dtype)
        self._no_kernel = tf.zeros([0, kernel.shape[1]], inputs.dtype)
        self.sums = recording.watch(self.before_the_loop(tf.tensordot(inputs, kernel, 1)))

    def before_the_loop(self, products: tf.Tensor) -> tf.Tensor:
        """Returns `sums`, given the products of inputs and kernel."""
        cell = self.cell
        return products + tf.cast(cell.bias.value, products.dtype) if cell.use_bias else products

    def bias_at(self, sums: tf.Tensor) -> tf.Tensor:
        """Returns what takes the place of the cell's bias at a step."""
        return sums

    def call(self, sums: tf.Tensor, states: Any, **kwargs: Any) -> tuple[tf.Tensor, Any]:
        """Stands in for the cell's own `call`."""
        with (
            self.recording.replaced(self.cell, "kernel", self._no_kernel),
            self.recording.replaced(self.cell, "bias", self.bias_at(sums)),
            self.recording.replaced(self.cell, "use_bias", True),
        ):
            outputs, new_states = self._call(self._no_inputs, states, **kwargs)
        return tf.concat([outputs, states[0]], -1), new_states

    def add(self, states: tf.Tensor) -> None:
        """Says what follows from the tap, given the states before each step, [n, t, units]."""
        add, cell = self.recording.add, self.cell
        add(self.sums, cell.kernel, lambda g: matrix_gradient(self.inputs, g))
        add(self.sums, cell.recurrent_kernel, lambda g: matrix_gradient(states, g))
        add(self.sums, cell.bias, bias_gradient)


class _GRUCell(_Cell):
    """The cell of a GRU. Its reset gate is applied to the sum over the states before that is added
    to the sum over the inputs, so both sums are tapped.
    """

    def before_the_loop(self, products: tf.Tensor) -> tf.Tensor:
        other = tf.zeros_like(products)
        if not self.cell.use_bias:
            return tf.concat([products, other], -1)
        biases = tf.cast(self.cell.bias.value, products.dtype)
        return tf.concat([products + biases[0], other + biases[1]], -1)

    def bias_at(self, sums: tf.Tensor) -> tf.Tensor:
        return tf.stack(_halves(sums))

    def add(self, states: tf.Tensor) -> None:
        add, cell = self.recording.add, self.cell
        add(self.sums, cell.kernel, lambda g: matrix_gradient(self.inputs, _halves(g)[0]))
        add(self.sums, cell.recurrent_kernel, lambda g: matrix_gradient(states, _halves(g)[1]))
        add(self.sums, cell.bias, lambda g: Explicit(tf.stack(_halves(tf.reduce_sum(g, 1)), 1)))


def _halves(tensor: tf.Tensor) -> list[tf.Tensor]:
    return tf.split(tensor, 2, -1)


for _layer in (
    keras.layers.RNN,
    keras.layers.SimpleRNN,
    keras.layers.LSTM,
    keras.layers.GRU,
):
    register_rule(_layer, RecurrentRule())
register_rule(keras.layers.Bidirectional, RecordWise())
