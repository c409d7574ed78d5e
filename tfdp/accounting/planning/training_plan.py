"""A training run as far as its privacy goes: a few public numbers."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from tfdp import events
from tfdp.accounting.registry import DEFAULT_ACCOUNTANT, AccountantChoice, replayed
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import MAX_INTEGER, positive_integer, real_number, set_field
from tfdp.ledger.entry import PassNumbers
from tfdp.ledger.ledger import PrivacyLedger


class _Kind(NamedTuple):
    """A way of drawing samples: of batch_size out of population_size units.

    Attributes:
        event: What the ledger says.
        relation: The neighbouring relation by default, as in `tfdp.sampling`.
        steps_per_epoch: As `fit` has it.
    """

    event: Callable[[int, int], events.Sampling]
    relation: NeighboringRelation
    steps_per_epoch: Callable[[int, int], int]


def _nearest(batch_size: int, population_size: int) -> int:
    return max(1, round(population_size / batch_size))


def _batches(batch_size: int, population_size: int) -> int:
    return -(-population_size // batch_size)


SAMPLINGS = {
    "poisson": _Kind(
        lambda n, population: events.PoissonSampling(n / population, population),
        NeighboringRelation.ZERO_OUT,
        _nearest,
    ),
    "fixed_size": _Kind(events.FixedSizeSampling, NeighboringRelation.REPLACE_ONE, _nearest),
    "shuffled": _Kind(events.ShuffledSampling, NeighboringRelation.ZERO_OUT, _batches),
    "random_allocation": _Kind(
        lambda n, population: events.RandomAllocationSampling(
            _batches(n, population), population_size=population
        ),
        NeighboringRelation.ZERO_OUT,
        _batches,
    ),
}


def sampling_kind(sampling: str) -> _Kind:
    """Returns a row of `SAMPLINGS`.

    Raises:
        ValueError: there is none of this name.
    """
    if sampling not in SAMPLINGS:
        raise ValueError(
            f"sampling must be one of {list(SAMPLINGS)}. Received: sampling={sampling!r}."
        )
    return SAMPLINGS[sampling]


def steps_of_epochs(
    epochs: float, batch_size: int, population_size: int, sampling: str = "poisson"
) -> int:
    """Returns how many steps `fit` takes for so many epochs, rounded up.

    Args:
        epochs: Passes over the data; may be a fraction.
        batch_size: (Expected) records of a step.
        population_size: Records in the data set.
        sampling: "poisson", "fixed_size", "shuffled" or "random_allocation".

    Raises:
        TypeError: `epochs` is not a number.
        ValueError: it is not positive, or the batch is larger than the population.
    """
    epochs = real_number("epochs", epochs, minimum=0, inclusive=False)
    sizes = check_batch(batch_size, population_size)
    return steps_of(epochs, sampling_kind(sampling).steps_per_epoch(*sizes))


def steps_of(epochs: float, steps_per_epoch: int) -> int:
    """Returns how many steps so many epochs have, rounded up.

    Raises:
        ValueError: there are too many.
    """
    steps = epochs * steps_per_epoch
    if steps > MAX_INTEGER:
        raise ValueError(f"epochs must have at most 2^63 - 1 steps. Received: {epochs=}.")
    return math.ceil(steps)


def check_batch(batch_size: int, population_size: int) -> tuple[int, int]:
    """Returns both as Python's integers, which do not wrap around as NumPy's do, or says what is
    wrong with them.
    """
    batch_size = positive_integer("batch_size", batch_size)
    population_size = positive_integer("population_size", population_size)
    if batch_size > population_size:
        raise ValueError(
            "batch_size must be at most population_size. Received: "
            f"batch_size={batch_size}, population_size={population_size}."
        )
    return batch_size, population_size


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """Equal steps on samples of one data set.

    Attributes:
        population_size: Units in the data set; public.
        batch_size: (Expected) units in a sample.
        steps: How many.
        noise_multiplier: Standard deviation of the noise on a sum, divided by its norm bound.
        sampling: "poisson", "fixed_size", "shuffled" or "random_allocation".
        neighboring_relation: By default that of the sampling policy in `tfdp.sampling`.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.

    Example:
        >>> plan = TrainingPlan(60_000, batch_size=256, steps=4680, noise_multiplier=1.1)
        >>> round(plan.epsilon(1e-5, accountant="rdp"), 2)
        1.46
    """

    population_size: int
    batch_size: int
    steps: int
    noise_multiplier: float
    sampling: str = "poisson"
    neighboring_relation: NeighboringRelation = None  # type: ignore[assignment]  # Set below.

    def __post_init__(self) -> None:
        batch_size, population_size = check_batch(self.batch_size, self.population_size)
        steps = positive_integer("steps", self.steps)
        z = real_number("noise_multiplier", self.noise_multiplier, minimum=0, inclusive=False)
        kind = sampling_kind(self.sampling)
        relation = self.neighboring_relation or kind.relation
        if not isinstance(relation, NeighboringRelation):
            raise TypeError(
                "neighboring_relation must be a tfdp.NeighboringRelation. "
                f"Received: neighboring_relation={relation!r}."
            )
        set_field(self, "population_size", population_size)
        set_field(self, "batch_size", batch_size)
        set_field(self, "steps", steps)
        set_field(self, "noise_multiplier", z)
        set_field(self, "neighboring_relation", relation)

    @property
    def sampling_probability(self) -> float:
        """batch_size / population_size."""
        return self.batch_size / self.population_size

    @property
    def epochs(self) -> float:
        """Expected number of times that a unit is in a sample."""
        return self.steps * self.sampling_probability

    @property
    def noise_batch_ratio(self) -> float:
        """noise_multiplier / batch_size: noise on the average gradient, in units of the clip norm.

        Of all that privacy changes in a run this is what its loss depends on (McKenna et al. 2025,
        arXiv:2501.18914).
        """
        return self.noise_multiplier / self.batch_size

    def event(self) -> events.SampledEvent:
        """Returns the event of one step."""
        return events.SampledEvent(
            SAMPLINGS[self.sampling].event(self.batch_size, self.population_size),
            events.GaussianSumEvent(1.0, self.noise_multiplier),
            self.neighboring_relation,
        )

    def epsilon(
        self,
        target_delta: float,
        accountant: AccountantChoice = DEFAULT_ACCOUNTANT,
        *,
        ledger: PrivacyLedger | None = None,
    ) -> float:
        """Returns what the run costs.

        Args:
            target_delta: Between 0 and 1.
            accountant: A name in `tfdp.accounting.ACCOUNTANTS`, a class, or an empty accountant.
            ledger: What was done with the same units before; its cost is then in the result.

        Raises:
            UnsupportedEventError: the accountant cannot price such steps.
            ValueError: there is no such accountant, or it gave no number.
        """
        both: list[tuple[events.Event, int]] = []
        numbers = PassNumbers()
        for entries in ([] if ledger is None else ledger, [(self.event(), self.steps)]):
            numbers.begin_ledger()  # No pass of the ledger goes on in the run.
            for event, count in entries:
                both.append((numbers.renumbered(event), count))
        epsilon = float(replayed(both, accountant).get_epsilon(target_delta))
        if math.isnan(epsilon):
            raise ValueError(f"{accountant!r} gave no number for {self!r} at delta {target_delta}.")
        return epsilon
