"""Random words drawn in one call on the host, for a function that XLA compiles."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.noise import chacha, gaussian
from tfdp.noise.attempts import attempt
from tfdp.noise.choices import chosen
from tfdp.noise.host_calls import calls_host, on_host
from tfdp.noise.requests import Keystream, Requests, Write
from tfdp.noise.stage import Kept, NotStageable, Stage, are_pooled, current

# A row of fewer numbers than this is not worth a loop of its own.
_LONG_ROW = 64
# If the arguments hold no more numbers than this, compiling with XLA takes more time than it saves.
_SMALL = 2**14
# If the arguments hold more numbers than this, the words are drawn only once the arguments have
# been computed. By then the forward and the backward pass have given their memory back.
_LATE = 2**24
# Fewer words than this are filled by the host even where they are needed on a GPU.
_EXPANDED = 2**14


def draw(write: Write, count: int | tf.Tensor) -> tf.Tensor:
    """Returns `count` words that `write` draws on the host, whenever this point is reached.

    Args:
        write: Called with a uint32 array to be overwritten; in a graph, each time the graph runs.
        count: Length, an integer; a scalar integer tensor where it depends on other tensors.

    Returns:
        uint32 [count].
    """
    if current.stage is not None:
        return current.stage.draw(write, count)

    def drawn(count):
        words = Requests()
        words.add(write, int(count))
        return words.write()

    if tf.executing_eagerly():
        return tf.constant(drawn(count))
    (words,) = on_host(drawn, [count], [tf.uint32])
    words.set_shape([None if tf.is_tensor(count) else count])
    return words


def uniform(fill: Write, count: int | tf.Tensor) -> tf.Tensor:
    """Returns `count` uniform words: of `fill`, or on a GPU expanded from a key that `fill` draws.

    Args:
        fill: Called with a uint32 array to be overwritten with random bits.
        count: As that of `draw`.

    Returns:
        uint32 [count].
    """
    if tf.is_tensor(count) or count < _EXPANDED or not chacha.on_gpu():
        return draw(fill, count)
    if current.stage is not None:
        return current.stage.expanded(fill, count)
    return Keystream(fill).take(count, draw)


def normal(fill: Write, shape: Any, size: int | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns standard normal draws made of words of `uniform`.

    Args:
        fill: As that of `uniform`.
        shape: Integers, or a tensor of them where they depend on other tensors.
        size: Their product.
        dtype: float32 or float64.

    Returns:
        Draws of this shape.
    """
    words = gaussian.words_per_pair(dtype)
    dtype = tf.as_dtype(dtype)
    if current.stage is not None:
        pooled = current.stage.pooled(fill, size, dtype)
        if pooled is not None:
            return _reshaped(pooled, shape)
    row = [] if tf.is_tensor(shape) else _row(shape)
    rows = size // math.prod(row)
    half = (rows + 1) // 2
    drawn = tf.reshape(uniform(fill, words * half * math.prod(row)), [words, half, *row])
    if current.stage is not None:
        draws = gaussian.normals_from_words(drawn, dtype, rows)
    else:
        draws = gaussian.compiled_normals(drawn, dtype)[:rows]
    return tf.reshape(draws, shape)


def _row(shape: Sequence[int]) -> list[int]:
    """Returns the shape of a row: [] where a tensor of this shape is one long row of numbers.

    Both draws of a pair are in one column: half of the rows are made in one way, and half in
    another. XLA has fast loops for this along rows that the sum has as well, or along one axis.
    """
    return [shape[-1]] if len(shape) > 1 and shape[-1] >= _LONG_ROW else []


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
        `fn` is not compiled, nor is it where all its draws are normal and are made elsewhere, but
        there is still a single host call for all draws. In some cases
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
    if tf.executing_eagerly() or current.stage is not None:
        return _called(fn, args, after)
    tensors = [leaf for leaf in tf.nest.flatten(args) if isinstance(leaf, tf.Tensor)]
    sizes = [leaf.shape.num_elements() or 0 for leaf in tensors]
    ways = _ways(sizes) if jit_compile is None else [jit_compile]
    stage = Stage(tensors if sum(sizes) > _LATE else [], any(ways))
    in_rows = False
    flat_args: list[Any] = []
    result: Any = None
    kept: list[Kept] = []
    computed: dict[int, tf.Tensor] = {}

    def compiled():
        nonlocal result, kept, computed
        leaves = [
            tf.reshape(flat, leaf.shape) if flat is not leaf else _inside(leaf)
            for flat, leaf in zip(flat_args, tf.nest.flatten(args), strict=True)
        ]
        result = stage.trace(fn, tf.nest.pack_sequence_as(args, leaves), tf.nest.flatten(args))
        tensors = [leaf for leaf in tf.nest.flatten(result) if tf.is_tensor(leaf)]
        kept = [stage.kept[id(leaf)] for leaf in tensors if id(leaf) in stage.kept]
        made = [leaf for leaf in tensors if id(leaf) not in stage.kept]
        of_kept = {id(tensor): tensor for one in kept for tensor in one.tensors}
        computed = {key: of_kept[key] for key in of_kept if key not in stage.arguments}
        outputs, others = (
            [_flat(leaf) if in_rows else leaf for leaf in part]
            for part in (made, computed.values())
        )
        return outputs, others, [one.index for one in kept]

    function: Any = None
    try:
        for way in ways:
            # XLA's loops over several axes are slower, so tensors go in and out as rows.
            in_rows = way
            flat_args = [_flat(leaf) if in_rows else leaf for leaf in tf.nest.flatten(args)]
            with attempt():
                made = tf.function(compiled, jit_compile=way, autograph=False)
                function = made.get_concrete_function()
            if stage.is_pooled:
                break
    except NotStageable:
        function = None
    if function is None or calls_host(function.graph):
        stage.clear()
        return _called(fn, args, after)
    with tf.control_dependencies(after):
        outputs, others, indices = function()
    known = dict(stage.arguments)
    for (key, tensor), rows in zip(computed.items(), others, strict=True):
        known[key] = _shaped(rows, tensor)
    results, unchanged = iter(outputs), dict(chosen(kept, known, indices))

    def outside(leaf):
        if not tf.is_tensor(leaf):
            return leaf
        if id(leaf) in unchanged:
            return unchanged[id(leaf)]
        return _shaped(next(results), leaf)

    leaves = [outside(leaf) for leaf in tf.nest.flatten(result)]
    return tf.nest.pack_sequence_as(result, leaves)


def _ways(sizes: Sequence[int]) -> list[bool]:
    """Returns whether a function of tensors of these sizes is compiled: the last way, or one before
    it if all draws are pooled, which leaves little to be fused with them.
    """
    size = sum(sizes)
    if sizes and size <= _SMALL:
        return [False]
    if not sizes or size > _LATE or not are_pooled(max(sizes)) or chacha.on_gpu():
        return [True]
    return [False, True]


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


def _flat(tensor: Any) -> Any:
    """Returns a tensor of known shape as rows, and anything else as it is."""
    if not _is_dense(tensor):
        return tensor
    row = _row(tensor.shape.as_list())
    return _reshaped(tensor, [tensor.shape.num_elements() // math.prod(row), *row])


def _shaped(rows: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns rows in the shape of the tensor whose `_flat` they may be."""
    return _reshaped(rows, tensor.shape) if _is_dense(tensor) else rows


def _reshaped(tensor: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    return tensor if tensor.shape == shape else tf.reshape(tensor, shape)
