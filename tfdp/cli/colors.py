"""Colours for what a terminal shows; files and pipes get none."""

import os
import re
from typing import TextIO

_BOLD, _YELLOW, _RED, _PLAIN = "\x1b[1m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
# What begins a line, and how the line is shown. JSON has no such lines.
_LINES = (
    (re.compile(r"^(epsilon = |noise multiplier ).*$", re.MULTILINE), _BOLD),
    (
        re.compile(r"^(not authenticated|not private|no private step|careful: ).*$", re.MULTILINE),
        _YELLOW,
    ),
    (re.compile(r"^(tfdp: |training: does not work).*$", re.MULTILINE), _RED),
)


def wanted(stream: TextIO) -> bool:
    """Returns whether a stream is a terminal that shows colours, and nobody has said no.

    References:
        https://no-color.org for NO_COLOR.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def colored(text: str, stream: TextIO) -> str:
    """Returns `text` with what matters of it in colour where the stream wants any."""
    if wanted(stream):
        for pattern, color in _LINES:
            text = pattern.sub(rf"{color}\g<0>{_PLAIN}", text)
    return text
