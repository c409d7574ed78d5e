"""Sampling policies: how samples are drawn, or, for a data set that tfdp does not draw from, were
declared to be.
"""

import abc
import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import positive_integer, real_number

# Logarithm of a probability below which sizes of samples are not taken for chance.
_IMPOSSIBLE = math.log(1e-12)


def _divergence(share: float, q: float) -> float:
    """Returns the relative entropy of Bernoulli distributions with these probabilities."""
    parts = ((share, q), (1 - share, 1 - q))
    return sum((a * math.log(a / b) if b else math.inf) for a, b in parts if a > 0)


def _round_up(value: float, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple


class SamplingPolicy(abc.ABC):
    """How a step's sample is drawn from the population.

    The same object does two things: `fit(x, y, sampling=policy)` draws from arrays by it, and
    `fit(dataset, sampling=policy)` declares that the data set was built so. What was declared is
    recorded as declared; nobody can check it.

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
    def event(self, pass_index: int) -> events.Sampling:
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

    def contradiction(self, sizes: "Sizes") -> str | None:
        """Returns what in these sizes of samples cannot be by this policy, or None."""
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


@dataclasses.dataclass
class Sizes:
    """What is kept of the sizes of declared samples, to hold them against the declaration.

    Attributes:
        steps: How many there were.
        total: Their sum.
        smallest: Of them.
        largest: Of them.
    """

    steps: int = 0
    total: int = 0
    smallest: int = 0
    largest: int = 0

    def add(self, size: int) -> None:
        """Adds one more."""
        self.smallest = min(self.smallest, size) if self.steps else size
        self.largest = max(self.largest, size)
        self.steps, self.total = self.steps + 1, self.total + size


def _check_relation(policy: SamplingPolicy) -> None:
    if not isinstance(policy.neighboring_relation, NeighboringRelation):
        raise TypeError(
            "neighboring_relation must be a tfdp.NeighboringRelation. "
            f"Received: neighboring_relation={policy.neighboring_relation!r}."
        )
    for name in ("population_size", "batch_size"):
        value = getattr(policy, name, None)
        if value is not None:
            object.__setattr__(policy, name, positive_integer(name, value))


def _fill(policy: SamplingPolicy, **sizes: int) -> SamplingPolicy:
    """Returns the policy with its missing sizes filled in; a size that contradicts is an error."""
    for name, value in sizes.items():
        declared = getattr(policy, name)
        if declared is not None and declared != value:
            raise ValueError(
                f"{type(policy).__name__} was made for {name}={declared}, but the data have "
                f"{name}={value}. Leave {name} out, or give matching data."
            )
    return dataclasses.replace(policy, **sizes)


def _check_batch(batch_size: int, population_size: int) -> None:
    positive_integer("batch_size", batch_size)
    if batch_size > population_size:
        raise ValueError(
            f"batch_size must be at most the number of units. Received: batch_size={batch_size}, "
            f"number of units={population_size}."
        )


@dataclasses.dataclass(frozen=True)
class Poisson(SamplingPolicy):
    """Every unit is in every sample independently with the same probability: what amplification
    assumes.

    Args:
        sampling_probability: q, in (0, 1]. With arrays it is batch_size / number of units by
            default.
        population_size: Number of units, where it is known.
        neighboring_relation: ZERO_OUT by default, under which the number of units is public. Under
            ADD_OR_REMOVE_ONE it is not: the probability is then a public number of its own, which
            has to be given, and nothing of a run or its ledger follows the number of units.
    """

    sampling_probability: float | None = None
    population_size: int | None = None
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT

    def __post_init__(self):
        _check_relation(self)
        if self.sampling_probability is not None:
            q = real_number(
                "sampling_probability",
                self.sampling_probability,
                minimum=0,
                inclusive=False,
                maximum=1,
            )
            object.__setattr__(self, "sampling_probability", q)

    def resolve(self, population_size, batch_size):
        if self.hides_population:
            if self.sampling_probability is None:
                raise ValueError(
                    "Under ADD_OR_REMOVE_ONE the number of units is not public, so that q = "
                    "batch_size / number of units cannot be. Choose q as a public number, "
                    "tfdp.sampling.Poisson(sampling_probability=..., neighboring_relation="
                    "ADD_OR_REMOVE_ONE), or take ZERO_OUT, the default."
                )
            return _fill(self, population_size=population_size)
        _check_batch(batch_size, population_size)
        q = batch_size / population_size
        if self.sampling_probability is not None and self.sampling_probability != q:
            raise ValueError(
                f"Poisson was made for sampling_probability={self.sampling_probability!r}, but "
                f"batch_size={batch_size} of {population_size} units is {q!r}. Leave "
                "sampling_probability out."
            )
        return dataclasses.replace(
            _fill(self, population_size=population_size), sampling_probability=q
        )

    @property
    def expected_batch_size(self):
        if self.sampling_probability is None or self.population_size is None:
            return None
        # q * N can miss a whole batch size by a rounding error: 256 / 60000 * 60000.
        expected = self.sampling_probability * self.population_size
        return round(expected) if math.isclose(expected, round(expected)) else expected

    def event(self, pass_index):
        if self.sampling_probability is None:
            raise ValueError(
                "Declare the probability: sampling=tfdp.sampling.Poisson(sampling_probability=...)."
            )
        population_size = None if self.hides_population else self.population_size
        return events.PoissonSampling(self.sampling_probability, population_size)

    @property
    def steps_per_epoch(self):
        if self.hides_population:
            return max(1, round(1 / self.sampling_probability))
        return super().steps_per_epoch

    def contradiction(self, sizes):
        q, population = self.sampling_probability, self.population_size
        if population is not None:
            if sizes.largest > population:
                return f"a sample of {sizes.largest} units"
            trials = sizes.steps * population
            # Chernoff: such a share of so many trials, or one further away, is less likely than
            # this.
            if -trials * _divergence(sizes.total / trials, q) < _IMPOSSIBLE:
                return (
                    f"{sizes.steps} samples of {sizes.total / sizes.steps:g} units on average, "
                    f"where {q * population:g} are expected"
                )
        # No size of binomial samples is likelier than (2 e v)^-1/2, where v is their variance
        # (Herzog 1947).
        mean = sizes.smallest if population is None else q * population
        likeliest = -0.5 * math.log(max(1.0, 2 * math.e * mean * (1 - q)))
        same = sizes.smallest == sizes.largest
        if same and (sizes.steps - 1) * likeliest < _IMPOSSIBLE:
            return f"{sizes.steps} samples of {sizes.largest} units each, where sizes are random"
        return None

    def draw(self, generator):
        while True:
            size = generator.binomial(self.population_size, self.sampling_probability)
            yield generator.choice(self.population_size, size, replace=False, shuffle=False)

    @property
    def padded_size(self):
        # Three standard deviations: one sample in 700 is larger, and then costs twice.
        spread = 3 * math.sqrt(self.expected_batch_size * (1 - self.sampling_probability))
        return min(_round_up(self.expected_batch_size + spread, 8), self.population_size)


class _KnownBatchSize(SamplingPolicy):
    """A policy whose samples all have `batch_size` units (but for the last of a pass)."""

    batch_size: int | None

    def resolve(self, population_size, batch_size):
        if self.hides_population:
            raise ValueError(
                f"Under ADD_OR_REMOVE_ONE the number of units is not public, but how often "
                f"{type(self).__name__} takes a step follows it. Take ZERO_OUT or REPLACE_ONE, "
                "under which it is public, or Poisson(sampling_probability=...)."
            )
        _check_batch(batch_size, population_size)
        return _fill(self, population_size=population_size, batch_size=batch_size)

    @property
    def expected_batch_size(self):
        return self.batch_size

    def event(self, pass_index):
        if self.batch_size is None or self.population_size is None:
            raise ValueError(
                f"Declare the sizes: sampling=tfdp.sampling.{type(self).__name__}(batch_size=..., "
                "population_size=...)."
            )
        return self._event(self.batch_size, self.population_size, pass_index)

    @abc.abstractmethod
    def _event(self, batch_size: int, population_size: int, pass_index: int) -> events.Sampling:
        """Returns the description of one step."""


@dataclasses.dataclass(frozen=True)
class FixedSize(_KnownBatchSize):
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

    def __post_init__(self):
        _check_relation(self)

    def _event(self, batch_size, population_size, pass_index):
        return events.FixedSizeSampling(batch_size, population_size)

    def contradiction(self, sizes):
        wrong = {sizes.smallest, sizes.largest} - {self.batch_size}
        return f"a sample of {max(wrong)} units" if wrong else None

    def draw(self, generator):
        while True:
            yield generator.choice(
                self.population_size, self.batch_size, replace=False, shuffle=False
            )


@dataclasses.dataclass(frozen=True)
class Shuffled(_KnownBatchSize):
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

    def __post_init__(self):
        _check_relation(self)

    def _event(self, batch_size, population_size, pass_index):
        return events.ShuffledSampling(batch_size, population_size, pass_index)

    @property
    def steps_per_pass(self):
        return self.event(0).steps_per_pass

    def is_over(self, steps, size):
        # Without its smaller last batch a pass has fewer steps: what comes in that one's place is
        # of the next pass, unless it is as small.
        whole, rest = divmod(self.population_size, self.batch_size)
        return steps > whole or (steps == whole and (size is None or size > rest))

    def contradiction(self, sizes):
        return f"a batch of {sizes.largest} units" if sizes.largest > self.batch_size else None

    @property
    def steps_per_epoch(self):
        return self.steps_per_pass

    def draw(self, generator):
        while True:
            order = generator.permutation(self.population_size)
            for start in range(0, self.population_size, self.batch_size):
                yield order[start : start + self.batch_size]


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

    def __post_init__(self):
        _check_relation(self)

    def resolve(self, population_size, batch_size):
        if batch_size != population_size:
            raise ValueError(
                "FullBatch takes every unit in every step: leave batch_size out, or set it to the "
                f"number of units. Received: batch_size={batch_size}, number of "
                f"units={population_size}."
            )
        return _fill(self, population_size=population_size)

    @property
    def expected_batch_size(self):
        return self.population_size

    def contradiction(self, sizes):
        wrong = {sizes.smallest, sizes.largest} - {self.population_size}
        if self.population_size is None or not wrong:
            return None
        return f"a batch of {max(wrong)} units"

    def event(self, pass_index):
        return events.FullBatchSampling(None if self.hides_population else self.population_size)

    def draw(self, generator):
        while True:
            yield np.arange(self.population_size)


@dataclasses.dataclass(frozen=True)
class Unknown(SamplingPolicy):
    """Nothing was declared. Accounted without amplification, as if a unit were in every step
    (once).

    Args:
        neighboring_relation: ZERO_OUT by default.
    """

    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    population_size: None = None

    def __post_init__(self):
        _check_relation(self)

    def resolve(self, population_size, batch_size):
        raise ValueError(
            "Unknown does not say how to draw from arrays. Choose another policy, such as "
            "Poisson()."
        )

    @property
    def expected_batch_size(self):
        return None

    def event(self, pass_index):
        return events.UnknownSampling()
