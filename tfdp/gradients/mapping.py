"""A function of one record, for all records at once."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdp.gradients import rewriting
from tfdp.gradients.effects import refuse_side_effects
from tfdp.gradients.keras_internals import forgets_length
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.onednn import corrupts_memory, needs_compiling
from tfdp.gradients.vectorizing import VectorizingError, vectorized_outputs
from tfdp.noise.attempts import attempt

RecordFn = Callable[[list[tf.Tensor]], Any]


def map_records(
    fn: RecordFn, leaves: list[tf.Tensor], rows: int | None = None
) -> tuple[Callable[..., Any], Any]:
    """Returns what applies `fn` to every record of [n, ...] tensors, as a batch of one each.

    Where TensorFlow cannot vectorize `fn` that happens one record at a time, with a warning.

    Args:
        fn: Takes a list of tensors [1, ...]. Its results are stacked along a new first axis.
        leaves: Tensors for whose shapes and dtypes the function is built.
        rows: n, where it is known.

    Returns:
        A `tf.function` of the leaves, and the structure of its symbolic results.

    Raises:
        UnsupportedModelError: `fn` uses a tensor that comes from all records.
        SideEffectError: `fn` leaves something behind.
    """
    try:
        return vectorized(fn, leaves, rows)
    except VectorizingError as error:
        # This happens for branches that some records take, for example.
        warnings.warn(
            "Gradients are computed one example at a time, because TensorFlow cannot vectorize: "
            f"{error}",
            stacklevel=2,
        )

    return records_in_turn(fn, leaves, rows)


def records_in_turn(
    fn: RecordFn, leaves: list[tf.Tensor], rows: int | None = None
) -> tuple[Callable[..., Any], Any]:
    """As `map_records`, one record after the other.

    Raises:
        UnsupportedModelError: As for `map_records`.
        SideEffectError: Likewise.
    """
    safe = rewriting.with_checks(fn, _specs(leaves, 1))

    def one(record):
        # Not leaf[None], whose gradient is slow.
        return safe([tf.expand_dims(leaf, 0) for leaf in record])

    def in_turn(*leaves):
        leaves = list(leaves)
        signature = tf.function(one, autograph=False).get_concrete_function(
            [leaf[0] for leaf in leaves]
        )
        spec = tf.nest.map_structure(
            lambda t: tf.TensorSpec(t.shape, t.dtype), signature.structured_outputs
        )
        return map_in_turn(one, leaves, spec)

    call = tf.function(in_turn, autograph=False).get_concrete_function(*_specs(leaves, rows))
    _refuse_other_records(call.graph)
    refuse_side_effects(call.graph)
    return call, call.structured_outputs


def map_in_turn(fn: Callable[[Any], Any], elements: Any, signature: Any) -> Any:
    """As `tf.map_fn`, and leaves nothing behind where `fn` cannot be traced.

    Args:
        fn: From one element to a structure of tensors.
        elements: A structure of tensors [n, ...].
        signature: A structure of `tf.TensorSpec`: what `fn` returns.
    """
    with attempt():
        return tf.map_fn(fn, elements, fn_output_signature=signature)


def vectorized(
    fn: RecordFn, leaves: list[tf.Tensor], rows: int | None = None
) -> tuple[Callable[..., Any], Any]:
    """As `map_records`, by `tf.vectorized_map` only.

    Raises:
        VectorizingError: TensorFlow cannot vectorize the function.
        UnsupportedModelError: As for `map_records`.
        SideEffectError: Likewise.
    """
    one = tf.function(lambda *record: fn(list(record)), autograph=False)
    specs = _specs(leaves, rows)
    with _without_notes_to_tensorflow(), attempt():
        of_one = one.get_concrete_function(*_specs(leaves, 1))
        # An operation that cannot be vectorized may also be one that must not run at all.
        refuse_side_effects(of_one.graph)
        _refuse_other_records(of_one.graph)
        outputs = rewriting.checked_outputs(of_one)

        def all_records(*leaves):
            batches_of_one = [tf.expand_dims(leaf, 1) for leaf in leaves]
            n = tf.shape(leaves[0])[0] if rows is None else rows
            found = vectorized_outputs(of_one.graph, outputs, batches_of_one, n)
            for of_all, of_record in zip(found, outputs, strict=True):
                of_all.set_shape(tf.TensorShape([rows]).concatenate(of_record.shape))
            return _packed(of_one.structured_outputs, found)

        call = tf.function(all_records, autograph=False).get_concrete_function(*specs)
        compiles, is_faulty = needs_compiling(of_one.graph), corrupts_memory(call.graph)
        # XLA would be slower, and does not compile every loop that TensorFlow vectorizes.
        safe = rewriting.with_safe_products(call) if is_faulty and not compiles else None
        if safe is not None:
            call = tf.function(lambda *leaves: safe(list(leaves)), autograph=False)
            call = call.get_concrete_function(*specs)
        elif compiles or is_faulty:
            # Traced now: when it is first called, `fn` may mean something else.
            compiled = tf.function(all_records, autograph=False, jit_compile=True)
            call = compiled.get_concrete_function(*specs)
    return call, call.structured_outputs


def _packed(structure: Any, outputs: list[tf.Tensor]) -> Any:
    """Returns outputs in the structure of a concrete function's, in which there may be None."""
    flat = tf.nest.flatten(structure)
    tensors = [i for i, value in enumerate(flat) if value is not None]
    if len(tensors) != len(outputs):
        kinds = sorted({type(flat[i]).__name__ for i in tensors})
        raise TypeError(f"Results must be tensors. Received: {', '.join(kinds)}.")
    for i, output in zip(tensors, outputs, strict=True):
        flat[i] = output
    return tf.nest.pack_sequence_as(structure, flat)


def holds_records(tensor: Any) -> bool:
    """Returns whether a tensor has an axis of records in front: one of unknown length.

    The book-keeping engine makes the number of records unknown; what is a constant has known sizes.
    """
    return tf.is_symbolic_tensor(tensor) and tensor.shape.rank != 0 and tensor.shape[0] is None


def meets_records(tensor: Any, rank: int) -> bool:
    """Returns whether a tensor, broadcast with one of this rank that holds records, meets each of
    them with the same record, or all with the same numbers.

    Axes are lined up from the last one on: [n, t] meets positions of [n, t, d], not records.
    """
    shape = tf.TensorShape(tensor.shape)
    if holds_records(tensor):
        return shape.rank == rank
    return shape.rank < rank or (shape.rank == rank and shape[0] == 1)


def _refuse_other_records(graph: Any) -> None:
    others = [
        tensor.name
        for tensor, _ in graph.captures
        if holds_records(tensor) or comes_from_records(tensor)
    ]
    if others:
        raise UnsupportedModelError(
            "A layer or loss uses, beside its arguments, a tensor that comes from all records: "
            f"{', '.join(others)}. Pass it through the layers, or use engine='vectorized'."
        )


def comes_from_records(tensor: Any) -> bool:
    """Returns whether a tensor depends on what makes the number of records unknown."""
    if not tf.is_symbolic_tensor(tensor):
        return False
    seen, pending = set(), [tensor.op]
    while pending:
        op = pending.pop()
        if forgets_length(op):
            return True
        if op.name not in seen:
            seen.add(op.name)
            pending += [source.op for source in op.inputs]
    return False


def _specs(leaves: list[tf.Tensor], rows: int | None) -> list[tf.TensorSpec]:
    return [tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype) for leaf in leaves]


@contextlib.contextmanager
def _without_notes_to_tensorflow() -> Iterator[None]:
    """Keeps from users what `tf.vectorized_map` logs for its own developers, at every trace."""

    def is_for_users(record: logging.LogRecord) -> bool:
        return "parallel_for" not in record.pathname

    logger = tf.get_logger()
    logger.addFilter(is_for_users)
    try:
        yield
    finally:
        logger.removeFilter(is_for_users)
