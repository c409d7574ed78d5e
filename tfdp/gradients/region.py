"""The operations that the code of a block makes between the calls of its layers."""

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.gradients.attached import flatten_with_attached, tensors_of
from tfdp.gradients.bounds import are_places
from tfdp.gradients.draws import DRAWS, Draws
from tfdp.gradients.indices import nowhere
from tfdp.gradients.keras_internals import (
    ATTACHED,
    MASK,
    changing_inputs,
    functions_inlined,
    is_stateful,
)
from tfdp.gradients.mapping import holds_records
from tfdp.gradients.record_wise_operations import Kinds, MixesError
from tfdp.gradients.static_values import static_value, value_from_outside, values_of

_PLUMBING = ("Assert", "Const", "NoOp", "Shape")
# The operands of operations that have a shape beside them.
_OPERANDS = {
    "BroadcastTo": slice(1),
    "Fill": slice(1, 2),
    "Reshape": slice(1),
    "Slice": slice(2),
    "Tile": slice(1),
    **dict.fromkeys(DRAWS, slice(4, None)),
}

# Makes so many consecutive rows of a batch one record.
InRows = Callable[[int], contextlib.AbstractContextManager[None]]
# Runs a layer in a block, given the layer, its call, args and kwargs.
Runner = Callable[[Any, Callable[..., Any], Any, Any], Any]


def _run(layer: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return call(*args, **kwargs)


class Region:
    """The operations that a block makes between the calls of its layers.

    Attributes:
        steps: What the block does, in terms that do not depend on the number of records.
        shapes: What is known of the shapes of the tensors in each step.
        asks_for: The layer that was called on constants only, where there is one. Its code must be
            a part of the block's.
        borrows: The weight of a layer in the block that the block's code was seen to read itself.
        parts_records: Whether a layer was called on several rows of each record.

    Args:
        arguments: What the block is called with.
        weights: Values of the weights that the block reads itself: constants.
        parts: Identities of layers whose code is a part of the block's.
        checked: Whether the operations must be known to keep the records apart.
        runner: Runs the layers.
        secret: The seed of a batch that draws as a whole, if the block may draw from it.
        lent: Weights of layers in the block, by the identity of what they are outside of its graph.
    """

    def __init__(
        self,
        arguments: Any,
        weights: Sequence[tf.Tensor] = (),
        parts: Collection[int] = (),
        checked: bool = True,
        runner: Runner = _run,
        secret: tf.Tensor | None = None,
        lent: Mapping[int, Any] | None = None,
    ):
        self._lent = lent or {}
        self._graph = tf.compat.v1.get_default_graph()
        self._seen = len(self._graph.get_operations())
        self._kinds = Kinds() if checked else None
        self._draws = Draws(secret)
        self._labels: dict[str, Any] = {}
        # What every record has, [1, ...], or its rows, [k, ...].
        self._for_one: dict[str, np.ndarray] = {}
        self._weights, self._parts, self._runner = weights, parts, runner
        self.steps: list[Any] = []
        self.shapes: list[list[tf.TensorShape]] = []
        self.asks_for: Any = None
        self.borrows: Any = None
        self.parts_records = False
        self._in_layer = False
        # Results of operations that could mix records, with why, and a weight that they read.
        self._refused: dict[str, tuple[MixesError, Any]] = {}
        # Of each record, whether the places exist at which it reads.
        self._good: list[tf.Tensor] = []
        for i, weight in enumerate(weights):
            self._labels[weight.name] = ("weight", i)
            if self._kinds is not None:
                self._kinds.add_constant(weight)
        self._like = next(filter(holds_records, _tensors(arguments)), None)
        self._take(arguments, "argument")

    def _take(self, structure: Any, label: Any, rows: int = 1) -> None:
        for i, (leaf, name) in enumerate(_with_names(structure)):
            # The logits that a softmax attaches may be what it was called on, which is known.
            is_known = name not in (None, MASK) and self._label(leaf) != "other"
            if tf.is_symbolic_tensor(leaf) and not is_known:
                if self._kinds is not None:
                    self._kinds.add_rows(leaf, rows)
                self._labels[leaf.name] = (label, i)

    def _labelled(self, structure: Any) -> list[Any]:
        flat = flatten_with_attached(structure)[0]
        return [self._label(leaf) if tf.is_tensor(leaf) else repr(leaf) for leaf in flat]

    def _label(self, tensor: tf.Tensor) -> Any:
        if tf.is_symbolic_tensor(tensor) and tensor.name in self._labels:
            return self._labels[tensor.name]
        value = None
        if self._kinds is not None and tf.is_symbolic_tensor(tensor):
            value = self._kinds.lengths_for_one(tensor)
        value = static_value(tensor) if value is None else value
        return "other" if value is None else _as_label(value)

    def look(self) -> None:
        """Looks at the operations that were made since the last call.

        Raises:
            MixesError: one is not known to keep the records apart, and does more than compute.
        """
        operations = self._graph.get_operations()
        for op in operations[self._seen :]:
            if self._draws.makes_a_seed(op):
                continue
            if self._kinds is not None:
                self._add(op)
            if self._is_plumbing(op) or self._is_known_for_one(op):
                continue
            if _stays_as_it_is(op) or self._keeps_its_shape(op):
                self._labels[op.outputs[0].name] = self._label(op.inputs[0])
                continue
            filled = _what_fills(op)
            if filled is not None:
                self._labels[op.outputs[0].name] = _filled(filled)
                continue
            kind, names, inputs = op.type, set(op.node_def.attr), op.inputs
            squeezed = _squeezed_for(op)
            bias = None if squeezed is None else op.inputs[1].name
            if bias is not None and self._labels.get(bias) == (len(self.steps), 0):
                self.steps.pop()
                self.shapes.pop()
                self._labels[bias] = ("squeezed", self._label(squeezed))
                kind, names, inputs = "AddV2", {"T"}, [op.inputs[0], squeezed]
            inputs = inputs[_OPERANDS.get(kind, slice(None))]
            attributes = sorted(
                (name, str(op.node_def.attr[name])) for name in names if not name.startswith("_")
            )
            self.steps.append((kind, attributes, [self._label(t) for t in inputs]))
            self.shapes.append([t.shape for t in (*inputs, *op.outputs)])
            for i, tensor in enumerate(op.outputs):
                self._labels[tensor.name] = (len(self.steps), i)
        self._seen = len(operations)

    def _add(self, op: tf.Operation) -> None:
        """Finds out what the results of an operation are. What is not known to keep the records
        apart may be made, and may not lead to anything.
        """
        refused = next((self._refused[t.name] for t in op.inputs if t.name in self._refused), None)
        if refused is None:
            try:
                self._kinds.add(op, drawn=op.type in DRAWS and self._draws.use(op))
                return
            except MixesError as error:
                inner = {id(tensor) for tensor in (*op.inputs, *op.outputs)}
                captures = getattr(self._graph, "captures", ())
                lent = (self._lent.get(id(outer)) for outer, t in captures if id(t) in inner)
                refused = error, next((weight for weight in lent if weight is not None), None)
        self._refused |= {tensor.name: refused for tensor in op.outputs}
        if not op.outputs or is_stateful(op.type):
            self._refuse(*refused)

    def _refuse(self, error: MixesError, borrows: Any) -> None:
        self.borrows = borrows
        raise error

    def _check_uses(self, structure: Any) -> None:
        """Refuses tensors that come from what is not known to keep the records apart."""
        for leaf in _tensors(structure):
            if tf.is_symbolic_tensor(leaf) and leaf.name in self._refused:
                self._refuse(*self._refused[leaf.name])

    def _is_plumbing(self, op: tf.Operation) -> bool:
        """Returns whether an operation is about shapes, or gives what is known beforehand."""
        if op.type in _PLUMBING:
            return True
        if op.outputs and all(_is_known(tensor) for tensor in op.outputs):
            return True
        return self._kinds is not None and any(map(self._kinds.is_shape, op.outputs))

    def _keeps_its_shape(self, op: tf.Operation) -> bool:
        """Returns whether an operation gives a tensor the shape that it has."""
        if op.type != "Reshape":
            return False
        before, after = op.inputs[0].shape, op.outputs[0].shape
        if not before.rank or before.rank != after.rank or not before[1:].is_fully_defined():
            return False
        rows = None if self._kinds is None else self._kinds.rows_of(op.inputs[0])
        if rows is None:
            as_long = before[0] is not None and before[0] == after[0]
        else:
            as_long = rows == self._kinds.rows_of(op.outputs[0])
        return as_long and list(before[1:]) == list(after[1:])

    def _is_known_for_one(self, op: tf.Operation) -> bool:
        """Returns whether all results of an operation would be known beforehand, had the batch one
        record, and notes them: then every record has the same integers.
        """
        if self._kinds is None or not all(result.dtype.is_integer for result in op.outputs):
            return False
        values = self._values_for_one(op)
        for tensor, value in zip(op.outputs, values, strict=False):
            self._for_one[tensor.name] = value
            self._labels[tensor.name] = _as_label(value)
        return bool(values)

    def _values_for_one(self, op: tf.Operation) -> list[np.ndarray]:
        filled = _what_fills(op)
        if filled is not None:
            rows, sizes = self._kinds.rows_of(op.outputs[0]), op.outputs[0].shape[1:]
            if rows is None or not sizes.is_fully_defined():
                return []
            return [np.full([rows, *sizes], filled)]
        if not any(t.name in self._for_one or self._kinds.is_shape(t) for t in op.inputs):
            return []
        return values_of(op, [self._value_for_one(t) for t in op.inputs]) or []

    def _value_for_one(self, tensor: tf.Tensor) -> np.ndarray | None:
        if tensor.name in self._for_one:
            return self._for_one[tensor.name]
        value = self._kinds.lengths_for_one(tensor)
        return static_value(tensor) if value is None else value

    def call(
        self,
        layer: Any,
        run: Callable[..., Any],
        code: Callable[..., Any],
        args: Any,
        kwargs: Any,
        in_rows: InRows,
        notes_inputs: bool = True,
    ) -> Any:
        """Returns what a layer in the block returns.

        Args:
            layer: In the block.
            run: Runs it as its own rule says.
            code: Runs its code, which is then a part of the block's.
            args: Of the call.
            kwargs: Of the call.
            in_rows: Makes so many consecutive rows of a batch one record while the layer runs.
            notes_inputs: Whether gradients of the layer's weights may follow from what it is called
                on. They do not where layers in it have all of them.

        Raises:
            MixesError: the block is not known to keep the records apart, or `in_rows` knows that
                the layer may not be called on several rows of a record.
        """
        self.look()
        if id(layer) in self._parts:
            return code(*args, **kwargs)
        of_one: set[int] = set()
        notes_inputs = notes_inputs and bool(layer.weights)
        rows = self._rows_of_call(layer, (args, kwargs), notes_inputs, of_one)
        self.steps.append((id(layer), self._labelled((args, kwargs))))
        self.shapes.append([t.shape for t in _tensors((args, kwargs))])
        self.parts_records |= rows != 1
        if of_one:
            args, kwargs = self.for_all_records((args, kwargs), of_one)
        with in_rows(rows) if rows != 1 else contextlib.nullcontext(), self._in_a_layer():
            outputs = self._runner(layer, run, args, kwargs)
        tensors, rebuild = tensors_of(outputs)
        if any(tf.is_symbolic_tensor(t) and t.name in self._labels for t in tensors):
            # It returns what it was called on, as dropout at rate zero does: what follows may use
            # one or the other.
            outputs = rebuild(tensors)
        self._seen = len(self._graph.get_operations())
        self._take(outputs, len(self.steps), rows)
        return outputs

    @contextlib.contextmanager
    def _in_a_layer(self) -> Iterator[None]:
        self._in_layer = True
        try:
            with functions_inlined(False):
                yield
        finally:
            self._in_layer = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Lets the code of the block, in a `with` statement, call functions, whose code is then a
        part of it, and read at places that records name. Of a record that names one that does not
        exist, the block returns NaN.
        """
        with functions_inlined():
            if self._kinds is None:
                yield
                return
            with changing_inputs(self._graph, self._at_places_that_exist):
                yield

    def _at_places_that_exist(self, kind: str, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        if kind != "GatherV2" or self._in_layer:
            return inputs
        self.look()
        tensor, places, axis = inputs
        rows, along = self._kinds.rows_of(places), static_value(axis)
        size = None if along is None or tensor.shape.rank is None else tensor.shape[int(along)]
        if rows is None or not size or are_places(places, size):
            return inputs
        nearest = tf.clip_by_value(places, 0, min(size - 1, places.dtype.max))
        good = tf.reduce_all(nearest == places, range(1, places.shape.rank))
        self._good.append(tf.reduce_all(tf.reshape(good, [-1, rows]), 1))
        self._labels[nearest.name] = self._label(places)
        self._kinds.add_rows(nearest, rows)
        self._seen = len(self._graph.get_operations())
        return [tensor, nearest, axis]

    def mask(self, layer: Any, compute: Callable[[], Any], arguments: Any) -> Any:
        """Returns the masks of what a layer in the block returns, by its own method, which looks at
        every record by itself.

        Args:
            layer: In the block.
            compute: Gives the masks.
            arguments: What they are computed of.

        Raises:
            MixesError: As for `call`, or a record has several rows.
        """
        self.look()
        if self._rows_of_call(layer, arguments, True) != 1:
            raise MixesError(f"{layer.name} makes masks of rows of records")
        self.steps.append((id(layer), ["compute_mask", *self._labelled(arguments)]))
        self.shapes.append([t.shape for t in _tensors(arguments)])
        with self._in_a_layer():
            masks = compute()
        self._seen = len(self._graph.get_operations())
        self._take(masks, len(self.steps))
        return masks

    def _rows_of_call(
        self, layer: Any, arguments: Any, notes_inputs: bool, of_one: set[int] | None = None
    ) -> int:
        """Returns how many rows of what a layer is called on are one record.

        Args:
            layer: In the block.
            arguments: What it is called on.
            notes_inputs: As for `call`.
            of_one: Gets the identities of constants of one row that must hold records; by default
                they are refused.
        """
        if self._kinds is None:
            return 1
        leaves = _tensors(arguments)
        self._check_uses(leaves)
        if any(tf.is_symbolic_tensor(t) and _is_within(t.graph, self._graph) for t in leaves):
            raise MixesError(f"{layer.name} is called in a loop or branch of TensorFlow")
        for leaf in leaves:
            if isinstance(leaf, keras.Variable):
                raise MixesError(f"{layer.name} is called on {leaf.name}, which holds no records")
        rows = {self._kinds.rows_of(leaf) for leaf in leaves} - {None}
        if any(map(self._kinds.is_moved, leaves)):
            raise MixesError(f"{layer.name} is called where its code moves the axis of records")
        if len(rows) != 1:
            if all(map(self._kinds.is_constant, leaves)):
                self.asks_for = layer
            raise MixesError(f"{layer.name} is called on something that holds no records")
        number = rows.pop()
        for leaf in leaves:
            # Gradients of the block's weights are looked for at records only, and a rule for
            # weights of the layer needs records.
            smooth = leaf.dtype.is_floating or notes_inputs
            if of_one is not None and number == 1 and self._is_of_one(leaf) and smooth:
                of_one.add(id(leaf))
            elif not (self._kinds.is_constant(leaf) and not smooth):
                self._must_hold_records(leaf, f"{layer.name} is called on", number)
        return number

    def _is_of_one(self, tensor: tf.Tensor) -> bool:
        """Returns whether a tensor is a constant with one row."""
        return self._kinds.is_constant(tensor) and bool(tensor.shape.rank) and tensor.shape[0] == 1

    def for_all_records(self, structure: Any, tensors: Collection[int]) -> Any:
        """Returns a structure in which some tensors of one row have as many as there are records.

        Args:
            structure: Any.
            tensors: The identities of those.
        """
        leaves, rebuild = tensors_of(structure)
        number = tf.shape(self._like)[:1]

        def repeated(leaf):
            if id(leaf) not in tensors:
                return leaf
            found = tf.broadcast_to(leaf, tf.concat([number, tf.shape(leaf)[1:]], 0))
            found.set_shape([None, *leaf.shape[1:]])
            return found

        return rebuild([repeated(leaf) for leaf in leaves])

    def _must_hold_records(self, tensor: tf.Tensor, what: str, rows: int = 1) -> None:
        if self._kinds.is_moved(tensor):
            raise MixesError(f"{what} {tensor.name}, for which it moves the axis of records")
        if self._kinds.rows_of(tensor) != rows:
            # A tensor that was made eagerly has no name.
            name = getattr(tensor, "name", "a constant")
            raise MixesError(f"{what} {name}, which holds no records")

    def finish(self, outputs: Any) -> Any:
        """Looks at the last operations, and at what the block returns.

        Returns:
            What it returns, for every record, but for those that have read at places that do not
            exist.
        """
        self.look()
        self._check_uses(outputs)
        for leaf in flatten_with_attached(outputs)[0]:
            if leaf is None:
                continue
            if not tf.is_tensor(leaf):
                raise MixesError("it returns something that is not a tensor")
            if self._kinds is not None and not self._is_of_one(leaf):
                self._must_hold_records(leaf, "it returns")
        self.steps.append(self._labelled(outputs))
        self.shapes.append([t.shape for t in _tensors(outputs)])
        if self._kinds is not None:
            of_one = {id(leaf) for leaf in _tensors(outputs) if self._is_of_one(leaf)}
            outputs = self.for_all_records(outputs, of_one) if of_one else outputs
        if not self._good:
            return outputs
        tensors, rebuild = tensors_of(outputs)
        good = tf.reduce_all(tf.stack(self._good), 0)
        return rebuild(
            [
                tf.where(tf.reshape(good, [-1] + [1] * (t.shape.rank - 1)), t, nowhere(t))
                for t in tensors
            ]
        )

    def same_as(self, other: Any) -> bool:
        """Returns whether a block did what it does in another region, or did when it was tried out,
        with as many numbers of each record, as far as that is known.
        """
        if self.steps != other.steps:
            return False
        shapes, others = itertools.chain(*self.shapes), itertools.chain(*other.shapes)
        return all(a.is_compatible_with(b) for a, b in zip(shapes, others, strict=True))


def _is_within(graph: Any, outer: Any) -> bool:
    """Returns whether a graph is one of a function in another graph."""
    while graph is not None and graph is not outer:
        graph = getattr(graph, "outer_graph", None)
        if graph is outer:
            return True
    return False


def _with_names(structure: Any) -> Iterator[tuple[Any, str | None]]:
    """Yields the leaves of a structure, and what Keras attached to them, with the names under which
    it did.
    """
    leaves = tf.nest.flatten(structure)
    yield from ((leaf, None) for leaf in leaves)
    for leaf in leaves:
        for name in ATTACHED:
            if (attached := getattr(leaf, name, None)) is not None:
                yield attached, name


def _tensors(structure: Any) -> list[tf.Tensor]:
    return [leaf for leaf in flatten_with_attached(structure)[0] if tf.is_tensor(leaf)]


def _is_known(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor holds what was known beforehand: lengths, axes and places."""
    if value_from_outside(tensor) is not None:
        return True
    return tensor.dtype.is_integer and static_value(tensor) is not None


def _stays_as_it_is(op: tf.Operation) -> bool:
    """Returns whether an operation puts axes in the order that they have."""
    order = static_value(op.inputs[1]) if op.type == "Transpose" else None
    return order is not None and list(order) == list(range(len(order)))


def _squeezed_for(op: tf.Operation) -> tf.Tensor | None:
    """Returns what an operation adds to another tensor along its last axis, given that it is all
    that has been squeezed, and for this only: what `keras.ops.add` makes of the sum of two tensors
    of one row.
    """
    if op.type != "BiasAdd" or op.inputs[1].op.type != "Squeeze":
        return None
    if len(op.inputs[1].consumers()) > 1:
        return None
    squeeze, shape = op.inputs[1].op, op.inputs[1].op.inputs[0].shape
    along_last = op.get_attr("data_format") == b"NHWC" and not squeeze.get_attr("squeeze_dims")
    one_row = shape.is_fully_defined() and set(shape[:-1]) == {1}
    fits = along_last and one_row and shape.rank <= op.inputs[0].shape.rank
    return squeeze.inputs[0] if fits else None


def _what_fills(op: tf.Operation) -> Any:
    """Returns the number that an operation fills a tensor with, or None if it does something else,
    or fills it with a number that is not known.
    """
    if op.type == "Fill":
        return static_value(op.inputs[1])
    if op.type in ("OnesLike", "ZerosLike"):
        dtype = op.outputs[0].dtype.as_numpy_dtype
        return np.ones((), dtype) if op.type == "OnesLike" else np.zeros((), dtype)
    return None


def _as_label(value: Any) -> Any:
    value = np.asarray(value)
    if value.dtype == object:  # Texts: what NumPy keeps are places in the memory.
        return repr(value.tolist())
    # TensorFlow makes a constant of zeros and ones where it knows how many.
    if value.size and (value == value.flat[0]).all():
        return _filled(value)
    return (str(value.dtype), value.shape, value.tobytes())


def _filled(value: np.ndarray) -> tuple[str, str, bytes]:
    return ("filled", str(value.dtype), value.flat[0].tobytes())
