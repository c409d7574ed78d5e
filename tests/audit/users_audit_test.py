"""What `fit` releases of users of several rows costs as much as its ledger claims for a user.

A canary is a user with three rows. Each row alone is as long as the clip norm allows many times
over, so an implementation that clips rows moves the sum three times as far as it says.
"""

import math

import numpy as np
import pytest
from canaries import DELTA, Run, always, bracket, events_of, mu_shown, sampled, shown

import tfdp
from tfdp.accounting import GDPAccountant, PRVAccountant
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.events import NeighboringRelation
from tfdp.keras import step
from tfdp.sampling import FullBatch, Poisson

ADD, ZERO = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.ZERO_OUT
ROWS = 3
SMALL_DELTA = 1e-5
UNIT = {"optimizer": {"privacy_unit": "user"}, "canaries": 3000, "epochs": 8}


def of_users(run, gradient, batch_size=None):
    """Returns what `Run.trials` does, where every canary is a user with so many rows."""
    canary, sign = (np.repeat(part, ROWS) for part in run.records())
    order = np.random.default_rng(0).permutation(len(canary))  # Rows of users are not together.
    given = {
        "privacy_unit": canary[order],
        "max_examples_per_user": ROWS,
        "user_gradient": gradient,
    }
    if batch_size is not None:
        given["batch_size"] = batch_size
    sums, ledger = run.fit((canary[order], sign[order]), **given)
    sums = np.moveaxis(sums, 1, 2)
    return *(sums[:, i::2].reshape(-1, run.steps) for i in (0, 1)), ledger


def claimed(ledger, steps):
    accountant = GDPAccountant()
    for event in events_of(ledger, steps):
        assert event.privacy_unit == "user"
        accountant.compose(event)
    return accountant.get_epsilon(SMALL_DELTA)


# The noise multiplier is sqrt(2) / 2: mu of a user is 2 in two steps.
EVERYBODY = Run(FullBatch(neighboring_relation=ADD), "absent", math.sqrt(0.5), steps=2, **UNIT)


@pytest.mark.parametrize("gradient", ["mean", "sum"])
def test_users_cost_what_is_claimed(gradient):
    with_user, without, ledger = of_users(EVERYBODY, gradient)
    says = claimed(ledger, 2)
    assert says == pytest.approx(gaussian_epsilon(2.0, SMALL_DELTA))
    assert says / 2 <= gaussian_epsilon(mu_shown(with_user, without), SMALL_DELTA) <= says
    assert (
        shown(with_user, without, always, EVERYBODY.stddev) <= bracket(events_of(ledger, 2)).lower
    )


def test_sampled_users_cost_what_is_claimed():
    run = Run(Poisson(neighboring_relation=ZERO), "zero", 0.5, steps=2, **UNIT)
    with_user, without, ledger = of_users(run, "sum", run.canaries // 2)
    upper = bracket(events_of(ledger, 2)).upper
    proven = shown(with_user, without, sampled(0.5, "zero"), run.stddev)
    assert 0.4 * upper <= proven <= upper


def test_rows_clipped_one_by_one_cost_more_than_is_claimed(monkeypatch):
    def of_rows(*args, examples_per_record, **kwargs):
        return tfdp.clipped_gradient_sum(*args, **kwargs)

    monkeypatch.setattr(step, "clipped_gradient_sum", of_rows)
    with_user, without, ledger = of_users(EVERYBODY, "mean")
    assert claimed(ledger, 2) == pytest.approx(gaussian_epsilon(2.0, SMALL_DELTA))
    # Three clipped rows instead of one user: mu is 6, of which so many draws show 4.7 to 5.1.
    assert mu_shown(with_user, without) > 4.0


def test_rows_that_are_sampled_one_by_one_cost_a_user_more_than_a_row():
    """What is claimed for rows does not hold for users of several; what is for groups does."""
    run = Run(Poisson(neighboring_relation=ZERO), "zero", 0.5, steps=2, canaries=3000, epochs=8)
    canary, sign = (np.repeat(part, ROWS) for part in run.records())
    sums, ledger = run.fit((canary, sign), batch_size=len(canary) // 2)
    sums = np.moveaxis(sums, 1, 2)
    with_user, without = (sums[:, i::2].reshape(-1, run.steps) for i in (0, 1))
    proven = shown(with_user, without, always, run.stddev)
    assert proven > bracket(events_of(ledger, 2)).upper
    of_group = PRVAccountant(group_size=ROWS)
    for event in events_of(ledger, 2):
        of_group.compose(event)
    assert proven <= of_group.get_epsilon(DELTA)
