"""How the sample of a step was drawn from the population."""

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any, ClassVar

from tfdp.events.arguments import positive_integer, real_number, set_field
from tfdp.events.base import Sampling
from tfdp.events.registry import register


def check_population(instance: Any) -> None:
    """Checks a description's number of units, where it has one."""
    if instance.population_size is not None:
        set_field(
            instance,
            "population_size",
            positive_integer("population_size", instance.population_size),
        )


def _check_pass(instance: Any) -> None:
    index = instance.pass_index
    if isinstance(index, bool) or not isinstance(index, numbers.Integral):
        raise TypeError(f"pass_index must be an integer. Received: pass_index={index!r}.")
    if index < 0:
        raise ValueError(f"pass_index must not be negative. Received: pass_index={index}.")
    set_field(instance, "pass_index", int(index))


@register
@dataclasses.dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Every unit is in the sample independently, with the same probability.

    Attributes:
        sampling_probability: q, in (0, 1].
        population_size: Number of units, or None where it is not known.
    """

    words: ClassVar[str] = "every unit independently, with the same probability in every step"
    field_words: ClassVar[Mapping[str, str]] = {
        "sampling_probability": "probability q",
        "population_size": "population",
    }

    sampling_probability: float
    population_size: int | None = None

    def __post_init__(self) -> None:
        q = real_number(
            "sampling_probability", self.sampling_probability, minimum=0, inclusive=False, maximum=1
        )
        set_field(self, "sampling_probability", q)
        check_population(self)


@register
@dataclasses.dataclass(frozen=True)
class TruncatedPoissonSampling(Sampling):
    """A Poisson sample, of which a uniformly random part is kept where it is too large.

    Attributes:
        sampling_probability: q, in (0, 1].
        population_size: Number of units.
        max_sample_size: Units that are kept at most.
    """

    words: ClassVar[str] = (
        "every unit independently with the same probability; of a sample that is too large, a "
        "random part"
    )
    field_words: ClassVar[Mapping[str, str]] = {
        "sampling_probability": "probability q",
        "population_size": "population",
        "max_sample_size": "largest sample",
    }

    sampling_probability: float
    population_size: int
    max_sample_size: int

    def __post_init__(self) -> None:
        PoissonSampling(self.sampling_probability)
        set_field(self, "sampling_probability", float(self.sampling_probability))
        set_field(
            self, "population_size", positive_integer("population_size", self.population_size)
        )
        set_field(
            self, "max_sample_size", positive_integer("max_sample_size", self.max_sample_size)
        )


@register
@dataclasses.dataclass(frozen=True)
class FixedSizeSampling(Sampling):
    """`sample_size` of `population_size` units, uniformly, without replacement, drawn anew each
    step.
    """

    words: ClassVar[str] = "a set of fixed size, drawn anew at random for every step"
    field_words: ClassVar[Mapping[str, str]] = {
        "sample_size": "sample size",
        "population_size": "population",
    }

    sample_size: int
    population_size: int

    def __post_init__(self) -> None:
        set_field(self, "sample_size", positive_integer("sample_size", self.sample_size))
        check_population(self)
        if self.population_size is None or self.sample_size > self.population_size:
            raise ValueError(
                "sample_size must be at most population_size. Received: "
                f"sample_size={self.sample_size}, population_size={self.population_size}."
            )


@register
@dataclasses.dataclass(frozen=True)
class RandomAllocationSampling(Sampling):
    """Every unit is in exactly `participations` of the `num_steps` steps of a pass, a uniformly
    random set of them, independently of all other units (Chua et al. 2024, arXiv:2412.16802).

    Attributes:
        num_steps: t, steps of a pass; public.
        participations: k, at most t.
        population_size: Number of units, or None where it is not known.
        pass_index: Which pass the step belongs to; other passes are drawn anew.
    """

    words: ClassVar[str] = "every unit in so many steps of a pass, which are drawn uniformly"
    field_words: ClassVar[Mapping[str, str]] = {
        "num_steps": "steps of a pass",
        "participations": "of which a unit is in",
        "population_size": "population",
    }

    num_steps: int
    participations: int = 1
    population_size: int | None = None
    pass_index: int = 0

    def __post_init__(self) -> None:
        set_field(self, "num_steps", positive_integer("num_steps", self.num_steps))
        k = positive_integer("participations", self.participations)
        if k > self.num_steps:
            raise ValueError(
                "participations must be at most num_steps. Received: "
                f"participations={k}, num_steps={self.num_steps}."
            )
        set_field(self, "participations", k)
        check_population(self)
        _check_pass(self)

    @property
    def steps_per_pass(self) -> int:
        """T."""
        return self.num_steps

    @property
    def pass_number(self) -> int:
        return self.pass_index

    def in_pass(self, number: int) -> Sampling:
        return dataclasses.replace(self, pass_index=number)


@register
@dataclasses.dataclass(frozen=True)
class ShuffledSampling(Sampling):
    """Consecutive batches of a permutation: within one pass every unit is seen at most once.

    Attributes:
        batch_size: Units in a batch; the last batch of a pass may be smaller.
        population_size: Number of units.
        pass_index: Which pass over the data this step belongs to. Steps of different passes are
            different events, so that two half passes are never counted as one.
    """

    words: ClassVar[str] = "consecutive batches of the shuffled data, each unit once a pass"
    is_random: ClassVar[bool] = False
    field_words: ClassVar[Mapping[str, str]] = {
        "batch_size": "batch size",
        "population_size": "population",
    }

    batch_size: int
    population_size: int
    pass_index: int = 0

    def __post_init__(self) -> None:
        set_field(self, "batch_size", positive_integer("batch_size", self.batch_size))
        set_field(
            self, "population_size", positive_integer("population_size", self.population_size)
        )
        _check_pass(self)

    @property
    def steps_per_pass(self) -> int:
        """Batches in one pass, a smaller last one included."""
        return -(-self.population_size // self.batch_size)

    @property
    def pass_number(self) -> int:
        return self.pass_index

    def in_pass(self, number: int) -> Sampling:
        return dataclasses.replace(self, pass_index=number)


@register
@dataclasses.dataclass(frozen=True)
class MinSeparationSampling(Sampling):
    """Every unit that was in none of the last `min_separation` - 1 samples of a pass is in the next
    one with the same probability, independently of all other units (Dong and Ganesh 2026,
    arXiv:2602.09338).

    A unit may wait already when a pass begins. With probability 1 / (1 + (b - 1) p) it does not.
    Else it waits 1 to b - 1 steps, each equally likely. So it is in every step with probability
    p / (1 + (b - 1) p). Whoever was in the last steps of a pass may be in the first of the next.

    Attributes:
        sampling_probability: p, in (0, 1], of a unit that does not wait.
        min_separation: b; a unit that was in step i may next be in step i + b.
        num_steps: Of a pass; public.
        population_size: Number of units, or None where it is not known.
        pass_index: Which pass the step belongs to; other passes are drawn anew.
    """

    words: ClassVar[str] = "every unit with the same probability, unless it was sampled lately"
    field_words: ClassVar[Mapping[str, str]] = {
        "sampling_probability": "probability p",
        "min_separation": "steps between two participations, at least",
        "num_steps": "steps of a pass",
        "population_size": "population",
    }

    sampling_probability: float
    min_separation: int
    num_steps: int
    population_size: int | None = None
    pass_index: int = 0

    def __post_init__(self) -> None:
        PoissonSampling(self.sampling_probability)
        set_field(self, "sampling_probability", float(self.sampling_probability))
        for name in ("min_separation", "num_steps"):
            set_field(self, name, positive_integer(name, getattr(self, name)))
        check_population(self)
        _check_pass(self)

    @property
    def steps_per_pass(self) -> int:
        """Steps after which all draw anew."""
        return self.num_steps

    @property
    def pass_number(self) -> int:
        return self.pass_index

    def in_pass(self, number: int) -> Sampling:
        return dataclasses.replace(self, pass_index=number)

    @property
    def separation(self) -> tuple[int, int] | None:
        return self.min_separation, self.num_steps


@register
@dataclasses.dataclass(frozen=True)
class FullBatchSampling(Sampling):
    """Every unit is in every step."""

    words: ClassVar[str] = "all of the data in every step"
    is_random: ClassVar[bool] = False
    field_words: ClassVar[Mapping[str, str]] = {
        "population_size": "population",
    }

    population_size: int | None = None

    def __post_init__(self) -> None:
        check_population(self)


@register
@dataclasses.dataclass(frozen=True)
class UnknownSampling(Sampling):
    """Nobody declared how the sample was drawn; a unit may be in every step, once. Grants no
    amplification.
    """

    words: ClassVar[str] = "not declared"
    is_random: ClassVar[bool] = False
    is_declared: ClassVar[bool] = False
