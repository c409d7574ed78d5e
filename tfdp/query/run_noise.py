"""The noise of one step of a run, from what is fresh in it and what is remembered."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.factorizations import BinaryTree, ToeplitzFactorization
from tfdp.factorizations.modes import Modes, modes, rounding_of
from tfdp.noise import one_of, zero_if
from tfdp.numerics import rounding

Memory = tuple[tf.Tensor, ...]

# Of a node of a level below this, the sums over the levels below it are compiled for that level. A
# higher one, in one step of 32, reads all levels, of which most count with zero.
_LOW_LEVELS = 5

# How much rounding may change noise, in its standard deviations.
_MOST_ROUNDED = 0.01


def memory_shapes(
    factorization: ToeplitzFactorization | BinaryTree, num_steps: int, shape: list[int]
) -> list[list[int]]:
    """Returns the shapes of the tensors that are remembered of noise of this shape."""
    rows = factorization.memory(num_steps)
    if rows == 0:
        return []
    if (
        not isinstance(factorization, BinaryTree)
        and _form(factorization, num_steps)[0] is _of_series
    ):
        return [[rows, *shape]]
    return [shape] * rows


def filtered(
    factorization: ToeplitzFactorization | BinaryTree,
    num_steps: int,
    position: tf.Tensor,
    fresh: Sequence[tf.Tensor],
    memories: Sequence[Memory],
) -> tuple[list[tf.Tensor], list[Memory]]:
    """Returns the noise of this step's sums, and what is remembered after it.

    Args:
        factorization: Which noise remembers what.
        num_steps: Of a run.
        position: int64 scalar: the step of the run, from 0 on.
        fresh: Of each leaf of a sum [...], independent of everything before.
        memories: Of each leaf tensors of `memory_shapes`, zero in the first step.

    Returns:
        For each leaf a tensor of the shape of `fresh`, and tensors of the shapes of its memory,
        which are zero after the last step.
    """
    if isinstance(factorization, BinaryTree):
        return _of_tree(factorization, num_steps, position, fresh, memories)
    ends = tf.equal(position, num_steps - 1)
    of_leaf, units = _form(factorization, num_steps)
    noises, kept = [], []
    for leaf, memory in zip(fresh, memories, strict=True):
        if memory:
            _refuse_rounded(units, num_steps, leaf.dtype)
        noise, new = of_leaf(factorization, leaf, memory) if memory else (leaf, memory)
        noises.append(noise)
        kept.append(tuple(zero_if(ends, one) for one in new))
    return noises, kept


def _refuse_rounded(units: float, num_steps: int, dtype: tf.DType) -> None:
    """Refuses noise that rounding would change by more than a hundredth of what is charged.

    Args:
        units: From `_form`. What was measured is at most 4 times as much.
        num_steps: Of a run.
        dtype: Of the noise.
    """
    off = 4 * rounding.unit(dtype) * units
    if not off <= _MOST_ROUNDED:
        raise ValueError(
            f"In {dtype.name}, rounding would change the noise of this factorization by about "
            f"{off:.2g} of its standard deviation within {num_steps} steps, and at most "
            f"{_MOST_ROUNDED} is accepted. Use tfdp.factorizations.optimal_buffered({num_steps}, 4)"
            ", bands, or variables of float64."
        )


@functools.lru_cache(maxsize=64)
def _form(factorization: ToeplitzFactorization, num_steps: int) -> tuple[Any, float]:
    """Returns the function that makes noise of one leaf and what is remembered of it, and how far
    rounding changes the noise, in standard deviations of z and units of rounding.

    A step rounds off e, in proportion to the noise y = C^-1 z. If y is a sum of what was fresh, C y
    is z + C e. With p(S) y = r(S) z + e it is z + r(S)^-1 e, where roots of r near 1 make e grow
    with the length of the run. Of modes `rounding_of` is the estimate; those of roots that are
    almost equal cancel. Of both the one that changes noise less is taken.
    """
    of_noise = _norm(factorization.inverse_column(num_steps))
    if len(factorization.numerator) == 1:
        return _of_bands, of_noise * _norm(factorization.column(num_steps))
    if len(factorization.denominator) == 1:
        return _of_bands, of_noise
    series = ToeplitzFactorization(denominator=factorization.denominator).column(num_steps)
    in_series = _of_series, of_noise * _norm(series)
    found = modes(factorization)
    if found is None:
        return in_series
    in_modes = _of_modes, rounding_of(factorization, found, num_steps)
    return in_modes if in_modes[1] <= in_series[1] else in_series


def _norm(series: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return math.sqrt(float(np.sum(np.square(series))))


def _of_bands(
    factorization: ToeplitzFactorization, fresh: tf.Tensor, memory: Memory
) -> tuple[tf.Tensor, Memory]:
    """Memory holds the noise of the steps before, the last one first: what was fresh in it where
    the inverse of C has bands, and all of it where C has. Each vector is a tensor of its own, and a
    step moves them on by a place without reading and writing them once more.
    """
    noise = fresh
    inverse = factorization.denominator[1:]
    for coefficient, earlier in zip(inverse or factorization.numerator[1:], memory, strict=True):
        weight = tf.constant(coefficient if inverse else -coefficient, fresh.dtype)
        noise += weight * earlier
    return noise, (fresh if inverse else noise, *memory[:-1])


def _of_modes(
    factorization: ToeplitzFactorization, fresh: tf.Tensor, memory: Memory
) -> tuple[tf.Tensor, Memory]:
    """Memory holds s_i of `tfdp.factorizations.modes`."""
    found: Modes = modes(factorization)
    noise, new = fresh, []
    for decay, weight, state in zip(*found, memory, strict=True):
        noise += tf.constant(weight, fresh.dtype) * state
        # In this order: 1 - decay would be rounded, and the digits of decay lost.
        new.append(state + (fresh - tf.constant(decay, fresh.dtype) * state))
    return noise, tuple(new)


def _of_series(
    factorization: ToeplitzFactorization, fresh: tf.Tensor, memory: Memory
) -> tuple[tf.Tensor, Memory]:
    """A filter in transposed form: memory holds what later steps will have of this noise."""
    (later,) = memory
    rows = later.shape[0]
    p, r = (
        [*c, *[0.0] * (rows + 1 - len(c))]
        for c in (factorization.numerator, factorization.denominator)
    )
    sums = tf.unstack(later, rows)
    noise = fresh + sums[0]
    new = []
    for k in range(1, rows + 1):
        total = sums[k] if k < rows else tf.zeros_like(fresh)
        total += tf.constant(r[k], fresh.dtype) * fresh
        new.append(total - tf.constant(p[k], fresh.dtype) * noise)
    return noise, (tf.stack(new),)


def _of_tree(
    tree: BinaryTree,
    num_steps: int,
    position: tf.Tensor,
    fresh: Sequence[tf.Tensor],
    memories: Sequence[Memory],
) -> tuple[list[tf.Tensor], list[Memory]]:
    """The difference of the noises of two running sums: that of the node which ends in this step,
    and less that of the nodes below it, which it replaces.

    A memory has a tensor for each level. Half of all nodes are leaves, and a node of level l reads
    the l levels below it: one level in a step, on average.
    """
    rows = tree.memory(num_steps)
    step = position + 1
    power = tf.bitwise.bitwise_and(step, -step)  # 2^l, where the node that ends is of level l.
    powers = tf.constant([1 << row for row in range(rows)], tf.int64)
    level = tf.argmax(tf.equal(powers, power), output_type=tf.int32)
    gains, weights, scales = (f(num_steps) for f in (tree.gains, tree.weights, tree.scales))

    def of_low(low):
        return [
            _node(low, scales[low], weights[low], gains[low], weights, leaf, memory)
            for leaf, memory in zip(fresh, memories, strict=True)
        ]

    def of_high():
        def of_level(table):
            return tf.gather(tf.constant(table), level)

        below = tf.cast(powers < power, tf.float64)
        row, counted = tf.unstack(of_level(gains), rows), tf.unstack(weights * below, rows)
        scale, weight = of_level(scales), of_level(weights)
        return [
            _node(rows, scale, weight, row, counted, leaf, memory)
            for leaf, memory in zip(fresh, memories, strict=True)
        ]

    branches: list[Any] = [lambda low=low: of_low(low) for low in range(min(rows, _LOW_LEVELS))]
    if rows > _LOW_LEVELS:
        branches.append(of_high)
    found = tf.switch_case(tf.minimum(level, len(branches) - 1), branches)
    last = tf.equal(position, num_steps - 1)
    # A level that ends holds the node, those above it what they held, and those below it nothing.
    kinds = [tf.where(last, 2, 1 + tf.clip_by_value(level - row, -1, 1)) for row in range(rows)]
    kept = [
        tuple(one_of(kind, [old, node]) for kind, old in zip(kinds, memory, strict=True))
        for memory, (node, _) in zip(memories, found, strict=True)
    ]
    return [noise for _, noise in found], kept


def _node(
    rows: int, scale: Any, weight: Any, gains: Any, weights: Any, fresh: tf.Tensor, memory: Memory
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the noise of a node, and what it adds to that of the running sum.

    Args:
        rows: How many levels are below the node; more, if the others have zeros in the tables.
        scale: Of what is fresh in the node.
        weight: Of the node in a running sum.
        gains: Of the levels below, in the node.
        weights: Of the levels below, in the running sum before.
        fresh: [...].
        memory: By level.
    """
    # Products and sums coordinate by coordinate: a matrix product may round more coarsely on a GPU.
    node = tf.cast(scale, fresh.dtype) * fresh
    for row in range(rows):
        node += tf.cast(gains[row], fresh.dtype) * memory[row]
    noise = tf.cast(weight, fresh.dtype) * node
    for row in range(rows):
        noise -= tf.cast(weights[row], fresh.dtype) * memory[row]
    return node, noise
