"""Sums whose noise is correlated over the steps of a run."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

from tfdp.events.arguments import (
    MAX_INTEGER,
    check_type,
    integer_below,
    positive_integer,
    real_number,
    set_field,
)
from tfdp.events.base import Event, Sampling
from tfdp.events.registry import register
from tfdp.events.releases import NoisySum

MAX_STEPS, MAX_COEFFICIENTS = 2**20, 1024


class _StepOfRun(NoisySum):
    """Base of the steps of runs of `num_steps` sums whose noise is correlated."""

    bound_field: ClassVar[str] = "l2_norm_bound"
    noise_field: ClassVar[str] = "noise_stddev"
    num_steps: int
    period: int
    position: int
    run_id: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_steps", "period"):
            set_field(self, name, positive_integer(name, getattr(self, name)))
        if self.num_steps > MAX_STEPS:
            raise ValueError(
                f"num_steps must be at most {MAX_STEPS}. Received: num_steps={self.num_steps}."
            )
        for name, end in (("position", self.num_steps), ("run_id", MAX_INTEGER)):
            set_field(self, name, integer_below(name, getattr(self, name), end))

    @property
    def bands(self) -> int | None:
        """Bands of C; None where its columns do not end."""
        return None

    def run_start(self) -> Event:
        return dataclasses.replace(self, position=0)  # type: ignore[type-var]

    def step_of_run(self) -> int | None:
        return self.position

    def run_ids(self) -> tuple[int, ...]:
        return (self.run_id,)

    def why_not_on(self, sampling: Sampling) -> str | None:
        if sampling.separation is not None:
            return self._why_not_separated(*sampling.separation)
        if sampling.pass_number >= 0:
            return (
                "is not known for shuffled passes, of which a unit may be in the last step of one "
                "and in the first of the next; take FixedOrder"
            )
        endless = self.bands is None or self.bands > self.period
        if sampling.is_random and not sampling.takes_whole_parts and endless:
            return (
                "is known for random samples only where C has no more bands than there are steps "
                f"between two participations ({self.period}); take BallsInBins, or FixedOrder"
            )
        if self.period == 1:
            return None
        if sampling.place is None:
            return (
                f"supposes that a unit comes again every {self.period} steps, which nothing sees "
                "to; take FixedOrder, CyclicPoisson or BallsInBins, or period=1"
            )
        index, number = sampling.place
        if (index, number) != (self.position % self.period, self.period):
            return (
                f"supposes part {self.position % self.period} of {self.period} in step "
                f"{self.position} of the run, and this is part {index} of {number}"
            )
        return None

    def _why_not_separated(self, separation: int, steps: int) -> str | None:
        """Returns why a run cannot be about samples in which units are so many steps apart."""
        if self.bands is None or self.bands > separation or self.period > separation:
            return (
                f"supposes a unit to be away for {max(self.bands or 0, self.period)} steps, or "
                f"remembers noise without end, where it is away for {separation}; take C with so "
                "many bands, and as many steps of min_separation"
            )
        if steps != self.num_steps:
            return (
                f"is of a run of {self.num_steps} steps, where a pass of samples has {steps}, and "
                "after it nobody waits any more; take a run of as many steps"
            )
        return None


@register
@dataclasses.dataclass(frozen=True)
class CorrelatedGaussianSumEvent(_StepOfRun):
    """One step of a run of `num_steps` sums, whose noise y solves C y = noise_stddev z.

    C is the lower triangular Toeplitz matrix whose first column is the series of numerator(x) /
    denominator(x), and z is standard normal, independent of everything before. So the steps of a
    run are together one Gaussian mechanism on C times the sums (Denisov et al. 2022,
    arXiv:2202.08312, theorem 2.1, also where sums depend on what was released before). A run that
    stops early is charged as a whole one. A step of a run that was taken more than once, as after
    an older checkpoint was restored, makes as many runs of it.

    Attributes:
        l2_norm_bound: S, by how much one privacy unit moves the sum of a step, as in
            `GaussianSumEvent`.
        noise_stddev: Standard deviation of z's multiple. Zero is no privacy.
        numerator: p_0 = 1, p_1, ...
        denominator: r_0 = 1, r_1, ...
        num_steps: n. After so many steps a new run begins, whose noise remembers nothing.
        period: A unit may be in the steps i, i + period, i + 2 period, ... of a run, for one i; 1
            is every step.
        position: Which step of the run this is, from 0 on.
        run_id: A random number that names the run.
        seeded: As in `NoisySum`.
    """

    words: ClassVar[str] = "sum with correlated Gaussian noise"
    field_words: ClassVar[Mapping[str, str]] = {
        "l2_norm_bound": "l2 norm bound S",
        "noise_stddev": "noise standard deviation σ",
        "numerator": "numerator of C",
        "denominator": "denominator of C",
        "num_steps": "steps of a run",
        "period": "steps between two participations",
        "position": "step of the run",
        "run_id": "run",
    }

    l2_norm_bound: float
    noise_stddev: float
    numerator: tuple[float, ...]
    denominator: tuple[float, ...]
    num_steps: int
    period: int
    position: int
    run_id: int
    seeded: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("numerator", "denominator"):
            set_field(self, name, _coefficients(name, getattr(self, name)))

    @property
    def bands(self) -> int | None:
        """Bands of C; None where its columns do not end."""
        return len(self.numerator) if len(self.denominator) == 1 else None


@register
@dataclasses.dataclass(frozen=True)
class TreeGaussianSumEvent(_StepOfRun):
    """One step of a run of `num_steps` sums, whose running sums are sums of noised nodes of a tree.

    Every node of a binary tree over the steps is the sum of its steps with independent noise of
    deviation `noise_stddev`. What is released is a function of the nodes that have ended
    (`tfdp.factorizations.BinaryTree`). A run that stops early is charged as a whole one. A step of
    a run that was taken more than once, as after an older checkpoint was restored, makes as many
    runs of it.

    Attributes:
        l2_norm_bound: As in `CorrelatedGaussianSumEvent`.
        noise_stddev: Standard deviation of the noise of a node. Zero is no privacy.
        num_steps: As in `CorrelatedGaussianSumEvent`.
        period: Likewise.
        position: Likewise.
        run_id: Likewise.
        efficient: Whether right nodes are released, too, as estimates of nodes above them need.
        seeded: As in `NoisySum`.
    """

    words: ClassVar[str] = "sum with Gaussian noise of a binary tree"
    field_words: ClassVar[Mapping[str, str]] = {
        "l2_norm_bound": "l2 norm bound S",
        "noise_stddev": "noise standard deviation σ",
        "num_steps": "steps of a run",
        "period": "steps between two participations",
        "position": "step of the run",
        "run_id": "run",
        "efficient": "estimates from below",
    }

    l2_norm_bound: float
    noise_stddev: float
    num_steps: int
    period: int
    position: int
    run_id: int
    efficient: bool = True
    seeded: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("efficient", self.efficient, bool)


def _coefficients(name: str, values: tuple[float, ...]) -> tuple[float, ...]:
    found = tuple(
        real_number(f"{name}[{k}]", value, minimum=-math.inf, inclusive=True)
        for k, value in enumerate(values)
    )
    if not 1 <= len(found) <= MAX_COEFFICIENTS or found[0] != 1:
        raise ValueError(
            f"{name} must hold 1 to {MAX_COEFFICIENTS} coefficients, of which the first is 1. "
            f"Received: {name}={found!r:.200}."
        )
    if len(found) > 1 and not found[-1]:
        raise ValueError(f"The last one of {name} must not be 0. Received: {found!r:.200}.")
    return found
