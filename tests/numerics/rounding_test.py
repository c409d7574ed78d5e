"""tfdp.numerics.rounding: what says that TensorFlow rounds the factors of products, and sums of
numbers that vanish beside others.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.numerics.exact import long, that_vanish
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


def _unknown(tensor):
    return tf.TensorSpec([None] * tensor.shape.rank)


def _of_any_shape(function, tensor):
    return tf.function(function, autograph=False, input_signature=[_unknown(tensor)])


# Each makes a function for tensors like the one that it is given.
WAYS = {
    "eager": lambda function, tensor: function,
    "graph": lambda function, tensor: tf.function(function, autograph=False),
    "any_shape": _of_any_shape,
    "xla": lambda f, tensor: tf.function(f, autograph=False, jit_compile=True),
    "xla_any_shape": lambda f, tensor: _of_any_shape(
        tf.function(f, autograph=False, jit_compile=True, input_signature=[_unknown(tensor)]),
        tensor,
    ),
    # Nothing says that XLA will compile this graph when it is made.
    "xla_later": lambda f, tensor: tf.function(
        tf.function(f, autograph=False).get_concrete_function(tensor), jit_compile=True
    ),
}
# And after how many axes those begin along which numbers are added up.
SHAPES = [
    *[((3, 257), 1), ((2, 3, 3, 64, 64), 1), ((2, 16384, 1), 1)],
    *[((2, 1, 5003), 2), ((2**18, 1), 0)],
]


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape, first", SHAPES)
def test_sums_hold_in_whatever_order_numbers_are_added_up(shape, first, way, rounded, monkeypatch):
    if rounded:
        monkeypatch.setenv(rounding.ONEDNN_MODES[0], "BF16")
    unit, errors = rounding.unit(tf.float32), []

    def both(tensor):
        axes = range(first, tensor.shape.rank)
        total, error = rounding.sums(tensor, axes)
        roots = rounding.sum_of_squares(tf.sqrt(tensor), axes)
        return total, tf.cast(error, tf.float32), roots

    run = WAYS[way](both, tf.zeros(shape))
    for vector in that_vanish(math.prod(shape[first:])):
        tensor = tf.constant(np.broadcast_to(vector, [*shape[:first], len(vector)]).reshape(shape))
        totals, error, squares = (x.numpy() for x in run(tensor))
        exact = np.sum(long(vector))
        assert totals.shape == squares.shape == shape[:first]
        assert (np.abs(totals - exact) <= error * unit * exact).all()
        # The root is off by half a unit, and so is its square twice.
        assert (squares >= exact * (1 - 2 * unit)).all()
        assert (squares <= exact * (1 + 2 * (error + 10) * unit)).all()
        errors.append(error)
    assert max(errors) <= (258 if way != "eager" else 256 + len(vector) / 128)


@pytest.mark.skipif(
    tuple(map(int, tf.__version__.split(".")[:2])) < (2, 21),
    reason="XLA of TensorFlow 2.18 adds in another order, which loses less.",
)
def test_one_sum_of_such_numbers_by_xla_loses_more_than_kernels_may():
    plain = tf.function(tf.reduce_sum, autograph=False, jit_compile=True)
    for size in (65536, 2**18):
        shapes = [plain(tf.constant(v[:, None])) / np.sum(long(v)) for v in that_vanish(size)]
        lost = 1 - float(min(np.min(x) for x in shapes))
        assert lost > 3 * rounding.sum_error(size, tf.float32) * rounding.unit(tf.float32)


def test_sums_of_nothing():
    for way in WAYS.values():
        for shape in ((0, 300), (3, 0)):
            tensor = tf.zeros(shape)
            total = way(lambda tensor: rounding.sums(tensor, [1])[0], tensor)(tensor)
            np.testing.assert_array_equal(total, np.zeros(shape[0]))


@pytest.mark.parametrize("size", [40, 300, 5003])
def test_a_sum_that_is_not_finite_is_that_of_its_record_alone(size):
    tensor = np.ones([4, size], np.float32)
    tensor[0, -1], tensor[1, 3], tensor[2, 7] = np.nan, np.inf, 3e38
    tensor[2, -2] = 3e38
    tensor = tf.constant(tensor)
    for way in WAYS.values():
        total = way(lambda tensor: rounding.sums(tensor, [1])[0], tensor)(tensor).numpy()
        assert np.isnan(total[0]) and np.isposinf(total[1:3]).all()
        assert total[3] == pytest.approx(size)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_each_of_many_squares_can_have_vanished(dtype):
    tiny = np.finfo(dtype.as_numpy_dtype).tiny
    for count in (1, 1000, tf.constant(1000)):
        assert float(rounding.vanished(count, dtype)) >= int(count) * float(tiny)
