"""Some numbers of a long vector, and the bytes that they are sent as."""

import math
import struct
from typing import NamedTuple

import numpy as np

from tfdp.events.arguments import real_number

# What a message begins with: a letter for the format, the length of the vector, how many numbers.
_HEADER = struct.Struct("<cII")
_FORMAT = b"s"
# Vectors are shorter than this, so that an index has 31 bits at most: five bytes of seven.
LONGEST = 2**31
_MOST_BYTES = 5


class BadMessageError(ValueError):
    """Bytes from elsewhere are no message, or say what the receiver does not accept."""


class SparseVector(NamedTuple):
    """Some numbers of a vector.

    Attributes:
        size: Length of the whole vector.
        indices: int64, ascending, each of them once.
        values: float32, one for each index.
    """

    size: int
    indices: np.ndarray
    values: np.ndarray


def number_of(fraction: float, size: int) -> int:
    """Returns how many of `size` numbers are at most this fraction of them.

    Args:
        fraction: In [0, 1]. A decimal fraction of `size` that is whole is not lost to rounding.
        size: Of the whole vector.
    """
    return min(size, math.floor(fraction * size * (1 + 1e-12)))


def check_fraction(name: str, value: float) -> float:
    """Returns the fraction, which is refused outside [0, 1]."""
    return real_number(name, value, minimum=0, inclusive=True, maximum=1)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Returns the indices of the `count` largest numbers, ascending; of equal ones the first.

    Args:
        values: [n], without NaN.
        count: In 0 .. n.
    """
    if count >= len(values):
        return np.arange(len(values))
    if count == 0:
        return np.empty(0, np.int64)
    last = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > last)
    equal = np.flatnonzero(values == last)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


def encode(vector: SparseVector) -> bytes:
    """Returns the vector as bytes: nine, four for each number, and one to five for each index.

    Between two indices there are so many others: this number is written in bytes of seven bits, the
    lowest first, and all but its last byte have the eighth bit. So indices that repeat, or are not
    ascending, cannot be written at all.
    """
    gaps = (np.diff(vector.indices, prepend=-1) - 1).astype(np.int64)
    if gaps.size and gaps.min() < 0:
        raise ValueError("indices must be ascending, each of them once.")
    # One row for each index: its seven bits, and whether more follow.
    rows = gaps[:, None] >> (7 * np.arange(_MOST_BYTES))
    used = rows > 0
    used[:, 0] = True
    more = np.zeros_like(used)
    more[:, :-1] = used[:, 1:]
    written = (rows & 127 | np.where(more, 128, 0)).astype(np.uint8)[used]
    header = _HEADER.pack(_FORMAT, vector.size, len(gaps))
    return header + np.asarray(vector.values, "<f4").tobytes() + written.tobytes()


def decode(message: bytes, size: int | None) -> SparseVector:
    """Returns the vector of a message; its numbers are finite.

    Args:
        message: Bytes from anywhere.
        size: Length that the vector must have; None: all numbers of a vector, of any length.

    Raises:
        BadMessageError: the bytes are not what `encode` writes for finite numbers of such a vector.
    """
    if len(message) < _HEADER.size:
        raise BadMessageError(f"A message has 9 bytes or more. Received: {len(message)} bytes.")
    kind, length, count = _HEADER.unpack_from(message)
    whole = length if size is None else size
    if kind != _FORMAT or length != whole or count > whole or (size is None and count < whole):
        raise BadMessageError(
            f"The message must be of {'all' if size is None else 'some'} numbers of a vector of "
            f"{whole}. Received: format {kind!r}, {count} numbers of {length}."
        )
    start = _HEADER.size + 4 * count
    if len(message) < start + count:
        raise BadMessageError(f"A message of {count} numbers ends after {len(message)} bytes.")
    values = np.frombuffer(message, "<f4", count, _HEADER.size).astype(np.float32)
    gaps = _gaps(np.frombuffer(message, np.uint8, offset=start), count)
    indices = np.cumsum(gaps + 1) - 1
    if count and indices[-1] >= whole:
        raise BadMessageError(f"An index is {indices[-1]}, in a vector of {whole} numbers.")
    if not np.all(np.isfinite(values)):
        raise BadMessageError("The numbers of a message must be finite. Received: NaN or infinity.")
    return SparseVector(whole, indices, values)


def _gaps(written: np.ndarray, count: int) -> np.ndarray:
    """Returns int64 [count] from bytes of seven bits."""
    ends = np.flatnonzero(written < 128)
    if len(ends) != count or (len(written) and written[-1] >= 128):
        raise BadMessageError(f"The message has {len(ends)} whole indices for {count} numbers.")
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)[:count]
    lengths = ends - starts + 1
    if count and lengths.max() > _MOST_BYTES:
        raise BadMessageError("An index of the message has more than 31 bits.")
    last = written[ends]
    if np.any((last == 0) & (lengths > 1)):
        raise BadMessageError("An index of the message is not written in its shortest form.")
    bits = (written & 127).astype(np.int64) << 7 * (
        np.arange(len(written)) - np.repeat(starts, lengths)
    )
    gaps = np.add.reduceat(bits, starts) if count else np.empty(0, np.int64)
    if count and gaps.max() >= LONGEST:
        raise BadMessageError("An index of the message has more than 31 bits.")
    return gaps
