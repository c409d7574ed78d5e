"""The table of docs/ledger.md, "Weights and their ledger", row by row; its files are elsewhere."""

import contextlib
import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp
from tests.keras.trained import FORMS, compiled, functional, noisy, train, trained
from tfdp.keras import (
    LedgerMismatchError,
    NotPrivateError,
    PrivacyBudget,
    PrivacyBudgetExceededError,
    charges,
)

L = keras.layers
X, Y = toy.X, toy.Y


# Compile again.


def test_compiled_again_continues_the_ledger():
    model = trained()
    ledger = model.ledger
    compiled(model)
    assert model.ledger is ledger
    train(model)
    assert ledger.total_count == 2


def test_a_budget_is_spent_once_however_often_a_model_is_compiled():
    model = tfdp.keras.make_private(toy.linear())

    def spend():
        compiled(model, tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query))
        budget = PrivacyBudget(2.0, 1e-5)
        model.fit(X, Y, batch_size=4, steps_per_epoch=200, verbose=0, callbacks=[budget])

    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=2.0, denominator=4)
    spend()
    spent, weights = list(model.ledger), toy.weights(model)
    for _ in range(2):
        with pytest.raises(PrivacyBudgetExceededError):
            spend()
    assert list(model.ledger) == spent
    toy.assert_weights(model, weights, 0)


def test_compiled_with_a_ledger_that_lacks_the_steps_is_refused():
    model = trained()
    optimizer, ledger = model.optimizer, tfdp.PrivacyLedger()
    with pytest.raises(LedgerMismatchError, match="leave `ledger` out, and a new .*fresh_start"):
        compiled(model, noisy(ledger=ledger))
    assert model.optimizer is optimizer
    assert ledger.total_count == 0
    train(model)
    assert model.ledger.total_count == 2


def test_compiled_with_its_own_ledger_or_a_copy_of_it_goes_on(tmp_path):
    model = trained()
    compiled(model, noisy(ledger=model.ledger))
    train(model)
    model.ledger.save(tmp_path / "run.ledger")
    loaded = tfdp.PrivacyLedger.load(tmp_path / "run.ledger")
    compiled(model, noisy(ledger=loaded))
    train(model)
    assert loaded.total_count == 3


def test_an_optimizer_that_is_set_without_compile_continues_the_ledger():
    model = compiled(toy.linear())
    budget = PrivacyBudget(1e6, 1e-5)
    model.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0, callbacks=[budget])
    ledger, first = model.ledger, model.optimizer
    model.optimizer = noisy()
    assert model.ledger is ledger
    train(model)
    assert ledger.total_count == 2
    assert int(first.iterations) == int(model.optimizer.iterations) == 1
    with pytest.raises(LedgerMismatchError):
        model.optimizer = noisy(ledger=tfdp.PrivacyLedger())
    with pytest.raises(NotPrivateError, match="DPOptimizer"):
        model.optimizer = keras.optimizers.SGD(0.1)
    assert model.ledger is ledger


def test_a_traced_step_does_not_outlive_its_optimizer():
    model = toy.private(toy.linear(), noisy())
    train(model, 1)
    model.optimizer = noisy()
    train(model, 1)
    assert model.ledger.total_count == 2
    assert int(model.optimizer.iterations) == 1


# Models that share weights.


def test_two_private_models_of_one_share_a_ledger():
    plain = toy.dense()
    first, second = compiled(plain), compiled(plain)
    train(first)
    train(second)
    train(first)
    assert first.ledger is second.ledger
    assert first.ledger.total_count == 3


def test_a_model_around_a_trained_one_continues_its_ledger():
    inner = trained(toy.linear)
    inputs = keras.Input((4,))
    outer = compiled(keras.Model(inputs, L.Dense(2)(inner.layers[-1](inputs))))
    assert outer.ledger is inner.ledger
    train(outer)
    assert inner.ledger.total_count == 2


def test_weights_of_two_ledgers_are_not_trained_together():
    first, second = trained(toy.linear), trained(functional)
    inputs = keras.Input((4,))
    both = keras.Model(inputs, first.layers[-1](inputs) + second.layers[-1](inputs))
    with pytest.raises(LedgerMismatchError):
        compiled(both)


def test_a_custom_loop_on_the_same_variables_continues_the_ledger():
    variables = [tf.Variable(tf.ones([4, 1]))]

    def step(optimizer):
        optimizer.private_step(
            lambda x: tf.reduce_sum(tf.matmul(x, variables[0]) ** 2), variables, tf.constant(X)
        )

    first, second = noisy(), noisy()
    step(first)
    step(second)
    assert second.ledger is first.ledger
    assert first.ledger.total_count == 2
    with pytest.raises(LedgerMismatchError):
        step(noisy(ledger=tfdp.PrivacyLedger()))


def test_optimizers_of_parts_of_one_model_share_a_ledger():
    model = toy.dense()
    loss = tfdp.gradients.ModelLoss(model, toy.LOGITS_LOSS)
    first, second = noisy(), noisy()
    for _ in range(2):
        first.private_step(loss, model.layers[0].trainable_variables, (X, Y))
        second.private_step(loss, model.layers[1].trainable_variables, (X, Y))
    assert second.ledger is first.ledger
    assert first.ledger.total_count == 4


def test_a_loop_on_top_of_a_private_base_continues_its_ledger():
    base = trained()
    for layer in base.layers:
        layer.trainable = False
    whole = keras.Sequential([keras.Input((4,)), *base.layers, L.Dense(2)])
    loss = tfdp.gradients.ModelLoss(whole, toy.LOGITS_LOSS)
    optimizer = noisy()
    optimizer.private_step(loss, whole.trainable_variables, (X, Y))
    assert optimizer.ledger is base.ledger
    with pytest.raises(LedgerMismatchError):
        noisy(ledger=tfdp.PrivacyLedger()).private_step(loss, whole.trainable_variables, (X, Y))
    assert base.ledger.total_count == 2


def _train_base(model):
    kernel = model.layers[0].kernel
    noisy().private_step(toy.squared_error(kernel), [kernel], toy.examples())


def _by_hand(model):
    _train_base(model)
    model.make_train_function()(iter([(X, Y)]))


def _in_a_callback(model):
    def trains(batch, logs):
        _train_base(model)

    toy.fit_step(model, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_begin=trains)])


@pytest.mark.parametrize("step", [_by_hand, _in_a_callback])
def test_a_frozen_base_that_is_trained_meanwhile_is_asked_for_in_every_step(step):
    base = toy.linear()
    base.trainable = False
    model = compiled(keras.Sequential([keras.Input((4,)), base.layers[0], L.Dense(2)]))
    ledger = train(model).ledger
    before = toy.weights(model)
    with pytest.raises(LedgerMismatchError, match="which is not this one"):
        step(model)
    toy.assert_weights(model, before, 0)
    assert model.ledger is ledger and ledger.total_count == 1


@pytest.mark.parametrize("end", ["compile", "declare_weights"])
def test_what_changes_weights_after_a_loop_of_ones_own_is_noticed(end):
    plain = toy.linear()
    model = tfdp.keras.make_private(plain)
    loss = tfdp.gradients.ModelLoss(model, toy.LOGITS_LOSS)
    optimizer = noisy()
    for _ in range(2):
        optimizer.private_step(loss, model.trainable_variables, (X, Y))
        if end == "compile":
            compiled(model)
        else:
            tfdp.keras.declare_weights(model, "post_processed")
    train_plainly(plain, None)
    with pytest.raises(LedgerMismatchError, match="declare_weights"):
        train(model) if end == "compile" else compiled(model)
    assert optimizer.ledger.total_count == 2


def train_plainly(plain, private):
    plain.compile(keras.optimizers.SGD(0.1), loss=toy.LOGITS_LOSS, run_eagerly=True)
    plain.fit(X, Y, verbose=0)


OUTSIDE = {
    "plain training": train_plainly,
    "set_weights": lambda plain, private: private.set_weights(
        [2 * w for w in private.get_weights()]
    ),
    "assign": lambda plain, private: private.weights[0].assign_add(
        tf.ones_like(private.weights[0])
    ),
    "another model's file": lambda plain, private: plain.set_weights(
        [w + 1 for w in plain.get_weights()]
    ),
}


@pytest.mark.parametrize("change", OUTSIDE.values(), ids=OUTSIDE)
def test_weights_that_something_else_changed_are_noticed(change, tmp_path):
    plain = toy.linear()
    model = train(compiled(plain))
    change(plain, model)
    weights = toy.weights(model)
    uses = [
        lambda: train(model),
        lambda: model.train_on_batch(X, Y),
        lambda: compiled(model),
        lambda: model.save_weights(tmp_path / "w.weights.h5"),
        lambda: model.save(tmp_path / "w.keras"),
        lambda: compiled(plain),
    ]
    for use in uses:
        with pytest.raises(LedgerMismatchError, match="declare_weights"):
            use()
    assert list(tmp_path.iterdir()) == []
    toy.assert_weights(model, weights, 0)
    assert model.ledger.total_count == 1


@pytest.mark.parametrize("change", OUTSIDE.values(), ids=OUTSIDE)
def test_changed_weights_leave_by_no_function_of_keras(change, tmp_path):
    plain = toy.linear()
    model = train(compiled(plain))
    change(plain, model)
    model.get_weights()  # To read them says nothing about them.
    uses = [
        lambda: keras.saving.save_model(model, tmp_path / "w.keras"),
        lambda: keras.saving.save_weights(model, tmp_path / "w.weights.h5"),
        lambda: copy.deepcopy(model),
        lambda: pickle.dumps(model),
        lambda: train(model),
    ]
    for use in uses:
        with pytest.raises(LedgerMismatchError, match="declare_weights"):
            use()


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_that_something_else_changes_is_noticed(form):
    other = copy.deepcopy(trained(FORMS[form]))
    train_plainly(keras.Sequential([keras.Input((4,)), other.layers[-1]]), None)
    with pytest.raises(LedgerMismatchError, match="declare_weights"):
        compiled(other)


def test_a_restored_model_that_something_else_changes_is_noticed(tmp_path):
    trained(FORMS["DPModel"]).save(tmp_path / "model.keras")
    model = compiled(keras.models.load_model(tmp_path / "model.keras"))
    train_plainly(keras.Sequential([keras.Input((4,)), *model.layers]), None)
    with pytest.raises(LedgerMismatchError, match="declare_weights"):
        train(model)


@pytest.mark.filterwarnings("ignore:A total of 1 objects could not be loaded")
def test_a_file_that_fits_nothing_hides_no_change(tmp_path):
    trained(lambda: wide(3)).save_weights(tmp_path / "wide.weights.h5")
    plain = toy.linear()
    model = train(compiled(plain))
    ledger = model.ledger
    train_plainly(plain, None)
    with pytest.raises(LedgerMismatchError):  # That of the file is another run's.
        model.load_weights(tmp_path / "wide.weights.h5", skip_mismatch=True)
    wide(3).save_weights(tmp_path / "plain.weights.h5")
    model.load_weights(tmp_path / "plain.weights.h5", skip_mismatch=True)
    with pytest.raises(LedgerMismatchError, match="declare_weights"):
        train(model)
    assert ledger.total_count == 1


def wide(units):
    return keras.Sequential([keras.Input((4,)), L.Dense(units, use_bias=False)])


@pytest.mark.parametrize(
    "make",
    [lambda: keras.optimizers.SGD(0.1, momentum=0.9), lambda: keras.optimizers.SGD(use_ema=True)],
    ids=["momentum", "averages"],
)
def test_slots_that_something_else_changed_are_noticed(make, tmp_path):
    plain = toy.linear()
    model = trained(lambda: plain, optimizer=noisy(make()))
    values = model.get_weights()
    plain.compile(model.optimizer.inner_optimizer, loss=toy.LOGITS_LOSS, run_eagerly=True)
    plain.fit(1000 * X, Y, verbose=0)
    model.set_weights(values)  # Values of this run, but what follows raw gradients stays.
    for use in (lambda: train(model), lambda: model.save_weights(tmp_path / "w.weights.h5")):
        with pytest.raises(LedgerMismatchError, match="momentum|average"):
            use()
    assert model.ledger.total_count == 1
    tfdp.keras.declare_weights(model, "not_private")
    train(model)
    assert model.ledger.total_count == 3


def test_slots_come_back_from_a_file(tmp_path):
    def make():
        return compiled(toy.linear(), noisy(keras.optimizers.SGD(0.1, momentum=0.9)))

    model = train(make(), steps=2)
    model.save_weights(tmp_path / "w.weights.h5")
    train(model)
    other = make()
    for one in (model, other):
        one.load_weights(tmp_path / "w.weights.h5")
        train(one)
    assert (model.ledger.total_count, other.ledger.total_count) == (4, 3)


def test_a_charge_of_another_ledger_stays_until_one_holds_both():
    variable = tf.Variable(tf.ones([2]))
    ledgers = [tfdp.PrivacyLedger() for _ in range(2)]
    for ledger in ledgers:
        ledger.append(tfdp.GaussianSumEvent(1.0, 1.0))
        charges.paid([variable], charges.Charge(ledger, *ledger.watermark()))
    found = charges.charges_of([variable])
    assert {id(charge.ledger) for charge in found} == set(map(id, ledgers))
    assert charges.common_ledger(found) is None
    ledgers[1].append(tfdp.GaussianSumEvent(1.0, 1.0))
    charges.paid([variable], charges.Charge(ledgers[1], *ledgers[1].watermark()))
    assert len(charges.charges_of([variable])) == 2


def test_values_that_were_noted_longest_ago_are_forgotten_first(monkeypatch):
    monkeypatch.setattr(charges, "_known", {})
    monkeypatch.setattr(charges, "_MOST_KNOWN", 2)
    ledger = tfdp.PrivacyLedger()
    ledger.append(tfdp.GaussianSumEvent(1.0, 1.0))
    charge = charges.Charge(ledger, *ledger.watermark())
    variables = [tf.Variable([1.0, number]) for number in (2.0, 3.0, 4.0)]
    charges.paid(variables, charge)
    first, second, third = variables
    charges.know([first, second, first, third])  # The first is noted once more.
    assert [charges.known([each]) for each in variables] == [[charge], [], [charge]]


def test_what_is_declared_about_changed_weights():
    model = trained()
    model.set_weights([w / 2 for w in model.get_weights()])
    tfdp.keras.declare_weights(model, "post_processed")
    train(model)
    assert model.ledger.total_count == 2

    model.set_weights([w / 2 for w in model.get_weights()])
    tfdp.keras.declare_weights(model, "not_private")
    train(model)
    *_, plainly, _ = toy.events(model)
    assert plainly == tfdp.NonPrivateEvent()
    accountant = tfdp.accounting.RDPAccountant()
    assert model.ledger.replay(accountant).get_epsilon(1e-5) == np.inf

    spent = model.ledger
    tfdp.keras.declare_weights(model, "fresh_start")
    compiled(model)
    assert model.ledger.total_count == 0
    train(model)
    assert (model.ledger.total_count, spent.total_count) == (1, 4)
    with pytest.raises(ValueError, match="'fresh_start'.*Received: origin='fresh'"):
        tfdp.keras.declare_weights(model, "fresh")
    for origin in ("not_private", "post_processed"):
        with pytest.raises(NotPrivateError, match="no ledger"):
            tfdp.keras.declare_weights(toy.linear(), origin)


def test_what_was_computed_from_private_weights_needs_their_ledger():
    run = trained(steps=2)
    model = compiled(toy.linear())
    model.set_weights([w / 2 for w in run.get_weights()])
    with pytest.raises(NotPrivateError, match="ledger=ledger"):
        tfdp.keras.declare_weights(model, "post_processed")
    compiled(model, noisy(ledger=run.ledger))
    tfdp.keras.declare_weights(model, "post_processed")
    assert train(model).ledger is run.ledger
    assert run.ledger.total_count == 3


def test_plain_training_before_the_private_one_can_be_declared():
    plain = toy.linear()
    train_plainly(plain, None)
    model = compiled(plain)
    tfdp.keras.declare_weights(model, "not_private")
    assert toy.events(train(model))[0] == tfdp.NonPrivateEvent()


def test_going_back_to_values_of_this_run_is_no_change():
    model = compiled(toy.linear())
    start = model.get_weights()
    after = train(model).get_weights()
    train(model)
    for values in (after, start):
        model.set_weights(values)
        train(model)
    assert model.ledger.total_count == 4


def test_a_start_that_is_set_after_compile_is_one():
    model = compiled(toy.linear())
    start = [w + 1 for w in model.get_weights()]
    for steps in (1, 2):
        model.set_weights(start)
        train(model)
        assert model.ledger.total_count == steps


# Copies.


def copied(model):
    """Returns a plain model of the same values."""
    other = toy.linear()
    other.set_weights(model.get_weights())
    return other


def assigned(model):
    other = toy.linear()
    for variable, value in zip(other.weights, model.weights, strict=True):
        variable.assign(value)
    return other


def cloned(model):
    other = keras.models.clone_model(model)
    other.set_weights(model.get_weights())
    return other


def saved_and_loaded(model, tmp_path):
    model.save(tmp_path / "copy.keras")
    return keras.models.load_model(tmp_path / "copy.keras")


def saved_by_keras(model, tmp_path):
    keras.Sequential([keras.Input((4,)), *model.layers]).save(tmp_path / "copy.keras")
    return keras.models.load_model(tmp_path / "copy.keras")


@pytest.mark.parametrize("way", [copied, assigned, cloned, saved_and_loaded, saved_by_keras])
def test_copied_values_bring_their_ledger(way, tmp_path):
    model = trained()
    arguments = (model, tmp_path) if way in (saved_and_loaded, saved_by_keras) else (model,)
    other = compiled(way(*arguments))
    assert other.ledger is model.ledger
    train(other)
    assert model.ledger.total_count == 2
    with pytest.raises(LedgerMismatchError):
        compiled(way(*arguments), noisy(ledger=tfdp.PrivacyLedger()))


def test_values_that_are_copied_in_the_middle_of_a_fit_bring_their_ledger():
    model, copies = compiled(toy.linear()), []
    take = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: copies.append(copied(model))
    )
    model.fit(X, Y, batch_size=4, steps_per_epoch=2, verbose=0, callbacks=[take])
    first, _ = copies  # Of values that the next step moved on from.
    assert compiled(first).ledger is model.ledger
    with pytest.raises(LedgerMismatchError):
        compiled(first, noisy(ledger=tfdp.PrivacyLedger()))


def test_a_clone_with_new_weights_starts_anew():
    model = trained(functional)
    clone = compiled(keras.models.clone_model(model))
    assert clone.ledger.total_count == 0
    assert train(clone).ledger.total_count == 1
    assert model.ledger.total_count == 1


def test_the_plain_clone_of_a_sequential_does_not_train_with_a_private_optimizer():
    clone = keras.models.clone_model(trained())
    assert type(clone) is keras.Sequential
    clone.compile(noisy(), toy.LOGITS_LOSS)
    with pytest.raises(NotPrivateError, match="make_private"):
        train(clone)


def test_weights_that_no_step_moved_are_nobodys_copy():
    still = noisy(keras.optimizers.SGD(0.0))
    model = trained(toy.linear, optimizer=still)
    assert model.ledger.total_count == 1
    assert compiled(toy.linear()).ledger.total_count == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_deep_copies_and_pickles_bring_a_copy_of_the_ledger(form, way, another_process):
    model = trained(FORMS[form])
    another_process()
    other = way(model)
    assert isinstance(other, type(model))
    assert other.ledger == model.ledger
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])
    train(compiled(other))
    assert (other.ledger.total_count, model.ledger.total_count) == (2, 1)
    assert model.ledger.is_prefix_of(other.ledger)


def test_weights_of_one_fork_do_not_go_on_with_the_ledger_of_another():
    model = trained()
    forks = [copy.deepcopy(model) for _ in range(2)]
    for fork, stddev in zip(forks, (1.0, 2.0), strict=True):
        train(compiled(fork, toy.dp(stddev=stddev, engine="vectorized")))
    first, second = forks
    assert first.ledger.ledger_id == second.ledger.ledger_id
    assert first.ledger.total_count == second.ledger.total_count == 2
    second.set_weights(first.get_weights())
    with pytest.raises(LedgerMismatchError):
        train(second)
    with pytest.raises(LedgerMismatchError):
        compiled(first, noisy(ledger=second.ledger))


def test_config_makes_new_weights():
    model = trained(functional)
    other = compiled(type(model).from_config(model.get_config()))
    assert other.ledger.total_count == 0


def test_replicas_compiled_again_continue_the_ledger():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = toy.private(toy.linear(), noisy())
        train(model, 1)
        ledger = model.ledger
        model.compile(noisy(), loss=toy.LOGITS_LOSS)
    train(model, 1)
    assert model.ledger is ledger
    assert ledger.total_count == 2


# Plain SGD keeps nothing of the gradients.
KEEPS = {
    "momentum": (lambda: keras.optimizers.SGD(0.5, momentum=0.9), True),
    "moments": (lambda: keras.optimizers.Adam(0.1), True),
    "averages": (lambda: keras.optimizers.SGD(0.5, use_ema=True), True),
    "nothing": (lambda: keras.optimizers.SGD(0.5), False),
}


@pytest.mark.parametrize("name", KEEPS)
def test_what_an_inner_optimizer_keeps_of_gradients_carries_its_ledger(name):
    make, keeps = KEEPS[name]
    inner = make()
    model = trained(toy.linear, optimizer=noisy(inner))
    ledger = model.ledger
    for variable in model.weights:
        variable.assign(np.full(variable.shape, 5.0))
    tfdp.keras.declare_weights(model, "fresh_start")
    model.compile(noisy(inner), toy.LOGITS_LOSS)
    train(model)
    assert (model.ledger is ledger) == keeps
    assert model.ledger.total_count == 1 + keeps
    # A ledger that was chosen is not replaced.
    tfdp.keras.declare_weights(model, "fresh_start")
    model.compile(noisy(inner, ledger=tfdp.PrivacyLedger()), toy.LOGITS_LOSS)
    with pytest.raises(LedgerMismatchError) if keeps else contextlib.nullcontext():
        train(model)
    # A new optimizer of Keras starts anew.
    tfdp.keras.declare_weights(model, "fresh_start")
    model.compile(noisy(make()), toy.LOGITS_LOSS)
    train(model)
    assert model.ledger.total_count == 1


@pytest.mark.parametrize("name", ["momentum", "moments"])
def test_copies_of_what_an_inner_optimizer_keeps_carry_its_ledger(name):
    make, _ = KEEPS[name]

    def new():
        model = compiled(toy.linear(), noisy(make()))
        model.optimizer.build(model.trainable_variables)
        return model

    run, model = trained(toy.linear, optimizer=noisy(make())), new()
    for slot, value in zip(model.optimizer.slots, run.optimizer.slots, strict=True):
        slot.assign(value)
    assert train(model).ledger is run.ledger
    assert run.ledger.total_count == 2


def test_counters_of_an_inner_optimizer_are_nobodys_copy():
    ledger = tfdp.PrivacyLedger()
    ledger.append(tfdp.GaussianSumEvent(1.0, 1.0))
    kept, copies = (
        [tf.Variable(value) for value in (7.0, [0.1, 0.1], [0.1, 0.2])] for _ in range(2)
    )
    charges.paid(kept, charges.Charge(ledger, *ledger.watermark()))
    charges.note_followers(kept)
    charges.look(copies)
    assert [bool(charges.past(copy).charges) for copy in copies] == [False, False, True]


def test_a_variable_of_keras_and_that_of_tensorflow_in_it_carry_the_same():
    ledger, variable = tfdp.PrivacyLedger(), keras.Variable([0.1, 0.2])
    charge = charges.Charge(ledger, *ledger.watermark())
    for paid, asked in ((variable, variable.value), (variable.value, variable)):
        charges.paid([paid], charge)
        assert charges.charges_of([asked]) == [charge]
        charges.forget([asked])
        assert not charges.charges_of([paid])


@pytest.mark.parametrize("copied", [False, True])
def test_moving_statistics_carry_their_ledger(copied):
    def private(layer):
        model = keras.Sequential([keras.Input((4,)), layer, toy.L.Dense(2)])
        model = tfdp.keras.make_private(model, batch_norm="private")
        optimizer = noisy(batch_norm_noise_multiplier=1.0)
        return model, optimizer

    def norm():
        return toy.L.BatchNormalization(center=False, scale=False)

    model, optimizer = private(norm())
    model.compile(optimizer, toy.LOGITS_LOSS)
    train(model)
    layer = model.layers[0]
    other, optimizer = private(norm() if copied else layer)
    if copied:
        other.layers[0].set_weights(layer.get_weights())
    other.compile(optimizer, toy.LOGITS_LOSS)
    train(other)
    assert other.ledger is model.ledger and model.ledger.total_count == 2


def test_a_step_pays_for_the_moving_statistics_of_its_own_model():
    def private():
        norm = toy.L.BatchNormalization(center=False, scale=False, name="norm")
        plain = keras.Sequential([keras.Input((4,)), norm, toy.L.Dense(2)])
        return tfdp.keras.make_private(plain, batch_norm="private")

    models, optimizer = [private(), private()], noisy(batch_norm_noise_multiplier=1.0)
    for model in models:
        model.compile(optimizer, toy.LOGITS_LOSS)
    train(models[0])
    paid = [charges.charges_of(model.layers[0].non_trainable_variables) for model in models]
    assert [len(each) for each in paid] == [1, 0]


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize`:UserWarning")
@pytest.mark.parametrize("use_bias", [False, True])
def test_quantized_weights_carry_their_ledger(use_bias):
    def make():
        dense = toy.L.Dense(2, use_bias=use_bias)
        return keras.Sequential([keras.Input((4,)), dense])

    model = trained(make)
    ledger = model.ledger
    model.quantize("int8")
    model.layers[-1].enable_lora(1)
    model.compile(noisy(), toy.LOGITS_LOSS)
    train(model)
    assert model.ledger is ledger and ledger.total_count == 2


def test_after_a_crash_the_saved_ledger_counts_all_steps(tmp_path, another_process):
    weights, path = tmp_path / "run.weights.h5", tmp_path / "run.ledger"
    model = trained()
    model.save_weights(weights)
    # What this step gives does not outlive the crash, but its ledger does.
    train(model).ledger.save(path)
    another_process()

    def resumed(**options):
        model = compiled(toy.linear(), noisy(**options))
        model.load_weights(weights)
        return train(model).ledger

    with pytest.raises(FileExistsError, match="train on with what PrivacyLedger.load gives"):
        resumed().save(path)
    resumed(ledger=tfdp.PrivacyLedger.load(path)).save(path)
    assert tfdp.PrivacyLedger.load(path).total_count == 3


def test_the_first_step_of_a_loop_pays_for_the_slots_that_it_makes():
    inner, variable = (
        keras.optimizers.SGD(0.5, momentum=0.9),
        keras.Variable(np.ones((4, 2), "float32")),
    )
    first, other = noisy(inner), keras.Variable(np.ones((4, 2), "float32"))
    first.private_step(toy.squared_error(variable), [variable], toy.examples())
    slots = [v for v in inner.variables if tuple(v.shape) == (4, 2)]
    assert slots and all(charges.past(slot).charges for slot in slots)
    assert not charges.past(other).charges
