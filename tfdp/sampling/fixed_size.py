"""Samples of one size, without replacement."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.sampling.known_size import KnownBatchSize
from tfdp.sampling.policy import check_fields, told
from tfdp.sampling.sizes import Sizes


@dataclasses.dataclass(frozen=True)
class FixedSize(KnownBatchSize):
    """`batch_size` distinct units, uniformly, drawn anew each step.

    Args:
        batch_size: Units in a sample.
        population_size: Number of units.
        neighboring_relation: REPLACE_ONE by default: with samples of fixed size, units are
            exchanged, not added.
    """

    batch_size: int | None = None
    population_size: int | None = None
    neighboring_relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE

    def __post_init__(self) -> None:
        check_fields(self)

    def _description(self, batch_size, population_size, pass_index):
        return events.FixedSizeSampling(batch_size, population_size)

    def contradiction(self, sizes: Sizes) -> str | None:
        wrong = {sizes.smallest, sizes.largest} - {self.batch_size}
        return told(self, f"a sample of {max(wrong)} units") if wrong else None

    def draw(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        while True:
            yield generator.choice(
                self.population_size, self.batch_size, replace=False, shuffle=False
            )
