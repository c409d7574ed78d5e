"""Passes in which every unit is in one step, or in a few, drawn for each unit by itself."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import positive_integer
from tfdp.sampling.policy import (
    SamplingPolicy,
    check_batch,
    check_fields,
    check_public_number,
    fill,
    fill_number,
    nearly_whole,
    three_deviations_above,
    told,
)
from tfdp.sampling.sizes import IMPOSSIBLE, Sizes, divergence


@dataclasses.dataclass(frozen=True)
class RandomAllocation(SamplingPolicy):
    """Every unit is in exactly `participations` of the `num_steps` steps of a pass, a uniformly
    random set of them, independently of all other units. `BallsInBins` keeps what it drew over all
    passes instead.

    What a shuffled pass is, but for the sizes of its batches, which are random here: that is what
    amplification is proven for. The first step of a pass is charged as the whole pass, since a pass
    is priced as one; so a pass that ends early costs as much as a whole one. If the noise changes
    within a pass, all of it is charged as if it had the least noise of its steps.

    Args:
        num_steps: t. With arrays it is, by default, the number of batches of batch_size units that
            hold each unit `participations` times, rounded up.
        participations: k, at most t.
        population_size: Number of units, where it is known.
        neighboring_relation: ZERO_OUT by default, under which the number of units is public. Under
            ADD_OR_REMOVE_ONE it is not: `num_steps` is then a public number of its own, which has
            to be given, and nothing of a run or its ledger follows the number of units.

    References:
        Chua et al. 2024, arXiv:2412.16802; Feldman and Shenfeld 2025, arXiv:2502.08202.
    """

    num_steps: int | None = None
    participations: int = 1
    population_size: int | None = None
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT

    def __post_init__(self) -> None:
        check_fields(self)
        k = positive_integer("participations", self.participations)
        object.__setattr__(self, "participations", k)
        if self.num_steps is not None:
            object.__setattr__(self, "num_steps", positive_integer("num_steps", self.num_steps))
            events.RandomAllocationSampling(self.num_steps, k)  # It says what is wrong with both.

    def resolve(self, population_size: int, batch_size: int) -> "SamplingPolicy":
        check_public_number(self, "num_steps")
        if batch_size is None or self.hides_population:
            return fill(self, population_size=population_size)
        batch_size, population_size = check_batch(batch_size, population_size)
        num_steps = -(-self.participations * population_size // batch_size)
        return fill_number(self, "num_steps", num_steps, batch_size, population_size)

    def default_batch_size(self, population_size: int) -> int | None:
        return 32 if self.num_steps is None and not self.hides_population else None

    @property
    def expected_batch_size(self) -> float | None:
        if self.num_steps is None or self.population_size is None:
            return None
        return nearly_whole(self.participations * self.population_size / self.num_steps)

    def description(self, pass_index: int) -> events.Sampling:
        if self.num_steps is None:
            raise ValueError(
                "Declare the number of steps: sampling=tfdp.sampling.RandomAllocation(num_steps="
                "...)."
            )
        population_size = None if self.hides_population else self.population_size
        return events.RandomAllocationSampling(
            self.num_steps, self.participations, population_size, pass_index
        )

    @property
    def steps_per_pass(self) -> int | None:
        return self.num_steps

    @property
    def draws_whole_passes(self) -> bool:
        return True

    @property
    def steps_per_epoch(self) -> int:
        return self.num_steps

    def contradiction(self, sizes: Sizes) -> str | None:
        population, t = self.population_size, self.num_steps
        q = self.participations / t
        if population is not None:
            if sizes.largest > population:
                return told(self, f"a sample of {sizes.largest} units")
            # Chernoff, as for Poisson samples: sizes of one pass are negatively associated.
            trials = sizes.steps * population
            if q < 1 and -trials * divergence(sizes.total / trials, q) < IMPOSSIBLE:
                return told(
                    self,
                    f"{sizes.steps} samples of {sizes.total / sizes.steps:g} units on average, "
                    f"where {q * population:g} are expected",
                )
        # In the first half of a pass sizes are, given those before, binomial with a probability of
        # at most 2q. No size of binomial samples with variance v is likelier than (2 e v)^-1/2
        # (Herzog 1947).
        mean = sizes.smallest if population is None else q * population
        variance = mean * max(0.0, 1 - 2 * q) if self.participations == 1 else 0.0
        likeliest = -0.5 * math.log(max(1.0, 2 * math.e * variance))
        whole, rest = divmod(sizes.steps, t)
        free = whole * (t // 2) + min(rest, t // 2)
        if sizes.smallest == sizes.largest and (free - 1) * likeliest < IMPOSSIBLE:
            return told(
                self, f"{sizes.steps} samples of {sizes.largest} units each, where sizes are random"
            )
        return None

    def _steps_of_units(self, generator: np.random.Generator) -> np.ndarray:
        """Returns the steps of every unit, [population_size, participations]."""
        chosen = np.empty((self.population_size, 0), np.int64)
        for taken in range(self.participations):
            # One of the steps that are left, counted without those that the unit has.
            step = generator.integers(self.num_steps - taken, size=self.population_size)
            for column in range(taken):
                step += step >= chosen[:, column]
            chosen = np.sort(np.column_stack([chosen, step]), axis=1)
        return chosen

    def draw(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        while True:
            steps = self._steps_of_units(generator).reshape(-1)
            units = np.argsort(steps, kind="stable") // self.participations
            ends = np.cumsum(np.bincount(steps, minlength=self.num_steps))[:-1]
            yield from np.split(units, ends)

    @property
    def padded_size(self) -> int:
        q = self.participations / self.num_steps
        return three_deviations_above(self.expected_batch_size, q, self.population_size)
