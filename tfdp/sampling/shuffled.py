"""Passes over shuffled data."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.sampling.known_size import KnownBatchSize
from tfdp.sampling.policy import check_fields, told
from tfdp.sampling.sizes import Sizes


@dataclasses.dataclass(frozen=True)
class Shuffled(KnownBatchSize):
    """Passes over a permutation of the data in consecutive batches, the last one smaller; the Keras
    default.

    Accounted without amplification: each unit is in one step of each pass.

    Args:
        batch_size: Units in a batch.
        population_size: Number of units.
        neighboring_relation: ZERO_OUT by default, under which a pass costs one Gaussian of the
            query's bound. Under ADD_OR_REMOVE_ONE a pass costs sqrt(5) times the bound, because an
            inserted unit moves another one to the last batch; under REPLACE_ONE twice the bound.
    """

    batch_size: int | None = None
    population_size: int | None = None
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT

    def __post_init__(self) -> None:
        check_fields(self)

    def _description(self, batch_size, population_size, pass_index):
        return events.ShuffledSampling(batch_size, population_size, pass_index)

    @property
    def steps_per_pass(self) -> int | None:
        return self.description(0).steps_per_pass

    def is_over(self, steps: int, size: int | None) -> bool:
        # If the smaller last batch of a pass is dropped, the pass has fewer steps, and the batch
        # that comes in its place belongs to the next pass, unless it is as small.
        whole, rest = divmod(self.population_size, self.batch_size)
        return steps > whole or (steps == whole and (size is None or size > rest))

    def contradiction(self, sizes: Sizes) -> str | None:
        return (
            told(self, f"a batch of {sizes.largest} units")
            if sizes.largest > self.batch_size
            else None
        )

    @property
    def steps_per_epoch(self) -> int:
        return self.steps_per_pass

    def draw(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        while True:
            order = generator.permutation(self.population_size)
            for start in range(0, self.population_size, self.batch_size):
                yield order[start : start + self.batch_size]
