"""Every unit with the same probability, unless it was in one of the samples before."""

import collections
import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import positive_integer, real_number
from tfdp.sampling.policy import (
    SamplingPolicy,
    check_batch,
    check_fields,
    fill,
    nearly_whole,
    three_deviations_above,
    told,
)
from tfdp.sampling.sizes import IMPOSSIBLE, Sizes, divergence


@dataclasses.dataclass(frozen=True)
class MinSeparationPoisson(SamplingPolicy):
    """Every unit that was in none of the last `min_separation` - 1 samples is in the next one with
    the same probability, independently of all other units; also called b-min-sep.

    What amplifies noise of a banded factorization with at most `min_separation` bands, without
    groups that have to be kept. With 1 it is `Poisson`. The waits are drawn anew with every pass of
    `num_steps` steps, so that all samples of a pass have the same expected size. They are nowhere
    kept: whoever was in the last steps of a pass may be in the first of the next one, and a pass
    that was left cannot be taken up again. So a run of correlated noise has to be one pass: a run
    that was left in the middle ends there.

    A pass is charged without amplification, as if a unit were in every `min_separation`th step, and
    its first step is charged as the whole pass. `tfdp.accounting.MonteCarloAccountant` says what it
    is worth, with a probability.

    Args:
        min_separation: b; a unit that was in step i may next be in step i + b.
        num_steps: Of a pass. With arrays it is, by default, the number whose samples together have
            as many units as the population.
        sampling_probability: p, in (0, 1], of a unit that does not wait. With arrays it is
            batch_size / (number of units - (b - 1) batch_size).
        population_size: Number of units, where it is known.
        neighboring_relation: ZERO_OUT by default, under which the number of units is public. Under
            ADD_OR_REMOVE_ONE it is not: `num_steps` and `sampling_probability` are then public
            numbers of their own, which have to be given.

    References:
        Dong and Ganesh 2026, arXiv:2602.09338.
    """

    min_separation: int
    num_steps: int | None = None
    sampling_probability: float | None = None
    population_size: int | None = None
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT

    def __post_init__(self) -> None:
        check_fields(self)
        b = positive_integer("min_separation", self.min_separation)
        object.__setattr__(self, "min_separation", b)
        if self.num_steps is not None:
            object.__setattr__(self, "num_steps", positive_integer("num_steps", self.num_steps))
        if self.sampling_probability is not None:
            p = real_number(
                "sampling_probability",
                self.sampling_probability,
                minimum=0,
                inclusive=False,
                maximum=1,
            )
            object.__setattr__(self, "sampling_probability", p)

    def resolve(self, population_size: int, batch_size: int) -> "SamplingPolicy":
        if self.hides_population:
            if self.num_steps is None or self.sampling_probability is None:
                raise ValueError(
                    "Under ADD_OR_REMOVE_ONE the number of units is not public, so that nothing "
                    "may follow it. Choose num_steps and sampling_probability as public numbers, "
                    "or take ZERO_OUT, the default."
                )
            return fill(self, population_size=population_size)
        batch_size, population_size = check_batch(batch_size, population_size)
        free = population_size - (self.min_separation - 1) * batch_size
        if free < batch_size:
            raise ValueError(
                "Of all units but those who wait there must be batch_size left. Received: "
                f"batch_size={batch_size}, min_separation={self.min_separation}, "
                f"number of units={population_size}."
            )
        p = batch_size / free
        if self.sampling_probability is not None and self.sampling_probability != p:
            raise ValueError(
                f"MinSeparationPoisson was made for sampling_probability="
                f"{self.sampling_probability!r}, but batch_size={batch_size} of {population_size} "
                f"units with min_separation={self.min_separation} is {p!r}. Leave "
                "sampling_probability out."
            )
        num_steps = self.num_steps or max(1, round(population_size / batch_size))
        filled = fill(self, population_size=population_size)
        return dataclasses.replace(filled, sampling_probability=p, num_steps=num_steps)

    def default_batch_size(self, population_size: int) -> int | None:
        return None if self.hides_population else 32

    def from_step(self, step: int) -> "SamplingPolicy":
        if self.num_steps is not None and step % self.num_steps:
            raise ValueError(
                f"A run of correlated noise was left at its step {step}, and who has to wait there "
                "is not known any more: min_separation would not hold. Begin a new run: build the "
                "optimizer anew, or reset the state of its query."
            )
        return self

    @property
    def _share(self) -> float:
        """Probability of a unit to be in a step."""
        p = self.sampling_probability
        return p / (1 + (self.min_separation - 1) * p)

    @property
    def expected_batch_size(self) -> float | None:
        if self.sampling_probability is None or self.population_size is None:
            return None
        return nearly_whole(self._share * self.population_size)

    def description(self, pass_index: int) -> events.Sampling:
        if self.sampling_probability is None or self.num_steps is None:
            raise ValueError(
                "Declare what is public: sampling=tfdp.sampling.MinSeparationPoisson("
                "min_separation, num_steps=..., sampling_probability=...)."
            )
        population_size = None if self.hides_population else self.population_size
        return events.MinSeparationSampling(
            self.sampling_probability,
            self.min_separation,
            self.num_steps,
            population_size,
            pass_index,
        )

    @property
    def steps_per_pass(self) -> int | None:
        return self.num_steps

    @property
    def draws_whole_passes(self) -> bool:
        return True

    @property
    def steps_per_epoch(self) -> int:
        return self.num_steps

    def contradiction(self, sizes: Sizes) -> str | None:
        population, p = self.population_size, self.sampling_probability
        free = math.inf
        if population is not None:
            if sizes.largest > population:
                return told(self, f"a sample of {sizes.largest} units")
            # Chernoff, for one step: sizes depend on each other, but by convexity no average of
            # them is far from what is expected with a larger probability than one of them.
            share = sizes.total / (sizes.steps * population)
            if -population * divergence(share, self._share) < IMPOSSIBLE:
                return told(
                    self,
                    f"{sizes.steps} samples of {sizes.total / sizes.steps:g} units on average, "
                    f"where {self._share * population:g} are expected",
                )
            free = population - (self.min_separation - 1) * sizes.largest
        # Beyond the first b - 1 steps of a pass a size is binomial, given those before, among the
        # units that do not wait. No size of binomial samples with variance v is likelier than
        # (2 e v)^-1/2 (Herzog 1947).
        variance = (1 - p) * min(sizes.smallest, p * max(0, free))
        likeliest = -0.5 * math.log(max(1.0, 2 * math.e * variance))
        passes = 1 if self.num_steps is None else -(-sizes.steps // self.num_steps)
        counted = sizes.steps - passes * (self.min_separation - 1)
        if sizes.smallest == sizes.largest and (counted - 1) * likeliest < IMPOSSIBLE:
            return told(
                self, f"{sizes.steps} samples of {sizes.largest} units each, where sizes are random"
            )
        return None

    def draw(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        b, p, population = self.min_separation, self.sampling_probability, self.population_size
        while True:
            # Of those who wait when a pass begins each wait is equally likely.
            waiting = generator.binomial(population, (b - 1) * self._share)
            units = generator.choice(population, waiting, replace=False, shuffle=False)
            wait = np.zeros(population, np.int64)
            if b > 1:
                wait[units] = 1 + generator.integers(b - 1, size=waiting)
            # Units that wait no longer in the next step, in the one after it, ...
            ending = collections.deque(np.flatnonzero(wait == left) for left in range(b))
            free = np.empty(0, np.int64)
            for _ in range(self.num_steps):
                free = np.concatenate([free, ending.popleft()])
                size = generator.binomial(len(free), p)
                chosen = generator.choice(len(free), size, replace=False, shuffle=False)
                units = free[chosen]
                free = np.delete(free, chosen)
                ending.append(units)
                yield units

    @property
    def padded_size(self) -> int:
        return three_deviations_above(self.expected_batch_size, self._share, self.population_size)
