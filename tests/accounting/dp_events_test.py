"""tfdp.accounting.dp_events: conversions keep the cost; dp-accounting can replay a ledger."""

import math

import dp_accounting as dpa
import pytest

from tfdp.accounting import PLDAccountant, RDPAccountant, make_accountant
from tfdp.accounting.normal_form import effective_noise_multiplier
from tfdp.events import (
    ComposedEvent,
    ExponentialMechanismEvent,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    RandomizedResponseEvent,
    SampledEvent,
    ShuffledSampling,
    TruncatedPoissonSampling,
    UnsupportedEventError,
)
from tfdp.ledger import LedgerEntry, PrivacyLedger

ADD, REPLACE, ZERO = NeighboringRelation
GAUSSIAN = GaussianSumEvent(2.0, 3)


def _ledger(*pairs):
    ledger = PrivacyLedger()
    for event, count in pairs:
        ledger.append(event, count)
    return ledger


def test_to_dp_event_is_the_normal_form():
    poisson = SampledEvent(PoissonSampling(0.1), ComposedEvent((GAUSSIAN, NonPrivateEvent())))
    pass_ = SampledEvent(ShuffledSampling(10, 100), GAUSSIAN)
    ledger = _ledger((GAUSSIAN, 5), (poisson, 2), (GAUSSIAN, 1), (pass_, 15))
    assert ledger.to_dp_event() == dpa.ComposedDpEvent(
        [
            dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1.5), 6),
            dpa.SelfComposedDpEvent(dpa.NonPrivateDpEvent(), 2),
            # 15 steps of 10 a pass are two passes.
            dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1.5 / math.sqrt(5)), 2),
        ]
    )


def test_noise_multipliers_are_floats_whatever_the_bound_was():
    event = SampledEvent(PoissonSampling(0.1), GaussianSumEvent(1, 2))
    (part,) = _ledger((event, 1)).to_dp_event().events
    assert type(part.event.event.noise_multiplier) is float


def test_round_trip_of_dp_event():
    event = dpa.ComposedDpEvent(
        [
            dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.3)), 7),
            dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(5.0), 2),
        ]
    )
    assert PrivacyLedger.from_dp_event(event).to_dp_event() == event


def test_from_dp_event_flattens_compositions():
    step = dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0))
    event = dpa.SelfComposedDpEvent(
        dpa.ComposedDpEvent(
            [dpa.SelfComposedDpEvent(step, 3), dpa.NoOpDpEvent(), dpa.NonPrivateDpEvent()]
        ),
        4,
    )
    assert list(PrivacyLedger.from_dp_event(event)) == [
        LedgerEntry(SampledEvent(PoissonSampling(0.1), GaussianSumEvent(1.0, 1.0)), 12),
        LedgerEntry(NonPrivateEvent(), 4),
    ]


def test_from_dp_event_composes_on_one_sample():
    inner = dpa.ComposedDpEvent(
        [dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(4.0), 4), dpa.NoOpDpEvent()]
    )
    ledger = PrivacyLedger.from_dp_event(dpa.PoissonSampledDpEvent(0.1, inner))
    # Four Gaussians with multiplier 4 are one with multiplier 4 / sqrt(4) = 2.
    expected = dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(2.0))
    assert ledger.to_dp_event().events[0].event == expected


@pytest.mark.parametrize(("count", "z"), [(0, math.inf), (1, 4.0), (4, 2.0)])
def test_what_is_released_several_times_about_one_sample_counts_so_often(count, z):
    inner = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(4.0), count)
    [(found, _)] = PrivacyLedger.from_dp_event(dpa.PoissonSampledDpEvent(0.2, inner))
    assert effective_noise_multiplier(found) == z


def test_from_dp_event_under_zero_out():
    ledger = PrivacyLedger.from_dp_event(dpa.GaussianDpEvent(2.0), NeighboringRelation.ZERO_OUT)
    event = SampledEvent(FullBatchSampling(), GaussianSumEvent(1.0, 2.0), ZERO)
    assert list(ledger) == [LedgerEntry(event, 1)]


@pytest.mark.parametrize(
    ("event", "relation", "message"),
    [
        (dpa.ZCDpEvent(1.0), ADD, "ZCDpEvent"),
        (dpa.PoissonSampledDpEvent(0.1, dpa.ZCDpEvent(1.0)), ADD, "ZCDpEvent"),
        (dpa.SelfComposedDpEvent(dpa.UnsupportedDpEvent(), 2), ADD, "UnsupportedDpEvent"),
        (dpa.ComposedDpEvent([dpa.UnsupportedDpEvent()]), ADD, "UnsupportedDpEvent"),
        (dpa.GaussianDpEvent(1.0), REPLACE, "REPLACE_ONE"),
    ],
)
def test_from_dp_event_refuses_by_name(event, relation, message):
    with pytest.raises(UnsupportedEventError, match=message):
        PrivacyLedger.from_dp_event(event, relation)


def test_laplace_goes_both_ways():
    event = dpa.ComposedDpEvent(
        [
            dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.1, dpa.LaplaceDpEvent(1.5)), 7),
            dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(5.0), 2),
        ]
    )
    assert PrivacyLedger.from_dp_event(event).to_dp_event() == event


def test_several_laplace_releases_on_one_sample_cost_their_sum():
    # k of them move by k, not by sqrt(k).
    inner = dpa.SelfComposedDpEvent(
        dpa.ComposedDpEvent([dpa.LaplaceDpEvent(8.0), dpa.LaplaceDpEvent(8.0)]), 2
    )
    ledger = PrivacyLedger.from_dp_event(dpa.PoissonSampledDpEvent(0.1, inner))
    assert ledger.to_dp_event().events[0].event == dpa.PoissonSampledDpEvent(
        0.1, dpa.LaplaceDpEvent(2.0)
    )


def test_laplace_costs_what_dp_accounting_says():
    ledger = _ledger((LaplaceSumEvent(2.0, 10.0), 20))
    theirs = ledger.replay(dpa.rdp.RdpAccountant()).get_epsilon(1e-5)
    assert ledger.replay(RDPAccountant()).get_epsilon(1e-5) == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize("relation", [REPLACE, ZERO], ids=["replace", "zero"])
def test_randomized_response_costs_what_dp_accounting_says(relation):
    step = SampledEvent(FullBatchSampling(), RandomizedResponseEvent(0.9, 5), relation)
    ledger = _ledger((step, 10))
    assert ledger.to_dp_event().events[0].event == dpa.RandomizedResponseDpEvent(0.9, 5)
    accountant = make_accountant("dp_accounting.rdp", relation)
    theirs = ledger.replay(accountant).get_epsilon(1e-5)
    ours = ledger.replay(RDPAccountant()).get_epsilon(1e-5)
    assert theirs * 0.99 <= ours <= theirs * (1 + 1e-9)


def test_randomized_response_from_dp_event():
    ledger = PrivacyLedger.from_dp_event(dpa.RandomizedResponseDpEvent(0.9, 5), ZERO)
    step = SampledEvent(FullBatchSampling(), RandomizedResponseEvent(0.9, 5), ZERO)
    assert list(ledger) == [LedgerEntry(step, 1)]


def test_fixed_size_is_dearer_in_dp_accounting():
    # It has the bound of Wang, Balle and Kasiviswanathan 2019, tfdp a tighter one.
    step = SampledEvent(FixedSizeSampling(10, 1000), GaussianSumEvent(1.0, 8.0), REPLACE)
    ledger = _ledger((step, 1000))
    assert ledger.to_dp_event().events[0].event == dpa.SampledWithoutReplacementDpEvent(
        1000, 10, dpa.GaussianDpEvent(4.0)
    )
    theirs = ledger.replay(make_accountant("dp_accounting.rdp", REPLACE)).get_epsilon(1e-5)
    ours = ledger.replay(RDPAccountant()).get_epsilon(1e-5)
    assert 0.4 * theirs < ours < 0.7 * theirs


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (ExponentialMechanismEvent(1.0), "BoundedRange"),
        (SampledEvent(PoissonSampling(0.1), GAUSSIAN, REPLACE), "RemoveThenAdd"),
        (SampledEvent(TruncatedPoissonSampling(0.1, 100, 30), GAUSSIAN), "TruncatedPoisson"),
    ],
)
def test_to_dp_event_refuses_what_dp_accounting_has_no_word_for(event, name):
    with pytest.raises(UnsupportedEventError, match=name):
        _ledger((event, 1)).to_dp_event()


def test_to_dp_event_refuses_mixed_units():
    example, user = (
        SampledEvent(FullBatchSampling(), GAUSSIAN, ADD, unit) for unit in ("example", "user")
    )
    with pytest.raises(UnsupportedEventError, match="'example'.*'user'"):
        _ledger((example, 1), (user, 1)).to_dp_event()


@pytest.mark.parametrize(
    ("relation", "name"),
    [(ADD, "ADD_OR_REMOVE_ONE"), (REPLACE, "REPLACE_ONE"), (ZERO, "REPLACE_SPECIAL")],
)
def test_replay_checks_the_relation(relation, name):
    ledger = _ledger((SampledEvent(FullBatchSampling(), GAUSSIAN, relation), 3))
    for other in dpa.NeighboringRelation:
        accountant = dpa.rdp.RdpAccountant(neighboring_relation=other)
        one_unit = {"ADD_OR_REMOVE_ONE", "REPLACE_SPECIAL"}
        if other.name == name or {other.name, name} == one_unit:
            assert ledger.replay(accountant) is accountant
            ours = ledger.replay(RDPAccountant()).get_epsilon(1e-5)
            assert accountant.get_epsilon(1e-5) == pytest.approx(ours, rel=1e-3)
        else:
            with pytest.raises(ValueError, match=f"neighboring_relation=.*{name}"):
                ledger.replay(accountant)


def test_empty_ledger_replays_under_any_relation():
    for relation in dpa.NeighboringRelation:
        accountant = dpa.rdp.RdpAccountant(neighboring_relation=relation)
        assert PrivacyLedger().replay(accountant).get_epsilon(1e-5) == 0


def test_replay_into_dp_accounting_pld_equals_ours_also_with_integer_noise():
    groups = ComposedEvent((GaussianSumEvent(1, 2), GaussianSumEvent(3, 6)))
    ledger = _ledger((SampledEvent(PoissonSampling(0.01), groups), 1000))
    theirs = ledger.replay(dpa.pld.PLDAccountant()).get_epsilon(1e-5)
    assert theirs == pytest.approx(ledger.replay(PLDAccountant()).get_epsilon(1e-5), rel=1e-6)
    # Far from the wrong answer that an integer multiplier or the uncollapsed groups would give.
    rdp = ledger.replay(RDPAccountant()).get_epsilon(1e-5)
    assert 0.8 * rdp < theirs < rdp


def test_samples_of_fixed_size_go_both_ways_under_replace_one():
    theirs = dpa.SelfComposedDpEvent(
        dpa.SampledWithoutReplacementDpEvent(1000, 10, dpa.GaussianDpEvent(4.0)), 100
    )
    ledger = PrivacyLedger.from_dp_event(theirs, REPLACE)
    # Their multiplier is relative to a replacement, which moves a sum by twice the norm bound.
    ours = SampledEvent(FixedSizeSampling(10, 1000), GaussianSumEvent(1.0, 8.0), REPLACE)
    assert ledger.epsilon(1e-5) == _ledger((ours, 100)).epsilon(1e-5)
    assert ledger.to_dp_event() == dpa.ComposedDpEvent([theirs])


def test_truncated_samples_are_read():
    theirs = dpa.TruncatedSubsampledGaussianDpEvent(1000, 0.01, 60, 2.0)
    (entry,) = PrivacyLedger.from_dp_event(theirs)
    sampling = TruncatedPoissonSampling(0.01, 1000, 60)
    assert entry == LedgerEntry(SampledEvent(sampling, GaussianSumEvent(1.0, 2.0), ADD), 1)


@pytest.mark.parametrize(
    "event",
    [
        dpa.NoOpDpEvent(),
        dpa.PoissonSampledDpEvent(0, dpa.NonPrivateDpEvent()),
        dpa.SampledWithoutReplacementDpEvent(10, 0, dpa.NonPrivateDpEvent()),
        dpa.TruncatedSubsampledGaussianDpEvent(1000, 0.0, 60, 2.0),
        dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1.0), 0),
    ],
    ids=lambda event: type(event).__name__,
)
@pytest.mark.parametrize("relation", [ADD, REPLACE, ZERO], ids=["add", "replace", "zero"])
def test_nobody_sampled_is_nothing(event, relation):
    assert list(PrivacyLedger.from_dp_event(event, relation)) == []


@pytest.mark.parametrize("event", [dpa.RandomizedResponseDpEvent(0.3, 4), dpa.NonPrivateDpEvent()])
def test_what_has_no_distance_is_read_under_replace_one(event):
    ledger = PrivacyLedger.from_dp_event(event, REPLACE)
    theirs = dpa.pld.PLDAccountant(dpa.NeighboringRelation.REPLACE_ONE).compose(event)
    assert ledger.epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), abs=1e-3)


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (dpa.LaplaceDpEvent(1.0), REPLACE),
        (dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0)), REPLACE),
        (dpa.TruncatedSubsampledGaussianDpEvent(1000, 0.01, 60, 2.0), REPLACE),
        (dpa.SampledWithoutReplacementDpEvent(10, 2, dpa.GaussianDpEvent(1.0)), ADD),
        (dpa.SampledWithoutReplacementDpEvent(10, 2, dpa.GaussianDpEvent(1.0)), ZERO),
    ],
)
def test_what_is_ambiguous_is_refused_by_name(event, relation):
    with pytest.raises(UnsupportedEventError, match=f"{type(event).__name__}.*REPLACE_ONE"):
        PrivacyLedger.from_dp_event(event, relation)


def test_an_event_of_several_may_itself_happen_several_times():
    five = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(4.0), 5)
    found = RDPAccountant().compose(five, 3).get_epsilon(1e-5)
    assert found == RDPAccountant().compose(GaussianSumEvent(1.0, 4.0), 15).get_epsilon(1e-5)
