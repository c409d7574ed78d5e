"""A layer that no rule knows, run on every record by itself, and its gradients."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.mapping import map_records, vectorized

# From what holds a record, [1, ...], and values of weights, to the layer's outputs, [1, ...].
Run = Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], list[tf.Tensor]]


class MappedCall(NamedTuple):
    """One call of a layer, on all records at once, in a way in which it cannot mix them.

    The backward pass runs the layer again, so that nothing but its inputs is kept, and so that the
    gradients of inputs and weights come out of one function. Where XLA differentiates a function
    from outside it cannot tell which numbers are shapes, takes all that they may come from for
    constants, and compiles every step anew.

    Attributes:
        forward: Runs the layer in the forward pass.
        again: Runs it in the backward pass.
        weights: Values of the layer's weights, whose gradients are wanted by record.
        others: Values of weights that are not the layer's. It should not use them.
        found: Called in the backward pass, with the gradients of `weights`, each [n, ...], and
            with those of `others`, which are None where it did not.
    """

    forward: Run
    again: Run
    weights: Sequence[tf.Tensor]
    others: Sequence[tf.Tensor]
    found: Callable[[list[tf.Tensor], list[Any]], None]

    def __call__(self, start: tf.Tensor, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the outputs, each [n, ...].

        Args:
            start: A number that the tape watches: no other input needs to be something it does.
            inputs: What holds records, each [n, ...].
        """

        @tf.custom_gradient
        def run(start, *inputs):
            outputs = self._mapped(self.forward, inputs)

            def gradients(*at_outputs, variables=()):
                of_inputs = self._backward(inputs, outputs, at_outputs)
                result = (tf.zeros_like(start), *of_inputs)
                # Variables that nobody asks about.
                return (result, [None] * len(variables)) if variables else result

            return outputs, gradients

        outputs = run(start, *inputs)
        return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]

    def _mapped(self, layer: Run, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        def one(record):
            outputs = layer(record, [*self.weights, *self.others])
            return [_of_one_record(output) for output in outputs]

        return map_records(one, list(inputs))[0](*inputs)

    def _backward(self, inputs, outputs, at_outputs) -> list[tf.Tensor | None]:
        """Returns the gradients of inputs, and hands those of weights to `found`."""
        at = [i for i, tensor in enumerate(outputs) if tensor.dtype.is_floating]
        smooth = [i for i, tensor in enumerate(inputs) if tensor.dtype.is_floating]
        leaves = [*inputs, *(at_outputs[i] for i in at)]
        of_others: list[Any] = []

        def one(record, wanted):
            """Returns the gradients of wanted inputs and of weights, for one record."""
            record, at_record = record[: len(inputs)], record[len(inputs) :]
            # Copies, so that a use of one here is seen, whoever uses it elsewhere.
            weights, others = (
                [tf.identity(value) for value in values] for values in (self.weights, self.others)
            )
            sources = [record[i] for i in wanted], weights, others
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                results = self.again(record, [*weights, *others])
                results = [results[i] for i in at]
            of_record, of_weights, of_others[:] = tape.gradient(
                results, sources, output_gradients=at_record
            )
            of_record, of_weights = (
                [_or_zeros(*pair) for pair in zip(gradients, of, strict=True)]
                for gradients, of in zip((of_record, of_weights), sources[:2], strict=True)
            )
            return [tf.squeeze(g, 0) for g in of_record], of_weights

        try:
            of_inputs, of_weights = vectorized(lambda r: one(r, smooth), leaves)[0](*leaves)
        except TypeError:
            # TensorFlow cannot vectorize the gradient of a loop's inputs, but it can differentiate
            # a vectorized loop.
            of_inputs = self._of_inputs(inputs, smooth, at, leaves[len(inputs) :])
            _, of_weights = map_records(lambda r: one(r, []), leaves)[0](*leaves)
        self.found(of_weights, of_others)
        result: list[tf.Tensor | None] = [None] * len(inputs)
        for i, gradient in zip(smooth, of_inputs, strict=True):
            result[i] = gradient
        return result

    def _of_inputs(self, inputs, smooth, at, at_outputs) -> list[tf.Tensor]:
        sources = [inputs[i] for i in smooth]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            outputs = self._mapped(self.again, inputs)
            outputs = [outputs[i] for i in at]
        gradients = tape.gradient(outputs, sources, output_gradients=at_outputs)
        return [_or_zeros(*pair) for pair in zip(gradients, sources, strict=True)]


def _of_one_record(output: tf.Tensor) -> tf.Tensor:
    """Returns an output for a batch of one without the axis of records."""
    if output.shape.rank == 0 or output.shape[0] not in (1, None):
        raise UnsupportedModelError(
            "For a batch of one record it returns a tensor without an axis of records in front, of "
            f"shape {output.shape}. Keep that axis, or use engine='vectorized'."
        )
    return tf.squeeze(output, 0)


def _or_zeros(gradient: Any, tensor: tf.Tensor) -> tf.Tensor:
    return tf.zeros_like(tensor) if gradient is None else tf.convert_to_tensor(gradient)
