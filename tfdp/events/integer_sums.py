"""Sums of vectors of integers, with noise that is an integer itself."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

from tfdp.events.arguments import check_type, positive_integer, real_number, set_field
from tfdp.events.base import Event
from tfdp.events.registry import register
from tfdp.events.releases import NoisySum


@register
@dataclasses.dataclass(frozen=True)
class IntegerGaussianSumEvent(NoisySum):
    """A sum of integer vectors was released with discrete Gaussian noise on every coordinate.

    The noise is an integer x with probability proportional to exp(-x^2 / (2 noise_stddev^2)),
    exactly (Canonne, Kamath and Steinke 2020, arXiv:2004.00010, definition 1). It may be as small
    as it likes: nothing is said of how near it is to a Gaussian.

    Attributes:
        l2_norm_bound: S, as in `GaussianSumEvent`. It holds exactly, not up to rounding.
        noise_stddev: The parameter of the noise. Zero is no privacy.
        seeded: As in `NoisySum`.
    """

    words: ClassVar[str] = "sum of integers with exact (discrete Gaussian) noise"
    bound_field: ClassVar[str] = "l2_norm_bound"
    noise_field: ClassVar[str] = "noise_stddev"
    field_words: ClassVar[Mapping[str, str]] = {
        "l2_norm_bound": "l2 norm bound S",
        "noise_stddev": "noise standard deviation σ",
    }

    l2_norm_bound: float
    noise_stddev: float
    seeded: bool = False

    def repeated(self, count: int) -> Event:
        # So many with bound S cost what one with bound sqrt(count) S does.
        return self.scaled(math.sqrt(count))


@register
@dataclasses.dataclass(frozen=True)
class GaussianSharesSumEvent(NoisySum):
    """A sum of integer vectors was released, each of which had discrete Gaussian noise of its own.

    Only sums with at least `min_shares` such records are released. Who takes part is public: there
    is a price where a record is replaced or zeroed out and its noise stays, and none where a record
    comes or goes with its noise.

    Attributes:
        l2_norm_bound: S, as in `IntegerGaussianSumEvent`, without the noise.
        share_stddev: The parameter of the noise of one record. Zero is no privacy.
        min_shares: n, the least number of independent shares.
        max_coordinates: The sum has at most so many.
        seeded: As in `NoisySum`.
    """

    words: ClassVar[str] = "sum of integers with shares of discrete Gaussian noise"
    bound_field: ClassVar[str] = "l2_norm_bound"
    noise_field: ClassVar[str] = "share_stddev"
    field_words: ClassVar[Mapping[str, str]] = {
        "l2_norm_bound": "l2 norm bound S",
        "share_stddev": "standard deviation of the noise of one record",
        "min_shares": "records with noise, at least",
        "max_coordinates": "coordinates, at most",
    }

    l2_norm_bound: float
    share_stddev: float
    min_shares: int
    max_coordinates: int
    seeded: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("min_shares", "max_coordinates"):
            set_field(self, name, positive_integer(name, getattr(self, name)))

    @property
    def noise_multiplier(self) -> float:
        return math.sqrt(self.min_shares) * super().noise_multiplier


@register
@dataclasses.dataclass(frozen=True)
class SkellamSharesSumEvent(Event):
    """A sum of integer vectors was released, each of which had Skellam noise of its own.

    As `GaussianSharesSumEvent`, with differences of two Poisson numbers for noise. Sums of those
    are such differences themselves, so that the number of shares counts by the variance alone.

    Attributes:
        l1_norm_bound: The largest l1 distance by which one privacy unit moves the sum.
        l2_norm_bound: The largest l2 distance.
        share_stddev: Standard deviation of the noise of one record. Zero is no privacy.
        min_shares: The least number of independent shares.
        seeded: As in `NoisySum`.
    """

    words: ClassVar[str] = "sum of integers with shares of Skellam noise"
    field_words: ClassVar[Mapping[str, str]] = {
        "l1_norm_bound": "l1 norm bound",
        "l2_norm_bound": "l2 norm bound S",
        "share_stddev": "standard deviation of the noise of one record",
        "min_shares": "records with noise, at least",
    }

    l1_norm_bound: float
    l2_norm_bound: float
    share_stddev: float
    min_shares: int
    seeded: bool = False

    def __post_init__(self) -> None:
        for name in ("l1_norm_bound", "l2_norm_bound", "share_stddev"):
            inclusive = name == "share_stddev"
            value = real_number(name, getattr(self, name), minimum=0, inclusive=inclusive)
            set_field(self, name, value)
        set_field(self, "min_shares", positive_integer("min_shares", self.min_shares))
        check_type("seeded", self.seeded, bool)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of all the noise, relative to the l2 bound; zero if seeded."""
        noise = 0.0 if self.seeded else self.share_stddev
        return math.sqrt(self.min_shares) * (noise / self.l2_norm_bound)

    def scaled(self, factor: float) -> Event:
        return dataclasses.replace(
            self,
            l1_norm_bound=self.l1_norm_bound * factor,
            l2_norm_bound=self.l2_norm_bound * factor,
        )

    def why_not_private(self) -> str | None:
        if self.seeded:
            return "the noise was seeded: whoever knows the seed can subtract it"
        return None if self.noise_multiplier else "the noise was zero"
