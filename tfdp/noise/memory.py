"""Memory for random words that is used again once nobody can read it."""

import collections

import numpy as np

# TensorFlow takes an array over without a copy if it begins at a multiple of this.
_ALIGNMENT = 64
# Between these sizes, in bytes, memory is kept: for less it is not worth it, more is too much to
# hold on to.
_KEPT = range(1 << 20, (1 << 25) + 1)

_Given = collections.deque[np.ndarray]  # Its methods are atomic, also where a finalizer calls them.


class _Lease:
    """Memory that arrays look at. It is given back when the last of them is gone.

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


# What was given back last: a step asks for as much as the step before. The operating system zeroes
# new memory page by page, which takes nearly as long as to draw the words that go there.
_given: _Given = collections.deque(maxlen=2)


def words(size: int) -> np.ndarray:
    """Returns an array of uint32 that is aligned as TensorFlow wants it; what is in it is left over
    from earlier draws, or from anything.

    Guarantees:
        No other array that is still reachable, from Python or from a tensor, shares its memory.
    """
    return np.asarray(_Lease(size, _given))
