"""PReLU: one slope for every feature."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.forms.per_record import Explicit
from tfdp.gradients.recording import Recording
from tfdp.gradients.rules.rule import LayerRule, register_rule
from tfdp.numerics.norms import to_accumulate


class PReLURule(LayerRule):
    """The slope's gradient is min(0, input) * gradient, added up over shared axes."""

    def variables(self, layer: Any) -> Iterable[Any]:
        return [layer.alpha]

    def record(
        self, recording: Recording, layer: Any, call: Callable[..., Any], inputs: Any, **kwargs: Any
    ) -> Any:
        tap = recording.watch(call(inputs, **kwargs))
        # `layer.shared_axes` may count from the last axis, and 0 is the last one there, too.
        shared = [axis for axis, size in enumerate(layer.alpha.shape, 1) if size == 1]

        def gradients(g):
            slopes = g * -tf.nn.relu(-to_accumulate(inputs))
            return Explicit(tf.reduce_sum(slopes, shared, keepdims=True))

        recording.add(tap, layer.alpha, gradients)
        return tap.tensor


register_rule(keras.layers.PReLU, PReLURule())
