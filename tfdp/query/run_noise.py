"""The noise of one step of a run, from what is fresh in it and what is remembered."""

import tensorflow as tf

from tfdp.factorizations import BinaryTree, ToeplitzFactorization

Memory = tuple[tf.Tensor, ...]


def memory_shapes(
    factorization: ToeplitzFactorization | BinaryTree, num_steps: int, shape: list[int]
) -> list[list[int]]:
    """Returns the shapes of the tensors that are remembered of noise of this shape."""
    rows = factorization.memory(num_steps)
    if rows == 0:
        return []
    if _is_shifted(factorization):
        return [shape] * rows
    return [[rows, *shape]]


def filtered(
    factorization: ToeplitzFactorization | BinaryTree,
    num_steps: int,
    position: tf.Tensor,
    fresh: tf.Tensor,
    memory: Memory,
) -> tuple[tf.Tensor, Memory]:
    """Returns the noise of this step's sum, and what is remembered after it.

    Args:
        factorization: Which noise remembers what.
        num_steps: Of a run.
        position: int64 scalar: the step of the run, from 0 on.
        fresh: [...], independent of everything before.
        memory: Tensors of `memory_shapes`, zero in the first step.

    Returns:
        A tensor of the shape of `fresh`, and tensors of the shapes of `memory`.
    """
    if not memory:
        return fresh, memory
    if _is_shifted(factorization):
        return _of_bands(factorization, fresh, memory)
    if isinstance(factorization, BinaryTree):
        noise, new = _of_tree(factorization, num_steps, position, fresh, memory[0])
    else:
        noise, new = _of_series(factorization, fresh, memory[0])
    return noise, (new,)


def _is_shifted(factorization: ToeplitzFactorization | BinaryTree) -> bool:
    """Whether what is remembered is noise of earlier steps as it was, because C or its inverse has
    bands.

    Then each vector is a tensor of its own, and a step moves them on by a place without reading and
    writing them once more.
    """
    return isinstance(factorization, ToeplitzFactorization) and (
        len(factorization.numerator) == 1 or len(factorization.denominator) == 1
    )


def _of_bands(
    factorization: ToeplitzFactorization, fresh: tf.Tensor, memory: Memory
) -> tuple[tf.Tensor, Memory]:
    """Memory holds the noise of the steps before, the last one first: what was fresh in it where
    the inverse of C has bands, and all of it where C has.
    """
    noise = fresh
    inverse = factorization.denominator[1:]
    for coefficient, earlier in zip(inverse or factorization.numerator[1:], memory, strict=True):
        weight = tf.constant(coefficient if inverse else -coefficient, fresh.dtype)
        noise += weight * earlier
    return noise, (fresh if inverse else noise, *memory[:-1])


def _of_series(
    factorization: ToeplitzFactorization, fresh: tf.Tensor, memory: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """A filter in transposed form: memory holds what later steps will have of this noise."""
    rows = memory.shape[0]
    p, r = (
        [*c, *[0.0] * (rows + 1 - len(c))]
        for c in (factorization.numerator, factorization.denominator)
    )
    sums = tf.unstack(memory, rows)
    noise = fresh + sums[0]
    new = []
    for k in range(1, rows + 1):
        total = sums[k] if k < rows else tf.zeros_like(fresh)
        total += tf.constant(r[k], fresh.dtype) * fresh
        new.append(total - tf.constant(p[k], fresh.dtype) * noise)
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
