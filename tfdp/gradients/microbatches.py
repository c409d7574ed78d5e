"""Which microbatch an example belongs to."""

from typing import Any

import tensorflow as tf

from tfdp.events.arguments import positive_integer
from tfdp.noise import RandomSource, system_random_source
from tfdp.numerics.norms import segment_sum


def assign_microbatches(
    num_examples: int | tf.Tensor, num_microbatches: int, random_source: RandomSource | None = None
) -> tf.Tensor:
    """Returns an independent, uniform microbatch index for each example.

    Cutting a sample into consecutive slices would let one more example shift all that follow it
    into other microbatches, and no bound on one microbatch would bound that. With independent
    draws, an example's microbatch says nothing about who else was sampled, so one more example
    changes one microbatch only.

    Args:
        num_examples: Number of examples, padding included.
        num_microbatches: M, a positive integer.
        random_source: Where the draws come from; by default keyed by the operating system.

    Returns:
        int32 [num_examples], each in 0 .. M - 1.
    """
    num_microbatches = positive_integer("num_microbatches", num_microbatches)
    source = random_source or system_random_source()
    return source.integers([num_examples], num_microbatches)


def consecutive_microbatches(num_examples: int | tf.Tensor, microbatch_size: int) -> tf.Tensor:
    """Returns position // microbatch_size: for batches that are made of whole microbatches.

    Use it only where the microbatch is itself the privacy unit, so that whole units, not examples,
    are added or removed.
    """
    return tf.range(num_examples, dtype=tf.int32) // microbatch_size


def empty_sums(variables: list[Any], num_microbatches: int | tf.Tensor):
    """Returns (zero sums, zero counts), the start of a fold over `segment_sums`."""
    sums = [tf.zeros(tf.stack([num_microbatches, *v.shape]), v.dtype) for v in variables]
    return sums, tf.zeros(tf.stack([num_microbatches]), tf.float64)


def segment_sums(
    gradients: list[tf.Tensor], mask: tf.Tensor, ids: tf.Tensor, num_microbatches: Any
):
    """Returns (sums over the examples of each microbatch, [M, ...] per leaf; counts, float64
    [M]).

    Args:
        gradients: One tensor for each variable, [n, ...].
        mask: bool [n]; where it is false, the example is in no microbatch.
        ids: int32 [n], the microbatch of every example.
        num_microbatches: M.
    """
    sums = [segment_sum(g, mask, ids, num_microbatches) for g in gradients]
    return sums, segment_sum(tf.ones_like(ids, tf.float64), mask, ids, num_microbatches)


def means(sums: list[tf.Tensor], counts: tf.Tensor) -> list[tf.Tensor]:
    """Returns the mean gradient of every microbatch; zero for an empty one."""

    def mean(total):
        divisor = tf.cast(tf.maximum(counts, 1), total.dtype)
        return total / tf.reshape(divisor, [-1] + [1] * (total.shape.rank - 1))

    return [mean(total) for total in sums]
