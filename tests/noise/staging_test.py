import threading
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdp
from tests.noise.stages import LARGE, SHAPES, SOURCE, Counting, assert_all_differ, draw_normal
from tfdp.noise import SeededRandomSource, bits, chacha, gaussian, staged
from tfdp.query import GaussianSumQuery, JointClippingQuery, NestedQuery, NormalizedQuery


def _is_compiled(function, *args):
    """Returns whether what is done to draws is compiled by XLA, beside what makes them."""
    definition = function.get_concrete_function(*args).graph.as_graph_def()
    names = [
        part.signature.name
        for part in definition.library.function
        if part.attr["_XlaMustCompile"].b
    ]
    return any("compiled_normals" not in name for name in names)


# What it computes.


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_noise_is_made_of_the_words_of_the_source(dtype):
    # The slow twin: NumPy, from the words of draws 0, 1, ... of the seed. Large leaves have a draw
    # each; those of the small ones, one after another, are the last.
    sums = [tf.cast(tf.fill(shape, float(i)), dtype) for i, shape in enumerate(SHAPES)]
    query = NormalizedQuery(GaussianSumQuery(1.0, 3.0, SeededRandomSource(4)), 8.0)
    state = query.initial_global_state()
    results = tf.function(lambda sums: staged(query.get_noised_result, sums, state)[0])(sums)

    fill, rows = bits.SeededFill(4), gaussian.words_per_pair(dtype)

    def draw(*shape):
        words = np.zeros([rows, (shape[0] + 1) // 2, *shape[1:]], np.uint32)
        fill(words)
        return gaussian.normals_from_words(tf.constant(words), dtype).numpy()[: shape[0]]

    sizes = [int(np.prod(shape)) for shape in SHAPES]
    large = {i: draw(*SHAPES[i]) for i, size in enumerate(sizes) if size >= LARGE}
    small = [i for i in range(len(SHAPES)) if i not in large]
    ends = np.cumsum([sizes[i] for i in small])
    parts = dict(zip(small, np.split(draw(ends[-1]), ends[:-1]), strict=True))
    for i, result in enumerate(results):
        noise = {**large, **parts}[i].reshape(SHAPES[i])
        assert result.dtype == dtype
        np.testing.assert_allclose(result, (i + 3 * noise) / 8, rtol=1e-5, atol=1e-6)


class Pair(NamedTuple):
    left: object
    right: object


def test_returns_what_the_function_returns():
    event = object()

    def compute(tensors, number):
        total = tf.reduce_sum(tensors["a"])
        return Pair({"x": tensors["a"] * number}, [total, event, None, 3, tensors["b"][1:]]), number

    @tf.function
    def function(a, b):
        result = staged(compute, {"a": a, "b": b}, 2.0)
        kept.append((result[0].right[1:4], result[1], result[0].left["x"].shape))
        return tf.nest.map_structure(lambda leaf: leaf if tf.is_tensor(leaf) else 0, result)

    kept = []
    a, b = tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([[1, 2], [3, 4]])
    (left, right), _ = function(a, b)
    np.testing.assert_array_equal(left["x"], 2 * a)
    assert right[0] == 10
    np.testing.assert_array_equal(right[4], b[1:])
    assert kept == [([event, None, 3], 2.0, (2, 2))]


@pytest.mark.parametrize("shape", [[], [3], [2, 2]])
def test_an_argument_is_of_the_graph_of_the_function_that_only_passes_it_on(shape):
    graphs = []

    def compute(tensor):
        graphs.append(tensor.graph is tf.compat.v1.get_default_graph())
        return tensor

    step = tf.function(lambda tensor: staged(compute, tensor, jit_compile=True))
    np.testing.assert_array_equal(step(tf.ones(shape)), np.ones(shape))
    assert graphs == [True]


def test_arguments_may_be_of_any_shape_and_kind():
    variable = tf.Variable([[1.0, 2.0]])
    closure = tf.Variable(5.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([2, 2], tf.bool)])
    def function(dynamic, mask):
        return staged(
            lambda d, m, v, s: (tf.reduce_sum(d) + v * closure + s, m), dynamic, mask, variable, 1
        )

    total, mask = function(tf.ones([3, 2]), tf.eye(2) > 0)
    np.testing.assert_array_equal(total, [[12, 17]])
    np.testing.assert_array_equal(mask, np.eye(2))


@pytest.mark.parametrize(
    "make",
    [
        lambda s: NormalizedQuery(GaussianSumQuery(1.0, 2.0, s), 4.0),
        lambda s: NestedQuery([GaussianSumQuery(1.0, 2.0, s), GaussianSumQuery(1.0, 2.0, s)]),
        lambda s: JointClippingQuery([1.0, 3.0], 1.0, 2.0, s),
    ],
    ids=["average", "nested", "joint"],
)
def test_queries_give_the_same_staged_as_eager(make):
    # One draw eagerly, where both leaves are one: a leaf of each kind.
    query, twin = make(SeededRandomSource(1)), make(SeededRandomSource(1))
    sums = [tf.ones([LARGE // 200 + 1, 200]), tf.ones([10])]
    staged_result = tf.function(
        lambda sums: staged(query.get_noised_result, sums, query.initial_global_state())[0]
    )(sums)
    eager_result = twin.get_noised_result(sums, twin.initial_global_state())[0]
    for left, right in zip(staged_result, eager_result, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)


# What it costs.


def test_one_call_to_the_host_and_no_other_way_to_the_noise(host_calls):
    query = NestedQuery(
        [
            tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=8.0),
            GaussianSumQuery(1.0, 1.0),
        ]
    )
    sums = [[tf.zeros([LARGE // 200 + 1, 200]), tf.zeros([9])], tf.zeros([40])]
    function = tf.function(
        lambda sums: staged(query.get_noised_result, sums, query.initial_global_state())[0]
    )
    for step in range(1, 4):
        function(sums)
        assert len(host_calls) == step
    assert _is_compiled(function, sums)


def test_a_query_in_a_graph_is_staged_by_itself(host_calls):
    query = GaussianSumQuery(1.0, 1.0)
    sums = [tf.zeros(shape) for shape in SHAPES]
    function = tf.function(
        lambda sums: query.get_noised_result(sums, query.initial_global_state())[0]
    )
    function(sums)
    assert len(host_calls) == 1
    assert _is_compiled(function, sums)


def test_small_arguments_are_not_compiled_and_draw_once_all_the_same(host_calls):
    def compute(x):
        return [x + draw_normal(20, 5), draw_normal(50)]

    function = tf.function(lambda x: staged(compute, x))
    x = tf.zeros([20, 5], tf.float64)
    assert_all_differ(*function(x), *function(x))
    assert len(host_calls) == 2
    assert not _is_compiled(function, x)


# Arguments that are neither small nor large.
_MIDDLE = 2**15


@pytest.mark.parametrize(
    ("compute", "compiled"),
    [
        (lambda x: x + SOURCE.normal(x.shape, tf.float32), False),
        (lambda x: [x + SOURCE.normal([n], tf.float32) for n in (1, x.shape[0])], False),
        (lambda x: x * 2.0, False),
        (lambda x: x + SOURCE.laplace(x.shape, tf.float32), True),
        (lambda x: (x + SOURCE.normal(x.shape, tf.float32), SOURCE.integers([3], 7)), True),
        (lambda x: x[0] + SOURCE.normal([LARGE], tf.float32), True),
    ],
    ids=["normal", "several", "no draw", "laplace", "integers", "large"],
)
@pytest.mark.parametrize("on_gpu", [False, True])
def test_only_draws_that_are_pooled_leave_nothing_to_fuse(
    monkeypatch, host_calls, compute, compiled, on_gpu
):
    # On a GPU every operation has to be started.
    monkeypatch.setattr(chacha, "on_gpu", lambda: on_gpu)
    traces = []

    def traced(x):
        traces.append(x)
        return compute(x)

    function = tf.function(lambda x: staged(traced, x))
    x = tf.zeros([_MIDDLE - on_gpu])
    first, second = function(x), function(x)
    assert len(traces) == (2 if compiled and not on_gpu else 1)
    assert _is_compiled(function, x) == (compiled or on_gpu)
    assert len(host_calls) == 2
    values, others = (
        np.concatenate([np.ravel(part) for part in tf.nest.flatten(r)]) for r in (first, second)
    )
    assert not values.any() or (values != others).mean() > 0.9


def test_no_call_to_the_host_where_there_is_no_noise(host_calls):
    query = GaussianSumQuery(1.0, 0.0)
    tf.function(lambda x: query.get_noised_result(x, query.initial_global_state())[0])(tf.zeros(3))
    assert host_calls == []


def test_small_draws_are_made_together():
    source = Counting()

    def compute():
        return [source.normal(shape, tf.float32) for shape in SHAPES]

    tf.function(lambda: staged(compute))()
    small = sum(size for shape in SHAPES if (size := int(np.prod(shape))) < LARGE)
    assert source.draws == [3 * LARGE // 2, 3 * 301 * 503, 3 * ((small + 1) // 2)]


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("physical_batch_size", [None, 2])
def test_noise_is_drawn_once_a_step_whatever_is_accumulated(jit_compile, physical_batch_size):
    source = Counting()
    query = tfdp.GaussianAverageQuery(
        1.0, noise_multiplier=1.0, denominator=8.0, random_source=source
    )
    model = tfdp.keras.make_private(
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    )
    optimizer = tfdp.keras.DPOptimizer(
        keras.optimizers.SGD(0.1), query, physical_batch_size=physical_batch_size
    )
    model.compile(optimizer, loss="mse", jit_compile=jit_compile)
    steps = 3
    x, y = np.ones([8, 3], np.float32), np.ones([8, 1], np.float32)
    data = tf.data.Dataset.from_tensors((x, y)).repeat(steps)
    model.fit(data, sampling=tfdp.sampling.FullBatch(8), verbose=0)
    # 12 + 4 + 4 + 1 parameters: 11 pairs of three words.
    assert source.draws == [33] * steps
    assert model.ledger.total_count == steps


def test_an_error_passes_and_the_next_draw_is_served():
    def fails():
        draw_normal(3)
        raise KeyError("mine")

    @tf.function
    def function():
        with pytest.raises(KeyError, match="mine"):
            staged(fails)
        return draw_normal(50), staged(draw_normal, 50)

    assert_all_differ(*function(), *function())


def test_stage_inside_a_stage_is_part_of_it(host_calls):
    function = tf.function(lambda: staged(lambda: [draw_normal(40), staged(draw_normal, 40)]))
    assert_all_differ(*function())
    assert len(host_calls) == 1


def test_eager_stage_is_a_call(host_calls):
    marker = object()
    assert staged(lambda x: x, marker) is marker
    assert_all_differ(staged(draw_normal, 50), staged(draw_normal, 50))
    assert host_calls == []


def test_several_sources_in_one_stage():
    left, right = SeededRandomSource(1), SeededRandomSource(2)

    def compute():
        return [s.normal([n], "float64") for n in (30, LARGE) for s in (left, right, SOURCE)]

    function = tf.function(lambda: staged(compute))
    first, second = function(), function()
    assert_all_differ(*first, *second)
    # A seeded source repeats its draws, whatever else is drawn between them.
    twin = tf.function(lambda: staged(lambda: [s.normal([30], "float64") for s in sources]))
    sources = [SeededRandomSource(1), SeededRandomSource(2)]
    np.testing.assert_array_equal(twin()[1], first[1])


def test_normal_draws_and_integers_in_one_stage():
    def compute():
        return (
            SOURCE.integers([50], 6),
            draw_normal(50),
            SOURCE.integers([2, 3], 2**31 - 1),
            draw_normal(2),
        )

    dice, normal, integers, _ = tf.function(lambda: staged(compute))()
    assert dice.dtype == integers.dtype == tf.int32
    assert set(dice.numpy()) <= set(range(6))
    assert len(set(dice.numpy())) > 2
    assert integers.shape == (2, 3)
    assert np.abs(normal).max() < 10


def test_threads_that_trace_at_once_have_stages_of_their_own():
    # As the replicas of a strategy do.
    barrier, results = threading.Barrier(4), {}

    def compute():
        barrier.wait(60)
        left = draw_normal(20)
        barrier.wait(60)
        return left, draw_normal(20)

    def work(number):
        results[number] = tf.function(lambda: staged(compute))()

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert_all_differ(*[draws for pair in results.values() for draws in pair])


def test_steps_that_keras_runs_in_one_loop_have_noise_of_their_own():
    query = GaussianSumQuery(1.0, 1.0)
    model = tfdp.keras.make_private(keras.Sequential([keras.Input((1,)), keras.layers.Dense(50)]))
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query)
    model.compile(optimizer, loss="mse", steps_per_execution=3)
    start = np.concatenate([np.ravel(w) for w in model.get_weights()])
    model.fit(np.zeros([24, 1]), np.zeros([24, 50]), batch_size=2, epochs=1, verbose=0)
    moved = np.concatenate([np.ravel(w) for w in model.get_weights()]) - start
    # The kernel has no gradient, but twelve independent draws on each of its 50 numbers: variance
    # 12. Four draws, each taken three times, would have 36.
    low, high = 12 * np.array(stats.chi2.interval(1 - 1e-9, 50))
    assert low < np.sum(moved[:50] ** 2) < high < 36 * 50


def test_large_arguments_come_before_the_words(monkeypatch):
    from tfdp.noise import staging

    monkeypatch.setattr(staging, "_LATE", 10)
    order = []

    def record(words):
        order.append("words")
        bits.system_fill(words)

    source = Counting()
    source._fill = record

    def argument():
        order.append("argument")
        return np.zeros([4, 4], np.float32)

    @tf.function
    def function():
        x = tf.ensure_shape(tf.numpy_function(argument, [], tf.float32), [4, 4])
        return staged(lambda x: tf.cast(x, tf.float64) + source.normal([4, 4], tf.float64), x)

    assert_all_differ(function())
    assert order == ["argument", "words"]
