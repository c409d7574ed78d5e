"""Which examples are a record together."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.events.arguments import positive_integer
from tfdp.noise import RandomSource, system_random_source
from tfdp.numerics.norms import segment_sum


class Consecutive(NamedTuple):
    """Records that are so many consecutive examples each: users, or views of one example.

    Attributes:
        size: Rows of a record; those that the mask leaves out take no part in it.
        averaged: Whether a record is the mean gradient of its examples, or their sum.
    """

    size: int
    averaged: bool


def consecutive_records(
    size: int | None, gradient: str, microbatch_ids: Any, physical_batch_size: int | None
) -> Consecutive | None:
    """Returns which examples are a record, from the arguments of `clipped_gradient_sum`; None where
    there are no such records.

    Args:
        size: `examples_per_record`.
        gradient: `record_gradient`.
        microbatch_ids: Of microbatches, which nothing else may make records of.
        physical_batch_size: Examples whose gradients are in memory at once.

    Raises:
        TypeError: `size` is not an integer.
        ValueError: the arguments are out of range, or contradict each other.
    """
    if gradient not in ("mean", "sum"):
        raise ValueError(
            f"record_gradient must be 'mean' or 'sum'. Received: record_gradient={gradient!r}."
        )
    if size is None:
        if gradient != "mean":
            raise ValueError("record_gradient='sum' needs examples_per_record.")
        return None
    size = positive_integer("examples_per_record", size)
    if microbatch_ids is not None:
        raise ValueError("Give num_microbatches or examples_per_record, not both.")
    if physical_batch_size is not None and physical_batch_size < size:
        raise ValueError(
            "All examples of a record are in memory at once: physical_batch_size must be at least "
            f"examples_per_record. Received: {physical_batch_size=}, examples_per_record={size}."
        )
    return None if size == 1 else Consecutive(size, gradient == "mean")


def records_present(mask: tf.Tensor, size: int) -> tf.Tensor:
    """Returns bool, whether each record of `size` consecutive rows has one.

    Args:
        mask: bool [n]; false leaves a row out.
        size: Rows of a record; the last record may have fewer.
    """
    if size == 1:
        return mask
    missing = tf.math.floormod(-tf.shape(mask)[0], size)
    return tf.reduce_any(tf.reshape(tf.pad(mask, [[0, missing]]), [-1, size]), 1)


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


def empty_sums(
    variables: list[Any], num_microbatches: int | tf.Tensor
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns (zero sums, zero counts), the start of a fold over `segment_sums`."""
    sums = [tf.zeros(tf.stack([num_microbatches, *v.shape]), v.dtype) for v in variables]
    return sums, tf.zeros(tf.stack([num_microbatches]), tf.float64)


def segment_sums(
    gradients: list[tf.Tensor], mask: tf.Tensor, ids: tf.Tensor, num_microbatches: Any
) -> tuple[list[tf.Tensor], tf.Tensor]:
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
