"""What was released about one sample.

Events hold no TensorFlow object and depend on public configuration alone, never on a record.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

from tfdp.events.arguments import check_type, positive_integer, real_number, set_field
from tfdp.events.base import Event
from tfdp.events.registry import register


class NoisySum(Event):
    """Base of sums to which noise was added.

    Attributes:
        bound_field: Name of the field that bounds by how much one privacy unit moves the sum.
        noise_field: Name of the field that holds the size of the noise, in the units of the sum.
        seeded: True where the noise came from a generator with a known seed. Whoever knows the
            seed can subtract the noise, so accountants price it as no noise at all.
    """

    bound_field: ClassVar[str]
    noise_field: ClassVar[str]
    seeded: bool

    def __post_init__(self) -> None:
        for name, inclusive in ((self.bound_field, False), (self.noise_field, True)):
            value = getattr(self, name)
            set_field(self, name, real_number(name, value, minimum=0, inclusive=inclusive))
        check_type("seeded", self.seeded, bool)

    @property
    def noise_multiplier(self) -> float:
        """The size of the noise, relative to the bound; zero where the noise was seeded."""
        noise, bound = getattr(self, self.noise_field), getattr(self, self.bound_field)
        return 0.0 if self.seeded else noise / bound

    def scaled(self, factor: float) -> Event:
        bound = getattr(self, self.bound_field)
        return dataclasses.replace(self, **{self.bound_field: bound * factor})  # type: ignore[type-var]

    def why_not_private(self) -> str | None:
        if self.seeded:
            return "the noise was seeded: whoever knows the seed can subtract it"
        return None if self.noise_multiplier else "the noise was zero"


@register
@dataclasses.dataclass(frozen=True)
class GaussianSumEvent(NoisySum):
    """A sum was released with Gaussian noise N(0, noise_stddev^2 I).

    Attributes:
        l2_norm_bound: S, the largest l2 distance by which the sum moves when one privacy unit is
            added to or removed from the sample. It is the clip norm where a unit is one record,
            and twice that where a unit is one example of a microbatch.
        noise_stddev: Standard deviation of the noise on every coordinate of the sum. Zero is no
            privacy.
        seeded: As in `NoisySum`.
    """

    words: ClassVar[str] = "sum with Gaussian noise"
    bound_field: ClassVar[str] = "l2_norm_bound"
    noise_field: ClassVar[str] = "noise_stddev"
    field_words: ClassVar[Mapping[str, str]] = {
        "l2_norm_bound": "l2 norm bound S",
        "noise_stddev": "noise standard deviation σ",
    }
    explanation: ClassVar[str | None] = (
        "In each, sums over data were released; according to the ledger {unit} moves a sum by no "
        "more than a recorded bound, and random (Gaussian) noise of a recorded size was added to "
        "it. Where a model was trained, as tfdp does it, a step is one update of its weights, the "
        "sums are those of its gradients, one of each record and clipped to the bound, and what "
        "was released is the model after every step."
    )

    l2_norm_bound: float
    noise_stddev: float
    seeded: bool = False

    def repeated(self, count: int) -> Event:
        # So many Gaussians with bound S and this noise are one with bound sqrt(count) S.
        return self.scaled(math.sqrt(count))

    def line(self) -> str:
        seeded = ", seeded" if self.seeded else ""
        # Rounded only to what is no better.
        bound, noise = f"{self.l2_norm_bound:g}", f"{self.noise_stddev:g}"
        if float(bound) < self.l2_norm_bound:
            bound = repr(self.l2_norm_bound)
        if float(noise) > self.noise_stddev:
            noise = repr(self.noise_stddev)
        return f"sum: l2 norm bound {bound}, noise stddev {noise}{seeded}"


@register
@dataclasses.dataclass(frozen=True)
class DiscreteGaussianSumEvent(NoisySum):
    """A sum of vectors of whole numbers of grid steps was released with discrete Gaussian noise.

    Let g be the granularity. Every coordinate of the sum is g times an integer. The noise is g
    times an integer x with probability proportional to exp(-x^2 g^2 / (2 noise_stddev^2)), exactly
    (Canonne, Kamath and Steinke 2020, arXiv:2004.00010, definition 1). No floating-point number has
    a part in it until the noise has been added.

    Attributes:
        l2_norm_bound: S, as in `GaussianSumEvent`. It holds exactly, not up to rounding.
        noise_stddev: The parameter of the noise, in the units of the sum; at any size that
            protects, its standard deviation. Zero is no privacy.
        granularity: g, the distance of the grid, in the units of the sum.
        max_coordinates: The sum has at most so many.
        seeded: As in `NoisySum`.
    """

    words: ClassVar[str] = "sum on a grid with exact (discrete Gaussian) noise"
    bound_field: ClassVar[str] = "l2_norm_bound"
    noise_field: ClassVar[str] = "noise_stddev"
    field_words: ClassVar[Mapping[str, str]] = {
        "l2_norm_bound": "l2 norm bound S",
        "noise_stddev": "noise standard deviation σ",
        "granularity": "distance of the grid",
        "max_coordinates": "coordinates, at most",
    }

    l2_norm_bound: float
    noise_stddev: float
    granularity: float
    max_coordinates: int
    seeded: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        granularity = real_number("granularity", self.granularity, minimum=0, inclusive=False)
        set_field(self, "granularity", granularity)
        set_field(
            self, "max_coordinates", positive_integer("max_coordinates", self.max_coordinates)
        )


@register
@dataclasses.dataclass(frozen=True)
class LaplaceSumEvent(NoisySum):
    """A sum was released with independent Laplace noise on every coordinate.

    Attributes:
        l1_norm_bound: S, the largest l1 distance by which the sum moves when one privacy unit is
            added to or removed from the sample.
        noise_scale: b, of the density exp(-|x| / b) / (2 b). Zero is no privacy.
        seeded: As in `NoisySum`.
    """

    words: ClassVar[str] = "sum with Laplace noise"
    bound_field: ClassVar[str] = "l1_norm_bound"
    noise_field: ClassVar[str] = "noise_scale"
    field_words: ClassVar[Mapping[str, str]] = {
        "l1_norm_bound": "l1 norm bound S",
        "noise_scale": "noise scale b",
    }

    l1_norm_bound: float
    noise_scale: float
    seeded: bool = False

    def repeated(self, count: int) -> Event:
        # So many with bound S cost at most what one with bound count S does.
        return self.scaled(float(count))


@register
@dataclasses.dataclass(frozen=True)
class ExponentialMechanismEvent(Event):
    """A candidate was selected with probability proportional to exp(epsilon u / (2 Delta)).

    The utility u of every candidate moves by at most Delta when one privacy unit is added to or
    removed from the sample. Where all utilities move in one direction only, exp(epsilon u / Delta)
    is the same event. Over the candidates, the logarithm of the ratio of two neighbours'
    probabilities then has a range of at most epsilon. That is epsilon-bounded range (Durfee and
    Rogers 2019, arXiv:1905.04273), which costs less than epsilon-differential privacy.

    Attributes:
        epsilon: Positive.
    """

    words: ClassVar[str] = "choice by the exponential mechanism"
    field_words: ClassVar[Mapping[str, str]] = {"epsilon": "ε"}

    epsilon: float

    def __post_init__(self) -> None:
        set_field(self, "epsilon", real_number("epsilon", self.epsilon, minimum=0, inclusive=False))

    def of_group(self, size: int) -> Event:
        # Ranges of neighbours in a row add up.
        return dataclasses.replace(self, epsilon=self.epsilon * size)


@register
@dataclasses.dataclass(frozen=True)
class PureEpsilonEvent(Event):
    """Something was released that is epsilon-differentially private, and nothing more is known.

    Attributes:
        epsilon: When one privacy unit is added to or removed from the sample. Positive.
    """

    words: ClassVar[str] = "release declared to be epsilon-differentially private"
    field_words: ClassVar[Mapping[str, str]] = {"epsilon": "ε"}

    epsilon: float

    def __post_init__(self) -> None:
        set_field(self, "epsilon", real_number("epsilon", self.epsilon, minimum=0, inclusive=False))

    def of_group(self, size: int) -> Event:
        # Losses of neighbours in a row add up.
        return dataclasses.replace(self, epsilon=self.epsilon * size)


@register
@dataclasses.dataclass(frozen=True)
class EpsilonDeltaEvent(Event):
    """Something was released that is (epsilon, delta)-differentially private.

    Beside another release about the same sample, `epsilon` may be zero: with probability `delta`
    nothing is promised, and else only what the other release tells was told. Releases of those
    partitions of the data whose noised counts are above a threshold are of this kind.

    Attributes:
        epsilon: When one privacy unit is added to or removed from the sample. Not negative.
        delta: Likewise; in (0, 1).
    """

    words: ClassVar[str] = "release declared to be (ε, δ)-differentially private"
    field_words: ClassVar[Mapping[str, str]] = {"epsilon": "ε", "delta": "δ"}

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        epsilon = real_number("epsilon", self.epsilon, minimum=0, inclusive=True)
        delta = real_number("delta", self.delta, minimum=0, inclusive=False, maximum=1)
        if delta == 1:
            raise ValueError("delta must be smaller than 1. Received: delta=1.")
        set_field(self, "epsilon", epsilon)
        set_field(self, "delta", delta)


@register
@dataclasses.dataclass(frozen=True)
class RandomizedResponseEvent(Event):
    """Every unit of the sample reported its value, or a random one; every report was released.

    With probability noise_parameter a report is drawn uniformly from all num_buckets values, and
    else it is the unit's own value. Reports can be told apart, so who was sampled is no secret. A
    null unit (ZERO_OUT) reports a value that is drawn uniformly.

    Attributes:
        noise_parameter: p, in [0, 1]. Zero is no privacy.
        num_buckets: k, at least 2.
    """

    words: ClassVar[str] = "randomized reports of single units"
    field_words: ClassVar[Mapping[str, str]] = {
        "noise_parameter": "probability of a random report",
        "num_buckets": "possible reports",
    }

    noise_parameter: float
    num_buckets: int

    def __post_init__(self) -> None:
        p = real_number(
            "noise_parameter", self.noise_parameter, minimum=0, inclusive=True, maximum=1
        )
        set_field(self, "noise_parameter", p)
        set_field(self, "num_buckets", positive_integer("num_buckets", self.num_buckets))
        if self.num_buckets < 2:
            raise ValueError(
                f"num_buckets must be at least 2. Received: num_buckets={self.num_buckets}."
            )

    def why_not_private(self) -> str | None:
        return None if self.noise_parameter else "the responses were not randomized"


@register
@dataclasses.dataclass(frozen=True)
class NonPrivateEvent(Event):
    """Something was released without protection: epsilon is infinite."""

    words: ClassVar[str] = "release without protection"
    protects: ClassVar[bool] = False

    def scaled(self, factor: float) -> Event:
        return self

    def repeated(self, count: int) -> Event:
        return self

    def why_not_private(self) -> str | None:
        return "something was released without protection (NonPrivateEvent)"
