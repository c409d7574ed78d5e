"""What was released about one sample.

Events hold no TensorFlow object and depend on public configuration alone, never on a record.
"""

import dataclasses

from tfdp.events.arguments import check_type, positive_integer, real_number, set_field
from tfdp.events.base import Event


@dataclasses.dataclass(frozen=True)
class GaussianSumEvent(Event):
    """A sum was released with Gaussian noise N(0, noise_stddev^2 I).

    Attributes:
        l2_norm_bound: S, the largest l2 distance by which the sum moves when one privacy unit is
            added to or removed from the sample. It is the clip norm where a unit is one record,
            and twice that where a unit is one example of a microbatch.
        noise_stddev: Standard deviation of the noise on every coordinate of the sum. Zero is no
            privacy.
        seeded: True where the noise came from a generator with a known seed. Whoever knows the
            seed can subtract the noise, so accountants price it as no noise at all.
    """

    l2_norm_bound: float
    noise_stddev: float
    seeded: bool = False

    def __post_init__(self):
        bound = real_number("l2_norm_bound", self.l2_norm_bound, minimum=0, inclusive=False)
        stddev = real_number("noise_stddev", self.noise_stddev, minimum=0, inclusive=True)
        set_field(self, "l2_norm_bound", bound)
        set_field(self, "noise_stddev", stddev)
        check_type("seeded", self.seeded, bool)

    @property
    def noise_multiplier(self) -> float:
        """noise_stddev / l2_norm_bound, or zero where the noise was seeded."""
        return 0.0 if self.seeded else self.noise_stddev / self.l2_norm_bound


@dataclasses.dataclass(frozen=True)
class DiscreteGaussianSumEvent(Event):
    """A sum of vectors of whole numbers of grid steps was released with discrete Gaussian noise.

    With g the granularity, every coordinate of the sum is g times an integer, and the noise is g
    times an integer x with probability proportional to exp(-x^2 g^2 / (2 noise_stddev^2)), exactly
    (Canonne, Kamath and Steinke 2020, arXiv:2004.00010, definition 1). No floating-point number
    has a part in it until the noise has been added.

    Attributes:
        l2_norm_bound: S, as in `GaussianSumEvent`. It holds exactly, not up to rounding.
        noise_stddev: The parameter of the noise, in the units of the sum; at any size that
            protects, its standard deviation. Zero is no privacy.
        granularity: g, the distance of the grid, in the units of the sum.
        max_coordinates: The sum has at most so many.
        seeded: As in `GaussianSumEvent`.
    """

    l2_norm_bound: float
    noise_stddev: float
    granularity: float
    max_coordinates: int
    seeded: bool = False

    def __post_init__(self):
        bound = real_number("l2_norm_bound", self.l2_norm_bound, minimum=0, inclusive=False)
        stddev = real_number("noise_stddev", self.noise_stddev, minimum=0, inclusive=True)
        granularity = real_number("granularity", self.granularity, minimum=0, inclusive=False)
        set_field(self, "l2_norm_bound", bound)
        set_field(self, "noise_stddev", stddev)
        set_field(self, "granularity", granularity)
        set_field(
            self, "max_coordinates", positive_integer("max_coordinates", self.max_coordinates)
        )
        check_type("seeded", self.seeded, bool)

    @property
    def noise_multiplier(self) -> float:
        """noise_stddev / l2_norm_bound, or zero where the noise was seeded."""
        return 0.0 if self.seeded else self.noise_stddev / self.l2_norm_bound


@dataclasses.dataclass(frozen=True)
class LaplaceSumEvent(Event):
    """A sum was released with independent Laplace noise on every coordinate.

    Attributes:
        l1_norm_bound: S, the largest l1 distance by which the sum moves when one privacy unit is
            added to or removed from the sample.
        noise_scale: b, of the density exp(-|x| / b) / (2 b). Zero is no privacy.
        seeded: As in `GaussianSumEvent`.
    """

    l1_norm_bound: float
    noise_scale: float
    seeded: bool = False

    def __post_init__(self):
        bound = real_number("l1_norm_bound", self.l1_norm_bound, minimum=0, inclusive=False)
        scale = real_number("noise_scale", self.noise_scale, minimum=0, inclusive=True)
        set_field(self, "l1_norm_bound", bound)
        set_field(self, "noise_scale", scale)
        check_type("seeded", self.seeded, bool)

    @property
    def noise_multiplier(self) -> float:
        """noise_scale / l1_norm_bound, or zero where the noise was seeded."""
        return 0.0 if self.seeded else self.noise_scale / self.l1_norm_bound


@dataclasses.dataclass(frozen=True)
class ExponentialMechanismEvent(Event):
    """A candidate was selected with probability proportional to exp(epsilon u / (2 Delta)).

    The utility u of every candidate moves by at most Delta when one privacy unit is added to or
    removed from the sample. Where all utilities move in one direction only, exp(epsilon u / Delta)
    is the same event. Over the candidates, the logarithm of the ratio of two neighbours'
    probabilities then has a range of at most epsilon: epsilon-bounded range (Durfee and Rogers
    2019, arXiv:1905.04273), which costs less than epsilon-differential privacy.

    Attributes:
        epsilon: Positive.
    """

    epsilon: float

    def __post_init__(self):
        set_field(self, "epsilon", real_number("epsilon", self.epsilon, minimum=0, inclusive=False))


@dataclasses.dataclass(frozen=True)
class PureEpsilonEvent(Event):
    """Something was released that is epsilon-differentially private, and nothing more is known.

    Attributes:
        epsilon: When one privacy unit is added to or removed from the sample. Positive.
    """

    epsilon: float

    def __post_init__(self):
        set_field(self, "epsilon", real_number("epsilon", self.epsilon, minimum=0, inclusive=False))


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

    noise_parameter: float
    num_buckets: int

    def __post_init__(self):
        p = real_number(
            "noise_parameter", self.noise_parameter, minimum=0, inclusive=True, maximum=1
        )
        set_field(self, "noise_parameter", p)
        set_field(self, "num_buckets", positive_integer("num_buckets", self.num_buckets))
        if self.num_buckets < 2:
            raise ValueError(
                f"num_buckets must be at least 2. Received: num_buckets={self.num_buckets}."
            )


@dataclasses.dataclass(frozen=True)
class NonPrivateEvent(Event):
    """Something was released without protection: epsilon is infinite."""
