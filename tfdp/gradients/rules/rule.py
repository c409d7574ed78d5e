"""What a rule is, and which layer has which."""

import abc
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.blocks import ERRORS
from tfdp.gradients.keras_internals import (
    AROUND_CALL,
    FUNCTIONAL,
    OF_EMPTY_CLASSES,
    OF_PLAIN_MODELS,
    WRAPPED_METHODS,
    calls_of,
    functional_in,
    is_of_forward_pass,
    layers_in,
    replaced,
)
from tfdp.gradients.mapping import holds_records
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules import activation


class LayerRule(abc.ABC):
    """How the gradients of a layer's weights, by record, follow from a pass over the whole batch.

    A rule is registered for a class of layers with `register_rule`, and holds for exactly that
    class: a derived class may do something else, unless its body is empty.

    Example:
        A layer that multiplies its input by a vector of weights:

        >>> import tfdp.gradients as tg
        >>> class Scale(keras.layers.Layer):
        ...     def build(self, shape):
        ...         self.factor = self.add_weight(shape=shape[-1:])
        ...     def call(self, inputs):
        ...         return inputs * self.factor
        >>> class ScaleRule(tg.LayerRule):
        ...     def variables(self, layer):
        ...         return [layer.factor]
        ...     def record(self, recording, layer, call, inputs):
        ...         tap = recording.watch(call(inputs))
        ...         recording.add(tap, layer.factor, lambda g: tg.Explicit(g * inputs))
        ...         return tap.tensor
        >>> tg.register_rule(Scale, ScaleRule())
    """

    # Whether `record` also runs where no gradient of the layer's weights is wanted.
    records_when_frozen = False
    # Whether `record` calls the layer's activation in `Recording.before_activation`, and nothing
    # else does. An activation that is not known is then looked at by itself.
    taps_activation = False

    def functions_to_try(self, layer: Any) -> Sequence[tuple[Any, str, int]]:
        """Returns functions of a layer that are not known and alone keep the rule from holding, as
        (what has it, its attribute, the numbers in a row that it is called on).

        `record` is called where all of them are seen to keep rows apart, with functions in their
        places that do the same, on [rows, numbers]. Otherwise the layer runs record by record.
        """
        return ()

    @abc.abstractmethod
    def variables(self, layer: Any) -> Iterable[Any]:
        """Returns the variables, trainable or not, whose gradients the rule knows.

        A layer that has others, such as those of a layer in it, runs record by record.
        """

    def holds_for(self, layer: Any) -> bool:
        """Returns whether the rule holds for a layer; where not, that runs record by record.

        By default it does if the layer's activation functions are known to treat every record
        separately. A rule that does not cover everything its layers can do overrides this.
        """
        return has_known_activations(layer)

    @abc.abstractmethod
    def record(
        self,
        recording: Recording,
        layer: Any,
        call: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Runs the layer on a batch, and tells `recording` how gradients follow.

        Args:
            recording: Gives taps (`watch`, `before_activation`) and takes what follows from them
                (`add`).
            layer: The layer.
            call: The layer's own `call`.
            *args: What the layer was called with: tensors with an axis of records in front.
            **kwargs: Likewise.

        Returns:
            What `call` returns, with the taps' tensors in the place of what they watch.
        """


class RecordWise:
    """Says of a class of layers that their own code treats every record separately.

    Such a layer runs on the whole batch, and each layer in it is treated by its own rule. It may
    use no weights except those of the layers in it.

    Guarantees:
        Whoever registers the class promises this, and that the layers in it which have weights are
        called on one row for each record, in front. The latter is looked at, for some numbers of
        records (`promises`), the former is not. A layer that mixes records, for example by a mean
        over the batch, must not be registered: clipping would no longer bound the effect of one
        record.

    Args:
        when: Says of a layer whether the promise holds for it; by default it always does.
        called_on: Says whether it holds for a call, given the layer and the call's arguments; by
            default it always does. Where not, this call runs record by record.
        run: Runs a call for which it holds; arguments as of `LayerRule.record`. By default its own
            code does.
        of_numbers: Says of a layer whether it holds where a record is one number, too. By default
            it does for a class that is not Keras' own.
    """

    def __init__(
        self,
        when: Callable[[Any], bool] | None = None,
        called_on: Callable[..., bool] | None = None,
        run: Callable[..., Any] | None = None,
        of_numbers: Callable[[Any], bool] | None = None,
    ):
        self._when, self._called_on, self._run = when, called_on, run
        self._of_numbers = of_numbers

    def holds_for(self, layer: Any) -> bool:
        """Returns whether the promise holds for this layer."""
        return self._when is None or self._when(layer)

    def parts(self, layer: Any) -> list[Any]:
        """Returns the layers and operations in a layer."""
        # Operations of a functional model need not be layers.
        operations = layer.operations if isinstance(layer, FUNCTIONAL) else []
        if not isinstance(layer, keras.Layer):
            return []
        return [*operations, *layers_in(layer)]

    def looks_at_calls(self, layer: Any) -> bool:
        """Returns whether calls of the layer are looked at: the promise may hold for some and not
        for others, or something else runs them.
        """
        given = self._called_on is not None or self._run is not None
        return given or self._must_not_see_numbers(layer)

    def holds_on(self, layer: Any, *args: Any, **kwargs: Any) -> bool:
        """Returns whether the promise holds for what the layer is called on."""
        if self._must_not_see_numbers(layer) and _has_numbers(args, kwargs):
            return False
        return self._called_on is None or self._called_on(layer, *args, **kwargs)

    def run(
        self, recording: Recording, layer: Any, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Runs a layer on a batch."""
        if self._run is None:
            return call(*args, **kwargs)
        return self._run(recording, layer, call, *args, **kwargs)

    def _must_not_see_numbers(self, layer: Any) -> bool:
        """Returns whether a layer might treat records that are one number each as one record.

        In [n] the last axis is that of records. A layer that has layers in it is not asked, because
        those are. Nor is a class of one's own, because a promise for it is meant for all calls.
        """
        if self._of_numbers is not None:
            return not self._of_numbers(layer)
        return is_of_keras(class_of(layer)) and not self.parts(layer)


def _has_numbers(args: Any, kwargs: Any) -> bool:
    """Returns whether a layer is called on records that are one number each, or may be."""
    inputs = {name: value for name, value in kwargs.items() if "mask" not in name}
    leaves = tf.nest.flatten((args, inputs))
    return any(holds_records(leaf) and leaf.shape.rank in (None, 1) for leaf in leaves)


# The attributes in which layers of Keras keep functions. Activations are called on a whole batch,
# so `has_known_activations` checks them. Initializers, regularizers and constraints are called on
# weights and never see a record.
_ACTIVATIONS = ("activation", "recurrent_activation")
_OF_WEIGHTS = ("_initializer", "_regularizer", "_constraint")
_RULES: dict[type, LayerRule | RecordWise] = {}


class Around(RecordWise):
    """Says of a class of models that they add no computation to the one model in them.

    Args:
        inner: Returns that model.
    """

    def __init__(self, inner: Callable[[Any], keras.Model]):
        super().__init__(when=lambda model: isinstance(rule_for(inner(model)), RecordWise))
        self.inner = inner


def innermost(model: Any) -> Any:
    """Returns the model that computes, in others that add nothing to it."""
    while isinstance(rule := registered_rule(model), Around) and not is_patched(model):
        model = rule.inner(model)
    return model


def register_rule(layer_class: type, rule: LayerRule | RecordWise) -> None:
    """Makes the book-keeping engine use a rule for layers of a class, instead of any other.

    Args:
        layer_class: The class itself; derived classes need a rule of their own, unless they add
            nothing.
        rule: A `LayerRule`, or a `RecordWise`, which also gives what `call` of a layer class
            derived from `keras.Model` may be used for.

    Raises:
        TypeError: an argument is of another kind.
    """
    if not (isinstance(layer_class, type) and issubclass(layer_class, keras.Operation)):
        raise TypeError(
            f"layer_class must be a class of Keras layers. Received: layer_class={layer_class!r}."
        )
    if not isinstance(rule, (LayerRule, RecordWise)):
        raise TypeError(
            "rule must be a tfdp.gradients.LayerRule or RecordWise object. Received: "
            f"rule={rule!r}."
        )
    _RULES[layer_class] = rule


def is_promise(operation: Any) -> bool:
    """Returns whether the rule for a layer is what somebody promises of a class of their own."""
    rule = rule_for(operation)
    own = isinstance(rule, RecordWise) and rule is registered_rule(operation)
    return own and not isinstance(rule, Around) and not is_of_keras(class_of(operation))


def rule_for(operation: Any) -> LayerRule | RecordWise | None:
    """Returns the rule for a layer, or None where it must run record by record."""
    if is_patched(operation):
        return None
    rule = registered_rule(operation)
    if rule is None and runs_as_keras_functional(operation):
        return None if _moves_records(operation) else RecordWise()
    return rule if rule is not None and rule.holds_for(operation) else None


def _moves_records(model: Any) -> bool:
    """Returns whether an operation in a functional model makes several rows of each record, or
    moves the axis of records. By itself it does not keep them apart, and with others it may.
    """
    operations = model.operations if isinstance(model, FUNCTIONAL) else []
    return any(
        _moves(operation)
        for operation in operations
        if not isinstance(operation, keras.Layer) and registered_rule(operation) is None
    )


# A number of records that no other length has, or a product of others.
_SOME_RECORDS = 1_000_003


def _moves(operation: Any) -> bool:
    def of_some(leaf):
        if not keras.backend.is_keras_tensor(leaf) or leaf.shape[:1] != (None,):
            return leaf
        return keras.KerasTensor((_SOME_RECORDS, *leaf.shape[1:]), leaf.dtype)

    for _, args, kwargs in calls_of(operation):
        args, kwargs = tf.nest.map_structure(of_some, (args, kwargs))
        try:
            outputs = tf.nest.flatten(operation.compute_output_spec(*args, **kwargs))
        except ERRORS:  # It needs as many rows as others make of the records, or cannot say.
            continue
        shapes = [o.shape for o in outputs if None not in o.shape]
        if any(s[:1] != (_SOME_RECORDS,) and math.prod(s) % _SOME_RECORDS == 0 for s in shapes):
            return True
    return False


def registered_rule(operation: Any) -> LayerRule | RecordWise | None:
    """Returns the rule for the class of a layer, whether it holds for this layer or not."""
    return _RULES.get(class_of(operation))


def class_of(operation: Any) -> type:
    """Returns the class that an operation has its rule by: its own, or one that this is derived
    from without adding anything.
    """
    owner = type(operation)
    while owner not in _RULES and len(owner.__bases__) == 1:
        if not vars(owner).keys() <= OF_EMPTY_CLASSES:
            break
        owner = owner.__bases__[0]
    return owner if owner in _RULES else type(operation)


def rule_but_for_activation(operation: Any) -> LayerRule | None:
    """Returns the rule that a layer would have if its activation function were a known one; None
    if there is none, or if something else is in its way.
    """
    rule, function = registered_rule(operation), getattr(operation, "activation", None)
    if not isinstance(rule, LayerRule) or not rule.taps_activation or is_patched(operation):
        return None
    if function is None or isinstance(function, keras.Operation):
        return None
    with replaced(operation, "activation", None):
        return rule if rule.holds_for(operation) else None


def rule_but_for_functions(operation: Any) -> tuple[LayerRule, list[Any]] | None:
    """Returns the rule that a layer would have if functions of it were known ones, and these
    (`LayerRule.functions_to_try`); None if there is none, or if something else is in its way.
    """
    rule = registered_rule(operation)
    if not isinstance(rule, LayerRule) or is_patched(operation):
        return None
    tries = list(rule.functions_to_try(operation))
    functions = [getattr(owner, name) for owner, name, _ in tries]
    if not tries or any(isinstance(f, keras.Operation) or not callable(f) for f in functions):
        return None
    return rule, tries


def is_patched(operation: Any) -> bool:
    """Returns whether somebody has given this one object code that its class does not have. This is
    a method in the place of another, or, in a layer of Keras, a function in an attribute where
    Keras keeps none. A dtype policy that is not Keras' own is code, too.

    Methods that models have for training, such as `fit`, do not count.
    """
    return _has_own_policy(operation) or any(
        _replaces_method(type(operation), name) or _is_foreign(operation, name, value)
        for name, value in vars(operation).items()
        if name not in WRAPPED_METHODS
    )


def own_around_call(operation: Any) -> str | None:
    """Returns the name of something that Keras runs on a batch around an operation's `call`, and
    that is not Keras' own; None where there is nothing.
    """
    if _has_own_policy(operation):
        return "dtype_policy"
    return next((name for name in AROUND_CALL if has_own(operation, name)), None)


def _has_own_policy(operation: Any) -> bool:
    """Returns whether what converts an operation's inputs is not Keras' own."""
    policy = getattr(operation, "dtype_policy", None)
    if policy is None:
        return False
    return not is_of_keras(type(policy)) or any(map(callable, vars(policy).values()))


def _replaces_method(owner: type, name: str) -> bool:
    for_training = hasattr(keras.Model, name) and not hasattr(keras.Layer, name)
    return callable(getattr(owner, name, None)) and not for_training


def _is_foreign(operation: Any, name: str, value: Any) -> bool:
    """Returns whether an attribute of a layer of Keras is code that is neither Keras' own nor a
    layer, because layers have rules of their own.
    """
    if isinstance(operation, keras.Model) or not is_of_keras(class_of(operation)):
        return False
    allowed = name in _ACTIVATIONS or name.endswith(_OF_WEIGHTS)
    own = isinstance(value, keras.Operation) or is_of_keras(type(value))
    return callable(value) and not (allowed or own)


def is_of_keras(owner: type) -> bool:
    """Returns whether a class is Keras' own."""
    return owner.__module__.startswith("keras.")


def has_own(operation: Any, name: str) -> bool:
    """Returns whether an operation has a method that is not Keras' own."""
    if name in vars(operation):
        return True
    defined = next((c for c in type(operation).__mro__ if name in vars(c)), None)
    return defined is not None and not is_of_keras(defined)


def has_known_activations(layer: Any) -> bool:
    """Returns whether a layer's activation functions are known to treat records separately."""
    functions = [getattr(layer, name, None) for name in _ACTIVATIONS]
    return all(_is_known(function) for function in functions if function is not None)


def _is_known(function: Any) -> bool:
    if not isinstance(function, keras.Operation):
        return activation.is_known(function)
    rule = rule_for(function)
    return isinstance(rule, RecordWise) and all(_is_known(part) for part in rule.parts(function))


def runs_as_keras_functional(operation: Any) -> bool:
    """Returns whether an operation is a functional or sequential model that runs as Keras' own."""
    if not isinstance(operation, (keras.Sequential, FUNCTIONAL)):
        return False
    own = (c for c in type(operation).__mro__ if c not in OF_PLAIN_MODELS)
    names = {name for c in own for name in vars(c) if is_of_forward_pass(name)}
    inside = functional_in(operation)
    return not any(has_own(operation, name) for name in names) and (
        inside is None or (type(inside) is FUNCTIONAL and not is_patched(inside))
    )
