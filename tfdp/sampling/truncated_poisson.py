"""Poisson samples of which a random part is kept where they are too large."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import positive_integer
from tfdp.sampling.poisson import Poisson
from tfdp.sampling.policy import SamplingPolicy, check_fields, told
from tfdp.sampling.sizes import Sizes


@dataclasses.dataclass(frozen=True)
class TruncatedPoisson(SamplingPolicy):
    """Poisson samples, of which `max_sample_size` units are kept at most, drawn uniformly.

    All batches have one shape, so that XLA compiles one step and time says nothing of the size of a
    sample. From a `Source` only what was drawn is read and mapped, and the time of that does tell
    the size: train from arrays where somebody can time it.

    Args:
        max_sample_size: Units that are kept at most. With arrays it is, by default, three standard
            deviations more than batch_size, to which `Poisson` pads its batches.
        sampling_probability: q, in (0, 1). With arrays it is batch_size / number of units.
        population_size: Number of units, where it is known.
        neighboring_relation: ZERO_OUT by default. How often samples are too large follows the
            number of units, and so does the price: ADD_OR_REMOVE_ONE, under which that number is
            not public, is for declared samples only.
    """

    max_sample_size: int | None = None
    sampling_probability: float | None = None
    population_size: int | None = None
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "sampling_probability", self._poisson.sampling_probability)
        if self.max_sample_size is not None:
            size = positive_integer("max_sample_size", self.max_sample_size)
            object.__setattr__(self, "max_sample_size", size)

    @property
    def _poisson(self) -> SamplingPolicy:
        return Poisson(self.sampling_probability, self.population_size, self.neighboring_relation)

    def resolve(self, population_size: int, batch_size: int) -> "SamplingPolicy":
        if self.hides_population:
            raise ValueError(
                "Under ADD_OR_REMOVE_ONE the number of units is not public, but what a truncated "
                "sample costs follows it. Take ZERO_OUT or REPLACE_ONE, or Poisson."
            )
        poisson = self._poisson.resolve(population_size, batch_size)
        return dataclasses.replace(
            self,
            max_sample_size=self.max_sample_size or poisson.padded_size,
            sampling_probability=poisson.sampling_probability,
            population_size=population_size,
        )

    @property
    def expected_batch_size(self) -> float | None:
        # Before any is dropped: a public number that no sample moves.
        return self._poisson.expected_batch_size

    def description(self, pass_index: int) -> events.Sampling:
        sizes = self.sampling_probability, self.population_size, self.max_sample_size
        if None in sizes:
            raise ValueError(
                "Declare the sizes: sampling=tfdp.sampling.TruncatedPoisson(max_sample_size=..., "
                "sampling_probability=..., population_size=...)."
            )
        return events.TruncatedPoissonSampling(*sizes)

    def contradiction(self, sizes: Sizes) -> str | None:
        large = sizes.largest > min(self.max_sample_size, self.population_size)
        return told(self, f"a sample of {sizes.largest} units") if large else None

    def draw(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        for units in self._poisson.draw(generator):
            if len(units) > self.max_sample_size:
                kept = generator.choice(
                    len(units), self.max_sample_size, replace=False, shuffle=False
                )
                units = units[kept]
            yield units

    @property
    def padded_size(self) -> int:
        return min(self.max_sample_size, self.population_size)

    @property
    def size_step(self) -> int:
        return self.padded_size
