"""Rows of mapped files are those that the library or the array gives."""

import itertools
import mmap

import h5py
import numpy as np
import pytest

from tfdp.sampling import mapped as mapped_module
from tfdp.sampling.mapped import Chunks, ask_for, mapped, taken

RNG = np.random.default_rng(0)
ROWS = np.array([3, 39, 3, 0, 20, 21])
N = 40


def _array(shape, dtype):
    return RNG.integers(0, 100, (N, *shape)).astype(dtype)


@pytest.mark.parametrize("rows_of_piece", [None, 1, 7, 40, 64])
@pytest.mark.parametrize("dtype", ["float32", ">f4", "uint8", "int64", "float16", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_an_hdf5_data_set_is_read_without_the_library(rows_of_piece, dtype, shape, tmp_path):
    expected = _array(shape, dtype)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        pieces = {"chunks": (rows_of_piece, *shape), "maxshape": (None, *shape)}
        column = file.create_dataset(
            "x", (N, *shape), dtype, **({} if rows_of_piece is None else pieces)
        )
        # Pieces stand in the file as they were written first, and other data stand between them.
        for row in (25, 3, *range(N)):
            column[row] = expected[row]
            file.flush()
            if "y" not in file:
                file["y"] = np.zeros(5, np.int8)
    file = h5py.File(tmp_path / "x.h5")
    found = mapped(file["x"])
    file.close()
    assert isinstance(found, np.memmap if rows_of_piece is None else Chunks)
    assert len(found) == N
    np.testing.assert_array_equal(found[39], expected[39])
    if isinstance(found, Chunks):
        result = found.take(ROWS)
        np.testing.assert_array_equal(result, expected[ROWS])
        assert (result.dtype, result.flags.writeable) == (expected.dtype, True)
        assert found.take(ROWS[:0]).shape == (0, *shape)
        for row in (-1, N):
            with pytest.raises(IndexError, match="rows 0 .. 39"):
                found.take(np.array([0, row]))


def _virtual(file, folder, x):
    with h5py.File(folder / "other.h5", "w") as other:
        other["x"] = x
    layout = h5py.VirtualLayout(x.shape, x.dtype)
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "x", x.shape)
    file.create_virtual_dataset("x", layout)


def _half_written(file, folder, x):
    file.create_dataset("x", x.shape, x.dtype, chunks=(7, 3))[:20] = x[:20]
    x[20:] = 0


def _external(file, folder, x):
    place = [(str(folder / "raw"), 0, x.nbytes)]
    file.create_dataset("x", data=x, external=place)


def _of_type(file, x, stored):
    space = h5py.h5s.create_simple(x.shape)
    h5py.h5d.create(file.id, b"x", stored, space).write(h5py.h5s.ALL, h5py.h5s.ALL, x)


def _of_16_bits(file, folder, x):
    """As bfloat16, which the library gives as float32."""
    stored = h5py.h5t.IEEE_F32LE.copy()
    stored.set_fields(15, 7, 8, 0, 7)
    stored.set_precision(16)
    stored.set_size(2)
    stored.set_ebias(127)
    _of_type(file, x, stored)


def _of_24_bits(file, folder, x):
    stored = h5py.h5t.STD_I32LE.copy()
    stored.set_precision(24)
    stored.set_offset(8)
    _of_type(file, x.astype(np.int32), stored)


# What does not lie in its file as it is in memory, and how to make it.
IN_OTHER_WAYS = {
    "compressed": lambda file, folder, x: file.create_dataset("x", data=x, compression="gzip"),
    "shuffled": lambda file, folder, x: file.create_dataset("x", data=x, shuffle=True),
    "checked": lambda file, folder, x: file.create_dataset("x", data=x, fletcher32=True),
    "parts of rows": lambda file, folder, x: file.create_dataset("x", data=x, chunks=(7, 2)),
    "half written": _half_written,
    "user block": lambda file, folder, x: file.create_dataset("x", data=x),
    "user block, pieces": lambda file, folder, x: file.create_dataset("x", data=x, chunks=(7, 3)),
    "16 bits": _of_16_bits,
    "24 bits": _of_24_bits,
    "virtual": _virtual,
    "external": _external,
    "open for writing": lambda file, folder, x: file.create_dataset("x", data=x),
    "open for writing, pieces": lambda file, folder, x: file.create_dataset(
        "x", data=x, chunks=(7, 3)
    ),
}


@pytest.mark.parametrize("kind", IN_OTHER_WAYS)
def test_any_other_hdf5_data_set_is_read_by_the_library(kind, tmp_path):
    expected = _array((3,), np.float32) + 1
    options = {"userblock_size": 512} if kind.startswith("user block") else {}
    with h5py.File(tmp_path / "x.h5", "w", **options) as file:
        IN_OTHER_WAYS[kind](file, tmp_path, expected)
    is_open_for_writing = kind.startswith("open for writing")
    column = h5py.File(tmp_path / "x.h5", "r+" if is_open_for_writing else "r")["x"]
    if is_open_for_writing:  # Stays in the library's memory as long as the data set is open.
        column[3] = expected[3] = 0
    found = mapped(column)
    assert isinstance(found, h5py.Dataset)
    np.testing.assert_array_equal(found[:], expected)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.bool_, np.complex64])
@pytest.mark.parametrize("width", [3, 1 << 17])
def test_taken_rows_are_those_of_the_array_and_its_own(dtype, width):
    array = np.arange(5 * width).reshape(5, width).astype(dtype)
    rows = np.array([4, 0, 4])
    first, second = taken(array, rows), taken(array, rows[:2])
    np.testing.assert_array_equal(first, array[rows])
    np.testing.assert_array_equal(second, array[rows[:2]])
    assert first.dtype == dtype
    assert not np.shares_memory(first, array)
    first[:] = 0
    np.testing.assert_array_equal(second, array[rows[:2]])


@pytest.mark.parametrize("row", [5, -6])
@pytest.mark.parametrize("width", [3, 1 << 17])
def test_rows_that_do_not_exist_are_not_taken(row, width):
    with pytest.raises(IndexError):
        taken(np.zeros([5, width], np.float32), np.array([0, row]))


class Watched(mmap.mmap):
    """Keeps what the system was asked for."""

    asked: list[tuple[int, int, int]]

    def madvise(self, option, start, length):
        self.asked.append((option, start, length))
        super().madvise(option, start, length)


@pytest.fixture
def waits(monkeypatch):
    """How often the process had to wait for the disk, when it is asked: once more each time."""
    found = itertools.count()
    monkeypatch.setattr(mapped_module, "_waits_for_disk", lambda: next(found))


@pytest.fixture
def watched(tmp_path):
    with open(tmp_path / "rows", "w+b") as file:
        file.truncate(1 << 27)  # Holes: it takes no room.
        found = Watched(file.fileno(), 0)
    found.asked = []
    return found


@pytest.mark.parametrize(("offset", "width"), [(0, 4096), (128, 784), (4095, 5000), (1, 1)])
def test_pages_of_rows_of_a_large_file_are_asked_for(watched, waits, offset, width):
    n = ((1 << 27) - offset) // width
    array = np.ndarray((n, width), np.uint8, watched, offset)[1:]  # A view begins elsewhere.
    rows = np.array([0, 5, n - 2, 17])
    ask_for(array, rows)
    first = offset + width
    expected = []
    for row in rows:
        begin, end = first + row * width, first + (row + 1) * width
        page = begin // mmap.PAGESIZE * mmap.PAGESIZE
        expected.append((mmap.MADV_WILLNEED, page, end - page))
    assert watched.asked == expected


def test_nothing_is_asked_for_while_reads_need_not_wait(watched, monkeypatch):
    waits = [0]
    monkeypatch.setattr(mapped_module, "_waits_for_disk", lambda: waits[0])
    monkeypatch.setattr(mapped_module, "_READS_BETWEEN_PROBES", 2)
    array = np.ndarray((1 << 17, 1 << 10), np.uint8, watched)
    asked = []
    for has_waited in [False, False, True, False, False, False, False]:
        watched.asked = []
        ask_for(array, np.arange(3))
        asked.append(len(watched.asked))
        waits[0] += has_waited
    # After a wait reads ask, until a few rows are looked at, none of which is on the disk.
    assert asked == [0, 0, 0, 3, 3, 3, 0]


def test_rows_are_asked_for_until_a_few_are_found_in_memory(watched, monkeypatch):
    found = iter([0, 1, 1, 2, 2, 2, 2, 2])  # Before and after each look, then before each read.
    monkeypatch.setattr(mapped_module, "_waits_for_disk", lambda: next(found))
    monkeypatch.setattr(mapped_module, "_READS_BETWEEN_PROBES", 1)
    array = np.ndarray((1 << 17, 1 << 10), np.uint8, watched)
    asked = []
    for _ in range(6):
        watched.asked = []
        ask_for(array, np.arange(3))
        asked.append(len(watched.asked))
    assert asked == [3, 3, 3, 3, 0, 0]


def test_nothing_is_asked_for_a_small_one_or_none(watched, waits):
    ask_for(np.ndarray((100, 784), np.uint8, watched), np.arange(3))
    ask_for(np.ndarray((1 << 17, 1 << 10), np.uint8, watched), np.arange(0))
    ask_for(np.empty((1 << 17, 1 << 10), np.uint8), np.arange(3))  # It lies in no file.
    ask_for([1, 2, 3], np.arange(3))
    assert watched.asked == []


def test_rows_of_a_large_array_that_is_in_no_file_are_taken():
    array = np.zeros((1 << 10, 1 << 16), np.uint8)
    array[7] = 7
    np.testing.assert_array_equal(taken(array, np.array([7, 8]))[:, 0], [7, 0])
