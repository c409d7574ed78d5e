"""Rows of arrays, and of files that are mapped into memory."""

import contextlib
import mmap
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from h5py import h5t

from tfdp.noise import memory

try:
    import resource
except ModuleNotFoundError:  # On Windows, where nothing is asked for either.
    pass

# Pages of smaller arrays are soon in memory, however they are read.
_WORTH_ASKING_BYTES = 1 << 26
# So many rows show whether rows are in memory, after so many reads that asked for theirs.
_PROBED = 8
_READS_BETWEEN_PROBES = 16


class Chunks:
    """Rows of an HDF5 data set that lies in its file in pieces, each as it is in memory.

    The library reads the whole piece that a row is in. This reads the row.

    Args:
        file: uint8, the whole file.
        starts: int64, where each piece begins in the file, in the order of rows.
        rows_of_piece: Rows that each piece has room for.
        shape: [n, ...], that of the data set.
        dtype: That of the data set.
    """

    def __init__(
        self,
        file: np.memmap,
        starts: np.ndarray,
        rows_of_piece: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
    ):
        self.file = file
        self._starts = starts
        self._rows_of_piece = rows_of_piece
        self._shape = shape
        self.dtype = dtype
        self._row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        # One element for every byte: the row that would begin there.
        rows_anywhere = (file.nbytes - self._row_bytes + 1,)
        row = np.dtype((np.void, self._row_bytes))
        self._rows = np.ndarray(rows_anywhere, row, buffer=file, strides=(1,))

    def __len__(self) -> int:
        return self._shape[0]

    def __getitem__(self, row: int) -> np.ndarray:
        return self.take(np.array([row]))[0]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Returns rows, [m, ...].

        Args:
            rows: int64 [m], in 0 .. n - 1.

        Raises:
            IndexError: there is no such row.
        """
        _check(rows, len(self))
        found = self._rows[self._begin(rows)]
        return found.view(self.dtype).reshape(len(rows), *self._shape[1:])

    def ask_for(self, rows: np.ndarray) -> None:
        """Asks the system for rows, as the function of this name does."""
        _read_ahead(self.file, self._begin(rows), self._row_bytes)

    def _begin(self, rows: np.ndarray) -> np.ndarray:
        """Returns where rows begin in the file."""
        pieces, places = np.divmod(rows, self._rows_of_piece)
        return self._starts[pieces] + places * self._row_bytes


def mapped(column: Any) -> Any:
    """Returns an HDF5 data set; where its rows lie in its file as they are in memory, an
    `np.memmap` or `Chunks` of them, which are read much faster.

    Args:
        column: What h5py gave.
    """
    if not (hasattr(column, "id") and hasattr(column, "chunks")):
        return column
    file = column.file
    # What is written may not be in the file yet.
    is_plain = file.mode == "r" and file.driver == "sec2" and not file.userblock_size
    is_elsewhere = column.is_virtual or column.external
    if not is_plain or is_elsewhere or not column.size or column.dtype.kind not in "biuf":
        return column
    # The library gives numbers of other forms, such as 16 bits of a 32-bit float, as NumPy's.
    if not column.id.get_type().equal(h5t.py_create(column.dtype, logical=True)):
        return column
    if column.chunks is None:
        offset = column.id.get_offset()
        if offset is None:
            return column
        return np.memmap(file.filename, column.dtype, "r", offset, column.shape)
    return _in_pieces(column)


def _in_pieces(column: Any) -> Any:
    of_whole_rows = column.chunks[1:] == column.shape[1:]
    is_filtered = column.id.get_create_plist().get_nfilters()
    if not of_whole_rows or is_filtered or not hasattr(column.id, "chunk_iter"):
        return column
    rows_of_piece = column.chunks[0]
    starts = np.full(-(-len(column) // rows_of_piece), -1, np.int64)

    def note(piece: Any) -> None:
        starts[piece.chunk_offset[0] // rows_of_piece] = piece.byte_offset

    column.id.chunk_iter(note)
    if (starts < 0).any():  # What was never written is in no file.
        return column
    whole = np.memmap(column.file.filename, np.uint8, "r")
    return Chunks(whole, starts, rows_of_piece, column.shape, column.dtype)


def taken(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns rows of an array, in memory that is used again once nobody can read them.

    Args:
        array: [n, ...].
        rows: int64 [m], in 0 .. n - 1.

    Raises:
        IndexError: there is no such row.
    """
    found = memory_of((len(rows), *array.shape[1:]), array.dtype)
    take(array, rows, found)
    return found


def take(array: np.ndarray, rows: np.ndarray, place: np.ndarray) -> None:
    """Writes rows of an array to a place.

    Args:
        array: [n, ...].
        rows: int64 [m], in 0 .. n - 1.
        place: [m, ...], of the dtype of the array.

    Raises:
        IndexError: there is no such row.
    """
    _check(rows, len(array))
    if not (array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative):
        place[...] = array[rows]  # np.take would first copy all of the array.
        return
    # NumPy would write to a copy of the place first where it may raise an error on the way.
    np.take(array, rows, axis=0, out=place, mode="clip")


def ask_for(column: Any, rows: np.ndarray) -> None:
    """Asks the system for rows that will be read soon, if they lie in a file and are probably not
    in memory.

    It would else read one after the other as each is first touched, with 128 KiB around it.

    Args:
        column: An array, or anything else, of which nothing is asked for.
        rows: int64 [m], in 0 .. n - 1.
    """
    if not len(rows):
        return
    if isinstance(column, Chunks):
        column.ask_for(rows)
    elif isinstance(column, np.ndarray) and column.nbytes >= _WORTH_ASKING_BYTES:
        if column.flags.c_contiguous:
            _read_ahead(column, rows * column.strides[0], column.strides[0])


def native(dtype: np.dtype) -> np.dtype:
    """Returns a dtype with the bytes of its numbers in this machine's order, as tensors have them.

    Args:
        dtype: Any.
    """
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def memory_of(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Returns an array with arbitrary contents, of memory that is used again once nobody can read
    it, where that is worth it.

    Args:
        shape: Integers.
        dtype: Any.
    """
    if dtype.kind in "biuf" and memory.is_kept(shape, dtype):
        return memory.rows(shape, dtype)
    return np.empty(shape, dtype)


def is_mapped(column: Any) -> bool:
    """Returns whether an array, or what stands for one, lies in a mapped file."""
    return isinstance(_whole(column.file if isinstance(column, Chunks) else column), mmap.mmap)


def can_ask() -> bool:
    """Returns whether this system reads parts of a mapped file when it is asked for them."""
    return hasattr(mmap, "MADV_WILLNEED")


def _whole(array: Any) -> Any:
    """Returns what an array is a part of, in the end."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array


def _check(rows: np.ndarray, length: int) -> None:
    if len(rows) and not 0 <= rows.min() <= rows.max() < length:
        raise IndexError(
            f"There are rows 0 .. {length - 1}. Received: {rows.min()} .. {rows.max()}."
        )


def _read_ahead(array: np.ndarray, starts: np.ndarray, size: int) -> None:
    """Asks the system for parts of a mapped file, all at once.

    Args:
        array: An array; nothing happens where it does not lie in a mapped file.
        starts: int64 [m], where the parts begin, in bytes from the start of the array.
        size: Bytes of each part.
    """
    whole = _whole(array)
    if not isinstance(whole, mmap.mmap) or not can_ask():
        return
    data = np.frombuffer(whole, np.uint8)
    firsts = starts + (array.ctypes.data - data.ctypes.data)
    if not _reads_of.setdefault(whole, _Reads()).wait_for_disk(lambda: data[firsts[:_PROBED]]):
        return
    pages = firsts - firsts % mmap.PAGESIZE
    lengths = firsts + size - pages
    with contextlib.suppress(OSError):  # Advice that is not taken changes nothing.
        for page, length in zip(pages.tolist(), lengths.tolist(), strict=True):
            whole.madvise(mmap.MADV_WILLNEED, page, length)


class _Reads:
    """Whether reads of a mapped file have to wait for the disk, as far as the last ones show.

    To ask for rows that are in memory would take five times as long as to copy them.
    """

    def __init__(self) -> None:
        self._are_in_memory = False
        self._until_probe = 0
        self._waits = 0

    def wait_for_disk(self, probe: Callable[[], Any]) -> bool:
        """Returns whether the next read will probably have to wait.

        Args:
            probe: Touches a few of the pages that are to be read.
        """
        if self._are_in_memory:
            self._are_in_memory = _waits_for_disk() == self._waits
        elif self._until_probe:
            self._until_probe -= 1
        else:
            self._until_probe = _READS_BETWEEN_PROBES
            self._waits = _waits_for_disk()
            probe()
            self._are_in_memory = _waits_for_disk() == self._waits
        return not self._are_in_memory


def _waits_for_disk() -> int:
    """Returns how often this process has touched a page that was not in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


_reads_of: weakref.WeakKeyDictionary[mmap.mmap, _Reads] = weakref.WeakKeyDictionary()
