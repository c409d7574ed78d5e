"""Samples that `fit` draws between two steps, with no data set around them."""

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.sampling import Source
from tfdp.sampling.arrays import Samples
from tfdp.sampling.mapped import Chunks, can_ask, is_mapped

# Copying so many bytes takes less time than handing them from thread to thread.
_MOST_BYTES = 1 << 22
# For so long a call takes steps that nobody looks at. Keras draws its progress bar as often.
_SECONDS_OF_CALL = 0.05

Draw = Callable[[], tuple[np.ndarray, ...]]


class StepLoop:
    """A training step in a loop: one call takes any number of steps, each on a sample of its own.

    To call a graph is a good part of what the step of a small model takes.

    Args:
        step: A `tf.function` of a `PaddedBatch`. It is traced once for each form of samples,
            whatever their number of rows.
        remembering: Makes a context that keeps what is raised in it: of an error inside a graph,
            TensorFlow hands on the text.
    """

    def __init__(self, step: Any, remembering: Callable[[], AbstractContextManager[Any]]):
        self._step, self._remembering = step, remembering
        self._loops: dict[Any, Any] = {}  # By the traced step.
        self._draw: Draw | None = None

    def traced(self, samples: Samples) -> Any:
        """Returns the loop for samples of this form, which holds on to none of them."""
        step = self._step.get_concrete_function(samples.rebuild(*samples.signature))
        if step not in self._loops:
            self._loops[step] = self._loop_of(step, samples)
        return self._loops[step]

    def run(self, traced: Any, draw: Draw, count: int) -> Any:
        """Draws a sample and takes a step on it, so many times; returns what the last step does.

        Args:
            traced: For samples of this form.
            draw: Returns the arrays of the next sample, on a thread of TensorFlow.
            count: At least 1.
        """
        self._draw = draw
        try:
            return traced(tf.constant(count))
        finally:
            self._draw = None

    def _loop_of(self, step: Any, samples: Samples) -> Any:
        # TensorFlow never forgets a function of Python that is part of a graph.
        draw = _weakly(self._drawn)
        logs = step.structured_outputs
        outputs = _tensors(logs)

        def one(number, *_):
            parts = tf.numpy_function(draw, [], [form.dtype for form in samples.signature])
            for part, form in zip(parts, samples.signature, strict=True):
                part.set_shape(form.shape)
            return [number + 1, *_tensors(step(samples.rebuild(*parts)))]

        @tf.function(autograph=False)
        def loop(count):
            _, *found = tf.while_loop(
                lambda number, *_: number < count,
                one,
                [0, *map(_zeros, outputs)],
                [tf.TensorShape([]), *(output.shape for output in outputs)],
                parallel_iterations=1,  # A step begins when all of the one before it is done.
            )
            remaining = iter(found)
            leaves = [next(remaining) if tf.is_tensor(leaf) else leaf for leaf in _leaves(logs)]
            return tf.nest.pack_sequence_as(logs, leaves, expand_composites=True)

        return loop.get_concrete_function(tf.TensorSpec([], tf.int32))

    def _drawn(self) -> tuple[np.ndarray, ...]:
        if self._draw is None:
            raise RuntimeError("Samples are drawn while `run` takes steps, and at no other time.")
        with self._remembering():
            return self._draw()


class SmallSamples:
    """Small samples of arrays in memory, and steps on them.

    A data set draws ahead, on threads of its own. That costs most of a millisecond of processor
    time a step (`benchmarks/fit_parts.py`), and only pays where drawing takes longer.

    Args:
        samples: Of which `are_small` is true.
        steps: Of an epoch.
    """

    def __init__(self, samples: Samples, steps: int):
        self.samples, self._steps = samples, steps
        self._epoch: Any = None
        self._drawn: Iterator[tuple[np.ndarray, ...]] = iter(())
        self._left = 0  # Steps of the epoch that are not taken yet.
        self._untold = 0  # Steps that are taken, and not asked for yet.
        self._at_once = 1
        self._loop: StepLoop | None = None
        self._traced: Any = None
        self._logs: Any = None

    def take_steps(self, loop: StepLoop, epoch: Any, due: int = 1, most: int = 1) -> Any:
        """Sees to it that the next steps are taken, and returns what the last one returned.

        Where nobody looks at every step, it takes some that are asked for later.

        Args:
            loop: Of the step.
            epoch: An object that stands for the epoch; with another one, drawing begins anew.
            due: Steps that are asked for; fewer at the end of the epoch.
            most: That may be taken before somebody looks at what they did.
        """
        if epoch is not self._epoch:
            self._epoch, self._drawn = epoch, self.samples.make()
            self._left, self._untold = self._steps, 0
        due = max(1, min(due, self._left + self._untold))
        if self._untold < due:
            reach = min(self._at_once, most)
            count = self._left if reach >= self._left else reach // due * due
            self._run(loop, max(due, count))
        self._untold -= due
        return self._logs

    def _run(self, loop: StepLoop, count: int) -> None:
        begin = time.perf_counter()
        if loop is not self._loop:
            self._loop, self._traced = loop, loop.traced(self.samples)
        logs = loop.run(self._traced, self.draw, count)
        self._logs = tf.nest.map_structure(_value, logs)
        seconds = (time.perf_counter() - begin) / count
        self._at_once = max(1, min(2 * count, int(_SECONDS_OF_CALL / seconds)))
        self._left -= count
        self._untold += count

    def draw(self) -> tuple[np.ndarray, ...]:
        """Returns the arrays of the next sample."""
        return next(self._drawn)


def _weakly(method: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a function that calls the method as long as its object is there."""
    reference = weakref.WeakMethod(method)

    def call():
        method = reference()
        if method is None:
            raise ReferenceError("The model of these steps is gone. Keep it while its graphs run.")
        return method()

    return call


def _leaves(structure: Any) -> list[Any]:
    return tf.nest.flatten(structure, expand_composites=True)


def _tensors(structure: Any) -> list[tf.Tensor]:
    return [leaf for leaf in _leaves(structure) if tf.is_tensor(leaf)]


def _zeros(tensor: tf.Tensor) -> tf.Tensor:
    """Returns zeros of a shape that the tensor may have."""
    known = tensor.shape.as_list() if tensor.shape.rank is not None else []
    return tf.zeros([size or 0 for size in known], tensor.dtype)


def _value(leaf: Any) -> Any:
    return leaf.numpy() if tf.is_tensor(leaf) else leaf


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
        return leaf.dtype.kind in "biufSU" and (can_ask() or not is_mapped(leaf))
    return False
