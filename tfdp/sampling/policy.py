"""What every sampling policy says: how samples are drawn, or were declared to be drawn."""

import abc
import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import positive_integer
from tfdp.sampling.sizes import Sizes


class SamplingPolicy(abc.ABC):
    """How a step's sample is drawn from the population.

    The same object does two things: `fit(x, y, sampling=policy)` draws from arrays by it, and
    `fit(dataset, sampling=policy)` declares that the data set was built so. What was declared is
    recorded as declared; nobody can check more of it than the sizes of batches. Policies that take
    parts of the data in turn (`is_ordered`) cannot be declared.

    Attributes:
        neighboring_relation: The relation under which the ledger's entries are to be read.
        population_size: Number of units, or None where it is not known (yet).
    """

    neighboring_relation: NeighboringRelation
    population_size: int | None

    @abc.abstractmethod
    def resolve(self, population_size: int, batch_size: int) -> "SamplingPolicy":
        """Returns the policy for this population and (expected) batch size, both in units.

        A policy that hides the population takes no part of its description from either.

        Raises:
            ValueError: the policy was made for other sizes.
        """

    @property
    @abc.abstractmethod
    def expected_batch_size(self) -> float | None:
        """Expected number of units in a sample, or None where it is not known."""

    @abc.abstractmethod
    def description(self, pass_index: int) -> events.Sampling:
        """Returns the description of one step for the ledger.

        Raises:
            ValueError: the policy was not told the sizes that the description needs.
        """

    @property
    def steps_per_pass(self) -> int | None:
        """Steps in which every unit is seen once, or None where samples are drawn independently."""
        return None

    def is_over(self, steps: int, size: int | None) -> bool:
        """Returns whether a further step, on `size` units, may see again what a pass has seen.

        Args:
            steps: Of the pass, so far.
            size: None where it is not known.
        """
        return self.steps_per_pass is not None and steps >= self.steps_per_pass

    @property
    def draws_whole_passes(self) -> bool:
        """Whether the steps of a pass are drawn together, and priced as one: an epoch then has to
        be whole passes, so that each begins where the ledger begins one.
        """
        return False

    @property
    def is_ordered(self) -> bool:
        """Whether parts of the data follow each other in a fixed order.

        Then the number that `description` is given is that of the step, from 0 on, instead of that
        of the pass.
        """
        return False

    @property
    def uses_generator(self) -> bool:
        """Whether samples depend on the generator that `draw` is given, which then is to be
        secret.
        """
        return True

    def from_step(self, step: int) -> "SamplingPolicy":
        """Returns the policy whose first step is this one of an order; itself without an order."""
        return self

    def contradiction(self, sizes: Sizes) -> str | None:
        """Returns what in these sizes of samples cannot be by this policy, or None."""
        return None

    def default_batch_size(self, population_size: int) -> int | None:
        """Returns the (expected) batch size, in examples, of a `fit` that is told none."""
        return 32

    def part(self, population_size: int) -> "SamplingPolicy | None":
        """Returns how a part of the population is sampled by itself, if all parts together are then
        sampled by this policy; else None.
        """
        return None

    def draw(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        """Yields the unit indices (int64) of one step after another, without end."""
        raise TypeError(f"{type(self).__name__} says nothing about how to draw from arrays.")

    @property
    def steps_per_epoch(self) -> int:
        """Steps whose expected number of units is nearest the population's, at least one."""
        return max(1, round(self.population_size / self.expected_batch_size))

    @property
    def hides_population(self) -> bool:
        """Whether neighbours differ in their number of units, so that it is not public."""
        return self.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE

    @property
    def padded_size(self) -> int:
        """Units that a padded batch holds. A larger sample is padded to a multiple of it."""
        return int(self.expected_batch_size)

    @property
    def size_step(self) -> int:
        """Units to whose multiples samples are padded where their shapes may differ.

        About half a standard deviation: a run then has a dozen shapes, and little padding.
        """
        return max(1, (self.padded_size - int(self.expected_batch_size)) // 6)


# For the policies themselves.


def check_fields(policy: SamplingPolicy) -> None:
    """Raises an error that says what is wrong with a policy's relation or sizes."""
    if not isinstance(policy.neighboring_relation, NeighboringRelation):
        raise TypeError(
            "neighboring_relation must be a tfdp.NeighboringRelation. "
            f"Received: neighboring_relation={policy.neighboring_relation!r}."
        )
    for name in ("population_size", "batch_size"):
        value = getattr(policy, name, None)
        if value is not None:
            object.__setattr__(policy, name, positive_integer(name, value))


def fill(policy: SamplingPolicy, **sizes: int) -> SamplingPolicy:
    """Returns the policy with its missing sizes filled in; a size that contradicts is an error."""
    for name, value in sizes.items():
        declared = getattr(policy, name)
        if declared is not None and declared != value:
            hidden = name == "population_size" and policy.hides_population
            found = f"another {name}, which is not public" if hidden else f"{name}={value}"
            raise ValueError(
                f"{type(policy).__name__} was made for {name}={declared}, but the data have "
                f"{found}. Leave {name} out, or give matching data."
            )
    return dataclasses.replace(policy, **sizes)


def told(policy: SamplingPolicy, sizes: str) -> str:
    """Returns what an error may say about sizes of samples: not them, where they follow a
    population that is not public.
    """
    return "the sizes of these batches, which are not public" if policy.hides_population else sizes


def nearly_whole(size: float) -> float:
    """Returns an expected size, an integer where no more than rounding is between it and one.

    256 / 60000 * 60000 is not 256.
    """
    return round(size) if math.isclose(size, round(size)) else size


def three_deviations_above(expected: float, share: float, most: int) -> int:
    """Returns how many units a sample of binomial size is padded to, a multiple of 8 or `most`.

    One sample in 700 is larger, and then costs twice.

    Args:
        expected: Units in a sample on average.
        share: The probability that a unit is in it.
        most: Units that there are.
    """
    spread = 3 * math.sqrt(expected * (1 - share))
    return min(8 * math.ceil((expected + spread) / 8), most)


def check_public_number(policy: SamplingPolicy, name: str) -> None:
    """Raises an error where a number of steps would have to follow a population that is not
    public.
    """
    if policy.hides_population and getattr(policy, name) is None:
        raise ValueError(
            "Under ADD_OR_REMOVE_ONE the number of units is not public, so that "
            f"{name} cannot follow it. Choose it as a public number, tfdp.sampling."
            f"{type(policy).__name__}({name}=..., neighboring_relation=ADD_OR_REMOVE_ONE), or take "
            "ZERO_OUT, the default."
        )


def fill_number(
    policy: SamplingPolicy, name: str, number: int, batch_size: int, population_size: int
) -> SamplingPolicy:
    """Returns the policy with its population and a number that follows from it and the batch size;
    another one that was declared is an error.

    Args:
        policy: What is to be completed.
        name: Of the number, such as "num_steps".
        number: What follows.
        batch_size: Units in a batch.
        population_size: Units that there are.
    """
    declared = getattr(policy, name)
    if declared is not None and declared != number:
        raise ValueError(
            f"{type(policy).__name__} was made for {name}={declared}, but batch_size={batch_size} "
            f"of {population_size} units makes {name}={number}. Leave one of the two out."
        )
    return fill(policy, population_size=population_size, **{name: number})


def check_batch(batch_size: int, population_size: int) -> tuple[int, int]:
    """Returns both as Python's integers, which do not wrap around as NumPy's do.

    Raises:
        TypeError: the batch is no integer.
        ValueError: it is below one, or larger than the population.
    """
    batch_size, population_size = positive_integer("batch_size", batch_size), int(population_size)
    if batch_size > population_size:
        raise ValueError(
            "batch_size must be at most the number of units. Where it is left out, it is 32, as in "
            f"Keras. Received: batch_size={batch_size}, number of units={population_size}."
        )
    return batch_size, population_size
