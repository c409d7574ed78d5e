"""The table of docs/ledger.md, "Weights and their ledger", row by row."""

import copy
import logging
import pickle
import threading

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp.keras import (
    LedgerMismatchError,
    NotPrivateError,
    PrivacyBudget,
    PrivacyBudgetExceededError,
    charges,
)

L = keras.layers
X, Y = toy.data()


def noisy(*args, **kwargs):
    # Of the engines the quickest to begin with.
    return toy.dp(*args, stddev=1.0, engine="vectorized", **kwargs)


def functional():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    return keras.Model(inputs, L.Dense(2, name="only")(inputs))


@keras.saving.register_keras_serializable("tests")
class Subclass(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.only = L.Dense(2)

    def call(self, x):
        return self.only(x)


@keras.saving.register_keras_serializable("tests")
class PrivateSubclass(tfdp.keras.DPModel):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.only = L.Dense(2)

    def call(self, x):
        return self.only(x)


def built(kind):
    model = kind()
    model(X)
    return model


FORMS = {
    "sequential": toy.linear,
    "functional": functional,
    "subclass": lambda: built(Subclass),
    "DPModel": lambda: built(PrivateSubclass),
}


def compiled(model, optimizer=None):
    optimizer = noisy() if optimizer is None else optimizer
    return toy.private(model, optimizer, run_eagerly=True)


def train(model, steps=2):
    model.fit(X, Y, batch_size=4, steps_per_epoch=steps, verbose=0)
    return model


def trained(make=toy.linear, steps=2, optimizer=None):
    return train(compiled(make(), optimizer), steps)


def everything(model):
    """Returns what a refused load must not change."""
    variables = [*model.variables, *model.optimizer.variables]
    return (
        [v.numpy() for v in variables],
        model.ledger,
        list(model.ledger),
        charges.charges_of(model.weights),
    )


def assert_unchanged(model, before):
    after = everything(model)
    for a, b in zip(before[0], after[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert after[1] is before[1]
    assert after[2:] == before[2:]


@pytest.fixture
def another_process():
    """Forgets which values this process has made, as a new one would not know them."""
    known = dict(charges._known)

    def begin():
        charges._known.clear()

    yield begin
    charges._known.update(known)


# Compile again.


def test_compiled_again_continues_the_ledger():
    model = trained()
    ledger = model.ledger
    compiled(model)
    assert model.ledger is ledger
    train(model)
    assert ledger.total_count == 4


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
    with pytest.raises(LedgerMismatchError, match="fresh_start"):
        compiled(model, noisy(ledger=ledger))
    assert model.optimizer is optimizer
    assert ledger.total_count == 0
    train(model)
    assert model.ledger.total_count == 4


def test_compiled_with_its_own_ledger_or_a_copy_of_it_goes_on(tmp_path):
    model = trained()
    compiled(model, noisy(ledger=model.ledger))
    train(model)
    model.ledger.save(tmp_path / "run.ledger")
    loaded = tfdp.PrivacyLedger.load(tmp_path / "run.ledger")
    compiled(model, noisy(ledger=loaded))
    train(model)
    assert loaded.total_count == 6


def test_an_optimizer_that_is_set_without_compile_continues_the_ledger():
    model = compiled(toy.linear())
    budget = PrivacyBudget(1e6, 1e-5)
    model.fit(X, Y, batch_size=4, steps_per_epoch=2, verbose=0, callbacks=[budget])
    ledger, first = model.ledger, model.optimizer
    model.optimizer = noisy()
    assert model.ledger is ledger
    train(model)
    assert ledger.total_count == 4
    assert int(first.iterations) == int(model.optimizer.iterations) == 2
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
    assert first.ledger.total_count == 6


def test_a_model_around_a_trained_one_continues_its_ledger():
    inner = trained(toy.linear)
    inputs = keras.Input((4,))
    outer = compiled(keras.Model(inputs, L.Dense(2)(inner.layers[-1](inputs))))
    assert outer.ledger is inner.ledger
    train(outer)
    assert inner.ledger.total_count == 4


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
    assert model.ledger.total_count == 2


def test_what_is_declared_about_changed_weights():
    model = trained()
    model.set_weights([w / 2 for w in model.get_weights()])
    tfdp.keras.declare_weights(model, "post_processed")
    train(model)
    assert model.ledger.total_count == 4

    model.set_weights([w / 2 for w in model.get_weights()])
    tfdp.keras.declare_weights(model, "not_private")
    train(model)
    *_, plainly, _ = toy.events(model)[:-1]
    assert plainly == tfdp.NonPrivateEvent()
    accountant = tfdp.accounting.RDPAccountant()
    assert model.ledger.replay(accountant).get_epsilon(1e-5) == np.inf

    spent = model.ledger
    tfdp.keras.declare_weights(model, "fresh_start")
    compiled(model)
    assert model.ledger.total_count == 0
    train(model)
    assert (model.ledger.total_count, spent.total_count) == (2, 7)
    with pytest.raises(ValueError, match="'fresh_start'.*Received: origin='fresh'"):
        tfdp.keras.declare_weights(model, "fresh")
    with pytest.raises(NotPrivateError, match="no ledger"):
        tfdp.keras.declare_weights(toy.linear(), "not_private")


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
    assert model.ledger.total_count == 8


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
    assert model.ledger.total_count == 4
    with pytest.raises(LedgerMismatchError):
        compiled(way(*arguments), noisy(ledger=tfdp.PrivacyLedger()))


def test_a_clone_with_new_weights_starts_anew():
    model = trained(functional)
    clone = compiled(keras.models.clone_model(model))
    assert clone.ledger.total_count == 0
    assert train(clone).ledger.total_count == 2
    assert model.ledger.total_count == 2


def test_weights_that_no_step_moved_are_nobodys_copy():
    still = noisy(keras.optimizers.SGD(0.0))
    model = trained(toy.linear, optimizer=still)
    assert model.ledger.total_count == 2
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
    assert (other.ledger.total_count, model.ledger.total_count) == (4, 2)
    assert model.ledger.is_prefix_of(other.ledger)


def test_weights_of_one_fork_do_not_go_on_with_the_ledger_of_another():
    model = trained()
    forks = [copy.deepcopy(model) for _ in range(2)]
    for fork, stddev in zip(forks, (1.0, 2.0), strict=True):
        train(compiled(fork, toy.dp(stddev=stddev, engine="vectorized")))
    first, second = forks
    assert first.ledger.ledger_id == second.ledger.ledger_id
    assert first.ledger.total_count == second.ledger.total_count == 4
    second.set_weights(first.get_weights())
    with pytest.raises(LedgerMismatchError):
        train(second)
    with pytest.raises(LedgerMismatchError):
        compiled(first, noisy(ledger=second.ledger))


# Files.


@pytest.mark.parametrize("form", FORMS)
def test_own_model_file_brings_its_ledger_in_another_process(form, tmp_path, another_process):
    model = trained(FORMS[form])
    path = tmp_path / "model.keras"
    model.save(path)
    another_process()
    for before in (False, True):  # Loaded before compile, and after.
        other = tfdp.keras.make_private(FORMS[form]())
        if before:
            other.load_weights(path)
            compiled(other)
        else:
            compiled(other)
            other.load_weights(path)
        toy.assert_weights(other, toy.weights(model), 0)
        assert other.ledger == model.ledger
        assert train(other).ledger.total_count == 4
    assert model.ledger.total_count == 2


@pytest.mark.parametrize("form", ["sequential", "functional", "subclass"])
def test_own_model_file_is_a_plain_model(form, tmp_path):
    model = trained(FORMS[form])
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert "tfdp" not in type(plain).__module__
    np.testing.assert_array_equal(plain.get_weights()[0], model.get_weights()[0])


def test_a_saved_class_of_ones_own_brings_its_ledger(tmp_path, another_process):
    model = trained(FORMS["DPModel"])
    model.save(tmp_path / "model.keras")
    another_process()
    other = keras.models.load_model(tmp_path / "model.keras")
    assert type(other) is PrivateSubclass
    assert other.ledger == model.ledger
    assert train(compiled(other)).ledger.total_count == 4


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", ["plain.keras", "plain.weights.h5"])
def test_plain_files_are_starting_weights(form, suffix, tmp_path, caplog):
    source, path = FORMS[form](), tmp_path / suffix
    source.set_weights([w + 1 for w in source.get_weights()])
    if form != "DPModel":  # Which cannot be trained otherwise.
        source.compile(keras.optimizers.Adam(), loss=toy.LOGITS_LOSS, run_eagerly=True)
        source.fit(X, Y, verbose=0)
    (source.save if suffix.endswith("keras") else source.save_weights)(path)
    for before in (False, True):
        model = tfdp.keras.make_private(FORMS[form]())
        with caplog.at_level(logging.WARNING, "tfdp"):
            if before:
                model.load_weights(path)
                compiled(model)
            else:
                compiled(model)
                model.load_weights(path)
        assert "counts from here" in caplog.text
        caplog.clear()
        toy.assert_weights(model, [w.numpy() for w in source.trainable_variables], 0)
        assert train(model).ledger.total_count == 2


def test_plain_file_in_a_trained_model_forgets_nothing(tmp_path):
    toy.dense().save_weights(tmp_path / "plain.weights.h5")
    model = trained(toy.dense, optimizer=noisy(keras.optimizers.Adam()))
    model.load_weights(tmp_path / "plain.weights.h5")
    toy.assert_weights(model, toy.weights(toy.dense()), 0)
    train(model)
    assert model.ledger.total_count == 4
    compiled(model)
    assert model.ledger.total_count == 4


@pytest.mark.parametrize("first", ["load", "compile"])
def test_checkpoint_before_or_after_compile(first, tmp_path, another_process):
    model = trained(toy.dense)
    path = tmp_path / "run.weights.h5"
    model.save_weights(path)
    another_process()
    other = tfdp.keras.make_private(toy.dense())
    if first == "compile":
        compiled(other)
    other.load_weights(path)
    if first == "load":
        assert other.ledger == model.ledger
        compiled(other)
    assert other.ledger == model.ledger
    assert train(other).ledger.total_count == 4


def write_files(tmp_path):
    """Writes files that a run of its own must not go on with."""
    other = trained(toy.dense, 3)
    other.save_weights(tmp_path / "other run.weights.h5")
    other.save(tmp_path / "other run.keras")
    trained(toy.linear).save_weights(tmp_path / "other run, other layers.weights.h5")
    adam = compiled(toy.dense(), noisy(keras.optimizers.Adam()))
    adam.save_weights(tmp_path / "other optimizer.weights.h5")
    toy.linear().save_weights(tmp_path / "other layers.weights.h5")
    whole = (tmp_path / "other run.weights.h5").read_bytes()
    (tmp_path / "torn.weights.h5").write_bytes(whole[:9000])
    for name in ("no ledger", "damaged ledger"):
        path = tmp_path / f"{name}.weights.h5"
        path.write_bytes(whole)
        with h5py.File(path, "a") as file:
            if name == "no ledger":
                del file["_dp_ledger"]
            else:
                file["_dp_ledger/vars/ledger_0"][5] ^= 1
                del file["optimizer"]  # Whose state alone would not come without a ledger.
    return sorted(tmp_path.iterdir())


# What can be loaded in part.
SKIPPABLE = ["other layers.weights.h5", "other optimizer.weights.h5"]


@pytest.mark.filterwarnings("ignore:A total of .* objects could not be loaded")
@pytest.mark.filterwarnings("ignore:Could not load weights")
def test_refused_load_changes_nothing(tmp_path, another_process):
    paths = write_files(tmp_path)
    assert len(paths) == 8
    model = trained(toy.dense)
    another_process()
    before = everything(model)
    for path in paths:
        for skip_mismatch in (False, True):
            if skip_mismatch and path.name in SKIPPABLE:
                continue
            with pytest.raises((ValueError, OSError)):
                model.load_weights(path, skip_mismatch=skip_mismatch)
            assert_unchanged(model, before)
    for name in SKIPPABLE:
        model.load_weights(tmp_path / name, skip_mismatch=True)
        assert model.ledger is before[1]
    assert train(model).ledger.total_count == 4


def test_skipped_mismatch_does_not_skip_the_ledger(tmp_path, another_process):
    model = trained(toy.dense)
    model.save_weights(tmp_path / "run.weights.h5")
    another_process()
    other = compiled(toy.dense(), noisy(keras.optimizers.Adam()))
    with pytest.warns(UserWarning, match="could not be loaded"):
        other.load_weights(tmp_path / "run.weights.h5", skip_mismatch=True)
    assert other.ledger == model.ledger
    assert train(other).ledger.total_count == 4


def test_ledger_that_was_chosen_is_not_replaced_by_a_files(tmp_path):
    model = trained(toy.dense)
    model.save_weights(tmp_path / "run.weights.h5")
    ledger = tfdp.PrivacyLedger()
    other = compiled(toy.dense(), noisy(ledger=ledger))
    with pytest.raises(LedgerMismatchError, match="leave `ledger` out"):
        other.load_weights(tmp_path / "run.weights.h5")
    assert other.ledger is ledger
    toy.assert_weights(other, toy.weights(toy.dense()), 0)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_legacy_file(tmp_path):
    model = trained(functional)
    with pytest.raises(ValueError, match=r"\.keras"):
        model.save(tmp_path / "model.h5")
    functional().save(tmp_path / "plain.h5")
    model.load_weights(tmp_path / "plain.h5", by_name=True)
    assert train(model).ledger.total_count == 4


def test_model_checkpoints_resume(tmp_path, another_process):
    model = compiled(toy.dense())
    keep = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True
    )
    whole = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.keras"))
    model.fit(X, Y, batch_size=4, steps_per_epoch=1, epochs=2, verbose=0, callbacks=[keep, whole])
    another_process()
    for suffix in ("weights.h5", "keras"):
        other = compiled(toy.dense())
        other.load_weights(tmp_path / f"1.{suffix}")
        assert other.ledger.total_count == 1
        assert train(other).ledger.total_count == 3


def test_tuner_that_builds_again_and_loads_the_best(tmp_path, another_process):
    """What KerasTuner's get_best_models does: a new model, compiled, not built by a step."""

    def hypermodel():
        return toy.private(toy.dense(), noisy(keras.optimizers.Adam()))

    trials = []
    for number in range(2):
        model = hypermodel()
        model.fit(X, Y, batch_size=4, steps_per_epoch=1 + number, verbose=0)
        model.save_weights(tmp_path / f"{number}.weights.h5")
        trials.append(model)
    another_process()
    for number, trial in enumerate(trials):
        best = hypermodel()
        best.load_weights(tmp_path / f"{number}.weights.h5")
        assert best.ledger == trial.ledger
        toy.assert_weights(best, toy.weights(trial), 0)


def test_tensorflow_checkpoint_of_public_weights_is_a_start(tmp_path):
    public = toy.linear()
    public.set_weights([w + 1 for w in public.get_weights()])
    path = tf.train.Checkpoint(v=[v.value for v in public.variables]).write(str(tmp_path / "c"))
    model = compiled(toy.linear())
    tf.train.Checkpoint(v=[v.value for v in model.variables]).read(path).assert_consumed()
    assert train(model).ledger.total_count == 2
    # The same file, after steps were paid for: nobody can tell where these values come from.
    tf.train.Checkpoint(v=[v.value for v in model.variables]).read(path).assert_consumed()
    assert train(model).ledger.total_count == 4  # It is where this run began.


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


# Threads.


def in_threads(function, times=5, threads=3):
    errors = []

    def work():
        try:
            for _ in range(times):
                function()
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return errors


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("in_one", [False, True])
def test_threads_on_one_optimizer_are_all_charged(in_one, in_graph):
    variables = [tf.Variable(tf.ones([4, 1]))]
    optimizer = noisy()
    optimizer.build(variables)

    def step():
        loss = lambda x: tf.reduce_sum(tf.matmul(x, variables[0]) ** 2)  # noqa: E731
        if in_one:
            optimizer.private_step(loss, variables, tf.constant(X))
        else:
            gradients = optimizer.private_gradients(loss, variables, tf.constant(X))
            optimizer.apply(gradients, variables)

    assert in_threads(tf.function(step) if in_graph else step) == []
    assert optimizer.ledger.total_count == int(optimizer.iterations) == 15


def test_threads_on_one_model_take_turns():
    model = compiled(toy.linear())
    assert in_threads(lambda: model.train_on_batch(X, Y), times=3) == []
    assert model.ledger.total_count == int(model.optimizer.iterations) == 9


def test_threads_on_one_ledger_lose_no_event():
    ledger, event = tfdp.PrivacyLedger(), tfdp.GaussianSumEvent(1.0, 1.0)
    assert in_threads(lambda: ledger.append(event), times=2000, threads=4) == []
    assert ledger.total_count == sum(entry.count for entry in ledger) == 8000


def test_gradients_of_another_thread_are_refused():
    variables = [tf.Variable(tf.ones([4, 1]))]
    optimizer = noisy()
    loss = lambda x: tf.reduce_sum(tf.matmul(x, variables[0]) ** 2)  # noqa: E731
    gradients = optimizer.private_gradients(loss, variables, tf.constant(X))
    (error,) = in_threads(lambda: optimizer.apply(gradients, variables), times=1, threads=1)
    assert isinstance(error, NotPrivateError)
    assert "same thread" in str(error)
