"""Weights come out of a file with their ledger: docs/ledger.md, "Weights and their ledger"."""

import logging
import pathlib
import shutil

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp
from tests.keras.trained import (
    FORMS,
    PrivateSubclass,
    assert_unchanged,
    compiled,
    everything,
    functional,
    noisy,
    train,
    trained,
)
from tfdp.keras import LedgerMismatchError, charges, weights_file
from tfdp.ledger import LedgerFormatError

X, Y = toy.X, toy.Y
GOLDEN = pathlib.Path(__file__).parent / "golden"


def test_what_new_weights_begin_with_is_no_copy_of_a_file(tmp_path, another_process):
    def make(units=2):
        return keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(units)]
        )

    model = make()
    model.layers[0].trainable = False  # Its bias stays zero.
    train(compiled(model)).save(tmp_path / "model.keras")
    another_process()
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert compiled(plain).ledger.total_count == 1
    assert compiled(make(3)).ledger.total_count == 0
    compiled(make(3), noisy(ledger=tfdp.PrivacyLedger()))


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
        assert train(other).ledger.total_count == 2
    assert model.ledger.total_count == 1


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
    assert train(compiled(other)).ledger.total_count == 2


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
        assert train(model).ledger.total_count == 1


def test_plain_file_in_a_trained_model_forgets_nothing(tmp_path):
    toy.dense().save_weights(tmp_path / "plain.weights.h5")
    model = trained(toy.dense, optimizer=noisy(keras.optimizers.Adam()))
    model.load_weights(tmp_path / "plain.weights.h5")
    toy.assert_weights(model, toy.weights(toy.dense()), 0)
    train(model)
    assert model.ledger.total_count == 2
    compiled(model)
    assert model.ledger.total_count == 2


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
    assert train(other).ledger.total_count == 2


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
    assert train(model).ledger.total_count == 2


def test_skipped_mismatch_does_not_skip_the_ledger(tmp_path, another_process):
    model = trained(toy.dense)
    model.save_weights(tmp_path / "run.weights.h5")
    another_process()
    other = compiled(toy.dense(), noisy(keras.optimizers.Adam()))
    with pytest.warns(UserWarning, match="could not be loaded"):
        other.load_weights(tmp_path / "run.weights.h5", skip_mismatch=True)
    assert other.ledger == model.ledger
    assert train(other).ledger.total_count == 2


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
    assert train(model).ledger.total_count == 2


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
        assert train(other).ledger.total_count == 2


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


# Functions of Keras read the file, which end without a word.


def loaded_by_keras(path, form, **arguments):
    if path.name.endswith(".keras"):
        return keras.models.load_model(path)
    model = tfdp.keras.make_private(FORMS[form]())
    keras.saving.load_weights(model, path, **arguments)
    return model


BY_KERAS = [(form, f"run.weights.{kind}") for form in FORMS for kind in ("h5", "json")]
BY_KERAS.append(("DPModel", "run.keras"))


@pytest.fixture
def saved(tmp_path, another_process):
    """Saves a model that was trained, and forgets it."""

    def save(form, name):
        model, path = trained(FORMS[form]), tmp_path / name
        sharded = {"max_shard_size": 1.1e-6} if name.endswith("json") else {}
        (model.save if name.endswith(".keras") else model.save_weights)(path, **sharded)
        another_process()
        return path

    return save


@pytest.mark.parametrize(("form", "name"), BY_KERAS)
def test_weights_that_changed_after_a_load_by_keras_are_noticed(form, name, saved):
    path = saved(form, name)
    assert train(compiled(loaded_by_keras(path, form))).ledger.total_count == 2
    model = loaded_by_keras(path, form)
    model.weights[0].assign_add(np.ones((4, 2), "f"))
    with pytest.raises(LedgerMismatchError, match="declare_weights"):
        compiled(model)
    tfdp.keras.declare_weights(model, "post_processed")
    assert train(compiled(model)).ledger.total_count == 2


@keras.saving.register_keras_serializable("tests")
class PrivateNames(tfdp.keras.DPModel):
    """Keras reads attributes of such names after the ledger."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._zzz = keras.layers.Dense(3)
        self._я = keras.layers.Dense(2)

    def call(self, x):
        return self._я(self._zzz(x))


def test_a_load_by_keras_ends_after_the_last_layer(tmp_path, another_process):
    def make():
        model = PrivateNames()
        model(X)
        return model

    trained(make).save_weights(tmp_path / "run.weights.h5")
    another_process()
    model = make()
    keras.saving.load_weights(model, tmp_path / "run.weights.h5")
    charges.look(model.weights)
    assert train(compiled(model)).ledger.total_count == 2


def test_a_private_model_within_another_is_loaded_by_keras(tmp_path, another_process):
    def around(private):
        return keras.Sequential([keras.Input((4,)), private, keras.layers.Dense(2)])

    around(trained(functional)).save(tmp_path / "run.keras")
    another_process()
    inner = keras.models.load_model(tmp_path / "run.keras").layers[0]
    assert inner.ledger.total_count == 1
    inner.weights[0].assign_add(np.ones((4, 2), "f"))
    with pytest.raises(LedgerMismatchError, match="declare_weights"):
        compiled(inner)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_load_by_keras_into_another_dtype_is_no_change(dtype, saved):
    path = saved("functional", "run.weights.h5")
    inputs = keras.Input((4,))
    layer = keras.layers.Dense(2, name="only", dtype=dtype)
    model = tfdp.keras.make_private(keras.Model(inputs, layer(inputs)))
    keras.saving.load_weights(model, path)
    charges.look(model.weights)
    assert model.ledger.total_count == 1
    model.weights[0].assign_add(np.ones((4, 2), "f"))
    with pytest.raises(LedgerMismatchError):
        charges.look(model.weights)


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
def test_a_load_by_keras_into_a_trained_model_goes_on(tmp_path, another_process):
    def make():
        return noisy(keras.optimizers.SGD(0.1, momentum=0.9))

    model = trained(toy.linear, optimizer=make())
    model.save_weights(tmp_path / "run.weights.h5")
    train(model)
    another_process()  # It knows neither the weights nor the momentum of before.
    keras.saving.load_weights(model, tmp_path / "run.weights.h5")
    assert train(model).ledger.total_count == 3
    toy.linear().save_weights(tmp_path / "plain.weights.h5")
    keras.saving.load_weights(model, tmp_path / "plain.weights.h5")
    assert train(model).ledger.total_count == 4


@pytest.mark.filterwarnings("ignore:A total of 1 objects could not be loaded")
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
def test_a_load_by_keras_that_fits_nothing_hides_no_change(tmp_path):
    def wide():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, use_bias=False)])

    wide().save_weights(tmp_path / "wide.weights.h5")
    model = trained(toy.linear)
    model.weights[0].assign_add(np.ones((4, 2), "f"))
    keras.saving.load_weights(model, tmp_path / "wide.weights.h5", skip_mismatch=True)
    with pytest.raises(LedgerMismatchError, match="declare_weights"):
        train(model)


@pytest.mark.filterwarnings("ignore:A total of 1 objects could not be loaded")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("skip_mismatch", [False, True])
def test_a_load_by_keras_without_a_readable_ledger_is_refused(form, skip_mismatch, saved):
    path = saved(form, "run.weights.h5")
    with h5py.File(path, "a") as file:
        file["_dp_ledger/vars/ledger_0"][5] ^= 1
    model = tfdp.keras.make_private(FORMS[form]())
    if skip_mismatch:
        keras.saving.load_weights(model, path, skip_mismatch=True)
    else:
        with pytest.raises(ValueError, match="ledger in this file of weights is damaged"):
            keras.saving.load_weights(model, path)
    for optimizer in (noisy(), noisy(ledger=tfdp.PrivacyLedger())):
        with pytest.raises(LedgerMismatchError, match="Restore the file from a copy"):
            compiled(model, optimizer)
    tfdp.keras.declare_weights(model, "fresh_start")
    assert train(compiled(model)).ledger.total_count == 1


@pytest.mark.parametrize("error", [KeyError("version"), OSError("read"), RuntimeError("link")])
def test_what_hdf5_cannot_read_is_no_file_without_a_ledger(error):
    class Store(dict):
        def __getitem__(self, name):
            raise error

    model = tfdp.keras.make_private(toy.linear())
    for _ in range(2):
        with pytest.raises(type(error)):
            model._dp_ledger.load_own_variables(Store(version=1))
    with pytest.raises(LedgerMismatchError):
        compiled(model)


def test_tensorflow_checkpoint_of_public_weights_is_a_start(tmp_path):
    public = toy.linear()
    public.set_weights([w + 1 for w in public.get_weights()])
    path = tf.train.Checkpoint(v=[v.value for v in public.variables]).write(str(tmp_path / "c"))
    model = compiled(toy.linear())
    tf.train.Checkpoint(v=[v.value for v in model.variables]).read(path).assert_consumed()
    assert train(model).ledger.total_count == 1
    # The same file, after steps were paid for: nobody can tell where these values come from.
    tf.train.Checkpoint(v=[v.value for v in model.variables]).read(path).assert_consumed()
    assert train(model).ledger.total_count == 2  # It is where this run began.


# Files as the tfdp of then wrote them, after two steps of `trained(functional)`.


@pytest.mark.parametrize("name", ["version1.weights.h5", "version1.keras"])
def test_golden_file_brings_its_weights_and_its_ledger(name):
    model = compiled(tfdp.keras.make_private(functional()))
    model.load_weights(GOLDEN / name)
    assert model.ledger.ledger_id == "49bba515fe084f6590bc4c731d18ba73"
    assert model.ledger.total_count == 2
    kernel, bias = model.get_weights()
    np.testing.assert_allclose(kernel[0], [-0.09455597, -0.9313977], rtol=1e-6)
    np.testing.assert_allclose(bias, [-0.00300512, -0.00104959], rtol=1e-5)
    assert train(model).ledger.total_count == 3


def test_every_version_has_golden_files():
    versions = {path.name.partition(".")[0] for path in GOLDEN.iterdir()}
    assert versions == {f"version{v}" for v in range(1, weights_file._VERSION + 1)}


@pytest.mark.parametrize("skip_mismatch", [False, True])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_newer_file_changes_nothing_and_says_what_to_do(tmp_path, is_compiled, skip_mismatch):
    path = tmp_path / "newer.weights.h5"
    shutil.copy(GOLDEN / "version1.weights.h5", path)
    with h5py.File(path, "a") as file:
        file["_dp_ledger/vars/version"][()] = weights_file._VERSION + 1
    model = tfdp.keras.make_private(functional())
    model = compiled(model) if is_compiled else model
    weights = toy.weights(model)
    with pytest.raises(LedgerFormatError, match="version 2; .* up to 1. Use the tfdp that wrote"):
        model.load_weights(path, skip_mismatch=skip_mismatch)
    toy.assert_weights(model, weights, 0)
