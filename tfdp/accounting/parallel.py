"""The worst of several parts: what releases about disjoint parts of the data cost together.

A unit is in one part, so that neighbours differ in one part. A release about disjoint parts costs
what the dearest of them costs (McSherry 2009, "Privacy integrated queries", theorem 4). Let each
part i be dominated by the composition of mechanisms M_i1, M_i2, ... Mechanisms of one kind are
ordered by one number. So sort those of every part from the dearest on, and take the dearest of all
first ones, of all second ones, and so on. Each M_ij is dominated by that at its place, or replaces
nothing there. Hence every part is dominated by the composition of what was taken. Where all parts
are pure, the largest sum of epsilons is an upper bound, too.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from tfdp.accounting.amplification import pure_epsilon
from tfdp.accounting.mechanisms import (
    DEARER,
    BoundedRange,
    Concentrated,
    Mechanism,
    NoPrivacy,
    PureEpsilon,
    SampledGaussian,
    SampledLaplace,
    WorstPart,
    without_parts,
)
from tfdp.events import UnsupportedEventError

# By what mechanisms of a kind, all without sampling, are ordered: the larger the dearer.
_COST: dict[type[Mechanism], Callable[[Any], float]] = {
    BoundedRange: lambda mechanism: mechanism.epsilon,
    Concentrated: lambda mechanism: mechanism.rho,
    PureEpsilon: lambda mechanism: mechanism.epsilon,
    SampledGaussian: lambda mechanism: 1 / mechanism.noise_multiplier,
    SampledLaplace: lambda mechanism: 1 / mechanism.noise_multiplier,
}


def _ordered(mechanism: Mechanism) -> Mechanism:
    """Returns the mechanism, or a dearer one of a kind that is ordered by a number."""
    while type(mechanism) not in _COST:
        if type(mechanism) not in DEARER:
            raise UnsupportedEventError(
                f"{mechanism!r} is not supported in a ParallelComposition: which of two such "
                "releases is the dearer one depends on the order of divergence."
            )
        mechanism = DEARER[type(mechanism)](mechanism)
    return mechanism


def worst_part(parts: Sequence[Sequence[Mechanism]]) -> list[Mechanism]:
    """Returns what the worst of the parts is, as exactly as it is known.

    Every neighbour differs in one part, so that at every order the divergence is at most that of
    the dearest part at this order. Where no part is the dearest at all orders, that is less than
    `worst_of` says: an accountant of divergences takes the maximum, and others what dominates all.

    Args:
        parts: The mechanisms of each part, all without sampling.
    """
    together = worst_of(parts)
    if together == [NoPrivacy()]:
        return together
    # An inner composition of parts is part of the outer one's parts as what dominates it.
    ordered = {tuple(sorted(map(_ordered, without_parts(part)), key=repr)) for part in parts}
    alike = tuple(sorted(together, key=repr)) in ordered
    has_gaussians = any(type(each) in (Concentrated, SampledGaussian) for each in together)
    if alike or not has_gaussians:
        return together
    return [WorstPart(tuple(sorted(filter(None, ordered), key=repr)), tuple(together))]


def worst_of(parts: Sequence[Sequence[Mechanism]]) -> list[Mechanism]:
    """Returns mechanisms that together dominate every one of the parts.

    Guarantees:
        Parts that differ by their numbers only cost what the dearest does. Parts that are of
        different kinds, such as a Gaussian sum and a Laplace sum, cost no more than one part of
        every kind.

    Args:
        parts: The mechanisms of each part, all without sampling.
    """
    if any(type(mechanism) is NoPrivacy for part in parts for mechanism in part):
        return [NoPrivacy()]
    ordered = [list(map(_ordered, without_parts(part))) for part in parts]
    worst: list[Mechanism] = []
    for kind, cost in _COST.items():
        of_kind = [
            sorted((m for m in part if type(m) is kind), key=cost, reverse=True) for part in ordered
        ]
        for rank in itertools.zip_longest(*of_kind):
            worst.append(max((m for m in rank if m is not None), key=cost))
    if any(type(mechanism) in (Concentrated, SampledGaussian) for mechanism in worst):
        return worst
    dearest = max(math.fsum(map(pure_epsilon, part)) for part in ordered)
    total = math.fsum(map(pure_epsilon, worst))
    return [PureEpsilon(dearest)] if total > dearest * (1 + 1e-12) else worst
