"""Samples that `fit` draws between two steps, with no data set around them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.sampling import PaddedBatch, Source
from tfdp.sampling.arrays import Samples
from tfdp.sampling.mapped import Chunks, can_ask, is_mapped

# Copying so many bytes takes less time than handing them from thread to thread.
_MOST_BYTES = 1 << 22
# Copying less takes less time than an operation.
_WORTH_SHARING_BYTES = 1 << 16


class SmallSamples:
    """Small samples of arrays in memory, and steps on them.

    A data set draws ahead, on threads of its own. That costs most of a millisecond of processor
    time a step (`benchmarks/fit_parts.py`), and only pays where drawing takes longer.

    Args:
        samples: Of which `are_small` is true.

    Attributes:
        spec: Of a sample, of any number of rows.
    """

    def __init__(self, samples: Samples):
        self._samples = samples
        self.spec = samples.rebuild(*samples.signature)
        self._epoch: Any = None
        self._drawn: Iterator[tuple[np.ndarray, ...]] = iter(())
        self._step: Any = None
        self._traced: Any = None

    def take_step(self, step: Any, epoch: Any) -> Any:
        """Draws the next sample, and returns what the step makes of it.

        Args:
            step: A `tf.function` of a `PaddedBatch`. It is traced once, for any number of rows.
            epoch: An object that stands for the epoch; with another one, drawing begins anew.
        """
        if step is not self._step:
            self._step, self._traced = step, step.get_concrete_function(self.spec)
        return self._traced(self.draw(epoch))

    def draw(self, epoch: Any) -> PaddedBatch:
        """Returns the next sample; `epoch` as in `take_step`."""
        if epoch is not self._epoch:
            self._epoch, self._drawn = epoch, self._samples.make()
        return self._samples.rebuild(*map(_tensor, next(self._drawn)))


def _tensor(array: np.ndarray) -> tf.Tensor:
    """Returns a tensor of an array that nobody writes to any more."""
    if array.nbytes < _WORTH_SHARING_BYTES:
        return tf.constant(array)
    # An operation takes the memory of the array over, where `tf.constant` would copy it.
    return tf.raw_ops.Identity(input=array)


def are_small(samples: Samples, arrays: Any) -> bool:
    """Returns whether samples are drawn from these arrays faster than a data set is gone through.

    What lies in files is read by the system meanwhile, which is asked for it some samples ahead.

    Args:
        samples: Of these arrays.
        arrays: Structure of arrays, sources or None.
    """
    leaves = [leaf for leaf in tf.nest.flatten(arrays) if leaf is not None]
    return samples.nbytes <= _MOST_BYTES and all(map(_is_of_memory, leaves))


def _is_of_memory(leaf: Any) -> bool:
    if isinstance(leaf, Source):
        return leaf.is_plain and all(map(_is_of_memory, leaf.columns))
    if isinstance(leaf, (np.ndarray, Chunks)):
        return leaf.dtype.kind in "biuf" and (can_ask() or not is_mapped(leaf))
    return False
