"""A layer that no rule knows, run on every record by itself, and its gradients."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.gradients.graphs import has_own_gradients, has_unsafe_gradients
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.mapping import map_records, vectorized
from tfdp.gradients.rewriting import TurnsDifferError
from tfdp.gradients.tables import gradient_of_record
from tfdp.gradients.vectorizing import VectorizingError

# A function from the inputs of one record, [1, ...], and the values of weights to the layer's
# outputs, [1, ...].
Run = Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], list[tf.Tensor]]


class MappedCall(NamedTuple):
    """One call of a layer on all records, vectorized over single records so that it cannot mix
    them.

    The backward pass runs the layer again, so that nothing but its inputs is kept, and so that the
    gradients of inputs and weights come out of one function. If XLA differentiates a function from
    outside, it cannot tell which numbers are shapes. It then treats everything that they may come
    from as a constant, and compiles every step anew.

    Attributes:
        forward: Runs the layer in the forward pass.
        again: Runs it in the backward pass.
        weights: Values of the layer's weights, whose gradients are wanted by record.
        others: Values of weights that are not the layer's. It should not use them.
        found: Called in the backward pass with the gradients of `weights`, each [n, ...] or
            `RowsOfTable`, and with those of `others`. A gradient is None where the loss does not
            depend on the weight.
    """

    forward: Run
    again: Run
    weights: Sequence[tf.Tensor]
    others: Sequence[tf.Tensor]
    found: Callable[[list[Any], list[Any]], None]

    def __call__(self, start: tf.Tensor, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the outputs, each [n, ...].

        Args:
            start: A number that the tape watches: no other input needs to be something it does.
            inputs: What holds records, each [n, ...].
        """
        in_use: set[int] = set()

        @tf.custom_gradient
        def run(start, *inputs):
            outputs = self._mapped(self.forward, inputs)

            def gradients(*at_outputs, variables=()):
                of_inputs = self._backward(inputs, outputs, at_outputs, in_use)
                result = (tf.zeros_like(start), *of_inputs)
                # No gradient of these variables is asked for.
                return (result, [None] * len(variables)) if variables else result

            return outputs, gradients

        outputs = run(start, *inputs)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        return [_noting_use(output, i, in_use) for i, output in enumerate(outputs)]

    def _mapped(
        self, layer: Run, inputs: Sequence[tf.Tensor], differentiated: bool = False
    ) -> list[tf.Tensor]:
        def one(record):
            outputs = layer(record, [*self.weights, *self.others])
            return [_of_one_record(output) for output in outputs]

        mapped = map_records(one, list(inputs))[0]
        if differentiated and has_unsafe_gradients(mapped.graph):
            # What TensorFlow makes of it is not checked.
            raise UnsupportedModelError(
                "A layer without a rule has, beside a loop, an operation whose gradient may end "
                "the run, such as a determinant, a projective transform or check_numerics. Use "
                "engine='vectorized'."
            )
        return mapped(*inputs)

    def _backward(
        self, inputs: Any, outputs: Any, at_outputs: Any, in_use: Any
    ) -> list[tf.Tensor | None]:
        """Returns the gradients of inputs, and hands those of weights to `found`.

        `in_use` says on which outputs the loss depends: TensorFlow gives zeros for the others, and
        what leads to those alone would seem to be trained.
        """
        at = [i for i, tensor in enumerate(outputs) if tensor.dtype.is_floating and i in in_use]
        smooth = [i for i, tensor in enumerate(inputs) if tensor.dtype.is_floating]
        leaves = [*inputs, *(at_outputs[i] for i in at)]
        of_others: list[Any] = []
        own_gradients: list[bool] = []
        # The positions of those wanted gradients that exist.
        wanted_at: list[int] = []
        weights_at: list[int] = []

        def one(record, wanted):
            """Returns those gradients of wanted inputs and of weights that there are, for one
            record.
            """
            record, at_record = record[: len(inputs)], record[len(inputs) :]
            # These are copies, so that a use of a weight here is seen even if it is used elsewhere.
            weights, others = (
                [tf.identity(value) for value in values] for values in (self.weights, self.others)
            )
            sources = [record[i] for i in wanted], weights, others
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                results = self.again(record, [*weights, *others])
                results = [results[i] for i in at]
            own_gradients.append(has_own_gradients(tf.compat.v1.get_default_graph()))
            of_record, of_weights, of_others[:] = tape.gradient(
                results, sources, output_gradients=at_record
            )
            wanted_at[:] = [i for i, g in zip(wanted, of_record, strict=True) if g is not None]
            weights_at[:] = [i for i, g in enumerate(of_weights) if g is not None]
            present = [tf.squeeze(tf.convert_to_tensor(g), 0) for g in of_record if g is not None]
            pairs = zip(of_weights, weights, strict=True)
            present += [gradient_of_record(g, w.shape) for g, w in pairs if g is not None]
            # TensorFlow needs at least one tensor to map over.
            return present or [tf.zeros([])]

        try:
            found = vectorized(lambda r: one(r, smooth), leaves)[0](*leaves)
            of_inputs = dict(zip(wanted_at, found, strict=False))
            found = found[len(wanted_at) :]
        except VectorizingError as error:
            # TensorFlow cannot vectorize the gradient of a loop's inputs, but it can differentiate
            # a vectorized loop, if that runs alike for all records. It then forgets gradients that
            # functions have of their own.
            if any(own_gradients) or isinstance(error, TurnsDifferError):
                found = map_records(lambda r: one(r, smooth), leaves)[0](*leaves)
                of_inputs = dict(zip(wanted_at, found, strict=False))
                found = found[len(wanted_at) :]
            else:
                of_inputs = self._of_inputs(inputs, smooth, at, leaves[len(inputs) :])
                found = map_records(lambda r: one(r, []), leaves)[0](*leaves)
        of_weights = dict(zip(weights_at, found, strict=False))
        self.found([of_weights.get(i) for i in range(len(self.weights))], of_others)
        return [of_inputs.get(i) for i in range(len(inputs))]

    def _of_inputs(
        self, inputs: Any, smooth: Any, at: Any, at_outputs: Any
    ) -> dict[int, tf.Tensor]:
        sources = [inputs[i] for i in smooth]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            outputs = self._mapped(self.again, inputs, differentiated=True)
            outputs = [outputs[i] for i in at]
        gradients = tape.gradient(outputs, sources, output_gradients=at_outputs)
        pairs = zip(smooth, gradients, strict=True)
        return {i: tf.convert_to_tensor(g) for i, g in pairs if g is not None}


def _of_one_record(output: tf.Tensor) -> tf.Tensor:
    """Returns an output for a batch of one without the axis of records."""
    if output.shape.rank == 0 or output.shape[0] not in (1, None):
        raise UnsupportedModelError(
            "For a batch of one record it returns a tensor without an axis of records in front, of "
            f"shape {output.shape}. Keep that axis, or use engine='vectorized'."
        )
    return tf.squeeze(output, 0)


def _noting_use(output: tf.Tensor, index: int, in_use: set[int]) -> tf.Tensor:
    """Returns an output that adds its index to `in_use` once a gradient comes back to it."""
    if not output.dtype.is_floating:
        return output

    @tf.custom_gradient
    def noting(tensor):
        def gradient(at_tensor):
            in_use.add(index)
            return at_tensor

        return tf.identity(tensor), gradient

    return noting(output)
