"""The operations that the code of a block makes between the calls of its layers."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import keras
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
from tfdp.gradients.static_values import static_value
from tfdp.gradients.steps import Steps, tensors_in

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
        self.steps = Steps(self._kinds)
        self._draws = Draws(secret)
        self._weights, self._parts, self._runner = weights, parts, runner
        self.asks_for: Any = None
        self.borrows: Any = None
        self.parts_records = False
        self._in_layer = False
        # Results of operations that could mix records, with why, and a weight that they read.
        self._refused: dict[str, tuple[MixesError, Any]] = {}
        # Of each record, whether the places exist at which it reads.
        self._good: list[tf.Tensor] = []
        for i, weight in enumerate(weights):
            self.steps.note(weight, ("weight", i))
            if self._kinds is not None:
                self._kinds.add_constant(weight)
        self._like = next(filter(holds_records, tensors_in(arguments)), None)
        self._take(arguments, "argument")

    def _take(self, structure: Any, label: Any, rows: int = 1) -> None:
        for i, (leaf, name) in enumerate(_with_names(structure)):
            # The logits that a softmax attaches may be what it was called on, which is known.
            is_known = name not in (None, MASK) and self.steps.label(leaf) != "other"
            if tf.is_symbolic_tensor(leaf) and not is_known:
                if self._kinds is not None:
                    self._kinds.add_rows(leaf, rows)
                self.steps.note(leaf, (label, i))

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
            self.steps.add(op)
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
        for leaf in tensors_in(structure):
            if tf.is_symbolic_tensor(leaf) and leaf.name in self._refused:
                self._refuse(*self._refused[leaf.name])

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
        self.steps.add_use((id(layer), self.steps.labels_in((args, kwargs))), (args, kwargs))
        self.parts_records |= rows != 1
        if of_one:
            args, kwargs = self.for_all_records((args, kwargs), of_one)
        with in_rows(rows) if rows != 1 else contextlib.nullcontext(), self._in_a_layer():
            outputs = self._runner(layer, run, args, kwargs)
        tensors, rebuild = tensors_of(outputs)
        if any(map(self.steps.has, tensors)):
            # It returns what it was called on, as dropout at rate zero does: what follows may use
            # one or the other.
            outputs = rebuild(tensors)
        if self._kinds is not None and rows == 1:
            # A mask that is the same for all records may have been handed on.
            attached = [leaf for leaf, name in _with_names(outputs) if name is not None]
            same = {id(leaf) for leaf in filter(self._is_of_one, attached)}
            outputs = self.for_all_records(outputs, same) if same else outputs
        self._seen = len(self._graph.get_operations())
        self._take(outputs, len(self.steps.done), rows)
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
        self.steps.note(nearest, self.steps.label(places))
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
        labels = self.steps.labels_in(arguments)
        self.steps.add_use((id(layer), ["compute_mask", *labels]), arguments)
        with self._in_a_layer():
            masks = compute()
        self._seen = len(self._graph.get_operations())
        self._take(masks, len(self.steps.done))
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
        leaves = tensors_in(arguments)
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
        self.steps.add_use(self.steps.labels_in(outputs), outputs)
        if self._kinds is not None:
            of_one = {id(leaf) for leaf in tensors_in(outputs) if self._is_of_one(leaf)}
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
