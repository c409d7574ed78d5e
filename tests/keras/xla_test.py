"""Whether XLA compiles steps, and what the log says where it is asked to and should not be."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import L

import tfdp.keras
from tfdp.sampling import FullBatch


def _recurrent(unroll=False, **options):
    layers = [L.LSTM(2, unroll=unroll, **options), L.Dense(2)]
    return keras.Sequential([keras.Input((3, 2)), *layers])


def _in_a_block_of_records():
    """A block that mixes its batch, so that the layer in it runs record by record."""

    class Block(keras.Layer):
        def __init__(self):
            super().__init__()
            self.lstm = L.LSTM(2)

        def build(self, shape):
            self.lstm.build(shape)

        def call(self, x):
            return self.lstm(x - keras.ops.mean(x, axis=0, keepdims=True))

    return keras.Sequential([keras.Input((3, 2)), Block(), L.Dense(2)])


def _frozen():
    model = _recurrent()
    model.layers[0].trainable = False
    return model


# Which of them run record by record, or may do so, and which do not.
BY_RECORD = {
    "no rule": lambda: _recurrent(dropout=1.0),
    "block": _in_a_block_of_records,
    "frozen": _frozen,
    "not built": lambda: keras.Sequential([L.LSTM(2), L.Dense(2)]),
}
ON_BATCH = {
    "lstm": _recurrent,
    "open": lambda: keras.Sequential([keras.Input((None, 2)), L.GRU(2), L.Dense(2)]),
    "dropout": lambda: _recurrent(dropout=0.5, recurrent_dropout=0.5),
    "own function": lambda: _recurrent(activation=lambda x: keras.ops.tanh(x) + 0.1 * x),
    "stacked": lambda: keras.Sequential(
        [keras.Input((3, 2)), L.RNN([L.LSTMCell(2), L.GRUCell(3)]), L.Dense(2)]
    ),
    "both ways": lambda: keras.Sequential(
        [
            keras.Input((3,)),
            L.Embedding(5, 2, mask_zero=True),
            L.Bidirectional(L.LSTM(2)),
            L.Dense(2),
        ]
    ),
    "inside": lambda: keras.Sequential(
        [keras.Input((2, 3, 2)), L.TimeDistributed(L.LSTM(2)), L.Flatten(), L.Dense(2)]
    ),
}


def _convolution():
    return keras.Sequential([keras.Input((4, 4, 1)), L.Conv2D(2, 2), L.Flatten(), L.Dense(2)])


@pytest.mark.parametrize("make", BY_RECORD.values(), ids=BY_RECORD)
def test_loops_of_records_are_not_compiled(make, caplog):
    assert not toy.private(make(), jit_compile=True).jit_compile
    assert "With unroll=True it has no loop" in caplog.text


@pytest.mark.parametrize("engine", ["loop", "vectorized"])
def test_engines_that_run_records_compile_no_loops(engine, caplog):
    model = toy.private(_recurrent(), toy.dp(engine=engine), jit_compile=True)
    assert not model.jit_compile
    assert "With unroll=True it has no loop" in caplog.text


@pytest.mark.parametrize("name", ON_BATCH)
def test_loops_on_the_batch_are_compiled_and_do_the_same(name, caplog):
    make, rng = ON_BATCH[name], np.random.default_rng(0)
    shape = [6, *(size or 3 for size in make().input_shape[1:])]
    x = rng.normal(size=shape) if len(shape) > 2 else rng.integers(0, 5, shape)
    found = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(0)
        model = toy.private(make(), jit_compile=jit_compile)
        assert model.jit_compile == jit_compile
        before = np.concatenate([np.ravel(w) for w in model.get_weights()])
        model.fit(x.astype("float32"), np.arange(6) % 2, sampling=FullBatch(), verbose=0)
        assert model.jit_compile == jit_compile
        found.append(np.concatenate([np.ravel(w) for w in model.get_weights()]) - before)
    assert "record by record" not in caplog.text
    assert np.all(np.isfinite(found)) and np.all(np.max(np.abs(found), axis=1) > 1e-3)
    if name != "dropout":  # TensorFlow draws other numbers under XLA.
        np.testing.assert_allclose(*found, atol=1e-6)


def test_loops_that_would_be_those_of_cudnn_are_compiled(recwarn):
    def on_gpu(model):
        # What Keras finds on a GPU.
        model.layers[0].supports_jit = False
        return model

    model = toy.private(on_gpu(_recurrent()), jit_compile=True)
    assert model.jit_compile and not model.layers[0].supports_jit
    x = np.ones([6, 3, 2], "float32")
    model.fit(x, np.arange(6) % 2, sampling=FullBatch(), verbose=0)
    assert model.jit_compile and not recwarn.list
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        assert not toy.private(on_gpu(_frozen()), jit_compile=True).jit_compile


@pytest.mark.usefixtures("onednn_has_begun")
@pytest.mark.parametrize("why", ["rounding", "a loss that reads weights"])
def test_the_sum_is_not_compiled_where_the_step_shows_loops_of_records(why, monkeypatch, caplog):
    model = tfdp.keras.make_private(_recurrent())

    def loss(y, outputs):
        penalty = tf.reduce_sum(model.layers[-1].kernel.value ** 2)
        return tf.reduce_mean((outputs - y) ** 2, -1) + penalty

    if why == "rounding":
        monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "ANY")
    model.compile(toy.dp(), loss="mse" if why == "rounding" else loss, jit_compile=True)
    assert model.jit_compile
    before = toy.weights(model)
    y = np.ones([6, 2], "float32")
    model.fit(np.ones([6, 3, 2], "float32"), y, sampling=FullBatch(), verbose=0)
    assert "The sum is computed without XLA. XLA cannot compile loops" in caplog.text
    assert toy.all_finite(model) and not np.allclose(before[0], toy.weights(model)[0])
    assert len(toy.events(model)) == 1


def test_slow_convolutions_are_compiled_where_that_is_asked_for(caplog):
    assert toy.private(_convolution(), jit_compile=True).jit_compile
    on_gpu = bool(tf.config.list_physical_devices("GPU"))
    assert ("convolutions on a CPU are several times slower" in caplog.text) != on_gpu


@pytest.mark.parametrize(
    ("make", "jit_compile"),
    [
        (toy.linear, True),
        (lambda: _recurrent(unroll=True), True),
        (lambda: _recurrent(unroll=False), False),
        (_convolution, False),
    ],
    ids=["dense", "unrolled", "loop not compiled", "convolution not compiled"],
)
def test_nothing_is_said_of_others(make, jit_compile, caplog):
    assert toy.private(make(), jit_compile=jit_compile).jit_compile == jit_compile
    assert "XLA" not in caplog.text
