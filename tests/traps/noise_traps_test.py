"""Traps about noise: where it is drawn, how often, and from which bits.

`tests/traps/list_test.py` has the list of all traps.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.keras import toy
from tfdp.sampling import FullBatch

WIDE = 1000
STDDEV = 1.5


def optimizer_of_noise(**kwargs):
    query = tfdp.GaussianAverageQuery(1.0, stddev=STDDEV, denominator=1)
    return tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, **kwargs)


def model_of_noise(**kwargs):
    """Two vectors of equal size, whose gradients are zero: what moves them is noise."""
    layers = [keras.Input((1,)), keras.layers.Dense(WIDE)]
    model = tfdp.keras.make_private(keras.Sequential(layers))
    loss = lambda y, p: 0.0 * keras.ops.sum(p, axis=-1)  # noqa: E731
    model.compile(optimizer_of_noise(**kwargs), loss=loss)
    return model


def take_steps(model, steps, examples=8):
    """Returns the noise of every step, [kernel's, bias']."""
    x, places = np.zeros([examples, 1], "float32"), [toy.weights(model)]
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: places.append(toy.weights(model))
    )
    model.fit(x, x, sampling=FullBatch(), epochs=steps, verbose=0, callbacks=[note])
    pairs = zip(places, places[1:], strict=False)
    return [
        [(b - a).ravel() for b, a in zip(before, after, strict=True)] for before, after in pairs
    ]


def test_noise_per_accumulation_micro_step(check_stddev):
    # Four micro-steps with noise each would have twice the standard deviation.
    model = model_of_noise(physical_batch_size=2)
    ((kernel, bias),) = take_steps(model, 1)
    check_stddev(kernel, STDDEV)
    check_stddev(bias, STDDEV)
    assert model.ledger.total_count == 1


def test_noise_constant_folded_by_tf_function(check_independent):
    first, second = take_steps(model_of_noise(), 2)  # One graph, run twice.
    check_independent(first[0], second[0])


def test_noise_repeated_after_resume(tmp_path, check_independent):
    model, path = model_of_noise(), tmp_path / "a.weights.h5"
    take_steps(model, 1)
    model.save_weights(path)
    after = []
    for _ in range(2):  # Two runs that resume from the same checkpoint, seeds set alike.
        keras.utils.set_random_seed(0)
        resumed = model_of_noise()
        resumed.optimizer.build(resumed.trainable_variables)
        resumed.load_weights(path)
        after.append(take_steps(resumed, 1)[0])
    check_independent(after[0][0], after[1][0])


def test_key_reuse_across_variables(check_independent):
    ((kernel, bias),) = take_steps(model_of_noise(), 1)
    check_independent(kernel, bias)


@pytest.mark.parametrize("in_graph", [False, True])
def test_key_reuse_across_parts_of_a_nested_query(in_graph, check_independent):
    part = tfdp.GaussianSumQuery(1.0, STDDEV)
    query = tfdp.query.NestedQuery([part, part])  # One object, twice.
    state = query.initial_sample_state([tf.zeros([WIDE]), tf.zeros([WIDE])])

    def draw():
        return query.get_noised_result(state, query.initial_global_state())[0]

    left, right = (tf.function(draw) if in_graph else draw)()
    check_independent(left.numpy(), right.numpy())


def test_empty_samples_skipped(check_stddev):
    model = model_of_noise()
    x = np.zeros([500, 1], "float32")
    # q = 1 / 500: each of 3 steps is empty with probability 0.37; the noise must not tell.
    places = [toy.weights(model)]
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: places.append(toy.weights(model))
    )
    model.fit(x, x, batch_size=1, steps_per_epoch=3, verbose=0, callbacks=[note])
    assert len(places) == 4
    for before, after in zip(places, places[1:], strict=False):
        check_stddev(after[0] - before[0], STDDEV)
    assert model.ledger.total_count == 3


def test_empty_sample_in_a_custom_loop(check_stddev):
    # What the test before meets by chance: a sample of no records.
    optimizer, variable = optimizer_of_noise(), tf.Variable(tf.zeros([WIDE]))
    examples = tf.zeros([0, WIDE])
    (noise,) = optimizer.private_gradients(
        lambda e: tf.reduce_sum(e * variable), [variable], examples
    )
    check_stddev(noise.numpy(), STDDEV)
    assert optimizer.ledger.total_count == 1


def test_rows_that_no_record_uses_have_no_noise():
    # Where only used rows can move, a row that moves says that a record used it. On an empty sample
    # each of 1000 rows is selected with probability P(N(0, 1) > 1) = 0.1587, and then has noise.
    query = tfdp.query.SparseEmbeddingSumQuery(1.0, 1.0, 1.0, 1.0, threshold=1.0)
    state = query.initial_sample_state(tf.zeros([WIDE, 2]))
    release = tf.function(lambda: query.get_noised_result(state, ())[0], autograph=False)
    results = [release() for _ in range(20)]
    selected = sum(result.indices.shape[0] for result in results)
    expected, variance = 20 * WIDE * 0.158655, 20 * WIDE * 0.158655 * 0.841345
    assert abs(selected - expected) < 6.2 * variance**0.5
    assert all(np.all(result.values != 0) for result in results)
    seen = np.bincount(np.concatenate([result.indices for result in results]), minlength=WIDE)
    # Binomial(20, 0.1587): a row of 1000 is selected 18 times or more once in 10^9.
    assert np.mean(seen > 0) > 0.9 and np.max(seen) < 18


def tree_of(num_steps):
    specs = [tf.TensorSpec([WIDE], tf.float32)]
    return tfdp.query.TreeResidualSumQuery(
        1.0, STDDEV, tfdp.factorizations.BinaryTree(), num_steps, 1, specs
    )


def noise_of_tree(query, state, steps):
    """Returns the noise of so many steps of nothing, the state after them, and their events."""
    zeros = query.initial_sample_state([tf.zeros([WIDE])])
    values, events = [], []
    for _ in range(steps):
        (value,), state, event = query.get_noised_result(zeros, state)
        values.append(value.numpy())
        events.append(event)
    return values, state, events


def test_a_tree_that_begins_anew_is_charged_anew(check_independent):
    # A restarted tree whose old nodes went on without a charge would be free from then on.
    indicator = tfdp.query.PeriodicRoundRestartIndicator(2)
    query = tfdp.query.RestartQuery(tree_of(4), indicator)
    values, _, events = noise_of_tree(query, query.initial_global_state(), 4)
    check_independent(values[0], values[2])
    assert [event.position for event in events] == [0, 1, 0, 1]
    assert len({event.run_id for event in events}) == 2
    once, twice = tfdp.accounting.RDPAccountant(), tfdp.accounting.RDPAccountant()
    for event in events[:2]:
        once.compose(event)
    for event in events:
        twice.compose(event)
    two = tfdp.accounting.RDPAccountant().compose(tfdp.ComposedEvent(()))
    for event in (events[0], events[2]):
        two.compose(event)
    assert twice.get_epsilon(1e-5) == two.get_epsilon(1e-5) > 1.3 * once.get_epsilon(1e-5)


def test_a_tree_that_is_resumed_twice_has_fresh_noise_and_costs_two(check_independent):
    query = tree_of(4)
    _, state, first = noise_of_tree(query, query.initial_global_state(), 2)
    ways = [noise_of_tree(query, state, 1) for _ in range(2)]
    # The third step begins a node of its own, with which both ways have nothing in common.
    check_independent(ways[0][0][0], ways[1][0][0])
    events = [*first, *(events[0] for _, _, events in ways)]
    assert events[2] == events[3]
    spent = [tfdp.accounting.RDPAccountant() for _ in range(2)]
    for accountant, steps in zip(spent, (events[:3], events), strict=True):
        for event in steps:
            accountant.compose(event)
    assert spent[1].get_epsilon(1e-5) > 1.3 * spent[0].get_epsilon(1e-5)
