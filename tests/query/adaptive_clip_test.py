"""A clip that follows a quantile: published values, bounds, charges, every engine."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.accounting import RDPAccountant
from tfdp.events import ComposedEvent, GaussianSumEvent
from tfdp.noise import SeededRandomSource
from tfdp.query import QuantileAdaptiveClipSumQuery, adaptive_clip_noise_multiplier

ROOT_2 = math.sqrt(2)


def step(query, records, state):
    params = query.derive_sample_params(state)
    records = [tf.convert_to_tensor(record) for record in records]
    sample = query.initial_sample_state(records[0])
    for record in records:
        sample = query.accumulate_record(params, sample, record)
    return query.get_noised_result(sample, state)[:2]


def adaptive(clip, z=0.0, target=0.5, rate=0.2, stddev=0.0, expected=2.0, geometric=True, **more):
    return QuantileAdaptiveClipSumQuery(
        initial_l2_norm_clip=clip,
        noise_multiplier=z,
        target_unclipped_quantile=target,
        learning_rate=rate,
        clipped_count_stddev=stddev,
        expected_num_records=expected,
        geometric_update=geometric,
        **more,
    )


@pytest.mark.parametrize(
    ("clip", "records"), [(10.0, [[2.0, 0.0], [-1.0, 1.0]]), (5.0, [[-6.0, 8.0], [4.0, -3.0]])]
)
def test_published_sums(clip, records):
    query = adaptive(clip, target=1.0, rate=0.0)
    result, state = step(query, records, query.initial_global_state())
    np.testing.assert_allclose(result, [1.0, 1.0], rtol=1e-5)
    assert float(state.l2_norm_clip) == clip


# target, learning rate, geometric, first clip, records, sums, clips
PUBLISHED = {
    "target_zero": (
        (0.0, 1.0, False, 10.0),
        [[8.5], [-7.25]],
        [1.25, 1.25, 0.75, 0.25, 0.0],
        [9.0, 8.0, 7.5, 7.0, 7.0],
    ),
    "target_zero_geometric": (
        (0.0, math.log(2), True, 16.0),
        [[5.0], [-2.5]],
        [2.5, 2.5, 1.5, 2 * ROOT_2 - 2.5, 0.0],
        [8.0, 4.0, 2 * ROOT_2, 2.0, 2.0],
    ),
    # Theirs begins at a clip of zero, which is refused here.
    "target_one": (
        (1.0, 1.0, False, 1e-6),
        [[-1.5], [2.75]],
        [0.0, 0.0, 0.5, 1.0, 1.25],
        [1.0, 2.0, 2.5, 3.0, 3.0],
    ),
    "target_one_geometric": (
        (1.0, math.log(2), True, 0.5),
        [[-1.5], [3.0]],
        [0.0, 0.0, 0.5, 2 * ROOT_2 - 1.5, 1.5],
        [1.0, 2.0, 2 * ROOT_2, 4.0, 4.0],
    ),
}


@pytest.mark.parametrize("case", PUBLISHED.values(), ids=PUBLISHED)
def test_published_adaptation(case):
    (target, rate, geometric, clip), records, sums, clips = case
    more = {"max_l2_norm_clip": 10.0} if clip == 1e-6 else {}
    query = adaptive(clip, target=target, rate=rate, geometric=geometric, **more)
    state = query.initial_global_state()
    for wanted_sum, wanted_clip in zip(sums, clips, strict=True):
        result, state = step(query, records, state)
        np.testing.assert_allclose(result, [wanted_sum], rtol=1e-5, atol=1e-5)
        assert float(state.l2_norm_clip) == pytest.approx(wanted_clip, rel=1e-5)


@pytest.mark.parametrize("clip", [1.0, 10.0])
@pytest.mark.parametrize("geometric", [False, True])
def test_published_medians(clip, geometric):
    linear = np.linspace(0.0, 10.0, 21, dtype=np.float32)
    query = adaptive(clip, rate=1.0, expected=21, geometric=geometric)
    state = query.initial_global_state()
    in_graph = tf.function(lambda state: step(query, linear, state)[1], autograph=False)
    for t in range(50):
        state = in_graph(state)
        assert t <= 40 or abs(float(state.l2_norm_clip) - 5.0) < 0.25
    query = adaptive(clip, expected=20, geometric=geometric)
    state = query.initial_global_state()
    for t in range(50):
        slower = dataclasses.replace(query, learning_rate=1 / math.sqrt(t + 1))
        _, state = step(slower, [np.float32(5.0)] * 20, state)
        assert t <= 40 or abs(float(state.l2_norm_clip) - 5.0) < 0.5


def test_published_noise(check_stddev):
    query = adaptive(5.0, z=0.2, target=1.0, rate=0.0)
    state = query.initial_global_state()
    sample = query.initial_sample_state(tf.zeros([]))
    draw = tf.function(lambda: query.get_noised_result(sample, state)[0])
    check_stddev([draw().numpy() for _ in range(1000)], 1.0)


def test_noise_follows_the_clip_and_the_event_does_not(check_stddev):
    query = adaptive(5.0, z=2.0, stddev=3.0)
    event = ComposedEvent((GaussianSumEvent(1.0, 2.0), GaussianSumEvent(0.5, 3.0)))
    for clip in (5.0, 0.01, 300.0):
        state = query.initial_global_state()._replace(l2_norm_clip=tf.constant(clip))
        sample = query.initial_sample_state(tf.zeros([1000]))
        result, _, told = query.get_noised_result(sample, state)
        check_stddev(result.numpy(), 2.0 * clip)
        assert told == query.derive_event(state) == event


def test_result_in_units_of_the_clip_is_the_result_over_the_clip(check_stddev):
    records = [[-6.0, 8.0], [3.0, -4.0]]
    query = adaptive(5.0, normalize_by_clip=True)
    plain = dataclasses.replace(query, normalize_by_clip=False)
    state = query.initial_global_state()
    ours, theirs = step(query, records, state), step(plain, records, state)
    np.testing.assert_allclose(ours[0], theirs[0] / 5, rtol=1e-6)
    assert float(ours[1].l2_norm_clip) == float(theirs[1].l2_norm_clip)
    noisy = dataclasses.replace(query, noise_multiplier=2.0)
    sample = query.initial_sample_state(tf.zeros([1000]))
    check_stddev(noisy.get_noised_result(sample, state)[0].numpy(), 2.0)
    assert noisy.derive_event(state).events[0] == GaussianSumEvent(1.0, 2.0)


def test_noise_of_the_count_is_that_of_the_event(check_stddev):
    query = adaptive(1.0, z=1.0, rate=1e-3, stddev=2.0, expected=1000.0)
    sample = query.initial_sample_state(tf.zeros([1]))
    draw = tf.function(
        lambda: query.get_noised_result(sample, query.initial_global_state())[1].l2_norm_clip
    )
    clips = np.array([draw().numpy() for _ in range(1000)], np.float64)
    # clip = exp(-1e-3 noise / 1000), in float32: rounded to 6e-8 where its noise is 2e-6.
    check_stddev(-np.log(clips) * 1e6, 2.0)


@pytest.mark.parametrize("geometric", [False, True])
def test_clip_reaches_neither_zero_nor_infinity(geometric):
    small, large = [np.float32(0.0)] * 30, [np.float32(1e15)] * 30
    query = adaptive(3.0, rate=50.0, geometric=geometric, z=1.0, stddev=1.0)
    for records, bound in ((small, 3e-6), (large, 3e6)):
        state = query.initial_global_state()
        for _ in range(20 if geometric else 2):
            result, state = step(query, records, state)
            assert np.isfinite(result)
        if geometric or bound < 1:
            assert float(state.l2_norm_clip) == pytest.approx(bound)
    query = adaptive(3.0, rate=50.0, min_l2_norm_clip=2.0, max_l2_norm_clip=4.0)
    state = query.initial_global_state()
    assert float(step(query, small, state)[1].l2_norm_clip) == 2.0
    assert float(step(query, large, state)[1].l2_norm_clip) == 4.0


def test_seeded_noise_is_said():
    query = dataclasses.replace(adaptive(1.0, z=1.0), random_source=SeededRandomSource(0))
    assert all(event.seeded for event in query.derive_event(query.initial_global_state()).events)


@pytest.mark.parametrize(("z", "stddev"), [(1.1, 12.8), (0.5, 0.3), (4.0, 2.1), (1e-3, 10.0)])
def test_sum_and_count_together_cost_what_was_asked_for(z, stddev):
    total = adaptive_clip_noise_multiplier(z, stddev)
    events = ComposedEvent((GaussianSumEvent(1.0, total), GaussianSumEvent(0.5, stddev)))
    joint = (total**-2 + (2 * stddev) ** -2) ** -0.5
    assert z <= joint <= z * (1 + 1e-12)
    epsilons = []
    for event in (events, GaussianSumEvent(1.0, z)):
        accountant = RDPAccountant()
        accountant.compose(event)
        epsilons.append(accountant.get_epsilon(1e-5))
    assert epsilons[0] <= epsilons[1] * (1 + 1e-9)
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-6)


def test_count_that_costs_too_much_is_refused():
    with pytest.raises(ValueError, match="clipped_count_stddev must be above 1"):
        adaptive_clip_noise_multiplier(2.0, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"initial_l2_norm_clip": 0.0}, "initial_l2_norm_clip must be"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be"),
        ({"noise_multiplier": 1e25}, "noise_multiplier"),
        ({"target_unclipped_quantile": 1.5}, "target_quantile must be"),
        ({"learning_rate": math.inf}, "learning_rate must be"),
        ({"clipped_count_stddev": -1.0}, "below_estimate_stddev must be"),
        ({"expected_num_records": -2}, "expected_num_records must be"),
        ({"min_l2_norm_clip": 0.0}, "min_estimate must be"),
        ({"max_l2_norm_clip": 0.5}, "must be between the bounds"),
        ({"random_source": 7}, "random_source must be"),
    ],
)
def test_refuses_bad_arguments(change, message):
    none = {"min_l2_norm_clip": None, "max_l2_norm_clip": None}
    with pytest.raises((TypeError, ValueError), match=message):
        dataclasses.replace(adaptive(1.0, z=1.0), **{**none, **change})


# What engines compute from norms is what a record at a time gives.


def _problem():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(9, 3)) * np.geomspace(0.05, 20, 9)[:, None]).astype(np.float32)
    x[4] = np.nan
    variables = [tf.Variable(np.ones([3, 2], np.float32)), tf.Variable(np.zeros([2], np.float32))]
    mask = np.arange(9) != 2
    return x, variables, mask


def _loss(variables):
    return lambda x: tf.reduce_sum((x @ variables[0] + variables[1]) ** 2)


def _queries():
    one = adaptive(30.0, expected=9)
    parts = [adaptive(30.0, expected=9), adaptive(2.0, expected=9)]
    nested = tfdp.NestedQuery(parts)
    arranged = tfdp.query.ArrangedQuery(tfdp.NestedQuery(parts), [1, 0])
    mixed = tfdp.NestedQuery([tfdp.GaussianSumQuery(3.0, 0.0), tfdp.NormalizedQuery(parts[1], 2)])
    return {"one": one, "nested": nested, "arranged": arranged, "mixed": mixed}


@pytest.mark.parametrize("engine", ["vectorized", "loop"])
@pytest.mark.parametrize("rows", [None, 4])
@pytest.mark.parametrize("name", _queries())
def test_engines_give_the_state_of_one_record_at_a_time(name, rows, engine):
    query = _queries()[name]
    x, variables, mask = _problem()
    params = query.derive_sample_params(query.initial_global_state())
    expected = query.initial_sample_state(variables)
    for row, is_real in zip(x, mask, strict=True):
        with tf.GradientTape() as tape:
            loss = _loss(variables)(row[None])
        if is_real and np.isfinite(row).all():
            expected = query.accumulate_record(params, expected, tape.gradient(loss, variables))

    def total():
        return tfdp.clipped_gradient_sum(
            _loss(variables),
            variables,
            x,
            query,
            mask=mask,
            physical_batch_size=rows,
            engine=engine,
        ).sample_state

    state = total()
    tf.nest.assert_same_structure(state, expected)
    for got, wanted in zip(tf.nest.flatten(state), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("engine", ["vectorized", "loop"])
def test_microbatches_are_the_records_that_are_counted(engine):
    # Means of two, of which the one of records 0 and 1 is small; 4 is NaN, and so its microbatch.
    query = adaptive(40.0, expected=4)
    x, variables, _ = _problem()
    state = tfdp.clipped_gradient_sum(
        _loss(variables),
        variables,
        x[:8],
        query,
        num_microbatches=4,
        microbatch_ids=np.repeat(np.arange(4, dtype=np.int32), 2),
        engine=engine,
    ).sample_state
    norms = []
    for pair in (x[0:2], x[2:4], x[6:8]):
        with tf.GradientTape() as tape:
            loss = _loss(variables)(pair) / 2
        norms.append(tf.linalg.global_norm(tape.gradient(loss, variables)).numpy())
    counted = sum(0.5 if norm <= 40.0 else -0.5 for norm in norms)
    assert min(norms) < 40 < max(norms)
    assert float(state.unclipped) == counted


@pytest.mark.parametrize("wrap", [lambda q: q, lambda q: tfdp.NestedQuery([q])], ids=["", "nested"])
def test_a_record_moves_a_large_count_by_one_half(wrap):
    # In float32 it would be moved by nothing or by 4.
    query = wrap(adaptive(4.0))
    params = query.derive_sample_params(query.initial_global_state())
    record = tf.nest.map_structure(lambda _: tf.zeros([2]), params)
    one = query.preprocess_record(params, record)
    norms = tf.zeros([3, 1])
    assert query.norm_statistics(params, norms).dtype == tf.float64
    assert query.pack_scaled(record, query.norm_statistics(params, norms)[0]) is not None
    many = one
    for _ in range(30):
        many = query.merge_sample_states(many, many)
    more = tf.nest.flatten(query.merge_sample_states(many, one))[-1]
    assert float(more) - float(tf.nest.flatten(many)[-1]) == 0.5
