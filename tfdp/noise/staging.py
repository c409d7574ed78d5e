"""Random words drawn in one call on the host, for a function that XLA compiles."""

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.noise import gaussian, memory
from tfdp.noise.attempts import attempt

Write = Callable[[np.ndarray], None]  # Overwrites a uint32 array.

# A row of fewer numbers than this is not worth a loop of its own.
_LONG_ROW = 64

# XLA fails where it meets a draw, and its message holds the name of the operation. So the name says
# what to do.
_OPERATION = "host_draw__use_tfdp.noise.staged"
_HOST_OPERATIONS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")

# Fewer normal draws than this are pooled with others, so that XLA compiles one loop for all.
_POOLED = 2**15
# Parts of an array of words begin at multiples of so many.
_ALIGNED = 16
# If the arguments hold no more numbers than this, compiling with XLA takes more time than it saves.
_SMALL = 2**14
# If the arguments hold more numbers than this, the words are drawn only once the arguments have
# been computed. By then the forward and the backward pass have given their memory back.
_LATE = 2**24
_DTYPES = (tf.float32, tf.float64)


class _NotStageable(Exception):  # noqa: N818, never seen by a caller.
    """A draw stands in a part of a function that may run any number of times."""


@dataclasses.dataclass
class _Requests:
    """Draws that stand one after another in an array: (writer of words, which words)."""

    draws: list[tuple[Write, slice]] = dataclasses.field(default_factory=list)
    size: int = 0

    def add(self, write: Write, count: int) -> slice:
        # TensorFlow copies a part of an array that begins elsewhere.
        start = self.size + -self.size % _ALIGNED
        self.size = start + count
        self.draws.append((write, slice(start, self.size)))
        return self.draws[-1][1]

    def write(self) -> np.ndarray:
        """Draws them all."""
        words = memory.words(self.size)
        for write, part in self.draws:
            write(words[part])
        return words


class _Pool:
    """Normal draws of one dtype that are made together, and the words that they are made of."""

    def __init__(self, dtype: tf.DType):
        self._dtype = dtype
        self._fill: Write | None = None
        self._draws: tf.Tensor | None = None
        self._size = 0

    def take(
        self, fill: Write, size: int, words: tf.Tensor, make: Callable[..., tf.Tensor]
    ) -> tf.Tensor | None:
        """Returns draws that nobody else gets; None where the pool is filled by something else.

        Args:
            fill: Writes the words.
            size: How many draws.
            words: Of the pool.
            make: Returns the draws, given rows of words and a dtype.
        """
        if self._draws is None:
            self._fill = fill
            rows = gaussian.words_per_pair(self._dtype)
            self._draws = make(tf.reshape(words, [rows, -1]), self._dtype)
        if fill != self._fill:
            return None
        self._size += size
        return tf.slice(self._draws, [self._size - size], [size])

    def write(self) -> np.ndarray:
        """Draws the words of the pool."""
        words = _Requests()
        if self._fill is not None:
            words.add(self._fill, gaussian.words_per_pair(self._dtype) * ((self._size + 1) // 2))
        return words.write()


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A result that is one of some tensors as it was, or zero.

    Attributes:
        index: Which of them; where it is their number, or true, the result is zero.
        tensors: The tensors inside.
        result: What stands for the result inside.
    """

    index: tf.Tensor
    tensors: tuple[tf.Tensor, ...]
    result: tf.Tensor


class _Stage:
    """What a function asked for while it was traced, and where it finds it when it runs.

    Words and draws are parted outside of the function. XLA compiles equal loops once, and loops
    that read at different places of an array are not equal.

    Args:
        after: What the words wait for.
        jit_compile: Whether XLA compiles the function.
    """

    def __init__(self, after: list[tf.Tensor], jit_compile: bool):
        self.clear()
        self._graph: tf.Graph | None = None
        self._outside = tf.compat.v1.get_default_graph()
        self._make = _compiled_normals if jit_compile else gaussian.normals_from_words
        with tf.control_dependencies(after):
            # Requests are read when the graph runs, long after the function has been traced.
            self._words, *pooled = tf.numpy_function(
                lambda: [part.write() for part in (self._requests, *self._pools.values())],
                [],
                [tf.uint32] * (1 + len(_DTYPES)),
                stateful=True,
                name=_OPERATION,
            )
        self._pooled = dict(zip(_DTYPES, pooled, strict=True))

    def clear(self) -> None:
        """Forgets all requests."""
        self.arguments: dict[int, tf.Tensor] = {}  # By the id of what stands for them inside.
        self.kept: dict[int, _Kept] = {}  # By the id of the result.
        self._requests = _Requests()
        self._pools = {dtype: _Pool(dtype) for dtype in _DTYPES}

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
        _current.stage = self
        try:
            return fn(*args)
        finally:
            _current.stage = None

    def keep(self, index: tf.Tensor, tensors: Sequence[tf.Tensor], result: tf.Tensor) -> None:
        """Notes that a result need not be computed by XLA."""
        if tf.compat.v1.get_default_graph() is self._graph:
            self.kept[id(result)] = _Kept(index, tuple(tensors), result)

    def draw(self, write: Write, count: Any) -> tf.Tensor:
        self._check(count)
        part = self._requests.add(write, count)
        with self._outside.as_default():
            return tf.slice(self._words, [part.start], [count])

    def pooled(self, fill: Write, size: Any, dtype: tf.DType) -> tf.Tensor | None:
        self._check(size)
        if size >= _POOLED:
            return None
        with self._outside.as_default():
            return self._pools[dtype].take(fill, size, self._pooled[dtype], self._make)

    def _check(self, count: Any) -> None:
        # The body of a loop, or of a function that is called twice, is traced only once. Each run
        # of it would see the same words.
        if tf.compat.v1.get_default_graph() is not self._graph or tf.is_tensor(count):
            raise _NotStageable


class _Current(threading.local):
    stage: _Stage | None = None


_current = _Current()


def draw(write: Write, count: int | tf.Tensor) -> tf.Tensor:
    """Returns `count` words that `write` draws on the host, whenever this point is reached.

    Args:
        write: Called with a uint32 array to be overwritten; in a graph, each time the graph runs.
        count: Length, an integer; a scalar integer tensor where it depends on other tensors.

    Returns:
        uint32 [count].
    """
    if _current.stage is not None:
        return _current.stage.draw(write, count)

    def on_host(count):
        words = _Requests()
        words.add(write, int(count))
        return words.write()

    if tf.executing_eagerly():
        return tf.constant(on_host(count))
    words = tf.numpy_function(on_host, [count], tf.uint32, stateful=True, name=_OPERATION)
    words.set_shape([None if tf.is_tensor(count) else count])
    return words


def zero_if(condition: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns zeros where a scalar is true, and otherwise `tensor`.

    Where what this returns is a result of a function that is staged, XLA has no part in it. Of an
    argument of the function it would make a copy, and of what is used for other results too it
    would compute one more.

    Args:
        condition: Boolean scalar.
        tensor: Of any shape.
    """
    result = tf.where(condition, tf.zeros_like(tensor), tensor)
    if _current.stage is not None:
        _current.stage.keep(condition, [tensor], result)
    return result


def one_of(index: tf.Tensor, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the tensor of this index, and zeros where the index is their number.

    As of `zero_if`, XLA has no part in a result of a function that is staged, and nothing is
    copied.

    Args:
        index: int32 scalar. Results with the same tensor here are chosen by one branch.
        tensors: Of one shape and dtype.
    """
    result = tf.zeros_like(tensors[0])
    for number, tensor in enumerate(tensors):
        result = tf.where(tf.equal(index, number), tensor, result)
    if _current.stage is not None:
        _current.stage.keep(index, tensors, result)
    return result


def on_host(
    function: Callable[..., Any], inputs: Sequence[tf.Tensor], types: Sequence[tf.DType]
) -> list[tf.Tensor]:
    """Returns what the host computes each time the graph runs, by an operation that says so."""
    return tf.numpy_function(function, inputs, list(types), stateful=True, name=_OPERATION)


def normal(fill: Write, shape: Any, size: int | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns standard normal draws made of words that `fill` draws on the host.

    Args:
        fill: As `write` of `draw`.
        shape: Integers, or a tensor of them where they depend on other tensors.
        size: Their product.
        dtype: float32 or float64.

    Returns:
        Draws of this shape.
    """
    words = gaussian.words_per_pair(dtype)
    dtype = tf.as_dtype(dtype)
    if _current.stage is not None:
        pooled = _current.stage.pooled(fill, size, dtype)
        if pooled is not None:
            return tf.reshape(pooled, shape)
    row = [] if tf.is_tensor(shape) else _row(shape)
    rows = size // math.prod(row)
    half = (rows + 1) // 2
    drawn = tf.reshape(draw(fill, words * half * math.prod(row)), [words, half, *row])
    if _current.stage is not None:
        draws = gaussian.normals_from_words(drawn, dtype, rows)
    else:
        draws = _compiled_normals(drawn, dtype)[:rows]
    return tf.reshape(draws, shape)


def _row(shape: Sequence[int]) -> list[int]:
    """Returns the shape of a row: [] where a tensor of this shape is one long row of numbers.

    Both draws of a pair are in one column: half of the rows are made in one way, and half in
    another. XLA has fast loops for this along rows that the sum has as well, or along one axis.
    """
    return [shape[-1]] if len(shape) > 1 and shape[-1] >= _LONG_ROW else []


@tf.function(jit_compile=True, autograph=False, reduce_retracing=True)
def _compiled_normals(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return gaussian.normals_from_words(words, dtype)


def staged(
    fn: Callable[..., Any],
    *args: Any,
    jit_compile: bool | None = None,
    after: Sequence[tf.Tensor] = (),
) -> Any:
    """Returns `fn(*args)`, compiled by XLA, with the words of all its draws from one host call.

    XLA fuses the computation of a draw with what is done to the draw. Adding noise to a sum is then
    a single pass over the sum. `RandomSource` calls inside `fn` are served with parts of one array,
    which is drawn on the host each time the graph runs, outside of the compiled function.

    Guarantees:
        Every call inside `fn` gets words of its own, and new ones each time the graph runs.

    Edge cases:
        Eagerly, and inside another `staged`, `fn` is simply called. If the arguments are small,
        `fn` is not compiled, but there is still a single host call for all draws. In some cases
        `fn` is traced into the graph as it is, without XLA. That is so if a draw inside `fn` stands
        in a loop or a nested `tf.function`, if its shape is not known when the graph is built, or
        if `fn` calls the host itself. Inside of a function that is itself compiled by XLA there is
        no host, and XLA refuses the draw: call `staged` outside of it.

    Args:
        fn: Operations that XLA can compile. Arguments and closure may be any tensors.
        *args: Its arguments.
        jit_compile: Whether to compile, where that is possible; by default for large arguments.
        after: Tensors that `fn` waits for. The words do not.

    Returns:
        What `fn` returns: a structure whose tensors come from the compiled function; all else is as
        it was when `fn` was traced.

    Example:
        >>> from tfdp.noise import SystemRandomSource
        >>> source = SystemRandomSource()
        >>> @tf.function
        ... def noised(total):
        ...     return staged(lambda t: (t + source.normal(t.shape, t.dtype)) / 256.0, total)
        >>> noised(tf.zeros([784, 1000])).shape
        TensorShape([784, 1000])
    """
    if tf.executing_eagerly() or _current.stage is not None:
        return _called(fn, args, after)
    tensors = [leaf for leaf in tf.nest.flatten(args) if isinstance(leaf, tf.Tensor)]
    size = sum(leaf.shape.num_elements() or 0 for leaf in tensors)
    if jit_compile is None:
        jit_compile = not tensors or size > _SMALL
    stage = _Stage(tensors if size > _LATE else [], jit_compile)
    # XLA's loops over several axes are slower, so tensors go in and out as rows.
    flat_args = [_flat(leaf) if _is_dense(leaf) else leaf for leaf in tf.nest.flatten(args)]
    result: Any = None
    kept: list[_Kept] = []
    computed: dict[int, tf.Tensor] = {}

    def compiled():
        nonlocal result, kept, computed
        leaves = [
            tf.reshape(flat, leaf.shape) if _is_dense(leaf) else _inside(leaf)
            for flat, leaf in zip(flat_args, tf.nest.flatten(args), strict=True)
        ]
        result = stage.trace(fn, tf.nest.pack_sequence_as(args, leaves), tf.nest.flatten(args))
        tensors = [leaf for leaf in tf.nest.flatten(result) if tf.is_tensor(leaf)]
        kept = [stage.kept[id(leaf)] for leaf in tensors if id(leaf) in stage.kept]
        made = [leaf for leaf in tensors if id(leaf) not in stage.kept]
        of_kept = {id(tensor): tensor for one in kept for tensor in one.tensors}
        computed = {key: of_kept[key] for key in of_kept if key not in stage.arguments}
        outputs, others = (
            [_flat(leaf) if _is_dense(leaf) else leaf for leaf in part]
            for part in (made, computed.values())
        )
        return outputs, others, [one.index for one in kept]

    try:
        with attempt():
            function = tf.function(
                compiled, jit_compile=jit_compile, autograph=False
            ).get_concrete_function()
    except _NotStageable:
        function = None
    if function is None or _calls_host(function.graph):
        stage.clear()
        return _called(fn, args, after)
    with tf.control_dependencies(after):
        outputs, others, indices = function()
    known = dict(stage.arguments)
    for (key, tensor), rows in zip(computed.items(), others, strict=True):
        known[key] = _shaped(rows, tensor)
    results, unchanged = iter(outputs), dict(_chosen(kept, known, indices))

    def outside(leaf):
        if not tf.is_tensor(leaf):
            return leaf
        if id(leaf) in unchanged:
            return unchanged[id(leaf)]
        return _shaped(next(results), leaf)

    leaves = [outside(leaf) for leaf in tf.nest.flatten(result)]
    return tf.nest.pack_sequence_as(result, leaves)


def _chosen(
    kept: list[_Kept], known: dict[int, tf.Tensor], indices: list[tf.Tensor]
) -> Iterator[tuple[int, tf.Tensor]]:
    """Yields the id of each result inside, and the result: one branch for all of an index.

    Args:
        kept: The results.
        known: The tensors outside, by the id of those inside.
        indices: Of all results, outside.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for number, one in enumerate(kept):
        groups.setdefault((id(one.index), len(one.tensors)), []).append(number)
    for numbers in groups.values():
        rows = [[known[id(tensor)] for tensor in kept[number].tensors] for number in numbers]
        choices = [lambda tensors=tensors: list(tensors) for tensors in zip(*rows, strict=True)]
        zeros = lambda rows=rows: [tf.zeros_like(row[0]) for row in rows]  # noqa: E731
        index = indices[numbers[0]]
        if index.dtype == tf.bool:
            results = tf.cond(index, zeros, choices[0])
        else:
            results = tf.switch_case(index, [*choices, zeros])
        yield from zip([id(kept[number].result) for number in numbers], results, strict=True)


def _called(fn: Callable[..., Any], args: Sequence[Any], after: Sequence[tf.Tensor]) -> Any:
    """Returns `fn(*args)`. Nothing of it, not even its arguments, is available before `after`."""
    if not after:
        return fn(*args)
    with tf.control_dependencies(after):
        leaves = [
            tf.identity(leaf) if isinstance(leaf, tf.Tensor) else leaf
            for leaf in tf.nest.flatten(args)
        ]
        return fn(*tf.nest.pack_sequence_as(args, leaves))


def _inside(leaf: Any) -> Any:
    """Returns an argument as a tensor of this graph, also where nothing is computed from it."""
    return tf.identity(leaf) if isinstance(leaf, tf.Tensor) else leaf


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor) and leaf.shape.is_fully_defined() and leaf.shape.rank > 1


def _flat(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tensor, [-1, *_row(tensor.shape.as_list())])


def _shaped(rows: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns rows in the shape of the tensor whose `_flat` they may be."""
    return tf.reshape(rows, tensor.shape) if _is_dense(tensor) else rows


def _calls_host(graph: tf.Graph) -> bool:
    definition = graph.as_graph_def()
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes += function.node_def
    return any(node.op in _HOST_OPERATIONS for node in nodes)
