"""The loops of SimpleRNN, LSTM, GRU and ConvLSTM over the steps of a sequence, with a backward pass
of their own.

TensorFlow's backward pass of a loop repeats the operations of each step one by one. But how a step
depends on the state before it is known as soon as all states are: elementwise factors, which are
computed for all steps at once (of images, when they are used), and one or two matrix products. So
the loop backward multiplies, and adds.
Of the weights it needs the recurrent kernel's values; gradients of weights are the rule's.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.gradients.rules.recurrent_cells import Cell
from tfdp.gradients.rules.state_product import StateProduct, state_product

# With more steps, operations for each of them would take long to trace.
_FEW_STEPS = 64


def run(
    cell: Cell,
    sums: tf.Tensor,
    kernel: tf.Tensor,
    states: Sequence[tf.Tensor],
    mask: tf.Tensor | None = None,
    all_steps: bool = True,
    dropped: tf.Tensor | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
    """Returns the outputs at all steps, [n, t, u], the last states, each [n, u], and what the steps
    kept, each [n, t, ...], which has no gradient.

    Gradients go to `sums` and `states`, not to `kernel` and `dropped`.

    Args:
        cell: What happens at a step.
        sums: [n, t, parts * u].
        kernel: The recurrent kernel, [u, parts of its own * u], or, of a convolution, [*size, u,
            parts * u].
        states: At the start, each [n, u]; the first is the output.
        mask: bool [n, t]: at other steps the states stay as they are. None: there are none.
        all_steps: Whether gradients at the outputs count; those at the last states always do.
        dropped: What the state is multiplied by before each part of the recurrent kernel, the same
            at all steps, [n, parts of the kernel, u]. None: nothing.
    """
    count = len(states)
    masks = [] if mask is None else [mask]
    drops = [] if dropped is None else [dropped]

    @tf.custom_gradient
    def loop(sums, kernel, *others):
        first = list(others[:count])
        present = [
            _with_rank(_steps_first(m), sums.shape.rank) for m in others[count : count + len(masks)]
        ]
        products = products_with(cell, kernel, *others[count + len(masks) :])
        after, kept = _forward(cell, sums, products, first, present)

        def gradient(at_outputs, *at_others):
            before = [
                tf.concat([s[tf.newaxis], a[:-1]], 0) for s, a in zip(first, after, strict=True)
            ]
            at_sums, at_first = _backward(
                cell,
                _factors(cell, _steps_first(sums), kept, before, after),
                products,
                sums,
                _steps_first(at_outputs) if all_steps else None,
                list(at_others[:count]),
                present,
            )
            return at_sums, None, *at_first, *(None for _ in [*masks, *drops])

        return (_steps_first(after[0]), *(a[-1] for a in after), *map(_steps_first, kept)), gradient

    outputs, *others = loop(sums, kernel, *states, *masks, *drops)
    return outputs, others[:count], [tf.stop_gradient(kept) for kept in others[count:]]


def products_with(
    cell: Cell, kernel: tf.Tensor, dropped: tf.Tensor | None = None
) -> list[StateProduct]:
    """Returns the products that a cell takes; arguments as of `run`."""
    if cell.parts_of_products is None:
        return [state_product(kernel, dropped)]
    width = kernel.shape[-1] // sum(cell.parts_of_products)
    kernels = tf.split(kernel, [width * parts for parts in cell.parts_of_products], -1)
    if dropped is None:
        return [state_product(k) for k in kernels]
    drops = tf.split(dropped, cell.parts_of_products, 1)
    return [state_product(k, d) for k, d in zip(kernels, drops, strict=True)]


def _forward(cell, sums, products, states, present):
    """Returns (states after each step, each [t, n, u]; what was kept, each [t, n, ...])."""
    # Steps are cut out one by one: with the axis of steps in front, all of them would be copied.
    steps = _number_of_steps(sums, axis=1)
    count = len(states)

    def body(i, states, arrays):
        new, kept = cell.step(sums[:, i], products, states)
        if present:
            new = [tf.where(present[0][i], a, b) for a, b in zip(new, states, strict=True)]
        return i + 1, new, [a.write(i, x) for a, x in zip(arrays, [*new, *kept], strict=True)]

    width = sum(product.width for product in products) // cell.number_kept
    widths = [*(s.shape[-1] for s in states), *[width] * cell.number_kept]
    shape = [sums.shape[0], *sums.shape[2:-1]]
    arrays = [_array(sums.dtype, steps, [*shape, width]) for width in widths]
    _, _, arrays = _while(steps, body, (tf.constant(0), list(states), arrays))
    stacked = [array.stack() for array in arrays]
    return stacked[:count], stacked[count:]


def _factors(cell, sums, kept, before, after):
    """Returns a function that returns the factors of a step, given its number."""
    if not cell.by_step:
        factors = cell.factors(sums, kept, before, after)
        return lambda i: [f[i] for f in factors]

    def of_step(i):
        sequences = ([s[i : i + 1] for s in part] for part in ([sums], kept, before, after))
        (now,), *others = sequences
        return [f[0] for f in cell.factors(now, *others)]

    return of_step


def _backward(cell, factors, products, sums, at_outputs, at_last, present):
    """Returns the gradients at `sums`, [n, t, width], and at the first states."""
    steps = _number_of_steps(sums, axis=1)

    def body(i, gradients, array):
        i -= 1
        if at_outputs is not None:
            gradients = [gradients[0] + at_outputs[i], *gradients[1:]]
        at_sums, before = cell.back(factors(i), gradients, products)
        if present:
            at_sums = tf.where(present[0][i], at_sums, tf.zeros_like(at_sums))
            before = [tf.where(present[0][i], a, b) for a, b in zip(before, gradients, strict=True)]
        return i, before, array.write(i, at_sums)

    array = _array(sums.dtype, steps, [sums.shape[0], *sums.shape[2:]])
    _, at_first, array = _while(steps, body, (steps, at_last, array), backwards=True)
    if cell.by_step and (number := sums.shape[1]) is not None and number <= _FEW_STEPS:
        # One copy, where stacking and transposing are two.
        return tf.stack([array.read(i) for i in range(number)], 1), at_first
    return _steps_first(array.stack()), at_first


def _while(steps: Any, body: Any, variables: tuple, backwards: bool = False) -> Any:
    return tf.while_loop(
        (lambda i, *_: i > 0) if backwards else (lambda i, *_: i < steps),
        body,
        variables,
        maximum_iterations=steps,
    )


def _array(dtype: tf.DType, steps: Any, shape: Sequence[int | None]) -> tf.TensorArray:
    return tf.TensorArray(dtype, steps, element_shape=shape)


def _number_of_steps(tensor: tf.Tensor, axis: int) -> Any:
    steps = tensor.shape[axis]
    return tf.shape(tensor)[axis] if steps is None else tf.constant(steps)


def _with_rank(tensor: tf.Tensor, rank: int) -> tf.Tensor:
    """Returns the tensor with axes of length one at the end."""
    where = (..., *[tf.newaxis] * (rank - tensor.shape.rank))
    return tensor[where]


def _steps_first(tensor: tf.Tensor) -> tf.Tensor:
    """Exchanges the axes of records and steps."""
    return tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)])
