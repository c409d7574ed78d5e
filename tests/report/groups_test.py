"""What a ledger costs groups of units, as the report says it."""

import dataclasses
import math

import pytest

from tfdp.accounting import PRVAccountant, RDPAccountant, group_epsilon
from tfdp.events import (
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    SampledEvent,
    TruncatedPoissonSampling,
)
from tfdp.ledger import PrivacyLedger
from tfdp.report import gather, groups, to_html, to_markdown

ZERO = NeighboringRelation.ZERO_OUT
STEP = SampledEvent(PoissonSampling(0.01, 6000), GaussianSumEvent(1.0, 1.0), ZERO, "user")
# What is more than its sample may hold adds to delta.
TRUNCATED = SampledEvent(
    TruncatedPoissonSampling(0.01, 6000, 80), LaplaceSumEvent(1.0, 9.0), ZERO, "user"
)


def groups_of(*events, sizes=(1, 4, 2, 2)):
    ledger = PrivacyLedger()
    for event in events:
        ledger.append(event, 100)
    return gather(ledger, 1e-5, ["prv", "rdp"], group_sizes=sizes)


def test_epsilon_of_groups_is_that_of_the_accountants_of_groups():
    facts = groups_of(STEP)
    assert [group.size for group in facts.groups] == [1, 2, 4]
    for group in facts.groups:
        bounds = [a(group_size=group.size) for a in (PRVAccountant, RDPAccountant)]
        expected = min(a.compose(STEP, 100).get_epsilon(1e-5) for a in bounds)
        assert group.epsilon == expected
        assert group.method == "prv, which knows groups"
    assert facts.groups[0].epsilon == facts.costs.epsilon
    assert facts.groups[0].epsilon < facts.groups[1].epsilon < facts.groups[2].epsilon


def test_what_no_accountant_of_groups_takes_is_bounded_by_the_definition():
    facts = groups_of(TRUNCATED, sizes=[3])
    (group,) = facts.groups
    assert "3 times in a row" in group.method
    accountant = {"prv": PRVAccountant, "rdp": RDPAccountant}[facts.costs.headline.name]()
    accountant.compose(TRUNCATED, 100)
    assert group.epsilon == group_epsilon(accountant, 3, 1e-5)


def test_the_definition_is_taken_where_it_is_better_than_what_is_known_of_groups():
    step = SampledEvent(
        FixedSizeSampling(10, 10_000),
        GaussianSumEvent(1.0, 2.0),
        NeighboringRelation.REPLACE_ONE,
        "user",
    )
    (group,) = groups_of(step, sizes=[2]).groups
    assert group.method == "prv for one unit, 2 times in a row"
    assert group.epsilon == group_epsilon(PRVAccountant().compose(step, 100), 2, 1e-5)
    assert group.epsilon < RDPAccountant(group_size=2).compose(step, 100).get_epsilon(1e-5) / 2


def test_where_the_definition_has_no_number_what_is_known_of_groups_stays(monkeypatch):
    def refuses(*args):
        raise ValueError("no number")

    monkeypatch.setattr(groups, "group_epsilon", refuses)
    (group,) = groups_of(STEP, sizes=[2]).groups
    assert group.method == "prv, which knows groups" and group.epsilon < math.inf


def test_many_kinds_of_steps_have_a_bound():
    events = [
        SampledEvent(PoissonSampling(0.001 * i, 6000), STEP.event, ZERO, "user")
        for i in range(1, 20)
    ]
    (one, two) = groups_of(*events, sizes=[1, 2]).groups
    assert 0 < one.epsilon < two.epsilon < math.inf


def test_kinds_that_cannot_be_rounded_have_the_bound_of_the_accountant_that_takes_many():
    events = [SampledEvent(FullBatchSampling(), LaplaceSumEvent(1.0, i)) for i in range(90, 103)]
    (group,) = groups_of(*events, sizes=[2]).groups
    expected = RDPAccountant(group_size=2)
    for event in events:
        expected.compose(event, 100)
    assert group.method == "rdp, which knows groups"
    assert group.epsilon == expected.get_epsilon(1e-5) < math.inf


def test_steps_about_different_units_have_no_bound():
    (group,) = groups_of(STEP, dataclasses.replace(STEP, privacy_unit="example"), sizes=[2]).groups
    assert (group.epsilon, group.method) == (math.inf, "no accountant gives a bound")


def test_no_guarantee_of_one_is_none_of_many():
    (group,) = groups_of(NonPrivateEvent(), sizes=[2]).groups
    assert group.epsilon == math.inf


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (1.5, TypeError)])
def test_sizes_that_are_none_are_refused(size, error):
    with pytest.raises(error, match="group_size"):
        groups_of(STEP, sizes=[size])


def test_both_documents_show_groups_only_where_they_were_asked_for():
    facts, without = groups_of(STEP, sizes=[7]), groups_of(STEP, sizes=())
    for render in (to_html, to_markdown):
        assert "units that differ" in render(facts)
        assert "units that differ" not in render(without)
    assert "| 7 |" in to_markdown(facts)
