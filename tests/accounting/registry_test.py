"""tfdp.accounting: names, and what importing them costs."""

import functools
import inspect
import subprocess
import sys

import dp_accounting
import pytest

import tfdp.accounting
from tfdp.accounting import (
    PLDAccountant,
    PRVAccountant,
    RDPAccountant,
    TrainingPlan,
    calibrate,
    make_accountant,
    noise_for_budget,
)
from tfdp.accounting import plan as plan_table
from tfdp.accounting.registry import (
    ACCOUNTANTS,
    DEFAULT_ACCOUNTANT,
    accountant_maker,
    accountant_name,
    register_accountant,
    replayed,
)
from tfdp.accounting.replay import replay
from tfdp.events import (
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    RandomAllocationSampling,
    SampledEvent,
)
from tfdp.ledger import PrivacyLedger


def test_every_name_can_be_imported():
    for name in tfdp.accounting.__all__:
        assert getattr(tfdp.accounting, name) is not None
    assert dir(tfdp.accounting) == sorted(tfdp.accounting.__all__)
    with pytest.raises(AttributeError, match="no attribute 'OtherAccountant'"):
        _ = tfdp.accounting.OtherAccountant


def test_make_accountant():
    assert isinstance(make_accountant("rdp"), RDPAccountant)
    assert isinstance(make_accountant("pld"), PLDAccountant)
    theirs = make_accountant("dp_accounting.rdp", NeighboringRelation.ZERO_OUT)
    assert isinstance(theirs, dp_accounting.rdp.RdpAccountant)
    assert theirs.neighboring_relation is dp_accounting.NeighboringRelation.REPLACE_SPECIAL


def test_unknown_accountant_is_refused_with_the_known_ones():
    known = "'rdp', 'pld', 'prv', 'moments', 'zcdp', 'gdp', 'strong', 'basic', 'monte_carlo'"
    with pytest.raises(ValueError, match=f"{known}, 'dp_accounting.rdp'.*'fourier'"):
        make_accountant("fourier")


def test_no_name_gives_an_approximation_for_a_guarantee():
    step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 4.0))
    assert not make_accountant("gdp").supports(step)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import tfdp.accounting", ["numpy", "scipy", "dp_accounting", "tensorflow", "keras"]),
        ("import tfdp.ledger", ["numpy", "scipy", "dp_accounting", "tensorflow", "keras"]),
        ("import tfdp.cli", ["scipy", "dp_accounting", "tensorflow", "keras"]),
        (
            "from tfdp.accounting import RDPAccountant, PLDAccountant, PRVAccountant",
            ["scipy", "dp_accounting", "tensorflow", "keras"],
        ),
        ("import tfdp.accounting.dp_events", ["dp_accounting", "tensorflow", "keras"]),
    ],
)
def test_import_brings_nothing_heavy(statement, absent):
    program = f"{statement}; import sys; print([m for m in {absent} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


STEP = GaussianSumEvent(1.0, 4.0)


@pytest.mark.parametrize("choice", ["rdp", RDPAccountant, RDPAccountant(), lambda: RDPAccountant()])
def test_choice_makes_new_accountants(choice):
    make = accountant_maker(choice)
    one, other = make(NeighboringRelation.ZERO_OUT), make(NeighboringRelation.ZERO_OUT)
    one.compose(STEP)
    assert one is not other
    assert isinstance(other, RDPAccountant)
    assert other.get_epsilon(1e-5) == 0


def test_default_accountant_is_everywhere_the_same(tmp_path):
    assert DEFAULT_ACCOUNTANT == "prv"
    ledger = PrivacyLedger()
    ledger.append(STEP, 16)
    ledger.save(tmp_path / "run.sqlite")
    expected = ledger.replay(PRVAccountant()).get_epsilon(1e-5)
    assert ledger.epsilon(1e-5) == expected
    assert replay([tmp_path / "run.sqlite"], 1e-5).epsilons == {"prv": expected}
    assert ledger.remaining(5.0, 1e-5).epsilon == 5.0 - expected
    plan = TrainingPlan(1000, 10, 16, 4.0)
    assert plan.epsilon(1e-5) == plan.epsilon(1e-5, PRVAccountant)
    for function in (calibrate, noise_for_budget, plan_table, TrainingPlan.epsilon):
        assert inspect.signature(function).parameters["accountant"].default == "prv"


@pytest.mark.parametrize("choice", ["rdp", RDPAccountant, RDPAccountant([2.0, 8.0])], ids=str)
def test_replay_takes_one_of_any_kind(tmp_path, choice):
    ledger = PrivacyLedger()
    ledger.append(STEP, 16)
    ledger.save(tmp_path / "run.sqlite")
    (found,) = replay([tmp_path / "run.sqlite"], 1e-5, choice).epsilons.values()
    assert found == ledger.epsilon(1e-5, choice)


def test_bad_choices_are_refused():
    with pytest.raises(TypeError, match="accountant must be a name such as 'prv'"):
        accountant_maker(3)
    with pytest.raises(ValueError, match="must be empty"):
        accountant_maker(RDPAccountant().compose(STEP))
    with pytest.raises(ValueError, match="must be one of"):
        accountant_maker("rpd")


def test_registered_accountant_is_known_by_its_name(monkeypatch):
    monkeypatch.setattr("tfdp.accounting.registry.ACCOUNTANTS", dict(ACCOUNTANTS))
    for orders in ([2.0, 4.0], [2.0, 8.0]):  # Defined anew.
        register_accountant("mine", lambda relation, orders=orders: RDPAccountant(orders))
    for other in (RDPAccountant, functools.partial(RDPAccountant)):
        with pytest.raises(ValueError, match="There is an accountant 'mine' already"):
            register_accountant("mine", other)
    assert make_accountant("mine").orders.tolist() == [2.0, 8.0]
    ledger = PrivacyLedger()
    ledger.append(STEP, 16)
    assert ledger.epsilon(1e-5, "mine") == ledger.epsilon(1e-5, RDPAccountant([2.0, 8.0]))


@pytest.mark.parametrize(
    ("name", "make", "error", "message"),
    [
        ("rdp", RDPAccountant, ValueError, "There is an accountant 'rdp' already"),
        ("mine", "RDPAccountant", TypeError, "a function that makes one"),
        (RDPAccountant, RDPAccountant, TypeError, "registered by a name"),
    ],
)
def test_bad_registrations_are_refused(name, make, error, message):
    before = dict(ACCOUNTANTS)
    with pytest.raises(error, match=message):
        register_accountant(name, make)
    assert before == ACCOUNTANTS


def test_name_of_a_choice():
    assert accountant_name("zcdp") == "zcdp"
    assert accountant_name(RDPAccountant) == "rdp"
    assert accountant_name(tfdp.accounting.ZCDPAccountant) == "zcdp"
    assert accountant_name(dp_accounting.rdp.RdpAccountant) == "RdpAccountant"
    assert accountant_name(PRVAccountant()) == repr(PRVAccountant())


class _Counts:
    """An accountant of somebody's own, which says how many events there were."""

    def __init__(self):
        self.count = 0

    def compose(self, event, count=1):
        self.count += count
        return self

    def get_epsilon(self, target_delta):
        return float(self.count)


@pytest.mark.parametrize("relation", list(NeighboringRelation)[:2])
def test_what_is_replayed_is_under_its_own_relation(relation):
    step = SampledEvent(PoissonSampling(1.0), GaussianSumEvent(1.0, 8.0), relation)
    ledger = PrivacyLedger()
    ledger.append(step, 2)
    asked = replayed([(step, 2)], "dp_accounting.rdp")
    assert asked.get_epsilon(1e-5) == ledger.epsilon(1e-5, "dp_accounting.rdp")


@pytest.mark.parametrize("accountant", ["rdp", "prv", "dp_accounting.rdp", _Counts])
def test_what_is_replayed_is_what_one_ledger_costs(accountant):
    allocated = RandomAllocationSampling(5, 1, 1000)
    steps = [SampledEvent(allocated, GaussianSumEvent(1.0, z)) for z in (8.0, 1.0, 8.0)]
    ledger = PrivacyLedger()
    for step in steps:
        ledger.append(step, 2)
    asked = replayed([(step, 2) for step in steps], accountant)
    assert asked.get_epsilon(1e-5) == ledger.epsilon(1e-5, accountant)
    assert replayed([], accountant).get_epsilon(1e-5) == 0
