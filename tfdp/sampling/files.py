"""Files whose examples can be read by position: TFRecords, and what a data set was written to."""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.sampling.pipelines import check_elements
from tfdp.sampling.source import SourceError

# Around the data of a record: its length and a check of that before, a check of the data after.
_BEFORE, _AFTER = 12, 4
_SPEC = "examples.json"
_ROWS = 1024


class TFRecords:
    """The records of TFRecord files, by position: `Source(TFRecords(paths), map=parse)`.

    The files are read through once, which checks the sums of all records and finds where they are;
    with `index`, that is written down for the next time.

    Args:
        paths: Of uncompressed TFRecord files, in the order of the records; one, or several.
        index: Of the file that says where the records are. Where there is none, it is written.

    Raises:
        SourceError: a file is damaged, or is not what `index` describes, or the index cannot be
            written.
        ValueError: there is no file, or one is there twice: its records would be, too.

    Edge cases:
        A record whose file was cut since then, or that is not where it was found, cannot be read:
        `SourceError`. The sum of a record is not checked again.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        index: str | os.PathLike[str] | None = None,
    ):
        several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not several:
            raise ValueError(f"There must be at least one file. Received: paths={paths!r}.")
        self._paths = [pathlib.Path(path) for path in several]
        files = {(found.st_dev, found.st_ino) for found in map(os.stat, self._paths)}
        if len(files) != len(self._paths):
            raise ValueError(
                "Every record must be there once, and one of the files is given twice. Received: "
                f"paths={list(map(str, self._paths))}."
            )
        self._files = [path.open("rb") for path in self._paths]
        if index is None or not pathlib.Path(index).exists():
            lengths = [_lengths(path) for path in self._paths]
            if index is not None:
                _write_index(pathlib.Path(index), self._described(), lengths)
        else:
            lengths = _read_index(pathlib.Path(index), self._described())
        self._lengths = np.concatenate(lengths)
        self._file_of = np.repeat(np.arange(len(lengths)), [len(part) for part in lengths])
        self._starts = np.concatenate(
            [np.cumsum(p + _BEFORE + _AFTER) - p - _AFTER for p in lengths]
        )

    def _described(self) -> list[list[int]]:
        """Returns the bytes of each file, and when it was written."""
        found = [path.stat() for path in self._paths]
        return [[each.st_size, each.st_mtime_ns] for each in found]

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, position: int) -> bytes:
        """Returns the data of a record."""
        if not 0 <= position < len(self):
            raise IndexError(f"There are {len(self)} records. Received: {position}.")
        file = self._file_of[position]
        length, start = int(self._lengths[position]), int(self._starts[position])
        data = os.pread(self._files[file].fileno(), _BEFORE + length, start - _BEFORE)
        if len(data) != _BEFORE + length:
            raise SourceError(f"{self._paths[file]} was cut after it was read through.")
        # Other files may have the sizes and times that the index holds.
        if int.from_bytes(data[:8], "little") != length:
            raise SourceError(
                f"{self._paths[file]} has other records than those that were found. Delete the "
                "index."
            )
        return data[_BEFORE:]


def memory_map(dataset: tf.data.Dataset, folder: str | os.PathLike[str]) -> Any:
    """Returns the elements of a data set as memory maps: `Source(memory_map(dataset, folder))`.

    Where there is no such folder, the data set is gone through once and written there. Later it is
    only opened; it is not noticed if the data set would give others by then, so delete the folder
    when it does.

    Args:
        dataset: Of single examples, each a record, of known cardinality and fixed shapes. A batch,
            a window or a cut of several examples into one would be one record, and what is
            repeated would be as many records; data sets with such steps are refused. Batches that
            `unbatch` takes apart again are not. What functions make is not seen: of a batch in
            between they must keep the records apart, and of a record `flat_map` must make one
            element.
        folder: Where they are, in a NumPy file for each part of an element.

    Returns:
        The structure of an element, of NumPy memory maps, [cardinality, ...].

    Raises:
        ValueError: the number of elements or a shape is not known before they are read, a part is
            no number, or the data set repeats, batches, cuts up or has `take_while` in it.
        SourceError: there are more or fewer elements than the data set says, or the folder holds
            others than this data set's, by number, structure, shape or dtype, or lacks a file, or
            cannot be written.

    Example:
        >>> data = tf.data.Dataset.range(5).map(lambda i: (tf.fill([2], i), i % 2))
        >>> x, y = memory_map(data, tempfile.mkdtemp() + "/examples")
        >>> x.tolist(), y.tolist()
        ([[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]], [0, 1, 0, 1, 0])
    """
    folder = pathlib.Path(folder)
    check_elements(dataset)
    specs = tf.nest.flatten(dataset.element_spec)
    for spec in specs:
        fixed = isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
        if not fixed or np.dtype(spec.dtype.as_numpy_dtype).kind not in "biuf":
            raise ValueError(
                "Every part of an element must hold numbers, in a shape that is known. Pad, decode "
                f"or cast it with map. Received: {spec}."
            )
    size = int(dataset.cardinality())
    if size <= 0:
        raise ValueError(
            "The number of elements must be known, and at least one. Where it is not, as after "
            "unbatch (Keras' image_dataset_from_directory(..., batch_size=None) needs none), say "
            "it: dataset.apply(tf.data.experimental.assert_cardinality(number)). Received "
            f"cardinality: {size}."
        )
    described = {
        "version": 1,
        "size": size,
        "element": str(tf.nest.map_structure(lambda spec: 0, dataset.element_spec)),
        "parts": [[spec.dtype.name, spec.shape.as_list()] for spec in specs],
    }
    if not folder.exists():
        _write_elements(dataset, folder, described)
    try:
        found = json.loads((folder / _SPEC).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{folder} holds something else than elements of a data set.") from error
    if found != described:
        raise SourceError(
            f"{folder} holds the elements of another data set: {found} instead of {described}. "
            "Delete it, or take another folder."
        )
    try:
        maps = [np.load(folder / f"{part}.npy", mmap_mode="r") for part in range(len(specs))]
    except (OSError, ValueError, EOFError, TypeError, OverflowError, tokenize.TokenError) as error:
        raise SourceError(f"{folder} has lost a file, or one is damaged. Delete it.") from error
    forms = [[each.dtype, each.shape] for each in maps]
    if forms != [[np.dtype(name), (size, *shape)] for name, shape in described["parts"]]:
        raise SourceError(f"A file in {folder} holds something else than was written. Delete it.")
    return tf.nest.pack_sequence_as(dataset.element_spec, maps)


def _write_elements(
    dataset: tf.data.Dataset, folder: pathlib.Path, described: dict[str, Any]
) -> None:
    size, written = described["size"], 0
    with _errors_of_writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # What is there under its name is whole.
        draft = pathlib.Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
    try:
        with _errors_of_writing(folder), contextlib.ExitStack() as stack:
            # Where the disk is full, a write to a memory map would end the process.
            files = []
            for part, (dtype, shape) in enumerate(described["parts"]):
                files.append(stack.enter_context((draft / f"{part}.npy").open("wb")))
                header = np.lib.format.header_data_from_array_1_0(np.empty(0, dtype))
                header["shape"] = (size, *map(int, shape))
                np.lib.format.write_array_header_1_0(files[part], header)
            for batch in dataset.batch(_ROWS).prefetch(1).as_numpy_iterator():
                parts = tf.nest.flatten(batch)
                written += len(parts[0])
                if written <= size:
                    for file, array in zip(files, parts, strict=True):
                        file.write(array.tobytes())
            if written != size:
                raise SourceError(
                    f"There are {written} elements, and not {size} as the data set says."
                )
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        with _errors_of_writing(folder):
            (draft / _SPEC).write_text(json.dumps(described), encoding="utf-8")
        try:
            os.rename(draft, folder)
        except OSError:
            if not folder.exists():
                raise
            # Somebody else was faster: what is there is looked at like any other.
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _lengths(path: pathlib.Path) -> np.ndarray:
    """Returns int64 [records], the bytes of each record's data; TensorFlow checks its sums."""
    try:
        records = tf.data.TFRecordDataset(str(path)).map(tf.strings.length).as_numpy_iterator()
        lengths = np.fromiter(records, np.int64)
    except tf.errors.DataLossError as error:
        raise SourceError(
            f"{path} is damaged, or is no uncompressed TFRecord file: {error.message}."
        ) from error
    if _bytes(lengths) != path.stat().st_size:
        raise SourceError(f"{path} is compressed, or changed while it was read.")
    return lengths


def _write_index(path: pathlib.Path, described: list[list[int]], lengths: list[np.ndarray]) -> None:
    found = {"version": 1, "files": described, "lengths": [part.tolist() for part in lengths]}
    with _errors_of_writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=path.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(found, file)
            os.replace(draft, path)
        except OSError:
            os.unlink(draft)
            raise


@contextlib.contextmanager
def _errors_of_writing(path: pathlib.Path) -> Iterator[None]:
    """Names what cannot be written: a full disk says only that it is full."""
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"{path} cannot be written: {error}. Free the disk, or give another place."
        ) from error


def _read_index(path: pathlib.Path, described: list[list[int]]) -> list[np.ndarray]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        version, files, lengths = (found[name] for name in ("version", "files", "lengths"))
        # Numbers that are no integers, or none at all, have another dtype.
        parts = [np.array(part) if part else np.zeros([0], np.int64) for part in lengths]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise SourceError(f"{path} is no index of TFRecord files. Delete it.") from error
    if version != 1 or files != described:
        raise SourceError(f"{path} is the index of other files, or they changed. Delete it.")
    are_lengths = all(p.dtype == np.int64 and p.ndim == 1 and np.all(p >= 0) for p in parts)
    if not are_lengths or list(map(_bytes, parts)) != [size for size, _ in files]:
        raise SourceError(f"{path} is damaged. Delete it.")
    return parts


def _bytes(lengths: np.ndarray) -> int:
    """Returns the size of a file of such records."""
    return int(np.sum(lengths + _BEFORE + _AFTER))
