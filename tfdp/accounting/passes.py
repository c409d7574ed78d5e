"""What steps cost together that one draw gave to their units: passes of random allocation, and of
samples in which a unit's steps are so far apart.

A unit is in one of the t steps of a pass. If all steps have noise of one multiplier, the pass is an
`AllocatedGaussian`. If multipliers differ, more noise can be added to each step than the least has,
so that the pass costs at most what it would cost if all had the least. If steps differ in kind,
the pass costs at most what each kind costs by itself where it is known which step a unit is in. The
reason is that outputs are mixtures over that step, and divergences are jointly quasi-convex. All of
that is so of the steps that a unit is in where these are several, and the pass is a
`SeparatedGaussian`. It is so of a shuffled pass as well, whose steps are what they are by
themselves.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from tfdp.accounting.mechanisms import (
    DEARER,
    AllocatedGaussian,
    BinnedGaussian,
    Mechanism,
    RemoveThenAdd,
    SampledGaussian,
    SeparatedGaussian,
)

_OF_A_PASS = (AllocatedGaussian, BinnedGaussian, SeparatedGaussian)

# What a step of a pass is, and how many such steps there were.
Steps = Sequence[tuple[tuple[Mechanism, ...], int]]


def known_step(mechanism: Mechanism) -> Mechanism:
    """Returns what a pass costs for whoever knows which step a unit is in."""
    once = mechanism.mechanism if isinstance(mechanism, RemoveThenAdd) else mechanism
    if not isinstance(once, _OF_A_PASS):
        return mechanism
    # Of bins it may first be the one of some that are told.
    return known_step(DEARER[type(mechanism)](mechanism))


def _noise(mechanism: Any) -> float | None:
    """Returns the noise multiplier of a mechanism of which less noise is the only dearer one."""
    once = mechanism.mechanism if isinstance(mechanism, RemoveThenAdd) else mechanism
    whole = isinstance(once, SampledGaussian) and once.sampling_probability == 1
    return once.noise_multiplier if whole or isinstance(once, _OF_A_PASS) else None


def times(mechanism: Mechanism, repetitions: int) -> int:
    """Returns how often a mechanism of a pass counts in which a unit is in so many steps."""
    return 1 if type(mechanism) is SeparatedGaussian else repetitions


def of_pass(
    steps: Steps, steps_per_pass: int, repetitions: int = 1
) -> Iterator[tuple[Mechanism, int]]:
    """Yields the mechanisms that the steps of one pass amount to, each with its number.

    Args:
        steps: What each kind of step is; how many there were of each.
        steps_per_pass: t. If there were more steps than that, it was more passes; of steps of
            several kinds a unit may have been in the dearest of each pass.
        repetitions: In how many steps of a pass a unit is.
    """
    steps = [(kind, count) for kind, count in steps if kind]
    kinds = {kind for kind, _ in steps}
    total = -(-sum(count for _, count in steps) // steps_per_pass)
    if len({tuple(map(_kind, kind)) for kind in kinds}) == 1:
        # Of several mechanisms each has its least noise, which need not be in one kind.
        worst = [min(each, key=lambda m: _noise(m) or 0.0) for each in zip(*kinds, strict=True)]
        if len(kinds) == 1 or all(_noise(each) is not None for each in worst):
            yield from ((each, total * times(each, repetitions)) for each in worst)
            return
    for kind, count in steps:
        passes = min(count, total)
        yield from ((known_step(each), passes * times(each, repetitions)) for each in kind)


def _kind(mechanism: Any) -> Any:
    """Returns what mechanisms share that differ in their noise only."""
    once = mechanism.mechanism if isinstance(mechanism, RemoveThenAdd) else mechanism
    return type(mechanism), type(once), getattr(once, "num_steps", None)
