"""A private model's file, which Keras' own load_model reads: docs/ledger.md has the table."""

import io
import json
import logging
import zipfile

import h5py
import keras
import numpy as np
import pytest
import toy
from keras.src.saving import object_registration

import tfdp
from tests.keras.trained import FORMS, compiled, functional, noisy, train, trained
from tfdp.keras import LedgerMismatchError
from tfdp.keras.saved_form import with_ledger_found

L = keras.layers


def nested():
    keras.utils.set_random_seed(5)
    inner = keras.Sequential([keras.Input((4,)), L.Dense(3, activation="tanh")])
    return keras.Sequential([keras.Input((4,)), inner, L.Dense(2)])


def two_outputs():
    keras.utils.set_random_seed(6)
    inputs = keras.Input((4,))
    return keras.Model(inputs, [L.Dense(2, name="a")(inputs), L.Dense(1, name="b")(inputs)])


def not_built_yet():
    return keras.Sequential([L.Dense(2)])


PLAIN = {
    "sequential": toy.linear,
    "functional": functional,
    "nested": nested,
    "not built yet": not_built_yet,
}


@pytest.fixture
def without_tfdp(monkeypatch):
    """Lets Keras know nothing of tfdp, until the test ends."""

    def begin():
        names = object_registration.GLOBAL_CUSTOM_OBJECTS
        for name in [name for name in names if name.startswith("tfdp>")]:
            monkeypatch.delitem(names, name)

    return begin


@pytest.mark.parametrize("form", PLAIN)
def test_plain_load_brings_the_ledger_in_another_process(form, tmp_path, another_process, caplog):
    model = trained(PLAIN[form], 2)
    model.save(tmp_path / "model.keras")
    another_process()
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert type(plain).__module__.startswith("keras.") and not plain.compiled
    assert not hasattr(plain, "_dp_ledger")
    toy.assert_weights(plain, toy.weights(model), 0)
    with caplog.at_level(logging.WARNING, "tfdp"):
        other = compiled(tfdp.keras.make_private(plain))
    assert "is continued" in caplog.text
    assert other.ledger == model.ledger and other.ledger is not model.ledger
    assert train(other).ledger.total_count == 3
    assert model.ledger.total_count == 2


def test_several_outputs(tmp_path, another_process):
    model = compiled(two_outputs(), noisy())
    model.compile(noisy(), loss=["mse", "mse"], run_eagerly=True)
    targets = [np.zeros((len(toy.X), 2), "f"), np.zeros((len(toy.X), 1), "f")]
    model.fit(toy.X, targets, batch_size=4, steps_per_epoch=1, verbose=0)
    model.save(tmp_path / "model.keras")
    another_process()
    private = tfdp.keras.make_private(keras.models.load_model(tmp_path / "model.keras"))
    assert private.ledger == model.ledger


def test_plain_load_refuses_another_ledger(tmp_path, another_process):
    model = trained()
    model.save(tmp_path / "model.keras")
    another_process()
    plain = keras.models.load_model(tmp_path / "model.keras")
    with pytest.raises(LedgerMismatchError):
        compiled(tfdp.keras.make_private(plain), noisy(ledger=tfdp.PrivacyLedger()))


def test_copies_of_what_was_loaded_bring_the_ledger(tmp_path, another_process):
    model = trained(functional)
    model.save(tmp_path / "model.keras")
    another_process()
    plain = keras.models.load_model(tmp_path / "model.keras")
    copy = keras.models.clone_model(plain)
    copy.set_weights(plain.get_weights())
    assert compiled(copy).ledger == model.ledger


@pytest.mark.parametrize("form", ["sequential", "functional"])
def test_file_loads_without_tfdp(form, tmp_path, without_tfdp):
    model = trained(FORMS[form])
    model.save(tmp_path / "model.keras")
    expected = model.predict(toy.X, verbose=0)
    without_tfdp()
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert type(plain) in (keras.Sequential, type(functional()))
    np.testing.assert_array_equal(plain.predict(toy.X, verbose=0), expected)


def test_a_model_that_was_never_trained_loads(tmp_path, another_process):
    compiled(functional()).save(tmp_path / "model.keras")
    another_process()
    other = compiled(keras.models.load_model(tmp_path / "model.keras"))
    assert other.ledger.total_count == 0
    assert train(other).ledger.total_count == 1


def changed(path, change):
    """Writes another state of the weights into a file of a model."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    state = io.BytesIO(parts["model.weights.h5"])
    with h5py.File(state, "a") as weights:
        change(weights)
    parts["model.weights.h5"] = state.getvalue()
    with zipfile.ZipFile(path, "w") as file:
        for name, part in parts.items():
            file.writestr(name, part)


def cut(weights):
    del weights["_dp_ledger"]


def emptied(weights):
    del weights["_dp_ledger/vars/version"]


def damaged(weights):
    weights["_dp_ledger/vars/ledger_0"][5] ^= 1


@pytest.mark.parametrize("change", [cut, emptied, damaged])
@pytest.mark.parametrize("form", ["sequential", "functional"])
def test_plain_load_of_a_file_without_its_ledger_is_refused(form, change, tmp_path):
    trained(FORMS[form]).save(tmp_path / "model.keras")
    keras.models.load_model(tmp_path / "model.keras")
    changed(tmp_path / "model.keras", change)
    with pytest.raises(ValueError, match=r"ledger|unable to"):
        keras.models.load_model(tmp_path / "model.keras")


def test_config_alone_is_a_new_model(tmp_path):
    trained(functional).save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        config = json.loads(file.read("config.json"))
    plain = keras.saving.deserialize_keras_object(config)
    assert compiled(plain).ledger.total_count == 0


def test_models_of_other_classes_are_saved_as_they_are():
    model = FORMS["subclass"]()
    assert with_ledger_found(model) is model


@pytest.mark.parametrize("kind", ["keras", "weights.h5"])
def test_earlier_checkpoints_of_this_process_are_known(kind, tmp_path):
    model = compiled(functional())
    keep = keras.callbacks.ModelCheckpoint(
        str(tmp_path / f"{{epoch}}.{kind}"), save_weights_only=kind == "weights.h5"
    )
    model.fit(toy.X, toy.Y, batch_size=4, steps_per_epoch=1, epochs=3, verbose=0, callbacks=[keep])
    for epoch in (1, 2, 3):
        if kind == "keras":
            plain = keras.models.load_model(tmp_path / f"{epoch}.keras")
        else:
            plain = functional()
            plain.load_weights(tmp_path / f"{epoch}.{kind}")
        assert compiled(tfdp.keras.make_private(plain)).ledger is model.ledger


@pytest.mark.parametrize("form", ["functional", "subclass"])
def test_weights_that_something_else_changed_are_not_exported(form, tmp_path):
    model = trained(FORMS[form])
    model.export(tmp_path / "before", verbose=False)
    model.weights[0].assign_add(np.ones((4, 2), "f"))
    with pytest.raises(LedgerMismatchError, match="declare_weights"):
        model.export(tmp_path / "after", verbose=False)
