"""Memory for random words that is used again once nobody can read it."""

import collections

import numpy as np

# TensorFlow takes an array over without a copy if the array begins at a multiple of this address.
_ALIGNMENT = 64
# Memory of a size in this range, in bytes, is kept. Keeping less is not worth the effort, and more
# would be too much to hold on to.
_KEPT = range(1 << 20, (1 << 25) + 1)

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
    while given:
        try:
            memory = given.pop()
        except IndexError:  # Another thread was faster.
            break
        if memory.nbytes == nbytes:
            return memory
    return np.empty(nbytes, np.uint8)


# The memory that was given back last. It is kept because a step asks for as much as the step
# before, and because the operating system zeroes new memory page by page, which takes nearly as
# long as drawing the words.
_given: _Given = collections.deque(maxlen=2)


def words(size: int) -> np.ndarray:
    """Returns an array of uint32 that is aligned as TensorFlow wants it, with arbitrary contents.

    Guarantees:
        No other array that is still reachable, from Python or from a tensor, shares its memory.
    """
    return np.asarray(_Lease(size, _given))
