"""Noise for a target risk: closed forms, published software's numbers, and what is refused."""

import dataclasses

import numpy as np
import pytest
from scipy import special

from tfdp.accounting.analytic_gaussian import gaussian_delta
from tfdp.accounting.planning.calibration import UnreachableBudgetError
from tfdp.accounting.planning.risk import largest_true_positive_rate, noise_for_risk, risk_of
from tfdp.events import NeighboringRelation

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


class Nothing:
    """An accountant without deltas."""

    def compose(self, event, count=1):
        pass

    def get_epsilon(self, target_delta):
        return 0.0


class Everything(Nothing):
    """An accountant for which no noise is enough."""

    def get_delta(self, target_epsilon):
        return 1.0


WHOLE = {"population_size": 1000, "batch_size": 1000, "steps": 4}
# Target -> noise multiplier that riskcal 1.5.1 finds: find_noise_multiplier_for_advantage_dpsgd and
# ..._for_err_rates_dpsgd (alpha the FPR, beta 1 - TPR), 2000 steps at sampling rate 0.01, to 1e-6.
RISKCAL = [
    ({"advantage": 0.05}, 3.632769),
    ({"advantage": 0.2}, 1.090198),
    ({"true_positive_rate": 0.05, "false_positive_rate": 0.01}, 0.924128),
    ({"true_positive_rate": 0.01, "false_positive_rate": 0.001}, 0.871383),
]
RUN = {"population_size": 60_000, "batch_size": 600, "steps": 2000, "neighboring_relation": ADD}


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_bound_is_the_curve_of_a_gaussian(mu):
    for rate in (1e-6, 1e-3, 0.01, 0.3, 0.5, 0.9, 0.999):
        found = largest_true_positive_rate(lambda e, mu=mu: gaussian_delta(mu, e), rate)
        exact = special.ndtr(special.ndtri(rate) + mu)
        # No lower than the truth, and hardly above it.
        assert exact * (1 - 1e-9) <= found <= exact * (1 + 2e-4) + 1e-7


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_without_false_positives_a_gaussian_shows_nothing(mu):
    assert largest_true_positive_rate(lambda e: gaussian_delta(mu, e), 0.0) < 1e-12


def test_bound_of_nothing_and_of_everything():
    for rate in (0.0, 0.01, 1.0):
        assert largest_true_positive_rate(lambda epsilon: 0.0, rate) == pytest.approx(rate)
        assert largest_true_positive_rate(lambda epsilon: 1.0, rate) == 1.0
    # With (0, delta) at every epsilon, without false alarms delta of the members are found.
    assert largest_true_positive_rate(lambda epsilon: 0.2, 0.0) == pytest.approx(0.2)


def test_noise_of_sums_of_everybody_is_that_of_a_gaussian():
    # mu = sqrt(4) / z: advantage 2 Phi(mu / 2) - 1, and TPR Phi(Phi^-1(alpha) + mu).
    plan = noise_for_risk(advantage=0.3, **WHOLE)
    assert plan.noise_multiplier == pytest.approx(1 / special.ndtri(0.65), rel=1e-3)
    plan = noise_for_risk(true_positive_rate=0.05, false_positive_rate=0.01, **WHOLE)
    mu = special.ndtri(0.05) - special.ndtri(0.01)
    assert plan.noise_multiplier == pytest.approx(2 / mu, rel=1e-3)


def test_noise_is_that_of_riskcal():
    for target, expected in RISKCAL:
        plan = noise_for_risk(**target, **RUN)
        assert plan.noise_multiplier == pytest.approx(expected, rel=0.01)


def test_target_is_kept_and_hardly_missed():
    for target, rate in (
        ({"advantage": 0.1}, None),
        ({"true_positive_rate": 0.05, "false_positive_rate": 0.01}, 0.01),
    ):
        plan = noise_for_risk(**target, **RUN)
        least = target.get("true_positive_rate", target.get("advantage"))
        assert risk_of(plan, rate) <= least
        less = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * 0.998)
        assert risk_of(less, rate) > least


def test_epochs_accountants_and_samplings():
    target = {"advantage": 0.2, "population_size": 60_000, "batch_size": 600}
    by_epochs = noise_for_risk(epochs=20, **target)
    assert by_epochs == noise_for_risk(steps=2000, **target)
    looser = noise_for_risk(steps=2000, accountant="rdp", **target)
    assert looser.noise_multiplier > by_epochs.noise_multiplier
    shuffled = noise_for_risk(epochs=4, sampling="shuffled", **target)
    assert shuffled.noise_multiplier == pytest.approx(1 / special.ndtri(0.6), rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({}, ValueError, "either advantage"),
        ({"advantage": 0.1, "true_positive_rate": 0.1}, ValueError, "either advantage"),
        ({"true_positive_rate": 0.1}, ValueError, "either advantage"),
        ({"false_positive_rate": 0.1}, ValueError, "either advantage"),
        ({"advantage": 0.0}, ValueError, "advantage must"),
        ({"advantage": 1.0}, ValueError, "advantage must"),
        ({"true_positive_rate": 0.1, "false_positive_rate": 0.1}, ValueError, "guessing"),
        ({"advantage": 0.1, "epochs": 2.0}, ValueError, "steps or epochs"),
        ({"advantage": 0.1, "batch_size": 1, "steps": 1}, UnreachableBudgetError, "sampling"),
        ({"advantage": 0.1, "accountant": Nothing}, TypeError, "get_delta"),
        ({"advantage": 0.1, "accountant": Everything}, UnreachableBudgetError, "No noise .* 1"),
    ],
)
def test_what_cannot_be_found_is_refused(changes, error, text):
    with pytest.raises(error, match=text):
        noise_for_risk(**{**RUN, **changes})


def test_more_noise_is_less_risk():
    plan = noise_for_risk(advantage=0.1, **RUN)
    noise = plan.noise_multiplier * np.geomspace(0.5, 2, 5)
    plans = [dataclasses.replace(plan, noise_multiplier=z) for z in noise]
    for rate in (None, 0.01):
        assert np.all(np.diff([risk_of(p, rate) for p in plans]) < 0)
