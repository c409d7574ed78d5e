"""Accounting by Renyi differential privacy (Mironov 2017, arXiv:1702.07476)."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.mechanisms import (
    DEARER,
    AllocatedGaussian,
    BestOfPoissonRuns,
    BestOfPureRuns,
    BestOfRuns,
    BoundedRange,
    Concentrated,
    FixedSizeGaussian,
    PureEpsilon,
    RandomizedResponse,
    RemoveThenAdd,
    Run,
    SampledGaussian,
    SampledLaplace,
    SkellamNoise,
    TruncatedGaussian,
    WorstPart,
)
from tfdp.accounting.normal_form import NormalForm
from tfdp.accounting.renyi.allocation import allocated_gaussian_curve
from tfdp.accounting.renyi.conversion import delta_of_log_odds, epsilon_at_order, log_odds_of_delta
from tfdp.accounting.renyi.fixed_size import fixed_size_gaussian_curve
from tfdp.accounting.renyi.gaussian import sampled_gaussian_curve
from tfdp.accounting.renyi.group import check_group_size, group_rdp
from tfdp.accounting.renyi.pure import (
    bounded_range_curve,
    pure_epsilon_curve,
    randomized_response_curve,
    rdp_pure_epsilon,
    sampled_laplace_curve,
)
from tfdp.accounting.renyi.search import minimize_over_orders
from tfdp.accounting.renyi.selected_runs import best_of_poisson_runs, best_of_runs
from tfdp.accounting.renyi.skellam import skellam_curve
from tfdp.accounting.renyi.truncated import truncated_gaussian_curve
from tfdp.events import Event, UnsupportedEventError
from tfdp.events.arguments import real_number, several
from tfdp.events.protection import Protection

_Curve = Callable[[np.ndarray], np.ndarray]
_Terms = Sequence[tuple[Any, int]]

# Of more terms than this, a part tells where the search for the best order begins.
_MANY_TERMS, _SAMPLE = 512, 128
# Of finite orders, to which divergences are computed; no search goes further.
_LARGEST_ORDER = 1e15


def _remove_then_add_curve(mechanisms: Sequence[RemoveThenAdd], counts: np.ndarray) -> _Curve:
    return group_rdp(
        renyi_curve([(m.mechanism, n) for m, n in zip(mechanisms, counts, strict=True)]), 2
    )


def _dearest(runs: Sequence[Run]) -> _Curve:
    """Returns the divergence of the dearest run, at every order."""
    curves = [renyi_curve(run) for run in runs]
    return lambda orders: np.max([curve(orders) for curve in curves], axis=0)


def _added(one: Callable[[Any], _Curve]) -> Callable[[Sequence[Any], np.ndarray], _Curve]:
    """Returns a pricing function from one mechanism's divergence."""

    def total(mechanisms: Sequence[Any], counts: np.ndarray) -> _Curve:
        curves = [one(mechanism) for mechanism in mechanisms]
        return lambda orders: counts @ np.array([curve(orders) for curve in curves])

    return total


def _concentrated_curve(mechanisms: Sequence[Concentrated], counts: np.ndarray) -> _Curve:
    rho = counts @ np.array([mechanism.rho for mechanism in mechanisms])
    return lambda orders: rho * orders


def _best_of_runs(mechanism: BestOfRuns) -> _Curve:
    return best_of_runs(_dearest(mechanism.runs), mechanism.shape, mechanism.success_probability)


def _best_of_pure_runs(mechanism: BestOfPureRuns) -> _Curve:
    best = _best_of_runs(mechanism.best)
    epsilon = DEARER[BestOfPureRuns](mechanism).epsilon  # type: ignore[attr-defined]
    return lambda orders: np.minimum(best(orders), rdp_pure_epsilon(epsilon, orders))


def _best_of_poisson_runs(mechanism: BestOfPoissonRuns) -> _Curve:
    return best_of_poisson_runs(_dearest(mechanism.runs), mechanism.mean_runs)


def _worst_part(mechanism: WorstPart) -> _Curve:
    return _dearest([tuple((each, 1) for each in part) for part in mechanism.parts])


def renyi_curve(terms: _Terms) -> _Curve:
    """Returns the total divergence of mechanisms with their counts, as a function of orders.

    Args:
        terms: (mechanism, count), of any types of `RDPAccountant.prices`.
    """
    curves = []
    by_type = sorted(terms, key=lambda term: type(term[0]).__name__)
    for kind, group in itertools.groupby(by_type, key=lambda term: type(term[0])):
        mechanisms, counts = zip(*group, strict=True)
        curves.append(RDPAccountant.prices[kind](mechanisms, np.array(counts, dtype=np.float64)))
    return lambda orders: np.sum([curve(orders) for curve in curves], axis=0)


class RDPAccountant(Accountant):
    """Adds up Renyi divergences, and gives the epsilon of the best of all orders above one.

    Guarantees:
        Divergences are exact at every order, up to rounding. Those of `FixedSizeGaussian` and
        `RemoveThenAdd` are upper bounds. Epsilon is an upper bound at whatever order; the search
        finds the best order up to a relative 1e-6 of epsilon. The conversion to epsilon is the best
        possible one that looks at one order only. It loses 7 to 30 % against privacy loss
        distributions.

    Args:
        orders: The only orders to look at, all above 1, whole or not, up to 1e15, or infinite; None
            for all finite ones.
        group_size: Epsilon and delta are for data sets that are so many neighbours apart.

    Raises:
        ValueError: there are no orders, or one is not above 1 or too large; group_size is below 1
            or above 1000.
        TypeError: an order is not a number, or group_size not an integer.

    Example:
        >>> from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
        >>> step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, noise_stddev=4.0))
        >>> round(RDPAccountant().compose(step, count=10_000).get_epsilon(1e-5), 3)
        1.035
    """

    takes_many_kinds = True
    prices = {
        AllocatedGaussian: allocated_gaussian_curve,
        BestOfPoissonRuns: _added(_best_of_poisson_runs),
        BestOfPureRuns: _added(_best_of_pure_runs),
        BestOfRuns: _added(_best_of_runs),
        BoundedRange: bounded_range_curve,
        Concentrated: _concentrated_curve,
        FixedSizeGaussian: fixed_size_gaussian_curve,
        PureEpsilon: pure_epsilon_curve,
        RandomizedResponse: randomized_response_curve,
        RemoveThenAdd: _remove_then_add_curve,
        SampledGaussian: sampled_gaussian_curve,
        SampledLaplace: sampled_laplace_curve,
        SkellamNoise: skellam_curve,
        WorstPart: _added(_worst_part),
        TruncatedGaussian: truncated_gaussian_curve,
    }

    def __init__(self, orders: Iterable[float] | None = None, *, group_size: int = 1):
        super().__init__()
        self._group_size = self._apart = check_group_size(group_size)
        self._orders: np.ndarray | None = None
        if orders is not None:
            checked = _checked(orders)
            if not len(checked):
                raise ValueError(
                    f"orders must hold at least one order above 1. Received: orders={orders!r}."
                )
            self._orders = checked
        self._total: tuple[_Terms, _Curve] | None
        self._forget()

    def _forget(self) -> None:
        self._total = None

    def __repr__(self) -> str:
        orders = None if self._orders is None else self._orders.tolist()
        return f"RDPAccountant(orders={orders}, group_size={self._group_size})"

    @property
    def orders(self) -> np.ndarray | None:
        """Float64 vector of the only orders that are looked at, or None."""
        return None if self._orders is None else self._orders.copy()

    def get_rdp(self, orders: Iterable[float]) -> np.ndarray:
        """Returns, at every order, the divergence of everything composed so far.

        Args:
            orders: Above 1, whole or not, up to 1e15. At infinity it is the epsilon at delta zero.

        Returns:
            Float64 vector as long as `orders`; infinite where something has no privacy, a delta of
            its own, or a probability of failure (truncated samples, discrete noise).

        Raises:
            ValueError: an order is not above 1, or finite and above 1e15.
            TypeError: an order is not a number.
        """
        checked = _checked(orders)
        if self._is_non_private() or self._fails():
            return np.full(checked.shape, np.inf)
        return self._divergence(checked) if self._terms() else np.zeros(checked.shape)

    def get_optimal_order(self, target_delta: float) -> float:
        """Returns the order that `get_epsilon` takes where no event has a failure probability.

        Raises:
            ValueError: nothing was composed, or nothing private, or `target_delta` is not between 0
                and 1.
        """
        delta = real_number("target_delta", target_delta, minimum=0, inclusive=False, maximum=1)
        if delta == 1:
            raise ValueError(f"target_delta must be below 1. Received: {target_delta=}.")
        if not self._terms() or self._is_non_private():
            raise ValueError("No order is the best of nothing, nor where there is no privacy.")
        return self._best(lambda a, rdp: epsilon_at_order(a, rdp, delta), inverse=True)[0]

    def _check(self, event: Event) -> tuple[NormalForm, Protection | None]:
        form, common = super()._check(event)
        fails = form.failure_probability + form.lost_probability > 0
        if fails and self._group_size > 1:
            raise UnsupportedEventError(
                "Truncated samples, discrete noise and a delta of a release's own are not "
                "supported for groups. Received: "
                f"group_size={self._group_size}, event={event!r}."
            )
        return form, common

    def _divergence(self, orders: np.ndarray) -> np.ndarray:
        terms = self._terms()
        if self._total is None or self._total[0] is not terms:
            self._total = (terms, group_rdp(renyi_curve(terms), self._group_size))
        finite = np.isfinite(orders)
        if finite.all():
            return self._total[1](orders)
        # At the order infinity the divergence is the largest loss there is.
        found = np.full(orders.shape, self._pure_epsilon())
        if finite.any():
            found[finite] = self._total[1](orders[finite])
        return found

    def _best(
        self, value: Callable[[float, float], float], *, inverse: bool
    ) -> tuple[float, float]:
        """Returns the best order and the smallest `value(order, divergence)`."""
        if self._orders is not None:
            values = _values(self._divergence, value)(self._orders)
            return float(self._orders[np.argmin(values)]), float(np.min(values))
        terms, first = self._terms(), {}
        if len(terms) > _MANY_TERMS:
            part = group_rdp(renyi_curve(_sample(terms)), self._group_size)
            order, _ = minimize_over_orders(_values(part, value), inverse=inverse)
            first = {"first": order, "factor": 1.15}
        return minimize_over_orders(_values(self._divergence, value), inverse=inverse, **first)

    def _most_epsilon(self) -> float:
        # All orders include infinity, to which no search goes.
        return super()._most_epsilon() if self._orders is None else math.inf

    def _epsilon(self, delta: float) -> float:
        return self._best(lambda a, rdp: epsilon_at_order(a, rdp, delta), inverse=True)[1]

    def _delta(self, epsilon: float) -> float:
        best = self._best(lambda a, rdp: log_odds_of_delta(a, rdp, epsilon), inverse=False)
        return delta_of_log_odds(best[1])


def epsilon_of_curve(curve: _Curve, delta: float) -> float:
    """Returns the smallest epsilon that a curve of divergences has at this delta."""
    values = _values(curve, lambda a, rdp: epsilon_at_order(a, rdp, delta))
    return minimize_over_orders(values, inverse=True)[1]


def delta_of_curve(curve: _Curve, epsilon: float) -> float:
    """Returns the smallest delta that a curve of divergences has at this epsilon."""
    values = _values(curve, lambda a, rdp: log_odds_of_delta(a, rdp, epsilon))
    return delta_of_log_odds(minimize_over_orders(values, inverse=False)[1])


def _checked(orders: Iterable[float]) -> np.ndarray:
    return np.array(
        [
            order
            if isinstance(order, float) and order == math.inf
            else real_number("orders", order, minimum=1, inclusive=False, maximum=_LARGEST_ORDER)
            for order in several("orders", orders)
        ],
        np.float64,
    )


def _values(
    curve: _Curve, value: Callable[[float, float], float]
) -> Callable[[np.ndarray], np.ndarray]:
    def values(orders: np.ndarray) -> np.ndarray:
        pairs = zip(orders.tolist(), curve(orders).tolist(), strict=True)
        return np.array([value(a, rdp) for a, rdp in pairs])

    return values


def _sample(terms: _Terms) -> _Terms:
    """Returns some of the terms, with the counts of all."""
    edges = np.linspace(0, len(terms), _SAMPLE + 1).astype(int).tolist()
    return [
        (terms[(start + stop) // 2][0], sum(count for _, count in terms[start:stop]))
        for start, stop in itertools.pairwise(edges)
    ]
