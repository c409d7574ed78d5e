"""Accounting by privacy loss random variables, composed by the fast Fourier transform."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.analytic_gaussian import gaussian_delta, gaussian_epsilon
from tfdp.accounting.losses.bounds import DeltaBounds
from tfdp.accounting.losses.chain import ChainBounds
from tfdp.accounting.losses.groups import GROUP_PAIRS
from tfdp.accounting.losses.pairs import PAIRS
from tfdp.accounting.losses.proven import directions
from tfdp.accounting.losses.sums import Steps, bound_delta
from tfdp.accounting.losses.window import (
    LARGEST_EPSILON,
    Renyi,
    delta_bound,
    epsilon_bound,
    has_grid,
)
from tfdp.accounting.mechanisms import (
    AllocatedGaussian,
    BoundedRange,
    Concentrated,
    FixedSizeGaussian,
    Mechanism,
    RandomizedResponse,
    RemoveThenAdd,
    SampledLaplace,
    SkellamNoise,
    TruncatedGaussian,
)
from tfdp.accounting.normal_form import NormalForm
from tfdp.accounting.rdp import delta_of_curve, epsilon_of_curve, renyi_curve
from tfdp.accounting.renyi.group import check_group_size, group_rdp
from tfdp.accounting.unsampled import inclusion_probability, merge_unsampled, only_gaussian
from tfdp.events import Event, UnsupportedEventError
from tfdp.events.arguments import real_number
from tfdp.events.protection import Protection

# No neighbours are known whose outputs are the dominating pairs of these, as they are computed.
_UNATTAINED = (AllocatedGaussian, BoundedRange, FixedSizeGaussian, TruncatedGaussian)
_UNATTAINED_BY_GROUPS = (*_UNATTAINED, RandomizedResponse, RemoveThenAdd, SampledLaplace)
# Of these nothing but bounds of Renyi divergences is known.
_DIVERGENCES: tuple[type[Mechanism], ...] = (Concentrated, SkellamNoise)
# What is looked for first where nothing is known.
_TYPICAL_DELTA = 1e-8

_Terms = list[tuple[Any, int]]


class EpsilonInterval(NamedTuple):
    """What epsilon is at some delta.

    Attributes:
        lower: Proven lower bound.
        estimate: Within the bounds; closer to the truth than they are, but not proven.
        upper: Proven upper bound.
    """

    lower: float
    estimate: float
    upper: float


class PRVAccountant(Accountant):
    """Composes privacy loss random variables on a grid, with a proven error on both sides.

    The losses of every dominating pair (`tfdp.accounting.losses.pairs`) are rounded to a grid,
    tilted and convolved by the fast Fourier transform. Adding and removing a unit are composed
    apart, and the larger epsilon counts.

    Guarantees:
        `get_epsilon` and `get_delta` are upper bounds. `get_epsilon_interval` also gives a lower
        one. Both bounds include the rounding of losses, what is cut off, what wraps around in a
        transform, and the rounding of floating-point numbers (`tfdp.accounting.losses.grid` has the
        proof). The upper bound is about twenty-five times closer to the truth than the lower, and
        never above that of `RDPAccountant`.

    Edge cases:
        Where nothing but Renyi divergences is known of a release (integer noise), all that was
        composed costs what `RDPAccountant` says. Gaussians without sampling are priced in closed
        form. Sampling may be so rare that most runs never see a given unit (q times the number of
        steps below about 10). Then epsilon is far smaller than the losses are, and the lower bound
        is far below the upper one, or zero. Below about 1 the upper bound may be that of Renyi
        divergences, and several times what `PLDAccountant` says. That one in turn says too much if
        losses are small beside its grid. The smaller one of the two is an upper bound, too. The
        bounds are wide, too, if a grid would have more than 2^22 points. Beyond epsilon = 500 the
        upper bound is what Renyi divergences give, and the lower bound is zero. The lower bound is
        also zero if no neighbours are known for which the bound is attained (samples of fixed size,
        random allocation, truncated samples, exponential mechanisms). It is about what is charged
        for an event (`tfdp.accounting.normal_form`). For unknown or shuffled sampling, for example,
        this may be more than the event costs.

    Args:
        relative_error: How far apart the bounds should be, relative to epsilon.
            `get_epsilon_interval` says how far apart they are. Work grows with
            1 / sqrt(relative_error).
        group_size: Epsilon and delta are for data sets that are so many neighbours apart, such as
            all records of one user (`tfdp.accounting.losses.groups`).

    Raises:
        ValueError: `relative_error` is not positive, or above 0.5; `group_size` is below 1 or
            above 1000.
        TypeError: they are not numbers.

    Example:
        >>> from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
        >>> step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, noise_stddev=4.0))
        >>> accountant = PRVAccountant().compose(step, count=10_000)
        >>> round(accountant.get_epsilon(1e-5), 3)
        0.947
        >>> [round(epsilon, 3) for epsilon in accountant.get_epsilon_interval(1e-5)]
        [0.942, 0.947, 0.947]

    References:
        Gopi, Lee and Wutschitz 2021, Numerical composition of differential privacy,
        arXiv:2106.02848; Doroshenko et al. 2022, Connect the dots, arXiv:2207.04380; Ghazi et al.
        2022, Faster privacy accounting via evolving discretization, arXiv:2207.04381.
    """

    prices = {**PAIRS, RemoveThenAdd: ChainBounds, **dict.fromkeys(_DIVERGENCES, renyi_curve)}
    computes_distributions = True

    def __init__(self, relative_error: float = 0.005, *, group_size: int = 1):
        super().__init__()
        self._group_size = self._apart = check_group_size(group_size)
        self._curve: tuple[_Terms, Renyi] | None
        self._forget()
        self._relative_error = real_number(
            "relative_error", relative_error, minimum=0, inclusive=False, maximum=0.5
        )

    def _forget(self) -> None:
        self._curve = None

    def __repr__(self) -> str:
        return (
            f"PRVAccountant(relative_error={self._relative_error}, group_size={self._group_size})"
        )

    def get_epsilon_interval(self, target_delta: float) -> EpsilonInterval:
        """Returns bounds of the smallest epsilon at this delta, from both sides.

        Raises:
            ValueError: `target_delta` is not strictly between 0 and 1.
            TypeError: it is not a number.
        """
        upper = self.get_epsilon(target_delta)
        if upper in (0.0, math.inf) or not self._terms():
            return EpsilonInterval(upper if self._is_non_private() else 0.0, upper, upper)
        # A truncated sample is far from the sample by its failure probability at most.
        delta = target_delta + (1 + math.exp(min(upper, 700.0))) * self._failure_probability()
        if delta >= 1:
            return EpsilonInterval(0.0, upper, upper)
        found = self._interval(delta)
        fails = delta > target_delta or self._lost_probability() > 0
        estimate = upper if fails else found.estimate
        return EpsilonInterval(found.lower, min(max(estimate, found.lower), upper), upper)

    def _check(self, event: Event) -> tuple[NormalForm, Protection | None]:
        form, common = super()._check(event)
        fails = form.failure_probability + form.lost_probability > 0
        if fails and self._group_size > 1:
            raise UnsupportedEventError(
                "Truncated samples, discrete noise and a delta of a release's own are not "
                f"supported with group_size={self._group_size}: {event!r}"
            )
        if form.run is not None and form.run.sampled and self._group_size > 1:
            raise UnsupportedEventError(
                "A group whose members take turns at different steps of one run is not supported "
                f"with group_size={self._group_size}: {event!r:.500}"
            )
        return form, common

    def _epsilon(self, delta: float) -> float:
        return self._interval(delta, lower=False).upper

    def _interval(self, delta: float, lower: bool = True) -> EpsilonInterval:
        terms = merge_unsampled(self._terms())
        if (mu := only_gaussian(terms)) is not None:
            epsilon = gaussian_epsilon(mu * self._group_size, delta)
            return EpsilonInterval(epsilon, epsilon, epsilon)
        _, most = epsilon_bound(self._renyi(terms), delta)
        bounds: Sequence[DeltaBounds | ChainBounds] = []
        if self._has_grid(terms) and (self._group_size > 1 or most <= LARGEST_EPSILON):
            bounds = self._bounds(terms, delta)
        most = min(most, epsilon_of_curve(self._renyi(terms), delta))
        if inclusion_probability(terms) * self._group_size <= delta:
            most = 0.0
        upper = min(most, max((b.upper_epsilon(delta) for b in bounds), default=math.inf))
        estimate = max((b.estimated_epsilon(delta) for b in bounds), default=upper)
        low = 0.0
        unattained = _UNATTAINED if self._group_size == 1 else _UNATTAINED_BY_GROUPS
        if lower and not any(isinstance(mechanism, unattained) for mechanism, _ in terms):
            low = max((b.lower_epsilon(delta) for b in bounds), default=0.0)
        return EpsilonInterval(low, min(estimate, upper), upper)

    def _delta(self, epsilon: float) -> float:
        terms = merge_unsampled(self._terms())
        if (mu := only_gaussian(terms)) is not None:
            return gaussian_delta(mu * self._group_size, epsilon)
        renyi = self._renyi(terms)
        _, most = delta_bound(renyi, epsilon)
        known = min(most, delta_of_curve(renyi, epsilon))
        known = min(known, inclusion_probability(terms) * self._group_size)
        if epsilon > LARGEST_EPSILON or most == 0 or not self._has_grid(terms):
            return known
        # What may be cut off depends on delta, so that it is found twice.
        delta = most if self._group_size == 1 else min(most, _TYPICAL_DELTA)
        for _ in range(2):
            bounds = self._bounds(terms, delta, epsilon)
            # Two neighbours in a row may have a bound above one, at which nothing can be cut off.
            delta = min(1.0, max((b.upper_delta(epsilon) for b in bounds), default=1.0))
        return min(delta, known)

    def _renyi(self, terms: _Terms) -> Renyi:
        return group_rdp(self._neighbours(terms), self._group_size)

    def _neighbours(self, terms: _Terms) -> Renyi:
        """Returns the divergences of neighbours, computed once for all that ask for them."""
        if self._curve is None or self._curve[0] != terms:
            self._curve = terms, _remembering(renyi_curve(terms))
        return self._curve[1]

    def _has_grid(self, terms: _Terms) -> bool:
        if any(isinstance(mechanism, _DIVERGENCES) for mechanism, _ in terms):
            return False
        return has_grid(self._neighbours(terms), LARGEST_EPSILON / self._group_size)

    def _bounds(
        self, terms: _Terms, delta: float, epsilon: float | None = None
    ) -> Sequence[DeltaBounds | ChainBounds]:
        """Returns bounds of delta, of which the largest count, or none where there is no grid."""
        # The Renyi bound for groups is too far away to tell where losses are.
        renyi = self._renyi(terms) if self._group_size == 1 else None
        chained = any(isinstance(mechanism, RemoveThenAdd) for mechanism, _ in terms)
        if self._group_size > 1 or not chained:
            return bound_delta(self._pairs(terms), renyi, self._relative_error, delta, epsilon)
        moved = [(m.mechanism, n) for m, n in terms if isinstance(m, RemoveThenAdd)]
        others = [(m, n) for m, n in terms if not isinstance(m, RemoveThenAdd)]
        pairs = self._pairs(moved)
        # By what is not chained the unit may be removed or added, where it is not replaced.
        of_others = self._pairs(others) if others else [[]]
        seconds = [[*pairs[-1], *steps] for steps in of_others]
        halves = []
        for half, steps in ((moved, pairs[:1]), ([*moved, *others], seconds)):
            renyi = self._renyi(half)
            share = None if epsilon is None else epsilon / 2
            halves.append(bound_delta(steps, renyi, self._relative_error, delta / 2, share))
            if half is moved:
                delta *= math.exp(-min(epsilon_bound(renyi, delta / 2)[1], 100.0))
        return [ChainBounds(first, second) for first in halves[0] for second in halves[1]]

    def _pairs(self, terms: _Terms) -> list[Steps]:
        """Returns the pairs of every direction, and how many there are of each."""
        if self._group_size == 1:
            found = [(PAIRS[type(m)](m), n) for m, n in terms]
        else:
            found = [(GROUP_PAIRS[type(m)](m, self._group_size), n) for m, n in terms]
        return directions(found)


def _remembering(renyi: Renyi) -> Renyi:
    """Returns the same function, which computes nothing twice for the same vector of orders."""
    known: dict[bytes, np.ndarray] = {}

    def remembering(orders: np.ndarray) -> np.ndarray:
        key = orders.tobytes()
        if key not in known:
            known[key] = renyi(orders)
        return known[key]

    return remembering
