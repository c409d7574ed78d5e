"""A lock between those who write to a file, which the file's own process cannot lose.

SQLite keeps other processes out by POSIX locks. A process gives up all of those that it has on a
file as soon as it closes the file anywhere, such as in a thread that makes a copy of it. The locks
of Linux that belong to an open file (`fcntl(2)`, "Open file description locks") stay.
"""

import contextlib
import errno
import os
import sqlite3
import struct
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl

    # Others that have such locks describe them to the system in another way.
    _is_known = sys.platform == "linux" and struct.calcsize("P") == 8
    _SET: int | None = getattr(fcntl, "F_OFD_SETLK", None) if _is_known else None
except ImportError:  # There is none on Windows, where SQLite's own locks stay.
    _SET = None

# One byte behind those that SQLite locks. It may hold data, which a lock leaves alone.
_BYTE = 0x4000_1000
_LONGEST_SLEEP = 0.01


class WritersLock:
    """Held by one open file at a time, in this process and others.

    Edge cases:
        Systems and kernels without such locks have SQLite's locks only.

    Args:
        path: A file that exists.
        patience: Seconds to wait for another one that holds it.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, patience: float):
        self._patience = patience
        self._descriptor: int | None = None
        if _SET is not None:
            self._descriptor = os.open(path, os.O_RDWR)
            self._end = weakref.finalize(self, os.close, self._descriptor)
            self._end.atexit = False  # Ledgers are settled then.
            self._leave_where_unknown()

    def _leave_where_unknown(self) -> None:
        try:
            self._set(fcntl.F_UNLCK)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.close()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock meanwhile.

        Raises:
            sqlite3.OperationalError: "database is locked", as SQLite says it: another one holds it
                for too long.
        """
        if self._descriptor is None:
            yield
            return
        waited, pause = 0.0, 0.0005
        while not self._take():
            if waited > self._patience:
                raise sqlite3.OperationalError("database is locked")
            time.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, _LONGEST_SLEEP)
        try:
            yield
        finally:
            if self._descriptor is not None:  # Closing it has given it up.
                self._set(fcntl.F_UNLCK)

    def _take(self) -> bool:
        try:
            self._set(fcntl.F_WRLCK)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        return True

    def _set(self, kind: int) -> None:
        # struct flock: type, whence, start, length, process, which must be zero here.
        lock = struct.pack("@hhqqi4x", kind, os.SEEK_SET, _BYTE, 1, 0)
        fcntl.fcntl(self._descriptor, _SET, lock)  # type: ignore[arg-type]

    def close(self) -> None:
        """Gives the lock up and closes the file."""
        if self._descriptor is not None:
            self._end()
            self._descriptor = None
