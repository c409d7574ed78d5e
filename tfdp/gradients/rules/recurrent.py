"""SimpleRNN, LSTM, GRU and ConvLSTM: kernels that are used at every step of a sequence."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.forms.per_record import Explicit, PerRecordGradient, to_accumulate
from tfdp.gradients.forms.products import Product, matrix_gradient
from tfdp.gradients.keras_internals import CONV_LSTM_CELL, LOOP, is_recomputed
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules import recurrent_convolution
from tfdp.gradients.rules.activation import is_elementwise, is_over_units
from tfdp.gradients.rules.dense import bias_gradient
from tfdp.gradients.rules.recurrent_cells import (
    Cell,
    ConvLSTMCell,
    DifferentiatedCell,
    GRUCell,
    LSTMCell,
    ResetFirstGRUCell,
    SimpleCell,
)
from tfdp.gradients.rules.recurrent_loop import products_with, run
from tfdp.gradients.rules.rule import (
    LayerRule,
    RecordWise,
    class_of,
    is_patched,
    register_rule,
)
from tfdp.gradients.rules.state_product import parts_first

_CELLS: dict[type, Callable[..., Cell]] = {
    keras.layers.SimpleRNNCell: SimpleCell,
    keras.layers.LSTMCell: LSTMCell,
    keras.layers.GRUCell: GRUCell,
    CONV_LSTM_CELL: ConvLSTMCell,
}


class RecurrentRule(LayerRule):
    """The kernel's gradient is sum_t outer(input_t, gradient_t), and the recurrent kernel's is
    sum_t outer(state_{t-1}, gradient_t), with gradients at the sums that the gates are made of. A
    reset gate that is applied to the state, before the product, is a factor of that state.

    Products of inputs are made for all steps at once. What depends on the states is left to
    `recurrent_loop`, on the whole batch. Dropout is the same at all steps. Gates that have masks of
    their own (`implementation=1`, which `recurrent_dropout` entails) have gradients of their own.

    Cells that are stacked are layers one after another. The kernels of ConvLSTM are those of
    convolutions, whose gradients add up over the steps (`recurrent_convolution`).
    """

    def holds_for(self, layer: Any) -> bool:
        return _has_known_cells(layer) and not _own_functions(_cells(layer))

    def functions_to_try(self, layer: Any) -> Sequence[tuple[Any, str, int]]:
        # A ConvLSTM calls its functions on images, not on rows.
        if isinstance(layer.cell, CONV_LSTM_CELL) or not _has_known_cells(layer):
            return ()
        return _own_functions(_cells(layer))

    def variables(self, layer: Any) -> Iterable[Any]:
        return _variables(_cells(layer))

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        # The rule needs what the loop of the layer receives, so it takes the place of that loop.
        def loop(sequences, initial_state, mask, training=False):
            return _run(recording, layer, sequences, initial_state, mask, training)

        with recording.replaced(layer, LOOP, loop):
            return call(*args, **kwargs)


class CellRule(LayerRule):
    """A cell that is called by itself, as in a loop of one's own: a sequence of one step.

    What it drops is kept in the cell from call to call, so that it runs record by record where it
    drops anything.
    """

    def holds_for(self, layer: Any) -> bool:
        return self._is_known(layer) and not _own_functions([layer])

    def functions_to_try(self, layer: Any) -> Sequence[tuple[Any, str, int]]:
        return _own_functions([layer]) if self._is_known(layer) else ()

    @staticmethod
    def _is_known(cell: Any) -> bool:
        return _is_known(cell) and not cell.dropout and not cell.recurrent_dropout

    def variables(self, layer: Any) -> Iterable[Any]:
        return _variables([layer])

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        # Keras calls what a cell receives `inputs`, and `sequence` in SimpleRNNCell.
        given = inspect.signature(type(layer).call).bind(layer, *args, **kwargs).arguments
        _, inputs, states, *_ = given.values()
        several = isinstance(states, (list, tuple))
        first = list(states) if several else [states]
        if any(tensor.shape.rank != 2 for tensor in (inputs, *first)):
            raise UnsupportedModelError(
                f"{layer.name} must be called on [records, features] and states [records, units]. "
                f"Received: {inputs.shape} and {[state.shape for state in first]}. Use "
                "engine='vectorized'."
            )
        steps, tap = _cell(layer), _tap(recording, layer, inputs)
        kernel = tf.cast(layer.recurrent_kernel.value, inputs.dtype)
        after, kept = steps.step(tap.tensor, products_with(steps, kernel), first)
        inputs, before, *kept = map(_one_step, (inputs, first[0], *kept))
        _add_all(recording, layer, tap, inputs, before, kept)
        return after[0], after if several else after[0]


def _one_step(tensor: tf.Tensor) -> tf.Tensor:
    """Returns [n, 1, ...] from [n, ...]."""
    return tf.expand_dims(tensor, 1)


def _variables(cells: Sequence[Any]) -> list[Any]:
    return [
        v
        for cell in cells
        for v in (cell.kernel, cell.recurrent_kernel, cell.bias)
        if v is not None
    ]


def _cells(layer: Any) -> list[Any]:
    stacked = isinstance(layer.cell, keras.layers.StackedRNNCells)
    return list(layer.cell.cells) if stacked else [layer.cell]


def _has_known_cells(layer: Any) -> bool:
    """Returns whether the rule holds for a layer, whatever its functions are."""
    stack = layer.cell
    if isinstance(stack, keras.layers.StackedRNNCells):
        # Convolutions in a stack would need shapes that Keras does not give them.
        same = type(stack) is keras.layers.StackedRNNCells and not is_patched(stack)
        if not same or is_recomputed(stack) or CONV_LSTM_CELL in map(type, stack.cells):
            return False
    return not layer.stateful and all(map(_is_known, _cells(layer)))


def _own_functions(cells: Sequence[Any]) -> list[tuple[Any, str, int]]:
    """Returns functions that are not known, as `LayerRule.functions_to_try`."""
    return [
        (cell, name, cell.filters if isinstance(cell, CONV_LSTM_CELL) else cell.units)
        for cell in cells
        for name in _names_of_functions(cell)
        if not _is_usual(getattr(cell, name))
    ]


def _is_usual(function: Any) -> bool:
    return is_elementwise(function) or is_over_units(function)


def _is_known(cell: Any) -> bool:
    """Returns whether the rule holds for a cell, whatever its functions are."""
    return (
        class_of(cell) in _CELLS
        and not is_patched(cell)
        and not (cell.dropout >= 1 or cell.recurrent_dropout >= 1)
        # In a keras.RematScope the layer is called a second time in the backward pass, where the
        # rule would not see it.
        and not is_recomputed(cell)
        and getattr(cell, "data_format", "channels_last") == "channels_last"
    )


def _run(recording, layer, sequences, initial_state, mask, training):
    """Stands in for the layer's loop; returns (last output, outputs, states)."""
    if isinstance(mask, (list, tuple)):
        mask = mask[0]
    _refuse_other_ranks(layer, sequences, mask)
    if mask is not None:
        mask = tf.cast(mask, tf.bool)
    if layer.go_backwards:
        sequences = tf.reverse(sequences, [1])
        mask = None if mask is None else tf.reverse(mask, [1])
    cells = _cells(layer)
    stacked = cells[0] is not layer.cell
    states = initial_state if stacked else [initial_state]
    outputs, last = sequences, []
    for i, cell in enumerate(cells):
        all_steps = layer.return_sequences or i < len(cells) - 1
        first = states[i] if isinstance(states[i], (list, tuple)) else [states[i]]
        outputs, final = _run_cell(recording, cell, outputs, first, mask, training, all_steps)
        last.append(type(states[i])(final) if isinstance(states[i], (list, tuple)) else final[0])
    output = final[0]
    if mask is not None:
        # An output is that of the last step that counts, and zero where there is none.
        shown = mask if layer.zero_output_for_mask else _counted_already(mask)
        shown = tf.reshape(shown, [*tf.unstack(tf.shape(shown)), *[1] * (output.shape.rank - 1)])
        outputs = tf.where(shown, outputs, tf.zeros_like(outputs))
        output = tf.where(shown[:, -1], output, tf.zeros_like(output))
    return output, outputs, last if stacked and len(last) > 1 else last[0]


def _run_cell(recording, cell, sequences, first, mask, training, all_steps):
    """Returns (outputs at all steps, last states) of a cell.

    Args:
        recording: Of the model.
        cell: The cell.
        sequences: What it receives, in the order of its steps, [n, t, ...].
        first: The states at the start.
        mask: Which steps count, [n, t], or None.
        training: Whether something is dropped.
        all_steps: As of `recurrent_loop.run`.
    """
    dtype, dropped = sequences.dtype, None
    if training:
        sequences = _masked(sequences, _gates(cell.get_dropout_mask(sequences[:, 0])))
        dropped = _gates(cell.get_recurrent_dropout_mask(first[0]))
    tap = _tap(recording, cell, sequences)
    steps = _cell(cell)
    states, last, kept = run(
        steps if all(map(is_elementwise, _activations(cell))) else DifferentiatedCell(steps),
        tap.tensor,
        tf.cast(cell.recurrent_kernel.value, dtype),
        first,
        mask,
        all_steps=all_steps,
        dropped=dropped,
    )
    before = tf.concat([first[0][:, tf.newaxis], states[:, :-1]], 1)
    _add_all(recording, cell, tap, sequences, before, kept, dropped)
    return states, last


def _tap(recording: Recording, cell: Any, sequences: tf.Tensor) -> Any:
    """Returns the tap at the sums that do not depend on the states."""
    if isinstance(cell, CONV_LSTM_CELL):
        return recording.watch(recurrent_convolution.products(cell, sequences))
    sums = _products(cell, sequences)
    return recording.watch(_sums_of_gru(cell, sums) if _resets_after(cell) else sums)


def _resets_after(cell: Any) -> bool:
    return getattr(cell, "reset_after", False)


def _add_all(recording, cell, tap, sequences, before, kept, dropped=None):
    """Says what follows from the tap, given the outputs before each step, [n, t, ...], and what the
    steps kept. The tap is at all steps, or has no axis of them where there is one.
    """
    states, steps = [before], _cell(cell)
    if isinstance(steps, ResetFirstGRUCell):
        states = [before, before, steps.reset(kept, before)]
    factors = tf.stop_gradient(_multiplied(states, dropped))
    if isinstance(cell, CONV_LSTM_CELL):
        recurrent_convolution.add(recording, cell, tap, sequences, factors)
    elif _resets_after(cell):
        _add_gru(recording, cell, tap, sequences, factors)
    else:
        _add(recording, cell, tap, sequences, factors)


def _cell(cell: Any) -> Cell:
    kind = _CELLS[class_of(cell)]
    if kind is GRUCell and not cell.reset_after:
        kind = ResetFirstGRUCell
    return kind(*_activations(cell))


def _names_of_functions(cell: Any) -> tuple[str, ...]:
    simple = isinstance(cell, keras.layers.SimpleRNNCell)
    return ("activation",) if simple else ("activation", "recurrent_activation")


def _activations(cell: Any) -> list[Any]:
    return [getattr(cell, name) for name in _names_of_functions(cell)]


def _refuse_other_ranks(layer: Any, sequences: tf.Tensor, mask: Any) -> None:
    """Raises UnsupportedModelError if records could be taken for steps or units."""
    rank = 3 + getattr(layer.cell, "rank", 0)
    if sequences.shape.rank != rank or (mask is not None and mask.shape.rank != 2):
        shape = None if mask is None else mask.shape
        raise UnsupportedModelError(
            f"{layer.name} must be called on sequences [records, steps, features], or with spatial "
            f"axes if it convolves, with a mask [records, steps]. Received: {sequences.shape} and "
            f"{shape}. Use engine='vectorized'."
        )


def _gates(masks: Any) -> tf.Tensor | None:
    """Returns masks of dropout, of which every record has its own, as [n, gates, ...]; one gate
    stands for all.
    """
    if masks is None:
        return None
    return tf.stack(masks, 1) if isinstance(masks, list) else masks[:, tf.newaxis]


def _masked(sequences: tf.Tensor, masks: tf.Tensor | None) -> tf.Tensor:
    """Returns sequences, [n, t, ...], after dropout: for each gate, [n, gates, t, ...], where masks
    of the gates differ.
    """
    if masks is None:
        return sequences
    if masks.shape[1] == 1:
        return sequences * masks
    return sequences[:, tf.newaxis] * masks[:, :, tf.newaxis]


def _multiplied(states: list[tf.Tensor], masks: tf.Tensor | None) -> tf.Tensor:
    """Returns what the recurrent kernel is multiplied with, as `_masked` does.

    Args:
        states: One for all gates, or one for each of them, [n, t, u].
        masks: Of dropout, [n, gates, u], or None.
    """
    if len(states) == 1:
        return _masked(states[0], masks)
    stacked = tf.stack(states, 1)
    return stacked if masks is None else stacked * masks[:, :, tf.newaxis]


def _counted_already(mask: tf.Tensor) -> tf.Tensor:
    """Returns whether a step or one before it counts, [n, t]."""
    return tf.cumsum(tf.cast(mask, tf.int32), 1) > 0


def _products(cell: Any, sequences: tf.Tensor) -> tf.Tensor:
    """Returns products of inputs and kernel, with the bias where there is one of them."""
    kernel = tf.cast(cell.kernel.value, sequences.dtype)
    if sequences.shape.rank == 2:
        products = tf.matmul(sequences, kernel)
    elif sequences.shape.rank == 3:
        products = tf.tensordot(sequences, kernel, 1)
    else:
        products = _by_gate(sequences, kernel)
    if not cell.use_bias or _resets_after(cell):
        return products
    return products + tf.cast(cell.bias.value, products.dtype)


def _by_gate(sequences: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Returns products, [n, t, gates * units], of inputs [n, gates, t, p] and their parts of the
    kernel.
    """
    _, gates, steps, size = sequences.shape
    number = tf.shape(sequences)[2] if steps is None else steps
    rows = tf.reshape(tf.transpose(sequences, [1, 0, 2, 3]), [gates, -1, size])
    products = tf.transpose(tf.matmul(rows, parts_first(kernel, gates)), [1, 0, 2])
    products = tf.reshape(products, tf.stack([-1, number, kernel.shape[1]]))
    return tf.ensure_shape(products, [sequences.shape[0], steps, kernel.shape[1]])


def _matrix_gradient(left: tf.Tensor, right: tf.Tensor) -> PerRecordGradient:
    """Returns gradients of a kernel, from what it was multiplied with, [n, t, p] or, for each of
    its gates, [n, gates, t, p], and gradients [n, t, gates * units].
    """
    if left.shape.rank == 3:
        return matrix_gradient(left, right)
    left, right = to_accumulate(left), to_accumulate(right)
    _, gates, steps, size = left.shape
    units = right.shape[-1] // gates
    number = tf.shape(right)[1] if steps is None else steps
    columns = tf.reshape(right, tf.stack([-1, number, gates, units]))
    columns = tf.ensure_shape(tf.transpose(columns, [0, 2, 1, 3]), [None, gates, steps, units])
    return Product(left, columns, [gates, size, units], [1, 0, 2], shape=[size, gates * units])


def _add(recording, cell, tap, sequences, before):
    """Says what follows from the tap, given what the recurrent kernel is multiplied with."""
    add = recording.add
    add(tap, cell.kernel, lambda g: _matrix_gradient(sequences, _by_step(g)))
    add(tap, cell.recurrent_kernel, lambda g: _matrix_gradient(before, _by_step(g)))
    add(tap, cell.bias, bias_gradient)


def _by_step(gradient: tf.Tensor) -> tf.Tensor:
    return _one_step(gradient) if gradient.shape.rank == 2 else gradient


def _sums_of_gru(cell: Any, products: tf.Tensor) -> tf.Tensor:
    """Returns [a, z, r, b] for `recurrent_cells.GRUCell`, from products [z, r, a]."""
    zeros = tf.zeros([2, products.shape[-1]], products.dtype)
    biases = tf.cast(cell.bias.value, products.dtype) if cell.use_bias else zeros
    z, r, a = tf.split(products + biases[0], 3, -1)
    at_z, at_r, b = tf.split(biases[1], 3, -1)
    return tf.concat([a, z + at_z, r + at_r, tf.zeros_like(a) + b], -1)


def _add_gru(recording, cell, tap, sequences, before):
    """As `_add`, for a GRU."""

    def of_inputs(g):
        a, z, r, _ = tf.split(g, 4, -1)
        return tf.concat([z, r, a], -1)

    def of_states(g):
        return g[..., cell.units :]

    def of_biases(g):
        total = tf.reduce_sum(g, 1) if g.shape.rank == 3 else g
        return Explicit(tf.stack([of_inputs(total), of_states(total)], 1))

    add = recording.add
    add(tap, cell.kernel, lambda g: _matrix_gradient(sequences, _by_step(of_inputs(g))))
    add(tap, cell.recurrent_kernel, lambda g: _matrix_gradient(before, _by_step(of_states(g))))
    add(tap, cell.bias, of_biases)


for _layer in (
    keras.layers.RNN,
    keras.layers.SimpleRNN,
    keras.layers.LSTM,
    keras.layers.GRU,
    keras.layers.ConvLSTM1D,
    keras.layers.ConvLSTM2D,
    keras.layers.ConvLSTM3D,
):
    register_rule(_layer, RecurrentRule())
for _cell_class in (keras.layers.SimpleRNNCell, keras.layers.LSTMCell, keras.layers.GRUCell):
    register_rule(_cell_class, CellRule())
register_rule(keras.layers.Bidirectional, RecordWise())
