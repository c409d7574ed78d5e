"""Whether XLA compiles steps, and what the log says where it is asked to and should not be."""

import keras
import pytest
import tensorflow as tf
import toy
from toy import L


def _recurrent(unroll):
    return keras.Sequential([keras.Input((3, 2)), L.LSTM(2, unroll=unroll), L.Dense(2)])


def _convolution():
    return keras.Sequential([keras.Input((4, 4, 1)), L.Conv2D(2, 2), L.Flatten(), L.Dense(2)])


def test_loops_are_not_compiled(caplog):
    assert not toy.private(_recurrent(unroll=False), jit_compile=True).jit_compile
    assert "With unroll=True the layer has no loop" in caplog.text


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
