"""Memory for what a step needs, which is used again once nobody can read it."""

import collections
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

# TensorFlow takes an array over without a copy if the array begins at a multiple of this address.
_ALIGNMENT = 64
# Memory of a size in this range, in bytes, is kept. Keeping less is not worth the effort, and more
# would be too much to hold on to. The most is what noise of 44 million parameters is made of.
_KEPT = range(1 << 16, (1 << 28) + 1)

_Given = collections.deque[np.ndarray]  # Its methods are atomic, even in finalizers.


class _Lease:
    """Memory that arrays are views of. It is given back when the last of these arrays is gone.

    Whatever NumPy or TensorFlow derive from an array (slices, views, tensors) holds on to this
    object, not only to the array: that is what `__array_interface__` is for.
    """

    def __init__(self, size: int, given: _Given):
        self._memory, self._given = _take(size, given), given
        address = self._memory.ctypes.data
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": np.dtype(np.uint32).str,
            "data": (address + -address % _ALIGNMENT, False),
        }

    def __del__(self):
        if self._memory.nbytes in _KEPT:
            self._given.append(self._memory)


def _take(size: int, given: _Given) -> np.ndarray:
    nbytes = 4 * size + _ALIGNMENT
    for _ in range(len(given)):
        try:
            memory = given.popleft()
        except IndexError:  # Another thread was faster.
            break
        # Samples differ a little in their sizes, so memory may be an eighth larger than asked for.
        if nbytes <= memory.nbytes <= nbytes + nbytes // 8:
            return memory
        given.append(memory)
    return np.empty(nbytes, np.uint8)


# The memory that was given back last, of random words and of samples. It is kept because a step
# asks for as much as the step before. New memory would be zeroed by the operating system page by
# page, which takes longer than drawing the words or copying the rows.
_given: _Given = collections.deque(maxlen=2)
_given_of_samples: _Given = collections.deque(maxlen=2)


def words(size: int) -> np.ndarray:
    """Returns an array of uint32 that is aligned as TensorFlow wants it, with arbitrary contents.

    Guarantees:
        No other array that is still reachable, from Python or from a tensor, shares its memory.
    """
    return np.asarray(_Lease(size, _given))


def rows(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Returns an array for a part of a sample, with arbitrary contents, with the guarantees of
    `words`.

    Args:
        shape: Integers.
        dtype: Of numbers or truth values.
    """
    dtype = np.dtype(dtype)
    nbytes = _nbytes(shape, dtype)
    lease = np.asarray(_Lease(-(-nbytes // 4), _given_of_samples))
    return lease.view(np.uint8)[:nbytes].view(dtype).reshape(shape)


def is_kept(shape: Sequence[int], dtype: Any) -> bool:
    """Returns whether memory of this size is used again; arguments as those of `rows`."""
    return _nbytes(shape, np.dtype(dtype)) in _KEPT


def _nbytes(shape: Sequence[int], dtype: np.dtype) -> int:
    return math.prod(shape) * dtype.itemsize
