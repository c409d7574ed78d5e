"""A function of one record, with every place that the record's integers name checked, with no
numbers that a kernel does not take, and with all results of convolutions written.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdp.gradients import indices, kernels
from tfdp.gradients.dependence import Dependent, is_of_another_rank
from tfdp.gradients.effects import refuse_side_effects
from tfdp.gradients.graphs import (
    CALLS,
    CASES,
    CONDITIONALS,
    LOOPS,
    create,
    functions_called,
    has,
    in_order,
    knows_functions,
    leaves_of,
)
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.onednn import (
    axis_of_one_channel,
    is_faulty_product,
    is_open_product,
    of_two_channels,
    safe_product,
)
from tfdp.gradients.vectorizing import VectorizingError

RecordFn = Callable[[list[tf.Tensor]], Any]


class TurnsDifferError(VectorizingError):
    """A loop or a branch that is differentiated does not run alike for all records."""


def with_checks(fn: RecordFn, specs: Sequence[tf.TensorSpec]) -> RecordFn:
    """Returns a function that gives the same as `fn` where all places that the record's integers
    name exist, and where not NaN in the place of what is read from there or written to there. So
    does what kernels return for numbers that would end the run.
    Nothing that it gives was left in the memory by others (`onednn`).

    Args:
        fn: Takes a list of tensors, and returns a structure of tensors. It is traced.
        specs: What the tensors of one record are.

    Raises:
        SideEffectError: `fn` leaves something behind.
        RecordDependentShapeError: (when the result is called) the shape of a result depends on the
            record's integers.
        RefusedKernelError: (likewise) a kernel could end the run for some numbers of the record, or
            nobody knows that it does not.
        UnsupportedModelError: (likewise) Keras adds numbers of one record along another axis than
            those of several.
    """
    one = tf.function(lambda *record: fn(list(record)), autograph=False)
    traced = one.get_concrete_function(*specs)
    # An operation that nobody knows may also be one that leaves something behind.
    refuse_side_effects(traced.graph)
    return checked(traced) or fn


def checked(traced: Any) -> RecordFn | None:
    """Returns what `with_checks` does, of a concrete function of a record's tensors; None where
    there is nothing to check.
    """
    return _checked(traced, Dependent(traced.graph, leaves_of(traced.graph)))


def with_safe_products(traced: Any) -> RecordFn | None:
    """Returns a function of a list of tensors that gives what a concrete function of tensors does,
    without products that TensorFlow may write out of bounds (`onednn.corrupts_memory`); None where
    there is none, or one of operands whose rank is not known, or a function that nobody knows.
    """
    if not knows_functions(traced.graph) or has(traced.graph, is_open_product):
        return None
    return _checked(traced, Dependent(traced.graph, ()))


def safe_update(traced: Any) -> RecordFn | None:
    """Returns what `checked` does, of a concrete function that updates variables from tensors of
    records. What it captures may follow records, too, as what variables hold from earlier calls
    does, and so may how many numbers it selects.
    """
    return _checked(traced, Dependent(traced.graph, traced.graph.inputs, selects=True))


def _checked(traced: Any, dependent: Dependent) -> RecordFn | None:
    """Returns a concrete function of a list of tensors with checks of what depends on some."""
    graph = traced.graph
    if not any(map(dependent.needs_check, graph.get_operations())):
        return None

    def call(record):
        values = {t.name: value for t, value in zip(leaves_of(graph), record, strict=True)}
        values |= {internal.name: external for external, internal in graph.captures}
        outputs = _emit(graph, values, dependent)
        return tf.nest.pack_sequence_as(traced.structured_outputs, outputs, expand_composites=True)

    return call


def checked_outputs(traced: Any) -> list[tf.Tensor]:
    """Adds what `with_checks` does to the graph of a concrete function of a record's tensors.

    Only what has a check, and what follows from it, is made anew. The graph must not run: the
    operations that have no check yet stay in it.

    Returns:
        Of each of the graph's outputs what takes its place.

    Raises:
        TurnsDifferError: TensorFlow cannot vectorize the graph.
        RecordDependentShapeError: As for `with_checks`.
        RefusedKernelError: Likewise.
        UnsupportedModelError: Likewise.
    """
    graph = traced.graph
    dependent = Dependent(graph, leaves_of(graph))
    op = dependent.differs_by_record()
    if op is not None:
        raise TurnsDifferError(
            f"{op.type} ({op.name}) takes one branch or another, or as many turns as a record "
            "says, and is differentiated."
        )
    values: dict[str, tf.Tensor] = {}
    made: dict[str, tf.Operation] = {}
    with graph.as_default():
        for op in in_order(t.op for t in graph.outputs):
            follows = any(t.name in values for t in op.inputs)
            follows = follows or any(c.name in made for c in op.control_inputs)
            if follows or dependent.needs_check(op):
                with tf.control_dependencies([made.get(c.name, c) for c in op.control_inputs]):
                    _make_anew(op, values, made, dependent)
    outputs = [values.get(t.name, t) for t in graph.outputs]
    for output, before in zip(outputs, graph.outputs, strict=True):
        output.set_shape(before.shape)  # Code may have said more than operations tell.
    return outputs


def _emit(graph: Any, values: dict[str, tf.Tensor], dependent: Dependent) -> list[tf.Tensor]:
    """Makes the operations of a graph anew in the current one, with checks.

    Args:
        graph: Where the operations are.
        values: What takes the places of its inputs, by their names.
        dependent: Which of its tensors depend on a record.

    Returns:
        What takes the places of its outputs.
    """
    made: dict[str, tf.Operation] = {}
    for op in in_order([*(t.op for t in graph.outputs), *graph.control_outputs]):
        if op.outputs and op.outputs[0].name in values:
            continue
        with tf.control_dependencies([made[c.name] for c in op.control_inputs if c.name in made]):
            _make_anew(op, values, made, dependent)
    with tf.control_dependencies([made[o.name] for o in graph.control_outputs if o.name in made]):
        return [tf.identity(values[t.name]) for t in graph.outputs]


def _make_anew(
    op: tf.Operation,
    values: dict[str, tf.Tensor],
    made: dict[str, tf.Operation],
    dependent: Dependent,
) -> None:
    """Makes an operation in the current graph, and notes what takes the places of its outputs and
    of itself.
    """
    outputs = _outputs(op, [values.get(t.name, t) for t in op.inputs], dependent)
    made[op.name] = outputs[0].op if outputs else tf.no_op()
    for old, new in zip(op.outputs, outputs, strict=True):
        if new.dtype not in (tf.resource, tf.variant):
            new.set_shape(old.shape)
        values[old.name] = new


def _outputs(op: tf.Operation, inputs: list[tf.Tensor], dependent: Dependent) -> list[tf.Tensor]:
    """Makes one operation anew, on inputs in the current graph, with checks where it needs them."""
    size = dependent.size_of(op)
    if size is not None:
        raise indices.RecordDependentShapeError(
            f"{op.type} ({op.name}) takes its {size!r} from numbers of a record. For some of them "
            "it could end the run, exhaust the memory or not come back, which would tell of the "
            "record. Use sizes and axes that are fixed, tf.while_loop(..., maximum_iterations=n), "
            "tf.sequence_mask(..., maxlen=n), and in the place of a selection "
            "tf.where(mask, x, 0.0)."
        )
    if dependent.is_unknown(op):
        raise kernels.RefusedKernelError(
            f"{op.type} ({op.name}) is called on numbers of a record. Whether it ends the run for "
            "some, which would tell of the record, is not known. Use an operation that is in "
            "tfdp/gradients/total_kernels.py, or this one where data are read, before they are "
            "sampled."
        )
    axes = dependent.added_along(op)
    if axes is not None:
        if axes[0] != axes[1]:
            raise UnsupportedModelError(
                f"{op.name} adds numbers of one record along axis {axes[0]}, and of several "
                f"records, as in `predict`, along axis {axes[1]}: keras.ops.add takes them for a "
                "bias where there is one record. Write keras.ops.subtract(x, -y) in the place of "
                "x + y."
            )
        # TensorFlow vectorizes no bias along the first axis.
        return [inputs[0] + tf.reshape(inputs[1], op.inputs[1].op.inputs[0].shape)]
    if is_of_another_rank(op):
        return [tf.reduce_sum(inputs[0], [0, *range(2, op.inputs[0].shape.rank)])]
    check = kernels.check_of(op)
    if check is not None and dependent.takes_places(op):
        return indices.checked(check, op, inputs, lambda safe: create(op, safe))
    axis = axis_of_one_channel(op)
    if axis is not None:
        return create(op, of_two_channels(*inputs, axis))
    if is_faulty_product(op):
        return [safe_product(op, inputs, lambda operands: create(op, operands))]
    if not functions_called(op):
        return create(op, inputs)

    called = list(zip(functions_called(op), dependent.called(op), strict=True))

    def run(i, arguments):
        graph, inside = called[i]
        values = {t.name: value for t, value in zip(graph.inputs, arguments, strict=True)}
        return _emit(graph, values, inside)

    if op.type in CALLS:  # A function may have more results by now.
        return run(0, inputs)[: len(op.outputs)]
    if op.type in LOOPS:
        return list(
            tf.while_loop(
                lambda *state: tf.reshape(run(0, state)[0], []),
                lambda *state: run(1, state),
                inputs,
                shape_invariants=[t.shape for t in op.outputs],
                parallel_iterations=op.get_attr("parallel_iterations"),
            )
        )
    if op.type in CONDITIONALS:
        return list(tf.cond(inputs[0], lambda: run(0, inputs[1:]), lambda: run(1, inputs[1:])))
    if op.type in CASES:
        branches = [lambda i=i: run(i, inputs[1:]) for i in range(len(called))]
        return list(tf.switch_case(inputs[0], branches))
    raise indices.RecordDependentShapeError(
        f"{op.type} ({op.name}) calls a function in a way that tfdp does not know, so that what "
        "integers of a record do in it cannot be checked."
    )
