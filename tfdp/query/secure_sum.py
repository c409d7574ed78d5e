"""The scale, bound and noise of a secure sum, from what one knows before it."""

import math
from collections.abc import Callable
from typing import Any

from tfdp.events.arguments import positive_integer, real_number
from tfdp.noise.skellam import LARGEST_VARIANCE
from tfdp.query.arguments import clip_norm
from tfdp.query.discretized import DiscretizedSumQuery
from tfdp.query.distributed import DistributedDiscreteGaussianSumQuery, DistributedSkellamSumQuery
from tfdp.query.encoding import padded_length, rounded_norm_bound
from tfdp.query.integer_sums import LARGEST_NORM

# Standard deviations of shares that there are tables for, at most.
_MOST_NOISE = {"discrete_gaussian": math.inf, "skellam": math.sqrt(LARGEST_VARIANCE)}
# By the names of the noise: the sum of integers of a bound, the noise of a share, how many shares
# there are at least, and the number of coordinates.
_SUMS: dict[str, Callable[[float, float, int, int], Any]] = {
    "discrete_gaussian": lambda bound, stddev, shares, length: DistributedDiscreteGaussianSumQuery(
        bound, stddev, shares, length
    ),
    "skellam": lambda bound, stddev, shares, length: DistributedSkellamSumQuery(
        bound * min(bound, math.sqrt(length)), bound, stddev, shares
    ),
}


def secure_sum_query(
    l2_norm_clip: float,
    noise_multiplier: float,
    num_coordinates: int,
    num_records: int,
    *,
    noise: str = "discrete_gaussian",
    min_contributors: int | None = None,
    modulus_bits: int = 20,
    room: float = 4.0,
) -> DiscretizedSumQuery:
    """Returns a sum of real numbers in integers of so many bits, with shares of noise.

    The scale is the largest whose noise can be drawn, and with which the sum, of records that are
    all alike, and its noise fit into the modulus:

        2 room sqrt((n scale l2_norm_clip)^2 / d + n / 4 + n local_stddev^2) <= 2^modulus_bits

    with n records and d the number of coordinates, filled up to a power of two: rotated, a
    coordinate of the sum is spread like a Gaussian.

    Args:
        l2_norm_clip: Bound on the l2 norm of a record; positive.
        noise_multiplier: z: the noise of `min_contributors` records together has z times the
            l2 norm bound of a record's integers as its standard deviation; positive.
        num_coordinates: Of a record.
        num_records: n: how many take part, at most; more may exceed the modulus.
        noise: "discrete_gaussian" or "skellam".
        min_contributors: How many records are charged for; by default all n.
        modulus_bits: Of what a record sends for every coordinate.
        room: Standard deviations that fit into half of the modulus. A coordinate of the sum is
            useless with probability 2 exp(-room^2 / 2) at most.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range, or so few bits cannot hold the noise.

    Example:
        >>> query = secure_sum_query(1.0, 2.0, num_coordinates=1000, num_records=100)
        >>> round(query.scale), round(query.sum_query.local_stddev)
        (35327, 7066)

    References:
        Kairouz, Liu, Steinke 2021, arXiv:2102.06387, section 4.2.
    """
    clip = clip_norm("l2_norm_clip", l2_norm_clip)
    z = real_number("noise_multiplier", noise_multiplier, minimum=0, inclusive=False, maximum=1e9)
    length = padded_length(positive_integer("num_coordinates", num_coordinates))
    n = positive_integer("num_records", num_records)
    shares = (
        n if min_contributors is None else positive_integer("min_contributors", min_contributors)
    )
    if shares > n:
        raise ValueError(
            f"min_contributors must be at most num_records={n}. Received: {min_contributors}."
        )
    bits = positive_integer("modulus_bits", modulus_bits)
    room = real_number("room", room, minimum=0, inclusive=False)
    if noise not in _SUMS:
        raise ValueError(f"noise must be one of {list(_SUMS)}. Received: noise={noise!r}.")

    def of_scale(norm: float) -> tuple[float, float]:
        """Returns the norm bound and the noise of a share, for a clip of so many integers."""
        bound = rounded_norm_bound(norm, length)
        return bound, z * bound / math.sqrt(shares)

    def fits(norm: float) -> bool:
        bound, stddev = of_scale(norm)
        spread = math.sqrt((n * norm) ** 2 / length + n / 4 + n * stddev**2)
        possible = bound <= LARGEST_NORM and stddev <= _MOST_NOISE[noise]
        return possible and 2 * room * spread <= 2.0**bits

    low, high = 2.0**-20, float(LARGEST_NORM)
    if not fits(low):
        raise ValueError(
            f"Noise of a multiplier of {z} on {n} records of {length} coordinates does not fit "
            f"into modulus_bits={bits}. Take more bits, or less room."
        )
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    bound, stddev = of_scale(low)
    integers = _SUMS[noise](bound, stddev, shares, length)
    return DiscretizedSumQuery(integers, clip, low / clip, bits)
