"""The same random draws every time a test runs, so that a failure is somebody's change."""

import contextlib
import hashlib
import itertools
import os
import random
from collections.abc import Iterator

_URANDOM = os.urandom


class KeysOfNames:
    """Stands for `os` where keys are asked for; which come next follows from a name.

    The operating system gives them where there is no name, in forked processes, which must not
    repeat each other, and while a test replaces `os.urandom` itself.
    """

    def __init__(self):
        self._name: str | None = None
        self._number = itertools.count()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._name = None

    def __getattr__(self, name: str):
        return getattr(os, name)

    def urandom(self, size: int) -> bytes:
        """Returns `size` bytes."""
        if self._name is None or os.urandom is not _URANDOM:
            return os.urandom(size)
        text = f"{self._name} {next(self._number)}"
        return hashlib.shake_256(text.encode()).digest(size)

    @contextlib.contextmanager
    def under(self, name: str) -> Iterator[None]:
        """Starts keys of this name, and Python's generator, from which Keras takes seeds."""
        before = self._name, self._number, random.getstate()
        self._name, self._number = name, itertools.count()
        random.seed(name)
        try:
            yield
        finally:
            self._name, self._number = before[:2]
            random.setstate(before[2])
