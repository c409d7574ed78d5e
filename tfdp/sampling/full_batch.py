"""Everybody, every time."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.sampling.policy import SamplingPolicy, check_fields, fill, told
from tfdp.sampling.sizes import Sizes


@dataclasses.dataclass(frozen=True)
class FullBatch(SamplingPolicy):
    """Every unit in every step.

    Args:
        population_size: Number of units, where it is known.
        neighboring_relation: ZERO_OUT by default, under which the number of units is public. Under
            ADD_OR_REMOVE_ONE the ledger does not say it.
    """

    population_size: int | None = None
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT

    def __post_init__(self) -> None:
        check_fields(self)

    def resolve(self, population_size: int, batch_size: int) -> "SamplingPolicy":
        if self.hides_population:
            # Whether a size is that of the population must not show.
            return fill(self, population_size=population_size)
        if batch_size != population_size:
            raise ValueError(
                "FullBatch takes every unit in every step: leave batch_size out, or set it to the "
                f"number of units. Received: batch_size={batch_size}, number of "
                f"units={population_size}."
            )
        return fill(self, population_size=population_size)

    def default_batch_size(self, population_size: int) -> int | None:
        return population_size

    def part(self, population_size: int) -> "SamplingPolicy | None":
        if type(self) is not FullBatch:  # Which may draw otherwise.
            return None
        return dataclasses.replace(self, population_size=population_size)

    @property
    def expected_batch_size(self) -> float | None:
        return self.population_size

    def contradiction(self, sizes: Sizes) -> str | None:
        wrong = {sizes.smallest, sizes.largest} - {self.population_size}
        if self.population_size is None or not wrong:
            return None
        return told(self, f"a batch of {max(wrong)} units")

    def description(self, pass_index: int) -> events.Sampling:
        return events.FullBatchSampling(None if self.hides_population else self.population_size)

    @property
    def uses_generator(self) -> bool:
        return False

    def draw(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        while True:
            yield np.arange(self.population_size)
