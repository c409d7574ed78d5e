"""Blocks: layers whose own code calls other layers and operations, run on the whole batch.

The code of a block is traced on a batch of unknown length. What it does between the calls of its
layers is looked at, operation by operation. If all of that is known to keep the records apart, and
the same happens with a batch of one, the block runs on the batch, and every layer in it as its own
rule says. Otherwise the block runs record by record.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdp.gradients.attached import flatten_with_attached
from tfdp.gradients.keras_internals import layers_in
from tfdp.gradients.mapping import holds_records
from tfdp.gradients.record_wise_operations import Kinds, MixesError
from tfdp.noise.attempts import attempt

# What the code of a block may raise where the number of records is unknown.
_ERRORS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError)
_PLUMBING = ("Const", "NoOp", "Pack", "Shape")
# Operations whose second input is the shape of the result.
_TO_SHAPE = ("BroadcastTo", "Reshape")


class Region:
    """The operations that a block makes between the calls of its layers.

    Attributes:
        steps: What the block does, in terms that do not depend on the number of records.

    Args:
        arguments: What the block is called with.
        checked: Whether the operations must be known to keep the records apart.
    """

    def __init__(self, arguments: Any, checked: bool = True):
        self._graph = tf.compat.v1.get_default_graph()
        self._seen = len(self._graph.get_operations())
        self._kinds = Kinds() if checked else None
        self._labels: dict[str, Any] = {}
        self.steps: list[Any] = []
        self._take(arguments, "argument")

    def _take(self, structure: Any, label: Any) -> None:
        for i, leaf in enumerate(flatten_with_attached(structure)[0]):
            if tf.is_tensor(leaf):
                if self._kinds is not None:
                    self._kinds.add_records(leaf)
                self._labels[leaf.name] = (label, i)

    def _labelled(self, structure: Any) -> list[Any]:
        flat = flatten_with_attached(structure)[0]
        return [self._label(leaf) if tf.is_tensor(leaf) else repr(leaf) for leaf in flat]

    def _label(self, tensor: tf.Tensor) -> Any:
        if tensor.name in self._labels:
            return self._labels[tensor.name]
        value = tf.get_static_value(tensor)
        return "other" if value is None else (str(value.dtype), value.shape, value.tobytes())

    def look(self) -> None:
        """Looks at the operations that were made since the last call.

        Raises:
            MixesError: one is not known to keep the records apart.
        """
        operations = self._graph.get_operations()
        for op in operations[self._seen :]:
            if self._kinds is not None:
                self._kinds.add(op)
            if op.type in _PLUMBING or (self._kinds and any(map(self._kinds.is_shape, op.outputs))):
                continue
            inputs = op.inputs[:1] if op.type in _TO_SHAPE else op.inputs
            attributes = sorted(
                (name, str(value))
                for name, value in op.node_def.attr.items()
                if not name.startswith("_")
            )
            self.steps.append((op.type, attributes, [self._label(t) for t in inputs]))
            for i, tensor in enumerate(op.outputs):
                self._labels[tensor.name] = (len(self.steps), i)
        self._seen = len(operations)

    def call(self, layer: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Returns what a layer in the block returns, whose rule answers for it.

        Args:
            layer: In the block.
            call: Its call, by which it is run.
            args: Of the call.
            kwargs: Of the call.
        """
        self.look()
        for leaf in flatten_with_attached((args, kwargs))[0]:
            if tf.is_tensor(leaf) and self._kinds is not None:
                self._must_hold_records(leaf)
        self.steps.append((id(layer), self._labelled((args, kwargs))))
        outputs = call(*args, **kwargs)
        self._seen = len(self._graph.get_operations())
        self._take(outputs, len(self.steps))
        return outputs

    def _must_hold_records(self, tensor: tf.Tensor) -> None:
        if not self._kinds.is_records(tensor):
            raise MixesError(f"a layer is called on {tensor.name}, which holds no records")

    def finish(self, outputs: Any) -> None:
        """Looks at the last operations, and at what the block returns."""
        self.look()
        for leaf in flatten_with_attached(outputs)[0]:
            if not tf.is_tensor(leaf):
                raise MixesError("it returns something that is not a tensor")
            if self._kinds is not None:
                self._must_hold_records(leaf)
        self.steps.append(self._labelled(outputs))


class Blocks:
    """Which blocks of a model run on the batch.

    Attributes:
        reasons: Why a block runs record by record, by its identity.
    """

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self._regions: list[Region] = []
        self._trying = False

    @property
    def trying(self) -> bool:
        """Whether a block is being tried out: layers in it then run as their own code says."""
        return self._trying

    @property
    def region(self) -> Region | None:
        """The innermost block that is running; None where there is none."""
        return self._regions[-1] if self._regions else None

    @contextlib.contextmanager
    def within(self, region: Region | None) -> Iterator[None]:
        """Makes calls of layers in the block of code calls in this region, or in none."""
        before, self._regions = self._regions, [] if region is None else [region]
        try:
            yield
        finally:
            self._regions = before

    def steps_of(
        self, block: Any, call: Callable[..., Any], args: Any, kwargs: Any
    ) -> list[Any] | None:
        """Returns what a call of a block does, as `Region.steps`, if it is known to keep the
        records apart, and None if it is not.

        Args:
            block: A layer that calls other layers.
            call: Its call, by which it is run.
            args: Of the call.
            kwargs: Of the call.
        """
        if id(block) in self.reasons:
            return None
        try:
            return self._try(call, args, kwargs)
        except (MixesError, *_ERRORS) as error:
            self.reasons[id(block)] = str(error).split("\n")[0]
            return None

    def _try(self, call: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
        leaves, rebuild = flatten_with_attached((args, kwargs), _tensors_at((args, kwargs)))
        if not leaves or not all(map(holds_records, leaves)):
            raise MixesError("it is called on something without an axis of records")
        steps: list[list[Any]] = []
        for rows in (None, 1):

            def run(*tensors, rows=rows):
                new_args, new_kwargs = rebuild(tensors)
                region = Region((new_args, new_kwargs), checked=rows is None)
                with self.within(region):
                    region.finish(call(*new_args, **new_kwargs))
                steps.append(region.steps)
                return tf.zeros([])

            specs = [tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype) for leaf in leaves]
            before, self._trying = self._trying, True
            try:
                with attempt():
                    tf.function(run, autograph=False).get_concrete_function(*specs)
            finally:
                self._trying = before
        if steps[0] != steps[1]:
            raise MixesError("it does something else with a batch of one")
        return steps[0]


def _tensors_at(structure: Any) -> list[int]:
    return [i for i, leaf in enumerate(tf.nest.flatten(structure)) if tf.is_tensor(leaf)]


def weights_outside_of_layers(block: Any, wanted: list[Any]) -> bool:
    """Returns whether a block has weights, among the wanted ones, that no layer in it has."""
    inside = {id(v) for layer in layers_in(block) for v in layer.weights}
    return any(id(v) not in inside for v in wanted)
