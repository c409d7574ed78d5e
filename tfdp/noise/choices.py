"""Results of a staged function that are one of some tensors as it was, or zero."""

from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdp.noise.stage import Kept, current


def zero_if(condition: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns zeros where a scalar is true, and otherwise `tensor`.

    Where what this returns is a result of a function that is staged, XLA has no part in it. Of an
    argument of the function it would make a copy, and of what is used for other results too it
    would compute one more.

    Args:
        condition: Boolean scalar.
        tensor: Of any shape.
    """
    result = tf.where(condition, tf.zeros_like(tensor), tensor)
    if current.stage is not None:
        current.stage.keep(condition, [tensor], result)
    return result


def one_of(index: tf.Tensor, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the tensor of this index, and zeros where the index is their number.

    As of `zero_if`, XLA has no part in a result of a function that is staged, and nothing is
    copied.

    Args:
        index: int32 scalar. Results with the same tensor here are chosen by one branch.
        tensors: Of one shape and dtype.
    """
    result = tf.zeros_like(tensors[0])
    for number, tensor in enumerate(tensors):
        result = tf.where(tf.equal(index, number), tensor, result)
    if current.stage is not None:
        current.stage.keep(index, tensors, result)
    return result


def chosen(
    kept: list[Kept], known: dict[int, tf.Tensor], indices: list[tf.Tensor]
) -> Iterator[tuple[int, tf.Tensor]]:
    """Yields the id of each result inside, and the result: one branch for all of an index.

    Args:
        kept: The results.
        known: The tensors outside, by the id of those inside.
        indices: Of all results, outside.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for number, one in enumerate(kept):
        groups.setdefault((id(one.index), len(one.tensors)), []).append(number)
    for numbers in groups.values():
        rows = [[known[id(tensor)] for tensor in kept[number].tensors] for number in numbers]
        choices = [lambda tensors=tensors: list(tensors) for tensors in zip(*rows, strict=True)]
        zeros = lambda rows=rows: [tf.zeros_like(row[0]) for row in rows]  # noqa: E731
        index = indices[numbers[0]]
        if index.dtype == tf.bool:
            results = tf.cond(index, zeros, choices[0])
        else:
            results = tf.switch_case(index, [*choices, zeros])
        yield from zip([id(kept[number].result) for number in numbers], results, strict=True)
