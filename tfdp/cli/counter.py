"""How far a long command is: one line on stderr, where that is a terminal."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TextIO


@contextlib.contextmanager
def counter(what: str, stream: TextIO) -> Iterator[Callable[[int, int], None]]:
    """Gives a function of (done, all), each call of which writes over the line of the last one.

    Nothing is written where the stream is no terminal. The line is gone at the end, after an error
    too, so that what a command prints and what it complains of stand alone.

    Args:
        what: Of what there are so many, a plural.
        stream: Where to write, such as `sys.stderr`.
    """
    width = 0

    def show(done: int, total: int) -> None:
        nonlocal width
        if stream.isatty():
            line = f"{done} of {total} {what}"
            stream.write("\r" + line.ljust(width))
            stream.flush()
            width = max(width, len(line))

    try:
        yield show
    finally:
        if width:
            stream.write("\r" + " " * width + "\r")
            stream.flush()
