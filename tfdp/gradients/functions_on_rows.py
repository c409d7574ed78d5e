"""Functions of a user's own in a layer whose rule would hold if they were known ones.

A loop calls such a function at every step, forward and backward. It is tried out first, as the
code of a block is, on a batch of unknown length and on one row. If it is seen to keep rows apart, a
graph of it takes its place, which does the same at every step.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.gradients.blocks import ERRORS, Trial, in_words
from tfdp.gradients.keras_internals import replaced
from tfdp.gradients.record_wise_operations import MixesError
from tfdp.gradients.recording import Recording
from tfdp.gradients.region import Region
from tfdp.gradients.rules.rule import LayerRule, rule_but_for_functions


class _Function(NamedTuple):
    """A function of a layer.

    Attributes:
        owner: What has it.
        name: The attribute.
        size: The numbers in a row that it is called on.
        call: The function itself.
    """

    owner: Any
    name: str
    size: int
    call: Callable[[tf.Tensor], Any]


class OwnFunctions:
    """The functions of a layer that are not known, and the rule that would hold without them.

    Args:
        recording: Of the model.
        layer: The layer.
        rule: The rule.
        functions: As of `LayerRule.functions_to_try`.
    """

    def __init__(self, recording: Recording, layer: Any, rule: LayerRule, functions: list[Any]):
        self._recording, self._layer, self._rule = recording, layer, rule
        self._functions = [_Function(*where, getattr(*where[:2])) for where in functions]

    @classmethod
    def of(cls, recording: Recording, layer: Any) -> "OwnFunctions | None":
        """Returns those of a layer; None if there are none, or if something else is in the way."""
        found = rule_but_for_functions(layer)
        if found is None:
            return None
        rule, functions = found
        known = {id(v) for v in rule.variables(layer)}
        if not {id(v) for v in recording.own(layer)} <= known:
            return None
        return cls(recording, layer, rule, functions)

    def graphs(self, inputs: Any) -> list[Any]:
        """Returns graphs of the functions.

        Args:
            inputs: What the layer is called on.

        Raises:
            MixesError: a function is not known to keep rows apart.
        """
        if not tf.is_tensor(inputs):
            raise MixesError("it is not called on one tensor")
        with self._recording.unseen():
            return [self._graph(function, inputs) for function in self._functions]

    def _graph(self, function: _Function, inputs: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
        recording = self._recording
        rows = tf.zeros([tf.shape(inputs)[0], function.size], inputs.dtype)
        trial = recording.blocks.tried(function, function.call, (rows,), {}, recording.value_of)
        if trial is None:
            raise MixesError(recording.blocks.reasons[id(function)])
        try:
            return _graph_of(recording, trial, function.call, rows)
        except ERRORS as error:
            raise MixesError(in_words(error)) from error

    def record(self, graphs: list[Any], call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs the layer by its rule, with graphs in the place of the functions.

        Args:
            graphs: Of the functions.
            call: The layer's call.
            args: Of the call.
            kwargs: Of the call.
        """
        recording, layer = self._recording, self._layer
        recording.note(layer, type(self._rule).__name__)
        with contextlib.ExitStack() as stack:
            for function, graph in zip(self._functions, graphs, strict=True):
                stack.enter_context(replaced(function.owner, function.name, graph))
            stack.enter_context(recording.inside(recording.own(layer)))
            return self._rule.record(recording, layer, call, *args, **kwargs)


def _graph_of(
    recording: Recording, trial: Trial, call: Callable[[tf.Tensor], Any], rows: tf.Tensor
) -> Callable[[tf.Tensor], tf.Tensor]:
    def run(tensor):
        region = Region(((tensor,), {}), runner=_refuse_layer)
        outputs = recording.blocks.run(region, [], call, (tensor,), {})
        if not region.steps.same_as(trial.steps):
            raise MixesError("its operations are others each time it is called")
        like = tf.is_tensor(outputs) and outputs.dtype == tensor.dtype
        if not like or outputs.shape.as_list() != tensor.shape.as_list():
            raise MixesError("it returns something else than as many numbers as it is called on")
        return outputs

    spec = tf.TensorSpec(rows.shape, rows.dtype)
    graph = tf.function(run, autograph=False).get_concrete_function(spec)

    def on_rows(tensor):
        flat = graph(tf.reshape(tensor, [-1, rows.shape[1]]))
        return tf.ensure_shape(tf.reshape(flat, tf.shape(tensor)), tensor.shape)

    return on_rows


def _refuse_layer(layer: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    raise MixesError(f"it calls a layer, {layer.name}")
