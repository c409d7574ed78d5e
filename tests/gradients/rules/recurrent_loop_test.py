"""The loops' own backward pass, against TensorFlow's backward pass of the steps one by one."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.rules import recurrent_cells, recurrent_loop

RECORDS, STEPS, UNITS = 3, 5, 2
# Class, parts of the sums and of the recurrent kernel, number of states.
CELLS = {
    "simple": (recurrent_cells.SimpleCell, 1, 1, 1),
    "lstm": (recurrent_cells.LSTMCell, 4, 4, 2),
    "gru": (recurrent_cells.GRUCell, 4, 3, 1),
    "gru_reset_first": (recurrent_cells.ResetFirstGRUCell, 3, 3, 1),
}
ACTIVATIONS = {
    "usual": (tf.tanh, tf.sigmoid),
    "unusual": (tf.nn.selu, tf.nn.silu),
    "linear": (lambda x: x, tf.nn.softplus),
    "over_units": (tf.nn.softmax, tf.nn.softmax),
}
MASK = np.array([[0, 1, 0, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], bool)


class Columns:
    """A product with some columns of the recurrent kernel, as plain as can be."""

    def __init__(self, parts):
        self.parts = parts

    def of(self, state):
        return tf.concat([state * drop @ part for part, drop in self.parts], 1)


def explicit(cell, sums, kernel, states, mask, dropped=None):
    """Takes the steps one by one, and leaves their gradients to TensorFlow."""
    outputs = []
    drops = [1.0] * (kernel.shape[1] // UNITS) if dropped is None else tf.unstack(dropped, axis=1)
    parts = list(zip(tf.split(kernel, len(drops), 1), drops, strict=True))
    products = []
    for number in cell.parts_of_products or [len(parts)]:
        products.append(Columns(parts[:number]))
        parts = parts[number:]
    for i in range(STEPS):
        new = cell.step(sums[:, i], products, states)[0]
        if mask is not None:
            new = [tf.where(mask[:, i, None], a, b) for a, b in zip(new, states, strict=True)]
        states = new
        outputs.append(states[0])
    return tf.stack(outputs, 1), states


@pytest.mark.parametrize("all_steps", [True, False])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("functions", sorted(ACTIVATIONS))
@pytest.mark.parametrize("name", sorted(CELLS))
def test_values_and_gradients(name, functions, masked, all_steps):
    compare(name, functions, masked, all_steps)


@pytest.mark.parametrize("functions", ["over_units", "usual"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", sorted(CELLS))
def test_states_that_are_dropped(name, masked, functions):
    compare(name, functions, masked, True, dropping=True)


def compare(name, functions, masked, all_steps, dropping=False):
    cell_class, parts, parts_of_kernel, count = CELLS[name]
    cell = cell_class(*ACTIVATIONS[functions][: 1 if name == "simple" else 2])
    random = np.random.default_rng(0)
    sums = tf.constant(random.normal(size=(RECORDS, STEPS, parts * UNITS)))
    kernel = tf.constant(random.normal(size=(UNITS, parts_of_kernel * UNITS)))
    states = [tf.constant(random.normal(size=(RECORDS, UNITS))) for _ in range(count)]
    at_outputs = tf.constant(random.normal(size=(RECORDS, STEPS, UNITS))) * float(all_steps)
    mask = tf.constant(MASK) if masked else None
    shape = [RECORDS, parts_of_kernel, UNITS]
    dropped = tf.constant(random.integers(0, 3, shape).astype(float)) if dropping else None

    def results(run):
        with tf.GradientTape() as tape:
            tape.watch([sums, *states])
            outputs, last = run(cell, sums, kernel, states, mask, dropped=dropped)[:2]
            total = tf.reduce_sum(outputs * at_outputs)
            total += tf.add_n([tf.reduce_sum(s * s * (i + 2)) for i, s in enumerate(last)])
        return [outputs, *last, *tape.gradient(total, [sums, *states])]

    def fast(cell, *args, **kwargs):
        if functions == "over_units":
            cell = recurrent_cells.DifferentiatedCell(cell)
        return recurrent_loop.run(cell, *args, all_steps=all_steps, **kwargs)

    expected = results(explicit)
    for a, e in zip(tf.function(results)(fast), expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-10, atol=1e-12)
    assert np.abs(expected[-1]).max() > 0
