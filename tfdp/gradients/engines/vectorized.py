"""The vectorized engine: every example's gradient at once, by `tf.vectorized_map`."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.gradients.engines.batched import BatchGradients
from tfdp.gradients.forms.per_record import Explicit
from tfdp.gradients.mapping import map_records
from tfdp.numerics.norms import to_accumulate


def vectorized_gradients(
    gradient: Callable[[list[tf.Tensor]], Any], examples: list[tf.Tensor], rows: int | None
) -> BatchGradients:
    """Returns what computes the gradients of batches like `examples`.

    Args:
        gradient: Takes the leaves of a batch of one example and returns (loss, aux, gradients).
        examples: Leaves of the examples.
        rows: Number of examples in a batch, where it is known.
    """
    call, _ = map_records(gradient, examples, rows)

    def gradients(*leaves):
        losses, aux, records = call(*leaves)
        return losses, aux, [Explicit(to_accumulate(record)) for record in records]

    return gradients
