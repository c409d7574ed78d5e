"""Examples that are read one by one, where a sample needs them."""

import copy
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.events.arguments import positive_integer
from tfdp.sampling.mapped import Chunks, ask_for, mapped, memory_of, native, take, taken
from tfdp.sampling.pipelines import check_elements

# The length of what has no end is said to be 2^63 - 1.
_NO_END = 1 << 62


class SourceError(ValueError):
    """A source cannot give what it gave before."""


class Source:
    """Examples of anything that has a length and can be read by position: `fit(Source(data))`.

    `data` may be an array, a memory map, an HDF5 data set or an ArrayRecord. It may be a Grain
    `RandomAccessDataSource` or `MapDataset`, a data set of Hugging Face, a `keras.utils.PyDataset`
    of single examples, a list, or a class of your own. A tuple is (x,), (x, y) or (x, y,
    sample_weight), of such. So is an example that is a tuple; any other is x. Tuples and mappings
    are structures, and a list is one array. Where there is `__getitems__`, it is given all
    positions at once, and must not let one example change another; of data sets of Hugging Face
    with a format or a transform, which may, examples are read one by one. A Series or DataFrame of
    pandas is read by position, as what its `to_numpy` returns.

    A record must stand at one position, and alone. Data sets of Grain that repeat, batch, cut up or
    filter are refused. Of other data nobody sees it: a list that holds a record twice has two
    records.

    Guarantees:
        A record is one example. Which are read follows the draw of the sample alone, so that a
        sample of a source holds what the same sample of arrays holds, bit for bit. `map` is given
        one example, and nothing of the others; what it keeps between calls is not kept from it.
        With one worker data[i] and `map` are called by one thread at a time, and an example is
        copied before the next one is read: data may use memory, or the place in a file, again.

    Edge cases:
        Every example has the structure, shapes and dtypes of the first. One that differs, or cannot
        be read, ends the training with an error. Only what was sampled is read, so the error also
        tells that this example was in a sample: keep it to yourself, or call `check` before. A
        source whose length changes is refused.

    Args:
        data: As above.
        batch_size: (Expected) examples of a step, where `fit` is told none.
        map: A function of one example, which returns the one to train on: decoding, augmentation.
        workers: Threads that read and map. With several, data[i] and `map` must stand to be called
            by several threads at once.
        seeded: Whether `map` also takes a secret seed, int64 [2], drawn anew each time.

    Raises:
        TypeError: `data` has no length or no positions, `map` is no function, or an example holds
            something else than numbers.
        ValueError: there are no examples, or examples without end, the parts of a tuple differ in
            their lengths, or a data set of Grain repeats, batches, cuts up or filters. Or several
            examples would be read at once, and are given in the same memory.

    Example:
        >>> x, y = np.zeros([100, 3], np.float32), np.arange(100)
        >>> source = Source((x, y), map=lambda example: (example[0] + 1, example[1]))
        >>> [leaf.tolist() for leaf in source.read(np.array([7]))]
        [[[1.0, 1.0, 1.0]], [7]]
    """

    def __init__(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        map: Callable[..., Any] | None = None,
        workers: int = 1,
        seeded: bool = False,
    ):
        if map is not None and not callable(map):
            raise TypeError(f"map must be a function of one example. Received: map={map!r}.")
        if not isinstance(seeded, bool) or (seeded and map is None):
            raise TypeError(f"seeded must be a bool, and needs a map. Received: seeded={seeded!r}.")
        self.batch_size = None if batch_size is None else positive_integer("batch_size", batch_size)
        self.workers = positive_integer("workers", workers)
        self.seeded = seeded
        self._map = map
        self._structure = _opaque(data)
        parts = [p.data for p in tf.nest.flatten(self._structure) if p is not None]
        self._columns = [_by_position(part) for part in parts]
        for column in self._columns:
            if not hasattr(column, "__len__") or not hasattr(column, "__getitem__"):
                raise TypeError(
                    "A source needs a length and positions: len(data) and data[i]. Received: "
                    f"{type(column).__name__}."
                )
        lengths = sorted({len(column) for column in self._columns})
        if len(lengths) != 1 or not lengths[0]:
            raise ValueError(
                "The parts of a source must have one length, of at least one example. Received "
                f"lengths: {lengths}."
            )
        if lengths[0] >= _NO_END:
            raise ValueError(
                "A source must have an end: how many records there are says what a sample costs. "
                f"Leave out what repeats them. Received length: {lengths[0]}."
            )
        self._sizes = [_size(column) for column in self._columns]
        self._start, self._length = 0, lengths[0]
        self._floats: Any = None
        self._is_plain = map is None and all(_is_array(column) for column in self._columns)
        self._reading = threading.RLock()
        # The first example says what all others are.
        self._first = self._example(next(self._raw(np.array([0]))), np.zeros(2, np.int64), 0)
        if len(self) > 1:
            self._check_memory()
        for leaf in tf.nest.flatten(self._first):
            if leaf is not None and leaf.dtype.kind in "OSUMmV":
                raise TypeError(
                    "An example must hold numbers. Let map decode or encode it. Received: "
                    f"{leaf.dtype}."
                )

    def __len__(self) -> int:
        return self._length

    @property
    def example(self) -> tuple[Any, Any, Any]:
        """(x, y, sample_weight) of zeros, [1, ...], in the shapes and dtypes of every example."""
        return tf.nest.map_structure(
            lambda leaf: None if leaf is None else np.zeros((1, *leaf.shape), self._dtype(leaf)),
            self._first,
        )

    @property
    def columns(self) -> list[Any]:
        """What examples are read from: arrays and all else that has a length and positions."""
        return list(self._columns)

    def with_floats(self, dtype: Any) -> "Source":
        """Returns the source with its floating-point numbers cast, as `fit` casts those of arrays.

        Args:
            dtype: A floating-point dtype.
        """
        changed = copy.copy(self)
        changed._floats = native(np.dtype(dtype))
        return changed

    def part(self, start: int, end: int) -> "Source":
        """Returns the source of the examples start .. end - 1.

        Args:
            start: The first.
            end: One beyond the last.
        """
        changed = copy.copy(self)
        changed._start, changed._length = self._start + start, end - start
        return changed

    @property
    def is_plain(self) -> bool:
        """Whether examples are rows of arrays, or of what stands for them, as they are."""
        return self._is_plain

    def ask_for(self, rows: np.ndarray) -> None:
        """Asks the system for examples that lie in files and will be read soon.

        Args:
            rows: int64 [n], positions.

        Raises:
            SourceError: the length has changed.
        """
        self._check_sizes()
        for column in self._columns:
            ask_for(column, rows + self._start)

    def check(self) -> None:
        """Reads every example once, in order: an error then tells nothing about a sample.

        Raises:
            SourceError: one is not like the first; says which. What cannot be read raises its own.
        """
        for start in range(0, len(self), 1024):
            rows = np.arange(start, min(start + 1024, len(self)))
            self.read(rows, np.zeros([len(rows), 2], np.int64))

    def read(
        self,
        rows: np.ndarray,
        seeds: np.ndarray | None = None,
        pool: ThreadPoolExecutor | None = None,
        room: int | None = None,
    ) -> list[np.ndarray]:
        """Returns the leaves of `example`, without None, of some examples: each [room, ...], where
        zeros follow the examples.

        Args:
            rows: int64 [n], positions.
            seeds: int64 [n, 2], for a `map` that is seeded.
            pool: Threads among which the examples are divided; else this one reads them.
            room: At least n, which is the default.

        Raises:
            SourceError: the length has changed, or an example is not like the first.
        """
        self._check_sizes()
        if seeds is None:
            if self.seeded:
                raise ValueError("A seeded map needs seeds. Received: seeds=None.")
            seeds = np.zeros([len(rows), 2], np.int64)
        room = len(rows) if room is None else room
        expected = [leaf for leaf in tf.nest.flatten(self._first) if leaf is not None]
        found = [memory_of((room, *leaf.shape), self._dtype(leaf)) for leaf in expected]
        pieces = 1 if pool is None else max(1, min(self.workers, len(rows)))
        places = zip(*(np.array_split(leaf[: len(rows)], pieces) for leaf in found), strict=True)
        shares = zip(
            np.array_split(rows, pieces), np.array_split(seeds, pieces), places, strict=True
        )
        if pool is None:
            with self._reading:
                for share in shares:
                    self._read(*share, expected)
        else:
            for part in [pool.submit(self._read, *share, expected) for share in shares]:
                part.result()
        for leaf in found:
            leaf[len(rows) :] = 0
        return found

    def _check_memory(self) -> None:
        """Refuses data that give all examples in one place, if several are read at once: one record
        would then be in a sample several times, instead of others.
        """
        pairs: list[tuple[str, list[Any]]] = []
        for column in self._columns:
            if _gives_several(column):
                pairs.append((type(column).__name__, list(column.__getitems__([0, 1]))))
            elif self.workers > 1 and not (_is_read_together(column) or type(column) is list):
                pairs.append((type(column).__name__, [column[0], column[1]]))
        if self.workers > 1 and self._map is not None:
            raws = enumerate(self._raw(np.arange(2)))
            seed = np.zeros(2, np.int64)
            pairs.append(("map", [self._example(raw, seed, row) for row, raw in raws]))
        for name, examples in pairs:
            if len(examples) == 2 and _addresses(examples[0]) & _addresses(examples[1]):
                raise ValueError(
                    f"{name} gives one example after the other in the same memory, so that several "
                    "that are read at once would all be the last one. Let it return copies, or "
                    "take workers=1 and no __getitems__."
                )

    def _check_sizes(self) -> None:
        if [_size(column) for column in self._columns] != self._sizes:
            raise SourceError(
                "The data of a source changed their size while they were in use: which record is "
                "which, and how many there are, must stay as it was. Make a new Source, and train "
                "on."
            )

    def _read(
        self,
        rows: np.ndarray,
        seeds: np.ndarray,
        places: Sequence[np.ndarray],
        expected: list[np.ndarray],
    ) -> None:
        """Writes the leaves of examples to places of as many rows."""
        rows = rows + self._start
        if self._is_plain and len(rows):
            for column, place in zip(self._columns, places, strict=True):
                with _silent_casts():
                    _take(column, rows, place)
            return
        for index, raw in enumerate(self._raw(rows)):
            row = int(rows[index])
            example = self._example(raw, seeds[index], row)
            try:
                tf.nest.assert_same_structure(self._first, example)
            except (TypeError, ValueError) as error:
                raise SourceError(f"Example {row} has another structure than the first.") from error
            leaves = [leaf for leaf in tf.nest.flatten(example) if leaf is not None]
            forms = [(leaf.shape, leaf.dtype) for leaf in leaves]
            wanted = [(leaf.shape, leaf.dtype) for leaf in expected]
            if forms != wanted:
                raise SourceError(
                    f"Example {row} differs in shape or dtype from the first: {_words(forms)} "
                    f"instead of {_words(wanted)}. Let map make them alike."
                )
            for place, leaf in zip(places, leaves, strict=True):
                with _silent_casts():
                    place[index] = leaf

    def _dtype(self, leaf: np.ndarray) -> np.dtype:
        is_float = np.issubdtype(leaf.dtype, np.floating)
        return self._floats if is_float and self._floats is not None else native(leaf.dtype)

    def _raw(self, rows: np.ndarray) -> Iterator[Any]:
        """Yields examples as they are in the data, which may use the memory of one again for the
        next.
        """
        if not len(rows):
            return
        together = [
            _rows_of(column, rows) if _is_read_together(column) else None
            for column in self._columns
        ]
        if any(found is not None and len(found) != len(rows) for found in together):
            raise SourceError("Of the examples that were asked for, others came back.")
        for index, row in enumerate(rows.tolist()):
            pairs = zip(self._columns, together, strict=True)
            yield self._pack([c[row] if found is None else found[index] for c, found in pairs])

    def _pack(self, values: list[Any]) -> Any:
        """Returns an example from what its columns hold."""
        remaining = iter(values)
        flat = tf.nest.flatten(self._structure)
        flat = [None if part is None else _Column(next(remaining)) for part in flat]
        return tf.nest.map_structure(
            lambda part: None if part is None else part.data,
            tf.nest.pack_sequence_as(self._structure, flat),
        )

    def _example(self, raw: Any, seed: np.ndarray, row: int) -> tuple[Any, Any, Any]:
        """Returns (x, y, sample_weight) of arrays."""
        value = raw
        if self._map is not None:
            value = self._map(value, seed) if self.seeded else self._map(value)
        try:
            value = _arrays(value)
        except (TypeError, ValueError) as error:
            raise SourceError(f"Example {row} holds something else than arrays.") from error
        if value is None:
            raise SourceError(
                f"Example {row} is None. Leave it out of the data, or let map return something."
            )
        if not isinstance(value, tuple):
            return value, None, None
        if not 1 <= len(value) <= 3 or value[0] is None:
            raise SourceError(
                "An example that is a tuple must be (x,), (x, y) or (x, y, sample_weight). "
                f"Received one of {len(value)} parts, example {row}."
            )
        return (*value, None, None)[:3]


class _Column:
    """Keeps what is in a structure from being taken for a structure itself."""

    def __init__(self, data: Any):
        self.data = data


def _opaque(data: Any) -> Any:
    """Returns the structure of tuples and mappings, with all that they hold as columns."""
    if isinstance(data, tuple):
        return tuple(_opaque(part) for part in data)
    if isinstance(data, Mapping):
        return {key: _opaque(part) for key, part in data.items()}
    return None if data is None else _Column(data)


def _arrays(value: Any) -> Any:
    """Returns an example with arrays in place of numbers, tensors and lists."""
    if isinstance(value, tuple):
        return tuple(_arrays(part) for part in value)
    if isinstance(value, Mapping):
        return {key: _arrays(part) for key, part in value.items()}
    return None if value is None else np.asarray(value)


def _addresses(example: Any) -> set[int]:
    """Returns where the arrays and buffers of an example begin in memory."""
    if isinstance(example, Mapping):
        example = list(example.values())
    if isinstance(example, (tuple, list)):
        return set().union(*map(_addresses, example))
    if isinstance(example, (bytearray, memoryview)):
        example = np.frombuffer(example, np.uint8)
    is_somewhere = isinstance(example, np.ndarray) and example.size
    return {example.ctypes.data} if is_somewhere else set()


def _by_position(part: Any) -> Any:
    """Returns a part of the data as something whose [i] is what stands in place i."""
    if _is_hdf5(part):
        return mapped(part)
    check_elements(part)
    if not hasattr(part, "iloc"):
        return part
    # What pandas has under [i] is the row that is called i.
    if not hasattr(part, "to_numpy"):
        raise TypeError(
            "Under [i] these data may have another row than the one in place i. Pass an array of "
            f"them. Received: {type(part).__name__}."
        )
    return part.to_numpy()


def _silent_casts() -> np.errstate:
    """Returns a context in which no warning or error tells that a number does not fit: its record
    would be known to be in the sample. The settings of NumPy are each thread's own.
    """
    return np.errstate(all="ignore")


def _is_array(column: Any) -> bool:
    if isinstance(column, np.ndarray):
        return column.dtype.kind != "O"  # Of objects each is an example, and looked at.
    return isinstance(column, Chunks) or _is_hdf5(column)


def _is_hdf5(column: Any) -> bool:
    return type(column).__module__.split(".")[0] == "h5py"


def _is_read_together(column: Any) -> bool:
    """Returns whether `_rows_of` reads all rows of a sample at once."""
    is_array = isinstance(column, (np.ndarray, Chunks)) or _is_hdf5(column)
    return is_array or _gives_several(column)


def _gives_several(column: Any) -> bool:
    """Returns whether data give several examples at once, each as they would give it alone.

    A data set of Hugging Face with a format or a transform makes one array, or one call, of all: a
    number that is missing in one example would change the dtype of the others, and a transform may
    pad or normalize them to each other. Those are read one by one.
    """
    form = getattr(column, "format", None)
    is_formatted = isinstance(form, Mapping) and form.get("type") is not None
    return hasattr(column, "__getitems__") and not is_formatted


def _take(column: Any, rows: np.ndarray, place: np.ndarray) -> None:
    """Writes rows of an array, or of what stands for one, to a place."""
    if isinstance(column, np.ndarray) and column.dtype == place.dtype:
        take(np.asarray(column), rows, place)
    else:
        place[...] = _rows_of(column, rows)


def _rows_of(column: Any, rows: np.ndarray) -> Any:
    """Returns what stands at some positions, of what `_is_read_together`."""
    if isinstance(column, np.ndarray):
        return taken(np.asarray(column), rows)
    if isinstance(column, Chunks):
        return column.take(rows)
    if _is_hdf5(column):  # It takes ascending positions only.
        distinct, places = np.unique(rows, return_inverse=True)
        return column[distinct][places]
    return column.__getitems__(rows.tolist())


def _size(column: Any) -> tuple[int, int | None]:
    """Returns the length, and the bytes of the file beneath a memory map: to read beyond the end of
    one that was cut would end the process.
    """
    array = column.file if isinstance(column, Chunks) else column
    file = getattr(array, "filename", None) if isinstance(array, np.memmap) else None
    return len(column), None if file is None else os.path.getsize(file)


def _words(forms: list[tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{dtype} {list(shape)}" for shape, dtype in forms)
