"""tfdp.accounting.planning.correlated_plan: noise of runs against closed forms and ledgers."""

import dataclasses
import math

import numpy as np
import pytest

from tfdp.accounting import PRVAccountant, calibrate_correlated, noise_for_budget
from tfdp.accounting.planning.calibration import UnreachableBudgetError
from tfdp.events import GaussianSumEvent, NeighboringRelation
from tfdp.factorizations import BinaryTree, optimal_banded
from tfdp.ledger import PrivacyLedger
from tfdp.sampling import CyclicPoisson, FixedOrder

RUN = {"target_delta": 1e-5, "population_size": 1000, "batch_size": 50}
MECHANISMS = [("bandmf", 4), ("bisr", 4), ("blt", 3), ("lambda_cgd", None), ("tree", None)]


def _of_gaussian(sensitivity, z):
    return PRVAccountant().compose(GaussianSumEvent(sensitivity, z)).get_epsilon(1e-5)


@pytest.mark.parametrize(("mechanism", "bands"), MECHANISMS)
def test_noise_in_a_fixed_order_is_that_of_one_gaussian(mechanism, bands):
    plan = calibrate_correlated(
        **RUN, target_epsilon=3.0, mechanism=mechanism, bands=bands, epochs=3
    )
    assert (plan.steps, plan.period) == (60, 20)
    assert 0.998 * 3 < plan.epsilon(1e-5) <= 3.0
    sensitivity = plan.factorization.sensitivity(60, 20)
    assert plan.epsilon(1e-5) == pytest.approx(_of_gaussian(sensitivity, plan.noise_multiplier))
    less = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * 0.998)
    assert less.epsilon(1e-5) > 3.0


@pytest.mark.parametrize("mechanism", ["bandmf", "tree"])
def test_all_steps_of_the_plan_cost_what_it_says(mechanism):
    bands = 4 if mechanism == "bandmf" else None
    plan = calibrate_correlated(
        **RUN, target_epsilon=3.0, mechanism=mechanism, bands=bands, epochs=2
    )
    ledger = PrivacyLedger()
    for i in range(plan.steps):
        first = plan.event()
        sampling = dataclasses.replace(first.sampling, batch_index=i % plan.period)
        release = dataclasses.replace(first.event, position=i)
        ledger.append(dataclasses.replace(first, sampling=sampling, event=release))
    assert ledger.replay(PRVAccountant()).get_epsilon(1e-5) == pytest.approx(plan.epsilon(1e-5))


def test_one_band_in_one_group_is_dp_sgd():
    plan = calibrate_correlated(
        **RUN,
        target_epsilon=3.0,
        mechanism="bandmf",
        bands=1,
        steps=100,
        sampling="cyclic_poisson",
    )
    expected = noise_for_budget(3.0, 1e-5, population_size=1000, batch_size=50, steps=100)
    assert plan.noise_multiplier == pytest.approx(expected, rel=2e-3)
    assert plan.error("max") == pytest.approx(plan.noise_multiplier * 10 / 50)


def test_random_groups_need_less_noise_than_a_fixed_order():
    arguments = {**RUN, "target_epsilon": 1.0, "mechanism": "bandmf", "bands": 4, "steps": 100}
    ordered = calibrate_correlated(**arguments)
    groups = calibrate_correlated(**arguments, sampling="cyclic_poisson")
    assert groups.period == 4 and groups.factorization == optimal_banded(100, 4)
    assert groups.error() < ordered.error()


@pytest.mark.parametrize(("batch_size", "bands"), [(50, 4), (50, 3), (70, 3), (1000, 1), (30, 7)])
def test_epochs_are_as_fit_counts_them(batch_size, bands):
    arguments = {**RUN, "batch_size": batch_size, "noise_multiplier": 1.0, "epochs": 3}
    plan = calibrate_correlated(
        **arguments, mechanism="bandmf", bands=bands, sampling="cyclic_poisson"
    )
    policy = CyclicPoisson(bands).resolve(1000, batch_size)
    assert plan.steps == 3 * policy.steps_per_epoch
    ordered = calibrate_correlated(**arguments, mechanism="bandmf", bands=1)
    assert ordered.steps == 3 * FixedOrder(batch_size, 1000).steps_per_epoch


def test_plan_supposes_the_samples_that_fit_draws():
    plan = calibrate_correlated(
        **RUN, noise_multiplier=2.0, mechanism="bandmf", bands=4, steps=100,
        sampling="cyclic_poisson",
    )  # fmt: skip
    policy = CyclicPoisson(plan.period).resolve(RUN["population_size"], RUN["batch_size"])
    assert plan.event().sampling == policy.description(0)
    ordered = calibrate_correlated(
        **RUN, noise_multiplier=2.0, mechanism="bandmf", bands=4, steps=100
    )
    policy = FixedOrder().resolve(RUN["population_size"], RUN["batch_size"])
    assert ordered.event().sampling == policy.description(0)


def test_epsilon_of_given_noise():
    plan = calibrate_correlated(**RUN, noise_multiplier=2.0, mechanism="tree", epochs=1)
    assert plan.epsilon(1e-5) == pytest.approx(_of_gaussian(math.sqrt(5), 2.0))
    assert plan.error("max") == pytest.approx(
        2.0 * BinaryTree().max_error(20) / math.sqrt(5) / 50, rel=1e-9
    )
    replaced = dataclasses.replace(plan, neighboring_relation=NeighboringRelation.REPLACE_ONE)
    assert replaced.epsilon(1e-5) == pytest.approx(_of_gaussian(2 * math.sqrt(5), 2.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": "banded"}, "mechanism must be one of"),
        ({"bands": None}, "needs bands"),
        ({"mechanism": "tree"}, "has no bands"),
        ({"mechanism": "lambda_cgd"}, "has no bands"),
        ({"bands": 0}, "bands"),
        ({"mechanism": "bisr", "sampling": "cyclic_poisson"}, "amplify banded noise only"),
        ({"sampling": "poisson"}, "sampling must be one of"),
        ({"groups": 3}, "groups are those of"),
        ({"sampling": "cyclic_poisson", "groups": 3}, "no more bands"),
        ({"noise_multiplier": 1.0}, "either target_epsilon or noise_multiplier"),
        ({"target_epsilon": None}, "either target_epsilon or noise_multiplier"),
        ({"steps": 3}, "either steps or epochs"),
        ({"epochs": None}, "either steps or epochs"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 2000}, "at most population_size"),
        ({"target_epsilon": -1.0}, "target_epsilon"),
    ],
)
def test_refuses(change, message):
    arguments = {**RUN, "target_epsilon": 3.0, "mechanism": "bandmf", "bands": 4, "epochs": 1}
    with pytest.raises(ValueError, match=message):
        calibrate_correlated(**{**arguments, **change})


def test_says_where_no_noise_is_enough():
    with pytest.raises(UnreachableBudgetError, match="No noise keeps"):
        calibrate_correlated(
            **{**RUN, "target_delta": 1e-300},
            target_epsilon=1e-9,
            mechanism="tree",
            epochs=1,
            accountant="rdp",
        )


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.int8])
def test_integers_of_numpy_do_not_wrap_around(kind):
    numbers = {"population_size": 120, "batch_size": 20, "bands": 4}
    rest = {"target_delta": 1e-5, "mechanism": "bandmf", "epochs": 3, "noise_multiplier": 1.0}
    for sampling in ("fixed_order", "min_separation"):
        plain = calibrate_correlated(**numbers, **rest, sampling=sampling)
        given = {name: kind(number) for name, number in numbers.items()}
        plan = calibrate_correlated(**given, **rest, sampling=sampling)
        assert plan == plain and plan.epsilon(1e-5) == plain.epsilon(1e-5)


def test_no_groups_are_refused():
    arguments = {"mechanism": "bandmf", "bands": 4, "epochs": 1, "noise_multiplier": 1.0}
    for groups in (0, -1):
        with pytest.raises(ValueError, match="groups"):
            calibrate_correlated(**RUN, **arguments, sampling="cyclic_poisson", groups=groups)
    with pytest.raises(ValueError, match="at most 2"):
        calibrate_correlated(**RUN, **{**arguments, "epochs": 1e308})
