"""tfdp.noise.stage: no draw is repeated, and what would repeat one is not staged."""

import pytest
import tensorflow as tf

from tests.noise.stages import LARGE, SHAPES, SOURCE, Counting, assert_all_differ, draw_normal
from tfdp.noise import staged


def test_draws_inside_one_stage_differ():
    function = tf.function(lambda: staged(lambda: [draw_normal(*shape) for shape in SHAPES]))
    first, second = function(), function()
    assert_all_differ(*first, *second)


def test_stages_of_one_graph_differ():
    @tf.function
    def function():
        return [staged(draw_normal, 50), staged(draw_normal, 50), draw_normal(50)]

    assert_all_differ(*function(), *function())


def test_stage_in_a_loop_differs_each_time():
    @tf.function
    def function():
        rows = tf.TensorArray(tf.float64, 4)
        for i in tf.range(4):
            rows = rows.write(i, staged(lambda: tf.concat([draw_normal(5), draw_normal(6)], 0)))
        return rows.stack()

    assert_all_differ(function())


def test_stage_in_a_function_that_is_called_twice_differs():
    inner = tf.function(lambda: staged(draw_normal, 50))
    assert_all_differ(*tf.function(lambda: [inner(), inner()])())


def _while_loop():
    def body(i, rows):
        return i + 1, rows.write(i, draw_normal(3))

    rows = tf.TensorArray(tf.float64, 4)
    return tf.while_loop(lambda i, _: i < 4, body, [0, rows])[1].stack()


def _mapped(map_rows):
    return lambda: map_rows(lambda x: x + draw_normal(3), tf.zeros([4, 3], tf.float64))


def _called_twice():
    inner = tf.function(lambda: draw_normal(3))
    return tf.stack([inner(), inner(), inner()])


def _large_called_twice():
    inner = tf.function(lambda: draw_normal(LARGE))
    return tf.stack([inner(), inner()])


@pytest.mark.parametrize(
    "compute",
    [_while_loop, _mapped(tf.map_fn), _mapped(tf.vectorized_map), _called_twice]
    + [_large_called_twice],
    ids=["while_loop", "map_fn", "vectorized_map", "function", "large"],
)
def test_draws_that_are_traced_once_and_run_often_are_not_staged(compute, host_calls):
    function = tf.function(lambda: [staged(compute), draw_normal(3)])
    rows, other = function()
    assert_all_differ(rows, other)
    assert len(host_calls) > 3


def test_draw_of_a_shape_that_is_not_known_is_not_staged():
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def function(x):
        return staged(lambda: SOURCE.normal(tf.shape(x), tf.float64))

    assert function(tf.zeros([5, 3])).shape == (5, 3)
    assert_all_differ(function(tf.zeros([5, 3])), function(tf.zeros([2, 3])))


def test_function_that_calls_the_host_itself_is_not_compiled():
    def compute(x):
        return draw_normal(5) + tf.numpy_function(lambda x: x + 1, [x], tf.float64)

    def compute_in_a_function(x):
        return tf.function(compute)(x)

    x = tf.zeros([5], tf.float64)
    for calls_host in (compute, compute_in_a_function):
        function = tf.function(lambda x, compute=calls_host: staged(compute, x))
        assert_all_differ(function(x), function(x))


def test_function_that_asks_for_the_time_is_not_compiled():
    def compute(x):
        return x + SOURCE.normal(x.shape, x.dtype), tf.timestamp()

    function = tf.function(lambda x: staged(compute, x, jit_compile=True))
    x = tf.zeros([50], tf.float64)
    (first, then), (second, later) = function(x), function(x)
    assert_all_differ(first, second)
    assert then < later


def test_what_is_not_staged_asks_for_nothing():
    source = Counting()

    def compute():
        source.normal([LARGE], tf.float32)
        source.normal([3], tf.float32)
        return tf.map_fn(lambda x: x + source.normal([2], tf.float32), tf.zeros([4, 2]))

    tf.function(lambda: staged(compute))()
    # Outside of a stage: each of the six draws on its own.
    assert sorted(source.draws) == [3, 3, 3, 3, 6, 3 * LARGE // 2]
