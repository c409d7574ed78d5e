"""Which way to the gradients of a convolution is cheapest, from its shape alone."""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

PATCHES = "patches"
PATCH_GRAM = "patch_gram"
PIXEL_GRAM = "pixel_gram"
ONE_BY_ONE = "one_by_one"
WAYS = (PATCHES, PATCH_GRAM, PIXEL_GRAM, ONE_BY_ONE)

# Costs, as benchmarks/convolution.py measures them, in multiply-adds of a large matrix product:
_BATCHED = 1.5  # a multiply-add in a batched product
_NARROW = 48  # columns of a result below which a product becomes no cheaper
_PRODUCT = 1e5  # the start of one product in a batch
_CONVOLVED = 0.6  # a multiply-add in an identity convolution
_MADE = 120.0  # a number that it writes, and a gather reads
_MADE_AT_ONCE = 40.0  # a number that it writes, along the only axis
_MULTIPLIED = 1.5  # a multiply-add of whole rows with one matrix
_ORDINARY = 1.3  # a multiply-add in the ordinary filter gradient
_TURN = 1.4e7  # the start of one such gradient of one record, in a loop; less on one thread
_TRAFFIC = 22.0  # a number written or read by other operations
_RUN = 320.0  # the start of one copy in a gather
_COPIED = 20.0  # a number copied by it

# Numbers of a matrix that a graph may hold.
_LARGEST_MATRIX = 2**16
# Numbers that stay in a processor's cache between two operations.
_CACHED = 2**19
# More parts than this save little, and each costs the start of many operations.
_MOST_PARTS = 8
# Taken as the number of records if that is not known when the graph is built.
_USUAL_RECORDS = 128


def is_pointwise(kernel: Sequence[int], strides: Sequence[int]) -> bool:
    """Returns whether the pixels are the patches."""
    return {*kernel, *strides} == {1}


def places_together(kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> int:
    """Returns how many places along the last axis always come into windows together."""
    return math.gcd(kernel[-1], strides[-1]) if dilations[-1] == 1 else 1


class LongRuns(NamedTuple):
    """How windows along the last axis are made, of which runs are copied then.

    Attributes:
        rows: Of how many neighbouring rows at once.
        by_matrix: By a product of whole rows with a matrix of ones and zeros; else by a convolution
            with an identity matrix.
    """

    rows: int
    by_matrix: bool


def long_runs(
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    channels: int,
    columns: int | None,
) -> LongRuns:
    """Returns the cheapest way to make windows along the last axis.

    Args:
        kernel: Length of a window along every axis.
        strides: Steps between windows.
        dilations: Steps between the places in a window.
        channels: Numbers at a place.
        columns: How many windows there are along the last axis, if known.
    """
    if len(kernel) == 1:
        return LongRuns(1, False)
    most = places_together(kernel[:-1], strides[:-1], dilations[:-1])
    ways = [LongRuns(rows, by_matrix) for rows in {1, most} for by_matrix in (False, True)]
    return min(ways, key=lambda runs: _in_runs(runs, kernel, strides, channels, columns))


def long_runs_make_patches(
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    channels: int,
    columns: int | None,
) -> bool:
    """Returns whether long runs, with what makes them, make patches faster than short ones do.

    Args:
        kernel: As for `long_runs`.
        strides: Likewise.
        dilations: Likewise.
        channels: Likewise.
        columns: Likewise.
    """
    if is_pointwise(kernel, strides):
        return False
    long = _in_long_runs(kernel, strides, dilations, channels, columns)
    return long < _gathered(*_runs(kernel, strides, dilations, channels))


def _runs(
    kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], channels: int
) -> tuple[int, int]:
    """Returns of how many runs of how many numbers a patch is made."""
    together = places_together(kernel, strides, dilations)
    return math.prod(kernel) // together, together * channels


def _in_long_runs(
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    channels: int,
    columns: int | None,
) -> float:
    """Returns the cost of one patch."""
    if len(kernel) == 1:
        numbers = kernel[0] * channels
        return _CONVOLVED * numbers * numbers + _MADE_AT_ONCE * numbers
    runs = long_runs(kernel, strides, dilations, channels, columns)
    return _in_runs(runs, kernel, strides, channels, columns)


def _in_runs(
    runs: LongRuns,
    kernel: Sequence[int],
    strides: Sequence[int],
    channels: int,
    columns: int | None,
) -> float:
    """Returns the cost of one patch."""
    numbers = runs.rows * kernel[-1] * channels
    number = _CONVOLVED * numbers + _MADE
    if runs.by_matrix:
        if columns is None:
            return math.inf
        inner = runs.rows * columns * strides[-1] * channels
        if inner * columns * numbers > _LARGEST_MATRIX:
            return math.inf
        number = _MULTIPLIED * inner + _TRAFFIC
    made, copied = math.prod(strides[:-1]) / runs.rows, math.prod(kernel[:-1]) // runs.rows
    return made * number * numbers + _gathered(copied, numbers)


def _gathered(runs: int, length: int) -> float:
    """Returns the cost of one patch."""
    return runs * (_RUN + _COPIED * length)


def is_narrow(columns: int, rows: int) -> bool:
    """Returns whether a product is faster if its result is transposed."""
    return columns < min(rows, _NARROW)


def _product(rows: int, columns: int, inner: int) -> float:
    if is_narrow(columns, rows):
        rows, columns = columns, rows
    return _BATCHED * rows * max(columns, _NARROW) * inner + _PRODUCT


def costs(
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    counts: Sequence[int],
    channels: int,
    filters: int,
    groups: int = 1,
) -> dict[str, float]:
    """Returns the cost of norms and sum for one record, by every way that is possible.

    With T positions, patches of p numbers and q filters (of one group):

    - patches: make the patches, multiply; write the p q products once, read them for norm and sum.
    - patch_gram: make the patches; two products T x T; then the ordinary filter gradient, whose
      T p q multiply-adds are those of a step that is not private.
    - pixel_gram: as before without patches; L pixels with padding stand for T positions, and every
      row and column of the kernel costs a pass over L x L numbers.
    - one_by_one: the ordinary filter gradient of the record alone; norm and sum read it.

    Args:
        kernel: Size of the kernel along the spatial axes.
        strides: One for each axis.
        dilations: One for each axis.
        counts: Number of positions along each axis.
        channels: Of the input.
        filters: Of the output.
        groups: Groups of channels.
    """
    c, q = channels // groups, filters // groups
    positions, runs = math.prod(counts), math.prod(kernel)
    p = runs * c
    if groups == 1 and is_pointwise(kernel, strides):
        make = 0.0
    elif groups == 1 and long_runs_make_patches(kernel, strides, dilations, c, counts[-1]):
        make = positions * _in_long_runs(kernel, strides, dilations, c, counts[-1])
    else:
        copied = _runs(kernel, strides, dilations, c) if groups == 1 else (runs, c)
        make = positions * _gathered(*copied)
    ordinary = _ORDINARY * positions * p * q + 2 * _TRAFFIC * positions * q
    result = {
        PATCHES: make + _product(p, q, positions) + 3 * _TRAFFIC * p * q,
        PATCH_GRAM: make
        + _product(positions, positions, p)
        + _product(positions, positions, q)
        + 3 * _TRAFFIC * positions**2
        + ordinary,
    }
    if groups == 1 and set(strides) == {1}:
        sizes = [n + (k - 1) * d for n, k, d in zip(counts, kernel, dilations, strict=True)]
        pixels = math.prod(sizes)
        numbered = math.prod([counts[0], *sizes[1:]])
        result[PIXEL_GRAM] = (
            _product(pixels, pixels, c)
            + _product(numbered, numbered, q)
            + _TRAFFIC * (pixels**2 * (2 * sum(kernel) + 1) + 4 * numbered**2)
            + ordinary
        )
    if groups == 1:  # TensorFlow has no convolution of several groups on a CPU.
        result[ONE_BY_ONE] = ordinary + 3 * _TRAFFIC * p * q + _TURN
    return {way: groups * cost for way, cost in result.items()}


def number_of_parts(records: int | None, numbers: int | None) -> int:
    """Returns into how many parts to split the records, to handle one after the other.

    Args:
        records: If known.
        numbers: How many one record needs on the way, if known.
    """
    most = _MOST_PARTS if records is None else min(records, _MOST_PARTS)
    if numbers is None:
        return most
    return max(1, min(most, (records or _USUAL_RECORDS) * numbers // _CACHED))


def cheapest(
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    counts: Sequence[int | None],
    channels: int,
    filters: int,
    groups: int = 1,
    ways: Collection[str] = WAYS,
) -> str:
    """Returns the cheapest way; patches where a size is not known, since Gram matrices may be huge.

    Args:
        kernel: Length of a window along every axis.
        strides: Steps between windows.
        dilations: Steps between the places in a window.
        counts: How many windows there are along every axis; None where that is not known.
        channels: Numbers at a place of the input.
        filters: Numbers at a place of the output.
        groups: Into how many parts the channels are divided.
        ways: Those that come into question; `PATCHES` is one.

    Example:
        >>> cheapest((3, 3), (2, 2), (1, 1), (4, 4), 64, 128)
        'patch_gram'
        >>> cheapest((3, 3), (1, 1), (1, 1), (32, 32), 3, 32)
        'patches'
        >>> cheapest((3, 3), (1, 1), (1, 1), (64, 64), 48, 16)
        'one_by_one'
    """
    if None in counts:
        return PATCHES
    by_way = costs(kernel, strides, dilations, counts, channels, filters, groups)
    return min((way for way in by_way if way in ways), key=by_way.__getitem__)
