"""The stage of a function: what it asks for while it is traced, and finds when it runs."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.noise import chacha, gaussian
from tfdp.noise.host_calls import on_host
from tfdp.noise.requests import Keystream, Pool, Requests, Write

# Fewer normal draws than this are pooled with others, so that XLA compiles one loop for all.
_POOLED = 2**18
# So many on a GPU, which makes the words of more from a key: those of the pool are the host's.
_POOLED_ON_GPU = 2**15
_DTYPES = (tf.float32, tf.float64)


class NotStageable(Exception):  # noqa: N818, never seen by a caller.
    """A draw stands in a part of a function that may run any number of times."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """A result that is one of some tensors as it was, or zero.

    Attributes:
        index: Which of them; where it is their number, or true, the result is zero.
        tensors: The tensors inside.
        result: What stands for the result inside.
    """

    index: tf.Tensor
    tensors: tuple[tf.Tensor, ...]
    result: tf.Tensor


class Stage:
    """What a function asked for while it was traced, and where it finds it when it runs.

    Words and draws are parted outside of the function. XLA compiles equal loops once, and loops
    that read at different places of an array are not equal.

    Args:
        after: What the words wait for.
        compiles: Whether XLA compiles what makes the pool's draws.
    """

    def __init__(self, after: list[tf.Tensor], compiles: bool):
        self.clear()
        self._graph: tf.Graph | None = None
        self._outside = tf.compat.v1.get_default_graph()
        self._make = gaussian.compiled_normals if compiles else gaussian.normals_from_words
        with tf.control_dependencies(after):
            # Requests are read when the graph runs, long after the function has been traced.
            self._words, *pooled = on_host(
                lambda: [part.write() for part in (self._requests, *self._pools.values())],
                [],
                [tf.uint32] * (1 + len(_DTYPES)),
            )
        self._pooled = dict(zip(_DTYPES, pooled, strict=True))

    def clear(self) -> None:
        """Forgets all requests."""
        self.arguments: dict[int, tf.Tensor] = {}  # By the id of what stands for them inside.
        self.kept: dict[int, Kept] = {}  # By the id of the result.
        self._requests = Requests()
        self._keystreams: dict[Write, Keystream] = {}
        self._pools = {dtype: Pool(dtype) for dtype in _DTYPES}

    def trace(self, fn: Callable[..., Any], args: Any, outside: list[Any]) -> Any:
        """Returns `fn(*args)`, whose draws are requests to this stage.

        Args:
            fn: Function.
            args: Its arguments, inside.
            outside: The leaves of its arguments, outside.
        """
        self.clear()
        inside = tf.nest.flatten(args)
        self.arguments = {
            id(leaf): out for leaf, out in zip(inside, outside, strict=True) if tf.is_tensor(leaf)
        }
        self._graph = tf.compat.v1.get_default_graph()
        current.stage = self
        try:
            return fn(*args)
        finally:
            current.stage = None

    def keep(self, index: tf.Tensor, tensors: Sequence[tf.Tensor], result: tf.Tensor) -> None:
        """Notes that a result need not be computed by XLA."""
        if tf.compat.v1.get_default_graph() is self._graph:
            self.kept[id(result)] = Kept(index, tuple(tensors), result)

    def draw(self, write: Write, count: Any) -> tf.Tensor:
        self._check(count)
        with self._outside.as_default():
            return self._drawn(write, count)

    def _drawn(self, write: Write, count: int) -> tf.Tensor:
        part = self._requests.add(write, count)
        return tf.slice(self._words, [part.start], [count])

    def expanded(self, fill: Write, count: Any) -> tf.Tensor:
        self._check(count)
        stream = self._keystreams.setdefault(fill, Keystream(fill))
        with self._outside.as_default():
            return stream.take(count, self._drawn)

    def pooled(self, fill: Write, size: Any, dtype: tf.DType) -> tf.Tensor | None:
        self._check(size)
        if not are_pooled(size):
            return None
        with self._outside.as_default():
            return self._pools[dtype].take(fill, size, self._pooled[dtype], self._make)

    @property
    def is_pooled(self) -> bool:
        """Whether all that was asked for is in the pools."""
        return not self._requests.draws

    def _check(self, count: Any) -> None:
        # The body of a loop, or of a function that is called twice, is traced only once. Each run
        # of it would see the same words.
        if tf.compat.v1.get_default_graph() is not self._graph or tf.is_tensor(count):
            raise NotStageable


def are_pooled(size: int) -> bool:
    """Returns whether so many normal draws are pooled with others."""
    return size < (_POOLED_ON_GPU if chacha.on_gpu() else _POOLED)


class _Current(threading.local):
    stage: Stage | None = None


current = _Current()  # The stage of the function that this thread traces.
