"""Nothing was declared."""

import dataclasses

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.sampling.policy import SamplingPolicy, check_fields


@dataclasses.dataclass(frozen=True)
class Unknown(SamplingPolicy):
    """Nothing was declared. Accounted without amplification, as if a unit were in every step
    (once).

    Args:
        neighboring_relation: ZERO_OUT by default.
    """

    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    population_size: None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def resolve(self, population_size: int, batch_size: int) -> "SamplingPolicy":
        raise ValueError(
            "Unknown does not say how to draw from arrays. Choose another policy, such as "
            "Poisson()."
        )

    @property
    def expected_batch_size(self) -> float | None:
        return None

    def description(self, pass_index: int) -> events.Sampling:
        return events.UnknownSampling()
