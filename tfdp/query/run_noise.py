"""The noise of one step of a run, from what is fresh in it and what is remembered."""

import tensorflow as tf

from tfdp.factorizations import BinaryTree, ToeplitzFactorization


def filtered(
    factorization: ToeplitzFactorization | BinaryTree,
    num_steps: int,
    position: tf.Tensor,
    fresh: tf.Tensor,
    memory: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the noise of this step's sum, and what is remembered after it.

    Args:
        factorization: Which noise remembers what.
        num_steps: Of a run.
        position: int64 scalar: the step of the run, from 0 on.
        fresh: [...], independent of everything before.
        memory: [factorization.memory(num_steps), ...], zero in the first step.

    Returns:
        Two tensors of the shapes of `fresh` and `memory`.
    """
    if isinstance(factorization, BinaryTree):
        return _of_tree(factorization, num_steps, position, fresh, memory)
    return _of_series(factorization, memory.shape[0], fresh, memory)


def _of_series(
    factorization: ToeplitzFactorization, rows: int, fresh: tf.Tensor, memory: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """A filter in transposed form: memory holds what later steps will have of this noise."""
    if rows == 0:
        return fresh, memory
    p, r = (
        [*c, *[0.0] * (rows + 1 - len(c))]
        for c in (factorization.numerator, factorization.denominator)
    )
    sums = tf.unstack(memory, rows)
    noise = fresh + sums[0]
    new = []
    for k in range(1, rows + 1):
        total = sums[k] if k < rows else 0.0
        if r[k]:
            total += tf.constant(r[k], fresh.dtype) * fresh
        if p[k]:
            total -= tf.constant(p[k], fresh.dtype) * noise
        new.append(total if tf.is_tensor(total) else tf.zeros_like(fresh))
    return noise, tf.stack(new)


def _of_tree(
    tree: BinaryTree, num_steps: int, position: tf.Tensor, fresh: tf.Tensor, memory: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The difference of the noises of two running sums: that of the node which ends in this step,
    and less that of the nodes below it, which it replaces.
    """
    dtype, rows = fresh.dtype, memory.shape[0]
    step = position + 1
    power = tf.bitwise.bitwise_and(step, -step)  # 2^l, where the node that ends is of level l.
    powers = tf.constant([1 << level for level in range(rows)], tf.int64)
    ends, below = tf.equal(powers, power), powers < power
    this = tf.cast(ends, dtype)

    def of_level(table):
        return tf.tensordot(this, tf.constant(table, dtype), 1)

    def along_levels(values):
        return tf.reshape(values, [rows, *[1] * fresh.shape.rank])

    weights = tf.constant(tree.weights(num_steps), dtype)
    gains = of_level(tree.gains(num_steps))
    made = of_level(tree.scales(num_steps)) * fresh
    # Products and sums coordinate by coordinate: a matrix product may round more coarsely on a GPU.
    node = made + tf.reduce_sum(along_levels(gains) * memory, axis=0)
    replaced = tf.reduce_sum(along_levels(weights * tf.cast(below, dtype)) * memory, axis=0)
    noise = of_level(tree.weights(num_steps)) * node - replaced
    kept = tf.where(along_levels(below), tf.zeros_like(memory), memory)
    return noise, tf.where(along_levels(ends), node[tf.newaxis], kept)
