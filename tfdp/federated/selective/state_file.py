"""Named arrays in one file, which is written whole or not at all."""

import os
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfdp.ledger.storage.write import hide_draft, put_in_place

# Of the files. Those of all versions up to it are read.
VERSION = 1
_FORMAT = "format_version"
# What NumPy and zipfile raise where a file is another one: AttributeError where it is one array,
# RuntimeError where it is encrypted, MemoryError where a header names more than there is.
_DAMAGED = (
    zipfile.BadZipFile,
    EOFError,
    ValueError,
    AttributeError,
    TypeError,
    RuntimeError,
    MemoryError,
    OverflowError,
)


def write(path: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the arrays to a file, on the disk when it returns, in place of an earlier one, whose
    permissions it gets.

    One process at a time writes to a path.
    """
    path = pathlib.Path(path)
    # Always the same name, so that a process that is killed over and over leaves one file.
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        hide_draft(unfinished, path)
        with unfinished.open("wb") as file:
            np.savez(file, **{_FORMAT: np.int64(VERSION)}, **dict(arrays))
            file.flush()
            os.fsync(file.fileno())
        put_in_place(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path: Any, ranks: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Returns the arrays of a file.

    Args:
        path: The file, which is read without pickles.
        ranks: Names of the arrays that it must hold, and their numbers of axes.

    Raises:
        ValueError: it holds others, or is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            # `write` packs nothing, and what is packed may be anything, of any size.
            if any(i.compress_type != zipfile.ZIP_STORED for i in file.zip.infolist()):
                raise ValueError("It holds compressed arrays.")
            version = file[_FORMAT] if _FORMAT in file.files else np.array(None)
            is_number = version.shape == () and version.dtype == np.int64
            if is_number and version > VERSION:
                raise ValueError(
                    f"it has format version {version}, and this tfdp reads versions up to "
                    f"{VERSION}. Use the tfdp that wrote it, or a newer one."
                )
            if set(file.files) != {*ranks, _FORMAT}:
                raise ValueError(f"It holds {sorted(file.files)}, not {sorted(ranks)}.")
            if not is_number or version < 1:
                raise ValueError("Its format version is none.")
            arrays = {name: file[name] for name in ranks}
    except _DAMAGED as error:
        raise ValueError(f"{path} is no state of a parameter server: {error}") from error
    for name, rank in ranks.items():
        if arrays[name].ndim != rank:
            raise ValueError(f"{path}: {name} has {arrays[name].ndim} axes, and not {rank}.")
    return arrays
