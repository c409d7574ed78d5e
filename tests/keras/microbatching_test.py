"""How far one unit can move a sum, by the way examples become records."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import N, X, Y, matrix, squared_error

import tfdp
from tfdp.keras import (
    DPOptimizer,
    NotPrivateError,
)
from tfdp.keras.microbatching import Microbatching
from tfdp.sampling import FullBatch, Poisson, Shuffled

EXAMPLES = toy.examples()


def test_examples_that_are_records_move_a_sum_once():
    microbatching = Microbatching(None, "example")
    assert microbatching.sensitivity_factor == 1
    assert microbatching.assign(tf.constant(6), None) == (None, None)
    assert not microbatching.set_batch_size(17)
    assert not microbatching.holds_several


def test_example_in_a_microbatch_moves_a_clipped_mean_twice():
    microbatching = Microbatching(2, "example")
    assert microbatching.sensitivity_factor == 2  # As long as nothing is known.
    assert microbatching.set_batch_size(6)
    assert microbatching.sensitivity_factor == 2
    assert microbatching.set_batch_size(2)
    assert microbatching.sensitivity_factor == 1  # One example each.
    assert not microbatching.set_batch_size(2)


def test_microbatch_that_is_the_unit_moves_it_once_and_holds_consecutive_examples():
    microbatching = Microbatching(2, "microbatch")
    microbatching.set_batch_size(6)
    assert microbatching.sensitivity_factor == 1
    ids, number = microbatching.assign(tf.constant(6), None)
    assert ids.numpy().tolist() == [0, 0, 0, 1, 1, 1]
    assert int(number) == 2


@pytest.mark.parametrize(
    ("num_microbatches", "unit", "sizes", "said"),
    [
        (2, "example", [6, 6, 2, 8], ["Batches of 6 ex", "Batches of 8 ex"]),
        (6, "example", [4, 6, None], ["Batches of 4 ex"]),
        (2, "microbatch", [6, 2], []),
        (None, "example", [6], []),
    ],
)
def test_what_shared_microbatches_cost_is_said_once_for_a_size(
    num_microbatches, unit, sizes, said, caplog
):
    microbatching = Microbatching(num_microbatches, unit)
    for size in sizes:
        microbatching.set_batch_size(size)
    messages = [record.getMessage() for record in caplog.records]
    assert [message[: len("Batches of 6 ex")] for message in messages] == said
    assert all(f"are {num_microbatches} microbatches" in message for message in messages)


@pytest.mark.parametrize("size", [5, None])
def test_units_need_batches_that_they_divide(size):
    with pytest.raises(ValueError, match="num_microbatches divides"):
        Microbatching(2, "microbatch").set_batch_size(size)


def test_ids_are_for_microbatches_only():
    with pytest.raises(ValueError, match="record of its own"):
        Microbatching(None, "example").assign(tf.constant(2), tf.constant([0, 1]))
    with pytest.raises(ValueError, match="set_batch_size first"):
        Microbatching(2, "microbatch").assign(tf.constant(2), None)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((2, "user"), ValueError), ((None, "microbatch"), ValueError), ((0, "example"), ValueError)]
    + [((2.5, "example"), TypeError)],
)
def test_bad_arguments(arguments, error):
    with pytest.raises(error):
        Microbatching(*arguments)


# In a run.


def bound_after(optimizer, batch_size, **kwargs):
    model = toy.private(toy.linear(), optimizer, run_eagerly=True)
    model.fit(X, Y, batch_size=batch_size, steps_per_epoch=1, verbose=0, **kwargs)
    return toy.events(model)[-1]


@pytest.mark.parametrize(
    ("num_microbatches", "privacy_unit", "factor"),
    [
        (None, "example", 1),
        (2, "example", 2),
        (6, "example", 1),
        (1, "example", 2),
        (2, "microbatch", 1),
    ],
)
def test_bound_is_what_one_unit_can_move(num_microbatches, privacy_unit, factor):
    optimizer = toy.dp(num_microbatches=num_microbatches, privacy_unit=privacy_unit)
    event = bound_after(optimizer, batch_size=6)
    assert event.event == tfdp.GaussianSumEvent(factor * toy.CLIP, 0.0)
    assert event.privacy_unit == privacy_unit


def test_without_a_known_batch_size_microbatches_cost_twice():
    model = toy.private(toy.linear(), toy.dp(num_microbatches=6), run_eagerly=True)
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    model.fit(batches, sampling=Poisson(0.3), verbose=0)
    assert {event.event.l2_norm_bound for event in toy.events(model)} == {2 * toy.CLIP}


def test_population_of_microbatch_units_is_counted_in_microbatches():
    optimizer = toy.dp(num_microbatches=2, privacy_unit="microbatch")
    event = bound_after(optimizer, batch_size=6)  # 12 examples are 4 units of 3; 2 of them a batch.
    assert event.sampling == tfdp.events.PoissonSampling(2 / 4, 4)


def test_microbatch_units_are_sampled_whole_and_are_one_record():
    # The loss is linear: the mean gradient of a unit is the mean of its x. A batch is one unit of
    # 4 examples.
    optimizer = DPOptimizer(
        keras.optimizers.SGD(1.0),
        toy.query(clip=100.0, denominator=1),
        1,
        privacy_unit="microbatch",
    )
    model = toy.private(toy.linear(), optimizer, loss=lambda y, p: p[:, 0])
    x = np.arange(N, dtype="float32")[:, None] * np.ones([1, 4], "float32")
    means = {1.5, 5.5, 9.5}  # Of 0-3, 4-7 and 8-11.
    kernels = [toy.weights(model)[0]]
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: kernels.append(toy.weights(model)[0])
    )
    policy = tfdp.sampling.FixedSize()
    model.fit(x, Y, batch_size=4, sampling=policy, steps_per_epoch=20, verbose=0, callbacks=[note])
    moved = -np.diff(np.stack(kernels), axis=0)[:, :, 0]
    np.testing.assert_allclose(moved, moved[:, :1] * np.ones(4), rtol=1e-4)
    seen = {round(float(m), 2) for m in moved[:, 0]}
    assert seen <= means
    assert len(seen) > 1  # Twenty times the same unit: once in 3^19 runs.


def test_other_batch_size_makes_another_step():
    # 6 microbatches of 6 examples are examples; of 12 examples they are pairs.
    model = toy.private(toy.linear(), toy.dp(num_microbatches=6))
    sampling = tfdp.sampling.FixedSize
    for batch_size in (6, 12, 6):
        model.fit(X, Y, batch_size=batch_size, sampling=sampling(), steps_per_epoch=2, verbose=0)
    bounds = [event.event.l2_norm_bound / toy.CLIP for event in toy.events(model)]
    assert bounds == [1, 1, 2, 2, 1, 1]


def test_microbatches_are_clipped_as_means():
    # Equal records: every microbatch that is not empty has the same mean, above the clip norm, and
    # the sum counts them.
    optimizer = DPOptimizer(keras.optimizers.SGD(1.0), toy.query(denominator=1), 3)
    model = toy.private(toy.linear(), optimizer, loss=lambda y, p: p[:, 0])
    start = toy.weights(model)[0]
    x = np.ones([60, 4], "float32")  # 3 * (2/3)^60 < 10^-10: no microbatch is empty.
    model.fit(x, np.zeros(60, "int32"), batch_size=60, sampling=FullBatch(), verbose=0)
    assert np.linalg.norm(start - toy.weights(model)[0]) == pytest.approx(3 * toy.CLIP, rel=1e-5)


def test_microbatch_units_of_a_data_set_are_refused():
    # Nothing says how many examples of a data set come and go together.
    model = toy.private(toy.linear(), toy.dp(num_microbatches=2, privacy_unit="microbatch"))
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(6)
    with pytest.raises(ValueError, match="Pass arrays"):
        model.fit(batches, sampling=Shuffled(batch_size=2, population_size=4), verbose=0)
    assert model.ledger.total_count == 0


@pytest.mark.parametrize("batch_size", [None, 7])
def test_batches_that_do_not_hold_whole_units_are_refused(batch_size):
    optimizer = toy.dp(num_microbatches=2, privacy_unit="microbatch")
    with pytest.raises(ValueError, match=f"batch_size={batch_size}"):
        optimizer.set_batch_size(batch_size)


def test_microbatch_ids_of_the_caller():
    optimizer, variable = toy.dp(num_microbatches=2), matrix()
    ids = [0] * 6 + [1] * 6
    (gradient,) = optimizer.private_gradients(
        squared_error(variable), [variable], EXAMPLES, microbatch_ids=ids
    )
    total = np.zeros([4, 2])
    for half in (slice(0, 6), slice(6, 12)):
        with tf.GradientTape() as tape:
            loss = squared_error(variable)([leaf[half] for leaf in EXAMPLES])
        mean = tape.gradient(loss, variable).numpy()
        total += mean * min(1, toy.CLIP / np.linalg.norm(mean))
    np.testing.assert_allclose(gradient, total / 10, rtol=1e-5)
    with pytest.raises(ValueError, match="microbatch_ids"):
        toy.dp().private_gradients(
            squared_error(variable), [variable], EXAMPLES, microbatch_ids=ids
        )


def test_another_size_holds_for_a_while():
    microbatching = Microbatching(2, "microbatch")
    microbatching.set_batch_size(6)
    with pytest.raises(KeyError), microbatching.of_size(2.0):
        ids, _ = microbatching.assign(tf.constant(6), None)
        assert ids.numpy().tolist() == [0, 0, 1, 1, 2, 2]
        raise KeyError
    assert microbatching.examples_each == 3


# Where a model goes on with units of a size, although the optimizer was told of another one.


def units(**kwargs):
    """Returns a model that a step moves by the sum of the clipped means of four units."""
    plain = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = DPOptimizer(
        *(keras.optimizers.SGD(1.0), toy.query(denominator=1), 4), privacy_unit="microbatch"
    )
    return toy.private(plain, optimizer, loss=lambda y, p: p[:, 0], **kwargs)


def fit_units(model, x, **kwargs):
    model.fit(x, np.zeros(len(x)), **{"sampling": FullBatch(), "verbose": 0, **kwargs})


def one_unit(rows, each):
    """Rows of which only the first unit has a gradient, of more than the bound."""
    x = np.zeros((rows, 1), "float32")
    x[:each] = 100.0
    return x


def fits_units_of_two(model):
    fit_units(model, np.zeros((8, 1), "float32"))


def model_like(model):
    """Returns a plain model of the same variables."""
    return keras.Sequential([keras.Input((1,)), *model.layers])


def trains_units_of_four(model):
    model.optimizer.set_batch_size(16)
    model.train_on_batch(np.zeros((16, 1), "float32"), np.zeros(16))


def makes_a_step_for_units_of_four(model):
    model.optimizer.set_batch_size(16)
    model.make_train_function(force=True)


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize(
    "do", [fits_units_of_two, trains_units_of_four, makes_a_step_for_units_of_four]
)
def test_units_of_a_fit_stay_as_they_are_whatever_a_callback_trains(do, run_eagerly):
    model = units(run_eagerly=run_eagerly)
    moves = toy.Moves(do)
    fit_units(model, one_unit(32, 8), steps_per_epoch=4, callbacks=[moves])
    np.testing.assert_allclose(moves.moves, [toy.CLIP] * 4, rtol=1e-4)


def test_a_fit_within_a_fit_leaves_the_optimizer_its_size():
    model = units()
    sizes = []

    def within(model):
        fits_units_of_two(model)
        sizes.append(model.optimizer.examples_per_microbatch)

    fit_units(model, one_unit(32, 8), steps_per_epoch=3, callbacks=[toy.Moves(within)])
    assert sizes == [8]
    fits_units_of_two(model)  # At its end nothing goes on.
    assert model.optimizer.examples_per_microbatch == 2


def told_by_hand(model):
    model.optimizer.set_batch_size(16)


def told_by_another_model(model):
    other = toy.private(model_like(model), model.optimizer, loss=lambda y, p: p[:, 0])
    fit_units(other, np.zeros((16, 1), "float32"), batch_size=16)


@pytest.mark.parametrize("tell", [told_by_hand, told_by_another_model])
def test_a_step_is_traced_for_the_units_of_its_fit(tell):
    model = units()
    fit_units(model, np.zeros((32, 1), "float32"))
    tell(model)
    before = toy.weights(model)[0]
    fit_units(model, one_unit(16, 4))
    assert (before - toy.weights(model)[0]).item() == pytest.approx(toy.CLIP, rel=1e-4)


def test_a_training_function_for_other_units_is_refused():
    model = units()
    fit_units(model, np.zeros((32, 1), "float32"))
    x, steps = tf.constant(one_unit(16, 4)), model.ledger.total_count
    old = model.train_function
    model.optimizer.set_batch_size(16)
    with pytest.raises(NotPrivateError, match="records of another kind"):
        model.train_function(iter([(x, tf.zeros(16))]))
    assert model.ledger.total_count == steps
    before = toy.weights(model)[0]
    model.make_train_function()(iter([(x, tf.zeros(16))]))
    assert (before - toy.weights(model)[0]).item() == pytest.approx(toy.CLIP, rel=1e-4)
    with pytest.raises(NotPrivateError, match="records of another kind"):
        old(iter([(x, tf.zeros(16))]))
    assert model.ledger.total_count == steps + 1


@pytest.mark.parametrize("unit", ["microbatch", "example"])
def test_a_graph_of_somebodys_own_for_other_units_is_refused(unit):
    variable = matrix()
    optimizer = toy.dp(num_microbatches=4, privacy_unit=unit)
    optimizer.set_batch_size(8)
    examples = toy.examples()
    examples = tf.nest.map_structure(lambda leaf: tf.concat([leaf] * 2, 0)[:16], examples)

    @tf.function(autograph=False)
    def step(examples):
        optimizer.private_step(squared_error(variable), [variable], examples)

    step(examples)
    optimizer.set_batch_size(16)
    if unit == "example":
        step(examples)  # It is charged for what it does.
        assert optimizer.ledger.total_count == 2
        return
    with pytest.raises(tf.errors.OpError, match="traced for units of another size"):
        step(examples)
    assert optimizer.ledger.total_count == 1
    optimizer.set_batch_size(8)
    step(examples)
    assert optimizer.ledger.total_count == 2
