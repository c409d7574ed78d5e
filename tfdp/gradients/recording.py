"""What the layers of a model received and returned, and the gradients that follow."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.gradients.attached import copy_attached
from tfdp.gradients.blocks import Blocks
from tfdp.gradients.effects import handles_of
from tfdp.gradients.forms.per_record import Explicit, PerRecordGradient, combine
from tfdp.gradients.forms.rows import Rows
from tfdp.gradients.keras_internals import replaced, values_in
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.lost_gradients import refuse_lost_gradients
from tfdp.gradients.record_scope import RecordScope, Seeds
from tfdp.gradients.record_wise_operations import MixesError
from tfdp.gradients.tables import RowsOfTable
from tfdp.numerics.norms import to_accumulate


class Tap:
    """A place in the forward pass, as a tensor, whose gradient the backward pass will give."""

    tensor: tf.Tensor | None = None


class _Use(NamedTuple):
    tap: Tap
    variable: Any
    gradients: Callable[[tf.Tensor], PerRecordGradient]


class _JointUse(NamedTuple):
    taps: list[Tap]
    # Variables, each with the indices of those taps on which its gradients depend.
    variables: list[tuple[Any, list[int]]]
    gradients: Callable[[list[tf.Tensor]], Sequence[Any]]
    together: Callable[[PerRecordGradient], PerRecordGradient]


class Treatment(NamedTuple):
    """What was done with one call of a layer.

    Attributes:
        path: The names of the blocks that it is in, from the outermost one on, and its own.
        operation: The layer.
        words: What was done.
    """

    path: tuple[str, ...]
    operation: Any
    words: str


class Recording:
    """What the layers of a model received and returned, as far as gradients of weights follow from
    it.

    Attributes:
        scope: The scope in which the model runs on the batch.
        wanted: Identities of the variables whose gradients are wanted.
        seeds_of_batch: As `seeds` below.
        seeds_of_records: Likewise.
        together: How many consecutive rows are one record: more than one in `rows_of_records`.
        in_rows_of_blocks: Whether rows are such that a block's code made (`rows_of_blocks`).
        inside_layer: Whether a watched layer is running. Calls of the layers in it are then a part
            of its own call.
        blocks: Which blocks of the model run on the batch.
        treatments: What was done with every call of a watched layer, in this order.
        added_losses: (layer, [n, ...]) pairs: what layers have added to the loss of each record.

    Args:
        tape: A persistent or one-shot tape that does not watch variables by itself.
        variables: The variables whose gradients are wanted.
        seeds: int64 [2] for the batch and [n, 2] for its records; None where nothing draws.
        metrics: Variables whose updates are dropped.

    Raises:
        UnsupportedModelError: one is not a `keras.Variable`.
    """

    def __init__(
        self,
        tape: tf.GradientTape,
        variables: Sequence[Any],
        seeds: tuple[tf.Tensor, tf.Tensor] | None = None,
        metrics: Sequence[Any] = (),
    ):
        self._tape = tape
        self.seeds_of_batch, self.seeds_of_records = seeds or (None, None)
        self._metrics = metrics
        self._blocks = itertools.count(1)
        self._variables = list(variables)
        for variable in self._variables:
            if not isinstance(variable, keras.Variable):
                raise UnsupportedModelError(
                    "The book-keeping engine needs the model's own variables, "
                    f"model.trainable_variables. Received: {variable!r}. Pass those, or use "
                    "engine='vectorized'."
                )
        self.wanted = {id(v) for v in self._variables}
        # Asked for before a scope says what variables read as.
        self._handles = [(handle, v.path) for v in self._variables for handle in handles_of(v)]
        self._uses: list[_Use] = []
        self._joint_uses: list[_JointUse] = []
        self._found: list[tuple[Any, ...]] = []
        self.together: int | tf.Tensor = 1
        # The number of each row in its record, or [1] where all are the first.
        self._row_in_record = tf.zeros([1], tf.int64)
        self.in_rows_of_blocks = False
        self.inside_layer = False
        self.treatments: list[Treatment] = []
        self.added_losses: list[tuple[keras.Layer, tf.Tensor]] = []
        self._path: list[str] = []
        # While the model runs, a variable reads as its alias, except inside the layer that owns it.
        # So a use of the variable that no rule knows of gives the alias a gradient, and is noticed.
        self._aliases = _readings(self._variables)
        self._tape.watch(self._aliases)
        self.blocks = Blocks(self.values, self.seeds_of_batch, self.aliases)
        self.scope = RecordScope(Seeds(self.seeds_of_batch), self.aliases, metrics)

    @property
    def aliases(self) -> list[tuple[Any, tf.Tensor]]:
        """(variable, watched value) pairs, for code that is not part of a layer."""
        return list(zip(self._variables, self._aliases, strict=True))

    def aliases_of(self, variables: Sequence[Any]) -> list[tuple[Any, tf.Tensor]]:
        """Returns those of `aliases` that are of these variables."""
        chosen = {id(v) for v in variables}
        return [(v, alias) for v, alias in self.aliases if id(v) in chosen]

    # For rules.

    def watch(self, tensor: tf.Tensor) -> Tap:
        """Returns a tap whose `tensor` must take the place of this one from here on."""
        tap = Tap()
        # The tensor may also be used elsewhere. The identity is used here only, so the gradient at
        # it holds nothing of those other uses.
        tap.tensor = tf.identity(tensor)
        copy_attached(tensor, tap.tensor)
        self._tape.watch(tap.tensor)
        return tap

    @contextlib.contextmanager
    def before_activation(self, layer: keras.Layer) -> Iterator[Tap]:
        """Gives a tap in front of `layer.activation`, which sees its tensor in the block."""
        tap, activation = Tap(), layer.activation

        def watched(tensor, *args, **kwargs):
            tap.tensor = self.watch(tensor).tensor
            return activation(tap.tensor, *args, **kwargs)

        with self.replaced(layer, "activation", watched):
            yield tap

    @staticmethod
    def replaced(owner: Any, name: str, value: Any) -> contextlib.AbstractContextManager[None]:
        """Gives an attribute another value in the block; Keras, which tracks assignments, does not
        see it.
        """
        return replaced(owner, name, value)

    @contextlib.contextmanager
    def values(self, mapping: Sequence[tuple[Any, tf.Tensor]]) -> Iterator[None]:
        """Makes variables read as other values in the block.

        Raises:
            MixesError: something was assigned to a metric in it, which would go on with numbers of
                all records.
        """
        values = values_in(self.scope)
        before = dict(values)
        values.update({id(variable): value for variable, value in mapping})
        during = dict(values)
        try:
            yield
            if any(values.get(key) is not value for key, value in during.items()):
                raise MixesError("it updates a metric")
        finally:
            values.clear()
            values.update(before)

    def add(
        self, tap: Tap, variable: Any, gradients: Callable[[tf.Tensor], PerRecordGradient]
    ) -> None:
        """Says how a variable's gradients follow from the gradient at a tap.

        Args:
            tap: A tap of this recording.
            variable: A variable; nothing happens where its gradient is not wanted, or where it is
                None.
            gradients: Called with the gradient at the tap, [n, ...], float32 or float64.
        """
        if variable is not None and id(variable) in self.wanted:
            together = self.summed()
            self._uses.append(
                _Use(tap, variable, lambda g: together(_checked(gradients(g), variable, g)))
            )

    def add_joint(
        self,
        taps: list[Tap],
        variables: list[tuple[Any, list[int]]],
        gradients: Callable[[list[tf.Tensor]], Sequence[Any]],
    ) -> None:
        """Says how gradients of several variables follow from those at several taps.

        Args:
            taps: Taps of this recording.
            variables: Variables, each with the indices of those taps on which its gradients depend.
            gradients: From the gradients at the taps, [n, ...] each, scaled, to those of the
                variables: explicit ones, [n, ...], or `RowsOfTable`.
        """
        self._joint_uses.append(_JointUse(list(taps), variables, gradients, self.summed()))

    @contextlib.contextmanager
    def rows_of_records(self, size: int | tf.Tensor) -> Iterator[None]:
        """In the block, takes so many consecutive rows of a batch for one record. What runs in it
        must treat every row separately.

        Args:
            size: At least one; blocks in a block multiply.
        """
        before = self.together, self.seeds_of_records, self._row_in_record
        self.together = size * self.together
        if self.seeds_of_records is not None:
            # No two rows of a record draw the same: the seed is the record's plus the row's number,
            # counted through all blocks.
            length = tf.cast(size, tf.int64)
            row = self._row_in_record[:, tf.newaxis] * length + tf.range(length, dtype=tf.int64)
            row += tf.zeros_like(self.seeds_of_records[:, :1])
            apart = row - self._row_in_record[:, tf.newaxis]
            apart = tf.stack([apart, tf.zeros_like(apart)], -1)
            self.seeds_of_records = tf.ensure_shape(
                tf.reshape(self.seeds_of_records[:, tf.newaxis] + apart, [-1, 2]), [None, 2]
            )
            self._row_in_record = tf.reshape(row, [-1])
        try:
            yield
        finally:
            self.together, self.seeds_of_records, self._row_in_record = before

    @contextlib.contextmanager
    def rows_of_blocks(self, size: int) -> Iterator[None]:
        """As `rows_of_records`, for a layer that the code of a block calls on such rows. There is
        no running it record by record: in Keras it sees all rows of a record.
        """
        before, self.in_rows_of_blocks = self.in_rows_of_blocks, True
        try:
            with self.rows_of_records(size):
                yield
        finally:
            self.in_rows_of_blocks = before

    def summed(self) -> Callable[[PerRecordGradient], PerRecordGradient]:
        """Returns what makes gradients of records from those of rows that are seen now."""
        size = self.together
        if isinstance(size, int) and size == 1:
            return lambda gradients: gradients
        return lambda gradients: gradients.grouped(None, size)

    def value_of(self, variable: Any) -> tf.Tensor:
        """Returns the value of a variable as a tensor that has no gradient."""
        aliases = self.aliases_of([variable])
        return tf.stop_gradient(tf.convert_to_tensor(aliases[0][1] if aliases else variable.value))

    # For the engine.

    def record_scopes(self) -> Callable[..., RecordScope]:
        """Returns a function that makes the scope in which some code runs on a single record. Its
        arguments are the record's seeds, [2] or None, and (variable, value) pairs. No other code
        draws the same random numbers.
        """
        block = next(self._blocks)
        return lambda seeds, mapping: RecordScope(Seeds(seeds, block), mapping, self._metrics)

    def refuse_lost_gradients(self, values: Sequence[tf.Tensor], name: str) -> None:
        """Refuses what was done in the current graph with the wanted variables, or what they were
        read as there, if gradients would be missing (`lost_gradients`).
        """
        handles = {id(handle): path for handle, path in self._handles}
        refuse_lost_gradients(values, handles, name)

    def refuse_hidden_uses(self, at_aliases: Sequence[Any]) -> None:
        """Raises UnsupportedModelError where gradients of aliases say that one was used."""
        refuse_hidden(self._variables, at_aliases)

    def gradients(
        self, outputs: list[tf.Tensor], output_gradients: list[tf.Tensor], scale: float
    ) -> list[PerRecordGradient]:
        """Returns the gradients of every variable, by record.

        Args:
            outputs: Of the model, each [n, ...].
            output_gradients: Of each record's loss, times `scale`, with respect to these.
            scale: A constant that the gradients are divided by.

        Raises:
            UnsupportedModelError: an output depends on a variable in a way that no layer shows, or
                a float32 variable is used in float64.
            ValueError: the loss does not depend on a variable, or a rule gives gradients that are
                not one of the variable's shape for every record.
        """
        taps = [use.tap.tensor for use in self._uses]
        taps += [tap.tensor for use in self._joint_uses for tap in use.taps]
        sources = [*self._aliases, *taps]
        outcome = [None] * len(sources)
        if outputs:
            outcome = self._tape.gradient(outputs, sources, output_gradients=output_gradients)
        self.refuse_hidden_uses(outcome[: len(self._aliases)])
        at_taps = [
            None if gradient is None else _of_shape(gradient, tap.shape)
            for gradient, tap in zip(outcome[len(self._aliases) :], taps, strict=True)
        ]

        def unscaled(gradient):
            gradient = to_accumulate(gradient)
            return gradient if scale == 1.0 else gradient / tf.cast(scale, gradient.dtype)

        parts: dict[int, list[PerRecordGradient]] = {id(v): [] for v in self._variables}
        for use, gradient in zip(self._uses, at_taps, strict=False):
            if gradient is not None:
                gradient = unscaled(gradient)
                _refuse_narrow(use.variable, gradient.dtype)
                parts[id(use.variable)].append(use.gradients(gradient))
        self._find_joint(at_taps[len(self._uses) :])
        for variable, gradient, rows, together in self._found:
            if isinstance(gradient, RowsOfTable):
                found = Rows(gradient.ids, unscaled(gradient.rows), variable.shape[0])
            else:
                found = _checked(Explicit(unscaled(gradient)), variable, rows)
            parts[id(variable)].append(together(found))
        missing = [v.path for v in self._variables if not parts[id(v)]]
        if missing:
            raise ValueError(
                f"The loss does not depend on these variables: {', '.join(missing)}. A variable "
                "without a gradient would get noise and nothing else. Set `trainable = False` on "
                "it or its layer, or leave it out."
            )
        return [combine(parts[id(v)]) for v in self._variables]

    def _find_joint(self, at_taps: list[Any]) -> None:
        """Takes gradients at the taps of joint uses, scaled."""
        for use in self._joint_uses:
            own, at_taps = at_taps[: len(use.taps)], at_taps[len(use.taps) :]
            live = [any(own[i] is not None for i in indices) for _, indices in use.variables]
            if not any(live):
                continue
            filled = [
                tf.zeros_like(tap.tensor) if gradient is None else gradient
                for tap, gradient in zip(use.taps, own, strict=True)
            ]
            found = zip(use.variables, use.gradients(filled), live, strict=True)
            for (variable, _), gradient, is_live in found:
                if is_live:
                    self.add_found(variable, gradient, filled[0], use.together)

    # For what watches the layers.

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Keeps nothing of what is computed in the block."""
        losses, added = len(self.scope.losses), len(self.added_losses)
        try:
            with self._tape.stop_recording():
                yield
        finally:
            del self.scope.losses[losses:]
            del self.added_losses[added:]

    def own(self, operation: Any) -> list[Any]:
        """Returns the variables of a layer whose gradients are wanted."""
        return wanted_of(operation, self.wanted)

    @contextlib.contextmanager
    def inside(self, variables: list[Any]) -> Iterator[None]:
        """In the block, lets a layer read its variables instead of their aliases, because its rule
        sees their gradients.
        """
        hidden = {id(v): values_in(self.scope).pop(id(v)) for v in variables}
        self.inside_layer = True
        try:
            yield
        finally:
            self.inside_layer = False
            values_in(self.scope).update(hidden)

    def add_loss(self, layer: keras.Layer, losses: tf.Tensor) -> None:
        """Takes what a layer adds to the loss of each record, [n, ...].

        Raises:
            UnsupportedModelError: what it was called on was not one row for each record.
        """
        if not isinstance(self.together, int) or self.together != 1:
            raise UnsupportedModelError(
                f"{layer.name!r} adds losses (add_loss, or an activity regularizer), and is called "
                "on several rows of a record. Use engine='vectorized'."
            )
        self.added_losses.append((layer, losses))
        # So code that asks for losses finds that there are some.
        keras.Layer.add_loss(layer, losses)

    def refuse_other_losses(self) -> None:
        """Refuses losses that were added in other ways.

        Raises:
            UnsupportedModelError: there are some.
        """
        known = {id(losses) for _, losses in self.added_losses}
        if not {id(loss) for loss in self.scope.losses} <= known:
            raise UnsupportedModelError(
                "Layers in a layer that runs on the batch add losses (add_loss, or an activity "
                "regularizer), which the book-keeping engine cannot tell apart by record. Use "
                "engine='vectorized'."
            )

    def note(self, operation: Any, words: str) -> None:
        """Notes what is done with a call of a layer."""
        self.treatments.append(Treatment((*self._path, operation.name), operation, words))

    @contextlib.contextmanager
    def inside_block(self, block: Any) -> Iterator[None]:
        """Says of layers that are called in the block of code that they are in this layer."""
        self._path.append(block.name)
        try:
            yield
        finally:
            self._path.pop()

    def add_found(
        self,
        variable: Any,
        gradients: tf.Tensor | RowsOfTable,
        rows: tf.Tensor,
        together: Callable[[PerRecordGradient], PerRecordGradient],
    ) -> None:
        """Takes gradients of a variable that the backward pass has computed.

        Args:
            variable: A variable.
            gradients: [n, ...] or rows of a table, scaled.
            rows: Any tensor of these rows of records, [n, ...].
            together: What `summed` gave where the layer ran.
        """
        self._found.append((variable, gradients, rows, together))


def copies(tensors: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the tensors as others of the same values, by one operation."""
    return list(tf.identity_n([tf.convert_to_tensor(tensor) for tensor in tensors]))


def _readings(variables: Sequence[Any]) -> list[tf.Tensor]:
    """Returns a tensor of its own with the value of each variable.

    Reading a variable makes one. TensorFlow drops a reading that nobody uses, but keeps one behind
    an identity: with it, a table of which only some rows are updated would be copied in each step.
    """
    values = [variable.value for variable in variables]
    return [
        tf.convert_to_tensor(v) if isinstance(v, tf.Variable) else tf.identity(v) for v in values
    ]


def _refuse_narrow(variable: Any, dtype: tf.DType) -> None:
    """Refuses a variable of float32 whose gradients come in float64: their sum would not be of the
    dtype that the query and its noise are made for.

    Raises:
        UnsupportedModelError: it is one.
    """
    if dtype == tf.float64 and tf.as_dtype(variable.dtype) != tf.float64:
        raise UnsupportedModelError(
            f"{variable.path} is {tf.as_dtype(variable.dtype).name}, in a layer that computes in "
            "float64: Keras makes factors of LoRA like that. Use engine='vectorized'."
        )


def _of_shape(gradient: Any, shape: tf.TensorShape) -> tf.Tensor:
    """Returns a gradient as a tensor of the shape of what it is taken at, which TensorFlow may have
    lost on the way.
    """
    gradient = tf.convert_to_tensor(gradient)
    gradient.set_shape(shape)
    return gradient


def _checked(gradients: PerRecordGradient, variable: Any, rows: tf.Tensor) -> PerRecordGradient:
    """Returns the gradients that a rule gives, as far as shapes tell that there is one for every
    record.

    Args:
        gradients: What the rule gives.
        variable: A variable of its layer.
        rows: Any tensor of these records, [n, ...].

    Raises:
        ValueError: explicit ones are not [n, *shape of the variable].
    """
    if not isinstance(gradients, Explicit):
        return gradients
    tensor = gradients.explicit()
    shape = tensor.shape
    # A length that is known where that of the batch is not, such as 1, is not that of the batch.
    wanted = tf.TensorShape([None if rows.shape.rank is None else rows.shape[0], *variable.shape])
    same = shape.is_compatible_with(wanted)
    if not same or (shape.rank is not None and shape[0] not in (None, wanted[0])):
        raise ValueError(
            f"A rule must give the gradients of {variable.path} by record, "
            f"[n, {', '.join(map(str, variable.shape))}], and gives {shape} for the records of "
            f"{rows.shape}. Never add up along the first axis, that of records."
        )
    tensor.set_shape(wanted)  # TensorFlow may not know it where a length of records is open.
    return gradients


def wanted_of(operation: Any, wanted: set[int]) -> list[Any]:
    """Returns the weights in an operation whose identities are among the wanted ones.

    A frozen layer says that none of its weights is trainable, but a layer in it may have been made
    trainable again, so all weights are looked at.
    """
    return [v for v in getattr(operation, "weights", ()) if id(v) in wanted]


def refuse_hidden(variables: Sequence[Any], gradients: Sequence[Any]) -> None:
    """Refuses a use of a variable that no layer shows: it has given the variable's alias a
    gradient.

    Raises:
        UnsupportedModelError: an alias has one.
    """
    hidden = [v.path for v, g in zip(variables, gradients, strict=True) if g is not None]
    if hidden:
        raise UnsupportedModelError(
            "These weights are used outside of the layers that own them, or by layers that a loss "
            f"calls: {', '.join(hidden)}. Use engine='vectorized'."
        )
