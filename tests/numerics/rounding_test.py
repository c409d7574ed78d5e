"""tfdp.numerics.rounding: what says that TensorFlow rounds the factors of products."""

import math

import pytest
import tensorflow as tf

from tfdp.numerics import rounding


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU, as far as anybody asks; and a function that switches TensorFloat-32."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["a GPU"])
    switch = tf.config.experimental.enable_tensor_float_32_execution
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    yield switch
    switch(before)


def test_products_are_exact_by_default_on_a_cpu():
    assert rounding.factor_error() == 0


@pytest.mark.parametrize("name", rounding.ONEDNN_MODES)
def test_environment_says_that_they_are_rounded(name, monkeypatch):
    for mode, error in [("STRICT", 0), ("strict", 0), ("", 0), ("BF16", 2**-8), ("tf32", 2**-10)]:
        monkeypatch.setenv(name, mode)
        assert rounding.factor_error() == error
    for mode in ("ANY", "F16", "something new"):
        monkeypatch.setenv(name, mode)
        assert math.isinf(rounding.factor_error())


def test_gpu_rounds_them_unless_told_not_to(gpu):
    gpu(True)
    assert rounding.factor_error() == 2**-10
    assert not rounding.products_are_rounded(tf.float64)
    gpu(False)
    assert rounding.factor_error() == 0
