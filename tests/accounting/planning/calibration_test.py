"""Calibration: what is found fits the budget by the accountant, and hardly anything more would."""

import dataclasses
import math
import re
import subprocess
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tfdp
from tfdp.accounting import (
    ACCOUNTANTS,
    Accountant,
    PLDAccountant,
    RDPAccountant,
    TrainingPlan,
    UnreachableBudgetError,
    calibrate,
    make_accountant,
    noise_for_budget,
)
from tfdp.accounting.planning.training_plan import SAMPLINGS
from tfdp.events import (
    NeighboringRelation,
)
from tfdp.events.shown import shown_up

MNIST = {"population_size": 60_000, "target_delta": 1e-5}


def _check_noise(plan, target, delta, accountant):
    """The budget is kept, and not by 0.1 % less noise."""
    assert plan.epsilon(delta, accountant) <= target
    less = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * (1 - 1e-3))
    assert less.epsilon(delta, accountant) > target


def _check_whole(plan, name, target, delta, accountant):
    """The budget is kept, and not by one more."""
    assert plan.epsilon(delta, accountant) <= target
    more = dataclasses.replace(plan, **{name: getattr(plan, name) + 1})
    assert more.epsilon(delta, accountant) > target


@pytest.mark.parametrize("epsilon", [0.1, 2.0, 8.0])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_noise_of_a_usual_run(accountant, epsilon):
    plan = calibrate(
        target_epsilon=epsilon, batch_size=256, epochs=20, accountant=accountant, **MNIST
    )
    assert (plan.steps, plan.batch_size, plan.population_size) == (4680, 256, 60_000)
    _check_noise(plan, epsilon, 1e-5, accountant)


@pytest.fixture(scope="module")
def begun():
    """A ledger of another run on the same units."""
    ledger = tfdp.PrivacyLedger()
    ledger.append(tfdp.events.GaussianSumEvent(1.0, 10.0))
    ledger.append(TrainingPlan(60_000, 1000, 1, 2.0, "shuffled").event(), 30)
    return ledger


@pytest.mark.parametrize(
    "sampling, accountant",
    [("poisson", "prv"), ("shuffled", "prv"), ("random_allocation", "prv"), ("fixed_size", "rdp")],
)
def test_what_was_done_before_takes_its_part_of_the_budget(begun, sampling, accountant):
    target = 2 * begun.epsilon(1e-5, accountant)
    run = {"batch_size": 1000, "epochs": 2, "sampling": sampling, "accountant": accountant}
    plan = calibrate(target_epsilon=target, ledger=begun, **run, **MNIST)
    # The oracle is one list of all events; the begun pass of the ledger is a pass of its own.
    both = tfdp.PrivacyLedger()
    for event, count in [*begun, (plan.event(), plan.steps)]:
        own = event == plan.event() and event.sampling.pass_number >= 0
        passes = event.sampling.in_pass(7) if own else None
        both.append(dataclasses.replace(event, sampling=passes) if own else event, count)
    assert 0.995 * target < both.epsilon(1e-5, accountant) <= target
    alone = noise_for_budget(target, 1e-5, population_size=60_000, **run)
    assert plan.noise_multiplier > 1.02 * alone


def test_steps_beside_what_was_done_before(begun):
    target = 1.5 * begun.epsilon(1e-5)
    known = {"noise_multiplier": 4.0, "batch_size": 1000}
    plan = calibrate(target_epsilon=target, ledger=begun, **known, **MNIST)
    assert plan.epsilon(1e-5, ledger=begun) <= target
    more = dataclasses.replace(plan, steps=plan.steps + 1)
    assert more.epsilon(1e-5, ledger=begun) > target


@pytest.mark.parametrize("free", [{"steps": 10}, {"noise_multiplier": 4.0}])
def test_a_ledger_that_spent_the_budget_leaves_nothing(begun, free):
    spent = begun.epsilon(1e-5)
    with pytest.raises(
        UnreachableBudgetError, match=f"has cost epsilon {shown_up(spent)} at delta"
    ):
        calibrate(target_epsilon=spent, batch_size=1000, ledger=begun, **free, **MNIST)


@pytest.mark.parametrize("accountant", sorted({*ACCOUNTANTS} - {"monte_carlo"}))
def test_every_accountant_calibrates(accountant):
    # Some price no samples.
    made, step = make_accountant(accountant), TrainingPlan(60_000, 1000, 5, 1.0).event()
    supported = made.supports(step) if isinstance(made, Accountant) else True
    batch = 1000 if supported else 60_000
    plan = calibrate(target_epsilon=3.0, batch_size=batch, steps=5, accountant=accountant, **MNIST)
    _check_noise(plan, 3.0, 1e-5, accountant)


def test_accountant_as_a_function():
    def coarse():
        return PLDAccountant(1e-2)

    plan = calibrate(target_epsilon=1.0, batch_size=256, steps=50, accountant=coarse, **MNIST)
    _check_noise(plan, 1.0, 1e-5, coarse)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("relation", [None, *NeighboringRelation], ids=str)
def test_every_sampling_and_relation(sampling, relation):
    plan = calibrate(
        target_epsilon=3.0,
        batch_size=600,
        steps=250,
        accountant="rdp",
        sampling=sampling,
        neighboring_relation=relation,
        **MNIST,
    )
    assert plan.neighboring_relation in (relation, SAMPLINGS[sampling].relation)
    _check_noise(plan, 3.0, 1e-5, "rdp")


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("steps", {"noise_multiplier": 0.9, "batch_size": 256}),
        ("steps", {"noise_multiplier": 20.0, "batch_size": 60_000}),
        ("batch_size", {"noise_multiplier": 0.9, "steps": 4680}),
        ("batch_size", {"noise_multiplier": 1.0, "steps": 1}),
    ],
    ids=["steps", "steps of full batches", "batch", "batch of one step"],
)
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_steps_and_batch_are_exact(accountant, name, others):
    plan = calibrate(target_epsilon=2.0, accountant=accountant, **others, **MNIST)
    _check_whole(plan, name, 2.0, 1e-5, accountant)


def test_steps_of_shuffled_data_are_whole_passes():
    # Twice the noise would allow four times the passes, of 235 steps each.
    plan = calibrate(
        target_epsilon=2.0,
        noise_multiplier=8.0,
        batch_size=256,
        accountant="rdp",
        sampling="shuffled",
        **MNIST,
    )
    assert plan.steps % 235 == 0
    _check_whole(plan, "steps", 2.0, 1e-5, "rdp")


def test_nothing_is_searched_where_epsilon_is_asked_for():
    plan = calibrate(noise_multiplier=1.1, batch_size=256, steps=14_040, **MNIST)
    # Reference number for q = 256/60000, z = 1.1, 14040 steps, delta 1e-5.
    assert plan.epsilon(1e-5, "pld") == pytest.approx(2.37964, rel=1e-5)
    assert plan.epsilon(1e-5) == pytest.approx(2.37964, rel=1e-3)


@settings(max_examples=25)
@given(
    st.floats(-0.7, 1.2).map(lambda x: 10**x),
    st.integers(10, 10_000),
    st.integers(1, 3000),
    st.floats(-1.0, 1.0).map(lambda x: 10**x),
)
def test_calibrating_every_quantity_inverts_accounting(noise, batch, steps, factor):
    """Of a run's own epsilon each of its quantities is the answer."""
    run = TrainingPlan(10_000, batch, steps, noise)
    epsilon = run.epsilon(1e-6, "rdp")
    assume(1e-3 < epsilon < 50)
    common = {"population_size": 10_000, "target_delta": 1e-6, "accountant": "rdp"}
    # Rounding aside, hence a hair more.
    budget = {**common, "target_epsilon": epsilon * (1 + 1e-9)}

    found = calibrate(batch_size=batch, steps=steps, **budget)
    assert noise * (1 - 1e-6) <= found.noise_multiplier * (1 + 1e-5)
    assert found.noise_multiplier <= noise * (1 + 1e-3)
    assert calibrate(noise_multiplier=noise, batch_size=batch, **budget).steps == steps
    assert calibrate(noise_multiplier=noise, steps=steps, **budget).batch_size == batch
    asked = calibrate(noise_multiplier=noise, batch_size=batch, steps=steps, **common)
    assert asked.epsilon(1e-6, "rdp") == epsilon


@settings(max_examples=25)
@given(
    st.floats(-1, 1).map(lambda x: 10**x),
    st.floats(-9, -3).map(lambda x: 10**x),
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.sampled_from(["target_epsilon", "target_delta", "batch_size", "steps"]),
    st.floats(1.05, 1.8),
)
def test_noise_is_monotone(epsilon, delta, batch, steps, name, factor):
    """More budget needs less noise; more data in a step, or more steps, needs more."""
    arguments = {
        "target_epsilon": epsilon,
        "target_delta": delta,
        "batch_size": batch,
        "steps": steps,
    }
    larger = arguments[name] * factor
    larger = math.ceil(larger) if name in ("batch_size", "steps") else larger
    try:
        first, second = (
            calibrate(population_size=10_000, accountant="rdp", **a).noise_multiplier
            for a in (arguments, {**arguments, name: larger})
        )
    except UnreachableBudgetError:
        assume(False)
    rising = name in ("batch_size", "steps")
    low, high = (first, second) if rising else (second, first)
    assert low <= high * (1 + 1e-3)


@settings(max_examples=6)
@given(
    st.floats(-1, 1).map(lambda x: 10**x),
    st.integers(16, 4096),
    st.integers(1, 3000),
)
def test_pld_needs_less_noise_than_rdp_and_verifies(epsilon, batch, steps):
    common = {"target_epsilon": epsilon, "batch_size": batch, "steps": steps, **MNIST}
    pld, rdp = (calibrate(accountant=name, **common) for name in ("pld", "rdp"))
    assert pld.noise_multiplier <= rdp.noise_multiplier * (1 + 1e-3)
    _check_noise(pld, epsilon, 1e-5, "pld")


def test_a_batch_of_everything_where_that_is_cheap():
    plan = calibrate(target_epsilon=2.0, noise_multiplier=100.0, steps=3, **MNIST)
    assert plan.batch_size == 60_000


def _numbers(error, pattern):
    return float(re.search(pattern, str(error.value))[1])


def test_too_dear_for_one_step_says_what_reaches_it():
    common = {"batch_size": 256, "accountant": "rdp", **MNIST}
    with pytest.raises(UnreachableBudgetError, match="Even one step .* costs epsilon") as error:
        calibrate(target_epsilon=0.1, noise_multiplier=0.5, **common)
    noise = _numbers(error, r"a noise multiplier of at least ([\d.]+) \(for one step\)")
    assert calibrate(target_epsilon=0.1, noise_multiplier=noise, **common).steps >= 1
    epsilon = _numbers(error, r"an epsilon above ([\d.]+\d)")
    # What is said is rounded up, so that it is within what it says.
    assert calibrate(target_epsilon=epsilon, noise_multiplier=0.5, **common).steps >= 1


def test_too_dear_for_batches_of_one_says_what_reaches_it():
    common = {"target_epsilon": 0.5, "accountant": "rdp", **MNIST}
    with pytest.raises(UnreachableBudgetError, match="Even batches of one, in 100000 steps"):
        calibrate(noise_multiplier=0.2, steps=100_000, **common)
    with pytest.raises(UnreachableBudgetError) as error:
        calibrate(noise_multiplier=0.3, steps=100_000, **common)
    noise = _numbers(error, r"a noise multiplier of at least ([\d.]+) ")
    found = calibrate(noise_multiplier=noise, steps=100_000, **common)
    assert found.batch_size == 1
    steps = int(_numbers(error, r"at most (\d+) steps"))
    assert calibrate(noise_multiplier=0.3, steps=steps, **common).batch_size == 1


class _NeverBelow:
    """An accountant that cannot answer less than one half."""

    def compose(self, event, count):
        self.event = event

    def get_epsilon(self, target_delta):
        return 0.5 + 1 / self.event.event.noise_stddev


def test_no_noise_reaches_it_says_why():
    common = {"batch_size": 256, "steps": 10, "accountant": _NeverBelow, **MNIST}
    with pytest.raises(UnreachableBudgetError, match="by _NeverBelow.*it is still 0.5") as error:
        calibrate(target_epsilon=0.4, **common)
    epsilon = _numbers(error, r"An epsilon above ([\d.]+\d)")
    assert calibrate(target_epsilon=epsilon + 1e-6, **common).noise_multiplier > 1e5
    assert calibrate(target_epsilon=0.6, **common).noise_multiplier == pytest.approx(10, rel=1e-3)


def test_delta_that_allows_everything_is_refused():
    # Of a thousand records one is in the only step: without noise that is (0, 1e-3)-private.
    with pytest.raises(UnreachableBudgetError, match="delta of 0.01 allows for all the damage"):
        calibrate(
            target_epsilon=1.0, target_delta=0.01, population_size=1000, batch_size=1, steps=1
        )


def test_steps_without_end_are_refused():
    with pytest.raises(UnreachableBudgetError, match="Choose less noise"):
        calibrate(target_epsilon=1.0, noise_multiplier=1e8, batch_size=1, accountant="rdp", **MNIST)


def test_custom_accountant_that_gives_no_number_is_refused():
    class Broken(RDPAccountant):
        def get_epsilon(self, target_delta):
            return math.nan

    with pytest.raises(ValueError, match="gave no number"):
        calibrate(target_epsilon=1.0, batch_size=256, steps=5, accountant=Broken, **MNIST)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": 1.0}, "Leave out exactly one"),
        ({"steps": None}, "Leave out exactly one.*'noise_multiplier', 'steps'"),
        ({"epochs": 3}, "Give steps or epochs, not both"),
        ({"target_epsilon": 0.0}, "target_epsilon must be"),
        ({"target_epsilon": math.inf}, "target_epsilon must be"),
        ({"target_delta": 0.0}, "target_delta must be"),
        ({"target_delta": math.nan}, "target_delta must be"),
        ({"batch_size": 60_001}, "batch_size must be at most population_size"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"population_size": 0}, "population_size must be at least 1"),
        ({"accountant": "magic"}, "accountant must be one of"),
        ({"sampling": "magic"}, "sampling must be one of"),
        ({"steps": None, "epochs": 0}, "epochs must be"),
        (
            {"batch_size": None, "noise_multiplier": 1.0, "steps": None, "epochs": 2},
            "give steps.*plan",
        ),
    ],
)
def test_bad_arguments(changes, message):
    good = {"target_epsilon": 1.0, "batch_size": 256, "steps": 10, **MNIST}
    with pytest.raises(ValueError, match=message):
        calibrate(**{**good, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 2.5},
        {"batch_size": 25.6},
        {"target_epsilon": "1"},
        {"neighboring_relation": "replace_one"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_wrong_types(changes):
    good = {"target_epsilon": 1.0, "batch_size": 256, "steps": 10, **MNIST}
    with pytest.raises(TypeError, match=next(iter(changes))):
        calibrate(**{**good, **changes})


def test_unsupported_sampling_is_refused_by_name():
    class Refusing(RDPAccountant):
        prices = {}

    with pytest.raises(tfdp.UnsupportedEventError, match="Refusing cannot price"):
        calibrate(target_epsilon=1.0, batch_size=256, steps=5, accountant=Refusing, **MNIST)


def test_noise_for_budget_is_the_noise_of_the_plan():
    arguments = {"population_size": 60_000, "batch_size": 256, "epochs": 2, "accountant": "rdp"}
    noise = noise_for_budget(2.0, 1e-5, **arguments)
    assert tfdp.noise_for_budget is noise_for_budget
    plan = calibrate(target_epsilon=2.0, target_delta=1e-5, **arguments)
    assert noise == plan.noise_multiplier == float(f"{noise:.6g}")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"steps": 40},
        {"population_size": 2000},
        {"batch_size": 250},
        {"accountant": "prv"},
        {"sampling": "shuffled"},
        {"neighboring_relation": NeighboringRelation.REPLACE_ONE},
        {"ledger": None},
    ],
    ids=lambda change: "".join(change),
)
def test_noise_for_budget_takes_all_that_the_plan_is_made_of(change):
    usual = {"population_size": 1000, "batch_size": 500, "steps": 20, "accountant": "rdp"}
    if "ledger" in change:
        change = {"ledger": tfdp.PrivacyLedger()}
        change["ledger"].append(tfdp.events.GaussianSumEvent(1.0, 2.0))
    arguments = {**usual, **change}
    noise = noise_for_budget(4.0, 1e-5, **arguments)
    plan = calibrate(target_epsilon=4.0, target_delta=1e-5, **arguments)
    assert noise == plan.noise_multiplier
    assert (noise == noise_for_budget(4.0, 1e-5, **usual)) == (not change)


def test_where_nothing_reaches_the_budget_no_noise_is_recommended():
    class NeverBelow:
        def compose(self, event, count):
            pass

        def get_epsilon(self, target_delta):
            return 5.0

    run = {"noise_multiplier": 2.0, "batch_size": 100, "accountant": NeverBelow}
    with pytest.raises(UnreachableBudgetError, match=r"What reaches it: an epsilon above 5\.$"):
        calibrate(target_epsilon=1.0, **run, **MNIST)


def test_needs_no_tensorflow():
    program = (
        "import tfdp, sys; tfdp.noise_for_budget(2.0, 1e-5, population_size=1000, batch_size=10, "
        "steps=10); print([m for m in ('tensorflow', 'keras') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_few_exact_evaluations_by_pld(monkeypatch):
    """Calibrating takes about as long as the evaluations on the fine grid, so they must be few."""
    calls = []
    epsilon = TrainingPlan.epsilon

    def counted(self, delta, accountant="pld", **kwargs):
        calls.append(accountant)
        return epsilon(self, delta, accountant, **kwargs)

    monkeypatch.setattr(TrainingPlan, "epsilon", counted)
    for target in (0.5, 2.0, 8.0):
        calls.clear()
        calibrate(target_epsilon=target, batch_size=256, epochs=2, **MNIST)
        assert calls.count("pld") <= 2
        assert len(calls) <= 30
