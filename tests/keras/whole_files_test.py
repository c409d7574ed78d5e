"""A file of weights is whole, or it is refused; a save that is cut short leaves what was there."""

import json
import os
import platform
import shutil
import stat
import subprocess
import sys

import h5py
import keras
import numpy as np
import pytest
import toy

import tfdp
from tests.keras.trained import train, trained
from tfdp.keras import charges, weights_file, whole_files
from tfdp.ledger import LedgerFormatError

SHARDED = {"max_shard_size": 1.1e-6}


def wide():
    """Returns a model whose weights fill one file of `SHARDED`: the ledger is in the next one."""
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(40), keras.layers.Dense(2)])


def loaded(path, make=toy.linear):
    """Returns a private model with the weights of a file, as another process would load it."""
    charges._known.clear()
    model = tfdp.keras.make_private(make())
    model.load_weights(path)
    return model


@pytest.fixture
def file(tmp_path, another_process):
    path = tmp_path / "run.weights.h5"
    trained(toy.linear).save_weights(path)
    another_process()
    return path


@pytest.fixture
def shards(tmp_path, another_process):
    """An index of two files, saved after one step; and the model, which has taken another."""
    model = trained(wide)
    path = tmp_path / "run.weights.json"
    model.save_weights(path, **SHARDED)
    train(model)
    another_process()
    return path, model


def is_refused(path):
    try:
        whole_files.check_whole(path)
    except LedgerFormatError:
        return True
    return False


def test_a_flipped_bit_anywhere_is_refused_or_harms_nothing(file):
    whole = file.read_bytes()
    says = len(whole) - whole_files._SEAL_BYTES
    for place in [*range(48), *range(48, says, 97), *range(says, len(whole))]:
        damaged = bytearray(whole)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        if place >= 48:
            assert is_refused(file), place
        else:  # HDF5 itself may not open it.
            with pytest.raises((LedgerFormatError, OSError), match="damaged|to synchronously open"):
                loaded(file)


@pytest.mark.parametrize("name", [b"_dp_ledger", b"ledger_0", b"place_0", b"version"])
def test_a_damaged_name_does_not_take_the_ledger_away(file, name):
    whole = file.read_bytes()
    places = [at for at in range(len(whole)) if whole.startswith(name, at)]
    assert places
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(LedgerFormatError, match="damaged"):
            loaded(file)


@pytest.mark.parametrize("name", [b"ledger_0", b"place_0", b"version"])
def test_a_damaged_name_is_found_without_a_seal(file, name):
    whole = file.read_bytes()[: -whole_files._SEAL_BYTES]
    places = [at for at in range(len(whole)) if whole.startswith(name + b"\0", at)]
    assert places
    for place in places:
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(LedgerFormatError, match="damaged"):
            loaded(file)


@pytest.mark.parametrize("lost", [1, 100, 512, 1000, 4096])
def test_zeros_in_the_place_of_the_end_are_refused(file, lost):
    file.write_bytes(file.read_bytes()[:-lost] + bytes(lost))
    with pytest.raises(LedgerFormatError, match="damaged"):
        loaded(file)


def test_what_the_library_of_the_format_writes_to_takes_the_seal_away(file):
    with h5py.File(file, "a") as opened:
        opened["note"] = "mine"
    assert not is_refused(file)
    assert loaded(file).ledger.total_count == 1


def test_keras_alone_reads_a_sealed_file(file):
    plain = toy.linear()
    plain.load_weights(file)
    np.testing.assert_array_equal(plain.get_weights()[0], toy.weights(loaded(file))[0])


def test_files_without_a_seal_are_read(tmp_path, file):
    plain = tmp_path / "plain.weights.h5"
    toy.linear().save_weights(plain)
    assert not is_refused(plain)
    assert not is_refused(tmp_path / "none.weights.h5")
    file.write_bytes(file.read_bytes()[: -whole_files._SEAL_BYTES])
    assert loaded(file).ledger.total_count == 1


def test_name_of_a_file_may_change(file):
    assert loaded(file.rename(file.with_name("other.weights.h5"))).ledger.total_count == 1


@pytest.mark.parametrize("path", ["run.weights.h5", "run.weights.json"])
def test_what_was_saved_is_there_until_the_next_save_is_whole(
    tmp_path, monkeypatch, path, another_process
):
    options = SHARDED if path.endswith("json") else {}
    model = trained(wide)
    model.save_weights(tmp_path / path, **options)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    train(model)

    def killed(*_):
        # A process that is killed here leaves this, and a draft.
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(weights_file.LedgerInFile, "save_own_variables", killed)
        model.save_weights(tmp_path / path, **options)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert loaded(tmp_path / path, wide).ledger.total_count == 1
    model.save_weights(tmp_path / path, **options)
    assert loaded(tmp_path / path, wide).ledger.total_count == 2
    assert before.keys() == {p.name for p in tmp_path.iterdir()}


def test_a_model_that_was_saved_is_there_until_the_next_save_is_whole(
    tmp_path, monkeypatch, another_process
):
    path = tmp_path / "run.keras"
    model = trained(wide)
    model.save(path)
    before = path.read_bytes()
    train(model)

    def killed(*_):
        assert path.read_bytes() == before
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(weights_file.LedgerInFile, "save_own_variables", killed)
        model.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.keras"] and path.read_bytes() == before
    another_process()
    assert loaded(path, wide).ledger.total_count == 1
    model.save(path)
    another_process()
    assert loaded(path, wide).ledger.total_count == 2
    assert [p.name for p in tmp_path.iterdir()] == ["run.keras"]


@pytest.mark.parametrize("answer", ["y", "n"])
def test_whoever_is_asked_decides_whether_a_model_is_overwritten(tmp_path, monkeypatch, answer):
    path = tmp_path / "run.keras"
    trained(toy.linear).save(path)
    before = path.read_bytes()
    monkeypatch.setattr("builtins.input", lambda text: answer)
    trained(toy.linear, steps=2).save(path, overwrite=False)
    assert (path.read_bytes() == before) is (answer == "n")


def test_a_model_may_be_saved_as_a_folder(tmp_path, monkeypatch):
    model = trained(toy.linear)
    model.save(tmp_path / "folder", zipped=False)
    monkeypatch.setattr("builtins.input", lambda text: "n")
    new = tfdp.keras.make_private(toy.linear())
    new.save(tmp_path / "folder", overwrite=False, zipped=False)
    toy.assert_weights(keras.models.load_model(tmp_path / "folder"), toy.weights(model), 0)


def test_there_is_no_index_while_its_files_are_exchanged(shards, monkeypatch):
    path, model = shards
    replace, order = os.replace, []

    def noting(source, target):
        order.append((os.path.basename(target), path.exists()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", noting)
    model.save_weights(path, **SHARDED)
    names = ["run_00000.weights.h5", "run_00001.weights.h5", "run.weights.json"]
    assert order == [(name, False) for name in names]


@pytest.mark.parametrize("part", ["run_00000.weights.h5", "run_00001.weights.h5"])
def test_parts_of_different_saves_are_refused(shards, tmp_path, part):
    path, model = shards
    older = (tmp_path / part).read_bytes()
    model.save_weights(path, **SHARDED)
    assert loaded(path, wide).ledger.total_count == 2
    (tmp_path / part).write_bytes(older)
    with pytest.raises(LedgerFormatError, match="different saves"):
        loaded(path, wide)


def test_index_without_the_part_that_holds_the_ledger_is_refused(shards):
    path, _ = shards
    index = json.loads(path.read_text())
    names = index["weight_map"]
    index["weight_map"] = {k: v for k, v in names.items() if "ledger" not in k}
    path.write_text(json.dumps(index))
    with pytest.raises(LedgerFormatError, match="damaged"):
        loaded(path, wide)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}', "[" * 10**5]
)
def test_what_is_no_index_is_refused(shards, text):
    path, _ = shards
    path.write_text(text)
    with pytest.raises(LedgerFormatError, match="no index"):
        loaded(path, wide)


def test_missing_part_is_named(shards, tmp_path):
    path, _ = shards
    (tmp_path / "run_00001.weights.h5").unlink()
    with pytest.raises(LedgerFormatError, match="run_00001.weights.h5.* is missing"):
        loaded(path, wide)


@pytest.mark.parametrize("answer", ["y", "n"])
def test_whoever_is_asked_decides_what_is_overwritten(file, monkeypatch, answer):
    before = file.read_bytes()
    monkeypatch.setattr("builtins.input", lambda text: answer)
    trained(toy.linear, steps=2).save_weights(file, overwrite=False)
    assert (file.read_bytes() == before) is (answer == "n")
    assert loaded(file).ledger.total_count == (2 if answer == "y" else 1)


def test_permissions_stay(shards):
    path, model = shards
    for part in path.parent.iterdir():
        part.chmod(0o600)
    model.save_weights(path, **SHARDED)
    assert {stat.S_IMODE(part.stat().st_mode) for part in path.parent.iterdir()} == {0o600}
    with whole_files.written_whole(path) as draft:
        assert stat.S_IMODE(draft.parent.stat().st_mode) == 0o700
    loaded(path, wide)


def test_a_link_stays_one(file, tmp_path):
    link = tmp_path / "link.weights.h5"
    link.symlink_to(file)
    trained(toy.linear, steps=2).save_weights(link)
    assert link.is_symlink()
    assert loaded(file).ledger.total_count == 2


@pytest.mark.skipif(os.name != "posix", reason="elsewhere processes are not asked for")
def test_what_a_killed_process_left_is_removed(file, tmp_path):
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    ends = f"{int(child.stdout)}.{'0' * 32}.tmp"
    gone = tmp_path / f".{file.name}.{platform.node()}.{ends}"
    elsewhere = tmp_path / f".{file.name}.another-machine.{ends}"
    for folder in (gone, elsewhere):
        folder.mkdir()
        shutil.copy(file, folder)
    trained(toy.linear).save_weights(file)
    assert {p.name for p in tmp_path.iterdir()} == {file.name, elsewhere.name}
