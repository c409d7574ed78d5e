"""What policies share whose samples all have one size."""

import abc

from tfdp import events
from tfdp.sampling.policy import SamplingPolicy, check_batch, fill


class KnownBatchSize(SamplingPolicy):
    """A policy whose samples all have `batch_size` units (but for the last of a pass)."""

    batch_size: int | None

    def resolve(self, population_size: int, batch_size: int) -> "SamplingPolicy":
        if self.hides_population:
            raise ValueError(
                f"Under ADD_OR_REMOVE_ONE the number of units is not public, but how often "
                f"{type(self).__name__} takes a step follows it. Take ZERO_OUT or REPLACE_ONE, "
                "under which it is public, or Poisson(sampling_probability=...)."
            )
        batch_size, population_size = check_batch(batch_size, population_size)
        return fill(self, population_size=population_size, batch_size=batch_size)

    @property
    def expected_batch_size(self) -> float | None:
        return self.batch_size

    def description(self, pass_index: int) -> events.Sampling:
        if self.batch_size is None or self.population_size is None:
            raise ValueError(
                f"Declare the sizes: sampling=tfdp.sampling.{type(self).__name__}(batch_size=..., "
                "population_size=...)."
            )
        return self._description(self.batch_size, self.population_size, pass_index)

    @abc.abstractmethod
    def _description(
        self, batch_size: int, population_size: int, pass_index: int
    ) -> events.Sampling:
        """Returns the description of one step."""
