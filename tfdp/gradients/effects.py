"""What the operations of a record's loss may do beside computing it: nothing."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.gradients.keras_internals import HOST_OPERATIONS, is_operation, is_stateful
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.record_scope import SideEffectError

# Operations that TensorFlow calls stateful although they change nothing: those that read, call
# functions, hold arrays while one step runs, check, or print.
_HARMLESS = frozenset(
    [
        *("ReadVariableOp", "_ReadVariablesOp", "ResourceGather", "ResourceGatherNd"),
        *("VarHandleOp", "VarIsInitializedOp", "VariableShape", "DisableCopyOnRead"),
        *("HashTableV2", "LookupTableFindV2", "LookupTableSizeV2"),
        *("StatefulPartitionedCall", "If", "_If", "Case", "While", "_While", "XlaLaunch"),
        *("TensorArrayV3", "TensorArrayReadV3", "TensorArrayWriteV3", "TensorArrayGatherV3"),
        *("TensorArrayScatterV3", "TensorArrayConcatV3", "TensorArraySplitV3"),
        *("TensorArraySizeV3", "TensorArrayCloseV3", "TensorArrayGradV3"),
        *("Assert", "CheckNumerics", "CheckNumericsV2", "Print", "PrintV2", "Empty"),
        *("StatelessRandomGetAlg", "CudnnRNN", "CudnnRNNV2", "CudnnRNNV3", "CudnnRNNBackprop"),
        *("CudnnRNNBackpropV2", "CudnnRNNBackpropV3", "IsTensorFloat32Enabled", "_Arg", "_Retval"),
    ]
)
_RANDOM = ("Random", "Normal", "Uniform", "Multinomial", "Rng", "Sampler", "NonDeterministicInts")
_STATELESS_FLOW = ("StatelessIf", "StatelessCase", "StatelessWhile")


def refuse_side_effects(graph: tf.Graph) -> None:
    """Refuses a graph that does anything but compute. It is that of one record's loss, or of all
    records' losses, vectorized.

    Raises:
        SideEffectError: names the operation.
    """
    operations = graph.get_operations()
    for op in (*operations, *_inside(graph, operations)):
        _refuse(op)


def refuse_side_effects_of_batch(
    graph: tf.Graph, operations: Sequence[tf.Operation], seeds: tf.Tensor | None
) -> None:
    """Refuses operations on a whole batch that leave something behind, or that draw numbers from a
    seed that somebody may know: a record's would be a function of its row.

    Args:
        graph: The graph that the operations are in.
        operations: Those that were added for the forward pass on the batch.
        seeds: The secret numbers that draws must come from.

    Raises:
        SideEffectError: an operation is refused for single records as well.
        UnsupportedModelError: it is not, so another engine can take it.
    """
    # Inside a function one cannot see where its seed comes from, so no seed is accepted there.
    inside = _inside(graph, operations)
    for op in (*operations, *inside):
        _refuse(op)
    for op in operations:
        if _draws_from_a_seed(op) and not _comes_from(op, seeds):
            _refuse_known_seed(op)
    for op in inside:
        if _draws_from_a_seed(op):
            _refuse_known_seed(op)


def refuse_other_writes(
    graph: Any, operations: Sequence[tf.Operation], variables: Sequence[Any]
) -> None:
    """Refuses operations that leave something behind in anything but some variables.

    Args:
        graph: The graph that the operations are in, which belongs to a function.
        operations: Operations on raw data.
        variables: Variables of Keras that may change.

    Raises:
        SideEffectError: names an operation.
    """
    handles = {id(handle) for variable in variables for handle in handles_of(variable)}
    allowed = {id(inside) for outside, inside in graph.captures if id(outside) in handles}
    for op in operations:
        # A function that writes can only write to the variables that it is called with.
        if not any(_writes(part) for part in (op, *_inside(graph, [op]))):
            continue
        resources = [tensor for tensor in op.inputs if tensor.dtype == tf.resource]
        if not resources or any(id(tensor) not in allowed for tensor in resources):
            raise SideEffectError(
                f"{op.name} ({op.type}) leaves something of the training data behind that is not a "
                "variable of the model's metrics, and that a later step could find. A metric keeps "
                "its state in self.add_variable(...); a loss keeps none."
            )


def refuse_reads(graph: Any, operations: Sequence[tf.Operation], variables: Sequence[Any]) -> None:
    """Refuses operations that take the place of any of some variables.

    Args:
        graph: As in `refuse_other_writes`.
        operations: Those that may not find what is in the variables.
        variables: Variables of Keras.

    Raises:
        SideEffectError: names an operation and a variable.
    """
    names = {id(handle): variable.path for variable in variables for handle in handles_of(variable)}
    held = {id(inside): names[id(o)] for o, inside in graph.captures if id(o) in names}
    for op in operations:
        for tensor in op.inputs:
            if id(tensor) in held:
                raise SideEffectError(
                    f"{op.name} ({op.type}) reads {held[id(tensor)]}, which a metric updates from "
                    "raw training data, so that a step would follow what no noise covers. Weight "
                    "penalties, constraints, learning rates and queries must not depend on "
                    "metrics."
                )


def handles_of(variable: Any) -> list[Any]:
    """Returns the handles of a variable of Keras: one for each replica."""
    values = getattr(variable.value, "values", None)
    parts = values if isinstance(values, (list, tuple)) else [variable.value]
    return [part.handle for part in parts]


class _Op(NamedTuple):
    """What an operation in a function has in common with one in a graph."""

    type: str
    name: str


def _inside(graph: tf.Graph, operations: Sequence[tf.Operation]) -> list[_Op]:
    """Returns the operations in all functions that these operations call."""
    pending = [name for op in operations for name in _called(op.node_def)]
    if not pending:
        return []
    definitions = graph.as_graph_def().library.function
    library = {function.signature.name: function for function in definitions}
    seen, found = set(), []
    while pending:
        name = pending.pop()
        if name in library and name not in seen:
            seen.add(name)
            found += [_Op(node.op, node.name) for node in library[name].node_def]
            pending += [called for node in library[name].node_def for called in _called(node)]
    return found


def _refuse_known_seed(op: Any) -> None:
    raise UnsupportedModelError(
        f"{op.name} draws random numbers for the whole batch from a seed that is not known to be "
        "secret, so what a record gets would follow from its row. Draw with a "
        "keras.random.SeedGenerator of the layer, or use engine='vectorized'."
    )


def _writes(op: tf.Operation | _Op) -> bool:
    """Returns whether an operation may leave something behind where a graph can find it."""
    return _does_more(op) and op.type not in HOST_OPERATIONS and not _is_random(op)


def _does_more(op: tf.Operation | _Op) -> bool:
    """Returns whether an operation does anything but compute its outputs."""
    return op.type not in _HARMLESS and (op.type in HOST_OPERATIONS or is_stateful(op.type))


def _is_random(op: tf.Operation | _Op) -> bool:
    return any(word in op.type for word in _RANDOM)


def _refuse(op: tf.Operation | _Op) -> None:
    kind, name = op.type, op.name
    if not _does_more(op):
        return
    if kind in HOST_OPERATIONS:
        raise SideEffectError(
            f"{name} ({kind}) calls Python for every record, which could keep anything of the "
            "data. Write it with TensorFlow's or Keras' operations."
        )
    if _is_random(op):
        raise SideEffectError(
            f"{name} ({kind}) draws from a stream that all records share, so what one of them gets "
            "follows from how many stand before it. Draw with keras.random and a "
            "keras.random.SeedGenerator of the layer (seed=self.seed_generator): each record then "
            "has fresh randomness of its own."
        )
    if not is_operation(kind):
        raise SideEffectError(
            f"{name} ({kind}) is no operation of TensorFlow, but a function of an older kind, such "
            "as keras.losses.CTC has, or of another library. Nobody looks at what it does, so it "
            "could leave something behind. Write out what it computes (docs/howto.md has the "
            "recursion of CTC)."
        )
    raise SideEffectError(
        f"{name} ({kind}) leaves something behind, such as a value in a tf.Variable or a table. "
        "What one step leaves of the data for the next is covered by no noise. Keep it out of the "
        "forward pass and the loss."
    )


def _draws_from_a_seed(op: tf.Operation | _Op) -> bool:
    """Returns whether an operation draws what follows from a seed that it is given."""
    kind = op.type
    return kind == "RandomIndexShuffle" or (
        kind.startswith("Stateless") and kind not in (*_STATELESS_FLOW, "StatelessRandomGetAlg")
    )


def _comes_from(op: tf.Operation, source: tf.Tensor | None) -> bool:
    """Returns whether an input of an operation depends on a tensor."""
    if source is None:
        return False
    seen, pending = set(), [op]
    while pending:
        op = pending.pop()
        if op.name == source.op.name:
            return True
        if op.name not in seen:
            seen.add(op.name)
            pending += [tensor.op for tensor in op.inputs]
    return False


def _called(node: Any) -> list[str]:
    """Returns the names of the functions that a node calls."""
    names = []
    for value in node.attr.values():
        if value.HasField("func"):
            names.append(value.func.name)
        names += [function.name for function in value.list.func]
    return names
