"""SimpleRNN, LSTM, GRU and stacked cells on a batch, against the explicit loop over records."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    TOKENS,
    WithoutMask,
    assert_agrees_with_xla,
    assert_broken_record_contributes_nothing,
    assert_engines_agree,
    assert_layer_is_exact,
    assert_sums_agree,
    by_engine,
    floatx,
    model_of,
    normal,
    norms_and_sums_of,
    norms_of,
    problem,
    token_model,
    traced_sum,
)
from tfdp.gradients import explain
from tfdp.gradients.forms import products
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.plan import plan
from tfdp.gradients.rules import recurrent
from tfdp.gradients.rules.rule import rule_for

L = keras.layers
SHAPE = (5, 4)


class Renamed(L.GRUCell):
    """A cell of Keras by another name."""


LAYERS = {
    "bidirectional": lambda: L.Bidirectional(L.LSTM(3, return_sequences=True)),
    "bidirectional_sum": lambda: L.Bidirectional(L.GRU(3), merge_mode="sum"),
    "by_gate": lambda: L.LSTM(3, implementation=1),
    "cell": lambda: L.RNN(L.GRUCell(3), return_sequences=True),
    "cell_by_another_name": lambda: L.RNN(Renamed(3, reset_after=False)),
    "gru": lambda: L.GRU(3),
    "gru_backwards": lambda: L.GRU(3, go_backwards=True, return_sequences=True),
    "gru_no_bias": lambda: L.GRU(3, use_bias=False, return_sequences=True),
    "gru_reset_first": lambda: L.GRU(3, reset_after=False, return_sequences=True),
    "gru_reset_first_backwards": lambda: L.GRU(3, reset_after=False, go_backwards=True),
    "gru_reset_first_by_gate": lambda: L.GRU(
        3, reset_after=False, implementation=1, activation="relu", return_sequences=True
    ),
    "gru_reset_first_cell": lambda: L.Bidirectional(
        L.RNN(L.GRUCell(3, reset_after=False, use_bias=False), return_sequences=True)
    ),
    "gru_over_units": lambda: L.GRU(
        3, recurrent_activation="softmax", go_backwards=True, return_sequences=True
    ),
    "gru_reset_first_over_units": lambda: L.GRU(
        3, activation="log_softmax", recurrent_activation="softmax", reset_after=False
    ),
    "in_a_stack": lambda: L.RNN(L.StackedRNNCells([L.LSTMCell(3)]), return_sequences=True),
    "lstm": lambda: L.LSTM(3),
    "lstm_activations": lambda: L.LSTM(3, activation="relu", recurrent_activation="hard_sigmoid"),
    "lstm_backwards": lambda: L.LSTM(3, go_backwards=True),
    "lstm_over_units": lambda: L.LSTM(3, activation="softmax", recurrent_activation="softmax"),
    "lstm_no_bias": lambda: L.LSTM(3, use_bias=False, return_sequences=True),
    "lstm_unrolled": lambda: L.LSTM(3, unroll=True, return_sequences=True),
    "simple": lambda: L.SimpleRNN(3, return_sequences=True),
    "simple_over_units": lambda: L.Bidirectional(L.SimpleRNN(3, activation="sparsemax")),
    "simple_no_bias": lambda: L.SimpleRNN(3, use_bias=False),
    "stack": lambda: L.RNN([L.LSTMCell(3), L.GRUCell(2), L.SimpleRNNCell(4)]),
    "stack_backwards": lambda: L.Bidirectional(
        L.RNN([L.GRUCell(2, reset_after=False), L.LSTMCell(3)], return_sequences=True)
    ),
}


def rules_of(model):
    """Returns the names of all recurrent layers' rules."""
    watched = plan(model, {id(v) for v in model.trainable_variables})
    return {type(rule).__name__ for layer, rule in watched if isinstance(layer, L.RNN)}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    model = model_of(LAYERS[name], SHAPE)
    assert rules_of(model) == {"RecurrentRule"}
    assert_engines_agree(*problem(model, normal(*SHAPE)))


@pytest.mark.parametrize("name", ["gru", "gru_reset_first", "lstm", "simple_no_bias"])
def test_norms_in_double_precision(name):
    with floatx("float64"):
        loss, variables, examples = problem(model_of(LAYERS[name], SHAPE), normal(*SHAPE))
        actual, expected, sums, loop = norms_and_sums_of(loss, variables, examples)
        np.testing.assert_allclose(actual, expected, rtol=1e-10)
        assert_sums_agree(sums, loop, 1e-10)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: L.LSTM(3),
        lambda: L.GRU(3, go_backwards=True, return_sequences=True),
        lambda: L.GRU(3, reset_after=False, go_backwards=True, return_sequences=True),
        lambda: L.LSTM(3, activation="softmax", go_backwards=True, return_sequences=True),
        lambda: stack(3, return_sequences=True),
        lambda: stack(3, go_backwards=True, return_sequences=True, zero_output_for_mask=True),
        lambda: L.SimpleRNN(3, return_sequences=True, zero_output_for_mask=True),
        lambda: L.Bidirectional(L.LSTM(3, return_sequences=True)),
    ],
    ids=[
        "lstm",
        "gru_backwards",
        "reset_first",
        "over_units",
        "stack",
        "stack_zero",
        "zero_output",
        "bidirectional",
    ],
)
def test_masked_steps(layer):
    """Masked at the start, in the middle and at the end; one record wholly, one not at all."""
    tokens = TOKENS.copy()
    tokens[0, [0, 2]] = tokens[1, 3:] = tokens[2] = 0
    model = token_model(L.Embedding(7, 4, mask_zero=True), layer(), WithoutMask())
    assert rules_of(model) == {"RecurrentRule"}
    assert_engines_agree(*problem(model, tokens))


def reset_first(units, **options):
    return L.GRU(units, reset_after=False, **options)


def over_units(units, **options):
    return L.GRU(units, activation="softmax", **options)


def stack(units, return_sequences=False, **options):
    loop = {"go_backwards", "return_state", "zero_output_for_mask"}
    of_loop = {name: value for name, value in options.items() if name in loop}
    of_cells = {name: value for name, value in options.items() if name not in loop}
    cells = [L.GRUCell(units, **of_cells), L.LSTMCell(units, **of_cells)]
    return L.RNN(cells, return_sequences=return_sequences, **of_loop)


def encoder_decoder(kind):
    """States of one layer are where another starts, which begins with masked steps."""
    keras.utils.set_random_seed(1)
    x = keras.Input(SHAPE)
    encoded, *states = kind(3, return_state=True, return_sequences=True)(x)
    masked = L.Masking()(x * keras.ops.cast(keras.ops.abs(x[..., :1]) > 0.7, x.dtype))
    decoded = kind(3)(masked, initial_state=states)
    return keras.Model(x, L.Dense(2)(L.Concatenate()([L.Flatten()(encoded), decoded])))


@pytest.mark.parametrize("kind", [L.LSTM, L.GRU, reset_first, L.SimpleRNN, stack])
def test_states_that_are_passed_on(kind):
    model = encoder_decoder(kind)
    assert rules_of(model) == {"RecurrentRule"}
    assert_engines_agree(*problem(model, normal(*SHAPE)))


@pytest.mark.parametrize("kind", [L.GRU, reset_first])
def test_layer_that_is_used_twice(kind):
    keras.utils.set_random_seed(1)
    x, shared = keras.Input(SHAPE), kind(4, return_sequences=True)
    loss, variables, examples = problem(
        keras.Model(x, L.Dense(2)(L.Flatten()(shared(shared(x))))), normal(*SHAPE)
    )
    assert_engines_agree(loss, variables, examples)
    actual, expected = norms_of(loss, variables, examples)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["gru_reset_first", "lstm"])
def test_frozen_parts_and_microbatches(name):
    model = model_of(LAYERS[name], SHAPE)
    model.layers[2].cell.kernel.trainable = False
    assert len(model.trainable_variables) == 6
    grouping = {"num_microbatches": 2, "microbatch_ids": [1, 0, 1, 1]}
    assert_engines_agree(*problem(model, normal(*SHAPE)))
    assert_engines_agree(*problem(model, normal(*SHAPE)), **grouping)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", [L.LSTM, L.GRU, reset_first, over_units, L.SimpleRNN])
def test_with_xla(kind, masked):
    tokens = TOKENS.copy()
    tokens[0, [0, 2]] = tokens[1, 3:] = 0
    model = token_model(
        L.Embedding(7, 4, mask_zero=masked), kind(3, return_sequences=True), WithoutMask()
    )
    assert_agrees_with_xla(*problem(model, tokens))


def test_masks_of_another_rank_are_refused():
    keras.utils.set_random_seed(1)
    x = keras.Input(SHAPE)
    y = L.LSTM(3)(x, mask=keras.ops.ones_like(x[..., :1], dtype="bool"))
    loss, variables, examples = problem(keras.Model(x, L.Dense(2)(y)), normal(*SHAPE))
    query = tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)
    with pytest.raises(UnsupportedModelError, match=r"a mask \[records, steps\]"):
        by_engine(loss, variables, examples, query, "bookkeeping")


@pytest.mark.parametrize("kind", [L.GRU, reset_first, stack])
def test_length_that_is_not_known(kind):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((None, 4)), kind(3), L.Dense(2)])
    assert_engines_agree(*problem(model, normal(*SHAPE)))


@pytest.mark.parametrize("name", ["gru_reset_first", "lstm"])
def test_mixed_precision(name):
    with floatx("float32"):
        keras.config.set_dtype_policy("mixed_bfloat16")
        loss, variables, examples = problem(model_of(LAYERS[name], SHAPE), normal(*SHAPE))
        assert_engines_agree(loss, variables, examples, tolerance=0.02)
        actual, expected = norms_of(loss, variables, examples)
        np.testing.assert_allclose(actual, expected, rtol=0.05)


@pytest.mark.parametrize("name", ["lstm", "lstm_over_units", "gru", "gru_reset_first"])
def test_record_that_is_not_finite_contributes_nothing(name):
    assert_broken_record_contributes_nothing(LAYERS[name], SHAPE, (2, 0))


class Loop(L.Layer):
    """Calls a cell step by step, as users write decoders."""

    def __init__(self, cell, in_list=True):
        super().__init__(name="loop")
        self.cell, self.in_list = cell, in_list

    def call(self, inputs):
        states = self.cell.get_initial_state(keras.ops.shape(inputs)[0])
        states, outputs = states if self.in_list else states[0], []
        for step in range(inputs.shape[1]):
            output, states = self.cell(inputs[:, step], states)
            outputs.append(output)
        return keras.ops.stack([*outputs, *tf.nest.flatten(states)], 1)


CELLS = {
    "gru": lambda: Loop(L.GRUCell(3)),
    "gru_by_another_name": lambda: Loop(Renamed(3)),
    "gru_no_bias": lambda: Loop(L.GRUCell(3, use_bias=False)),
    "gru_of_a_tensor": lambda: Loop(L.GRUCell(3), in_list=False),
    "gru_reset_first": lambda: Loop(L.GRUCell(3, reset_after=False)),
    "gru_reset_first_over_units": lambda: Loop(
        L.GRUCell(3, reset_after=False, activation="log_softmax", recurrent_activation="softmax")
    ),
    "lstm": lambda: Loop(L.LSTMCell(3)),
    "lstm_by_gate_over_units": lambda: Loop(L.LSTMCell(3, implementation=1, activation="softmax")),
    "lstm_no_bias": lambda: Loop(L.LSTMCell(3, use_bias=False, activation="relu")),
    "own_function": lambda: Loop(L.LSTMCell(3, activation=lambda x: keras.ops.tanh(x) + 0.1 * x)),
    "simple": lambda: Loop(L.SimpleRNNCell(3)),
    "simple_of_a_tensor": lambda: Loop(L.SimpleRNNCell(3, use_bias=False), in_list=False),
    "stack": lambda: Loop(L.StackedRNNCells([L.LSTMCell(3), L.GRUCell(3)])),
}


@pytest.mark.parametrize("name", sorted(CELLS))
def test_cells_in_a_loop_of_ones_own(name):
    said = explain(model_of(CELLS[name], SHAPE))
    assert said.count("CellRule") == (2 if name == "stack" else 1), said
    assert "record by record" not in said and "weights of its own" not in said
    if name == "stack":  # Keras puts its weights in an order of its own.
        assert_engines_agree(*problem(model_of(CELLS[name], SHAPE), normal(*SHAPE)))
    else:
        assert_layer_is_exact(CELLS[name], SHAPE)


@pytest.mark.parametrize("name", ["gru", "gru_reset_first", "lstm"])
def test_frozen_parts_of_cells_in_a_loop_and_microbatches(name):
    model = model_of(CELLS[name], SHAPE)
    model.layers[2].cell.kernel.trainable = False
    grouping = {"num_microbatches": 2, "microbatch_ids": [1, 0, 1, 1]}
    assert_engines_agree(*problem(model, normal(*SHAPE)))
    assert_engines_agree(*problem(model, normal(*SHAPE)), **grouping)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_cells_in_a_loop_with_xla_and_on_a_record_that_is_not_finite(name):
    assert_agrees_with_xla(*problem(model_of(CELLS[name], SHAPE), normal(*SHAPE)))
    assert_broken_record_contributes_nothing(CELLS[name], SHAPE, (2, 0))


def test_cells_in_a_loop_in_mixed_precision():
    with floatx("float32"):
        keras.config.set_dtype_policy("mixed_bfloat16")
        loss, variables, examples = problem(model_of(CELLS["lstm"], SHAPE), normal(*SHAPE))
        assert_engines_agree(loss, variables, examples, tolerance=0.02)


def test_a_cell_takes_its_arguments_by_the_names_that_keras_gives_them():
    def model(call):
        keras.utils.set_random_seed(1)
        x, h = keras.Input((4,)), keras.Input((3,))
        return keras.Model([x, h], L.Dense(2)(call(L.SimpleRNNCell(3), x, h)[0]))

    rng, sums = np.random.default_rng(0), []
    data = [tf.constant(rng.normal(size=(BATCH, size)), tf.float32) for size in (4, 3)]
    for call in (lambda c, x, h: c(x, [h]), lambda c, x, h: c(sequence=x, states=[h])):
        loss, variables, (_, y) = problem(model(call), data[0])
        assert_engines_agree(loss, variables, (tuple(data), y))
        query = tfdp.GaussianSumQuery(0.3, 1.0)
        sums.append(by_engine(loss, variables, (tuple(data), y), query, "bookkeeping"))
    assert_sums_agree(*sums)


@pytest.mark.parametrize("shapes", [((2, 4), (3,)), ((4,), (2, 3))])
def test_cells_on_other_ranks_are_refused(shapes):
    keras.utils.set_random_seed(1)
    x, h = map(keras.Input, shapes)
    y = L.Flatten()(L.SimpleRNNCell(3)(x, [h])[0])
    model = keras.Model([x, h], L.Dense(2)(y))
    data = tuple(tf.ones([BATCH, *shape]) for shape in shapes)
    loss, variables, (_, y) = problem(model, data[0])
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    with pytest.raises(UnsupportedModelError, match=r"called on \[records, features\]"):
        by_engine(loss, variables, (data, y), query, "bookkeeping")


@pytest.mark.parametrize(
    "cell",
    [
        lambda: L.LSTMCell(3, dropout=0.5),
        lambda: L.GRUCell(3, recurrent_dropout=0.5),
        lambda: L.SimpleRNNCell(3, activation=lambda x: x - tf.reduce_mean(x, 0)),
        lambda: L.LSTMCell(3, recurrent_activation="glu"),
        lambda: OwnCell(3),
        lambda: recomputed(L.LSTMCell),
    ],
)
def test_cells_that_the_rule_does_not_know_run_record_by_record(cell):
    assert rule_for(cell()) is None


DROPOUT = {
    "bidirectional": lambda: L.Bidirectional(L.LSTM(3, dropout=0.5, return_sequences=True)),
    "gru": lambda: L.GRU(3, dropout=0.5),
    "gru_backwards": lambda: L.GRU(3, dropout=0.5, go_backwards=True, return_sequences=True),
    "gru_of_states": lambda: L.GRU(3, recurrent_dropout=0.5, return_sequences=True),
    "gru_of_both": lambda: L.GRU(3, dropout=0.5, recurrent_dropout=0.5, go_backwards=True),
    "gru_of_both_no_bias": lambda: L.GRU(3, dropout=0.5, recurrent_dropout=0.5, use_bias=False),
    "gru_reset_first": lambda: L.GRU(3, dropout=0.5, reset_after=False, return_sequences=True),
    "gru_reset_first_of_both": lambda: L.GRU(
        3, dropout=0.5, recurrent_dropout=0.5, reset_after=False, return_sequences=True
    ),
    "gru_reset_first_of_states": lambda: L.GRU(
        3, recurrent_dropout=0.5, reset_after=False, go_backwards=True
    ),
    "cell_by_gate": lambda: L.RNN(L.LSTMCell(3, dropout=0.5, implementation=1)),
    "lstm_of_both": lambda: L.LSTM(3, dropout=0.5, recurrent_dropout=0.5),
    "lstm_of_both_over_units": lambda: L.LSTM(
        3, dropout=0.5, recurrent_dropout=0.5, activation="softmax"
    ),
    "lstm_of_states": lambda: L.LSTM(3, recurrent_dropout=0.5, return_sequences=True),
    "lstm_unrolled": lambda: L.LSTM(3, dropout=0.5, unroll=True),
    "stack": lambda: stack(3, dropout=0.5, recurrent_dropout=0.5, return_sequences=True),
    "simple": lambda: L.SimpleRNN(3, dropout=0.5, return_sequences=True),
    "simple_of_states": lambda: L.SimpleRNN(3, recurrent_dropout=0.5, return_sequences=True),
}


def mask_by_hand(cell, inputs, rate):
    """A mask that is the same in every engine: of gates, units and what the record holds."""
    wave = tf.range(inputs.shape[-1], dtype=inputs.dtype)
    masks = [
        2 * tf.cast(inputs + tf.sin(2 * wave + gate) > 0, inputs.dtype)
        for gate in range(getattr(cell, "dropout_mask_count", 1))
    ]
    return masks if hasattr(cell, "dropout_mask_count") else masks[0]


@pytest.fixture
def masks(monkeypatch):
    for cell in (L.SimpleRNNCell, L.LSTMCell, L.GRUCell):
        monkeypatch.setattr(cell, "_create_dropout_mask", mask_by_hand)


@pytest.mark.parametrize("name", sorted(DROPOUT))
def test_dropout(name, masks):
    model = model_of(DROPOUT[name], SHAPE)
    assert rules_of(model) == {"RecurrentRule"}
    x = normal(*SHAPE)
    assert_engines_agree(*problem(model, x))
    assert not np.allclose(model(x, training=True), model(x))  # Something was dropped.


@pytest.mark.parametrize(
    "name", ["gru_of_both", "gru_reset_first_of_both", "lstm_of_both", "simple_of_states"]
)
def test_norms_with_dropout_in_double_precision(name, masks):
    with floatx("float64"):
        loss, variables, examples = problem(model_of(DROPOUT[name], SHAPE), normal(*SHAPE))
        actual, expected, sums, loop = norms_and_sums_of(loss, variables, examples)
        np.testing.assert_allclose(actual, expected, rtol=1e-10)
        assert_sums_agree(sums, loop, 1e-10)


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("name", ["gru_reset_first_of_both", "lstm_of_both"])
def test_dropout_of_states_with_either_norm(name, gram, masks, monkeypatch):
    monkeypatch.setattr(products, "gram_is_cheaper", lambda *sizes: gram)
    assert_engines_agree(*problem(model_of(DROPOUT[name], SHAPE), normal(*SHAPE)))


@pytest.mark.parametrize("kind", [L.LSTM, L.GRU, reset_first, L.SimpleRNN])
def test_dropout_of_states_that_are_passed_on(kind, masks):
    """Masks of states differ between records here, and some steps are masked."""

    def dropping(units, **options):
        return kind(units, dropout=0.5, recurrent_dropout=0.5, **options)

    loss, variables, examples = problem(encoder_decoder(dropping), normal(*SHAPE))
    assert_engines_agree(loss, variables, examples)
    grouping = {"num_microbatches": 2, "microbatch_ids": [1, 0, 1, 1]}
    assert_engines_agree(loss, variables, examples, **grouping)


def test_dropout_of_states_with_xla_and_a_length_that_is_not_known(masks):
    keras.utils.set_random_seed(1)
    layer = L.GRU(3, dropout=0.5, recurrent_dropout=0.5, return_sequences=True)
    model = keras.Sequential([keras.Input((None, 4)), layer, L.GlobalAveragePooling1D()])
    loss, variables, examples = problem(model, normal(*SHAPE))
    assert_engines_agree(loss, variables, examples)
    assert_agrees_with_xla(loss, variables, examples)


def test_gradients_by_gate_of_a_length_that_no_graph_knows():
    sizes = [None, 2, None, 3], [None, None, 4]

    @tf.function(input_signature=[tf.TensorSpec(size) for size in sizes])
    def gradients(left, right):
        return recurrent._matrix_gradient(left, right).explicit()

    left, right = normal(2, 5, 3), normal(5, 4)
    by_gate = np.einsum("ngtp,ntgu->npgu", left, right.reshape(len(right), 5, 2, 2))
    actual = gradients(left, right)
    np.testing.assert_allclose(actual, by_gate.reshape(actual.shape), rtol=1e-5, atol=1e-5)


def test_every_record_drops_states_of_its_own():
    """Equal records have gradients of their own, and each step draws again."""
    keras.utils.set_random_seed(1)
    model = model_of(lambda: L.GRU(8, recurrent_dropout=0.5), SHAPE)
    x = np.repeat(normal(*SHAPE)[:1], BATCH, 0)
    loss, variables, (_, y) = problem(model, x)
    total = traced_sum(loss, variables, tfdp.GaussianSumQuery(1e9, 1.0))
    examples = (tf.constant(x), tf.repeat(y[:1], BATCH, 0))
    alone = [total(examples, tf.range(BATCH) == i)[1].numpy() for i in range(BATCH)]
    for i in range(BATCH):
        for j in range(i):
            assert not np.allclose(alone[i], alone[j], rtol=1e-3)


class OwnCell(L.LSTMCell):
    """Might do anything."""

    def call(self, inputs, states, training=False):
        return super().call(inputs, states, training)


class OwnStack(L.StackedRNNCells):
    """Likewise."""


def patched(layer):
    layer.cell.call = type(layer.cell).call.__get__(layer.cell)
    return layer


def recomputed(cell):
    with keras.RematScope(mode="full"):
        return cell(3)


NO_RULE = {
    "activation_of_half_the_units": lambda: L.LSTM(3, activation="glu"),
    "dropout_of_everything": lambda: L.LSTM(3, dropout=1.0),
    "own_activation": lambda: L.LSTM(3, activation=lambda x: x - tf.reduce_mean(x, 0)),
    "own_cell": lambda: L.RNN(OwnCell(3)),
    "patched_cell": lambda: patched(L.LSTM(3)),
    "own_recurrent_activation": lambda: L.GRU(3, recurrent_activation=lambda x: x),
    "recomputed_cell": lambda: L.RNN(recomputed(L.LSTMCell)),
    "recurrent_dropout_of_everything": lambda: L.SimpleRNN(3, recurrent_dropout=1.0),
    "channels_first": lambda: L.ConvLSTM1D(3, 2, data_format="channels_first"),
    "convolution_activation": lambda: L.ConvLSTM2D(3, 2, activation=lambda x: x),
    "convolution_stateful": lambda: L.ConvLSTM2D(3, 2, stateful=True),
    "convolutions_in_a_stack": lambda: L.RNN([L.ConvLSTM1D(3, 2).cell] * 2),
    "own_cell_in_a_stack": lambda: L.RNN([L.LSTMCell(3), OwnCell(3)]),
    "own_stack": lambda: L.RNN(OwnStack([L.LSTMCell(3), L.LSTMCell(3)])),
    "patched_stack": lambda: patched(L.RNN([L.LSTMCell(3), L.LSTMCell(3)])),
    "recomputed_stack": lambda: L.RNN(
        recomputed(lambda units: L.StackedRNNCells([L.LSTMCell(units), L.LSTMCell(units)]))
    ),
    "stack_without_one_rule": lambda: L.RNN([L.LSTMCell(3), L.GRUCell(3, activation="glu")]),
    "stateful": lambda: L.LSTM(3, stateful=True),
}


@pytest.mark.parametrize("name", sorted(NO_RULE))
def test_what_the_rule_does_not_know_runs_record_by_record(name):
    assert rule_for(NO_RULE[name]()) is None


def test_layers_are_as_before():
    """Nothing stays replaced in a layer, nor where its call fails."""
    model = model_of(LAYERS["gru"], SHAPE)
    loss, variables, examples = problem(model, normal(*SHAPE))
    layer = model.layers[2]
    before = vars(layer).get("inner_loop")
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    by_engine(loss, variables, examples, query, "bookkeeping")
    with pytest.raises(ValueError, match="Matrix size-incompatible|incompatible|must match"):
        by_engine(loss, variables, (examples[0][..., :2], examples[1]), query, "bookkeeping")
    assert vars(layer).get("inner_loop") is before
