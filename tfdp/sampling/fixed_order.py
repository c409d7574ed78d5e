"""The data in the order in which they stand, again and again."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.sampling.known_size import KnownBatchSize
from tfdp.sampling.policy import SamplingPolicy, check_fields, told
from tfdp.sampling.sizes import Sizes


@dataclasses.dataclass(frozen=True)
class FixedOrder(KnownBatchSize):
    """Consecutive batches of the data as they stand, the last one smaller, the same in every pass.

    It is for noise that remembers (`CorrelatedGaussianSumQuery`), which then knows how many steps
    are between two participations of a unit. Independent noise is charged as if every unit were in
    every step: take `Shuffled` or `Poisson` for that. Shuffle the data once, before the first step;
    whoever goes on later must give the same data in the same order.

    Args:
        batch_size: Units in a batch.
        population_size: Number of units.
        neighboring_relation: ZERO_OUT by default; REPLACE_ONE doubles the bound. A unit that is
            added moves all behind it, so ADD_OR_REMOVE_ONE has no price.
        first_batch: The batch of the first step; `fit` goes on where the run is.
    """

    batch_size: int | None = None
    population_size: int | None = None
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    first_batch: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def is_ordered(self) -> bool:
        return True

    def from_step(self, step: int) -> "SamplingPolicy":
        return dataclasses.replace(self, first_batch=step % self.steps_per_epoch)

    def _description(self, batch_size, population_size, pass_index):
        batches = -(-population_size // batch_size)
        index = (self.first_batch + pass_index) % batches
        return events.FixedOrderSampling(batch_size, population_size, index)

    def contradiction(self, sizes: Sizes) -> str | None:
        return (
            told(self, f"a batch of {sizes.largest} units")
            if sizes.largest > self.batch_size
            else None
        )

    @property
    def steps_per_epoch(self) -> int:
        return self.description(0).steps_per_pass

    @property
    def uses_generator(self) -> bool:
        return False

    def draw(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        index, number = self.description(0).place
        while True:
            start = index * self.batch_size
            yield np.arange(start, min(start + self.batch_size, self.population_size))
            index = (index + 1) % number
