"""Lengths that follow from the number of records, and what operations make of them."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf


class Rows(NamedTuple):
    """What stands for the number of records, or for so many times it, in a tensor of lengths."""

    times: int


# Operations that take lengths as they are.
_PASS_ON = (
    *("Cast", "ConcatV2", "ExpandDims", "GatherV2"),
    *("Pack", "Reshape", "Squeeze", "StridedSlice"),
)

Lengths = list[Any]  # Integers and `Rows`; None where a length is not known.
_After = Callable[[tf.Operation, list[Lengths]], Lengths | None]


def has_rows(lengths: Sequence[Any]) -> bool:
    """Returns whether one of some lengths follows from the number of records."""
    return any(isinstance(length, Rows) for length in lengths)


def lengths_after(op: tf.Operation, lists: list[Lengths]) -> Lengths | None:
    """Returns the lengths that an operation makes of others, for any number of records.

    Args:
        op: The operation.
        lists: What its operands hold.

    Returns:
        The lengths; None if it is not known to make any, or they follow from that number in another
        way.
    """
    after = LENGTHS_AFTER.get(op.type)
    # Of a table of lengths it would have to be known in which order they are.
    if after is None or any(t.shape.rank not in (0, 1) for t in (*op.inputs, *op.outputs)):
        return None
    if op.type not in _PASS_ON and any(None in lengths for lengths in lists):
        return None
    found = after(op, lists)
    numbers = (n.times if isinstance(n, Rows) else n for n in found or [])
    largest = max((abs(n) for n in numbers if n is not None), default=0)
    return found if largest <= op.outputs[0].dtype.max else None


def _arithmetic(compute: Callable[[int, int], int]) -> _After:
    def after(op, lists):
        return None if any(map(has_rows, lists)) else [compute(*pair) for pair in _pairs(*lists)]

    return after


def _same(op: tf.Operation, lists: list[Lengths]) -> Lengths | None:
    (result,) = op.outputs
    # In fewer bits the number of records would be another one.
    return lists[0] if result.dtype in (tf.int32, tf.int64) else None


def _larger(op: tf.Operation, lists: list[Lengths]) -> Lengths | None:
    if not any(map(has_rows, lists)):
        return _arithmetic(max)(op, lists)
    if any(len(lengths) != 1 for lengths in lists):
        return None
    # To what shape two are broadcast: there is at least one record.
    lengths = list({length for (length,) in lists if length != 1})
    return lengths if len(lengths) == 1 else None


def _multiplied(op: tf.Operation, lists: list[Lengths]) -> Lengths | None:
    if sum(map(has_rows, lists)) != 1:
        return _arithmetic(operator.mul)(op, lists)
    rows, factors = sorted(lists, key=has_rows, reverse=True)
    if not all(isinstance(factor, int) and factor > 0 for factor in factors):
        return None
    return [_times(pair) for pair in _pairs(rows, factors)]


def _divided(op: tf.Operation, lists: list[Lengths]) -> Lengths | None:
    if 0 in lists[1]:
        return None
    if not any(map(has_rows, lists)):
        return _arithmetic(operator.floordiv)(op, lists)
    if any(len(lengths) != 1 for lengths in lists):
        return None
    (length,), (parts,) = lists
    if not isinstance(length, Rows) or not isinstance(parts, int) or parts <= 0:
        return None
    times, rest = divmod(length.times, parts)
    return None if rest else [Rows(times)]


def _product(op: tf.Operation, lists: list[Lengths]) -> Lengths | None:
    lengths, axes = lists
    return None if has_rows(lengths[1:]) or not axes else [_times(lengths)]


def _packed(op: tf.Operation, lists: list[Lengths]) -> Lengths | None:
    return [length for (length,) in lists]


def _joined(op: tf.Operation, lists: list[Lengths]) -> Lengths | None:
    return [length for lengths in lists[:-1] for length in lengths]


def _chosen(op: tf.Operation, lists: list[Lengths]) -> Lengths | None:
    lengths, places, _ = lists
    if op.get_attr("batch_dims") or not set(places) <= set(range(len(lengths))):
        return None
    return [lengths[place] for place in places]


def _sliced(op: tf.Operation, lists: list[Lengths]) -> Lengths | None:
    lengths, *where = lists
    masks = {m: op.get_attr(f"{m}_mask") & 1 for m in ("begin", "end", "shrink_axis")}
    if op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask"):
        return None
    if any(len(w) != 1 or not isinstance(w[0], int) for w in where):
        return None
    (begin,), (end,), (stride,) = where
    if masks["shrink_axis"]:
        return [lengths[begin]]
    begin, end = None if masks["begin"] else begin, None if masks["end"] else end
    return lengths[begin:end:stride]


def _pairs(first: Lengths, second: Lengths) -> list[tuple[Any, Any]]:
    number = len(second) if len(first) == 1 else len(first)
    first, second = (n * number if len(n) == 1 else n for n in (first, second))
    return list(zip(first, second, strict=True))


def _times(lengths: Sequence[Any]) -> Any:
    """Returns the product of lengths of which only the first may be that of records."""
    first, rest = lengths[:1], lengths[1:]
    if has_rows(first):
        return Rows(first[0].times * math.prod(rest))
    return math.prod(lengths)


LENGTHS_AFTER: dict[str, _After] = {
    **dict.fromkeys(("Cast", "ExpandDims", "Reshape", "Squeeze"), _same),
    "AddV2": _arithmetic(operator.add),
    "ConcatV2": _joined,
    "FloorDiv": _divided,
    "GatherV2": _chosen,
    "Maximum": _larger,
    "Mul": _multiplied,
    "Pack": _packed,
    "Prod": _product,
    "StridedSlice": _sliced,
    "Sub": _arithmetic(operator.sub),
}
