"""Groups that take turns, with a Poisson sample of the group whose turn it is."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import positive_integer, real_number
from tfdp.sampling.policy import (
    SamplingPolicy,
    check_batch,
    check_fields,
    fill,
    nearly_whole,
    three_deviations_above,
    told,
)
from tfdp.sampling.sizes import Sizes


@dataclasses.dataclass(frozen=True)
class CyclicPoisson(SamplingPolicy):
    """Unit i belongs to group i modulo `num_groups`; groups take turns, and of the group whose turn
    it is every unit is in the sample independently, with the same probability.

    What amplifies noise of a banded factorization with at most `num_groups` bands. Whoever goes on
    later must give the same data in the same order.

    Args:
        num_groups: How many groups there are.
        sampling_probability: q, in (0, 1], of a unit when it is its group's turn. With arrays it is
            batch_size num_groups / number of units.
        population_size: Number of units in all groups, where it is known.
        neighboring_relation: ZERO_OUT by default. A unit that is added moves all behind it to other
            groups, so ADD_OR_REMOVE_ONE has no price.
        first_group: Whose turn it is in the first step; `fit` goes on where the run is.

    References:
        Choquette-Choo et al. 2023, arXiv:2306.08153, section 5.
    """

    num_groups: int
    sampling_probability: float | None = None
    population_size: int | None = None
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    first_group: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "num_groups", positive_integer("num_groups", self.num_groups))
        if self.sampling_probability is not None:
            q = real_number(
                "sampling_probability",
                self.sampling_probability,
                minimum=0,
                inclusive=False,
                maximum=1,
            )
            object.__setattr__(self, "sampling_probability", q)

    @property
    def is_ordered(self) -> bool:
        return True

    def from_step(self, step: int) -> "SamplingPolicy":
        return dataclasses.replace(self, first_group=step % self.num_groups)

    def resolve(self, population_size: int, batch_size: int) -> "SamplingPolicy":
        if self.hides_population:
            raise ValueError(
                "Under ADD_OR_REMOVE_ONE the number of units is not public, but the groups of "
                "CyclicPoisson follow it. Take ZERO_OUT or REPLACE_ONE."
            )
        batch_size, population_size = check_batch(batch_size, population_size)
        q = batch_size * self.num_groups / population_size
        if q > 1:
            raise ValueError(
                "A group must hold at least batch_size units. Received: "
                f"batch_size={batch_size}, num_groups={self.num_groups}, "
                f"number of units={population_size}."
            )
        if self.sampling_probability is not None and self.sampling_probability != q:
            raise ValueError(
                f"CyclicPoisson was made for sampling_probability={self.sampling_probability!r}, "
                f"but batch_size={batch_size} of {population_size} units in {self.num_groups} "
                f"groups is {q!r}. Leave sampling_probability out."
            )
        return dataclasses.replace(
            fill(self, population_size=population_size), sampling_probability=q
        )

    @property
    def expected_batch_size(self) -> float | None:
        if self.sampling_probability is None or self.population_size is None:
            return None
        return nearly_whole(self.sampling_probability * self.population_size / self.num_groups)

    def description(self, pass_index: int) -> events.Sampling:
        if self.sampling_probability is None:
            raise ValueError(
                "Declare the probability: "
                "sampling=tfdp.sampling.CyclicPoisson(num_groups=..., sampling_probability=...)."
            )
        index = (self.first_group + pass_index) % self.num_groups
        return events.CyclicPoissonSampling(
            self.sampling_probability, self.num_groups, index, self.population_size
        )

    def contradiction(self, sizes: Sizes) -> str | None:
        if self.population_size is None:
            return None
        most = -(-self.population_size // self.num_groups)
        return told(self, f"a sample of {sizes.largest} units") if sizes.largest > most else None

    @property
    def steps_per_epoch(self) -> int:
        # Whole turns of all groups.
        return self.num_groups * -(-super().steps_per_epoch // self.num_groups)

    def draw(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        group = self.first_group % self.num_groups
        while True:
            members = np.arange(group, self.population_size, self.num_groups)
            size = generator.binomial(len(members), self.sampling_probability)
            yield members[generator.choice(len(members), size, replace=False, shuffle=False)]
            group = (group + 1) % self.num_groups

    @property
    def padded_size(self) -> int:
        most = -(-self.population_size // self.num_groups)
        return three_deviations_above(self.expected_batch_size, self.sampling_probability, most)
