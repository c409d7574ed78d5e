"""Files are written beside their place, those of weights sealed, and moved there once they are
whole.

HDF5 has no sums over what it holds, and what Keras does not find in a file was never there for it:
where a name is damaged, or a save in several files was cut short, a file would have weights and no
ledger, or that of an earlier save.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfdp.ledger.errors import LedgerFormatError
from tfdp.ledger.storage.write import fsync, remove_left_over, take_permissions

# Stands behind what HDF5 reads of a file, which other readers pass over.
_SEAL = re.compile(rb"\ntfdp weights ([0-9a-f]{64})\n")
_SEAL_BYTES = 79
# What every file of HDF5 begins with, section II of its format.
_HDF5 = b"\x89HDF\r\n\x1a\n"
_CHUNK_BYTES = 2**20


@contextlib.contextmanager
def written_whole(filepath: Any, sealed: bool = True) -> Iterator[Any]:
    """Yields the path to write to; what is written there is then at `filepath`.

    Guarantees:
        Whoever is killed meanwhile leaves one file as it was. Of several files, whose index is
        `weights.json`, it leaves those that were there, or some without an index. A file that is
        replaced leaves its permissions to the new one.

    Args:
        filepath: As in `keras.Model.save_weights`, or `save`.
        sealed: Whether files of weights get a seal.
    """
    target = Path(os.path.realpath(os.fspath(filepath)))
    if "://" in os.fspath(filepath) or not target.parent.is_dir():
        yield filepath  # Keras copies to other systems, or says what is wrong.
        return
    # Processes of another machine may write to the same folder, and cannot be asked for.
    here = target.with_name(f"{target.name}.{platform.node()}")
    remove_left_over(here)
    draft = target.with_name(f".{here.name}.{os.getpid()}.{uuid.uuid4().hex}.tmp")
    draft.mkdir(0o700)
    try:
        yield draft / target.name
        written = sorted(draft.iterdir(), key=lambda path: (path.suffix == ".json", path.name))
        if written and sealed:
            _seal(_files(written[-1]))
        for path in written:
            fsync(path, os.O_RDWR)
            take_permissions(path, target.with_name(path.name))
        for path in written:
            if path.suffix == ".json":
                target.with_name(path.name).unlink(missing_ok=True)
        for path in written:
            os.replace(path, target.with_name(path.name))
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def check_whole(filepath: Any) -> None:
    """Raises unless files of weights are as `written_whole` left them, or have no seal.

    Files of Keras, and of earlier versions, have none.

    Args:
        filepath: As in `keras.Model.load_weights`.

    Raises:
        LedgerFormatError: they were damaged, or are not those of one save.
    """
    path = Path(os.fspath(filepath))
    if not path.name.endswith(("weights.h5", "weights.json")) or not path.is_file():
        return
    files = _files(path)
    seals = {_split(each)[1] for each in files if each.suffix != ".json"}
    if seals <= {b""}:
        return
    if seals != {_digest(files)}:
        raise LedgerFormatError(
            f"{filepath} was damaged since it was saved, or is one of several files that come from "
            "different saves. Restore all of them from a copy."
        )


def _files(path: Path) -> list[Path]:
    """Returns the files that hold the weights, with the index of several."""
    if path.suffix != ".json":
        return [path]
    try:
        places = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
        several = [[place] if isinstance(place, str) else place for place in places]
        files = [path.with_name(name) for name in sorted({n for names in several for n in names})]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise LedgerFormatError(
            f"{path} is no index of files of weights: {error}. Restore it from a copy."
        ) from error
    for file in files:
        if not file.is_file():
            raise LedgerFormatError(f"{file}, a part of {path}, is missing. Restore it.")
    return [path, *files]


def _split(path: Path) -> tuple[int, bytes]:
    """Returns how many bytes stand before the seal, and what it says: nothing where nothing follows
    these bytes, and "?" where something else does.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        end = _end(file.read(64), size)
        file.seek(end)
        behind = file.read(_SEAL_BYTES + 1)
    if not behind:
        return size, b""
    found = _SEAL.fullmatch(behind)
    return end, b"?" if found is None else found[1]


def _end(superblock: bytes, size: int) -> int:
    """Returns where a file of HDF5 ends by what it says itself; any other ends where it does."""
    if not superblock.startswith(_HDF5):
        return size
    place = {0: 40, 1: 44}.get(superblock[len(_HDF5)], 28)  # By the version of the superblock.
    return min(size, int.from_bytes(superblock[place : place + 8], "little"))


def _digest(files: Sequence[Path]) -> bytes:
    digest = hashlib.sha256()
    for path in files:
        left, _ = _split(path)
        digest.update(b"%d\n" % left)
        with path.open("rb") as file:
            while chunk := file.read(min(left, _CHUNK_BYTES)):
                digest.update(chunk)
                left -= len(chunk)
    return digest.hexdigest().encode()


def _seal(files: Sequence[Path]) -> None:
    seal = b"\ntfdp weights " + _digest(files) + b"\n"
    for path in files:
        if path.suffix != ".json":
            with path.open("ab") as file:
                file.write(seal)
