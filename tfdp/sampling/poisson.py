"""Every unit with the same probability, independently."""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import real_number
from tfdp.sampling.policy import (
    SamplingPolicy,
    check_batch,
    check_fields,
    fill,
    nearly_whole,
    three_deviations_above,
    told,
)
from tfdp.sampling.sizes import IMPOSSIBLE, Sizes, divergence

# So many steps at most are drawn together, and no more than are expected to have a place for every
# unit.
_STEPS_TOGETHER = 32
# One object for equal steps: a ledger sees at a glance that a step is like the one before.
_description = functools.lru_cache(maxsize=16, typed=True)(events.PoissonSampling)


@dataclasses.dataclass(frozen=True)
class Poisson(SamplingPolicy):
    """Every unit is in every sample independently with the same probability: what amplification
    assumes.

    Args:
        sampling_probability: q, in (0, 1]. With arrays it is batch_size / number of units by
            default.
        population_size: Number of units, where it is known.
        neighboring_relation: ZERO_OUT by default, under which the number of units is public. Under
            ADD_OR_REMOVE_ONE it is not. The probability is then a public number of its own, which
            has to be given. Nothing of a run or its ledger follows the number of units.
    """

    sampling_probability: float | None = None
    population_size: int | None = None
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT

    def __post_init__(self) -> None:
        check_fields(self)
        if self.sampling_probability is not None:
            q = real_number(
                "sampling_probability",
                self.sampling_probability,
                minimum=0,
                inclusive=False,
                maximum=1,
            )
            object.__setattr__(self, "sampling_probability", q)

    def resolve(self, population_size: int, batch_size: int) -> "SamplingPolicy":
        if self.hides_population:
            if self.sampling_probability is None:
                raise ValueError(
                    "Under ADD_OR_REMOVE_ONE the number of units is not public, so that q = "
                    "batch_size / number of units cannot be. Choose q as a public number, "
                    "tfdp.sampling.Poisson(sampling_probability=..., neighboring_relation="
                    "ADD_OR_REMOVE_ONE), or take ZERO_OUT, the default."
                )
            return fill(self, population_size=population_size)
        batch_size, population_size = check_batch(batch_size, population_size)
        q = batch_size / population_size
        if self.sampling_probability is not None and self.sampling_probability != q:
            raise ValueError(
                f"Poisson was made for sampling_probability={self.sampling_probability!r}, but "
                f"batch_size={batch_size} of {population_size} units is {q!r}. batch_size is "
                f"{self.default_batch_size(population_size)} where it is left out, and batch_size "
                "/ number of units must be the sampling_probability exactly. Leave "
                "sampling_probability out."
            )
        return dataclasses.replace(
            fill(self, population_size=population_size), sampling_probability=q
        )

    def default_batch_size(self, population_size: int) -> int | None:
        return None if self.hides_population else 32

    def part(self, population_size: int) -> "SamplingPolicy | None":
        if type(self) is not Poisson:  # Which may draw otherwise.
            return None
        return dataclasses.replace(self, population_size=population_size)

    @property
    def expected_batch_size(self) -> float | None:
        if self.sampling_probability is None or self.population_size is None:
            return None
        return nearly_whole(self.sampling_probability * self.population_size)

    def description(self, pass_index: int) -> events.Sampling:
        if self.sampling_probability is None:
            raise ValueError(
                "Declare the probability: sampling=tfdp.sampling.Poisson(sampling_probability=...)."
            )
        population_size = None if self.hides_population else self.population_size
        return _description(self.sampling_probability, population_size)

    @property
    def steps_per_epoch(self) -> int:
        if self.hides_population:
            return max(1, round(1 / self.sampling_probability))
        return super().steps_per_epoch

    def contradiction(self, sizes: Sizes) -> str | None:
        q, population = self.sampling_probability, self.population_size
        if population is not None:
            if sizes.largest > population:
                return told(self, f"a sample of {sizes.largest} units")
            trials = sizes.steps * population
            # Chernoff: such a share of so many trials, or one further away, is less likely than
            # this.
            if -trials * divergence(sizes.total / trials, q) < IMPOSSIBLE:
                return told(
                    self,
                    f"{sizes.steps} samples of {sizes.total / sizes.steps:g} units on average, "
                    f"where {q * population:g} are expected",
                )
        # No size of binomial samples is likelier than (2 e v)^-1/2, where v is their variance
        # (Herzog 1947).
        mean = sizes.smallest if population is None else q * population
        likeliest = -0.5 * math.log(max(1.0, 2 * math.e * mean * (1 - q)))
        same = sizes.smallest == sizes.largest
        if same and (sizes.steps - 1) * likeliest < IMPOSSIBLE:
            return told(
                self, f"{sizes.steps} samples of {sizes.largest} units each, where sizes are random"
            )
        return None

    def draw(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        # Of each of some steps every unit is a trial, and all trials are independent: so those of
        # several steps are drawn together, which takes no longer than those of one. How many
        # follows the probability alone: the number of units may be what nobody is to know.
        population, q = self.population_size, self.sampling_probability
        together = max(1, min(_STEPS_TOGETHER, int(1 / q)))
        trials = together * population
        while True:
            size = generator.binomial(trials, q)
            drawn = generator.choice(trials, size, replace=False, shuffle=False)
            steps, units = np.divmod(drawn, population)
            steps = steps.astype(np.uint8)  # NumPy sorts small integers in one pass.
            order = np.argsort(steps, kind="stable")
            ends = np.searchsorted(steps[order], np.arange(1, together, dtype=np.uint8))
            yield from np.split(units[order], ends)

    @property
    def padded_size(self) -> int:
        return three_deviations_above(
            self.expected_batch_size, self.sampling_probability, self.population_size
        )
