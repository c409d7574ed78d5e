"""tfdp.accounting.monte_carlo: bounds that hold as often as they say, and who takes them."""

import math

import numpy as np
import pytest
from scipy import stats

from tfdp.accounting import (
    MonteCarloAccountant,
    PRVAccountant,
    RDPAccountant,
    calibrate,
    calibrate_correlated,
    make_accountant,
    noise_for_risk,
)
from tfdp.accounting.analytic_gaussian import gaussian_delta
from tfdp.accounting.monte_carlo import _GRID, mean_bound
from tfdp.accounting.planning.budget import Budget
from tfdp.accounting.registry import DEFAULT_ACCOUNTANT
from tfdp.events import (
    CorrelatedGaussianSumEvent,
    GaussianSumEvent,
    IntegerGaussianSumEvent,
    MinSeparationSampling,
    NeighboringRelation,
    PoissonSampling,
    RandomAllocationSampling,
    SampledEvent,
    UnsupportedEventError,
)
from tfdp.factorizations import banded_square_root
from tfdp.ledger import PrivacyLedger

ADD, REPLACE, ZERO = NeighboringRelation
POISSON = SampledEvent(PoissonSampling(0.1), GaussianSumEvent(1.0, 1.5), ZERO)
DRAWS = 200_000


def _run(n, b, p, noise, relation=ZERO):
    numerator = banded_square_root(b).numerator
    sampling = MinSeparationSampling(p, b, n)
    return [
        SampledEvent(
            sampling,
            CorrelatedGaussianSumEvent(1.0, noise, numerator, (1.0,), n, b, i, 1),
            relation,
        )
        for i in range(n)
    ]


def _composed(accountant, *pairs):
    for event, count in pairs:
        accountant.compose(event, count)
    return accountant


@pytest.mark.parametrize("mean", [0.0, 1e-3, 0.3, 1 - 2.0**-53, 1.0])
def test_bounds_of_means_are_the_roots_of_the_divergence(mean):
    risk = math.log(1e-4)
    for upper in (False, True):
        bound = mean_bound(mean, 5000, risk, upper)
        assert (bound >= mean) if upper else (bound <= mean)
        if 0 < bound < 1:
            divergence = stats.entropy([mean, 1 - mean], [bound, 1 - bound])
            assert divergence == pytest.approx(-risk / 5000, rel=1e-6)
    # Of nothing that was ever drawn: (1 - bound)^draws = risk.
    assert mean_bound(0.0, 5000, risk, True) == pytest.approx(-math.expm1(risk / 5000), rel=1e-6)


def test_bounds_hold_as_often_as_they_say():
    # Of a Gaussian with a delta that is known; all epsilons of the grid at once.
    epsilons = _GRID[(_GRID > 0.2) & (_GRID < 4)][::25]
    true = np.array([gaussian_delta(1.0, epsilon) for epsilon in epsilons])
    failed, beyond = 0, 0
    for seed in range(150):
        accountant = MonteCarloAccountant(2000, 0.5, seed=seed).compose(GaussianSumEvent(1.0, 1.0))
        intervals = [accountant.get_delta_interval(epsilon) for epsilon in epsilons]
        failed += any(not i.lower <= d <= i.upper for i, d in zip(intervals, true, strict=True))
        beyond += any(i.estimate < d for i, d in zip(intervals, true, strict=True))
    assert failed < 20  # The risk is shared out over far more epsilons than these.
    # Estimates are no bounds: the test would see ones that do not hold.
    assert beyond > 75


@pytest.mark.parametrize(
    ("event", "count"),
    [
        (POISSON, 10),
        (SampledEvent(RandomAllocationSampling(10), GaussianSumEvent(1.0, 1.0), ZERO), 20),
        (GaussianSumEvent(1.0, 1.5), 2),
    ],
)
def test_agrees_with_what_is_computed(event, count):
    computed = _composed(PRVAccountant(), (event, count))
    drawn = _composed(MonteCarloAccountant(DRAWS), (event, count))
    for epsilon in (0.3, 0.8, 1.5):
        lower, estimate, upper = drawn.get_delta_interval(epsilon)
        delta = computed.get_delta(epsilon)
        assert lower <= delta * (1 + 1e-3) and delta <= upper
        assert upper < 1.3 * estimate + 3e-4
    assert drawn.get_epsilon(1e-2) >= computed.get_epsilon(1e-2) * (1 - 1e-3)
    assert drawn.get_epsilon(1e-2) < 1.1 * computed.get_epsilon(1e-2)


def test_separated_by_one_step_is_poisson():
    separated = SampledEvent(MinSeparationSampling(0.1, 1, 10), GaussianSumEvent(1.0, 1.5), ZERO)
    drawn = _composed(MonteCarloAccountant(DRAWS), (separated, 10))
    computed = _composed(PRVAccountant(), (POISSON, 10))
    for epsilon in (0.3, 0.8, 1.5):
        lower, _, upper = drawn.get_delta_interval(epsilon)
        assert lower <= computed.get_delta(epsilon) * (1 + 1e-3) <= upper * (1 + 1e-3)


def test_a_run_on_separated_samples_is_amplified_and_its_claim_is_not_below_the_truth():
    run = [(event, 1) for event in _run(24, 4, 0.1, 1.0)]
    drawn, unamplified = _composed(MonteCarloAccountant(DRAWS), *run), PRVAccountant()
    _composed(unamplified, *run)
    lower, _, upper = drawn.get_delta_interval(1.0)
    assert upper < 0.6 * unamplified.get_delta(1.0)
    # With two thirds of the noise it is another mechanism, and the draws say so.
    less = _composed(MonteCarloAccountant(DRAWS), *((e, 1) for e in _run(24, 4, 0.1, 2 / 3)))
    assert less.get_delta_interval(1.0).lower > upper
    # Under REPLACE_ONE nothing is amplified.
    replaced = [(event, 1) for event in _run(24, 4, 0.1, 1.0, REPLACE)]
    drawn, computed = _composed(MonteCarloAccountant(DRAWS), *replaced), PRVAccountant()
    delta = _composed(computed, *replaced).get_delta(3.0)
    assert drawn.get_delta_interval(3.0).lower <= delta <= drawn.get_delta(3.0)


def test_the_same_events_have_the_same_answer():
    one = _composed(MonteCarloAccountant(1000), (POISSON, 3))
    again = _composed(MonteCarloAccountant(1000), (POISSON, 1), (POISSON, 2))
    assert one.get_delta(0.5) == again.get_delta(0.5) == one.get_delta(0.5)
    other = _composed(MonteCarloAccountant(1000, seed=1), (POISSON, 3))
    assert other.get_delta(0.5) != one.get_delta(0.5)


def test_epsilon_falls_with_delta_and_is_infinite_where_draws_say_nothing():
    accountant = _composed(MonteCarloAccountant(10_000), (POISSON, 5))
    found = [accountant.get_epsilon(delta) for delta in (0.3, 0.1, 0.03, 0.01)]
    assert found == sorted(found) and all(epsilon in _GRID for epsilon in found)
    assert accountant.get_delta(found[-1]) <= 0.01 < accountant.get_delta(found[-1] * 0.99)
    least = mean_bound(0.0, 10_000, accountant._log_risk, True)
    assert accountant.get_epsilon(least * 0.99) == math.inf
    assert accountant.get_delta(1e6) == pytest.approx(least)
    # From zero on there are bounds: where delta allows for all, epsilon is zero.
    interval = accountant.get_delta_interval(0.0)
    assert interval.lower < interval.estimate < interval.upper
    assert accountant.get_epsilon(interval.upper) == 0.0 < accountant.get_epsilon(interval.estimate)


@pytest.mark.parametrize("loss", [-1e6, 0.0, 1e-3, 1e6])
def test_losses_are_charged_with_what_rounding_may_take(loss, monkeypatch):
    def drawn(mechanism, count, number, removed, generator):
        return np.full(number, loss)

    monkeypatch.setattr("tfdp.accounting.monte_carlo.draw_losses", drawn)
    accountant = _composed(MonteCarloAccountant(5), (POISSON, 1))
    for losses in accountant._losses():
        assert np.all(losses - loss >= 0.99e-9 * (1 + abs(loss)))


def test_of_nothing_and_of_no_noise_nothing_is_drawn():
    accountant = MonteCarloAccountant(10)
    assert accountant.get_delta_interval(1.0) == (0, 0, 0)
    accountant.compose(GaussianSumEvent(1.0, 0.0))
    assert accountant.get_delta_interval(1.0) == (1, 1, 1)
    assert accountant.get_epsilon(0.1) == math.inf and accountant.get_delta(1.0) == 1


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(UnsupportedEventError, match="MonteCarloAccountant cannot price"):
        MonteCarloAccountant(10).compose(IntegerGaussianSumEvent(1.0, 2.0))
    with pytest.raises(UnsupportedEventError, match=r"2e\+15 numbers would have to be drawn"):
        _composed(MonteCarloAccountant(10**6), (POISSON, 10**9)).get_epsilon(1e-3)
    for wrong in ({"num_samples": 0}, {"confidence": 1.0}, {"confidence": 0.0}, {"seed": -1}):
        with pytest.raises(ValueError, match="must be"):
            MonteCarloAccountant(**wrong)


def test_is_never_the_default_and_stops_nothing():
    assert DEFAULT_ACCOUNTANT != "monte_carlo"
    assert make_accountant("monte_carlo").confidence == 1 - 1e-6
    assert RDPAccountant().confidence is None
    for choice in ("monte_carlo", MonteCarloAccountant, MonteCarloAccountant(10)):
        with pytest.raises(ValueError, match="need proven bounds"):
            Budget(1.0, 1e-5, choice)
    plan = {"population_size": 1000, "batch_size": 10, "steps": 10, "target_delta": 1e-5}
    budget = {**plan, "target_epsilon": 1.0, "accountant": "monte_carlo"}
    for search in (
        lambda: calibrate(**budget),
        lambda: calibrate_correlated(**budget, mechanism="bandmf", bands=2),
        lambda: PrivacyLedger().remaining(1.0, 1e-5, event=POISSON, accountant="monte_carlo"),
        lambda: noise_for_risk(
            population_size=1000, batch_size=10, steps=10, advantage=0.5, accountant="monte_carlo"
        ),
    ):
        with pytest.raises(ValueError, match="need proven bounds"):
            search()


def test_a_callback_that_stops_training_refuses_it():
    from tfdp.keras import PrivacyBudget

    with pytest.raises(ValueError, match="need proven bounds"):
        PrivacyBudget(1.0, 1e-5, accountant="monte_carlo")
