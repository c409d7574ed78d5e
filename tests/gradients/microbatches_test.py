"""The two traps of microbatches, and records of several examples."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    TOKENS,
    Pair,
    Position,
    assert_sums_agree,
    by_engine,
    model_of,
    normal,
    problem,
    shared_over_shapes,
    token_model,
)
from tfdp.gradients import assign_microbatches
from tfdp.gradients.microbatches import consecutive_microbatches
from tfdp.noise import SeededRandomSource

L = keras.layers
QUERY = tfdp.GaussianSumQuery(l2_norm_clip=1.0, stddev=0.0)


def clipped_sum(points, ids, num_microbatches):
    """Sum over microbatches of the clipped mean of the points: the gradient of x.w is x."""
    w = tf.Variable([0.0, 0.0])
    points = tf.constant(points, tf.float32)
    return (
        tfdp.clipped_gradient_sum(
            lambda x: tf.reduce_sum(x * w),
            [w],
            points,
            QUERY,
            num_microbatches=num_microbatches,
            microbatch_ids=tf.constant(ids),
        )
        .sample_state[0]
        .numpy()
    )


def test_one_example_can_move_a_clipped_mean_by_twice_the_clip():
    # A microbatch holds (3, 0), clipped to (1, 0). Adding (-9, 0) makes the mean (-3, 0), clipped
    # to (-1, 0).
    without = clipped_sum([[3.0, 0.0]], [0], 1)
    with_example = clipped_sum([[3.0, 0.0], [-9.0, 0.0]], [0, 0], 1)
    assert 2 - 1e-5 < np.linalg.norm(with_example - without) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_one_example_never_moves_the_sum_by_more_than_twice_the_clip(seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(12, 2)) * np.exp(rng.normal(size=(12, 1)) * 2)
    ids = rng.integers(0, 4, 12)
    everything = clipped_sum(points, ids, 4)
    for i in range(12):
        without = clipped_sum(np.delete(points, i, 0), np.delete(ids, i), 4)
        assert np.linalg.norm(everything - without) <= 2.0 + 1e-5


def test_consecutive_slices_break_the_bound_where_independent_ones_keep_it():
    # Slices of two of 10, -4, -4, 10, ...: every mean is 3, clipped to 1: eight microbatches sum to
    # 8. One more example in front makes them (6, 10), (-4, -4), (10, 10), (-4, -4), ...: the sum
    # falls to about 0.
    points = np.array([[10.0, 0.0], [-4.0, 0.0], [-4.0, 0.0], [10.0, 0.0]] * 4)
    neighbour = np.concatenate([[[6.0, 0.0]], points])

    def sliced(data):
        return clipped_sum(data, np.arange(len(data)) // 2, 9)

    assert np.linalg.norm(sliced(neighbour) - sliced(points)) > 6

    ids = assign_microbatches(17, 9, SeededRandomSource(0)).numpy()
    independent = clipped_sum(neighbour, ids, 9) - clipped_sum(points, ids[1:], 9)
    assert np.linalg.norm(independent) <= 2 + 1e-5


def test_assignment_does_not_depend_on_the_other_examples():
    # Whether two examples share a microbatch has probability 1/M, wherever they stand in the
    # sample. With consecutive slices of 8 neighbours share one with probability 7/8 and far ones
    # never do.
    draws = 4000
    source = SeededRandomSource(11)
    ids = np.stack([assign_microbatches(32, 4, source).numpy() for _ in range(draws)])
    for i, j in [(0, 1), (7, 8), (0, 31), (30, 31)]:
        together = np.mean(ids[:, i] == ids[:, j])
        # Standard error sqrt(0.25 * 0.75 / 4000) = 0.0068.
        assert abs(together - 0.25) < 5 * 0.0068
    sliced = np.arange(32) // 8
    assert sliced[0] == sliced[1] and sliced[7] != sliced[8]


def test_assignment_is_uniform_and_new_each_time():
    source = SeededRandomSource(5)
    ids = assign_microbatches(40_000, 4, source).numpy()
    counts = np.bincount(ids, minlength=4)
    # Standard deviation sqrt(40000 * 0.25 * 0.75) = 87.
    assert counts.shape == (4,) and np.abs(counts - 10_000).max() < 5 * 87
    assert not np.array_equal(ids, assign_microbatches(40_000, 4, source).numpy())


def test_consecutive_microbatches_keep_a_ragged_last_one():
    np.testing.assert_array_equal(consecutive_microbatches(7, 3), [0, 0, 0, 1, 1, 1, 2])


def test_number_of_microbatches_is_checked():
    with pytest.raises(ValueError, match="at least 1"):
        assign_microbatches(4, 0)
    with pytest.raises(TypeError, match="integer"):
        assign_microbatches(4, 2.0)


# One layer of every form of gradients: name -> (layer, shape of its input)
LAYERS = {
    "dense": (lambda: L.Dense(3, activation="tanh"), (4,)),
    "dense_sequence": (lambda: L.Dense(3, activation="relu"), (5, 4)),
    "dense_long_sequence": (lambda: L.Dense(2), (40, 3)),
    "layer_norm": (lambda: L.LayerNormalization(), (5, 4)),
    "attention": (lambda: Pair(L.MultiHeadAttention(2, 3)), (5, 4)),
    "conv2d": (lambda: L.Conv2D(3, 3, padding="same", activation="relu"), (6, 6, 2)),
    "depthwise": (lambda: L.DepthwiseConv2D(3), (6, 6, 2)),
    "lstm": (lambda: L.LSTM(3), (5, 4)),
    "custom": (Position, (5, 4)),
}
OF_ALL_ENGINES = ("dense", "conv2d", "tokens")  # The others have the same forms in them.
QUERIES = {
    "flat": lambda v: tfdp.GaussianSumQuery(0.3, 1.0),
    "per_layer": lambda v: tfdp.query.per_layer(v, 0.3, 1.0, 4),
    "joint": lambda v: tfdp.JointClippingQuery([1.0 + i for i in range(len(v))], 0.3, 1.0),
}
GRADIENTS = ("mean", "sum")
MASKS = {2: [True, True, False, True], 3: [True, False, True, True], 4: [True] * 4}


def sum_of_users(loss, variables, examples, query, size, mask, gradient):
    """The oracle: one user after another, one row after another, in plain Python."""
    params = query.derive_sample_params(query.initial_global_state())
    state = query.initial_sample_state(variables)
    for first in range(0, BATCH, size):
        rows = [i for i in range(first, min(first + size, BATCH)) if mask[i]]
        total = [tf.zeros(v.shape, v.dtype) for v in variables]
        for i in rows:
            with tf.GradientTape() as tape:
                example = tuple(leaf[i : i + 1] for leaf in examples)
                value = loss.loss(example, loss.forward(example, None), None)[0]
            found = tape.gradient(value, [v.value for v in variables])
            total = [t + tf.convert_to_tensor(g) for t, g in zip(total, found, strict=True)]
        if rows:
            divisor = len(rows) if gradient == "mean" else 1
            record = [t / divisor for t in total]
            state = query.accumulate_record(params, state, record)
    return [np.asarray(leaf, np.float64) for leaf in tf.nest.flatten(state)]


@pytest.mark.parametrize("name", [*LAYERS, "tokens", "shared"])
def test_records_of_several_examples_are_clipped_once_by_every_engine(name):
    if name == "tokens":
        model, x = token_model(L.Embedding(7, 4)), TOKENS
    elif name == "shared":
        model, x = shared_over_shapes(), normal(5, 4)
    else:
        make, shape = LAYERS[name]
        model, x = model_of(make, shape), normal(*shape)
    for index, size in enumerate(MASKS):
        loss, variables, examples = problem(model, x)
        query = list(QUERIES.values())[index](variables)
        gradient = GRADIENTS[index % 2]
        arguments = {
            "mask": tf.constant(MASKS[size]),
            "examples_per_record": size,
            "record_gradient": gradient,
        }
        given = loss, variables, examples, query
        expected = sum_of_users(*given, size, MASKS[size], gradient)
        others = ("vectorized", "loop") if size == 2 and name in OF_ALL_ENGINES else ()
        for engine in ("bookkeeping", *others):
            assert_sums_agree(by_engine(*given, engine, **arguments), expected)


def test_parts_of_a_sample_in_memory_hold_whole_records():
    loss, variables, examples = problem(token_model(L.Embedding(7, 4)), TOKENS)
    given = loss, variables, examples, QUERIES["flat"](variables)
    for size in (2, 3):
        arguments = {"mask": tf.constant(MASKS[size]), "examples_per_record": size}
        expected = sum_of_users(*given, size, MASKS[size], "mean")
        for engine in ("bookkeeping", "vectorized"):
            actual = by_engine(*given, engine, physical_batch_size=3, **arguments)
            assert_sums_agree(actual, expected)


def test_rows_that_the_mask_leaves_out_are_no_part_of_a_record():
    loss, variables, (x, y) = problem(model_of(*LAYERS["dense"]), normal(4))
    query = QUERIES["flat"](variables)
    mask = tf.constant(MASKS[2])
    found = []
    for value in (0.0, np.nan, 1e30):
        x_bad = tf.where(mask[:, None], x, tf.constant(value, x.dtype))
        for engine in ("bookkeeping", "vectorized", "loop"):
            found.append(
                by_engine(
                    loss, variables, (x_bad, y), query, engine, mask=mask, examples_per_record=2
                )
            )
    for sums in found[1:]:
        assert_sums_agree(sums, found[0])


def test_record_with_one_row_that_is_not_finite_contributes_zero():
    loss, variables, (x, y) = problem(model_of(*LAYERS["dense"]), normal(4))
    query = QUERIES["flat"](variables)
    x_bad = tf.tensor_scatter_nd_update(x, [[0]], tf.fill([1, 4], np.float32("nan")))
    without = tf.constant([False, False, True, True])
    for engine in ("bookkeeping", "vectorized", "loop"):
        arguments = {"examples_per_record": 2}
        bad = by_engine(loss, variables, (x_bad, y), query, engine, **arguments)
        expected = by_engine(loss, variables, (x, y), query, engine, mask=without, **arguments)
        assert_sums_agree(bad, expected)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_record_with_all_of_its_rows_moves_the_sum_by_at_most_the_clip(size, gradient):
    rng = np.random.default_rng(size)
    points = rng.normal(size=(6, 2)) * np.exp(rng.normal(size=(6, 1)) * 2)
    w = tf.Variable([0.0, 0.0])

    def total(mask):
        return tfdp.clipped_gradient_sum(
            lambda x: tf.reduce_sum(x * w),
            [w],
            tf.constant(points, tf.float32),
            QUERY,
            mask=tf.constant(mask),
            examples_per_record=size,
            record_gradient=gradient,
        ).sample_state[0]

    everything = total([True] * 6)
    for user in range(6 // size):
        present = np.arange(6) // size != user
        assert 0.1 < np.linalg.norm(everything - total(present)) <= 1.0 + 1e-5


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"examples_per_record": 0}, "examples_per_record must be"),
        ({"record_gradient": "sum"}, "needs examples_per_record"),
        ({"examples_per_record": 2, "record_gradient": "max"}, "'mean' or 'sum'"),
        ({"examples_per_record": 3, "physical_batch_size": 2}, "at least examples_per_record"),
        (
            {"examples_per_record": 2, "num_microbatches": 2, "microbatch_ids": [0, 1]},
            "not both",
        ),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, message):
    w = tf.Variable([0.0])
    with pytest.raises(ValueError, match=message):
        tfdp.clipped_gradient_sum(
            lambda x: tf.reduce_sum(x * w), [w], tf.ones([2, 1]), QUERY, **arguments
        )
