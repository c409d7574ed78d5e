"""Watching the layers of a model while it runs on a batch."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.gradients.effects import refuse_side_effects_of_batch
from tfdp.gradients.forms.per_record import Explicit, PerRecordGradient, combine
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.mapped_call import MappedCall
from tfdp.gradients.mapping import comes_from_records, holds_records, map_records
from tfdp.gradients.record_scope import RecordScope, Seeds
from tfdp.gradients.rules.rule import LayerRule, RecordWise, has_own, rule_for
from tfdp.numerics.norms import to_accumulate

# What Keras hangs on tensors, and layers and losses that come later look for.
_HUNG = ("_keras_mask", "_keras_logits")
# Marks operations of a batch that are functions of single records.
_BY_RECORD = "record_by_record"


class Tap:
    """A place in the forward pass, as a tensor, whose gradient the backward pass will give."""

    tensor: tf.Tensor | None = None


class _Use(NamedTuple):
    tap: Tap
    variable: Any
    gradients: Callable[[tf.Tensor], PerRecordGradient]


class Recording:
    """What the layers of a model received and returned, where gradients of weights come from it.

    Every layer with a rule runs on the whole batch, and the rule notes what it needs. A layer
    without one runs record by record (`MappedCall`), so that nothing it does can mix records, and
    its weights' gradients are computed explicitly.

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
        self._of_batch, self._of_records = seeds or (None, None)
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
        self._wanted = {id(v) for v in self._variables}
        self._uses: list[_Use] = []
        self._found: list[tuple[Any, tf.Tensor]] = []
        self._inside = False
        # Every use of a variable that no rule knows of goes through an alias, and would give the
        # alias a gradient.
        self._aliases = [tf.identity(v.value) for v in self._variables]
        self._tape.watch(self._aliases)
        self.scope = RecordScope(Seeds(self._of_batch), self.aliases, metrics)

    @property
    def aliases(self) -> list[tuple[Any, tf.Tensor]]:
        """(variable, watched value) pairs, for code that is not part of a layer."""
        return list(zip(self._variables, self._aliases, strict=True))

    # For rules.

    def watch(self, tensor: tf.Tensor) -> Tap:
        """Returns a tap whose `tensor` must take the place of this one from here on."""
        tap = Tap()
        # The identity has this one use only: other ways to the same tensor are not its gradient.
        tap.tensor = tf.identity(tensor)
        for name in _HUNG:
            if getattr(tensor, name, None) is not None:
                setattr(tap.tensor, name, getattr(tensor, name))
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
        """Makes an attribute another value in the block, unseen by Keras, which tracks them."""
        return _attribute(owner, name, value)

    @contextlib.contextmanager
    def values(self, mapping: Sequence[tuple[Any, tf.Tensor]]) -> Iterator[None]:
        """Makes variables read as other values in the block."""
        before = dict(self.scope.state_mapping)
        self.scope.state_mapping.update({id(variable): value for variable, value in mapping})
        try:
            yield
        finally:
            for variable, _ in mapping:
                self.scope.state_mapping.pop(id(variable))
                if id(variable) in before:
                    self.scope.state_mapping[id(variable)] = before[id(variable)]

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
        if variable is not None and id(variable) in self._wanted:
            self._uses.append(_Use(tap, variable, gradients))

    # For the engine.

    def record_scopes(self) -> Callable[..., RecordScope]:
        """Returns what makes scopes for single records in which some code runs, of the record's
        seeds, [2] or None, and of (variable, value) pairs. No other code draws the same numbers.
        """
        block = next(self._blocks)
        return lambda seeds, mapping: RecordScope(Seeds(seeds, block), mapping, self._metrics)

    @contextlib.contextmanager
    def of(self, model: keras.Layer) -> Iterator[None]:
        """Watches the layers of a model in the block.

        Raises:
            UnsupportedModelError: a layer cannot be watched.
            SideEffectError: a layer leaves something behind.
        """
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        with contextlib.ExitStack() as stack:
            for operation, rule in plan(model, self._wanted):
                stack.enter_context(
                    _attribute(operation, "call", self._watched_call(operation, rule))
                )
                if rule is None and has_own(operation, "compute_mask"):
                    mask = _by_record(operation.compute_mask)
                    stack.enter_context(_attribute(operation, "compute_mask", mask))
            stack.enter_context(self.scope)
            yield
        of_batch = [op for op in graph.get_operations()[before:] if f"/{_BY_RECORD}" not in op.name]
        refuse_side_effects_of_batch(graph, of_batch, self._of_batch)
        if self.scope.losses:
            raise UnsupportedModelError(
                "A layer adds losses of its own (add_loss, or an activity regularizer), which the "
                "book-keeping engine cannot tell apart by record. Use engine='vectorized'."
            )

    def refuse_hidden_uses(self, at_aliases: Sequence[Any]) -> None:
        """Raises UnsupportedModelError where gradients of aliases say that one was used."""
        _refuse_hidden(self._variables, at_aliases)

    def gradients(
        self, outputs: list[tf.Tensor], output_gradients: list[tf.Tensor], scale: float
    ) -> list[PerRecordGradient]:
        """Returns the gradients of every variable, by record.

        Args:
            outputs: Of the model, each [n, ...].
            output_gradients: Of each record's loss, times `scale`, with respect to these.
            scale: A constant that the gradients are divided by.

        Raises:
            UnsupportedModelError: an output depends on a variable in a way that no layer shows.
            ValueError: the loss does not depend on a variable.
        """
        taps = [use.tap.tensor for use in self._uses]
        sources = [*self._aliases, *taps]
        outcome = [None] * len(sources)
        if outputs:
            outcome = self._tape.gradient(outputs, sources, output_gradients=output_gradients)
        self.refuse_hidden_uses(outcome[: len(self._aliases)])
        at_taps = outcome[len(self._aliases) :]

        def unscaled(gradient):
            gradient = to_accumulate(tf.convert_to_tensor(gradient))
            return gradient if scale == 1.0 else gradient / tf.cast(scale, gradient.dtype)

        parts: dict[int, list[PerRecordGradient]] = {id(v): [] for v in self._variables}
        for use, gradient in zip(self._uses, at_taps, strict=True):
            if gradient is not None:
                parts[id(use.variable)].append(use.gradients(unscaled(gradient)))
        for variable, gradient in self._found:
            parts[id(variable)].append(Explicit(unscaled(gradient)))
        missing = [v.path for v in self._variables if not parts[id(v)]]
        if missing:
            raise ValueError(
                f"The loss does not depend on these variables: {', '.join(missing)}. A variable "
                "without a gradient would get noise and nothing else. Set `trainable = False` on "
                "its layer, or leave it out."
            )
        return [combine(parts[id(v)]) for v in self._variables]

    def _watched_call(self, operation: Any, rule: Any) -> Callable[..., Any]:
        call = operation.call

        def watched(*args, **kwargs):
            if self._inside:  # Part of another layer's call.
                return call(*args, **kwargs)
            if isinstance(rule, RecordWise) and rule.holds_on(operation, *args, **kwargs):
                return call(*args, **kwargs)
            has_rule = isinstance(rule, LayerRule)
            own = self._own(operation)
            if own:
                _check_can_be_watched(operation)
                _check_records(operation, args, kwargs, every=has_rule)
            with self._at_home(own):
                if has_rule:
                    return rule.record(self, operation, call, *args, **kwargs)
                return self._record_by_record(operation, call, args, kwargs)

        return watched

    def _own(self, operation: Any) -> list[Any]:
        return _wanted_of(operation, self._wanted)

    @contextlib.contextmanager
    def _at_home(self, variables: list[Any]) -> Iterator[None]:
        """Gives a layer its variables themselves: their gradients are taken care of."""
        hidden = {id(v): self.scope.state_mapping.pop(id(v)) for v in variables}
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            self.scope.state_mapping.update(hidden)

    def _record_by_record(self, operation: Any, call: Any, args: Any, kwargs: Any) -> Any:
        leaves, rebuild = _records_of((args, kwargs))
        if not leaves:
            if any(map(comes_from_records, tf.nest.flatten((args, kwargs)))):
                _check_records(operation, args, kwargs, every=False)
            return call(*args, **kwargs)
        seeds = [] if self._of_records is None else [self._of_records]
        make_scope = self.record_scopes()
        variables = self._own(operation)
        own = {id(v) for v in variables}
        others = [(v, alias) for v, alias in self.aliases if id(v) not in own]
        read = [*variables, *(v for v, _ in others)]
        layout: list[Any] = []

        def run(layer):
            def run_on(record, values):
                record, record_seeds = record[: len(leaves)], record[len(leaves) :]
                record_args, record_kwargs = rebuild(record)
                with make_scope(
                    record_seeds[0][0] if record_seeds else None, zip(read, values, strict=True)
                ) as scope:
                    outputs = layer(*record_args, **record_kwargs)
                self.scope.losses.extend(scope.losses)
                flat, rehang = flatten_with_hung(outputs)
                layout[:] = [rehang]
                return flat

            return run_on

        def found(of_variables, of_others):
            _refuse_hidden([v for v, _ in others], of_others)
            pairs = zip(variables, of_variables, strict=True)
            self._found.extend((v, gradient) for v, gradient in pairs if gradient is not None)

        mapped = MappedCall(
            # The call that Keras is about to make; later the layer must be called as a whole.
            run(call),
            run(operation),
            [tf.convert_to_tensor(v.value) for v in variables],
            [alias for _, alias in others],
            found,
        )
        start = tf.zeros([])
        if variables:
            start = self.watch(start).tensor
        with tf.name_scope(_BY_RECORD):
            outputs = mapped(start, [*leaves, *seeds])
        return layout[0](outputs)


def _refuse_hidden(variables: Sequence[Any], gradients: Sequence[Any]) -> None:
    hidden = [v.path for v, g in zip(variables, gradients, strict=True) if g is not None]
    if hidden:
        raise UnsupportedModelError(
            "These weights are used outside of the layers that own them: "
            f"{', '.join(hidden)}. Use engine='vectorized'."
        )


def _wanted_of(operation: Any, wanted: set[int]) -> list[Any]:
    """Returns the weights in an operation whose gradients are wanted.

    A frozen layer calls none trainable, but a layer in it may have been made so again.
    """
    return [v for v in getattr(operation, "weights", ()) if id(v) in wanted]


def plan(model: keras.Layer, wanted: set[int]) -> list[tuple[Any, Any]]:
    """Returns the operations of a model that must be watched, each with its rule, or None where it
    runs record by record, as one that is `RecordWise` does where that does not hold for a call.

    Raises:
        UnsupportedModelError: the model, or a layer in it, cannot be watched.
    """
    if not isinstance(rule_for(model), RecordWise):
        raise UnsupportedModelError(
            f"The code of {type(model).__name__} could do anything with a batch, so its layers "
            "cannot be watched. If it treats every record separately, say so: "
            f"tfdp.gradients.register_rule({type(model).__name__}, tfdp.gradients.RecordWise())."
        )
    watched: dict[int, tuple[Any, Any]] = {}
    pending, seen = [model], set()
    while pending:
        operation = pending.pop()
        if id(operation) in seen:
            continue
        seen.add(id(operation))
        rule = rule_for(operation)
        if isinstance(rule, LayerRule) and not operation.weights:
            rule = RecordWise()  # There is nothing to note.
        if isinstance(rule, RecordWise):
            pending.extend(rule.parts(operation))
            if rule.looks_at_calls(operation):
                watched[id(operation)] = (operation, rule)
            continue
        own = _wanted_of(operation, wanted)
        if rule is not None and not own and not rule.records_when_frozen:
            continue  # Frozen: it runs on the batch, and nothing is noted.
        if own:
            _check_can_be_watched(operation)
        if rule is not None and not {id(v) for v in own} <= {
            id(v) for v in rule.variables(operation)
        }:
            rule = None
        if rule is None and has_own(operation, "__call__"):
            raise UnsupportedModelError(
                f"{type(operation).__name__} {operation.name!r} has its own __call__, which could "
                "do anything with a batch. Move what it does to `call`, or use "
                "engine='vectorized'."
            )
        watched[id(operation)] = (operation, rule)
    return list(watched.values())


def _check_records(layer: Any, args: Any, kwargs: Any, every: bool) -> None:
    tensors = [leaf for leaf in tf.nest.flatten((args, kwargs)) if hasattr(leaf, "shape")]
    hold = [holds_records(tensor) for tensor in tensors]
    if not any(hold) or (every and not all(hold)):
        raise UnsupportedModelError(
            f"{type(layer).__name__} {layer.name!r} is called on something that has no axis of "
            "records in front. Use engine='vectorized'."
        )


def explain(model: keras.Layer) -> str:
    """Returns a line for every layer of a built model: how the book-keeping engine treats it.

    Raises:
        UnsupportedModelError: the engine cannot take the model.

    Example:
        >>> model = keras.Sequential([keras.Input((4, 3)), keras.layers.GRU(2, name="gru")])
        >>> model.add(keras.layers.Lambda(lambda x: 2 * x, name="double"))
        >>> print(explain(model))
        double: record by record
        gru: RecurrentRule
    """
    watched = plan(model, {id(v) for v in model.trainable_variables})
    return "\n".join(
        f"{operation.name}: {'record by record' if rule is None else type(rule).__name__}"
        for operation, rule in watched
        if not isinstance(rule, RecordWise)
    )


def _by_record(compute_mask: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a layer's `compute_mask`, run on every record by itself."""

    def mapped(inputs, previous_mask=None):
        leaves, rebuild = _records_of((inputs, previous_mask))
        if not leaves:
            return compute_mask(inputs, previous_mask)
        layout: list[Any] = []

        def one(record):
            masks = compute_mask(*rebuild(record))
            layout[:] = [masks]
            present = [mask for mask in tf.nest.flatten(masks) if mask is not None]
            # There must be something to map.
            return [tf.squeeze(mask, 0) for mask in present] or [tf.zeros([])]

        with tf.name_scope(_BY_RECORD):
            masks = iter(map_records(one, leaves)[0](*leaves))
        return tf.nest.map_structure(lambda m: None if m is None else next(masks), layout[0])

    return mapped


def _check_can_be_watched(layer: Any) -> None:
    if getattr(layer, "quantization_mode", None) is not None:
        raise UnsupportedModelError(
            f"{type(layer).__name__} {layer.name!r} is quantized. Use engine='vectorized'."
        )
    if getattr(layer, "_remat_mode", None) is not None:
        raise UnsupportedModelError(
            f"{type(layer).__name__} {layer.name!r} is in a keras.RematScope, which recomputes it "
            "out of sight. Use engine='vectorized'."
        )


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    attributes = vars(owner)
    before = attributes.get(name, attributes)
    attributes[name] = value
    try:
        yield
    finally:
        if before is attributes:
            del attributes[name]
        else:
            attributes[name] = before


def flatten_with_hung(
    structure: Any, at: Sequence[int] | None = None
) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], Any]]:
    """Returns the tensors of a structure with those that Keras hung on them, and a function that
    makes the structure of others.

    Args:
        structure: Any structure.
        at: Which leaves to take; all by default. The others stay in the structure.
    """
    flat = tf.nest.flatten(structure)
    at = range(len(flat)) if at is None else at
    hung = [
        (i, name, tensor)
        for i in at
        for name in _HUNG
        if (tensor := getattr(flat[i], name, None)) is not None
    ]

    def rebuild(tensors):
        values = list(flat)
        for i, tensor in zip(at, tensors[: len(at)], strict=True):
            # Another object: what is hung on it must not show elsewhere.
            values[i] = tf.identity(tensor)
        for (i, name, _), tensor in zip(hung, tensors[len(at) :], strict=True):
            setattr(values[i], name, tensor)
        return tf.nest.pack_sequence_as(structure, values)

    return [*(flat[i] for i in at), *(tensor for _, _, tensor in hung)], rebuild


def _records_of(structure: Any) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], Any]]:
    """Returns the tensors in a structure that hold records, and a function that puts others in
    their places.
    """
    flat = tf.nest.flatten(structure)
    return flatten_with_hung(structure, [i for i, t in enumerate(flat) if holds_records(t)])
