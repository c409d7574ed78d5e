"""Blocks of users, on the batch where they keep the records apart."""

import contextlib

import keras
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    apply,
    assert_engines_agree,
    assert_layer_is_exact,
    assert_sums_agree,
    by_engine,
    floatx,
    head,
    how_it_runs,
    lora,
    model_of,
    normal,
    problem,
)
from tfdp.gradients import UnsupportedModelError, blocks

L, K = keras.layers, keras.ops


class Code(L.Layer):
    """A block whose code is a function of its layers and its input."""

    def __init__(self, code, **layers):
        super().__init__(name="block")
        self.code = code
        for name, layer in layers.items():
            setattr(self, name, layer)

    def call(self, inputs):
        return self.code(self, inputs)


def dense(code, width=4):
    return lambda: Code(code, dense=L.Dense(width))


def heads(block, x):
    shape = K.shape(x)
    h = K.reshape(block.dense(x), (shape[0], shape[1], 2, 2))
    h = K.transpose(h, (0, 2, 1, 3))
    h = K.matmul(K.softmax(K.matmul(h, K.transpose(h, (0, 1, 3, 2)))), h)
    return x + K.reshape(K.transpose(h, (0, 2, 1, 3)), (shape[0], shape[1], 4))


def heads_of_one_product(block, x):
    shape = K.shape(x)
    h = K.reshape(block.dense(x), (shape[0], shape[1], 3, 2, 2))
    q, k, v = K.unstack(K.transpose(h, (2, 0, 3, 1, 4)), 3)
    h = K.matmul(K.softmax(K.matmul(q, K.transpose(k, (0, 1, 3, 2)))), v)
    return x + K.reshape(K.transpose(h, (0, 2, 1, 3)), (shape[0], shape[1], 4))


def heads_of_an_open_length(block, x):
    shape = K.shape(x)
    h = K.reshape(block.dense(x), (shape[0], -1, 2, 2))
    h = h + K.tanh(K.reshape(block.dense(x), (shape[0], -1, 2, 2)))
    places = K.arange(K.shape(h)[1])
    near = K.cast(K.abs(places[:, None] - places[None]) < 2, h.dtype)
    scores = K.einsum("bqnd,bknd->bnqk", h, h) + K.zeros((1, 2, shape[1], K.shape(h)[1]))
    h = K.einsum("bnqk,bknd->bqnd", scores * near, h)
    return x + K.reshape(h, (shape[0], -1, 4))


def causal():
    def code(block, x):
        places = tf.range(tf.shape(x)[1])
        mask = tf.cast(places[:, None] >= places, tf.int32)[None]
        times = tf.concat([tf.expand_dims(tf.shape(x)[0], -1), tf.constant([1, 1])], 0)
        return x + block.attention(x, x, attention_mask=tf.tile(mask, times))

    return Code(code, attention=L.MultiHeadAttention(2, 2))


def masked(mask):
    """Attention with a mask that all records share."""
    return lambda: Code(
        lambda b, x: b.attention(x, x, attention_mask=mask), attention=L.MultiHeadAttention(2, 2)
    )


def causal_by_lengths(block, x):
    """Lengths of which TensorFlow knows none: all layers have been called before."""
    rows = tf.shape(x)[0]
    heads = [tf.transpose(tf.reshape(d(x), (rows, -1, 2, 2)), [0, 2, 1, 3]) for d in block.layers]
    scores = tf.matmul(heads[0], heads[1], transpose_b=True)
    length = tf.shape(scores)[2]
    mask = tf.range(length)[:, None] >= tf.range(length)
    mask = tf.cast(tf.reshape(mask, [1, 1, length, length]), x.dtype)
    h = tf.matmul(tf.nn.softmax(scores * mask - 1e4 * (1 - mask)), heads[2])
    return tf.reshape(tf.transpose(h, [0, 2, 1, 3]), (rows, BATCH, 4))


def spectra(block, x):
    h = K.reshape(block.dense(x), (-1, 4 * BATCH))
    return K.abs(tf.signal.stft(h, 8, 4, 8)) + 1e-3


def attention():
    def code(block, x):
        h = block.norm(x)
        return x + block.out(block.attention(h, h))

    return Code(
        code,
        norm=L.LayerNormalization(),
        attention=L.MultiHeadAttention(2, 2),
        out=L.Dense(4),
    )


def nested():
    inner = Code(lambda b, x: K.relu(b.dense(x)) + x, dense=L.Dense(4))
    return Code(lambda b, x: b.inner(b.norm(x)), inner=inner, norm=L.LayerNormalization())


def never_called():
    return Code(
        lambda b, x: b.dense(x) + x,
        dense=L.Dense(4),
        norm=L.LayerNormalization(),
        gru=L.GRU(4),
    )


def given_back(layer):
    """A block with a layer that returns what it is called on, which is used again."""
    return lambda: Code(
        lambda b, x: x + b.first(b.same(x)) + b.second(b.same(b.first(x)) * x),
        same=layer(),
        first=L.Dense(4),
        second=L.Dense(4),
    )


def routed(block, x):
    """Weighs by a softmax, to whose results Keras attaches what it is called on."""
    logits = K.zeros_like(x)
    for _ in range(2):
        logits = logits + block.softmax(logits) * block.dense(x)
    return block.softmax(x) * x + logits


def with_assertions(block, x):
    tf.debugging.assert_greater_equal(len(x.shape), 2)
    tf.debugging.assert_equal(x.shape[-1], 4)
    tf.debugging.assert_greater(16, 2, message="of numbers that are known")
    return block.dense(x)


def windows(block, x):
    """Parts positions into windows, in which features meet positions."""
    parts = K.transpose(block.dense(K.reshape(x, (-1, 2, 4))), (0, 2, 1))
    return K.reshape(K.transpose(K.softmax(parts), (0, 2, 1)), (-1, BATCH, 4))


def part_frozen():
    return Code(
        lambda b, x: b.second(b.first(x) + x),
        first=L.Dense(4, activation="tanh", trainable=False),
        second=L.Dense(4),
    )


def excite():
    def code(block, x):
        return x * K.sigmoid(block.dense(K.mean(x, axis=1, keepdims=True)))

    return Code(code, dense=L.Dense(4))


def positions(make):
    """A block whose code makes the positions of every record."""

    def code(block, x):
        return block.dense(x) + block.table(make(K.shape(x)[0], K.arange(BATCH)[None]))

    return lambda: Code(code, dense=L.Dense(4), table=L.Embedding(BATCH, 4))


def near(block, x):
    """Scores by how far apart positions are, in DeBERTa's way."""
    scores = K.einsum("bij,bkj->bik", block.dense(x), x)
    apart = K.clip(K.arange(BATCH)[:, None] - K.arange(BATCH), -1, 2) + 1
    apart = K.broadcast_to(apart[None], (K.shape(x)[0], BATCH, BATCH))
    return tf.gather(scores, apart, batch_dims=2) + K.take_along_axis(scores, apart, 2)


def nearest(block, x):
    """Which of three vectors is nearest, as a number goes through it."""
    h, table = block.dense(x), K.reshape(K.arange(12.0) / 6, (3, 4))
    place = K.argmin(K.sum(K.square(h[:, :, None] - table), -1), -1)
    return h + K.stop_gradient(K.take(table, place, axis=0) - h)


def average_that_nobody_uses(block, x):
    """What could mix records, and leads to nothing."""
    h = block.dense(x)
    average = K.mean(h, axis=0)
    block.kept = K.sum(average * K.cast(K.shape(x)[0], h.dtype))
    return h * x


ON_BATCH = {
    "average_that_nobody_uses": dense(average_that_nobody_uses),
    "at_places_that_may_not_exist": dense(
        lambda b, x: b.dense(x) + K.take(K.arange(4.0), K.cast(K.clip(x, 0, 3), "int32"))
    ),
    "at_places_of_its_own": dense(
        lambda b, x: K.take_along_axis(b.dense(x), K.argsort(x, axis=1), axis=1)
    ),
    "attention": attention,
    "attention_by_hand": dense(heads),
    "attention_of_an_open_length": dense(heads_of_an_open_length),
    "attention_of_one_product": dense(heads_of_one_product, 12),
    "causal": causal,
    "causal_by_lengths": lambda: Code(causal_by_lengths, layers=[L.Dense(4) for _ in range(3)]),
    "called_twice": dense(lambda b, x: b.dense(K.tanh(b.dense(x))) + x),
    "cropped": dense(
        lambda b, x: tf.image.pad_to_bounding_box(
            tf.image.crop_to_bounding_box(b.dense(x)[..., None], 1, 1, 3, 2), 0, 1, 4, 4
        )[..., 0]
    ),
    "excite": excite,
    "given_back_by_dropout": given_back(lambda: L.Dropout(0.0)),
    "given_back_by_its_own_code": given_back(lambda: Code(lambda b, x: x)),
    "given_back_by_identity": given_back(L.Identity),
    "mask_of_all": masked(tf.linalg.band_part(tf.ones([1, BATCH, BATCH], tf.bool), -1, 0)),
    "mask_of_all_of_one_matrix": masked(tf.linalg.band_part(tf.ones([BATCH] * 2, tf.int32), -1, 0)),
    "near": dense(near),
    "nearest": dense(nearest),
    "nested": nested,
    "part_frozen": part_frozen,
    "positions": positions(lambda n, row: K.broadcast_to(row, (n, BATCH))),
    "positions_counted": positions(lambda n, row: K.cumsum(K.ones((n, BATCH), "int32"), 1) - 1),
    "positions_from_the_end": positions(lambda n, row: BATCH - 1 - K.tile(row, (n, 1))),
    "positions_repeated": positions(lambda n, row: K.repeat(row, n, axis=0)[:, ::-1]),
    "positions_where": dense(
        lambda b, x: K.where(
            K.tile(K.arange(4)[None], (K.shape(x)[0], 1))[..., None] < 2, x, b.dense(x)
        )
    ),
    "reshaped_as_it_is": dense(
        lambda b, x: (
            b.dense(tf.reshape(x, tf.shape(x))) * tf.reshape(K.cast(TABLE, x.dtype)[:1] * 2, [1, 4])
        )
    ),
    "routed": lambda: Code(routed, dense=L.Dense(4), softmax=L.Softmax()),
    "residual": dense(lambda b, x: x + K.gelu(b.dense(x), approximate=False)),
    "spectra": dense(spectra),
    "windows": dense(windows),
    "with_assertions": dense(with_assertions),
    # Keras adds one row as a bias.
    "sum_of_rows": dense(lambda b, x: K.add(b.dense(x)[:, :1], x[:, 1:2])),
    "smooth_unit_of_rows": dense(
        lambda b, x: K.reshape(b.dense(tf.nn.silu(K.reshape(x, (-1, 4)))), (-1, BATCH, 4))
    ),
    # TensorFlow reshapes vectors where it does not know how many there are.
    "product_of_vectors": dense(
        lambda b, x: tf.tensordot(b.dense(x)[:, 0], K.cast(TABLE, x.dtype), [[1], [1]])[..., None]
    ),
    "sum_of_vectors": dense(lambda b, x: K.add(b.dense(x)[:, 0], x[:, 1])[:, None]),
}


@pytest.fixture
def decisions(monkeypatch):
    """Whether every block that was tried out ran on the batch."""
    found, tried = [], blocks.Blocks.tried

    def noted(*args):
        trial = tried(*args)
        found.append(trial is not None)
        return trial

    monkeypatch.setattr(blocks.Blocks, "tried", noted)
    return found


@pytest.mark.parametrize("name", sorted(ON_BATCH))
def test_block_on_the_batch_is_exact(name, decisions):
    assert_layer_is_exact(ON_BATCH[name], (BATCH, 4))
    assert decisions and all(decisions)


OPEN = {
    "block": lambda: Code(lambda b, x: b.attention(x, x), attention=L.MultiHeadAttention(2, 2)),
    "convolution": lambda: L.Conv1D(3, 2),
    "dense": lambda: L.Dense(3),
    "einsum": lambda: L.EinsumDense("abc,cd->abd", (None, 3)),
    "lora": lambda: lora(L.Dense(3)),
    "recurrent": lambda: L.GRU(3),
    "steps": lambda: L.TimeDistributed(L.Dense(2)),
}


@pytest.mark.parametrize("name", OPEN)
def test_layers_in_a_block_know_lengths_that_its_code_leaves_open(name, decisions):
    keras.utils.set_random_seed(1)
    layer = OPEN[name]()
    apply(layer, keras.KerasTensor((None, 4, 4)))

    def code(block, x):
        h = K.reshape(x, (K.shape(x)[0], 4, 2, 2))
        h = K.tanh(K.reshape(h, (K.shape(x)[0], K.shape(h)[1], -1)))
        h = apply(block.inner, h)
        return K.sum(K.reshape(h, (K.shape(x)[0], -1)), 1, keepdims=True)

    assert_engines_agree(*problem(model_of(lambda: Code(code, inner=layer), (4, 4)), normal(4, 4)))
    assert decisions and all(decisions)


# Keras says that the layers are not built, which they need not be.
@pytest.mark.filterwarnings("ignore:`build.*was called on layer")
def test_layers_that_are_never_called_do_no_harm(decisions):
    assert_layer_is_exact(never_called, (BATCH, 4))
    assert decisions and all(decisions)


def by_length(block, x):
    return block.dense(x) * (3.0 if x.shape[0] == 1 else 1.0)


def order_by_length(block, x):
    h = block.dense(x)
    return h - x if x.shape[0] == 1 else x - h


def another_bias_of_one(block, x):
    h, rows = block.dense(x)[:, 0], (x[:, 1], x[:, 2])
    if x.shape[0] == 1:
        return tf.nn.bias_add(h, tf.squeeze(rows[1]))[:, None]
    return (h + rows[0])[:, None]


def bias_of_the_first_by_length(block, x):
    h, y = block.dense(x)[:, 0], K.square(x[:, 1])
    if x.shape[0] == 1:
        bias = tf.squeeze(y)
        return tf.nn.bias_add(tf.nn.bias_add(h, bias), bias)[:, None]
    return (h + y)[:, None]


def copy_of_the_bias_of_one(block, x):
    h, y = block.dense(x)[:, 0], K.square(x[:, 1])
    if x.shape[0] == 1:
        bias = tf.squeeze(y)
        copy = tf.transpose(bias, [0])
        tf.nn.bias_add(h, bias)
        return (h * copy)[:, None]
    return (h * (h + y))[:, None]


def positions_by_length(block, x):
    row = K.arange(BATCH) + (1 if x.shape[0] == 1 else 0)
    row = K.broadcast_to(row[None], (K.shape(x)[0], BATCH))
    return block.dense(x) * K.cast(row, x.dtype)[..., None]


def positions_of_zeros_by_length(block, x):
    row = K.cumsum(K.zeros((K.shape(x)[0], BATCH), "int32"), 1)
    return block.dense(x) * K.cast(row + (1 if x.shape[0] == 1 else 2), x.dtype)[..., None]


def integers_by_length(block, x):
    number = K.cast(10 * x, "int32")
    number = number + 1 if x.shape[0] == 1 else number * 2
    return block.dense(x) + K.cast(number, x.dtype)


def ones_by_length(block, x):
    number = 3 if x.shape[0] == 1 else 2
    return block.dense(x) + K.sum(tf.ones((tf.shape(x)[0], 1, number), x.dtype), -1, keepdims=True)


def square_of_ones(x):
    """Ones [n, n] that are made of records: each knows how many there are."""
    rows = K.shape(x)[0]
    return tf.broadcast_to(0 * x[:, 0, :1] + 1, [rows, rows])


@tf.custom_gradient
def own_gradient(x):
    return tf.identity(x), lambda g: g - tf.reduce_mean(g, 0, keepdims=True)


@tf.function(autograph=False)
def shifted(x, by=0.5):
    return tf.nn.relu(x - by) + shifted_inside(x)


@tf.function
def shifted_inside(x):
    return tf.sin(x) * tf.cast(tf.shape(x)[1], x.dtype)


@tf.function(jit_compile=True)
def shifted_by_xla(x):
    return x - 0.5


@tf.function
def only_with_autograph(x):
    return x + 1.0 if tf.reduce_sum(x) > 0 else x


class Undecorated(L.Layer):
    """A block with a weight of its own."""

    def __init__(self):
        super().__init__(name="block")
        self.dense = L.Dense(4)

    def build(self, shape):
        self.scale = self.add_weight(shape=(4,), initializer="uniform", name="scale")

    def call(self, inputs):
        return tf.tanh(self.dense(inputs)) * self.scale + shifted(inputs, by=0.1)


class Decorated(Undecorated):
    call = tf.function(Undecorated.call)


# name -> (a layer that calls functions, whether it runs on the batch)
FUNCTIONS = {
    "autograph": (dense(lambda b, x: only_with_autograph(b.dense(x))), False),
    "helper": (dense(lambda b, x: shifted(b.dense(x))), True),
    "mean": (dense(lambda b, x: b.dense(x) - tf.function(tf.reduce_mean)(x, 0)), False),
    "xla": (dense(lambda b, x: shifted_by_xla(b.dense(x))), False),
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_are_a_part_of_the_code_that_calls_them(name, decisions):
    make, is_on_batch = FUNCTIONS[name]
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    in_turn = pytest.warns(UserWarning, match="may give results of other sizes")
    with in_turn if name == "autograph" else contextlib.nullcontext():
        assert_engines_agree(*problem(model_of(make, (BATCH, 4)), normal(BATCH, 4)), query)
    assert decisions and all(decisions) is is_on_batch


def test_a_layer_whose_call_is_decorated():
    """Other engines see no gradients of layers in it, and refuse it."""
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    decorated, undecorated = (
        by_engine(*problem(model_of(make, (BATCH, 4)), normal(BATCH, 4)), query, "bookkeeping")
        for make in (Decorated, Undecorated)
    )
    assert_sums_agree(decorated, undecorated)


class Notes(L.Layer):
    """Keeps an average in a metric, and may go on with it."""

    def __init__(self, reads):
        super().__init__()
        self.dense, self.mean, self.reads = L.Dense(4), keras.metrics.Mean(), reads

    def call(self, inputs):
        h = self.dense(inputs)
        self.mean.update_state(K.mean(h))
        return K.tanh(h) - self.mean.result() if self.reads else K.tanh(h)


@pytest.mark.parametrize("reads", [False, True])
def test_layer_that_updates_a_metric_runs_record_by_record(reads, decisions):
    loss, variables, examples = problem(
        model_of(lambda: Notes(reads), (BATCH, 4)), normal(BATCH, 4)
    )
    assert_engines_agree(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0))
    assert decisions and not any(decisions)
    assert [float(v.numpy()) for v in loss.model.metrics_variables] == [0, 0]


# Every axis is as long as the batch: records that are mixed give other numbers and no error.
RECORD_BY_RECORD = {
    "another_bias_of_one": another_bias_of_one,
    "bias_of_the_first_by_length": bias_of_the_first_by_length,
    "by_length": by_length,
    "concatenated_records": lambda b, x: K.concatenate([b.dense(x), x], -3)[: K.shape(x)[0]],
    "copy_of_the_bias_of_one": copy_of_the_bias_of_one,
    "counted": lambda b, x: b.dense(x) * K.sum(square_of_ones(x), 1)[:, None, None],
    "cumulative": lambda b, x: K.cumsum(b.dense(x), 0),
    "gathered": lambda b, x: b.dense(x) - K.take(x, [0], 0),
    "integers_by_length": integers_by_length,
    "mean": lambda b, x: b.dense(x) - K.mean(x, 0, keepdims=True),
    "mean_for_a_layer": lambda b, x: b.dense(x + K.tanh(K.mean(x, 0, keepdims=True))),
    "mean_of_all": lambda b, x: b.dense(x) - K.mean(x),
    "negative_axis": lambda b, x: b.dense(x) - K.mean(x, -3, keepdims=True),
    "number_of_records": lambda b, x: b.dense(x) * K.cast(K.shape(x)[0], x.dtype),
    "ones_by_length": ones_by_length,
    "order_by_length": order_by_length,
    "own_gradient": lambda b, x: own_gradient(b.dense(x)),
    "positions_as_records": lambda b, x: K.transpose(b.dense(K.transpose(x, (1, 0, 2))), (1, 0, 2)),
    "repeated_by_length": lambda b, x: (
        b.dense(x) + K.sum(tf.tile(x, (1, 1, 1 if x.shape[0] == 1 else 2)), -1, keepdims=True)
    ),
    "positions_by_length": positions_by_length,
    "positions_of_zeros_by_length": positions_of_zeros_by_length,
    "reshaped_by_length": lambda b, x: (
        b.dense(x) + tf.reshape(x[:, 0], (1, 1, 4) if x.shape[0] == 1 else (-1, 4, 1))
    ),
    "rolled": lambda b, x: K.roll(b.dense(x), 1, 0),
    "sliced_by_length": lambda b, x: (
        b.dense(x)
        + K.sum(tf.slice(x, (0, 0, 0), (-1, 4, 1 if x.shape[0] == 1 else 2)), -1, keepdims=True)
    ),
    "turned_by_length": lambda b, x: (
        b.dense(x) + (x if x.shape[0] == 1 else K.transpose(x, (0, 2, 1)))
    ),
    "all_in_one": lambda b, x: K.reshape(K.reshape(b.dense(x), (1, -1, 4)), K.shape(x)),
}


@pytest.mark.parametrize("name", sorted(RECORD_BY_RECORD))
def test_block_that_could_mix_records_runs_record_by_record(name, decisions):
    make = dense(RECORD_BY_RECORD[name])
    with floatx("float64"):
        loss, variables, examples = problem(model_of(make, (BATCH, 4)), normal(BATCH, 4))
        assert_engines_agree(loss, variables, examples, tolerance=1e-10)
    assert decisions and not any(decisions)


def test_a_sum_along_another_axis_for_a_batch_of_one_is_refused(decisions):
    make = dense(lambda b, x: K.add(b.dense(x), x[:, :, :1]))
    loss, variables, examples = problem(model_of(make, (BATCH, 4)), normal(BATCH, 4))
    with pytest.raises(UnsupportedModelError, match="along axis -1, and of several .* axis -2"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")
    assert decisions == [False]


def test_an_error_without_words_is_told_by_its_kind():
    put_around = "Exception encountered when calling Code.call()."
    assert blocks.in_words(ValueError()) == "ValueError"
    assert blocks.in_words(TypeError(f"{put_around}\n\n\x1b[1mNo number\x1b[0m")) == "No number"


def first_rows(x, number):
    return K.slice(x, (0, 0, 0), (K.shape(x)[0], number, 4))


MINDS = {
    "lengths": (
        lambda b, x: b.dense(x) - first_rows(x, BATCH),
        lambda b, x: b.dense(x) - first_rows(x, 1),
    ),
    "mean": (
        lambda b, x: b.dense(x) - x,
        lambda b, x: b.dense(x) - K.mean(x, 0, keepdims=True),
    ),
    "order": (lambda b, x: b.dense(x) - x, lambda b, x: x - b.dense(x)),
}


@pytest.mark.parametrize("name", sorted(MINDS))
def test_a_block_that_changes_its_mind_is_refused(name):
    # The first two calls try it out.
    calls = []

    def code(block, x):
        calls.append(x)
        return MINDS[name][len(calls) % 3 == 0](block, x)

    loss, variables, examples = problem(model_of(dense(code), (BATCH, 4)), normal(BATCH, 4))
    calls.clear()
    with pytest.raises(UnsupportedModelError, match="does something else each time"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


class Compares(L.Layer):
    """Asks whether texts are one, another for a batch of one where there are two."""

    def __init__(self, *texts):
        super().__init__()
        self.texts = texts

    def call(self, inputs):
        text = self.texts[0 if inputs.shape[0] == 1 else -1]
        return K.cast(inputs == text, "float32")


@pytest.mark.parametrize("texts", [["a"], ["a", "b"]])
def test_texts_that_a_block_compares_with_must_be_the_same(texts, decisions):
    inputs = keras.Input((2,), dtype="string")
    model = keras.Model(inputs, head(Compares(*texts)(inputs)))
    assert ("record by record" in tfdp.gradients.explain(model)) is (len(texts) > 1)


def test_why_a_block_is_none_names_the_line_of_its_code_and_none_around():
    inputs = keras.Input((BATCH, 4))
    by_code = keras.Model(inputs, head(dense(lambda b, x: K.flip(b.dense(x), 0))()(inputs)))
    assert "ReverseV2 (blocks_test.py, line" in tfdp.gradients.explain(by_code)
    by_operation = keras.Model(inputs, head(K.flip(inputs, 0)))
    assert "ReverseV2 (ReverseV2)" in tfdp.gradients.explain(by_operation)


TABLE = K.reshape(K.arange(12.0), (3, 4)) / 12


class TakesAt(L.Layer):
    """Reads at places that it is called with."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(4)

    def call(self, inputs, places):
        return K.take_along_axis(self.dense(inputs), places, axis=1)


class Projects(L.Layer):
    """Has weights of its own, and is called with a constant."""

    def build(self, *shapes):
        self.scale = self.add_weight(shape=(3,), name="scale")

    def call(self, inputs, matrix):
        return K.matmul(inputs, matrix) * self.scale


# name -> operations of a functional model, each of which is looked at by itself
OPERATIONS = {
    "matrix": lambda x: K.matmul(x, K.transpose(TABLE)),
    "matrix_and_weights": lambda x: Projects()(x, K.transpose(TABLE)),
    "places_of_another_operation": lambda x: K.take_along_axis(x, K.argsort(x, axis=1), axis=1),
    "places_for_a_block": lambda x: TakesAt()(x, K.argsort(x, axis=1)),
    "table": lambda x: x * K.take(TABLE, K.clip(K.cast(3 * x, "int32"), 0, 2)[..., 0], axis=0),
}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_operations_know_constants_and_the_places_that_others_give(name, decisions):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((BATCH, 4))
    model = keras.Model(inputs, head(OPERATIONS[name](L.Dense(4)(inputs))))
    assert_engines_agree(*problem(model, normal(BATCH, 4)))
    assert decisions and all(decisions)


def test_a_block_may_be_like_one_whose_places_exist(decisions):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((BATCH, 4))
    h = L.Dense(4)(inputs)
    known, unknown = K.argsort(h, axis=1), K.cast(K.round(3 * K.sigmoid(h)), "int64")
    model = keras.Model(inputs, head(TakesAt()(h, known) + TakesAt()(h, unknown)))
    assert_engines_agree(*problem(model, normal(BATCH, 4)))
    assert all(decisions)


class Keeps(L.Layer):
    """A block that hands what it received to a layer in it by another way than its argument."""

    def __init__(self, average):
        super().__init__(name="block")
        self.dense, self.reader = L.Dense(4), Reader(self, average)

    def call(self, inputs):
        self.kept = K.tanh(inputs)
        return self.reader(self.dense(inputs))


class Reader(L.Layer):
    def __init__(self, block, average):
        super().__init__(name="reader")
        self.held = [lambda: block]
        self.average = average

    def call(self, inputs):
        kept = self.held[0]().kept
        return inputs - (K.mean(kept, 0, keepdims=True) if self.average else kept)


@pytest.mark.parametrize("average", [False, True])
def test_what_a_block_keeps_for_a_layer_in_it_is_no_way_to_other_records(average):
    make = lambda: Keeps(average)  # noqa: E731
    loss, variables, examples = problem(model_of(make, (BATCH, 4)), normal(BATCH, 4))
    with pytest.raises(UnsupportedModelError):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


class Described(L.Layer):
    """A block whose configuration says which records it adds; Keras sees no other argument."""

    def __init__(self, adds="its own", **kwargs):
        super().__init__(**kwargs)
        self.adds, self.calls = adds, []
        self.dense, self.scale, self.mode = L.Dense(4), 1.0, "apart"

    def call(self, inputs):
        self.calls.append(inputs.shape[0])
        outputs = self.scale * self.dense(inputs)
        if self.adds == "all" or self.mode == "mixed":
            outputs -= K.mean(outputs, axis=0, keepdims=True)
        return inputs + K.tanh(outputs) if self.mode == "apart" else inputs - outputs


def two_described(change=lambda block: None, **options):
    """Returns two blocks, of which the second is changed after it is made, and a problem of a model
    of both.
    """
    blocks = [Described(), Described(**options)]
    change(blocks[1])
    model = model_of(lambda: keras.Sequential(blocks), (BATCH, 4))
    return blocks, problem(model, normal(BATCH, 4))


def test_a_block_like_another_is_not_tried_out(decisions):
    (first, second), (loss, variables, examples) = two_described()
    assert_engines_agree(loss, variables, examples)
    first.calls.clear()
    second.calls.clear()
    by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")
    assert all(decisions) and len(first.calls) == len(second.calls) + 2 and first.calls[1] == 1


def test_blocks_that_keras_cannot_put_down_are_not_alike(decisions):
    codes = (lambda b, x: x + b.dense(x), lambda b, x: K.tanh(b.dense(x)) * x)
    parts = [keras.Sequential([keras.Input((4,)), dense(code)()]) for code in codes]
    model = model_of(lambda: keras.Sequential(parts), (4,))
    loss, variables, examples = problem(model, normal(4))
    assert_engines_agree(loss, variables, examples, tolerance=1e-4)
    assert decisions and all(decisions)


def test_operations_and_functions_like_others_are_not_tried_out(decisions, monkeypatch):
    traced, attempt = [], blocks.Blocks._try
    monkeypatch.setattr(blocks.Blocks, "_try", lambda *a: traced.append(1) or attempt(*a))

    def own(x):
        return K.tanh(x) - x

    def layers():
        x = inputs = keras.Input((BATCH, 4))
        for _ in range(2):
            x = L.Dense(4, activation=own)(x)[:, ::-1]
        return keras.Model(inputs, x)

    loss, variables, examples = problem(model_of(layers, (BATCH, 4)), normal(BATCH, 4))
    assert_engines_agree(loss, variables, examples)
    assert all(decisions) and len(decisions) == 4 and len(traced) == 2


def put(name, value):
    return lambda block: setattr(block, name, value)


@pytest.mark.parametrize(
    ("options", "change"), [({}, put("scale", 3.0)), ({"adds": "all"}, put("scale", 1.0))]
)
def test_a_block_that_differs_from_another_is_tried_out(options, change, decisions):
    _, (loss, variables, examples) = two_described(change, **options)
    assert_engines_agree(loss, variables, examples)
    assert not options or not all(decisions)


class Product(L.Layer):
    """A block of two inputs."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = L.Dense(4)

    def call(self, first, second):
        return self.dense(first) * second


def test_a_block_called_on_one_tensor_twice_is_not_like_one_called_on_two(decisions):
    def layers():
        x = keras.Input((BATCH, 4))
        first = Product()(x, K.tanh(x))
        return keras.Model(x, Product()(first, first))

    loss, variables, examples = problem(model_of(layers, (BATCH, 4)), normal(BATCH, 4))
    assert_engines_agree(loss, variables, examples)
    assert len(decisions) > 1 and all(decisions)


@pytest.mark.parametrize("mode", ["mixed", "other"])
def test_a_block_that_only_seems_like_another_is_refused(mode):
    _, (loss, variables, examples) = two_described(put("mode", mode))
    with pytest.raises(UnsupportedModelError, match="than another of its configuration"):
        by_engine(loss, variables, examples, tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping")


class AddsLoss(L.Layer):
    def __init__(self):
        super().__init__(name="block")
        self.dense = L.Dense(4)

    def call(self, inputs):
        outputs = self.dense(inputs)
        self.add_loss(K.mean(K.square(outputs), axis=(1, 2)))
        return outputs


def test_a_block_that_adds_a_loss_runs_record_by_record():
    """What it adds is of a batch; tests/gradients/added_losses_test.py has all about it."""
    model = model_of(AddsLoss, (BATCH, 4))
    assert how_it_runs(model) == ["record by record: it adds a loss of its own"]
    assert_engines_agree(*problem(model, normal(BATCH, 4)))
