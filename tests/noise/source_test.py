import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

from tfdp.noise import (
    RandomSource,
    SeededRandomSource,
    SystemRandomSource,
    host_generator,
    system_random_source,
)
from tfdp.query import GaussianSumQuery

COUNT = 100_000
SOURCES = {"system": SystemRandomSource, "seeded": lambda: SeededRandomSource(5)}


@pytest.fixture(params=SOURCES, scope="module")
def source(request):
    return SOURCES[request.param]()


@pytest.fixture(scope="module", params=["eager", "graph", "xla"])
def draws(request):
    """1e5 float32 standard normal draws."""
    source = SystemRandomSource()

    def draw():
        return source.normal([COUNT], tf.float32)

    if request.param != "eager":
        draw = tf.function(draw, jit_compile=request.param == "xla")
    return draw().numpy().astype(np.float64)


def _draw(source):
    return source.normal([4], tf.float32), source.integers([16], 2**31 - 1)


def _all_differ(draws):
    for kind in zip(*draws, strict=True):
        values = np.stack(kind)
        assert len(np.unique(values)) == values.size


def test_eager_draws_differ_on_each_call(source):
    _all_differ([_draw(source) for _ in range(3)])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_draws_differ_on_each_call(source, jit_compile):
    # Of constant shape: a draw that were folded into the graph would be repeated.
    function = tf.function(lambda: _draw(source), jit_compile=jit_compile)
    _all_differ([function() for _ in range(3)])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_draws_differ_within_one_call(source, jit_compile):
    function = tf.function(lambda: [_draw(source), _draw(source)], jit_compile=jit_compile)
    _all_differ(function())


@pytest.mark.parametrize("jit_compile", [False, True])
def test_graph_draws_differ_after_a_retrace(source, jit_compile):
    traces = []

    @tf.function(jit_compile=jit_compile)
    def function(python_number):
        traces.append(python_number)
        return _draw(source)

    _all_differ([function(1), function(2), function(1)])
    assert traces == [1, 2]


def test_draws_differ_between_functions_and_eager_calls(source):
    graph = tf.function(lambda: _draw(source))
    other_graph = tf.function(lambda: _draw(source))
    xla = tf.function(lambda: _draw(source), jit_compile=True)
    _all_differ([graph(), other_graph(), xla(), _draw(source), graph()])


def test_draws_differ_between_iterations_of_a_loop(source):
    @tf.function
    def function():
        normals = tf.TensorArray(tf.float32, 5)
        for i in tf.range(5):
            normals = normals.write(i, source.normal([3], tf.float32))
        return normals.stack()

    _all_differ([(row,) for row in function()])


def test_source_may_be_made_inside_a_graph():
    sources = []

    @tf.function
    def function():
        if not sources:
            sources.append(SystemRandomSource())
        return _draw(sources[0])

    _all_differ([function(), function(), _draw(sources[0])])


def test_process_has_one_shared_source():
    assert system_random_source() is system_random_source()
    assert isinstance(system_random_source(), SystemRandomSource)


def test_system_sources_have_different_keys(check_independent):
    left, right = (SystemRandomSource().normal([1000], tf.float32) for _ in range(2))
    check_independent(left, right)


def test_seed_repeats_every_draw():
    left, right = SeededRandomSource(3), SeededRandomSource(3)
    for _ in range(3):
        for a, b in zip(_draw(left), _draw(right), strict=True):
            np.testing.assert_array_equal(a, b)


def test_another_seed_gives_other_draws(check_independent):
    seeds = [0, 1, -1, 2**63, 2**64 - 2]
    draws = [SeededRandomSource(seed).normal([1000], tf.float32) for seed in seeds]
    for i, left in enumerate(draws):
        for right in draws[:i]:
            check_independent(left, right)


@pytest.mark.parametrize("seed", [True, 1.0, "1", None, [1], np.float32(1)])
def test_refuses_a_seed_that_is_not_an_integer(seed):
    with pytest.raises(TypeError, match="seed must be an integer. Received: seed="):
        SeededRandomSource(seed)


def test_events_say_where_noise_is_seeded():
    assert SeededRandomSource(0).seeded
    assert not SystemRandomSource().seeded
    for source, seeded in (
        (SeededRandomSource(0), True),
        (SystemRandomSource(), False),
        (None, False),
    ):
        query = GaussianSumQuery(1.0, 1.0, source)
        state = query.initial_global_state()
        assert query.derive_event(state).seeded is seeded
        assert query.get_noised_result(tf.zeros([1]), state)[2].seeded is seeded


def test_interface_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        RandomSource()


def _has_mean_zero(draws):
    # The mean of n draws has standard deviation n^-1/2; 6.2 of them: once in 10^9.
    return abs(np.mean(draws)) < 6.2 * np.std(draws) / np.sqrt(draws.size)


def test_mean_is_zero(draws):
    assert _has_mean_zero(draws)
    assert not _has_mean_zero(draws + 0.05)


def test_stddev_is_one(draws, check_stddev):
    check_stddev(draws, 1.0)


def _ks_p_value(draws, stddev):
    normal = tfp.distributions.Normal(np.float64(0), np.float64(stddev))
    return stats.kstest(draws, lambda x: normal.cdf(x).numpy()).pvalue


def test_distribution_is_normal(draws):
    assert _ks_p_value(draws, 1.0) > 1e-6
    for wrong in (1.1, 1 / 1.1):
        assert _ks_p_value(draws, wrong) < 1e-6


def test_tails_are_those_of_a_normal(draws):
    # P(|x| > 3) = 0.0027: 270 draws of 1e5, standard deviation 16.4.
    # A Laplace of the same variance has exp(-3 * 2^1/2) = 0.01437: 1437 draws.
    count = np.sum(np.abs(draws) > 3)
    low, high = stats.binom.interval(1 - 1e-9, COUNT, 2 * stats.norm.sf(3.0))
    assert low <= count <= high
    assert not low <= 1437 <= high


def test_successive_draws_are_independent(draws, check_independent):
    check_independent(draws[:-1], draws[1:])


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_keeps_shape_and_dtype(source, dtype):
    normal = source.normal([3, 2], dtype)
    assert normal.shape == (3, 2)
    assert normal.dtype == dtype
    assert source.normal([], dtype).shape == ()


def test_shape_may_be_a_tensor(source):
    function = tf.function(lambda x: source.normal(tf.shape(x), tf.float32), reduce_retracing=True)
    assert function(tf.zeros([3, 2])).shape == (3, 2)
    assert function(tf.zeros([5, 1])).shape == (5, 1)


def test_float64_draws_have_more_than_float32_precision(source, check_stddev):
    normal = source.normal([1000], tf.float64).numpy()
    check_stddev(normal, 1.0)
    assert np.mean(normal != normal.astype(np.float32)) > 0.99


def _is_uniform(integers, maximum):
    counts = np.bincount(integers, minlength=maximum)
    return counts.size == maximum and stats.chisquare(counts).pvalue > 1e-9


@pytest.mark.parametrize("jit_compile", [False, True])
def test_integers_are_uniform(source, jit_compile):
    draw = tf.function(functools.partial(source.integers, [7000], 7), jit_compile=jit_compile)
    integers = draw()
    assert integers.dtype == tf.int32
    integers = integers.numpy()
    assert _is_uniform(integers, 7)
    assert not _is_uniform(np.where(integers == 3, integers // 2, integers), 7)
    assert not _is_uniform(np.append(integers, 7), 7)


def test_host_generators_differ(check_independent):
    check_independent(host_generator().normal(size=1000), host_generator().normal(size=1000))
