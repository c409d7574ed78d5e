"""A file of arrays: whole or not at all."""

import io
import pathlib
import stat
import zipfile

import numpy as np
import pytest

from tfdp.federated.selective import ParameterServer, state_file

GOLDEN = pathlib.Path(__file__).parent / "golden"


def test_arrays_are_read_as_written(tmp_path):
    state_file.write(tmp_path / "f", {"a": np.arange(3), "b": np.array(2.0)})
    found = state_file.read(tmp_path / "f", {"a": 1, "b": 0})
    assert found["a"].tolist() == [0, 1, 2] and found["b"] == 2.0


class _Unwritable:
    def __array__(self, dtype=None, copy=None):
        raise OSError("The disk is full.")


def test_an_error_leaves_the_earlier_file_and_no_other(tmp_path):
    path = tmp_path / "f"
    state_file.write(path, {"a": np.arange(3)})
    with pytest.raises(OSError, match="full"):
        state_file.write(path, {"a": np.arange(4), "b": _Unwritable()})
    assert state_file.read(path, {"a": 1})["a"].tolist() == [0, 1, 2]
    assert [file.name for file in tmp_path.iterdir()] == ["f"]


def test_permissions_stay(tmp_path):
    path = tmp_path / "f"
    state_file.write(path, {"a": np.arange(3)})
    path.chmod(0o600)
    state_file.write(path, {"a": np.arange(4)})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert state_file.read(path, {"a": 1})["a"].tolist() == [0, 1, 2, 3]


def test_damaged_files_and_others_are_refused(tmp_path):
    path = tmp_path / "f"
    state_file.write(path, {"a": np.arange(3)})
    whole = path.read_bytes()
    for names in ({}, {"a": 1, "b": 1}, {"a": 0}):
        with pytest.raises(ValueError, match="state|axes"):
            state_file.read(path, names)
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="no state"):
            state_file.read(path, {"a": 1})
    flipped = bytearray(whole)
    flipped[whole.index(b"NUMPY") + 130] ^= 1  # In the numbers, which have a checksum.
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match="no state"):
        state_file.read(path, {"a": 1})
    np.savez(tmp_path / "pickled.npz", a=np.array([{}], object))
    with pytest.raises(ValueError, match="no state"):
        state_file.read(tmp_path / "pickled.npz", {"a": 1})


def _rewritten(path, compression=zipfile.ZIP_STORED, **changed):
    """Writes the file anew, with some of its arrays in other bytes."""
    with zipfile.ZipFile(path) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in contents.items():
            file.writestr(name, changed.get(name.removesuffix(".npy"), content))


def _with_flag(path):
    """Says of every array that it is encrypted."""
    data = bytearray(path.read_bytes())
    for start, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(start, at + 1)) >= 0:
            data[at + place] |= 1
    path.write_bytes(data)


def _npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


_HUGE = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }".ljust(117)
HOSTILE = {
    "compressed": lambda path: _rewritten(path, zipfile.ZIP_DEFLATED),
    "lzma": lambda path: _rewritten(path, zipfile.ZIP_LZMA),
    "encrypted": _with_flag,
    "huge header": lambda path: _rewritten(path, stat=b"\x93NUMPY\x01\x00v\x00" + _HUGE + b"\n"),
    "many versions": lambda path: _rewritten(path, format_version=_npy(np.array([[1, 2]]))),
    "no version": lambda path: _rewritten(path, format_version=_npy(np.array([], np.int64))),
    "version 0": lambda path: _rewritten(path, format_version=_npy(np.int64(0))),
    "a float as version": lambda path: _rewritten(path, format_version=_npy(np.float64(1))),
    "complex": lambda path: _rewritten(path, beta=_npy(np.array(1j))),
    "text": lambda path: _rewritten(path, beta=_npy(np.array("0.5"))),
    "a date": lambda path: _rewritten(path, beta=_npy(np.datetime64("2020-01-01"))),
    "two numbers": lambda path: _rewritten(path, beta=_npy(np.zeros((), "f4, f4"))),
    "dates": lambda path: _rewritten(path, parameters=_npy(np.zeros(3, "M8[D]"))),
    "dates as counters": lambda path: _rewritten(path, stat=_npy(np.zeros(3, "M8[D]"))),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_whatever_a_file_holds_is_a_state_or_a_value_error(tmp_path, change):
    path = tmp_path / "state"
    ParameterServer(np.zeros(3, np.float32)).save(path)
    change(path)
    with pytest.raises(ValueError):
        ParameterServer.load(path)


def test_golden_file_of_each_version_is_read():
    files = {f"version{number}.npz" for number in range(1, state_file.VERSION + 1)}
    assert {path.name for path in GOLDEN.iterdir()} == files
    for name in files:
        server = ParameterServer.load(GOLDEN / name)
        assert server.parameters.tolist() == [0.0, 1.5, -2.0, 3.0]
        assert (server.version, server.beta, server.largest_value) == (1, 0.5, 2.0)


def test_newer_file_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(state_file, "VERSION", state_file.VERSION + 1)
    state_file.write(tmp_path / "f", {"a": np.arange(3)})
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match="format version 2, .* versions up to 1. Use the tfdp that"
    ):
        state_file.read(tmp_path / "f", {"a": 1})
