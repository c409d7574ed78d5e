"""What may stop a step from being charged, and which ledger it is charged to."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import X, Y

import tfdp
from tfdp.events import CorrelatedGaussianSumEvent
from tfdp.keras import (
    LedgerMismatchError,
)
from tfdp.keras.charging import Charging
from tfdp.keras.sampling_of_steps import Batch
from tfdp.sampling import FullBatch, Shuffled

EXAMPLES = toy.examples()


class Refused(Exception):
    pass


def test_a_load_that_is_refused_leaves_the_passes_of_fit_in_their_ledger():
    charging = Charging()
    ledger = charging.ledger
    with charging.samples.fitting(Shuffled(4, 8), drawn=True) as fit:
        with pytest.raises(Refused), charging.kept_unless_done():
            charging.ledger = tfdp.PrivacyLedger()
            raise Refused
        assert charging.ledger is fit.clock.ledger is ledger
        clock = fit.clock
        with pytest.raises(Refused), charging.kept_unless_done():
            raise Refused
        assert fit.clock is clock  # No other number for what is left of a pass.
    assert charging.is_unused


def test_guards_of_a_block_stay_where_one_that_began_before_ends():
    charging = Charging()
    one, other = charging.temporary_guards(), charging.temporary_guards()
    guards = [lambda ledger, event, limit=limit: limit for limit in (1, 2, 3)]
    charging.add_guard(guards[0])
    one.__enter__()
    charging.add_guard(guards[1])
    other.__enter__()
    charging.add_guard(guards[2])
    one.__exit__(None, None, None)
    assert charging.guards == tuple(guards)
    other.__exit__(None, None, None)
    assert charging.guards == (guards[0],)


@pytest.mark.parametrize(
    "arguments", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}], ids=str
)
def test_guard_that_raises_prevents_the_update(arguments):
    model = toy.private(toy.linear(), **arguments)
    for error in (Refused("no"), RuntimeError("no"), OSError("no")):
        before = model.ledger.total_count

        def guard(ledger, event, error=error, allowed=before + 2):
            if ledger.total_count == allowed:
                raise error

        model.optimizer.charging.add_guard(guard)
        after_two = []
        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, seen=after_two: seen.append(toy.weights(model))
        )
        with pytest.raises(type(error), match="no") as caught:
            model.fit(
                X, Y, batch_size=4, sampling=Shuffled(), epochs=2, verbose=0, callbacks=[note]
            )
        assert caught.value is error
        assert model.ledger.total_count == int(model.optimizer.iterations) == before + 2
        toy.assert_weights(model, after_two[-1], 0)
        model.optimizer.charging.remove_guard(guard)
        model.fit(X, Y, batch_size=4, steps_per_epoch=2, verbose=0)
        assert model.ledger.total_count == before + 4


def test_error_of_an_earlier_step_is_not_reported_for_a_later_one():
    model = toy.private(toy.linear())
    optimizer = model.optimizer

    def guard(ledger, event):
        raise Refused("earlier")

    optimizer.build(model.trainable_variables)
    optimizer.charging.add_guard(guard)
    with pytest.raises(Refused):
        optimizer.private_gradients(lambda e: tf.reduce_sum(model(e)), model.trainable_variables, X)
    optimizer.charging.remove_guard(guard)
    bad = tf.data.Dataset.from_tensors((X, Y)).map(
        lambda x, y: (tf.debugging.check_numerics(x / 0.0, "bad"), y)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        model.fit(bad, sampling=FullBatch(), verbose=0)


def test_other_ledger_is_refused():
    model = toy.private(toy.linear())
    model.fit(X, Y, batch_size=4, steps_per_epoch=2, verbose=0)
    ledger, weights = model.ledger, toy.weights(model)
    model.ledger = tfdp.PrivacyLedger()
    with pytest.raises(LedgerMismatchError, match="model.ledger"):
        model.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0)
    toy.assert_weights(model, weights, 0)
    longer = tfdp.PrivacyLedger()  # As many steps, but of another run.
    longer.append(tfdp.NonPrivateEvent(), 10)
    model.ledger = longer
    with pytest.raises(LedgerMismatchError):
        model.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0)
    assert longer.total_count == 10
    model.ledger = ledger
    model.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0)
    assert ledger.total_count == 3


def test_ledger_may_hold_other_releases():
    ledger = tfdp.PrivacyLedger()
    ledger.append(tfdp.NonPrivateEvent())
    model = toy.private(toy.linear(), toy.dp(ledger=ledger), run_eagerly=True)
    model.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0)
    ledger.append(tfdp.NonPrivateEvent())
    model.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0)
    assert ledger.total_count == 4


def _fit(unit, ledger):
    given = {
        "example": {},
        "user": {"privacy_unit": np.arange(12) // 3, "max_examples_per_user": 3},
    }
    model = toy.private(optimizer=toy.dp(privacy_unit=unit, ledger=ledger))
    toy.fit_step(model, **given[unit])
    return model


def _loop(unit, ledger):
    optimizer, w = toy.dp(privacy_unit=unit, ledger=ledger), toy.matrix()
    examples = {"example": 1, "user": 3}[unit]
    optimizer.sampling = FullBatch(population_size=12 // examples)
    optimizer.private_gradients(toy.squared_error(w), [w], EXAMPLES, examples_per_record=examples)


@pytest.mark.parametrize("second", [_fit, _loop])
@pytest.mark.parametrize("first", [_fit, _loop])
@pytest.mark.parametrize(("before", "unit"), list(itertools.product(["example", "user"], repeat=2)))
def test_a_step_on_a_ledger_about_another_unit_is_refused(first, second, before, unit):
    """It would leave a ledger without an epsilon, for good."""
    ledger = tfdp.PrivacyLedger()
    first(before, ledger)
    if unit == before:
        second(unit, ledger)
        assert ledger.total_count == 2
        return
    with pytest.raises(tfdp.UnsupportedEventError, match="Keep a ledger for each"):
        second(unit, ledger)
    assert ledger.total_count == 1
    first(before, ledger)  # Steps of its own unit go on.
    assert ledger.total_count == 2


def test_a_ledger_about_another_unit_leaves_weights_as_they_were():
    ledger = _fit("example", tfdp.PrivacyLedger()).ledger
    model = toy.private(optimizer=toy.dp(privacy_unit="user", ledger=ledger))
    before = toy.weights(model)
    with pytest.raises(tfdp.UnsupportedEventError):
        toy.fit_step(model, privacy_unit=np.arange(12) // 3, max_examples_per_user=3)
    toy.assert_weights(model, before, 0)


@pytest.mark.parametrize(
    "name",
    ["query", "num_microbatches", "privacy_unit", "private_metrics", "batch_norm_noise_multiplier"],
)
def test_what_events_are_derived_from_cannot_change(name):
    optimizer = toy.dp()
    with pytest.raises(AttributeError):
        setattr(optimizer, name, object())


def test_a_guard_that_was_added_twice_is_removed_once():
    charging = toy.private(toy.linear()).optimizer.charging

    def guard(ledger, event):
        raise Refused("no")

    def other(ledger, event):
        return None

    for added in (guard, other, guard):
        charging.add_guard(added)
    charging.remove_guard(guard)
    assert charging.guards == (guard, other)
    charging.remove_guard(guard)
    charging.remove_guard(guard)
    assert charging.guards == (other,)


@pytest.mark.parametrize(("of_run", "on_disk"), [(False, 4), (True, 1)])
def test_no_step_of_a_run_is_reserved(of_run, on_disk, tmp_path):
    """After a crash it would be a step that was taken twice, and so another run."""
    event = tfdp.GaussianSumEvent(1.0, 2.0)
    if of_run:
        event = CorrelatedGaussianSumEvent(1.0, 2.0, (1.0,), (1.0, -0.5), 20, 1, 0, 1)
    with tfdp.PrivacyLedger.open(tmp_path / "run.ledger", create=True, lease=4) as ledger:
        charging = Charging(ledger)
        batch = Batch(size=12)
        charging.commit(lambda: charging.samples.sampled(event, "example", batch), [], 0, 0, batch)
        assert tfdp.PrivacyLedger.load(tmp_path / "run.ledger").total_count == on_disk
