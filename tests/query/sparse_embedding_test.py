"""Rows of a table that are selected privately: bounds, the dense twin, events, and training."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdp
from tfdp import query as tfdp_query
from tfdp.accounting import PLDAccountant, RDPAccountant
from tfdp.events import ComposedEvent, GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.noise import SeededRandomSource
from tfdp.query import SparseEmbeddingSumQuery

ROWS, WIDTH = 12, 3
TABLE = tf.zeros([ROWS, WIDTH])
ALARM = 1e-9


def _query(stddev=0.0, selection_stddev=0.0, threshold=0.5, source=None):
    return SparseEmbeddingSumQuery(1.5, stddev, 1.0, selection_stddev, threshold, source)


def _record(rng, used=3, scale=3.0):
    record = np.zeros([ROWS, WIDTH], np.float32)
    record[rng.choice(ROWS, used, replace=False)] = scale * rng.normal(size=[used, WIDTH])
    return tf.constant(record)


def _state(query, records):
    state = query.initial_sample_state(TABLE)
    for record in records:
        state = query.accumulate_record((), state, record)
    return state


def _dense(state):
    """Returns the sum [rows, d] and the counts [rows] of a sample state."""
    table = np.zeros(np.array(state.dense_shape), np.float64)
    np.add.at(table, np.array(state.indices), np.array(state.values, np.float64))
    return table[:, :-1], table[:, -1]


def _by_definition(records, query):
    """Returns sum and counts as the paper's algorithm writes them."""
    sums, counts = np.zeros([ROWS, WIDTH]), np.zeros(ROWS)
    for record in np.float64(records):
        norm, used = np.linalg.norm(record), np.any(record != 0, axis=1)
        if math.isfinite(norm) and norm > 0:
            sums += record * min(1, query.l2_norm_clip / norm)
            counts += used * min(1, query.contribution_clip / np.sqrt(used.sum()))
    return sums, counts


def test_state_is_that_of_the_definition_however_it_is_split():
    rng, query = np.random.default_rng(0), _query()
    records = [_record(rng, used, scale) for used, scale in [(1, 0.1), (3, 9.0), (0, 1), (12, 2.0)]]
    expected = _by_definition(records, query)
    merged = query.merge_sample_states(_state(query, records[2:]), _state(query, records[:2]))
    for state in (_state(query, records), merged):
        for actual, right in zip(_dense(state), expected, strict=True):
            np.testing.assert_allclose(actual, right, rtol=1e-5, atol=1e-7)
    in_graph = tf.function(lambda *r: _state(query, r), autograph=False)(*records)
    np.testing.assert_allclose(_dense(in_graph)[0], expected[0], rtol=1e-5, atol=1e-7)


def test_no_record_moves_sum_or_counts_by_more_than_their_bounds():
    rng = np.random.default_rng(1)
    for clip, contribution_clip in [(1.5, 1.0), (1e-6, 0.01), (1e6, 2.0)]:
        query = SparseEmbeddingSumQuery(clip, 0.0, contribution_clip, 0.0, 0.0)
        attained = np.zeros(2)
        for used in [1, 2, 5, ROWS] * 5:
            record = _record(rng, used, 10.0 ** rng.uniform(-8, 8))
            sums, counts = _dense(query.preprocess_record((), record))
            norms = np.array([np.linalg.norm(sums) / clip, np.linalg.norm(counts)])
            norms[1] /= contribution_clip
            assert np.all(norms <= 1)
            attained = np.maximum(attained, norms)
        np.testing.assert_allclose(attained, 1, rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_record_that_is_not_finite_is_in_neither_sum(value):
    record = np.ones([ROWS, WIDTH], np.float32)
    record[3, 1] = value
    sums, counts = _dense(_query().preprocess_record((), tf.constant(record)))
    np.testing.assert_array_equal(sums, 0)
    np.testing.assert_array_equal(counts, 0)


def test_without_noise_selects_exactly_the_rows_above_the_threshold():
    rng, query = np.random.default_rng(2), _query()
    records = [_record(rng, 1) for _ in range(5)] + [_record(rng, 4)]
    sums, counts = _by_definition(records, query)
    state = _state(query, records)
    for run in (lambda f: f(), lambda f: tf.function(f, autograph=False)()):
        result = run(lambda: query.get_noised_result(state, ())[0])
        selected = np.flatnonzero(counts > query.threshold)
        np.testing.assert_array_equal(result.indices, selected)
        np.testing.assert_allclose(result.values, sums[selected], rtol=1e-5)
        assert tuple(result.dense_shape.numpy()) == (ROWS, WIDTH)


def _selections(query, state, draws):
    """Returns, [draws, rows], which rows each of so many releases selects."""
    release = tf.function(lambda: query.get_noised_result(state, ())[0], autograph=False)
    table = np.zeros([draws, ROWS])
    for row in table:
        result = release()
        assert np.all(np.diff(result.indices) > 0)  # The order tells nothing.
        row[result.indices.numpy()] = 1
    return table


def _compared(query, counts, draws):
    """Returns the same by the comparison of every row's noisy count, which is the dense twin."""
    noise = np.random.default_rng(5).normal(size=[draws, ROWS])
    return counts + query.selection_stddev * noise > query.threshold


def _worst_p(first, second):
    """Returns the smallest p value of differences between two kinds of draws: of each row, each
    pair of rows, and of how many rows there are; times the number of comparisons.
    """
    pairs = [(i, j) for i in range(ROWS) for j in range(i)]

    def features(table):
        table = np.asarray(table, np.float64)
        both = np.stack([table[:, i] * table[:, j] for i, j in pairs], 1)
        sizes = table.sum(1)[:, None] == np.arange(ROWS + 1)
        return np.concatenate([table, both, sizes], 1).sum(0)

    tables = np.stack([features(first), features(second)])
    lengths = np.array([[len(first)], [len(second)]])
    ps = []
    for yes, no in zip(tables.T, (lengths - tables).T, strict=True):
        if (yes.sum() > 10) and (no.sum() > 10):
            ps.append(stats.chi2_contingency(np.stack([yes, no]))[1])
    return min(ps) * len(ps)


def test_selection_has_the_distribution_of_comparing_every_row():
    query = _query(selection_stddev=0.7, threshold=0.9, source=SeededRandomSource(3))
    rng = np.random.default_rng(3)
    state = _state(query, [_record(rng, 1), _record(rng, 2), _record(rng, 1)])
    counts = _dense(state)[1]
    assert 2 <= np.count_nonzero(counts) <= 4
    selections = _selections(query, state, 800)
    assert _worst_p(selections, _compared(query, counts, 200_000)) > ALARM
    # Rows that no record uses left out; or the number right, but always the first ones.
    only_touched = selections * (counts > 0)
    assert _worst_p(only_touched, _compared(query, counts, 200_000)) < ALARM**2
    others = np.flatnonzero(counts == 0)
    first = selections.copy()
    first[:, others] = np.arange(others.size) < selections[:, others].sum(1, keepdims=True)
    assert _worst_p(first, _compared(query, counts, 200_000)) < ALARM**2


def test_selected_rows_have_the_noise_whether_used_or_not(check_stddev):
    query = _query(stddev=2.0, selection_stddev=1.0, threshold=0.0)
    record = np.zeros([ROWS, WIDTH], np.float32)
    record[4] = 100.0
    state = _state(query, [tf.constant(record)])
    sums = _dense(state)[0]
    release = tf.function(lambda: query.get_noised_result(state, ())[0], autograph=False)
    noise = {True: [], False: []}
    for _ in range(500):
        result = release()
        for row, values in zip(result.indices.numpy(), result.values.numpy(), strict=True):
            noise[bool(row == 4)].append(values - sums[row])
    check_stddev(np.ravel(noise[True]), 2.0)
    check_stddev(np.ravel(noise[False]), 2.0)


def test_event_and_its_price():
    query = SparseEmbeddingSumQuery(2.0, 6.0, 0.5, 2.0, 1.0)
    state = query.initial_sample_state(TABLE)
    event = query.get_noised_result(state, ())[2]
    sums = (GaussianSumEvent(0.5, 2.0), GaussianSumEvent(2.0, 6.0))
    assert event == query.derive_event(()) == ComposedEvent(sums)
    joint = (4.0**-2 + 3.0**-2) ** -0.5
    for accountant in (RDPAccountant, PLDAccountant):
        prices = []
        for one in (event, GaussianSumEvent(1.0, joint)):
            book = accountant()
            book.compose(SampledEvent(PoissonSampling(0.01), one), 100)
            prices.append(book.get_epsilon(1e-5))
        assert prices[0] == pytest.approx(prices[1], rel=1e-9)
    for free in (_query(1.0, 0.0), _query(0.0, 1.0), _query(1.0, 1.0, 1.0, SeededRandomSource(0))):
        book = RDPAccountant()
        book.compose(free.derive_event(()))
        assert book.get_epsilon(1e-5) == math.inf


def test_refuses_what_is_no_table_and_arguments_out_of_range():
    for template in ([TABLE, TABLE], tf.zeros([3]), tf.zeros([2, 2, 2])):
        with pytest.raises(ValueError, match="one table"):
            _query().initial_sample_state(template)
    with pytest.raises(TypeError, match="float32 or float64.*int32"):
        _query().initial_sample_state(tf.zeros([2, 2], tf.int32))
    with pytest.raises(ValueError, match="tables differ"):
        _query().merge_sample_states(
            _query().initial_sample_state(TABLE), _query().initial_sample_state(tf.zeros([5, 3]))
        )
    with pytest.raises(TypeError, match="contribution_clips"):
        _query().pack_scaled(TABLE, ())
    good = {"l2_norm_clip": 1.0, "stddev": 1.0, "contribution_clip": 1.0}
    good |= {"selection_stddev": 1.0, "threshold": 1.0}
    for name, bad in [("l2_norm_clip", 0), ("contribution_clip", -1.0), ("stddev", -1.0)] + [
        ("selection_stddev", math.nan),
        ("threshold", math.inf),
    ]:
        with pytest.raises(ValueError, match=name):
            SparseEmbeddingSumQuery(**(good | {name: bad}))


# Gradients of a model, by every engine.

IDS = np.array([[1, 1, 4], [5, 1, 0], [7, 7, 7], [11, 2, 3], [2, 2, 9]], np.int32)
LABELS = np.array([0, 1, 1, 0, 1], np.int32)


def _model():
    keras.utils.set_random_seed(1)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            layers.Embedding(ROWS, WIDTH),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2),
        ]
    )


def _for_model(table, clip=0.05):
    dense = tfdp.GaussianSumQuery(clip, table.stddev)
    nested = tfdp_query.NestedQuery({"table": table, "dense": dense})
    averages = tfdp_query.NormalizedQuery(nested, 5.0)
    return tfdp_query.ArrangedQuery(averages, {"table": [0], "dense": [1, 2]})


def _trained(optimizer, variables, loss_fn, examples, **arguments):
    @tf.function(autograph=False)
    def step():
        optimizer.private_step(loss_fn, variables, examples, **arguments)

    step()


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "bookkeeping"},
        {"engine": "vectorized"},
        {"engine": "loop"},
        {"physical_batch_size": 2},
        {"num_microbatches": 5},
        {"jit_compile": True},
    ],
    ids=lambda options: "_".join(map(str, options.values())),
)
def test_engines_move_the_rows_of_the_definition(options):
    options = dict(options)
    compiled = {"jit_compile": options.pop("jit_compile", False)}
    query = SparseEmbeddingSumQuery(0.05, 0.0, 1.0, 0.0, 0.6)
    model = _model()
    before = [v.numpy() for v in model.trainable_variables]
    records = []
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for ids, label in zip(IDS, LABELS, strict=True):
        with tf.GradientTape() as tape:
            value = loss(np.array([label]), model(ids[None]))
        table = model.trainable_variables[0]
        records.append(tf.convert_to_tensor(tape.gradient(value, table.value)).numpy())
    mask = np.array([True, True, True, False, True])
    sums, counts = _by_definition(np.array(records)[mask], query)
    expected = before[0] - np.where(counts[:, None] > 0.6, sums, 0) / 5.0
    assert 0 < np.count_nonzero(counts > 0.6) < np.count_nonzero(counts)

    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), _for_model(query), **options)
    loss_fn = tfdp.gradients.ModelLoss(model, loss)
    _trained(optimizer, model.trainable_variables, loss_fn, (IDS, LABELS), mask=mask, **compiled)
    after = [v.numpy() for v in model.trainable_variables]
    np.testing.assert_allclose(after[0], expected, rtol=1e-4, atol=1e-7)
    assert np.any(after[1] != before[1])
    (entry,) = optimizer.ledger
    assert entry.event.event == optimizer.query.derive_event(optimizer.query.initial_global_state())


def test_fit_trains_a_private_model_with_selected_rows():
    model = _model()
    table = SparseEmbeddingSumQuery(1.0, 0.5, 1.0, 0.5, 0.2)
    model = tfdp.keras.make_private(model)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), _for_model(table))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    before = model.trainable_variables[0].numpy()
    model.fit(IDS, LABELS, batch_size=2, epochs=3, verbose=0)
    after = model.trainable_variables[0].numpy()
    assert np.all(np.isfinite(after)) and np.any(after != before)
    event = ComposedEvent(
        (GaussianSumEvent(0.05, 0.5), ComposedEvent((GaussianSumEvent(1.0, 0.5),) * 2))
    )
    assert {entry.event.event for entry in optimizer.ledger} == {event}


def test_counts_of_very_many_records_are_not_rounded():
    query = _query(threshold=2.0**24 + 0.5)
    values = tf.constant([[0.0] * WIDTH + [2.0**24], [0.0] * WIDTH + [1.0]])
    shape = tf.constant([ROWS, WIDTH + 1], tf.int64)
    state = tf.IndexedSlices(values, tf.constant([7, 7], tf.int64), shape)
    assert query.get_noised_result(state, ())[0].indices.numpy().tolist() == [7]
