"""Layers that the code of a block calls on several rows of each record: frames, windows, views."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.blocks_test import Code
from tests.gradients.problems import (
    BATCH,
    assert_agrees_with_xla,
    assert_engines_agree,
    assert_sums_agree,
    by_engine,
    head,
    normal,
    norms_and_sums_of,
    problem,
)
from tfdp.gradients import UnsupportedModelError, explain

L, K = keras.layers, keras.ops
FRAMES, SIZE, WIDTH = BATCH, 4, 3  # As many frames as records, which must not meet.


def images_of(x):
    return K.reshape(x, (-1, *x.shape[2:]))


def frames():
    def code(block, x):
        h = block.flatten(block.conv(images_of(x)))
        return K.reshape(h, (-1, FRAMES, h.shape[1]))

    return Code(code, conv=L.Conv2D(2, 3, activation="tanh"), flatten=L.Flatten())


def by_number_of_records():
    def code(block, x):
        n = K.shape(x)[0]
        h = block.dense(K.reshape(x, (n * FRAMES, SIZE * SIZE * WIDTH)))
        h = block.second(K.relu(h))
        return K.reshape(h, (K.shape(h)[0] // FRAMES, FRAMES, 2))

    return Code(code, dense=L.Dense(3), second=L.Dense(2))


def encoder():
    """A model on every frame, and an LSTM on what it returns."""
    parts = [L.Conv2D(2, 2, strides=2), L.LayerNormalization(), L.Flatten(), L.Dense(3, "tanh")]
    model = keras.Sequential([keras.Input((SIZE, SIZE, WIDTH)), *parts])

    def code(block, x):
        return block.lstm(K.reshape(block.model(images_of(x)), (-1, FRAMES, 3)))

    return Code(code, model=model, lstm=L.LSTM(2))


def functional():
    inputs = keras.Input((SIZE, SIZE, WIDTH))
    hidden = L.Conv2D(WIDTH, 3, padding="same")(inputs)
    model = keras.Model(inputs, L.GlobalAveragePooling2D()(K.relu(hidden + inputs)))
    return Code(lambda b, x: K.reshape(b.model(images_of(x)), (-1, FRAMES, WIDTH)), model=model)


def windows():
    """Attention in windows of two by two pixels, as in a Swin Transformer."""

    def code(block, x):
        x = x[:, 0]
        h = K.reshape(x, (-1, 2, 2, 2, 2, WIDTH))
        h = K.reshape(K.transpose(h, (0, 1, 3, 2, 4, 5)), (-1, 4, WIDTH))
        h = block.norm(block.attention(h, h) + h)
        h = K.transpose(K.reshape(h, (-1, 2, 2, 2, 2, WIDTH)), (0, 1, 3, 2, 4, 5))
        return K.reshape(h, (-1, SIZE, SIZE, WIDTH)) + x

    return Code(code, attention=L.MultiHeadAttention(2, 2), norm=L.LayerNormalization())


def rows_and_records():
    """One layer on records and on rows of them."""

    def code(block, x):
        rows = block.dense(K.reshape(x, (-1, WIDTH)))
        return K.reshape(rows, (-1, FRAMES, SIZE, SIZE, 2)) + block.dense(x)

    return Code(code, dense=L.Dense(2))


def twice():
    """Rows of rows."""

    def code(block, x):
        h = block.first(K.reshape(x, (-1, SIZE, SIZE * WIDTH)))  # Each frame is one.
        h = block.second(K.reshape(h, (-1, 3)))  # And so is each row of it.
        return K.reshape(h, (-1, FRAMES, SIZE, 2))

    return Code(code, first=L.Dense(3), second=L.Dense(2))


def frozen():
    block = by_number_of_records()
    block.dense.trainable = False
    return block


def steps():
    """TimeDistributed on rows of records: rows of these rows."""

    def code(block, x):
        h = block.steps(images_of(x))
        return K.reshape(h, (-1, FRAMES, SIZE, 2))

    inner = keras.Sequential([L.Flatten(), L.Dense(2)])
    return Code(code, steps=L.TimeDistributed(inner))


class KeepsRowsApart(L.Layer):
    """A block on rows of records."""

    def __init__(self):
        super().__init__(name="inner")
        self.dense, self.norm = L.Dense(3), L.LayerNormalization()

    def call(self, inputs):
        return K.tanh(self.norm(self.dense(inputs)))


class WithWeights(KeepsRowsApart):
    """One that has weights of its own."""

    def __init__(self):
        super().__init__()
        self.shift = self.add_weight(shape=(3,), initializer="ones")

    def call(self, inputs):
        return super().call(inputs) * self.shift


def on_rows(layer):
    def code(block, x):
        return K.reshape(block.layer(K.reshape(x, (-1, SIZE * SIZE * WIDTH))), (-1, FRAMES, 3))

    return Code(code, layer=layer)


ON_BATCH = {
    "block": lambda: on_rows(KeepsRowsApart()),
    "block_with_weights": lambda: on_rows(WithWeights()),
    "by_number_of_records": by_number_of_records,
    "encoder": encoder,
    "frames": frames,
    "frozen": frozen,
    "functional": functional,
    "rows_and_records": rows_and_records,
    "steps": steps,
    "twice": twice,
    "windows": windows,
}


def model_of(block):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((FRAMES, SIZE, SIZE, WIDTH))
    return keras.Model(inputs, head(block(L.Dense(WIDTH, name="first")(inputs))))


def problem_of(block):
    return problem(model_of(block), normal(FRAMES, SIZE, SIZE, WIDTH))


@pytest.mark.parametrize("name", ON_BATCH)
def test_layers_on_rows_of_records_run_on_the_batch_and_are_exact(name):
    loss, variables, examples = problem_of(ON_BATCH[name]())
    assert "record by record" not in explain(loss.model)
    assert_engines_agree(loss, variables, examples)
    norms, by_loop, *sums = norms_and_sums_of(loss, variables, examples)
    np.testing.assert_allclose(norms, by_loop, rtol=1e-4, atol=1e-6)
    for own, loop in zip(*sums, strict=True):
        np.testing.assert_allclose(own, loop, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["frames", "windows"])
def test_they_compile(name):
    assert_agrees_with_xla(*problem_of(ON_BATCH[name]()))


class MixesRows(L.Layer):
    """Sees all rows of a record at once in Keras: it is called on a batch of one."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(3)

    def call(self, inputs):
        h = self.dense(inputs)
        return h - K.mean(h, 0, keepdims=True)


class MixesMasks(KeepsRowsApart):
    """Its mask tells of all rows of a record."""

    def compute_mask(self, inputs, mask=None):
        return K.mean(inputs, 0) > 0


@keras.saving.register_keras_serializable("rows_in_blocks_test")
def centred(x):
    return x - K.mean(x, 0, keepdims=True)


@pytest.mark.parametrize(
    "layer",
    [
        MixesRows,
        MixesMasks,
        lambda: keras.Sequential([MixesRows()]),
        lambda: keras.Sequential([L.Dense(3), L.UnitNormalization(axis=0)]),
        lambda: L.Dense(3, activation=centred),
    ],
)
def test_a_layer_that_may_mix_the_rows_of_a_record_runs_in_the_block_by_record(layer):
    loss, variables, examples = problem_of(on_rows(layer()))
    assert "block: record by record: layer" in explain(loss.model).replace(
        loss.model.layers[2].layer.name, "layer"
    )
    assert_engines_agree(loss, variables, examples)


def test_one_draw_for_all_images_is_not_made_for_the_rows_of_several_records():
    def code(block, x):
        return K.reshape(block.crop(images_of(x)), (-1, FRAMES, 2, 2, WIDTH))

    # Record by record it is refused, as docs/engines.md says of crops.
    with pytest.raises(ValueError, match="slice whose length follows"):
        explain(model_of(Code(code, crop=L.RandomCrop(2, 2))))


def test_each_row_has_a_mask_of_its_own():
    def code(block, x):
        return K.reshape(block.drop(images_of(x)), (-1, FRAMES, SIZE, SIZE, WIDTH))

    inputs = keras.Input((FRAMES, SIZE, SIZE, WIDTH))
    hidden = L.Dense(WIDTH, use_bias=False, kernel_initializer="ones")(inputs)
    model = keras.Model(inputs, Code(code, drop=L.SpatialDropout2D(0.5))(hidden))
    assert "record by record" not in explain(model)
    outputs = tfdp.clipped_gradient_sum(
        tfdp.gradients.ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs)),
        model.trainable_variables,
        (tf.ones([50, FRAMES, SIZE, SIZE, WIDTH]), tf.zeros([50])),
        tfdp.GaussianSumQuery(1.0, 1.0),
        engine="bookkeeping",
        has_aux=True,
    ).aux
    kept = np.reshape(outputs, [50, FRAMES, SIZE * SIZE, WIDTH])[:, :, 0] > 0
    # Of 200 rows with three channels each, half of the channels are kept, each by itself: within
    # 6.2 standard deviations. All rows of a record alike would be so in 1 of 8^3.
    assert abs(kept.mean() - 0.5) < 6.2 * 0.5 / np.sqrt(kept.size)
    alike = (kept == kept[:, :1]).all((1, 2)).mean()
    assert alike < 0.3


class Weighted(L.Layer):
    """Calls a layer on rows of records, and has a weight of its own."""

    def __init__(self):
        super().__init__(name="block")
        self.dense = L.Dense(3)
        self.scale = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x):
        h = self.dense(K.reshape(x, (-1, SIZE * SIZE * WIDTH)))
        return K.reshape(h, (-1, FRAMES, 3)) * self.scale


def test_a_block_with_weights_of_its_own_runs_record_by_record():
    loss, variables, examples = problem_of(Weighted())
    assert "it parts records into rows, and has weights of its own" in explain(loss.model)
    assert_engines_agree(loss, variables, examples)


class Sometimes(L.Layer):
    """Keeps rows apart where it is called on matrices."""

    def call(self, inputs):
        return inputs - K.mean(inputs, 0, keepdims=True) if len(inputs.shape) < 3 else inputs


tfdp.gradients.register_rule(
    Sometimes, tfdp.gradients.RecordWise(called_on=lambda layer, x: len(x.shape) > 2)
)


def test_a_call_for_which_a_promise_does_not_hold_is_refused():
    loss, variables, examples = problem_of(on_rows(keras.Sequential([L.Dense(3), Sometimes()])))
    with pytest.raises(UnsupportedModelError, match="is called on rows of records in a"):
        explain(loss.model)
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    sums = [by_engine(loss, variables, examples, query, engine) for engine in ("auto", "loop")]
    assert_sums_agree(*sums)


def code_of_others(block, x):
    h = K.reshape(K.transpose(x, (1, 0, 2, 3, 4)), (-1, SIZE * SIZE * WIDTH))
    return K.transpose(K.reshape(block.dense(h), (FRAMES, -1, 3)), (1, 0, 2))


def code_of_pairs(block, x):
    h = K.reshape(x, (-1, SIZE * SIZE * WIDTH))
    return K.reshape(block.dense(h - K.flip(h, 0)), (-1, FRAMES, 3))


def code_of_a_batch(block, x):
    h = K.reshape(x, (-1, 2, SIZE * SIZE * WIDTH))  # Pairs of frames.
    return K.reshape(block.dense(h[:, 0]), (-1, FRAMES // 2, 3)) + 0 * K.mean(x)


@pytest.mark.parametrize("code", [code_of_others, code_of_pairs, code_of_a_batch])
def test_rows_that_are_not_those_of_one_record_do_not_run_on_the_batch(code):
    lines = explain(model_of(Code(code, dense=L.Dense(3))))
    assert "block: record by record" in lines


def frames_by_a_model(x):
    inputs = keras.Input((SIZE, SIZE, WIDTH))
    model = keras.Model(inputs, L.Flatten()(L.Conv2D(2, 3, activation="tanh")(inputs)))
    return K.reshape(model(images_of(x)), (-1, FRAMES, 2 * (SIZE - 2) ** 2))


def windows_of_images(x):
    h = K.reshape(x[:, 0], (-1, 2, 2, 2, 2, WIDTH))
    h = K.reshape(K.transpose(h, (0, 1, 3, 2, 4, 5)), (-1, 4, WIDTH))
    h = L.Dropout(0.0)(L.MultiHeadAttention(2, 2)(h, h)) + h
    h = K.transpose(K.reshape(h, (-1, 2, 2, 2, 2, WIDTH)), (0, 1, 3, 2, 4, 5))
    return K.reshape(h, (-1, SIZE, SIZE, WIDTH))


def model_in_a_model(x):
    inputs = keras.Input((FRAMES, SIZE, SIZE, WIDTH))
    return keras.Model(inputs, frames_by_a_model(inputs))(x)


def mean_of_numbers(x):
    h = K.mean(L.Dense(3)(K.reshape(x, (-1, SIZE * SIZE * WIDTH))), -1, keepdims=True)
    return K.reshape(h, (-1, FRAMES))


def axis_in_front(x):
    h = K.squeeze(K.expand_dims(K.transpose(x, (1, 0, 2, 3, 4)), 0), 0)
    return L.Dense(2)(K.transpose(h, (1, 0, 2, 3, 4)))


def functional_of(code):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((FRAMES, SIZE, SIZE, WIDTH))
    return keras.Model(inputs, head(code(L.Dense(WIDTH, name="first")(inputs))))


# Operations of a functional model, rather than code of a block.
OPERATIONS = {
    "axis_in_front": axis_in_front,
    "frames": frames_by_a_model,
    "mean_of_numbers": mean_of_numbers,
    "model_in_a_model": model_in_a_model,
    "windows": windows_of_images,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_a_functional_model_may_make_rows_of_records(name):
    model = functional_of(OPERATIONS[name])
    text = explain(model)
    assert "block, on the batch" in text
    assert "record by record" not in text
    assert_engines_agree(*problem(model, normal(FRAMES, SIZE, SIZE, WIDTH)))


def test_a_functional_model_that_makes_rows_has_masks():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((FRAMES, SIZE), dtype="int32")
    embedded = L.Embedding(5, WIDTH, mask_zero=True)(K.reshape(inputs, (-1, SIZE)))
    outputs = head(K.reshape(L.LSTM(2)(embedded), (-1, FRAMES, 2)))
    model = keras.Model(inputs, outputs)
    assert "record by record" not in explain(model)
    tokens = np.random.default_rng(0).integers(0, 5, (BATCH, FRAMES, SIZE)).astype("int32")
    assert_engines_agree(*problem(model, tokens))


def test_a_functional_model_that_makes_rows_compiles():
    model = functional_of(windows_of_images)
    assert_agrees_with_xla(*problem(model, normal(FRAMES, SIZE, SIZE, WIDTH)))


def rows_of_others(x):
    h = K.reshape(K.transpose(x, (1, 0, 2, 3, 4)), (-1, SIZE * SIZE * WIDTH))
    return K.transpose(K.reshape(L.Dense(3)(h), (FRAMES, -1, 3)), (1, 0, 2))


def rows_that_meet(x):
    h = K.reshape(x, (-1, SIZE * SIZE * WIDTH))
    return K.reshape(L.Dense(3)(h - K.flip(h, 0)), (-1, FRAMES, 3))


def positions_as_records(x):
    return K.transpose(L.Dense(2)(K.transpose(x, (1, 0, 2, 3, 4))), (1, 0, 2, 3, 4))


@pytest.mark.parametrize("code", [rows_of_others, rows_that_meet, positions_as_records])
def test_a_functional_model_whose_rows_are_not_those_of_one_record_is_refused(code):
    model = functional_of(code)
    with pytest.raises(
        UnsupportedModelError,
        match="Operations of Functional .* not known to keep its records apart",
    ):
        explain(model)
    loss, variables, examples = problem(model, normal(FRAMES, SIZE, SIZE, WIDTH))
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    sums = [by_engine(loss, variables, examples, query, engine) for engine in ("auto", "loop")]
    assert_sums_agree(*sums)


def test_an_operation_that_mixes_records_does_not_make_rows_of_them():
    model = functional_of(lambda x: x - K.mean(x, 0, keepdims=True))
    assert "record by record: Mean" in explain(model)


class Unsure(keras.Operation):
    """An operation that says nothing of a batch of a known size."""

    def call(self, x):
        return K.tanh(x)

    def compute_output_spec(self, x):
        return keras.KerasTensor((None if x.shape[0] is None else x.shape[0] + "?", *x.shape[1:]))


def test_an_operation_that_does_not_say_what_it_makes_is_taken_to_make_no_rows():
    model = functional_of(lambda x: Unsure()(x))
    assert "block" not in explain(model)
    assert_engines_agree(*problem(model, normal(FRAMES, SIZE, SIZE, WIDTH)))
