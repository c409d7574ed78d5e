"""tfdp.accounting.replay: files replay as their ledgers do, whole, in part, together, in curves."""

import dataclasses
import itertools
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.accounting import PLDAccountant, RDPAccountant, make_accountant
from tfdp.accounting.replay import replay
from tfdp.events import (
    BallsInBinsSampling,
    ComposedEvent,
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    RandomAllocationSampling,
    RandomizedResponseEvent,
    SampledEvent,
    ShuffledSampling,
    UnsupportedEventError,
)
from tfdp.ledger import LedgerFormatError, PrivacyLedger
from tfdp.ledger.entry import PassNumbers

ADD, REPLACE, ZERO = NeighboringRelation
DELTA = 1e-5
A = SampledEvent(PoissonSampling(0.01, 1000), GaussianSumEvent(1.0, 1.1))
B = SampledEvent(PoissonSampling(0.02, 1000), GaussianSumEvent(1.0, 1.7))


def _ledger(*pairs):
    ledger = PrivacyLedger()
    for event, count in pairs:
        ledger.append(event, count)
    return ledger


@pytest.fixture
def save(tmp_path):
    numbers = itertools.count()

    def save(*pairs, suffix="ledger"):
        path = tmp_path / f"{next(numbers)}.{suffix}"
        ledger = _ledger(*pairs)
        ledger.save(path) if suffix == "ledger" else ledger.to_json_lines(path)
        return path

    return save


def _epsilon(pairs, name="rdp", relation=ADD):
    return _ledger(*pairs).replay(make_accountant(name, relation)).get_epsilon(DELTA)


def _first(pairs, steps):
    """Oracle: the first `steps` single events, one by one."""
    singles = [event for event, count in pairs for _ in range(count)][:steps]
    return [(event, 1) for event in singles]


@pytest.mark.parametrize("suffix", ["ledger", "jsonl"])
def test_a_file_costs_what_its_ledger_does(save, suffix):
    pairs = [(A, 100), (B, 20), (A, 3)]
    names = ["rdp", "pld", "dp_accounting.rdp"]
    found = replay([save(*pairs, suffix=suffix)], DELTA, names)
    assert found.epsilons == {
        name: pytest.approx(_epsilon(pairs, name), rel=1e-12) for name in names
    }
    assert (found.steps, found.total_steps, found.unlisted_steps) == (123, 123, 0)
    assert found.listed == ((A, 103), (B, 20))
    assert (found.curve, found.digits, found.not_private_because) == ((), None, ())


def test_other_relations_reach_accountants_of_dp_accounting(save):
    step = SampledEvent(A.sampling, A.event, ZERO)
    found = replay([save((step, 50))], DELTA, ["rdp", "dp_accounting.rdp"])
    assert found.neighboring_relation is ZERO
    assert found.epsilons["dp_accounting.rdp"] == pytest.approx(
        _epsilon([(step, 50)], "dp_accounting.rdp", ZERO)
    )


def test_several_ledgers_cost_what_one_with_all_events_does(save):
    first, second, third = [(A, 100), (B, 20)], [(A, 7)], [(B, 1)]
    paths = [save(*first), save(*second, suffix="jsonl"), save(*third)]
    found = replay(paths, DELTA, ["rdp", "pld"])
    for name in ("rdp", "pld"):
        assert found.epsilons[name] == pytest.approx(
            _epsilon([*first, *second, *third], name), rel=1e-12
        )
    assert len(found.ledger_ids) == 3
    assert found.steps == 128


def test_copies_that_diverged_are_charged_in_full(save, tmp_path):
    path = save((A, 3))
    for name, event in (("one", A), ("two", B)):
        copy = PrivacyLedger.load(path)
        copy.append(event)
        copy.save(tmp_path / name)
    found = replay([tmp_path / "one", tmp_path / "two"], 1e-5, ["rdp"], diverged=True)
    assert found.steps == 8
    assert found.epsilons["rdp"] == pytest.approx(_epsilon([(A, 7), (B, 1)], "rdp"), rel=1e-12)


def test_copies_of_a_ledger_are_refused(save, tmp_path):
    path = save((A, 3))
    grown = PrivacyLedger.load(path)
    grown.append(B)
    grown.save(tmp_path / "grown.ledger")
    for paths in ([path, path], [path, tmp_path / "grown.ledger"]):
        with pytest.raises(ValueError, match="copies of one ledger.*the newer one.*--diverged"):
            replay(paths, DELTA)


def test_ledgers_of_other_relations_have_an_epsilon_under_zero_out(save):
    zero = SampledEvent(A.sampling, A.event, ZERO)
    found = replay([save((A, 3)), save((zero, 3))], DELTA, ["rdp", "dp_accounting.rdp"])
    assert found.neighboring_relation is ZERO
    assert found.epsilons["rdp"] == _epsilon([(A, 6)])
    assert found.epsilons["dp_accounting.rdp"] == _epsilon([(A, 6)], "dp_accounting.rdp")


def test_ledgers_of_other_units_are_refused(save):
    user = SampledEvent(A.sampling, A.event, A.neighboring_relation, "user")
    with pytest.raises(UnsupportedEventError, match="no common epsilon"):
        replay([save((A, 3)), save((user, 3))], DELTA, ["rdp"])


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 9)), min_size=1, max_size=5),
    st.data(),
)
def test_the_first_steps_cost_what_they_do_alone(tmp_path_factory, pairs, data):
    steps = data.draw(st.integers(1, sum(count for _, count in pairs)))
    path = tmp_path_factory.mktemp("replay") / "run.ledger"
    _ledger(*pairs).save(path)
    found = replay([path], DELTA, ["rdp"], steps=steps)
    assert found.epsilons["rdp"] == pytest.approx(_epsilon(_first(pairs, steps)), rel=1e-12)
    assert found.steps == steps == sum(entry.count for entry in found.listed)
    assert found.total_steps == sum(count for _, count in pairs)


def test_the_first_steps_go_over_several_ledgers(save):
    paths = [save((A, 5)), save((B, 5))]
    found = replay(paths, DELTA, ["rdp"], steps=7)
    assert found.listed == ((A, 5), (B, 2))
    assert found.epsilons["rdp"] == pytest.approx(_epsilon([(A, 5), (B, 2)]), rel=1e-12)


def test_begun_passes_are_whole_ones_also_in_part(save):
    # Ten steps a pass; a run-length entry of 25 steps is cut after 11: two begun passes.
    step = SampledEvent(ShuffledSampling(10, 100), GaussianSumEvent(1.0, 4.0), ZERO)
    found = replay([save((step, 25))], DELTA, ["rdp"], steps=11)
    assert found.epsilons["rdp"] == _epsilon([(GaussianSumEvent(1.0, 4.0), 2)])


def test_more_steps_than_there_are(save):
    with pytest.raises(ValueError, match="hold 3 steps. Received: steps=4"):
        replay([save((A, 3))], DELTA, ["rdp"], steps=4)


def test_the_whole_file_is_checked_though_only_its_begin_is_replayed(save):
    path = save((A, 3), (B, 2), (A, 1), suffix="jsonl")
    path.write_text(path.read_text().replace('"count": 1}', '"count": 2}'))
    with pytest.raises(LedgerFormatError, match="truncated or edited"):
        replay([path], DELTA, ["rdp"], steps=1)


@pytest.mark.parametrize("every", [1, 4, 7, 13, 14, 100])
def test_every_point_of_a_curve_is_a_partial_replay(save, every):
    pairs = [(A, 5), (B, 6), (A, 3)]
    path = save(*pairs)
    found = replay([path], DELTA, ["rdp", "dp_accounting.rdp"], every=every)
    expected = sorted({*range(every, 15, every), 14})
    assert [steps for steps, _ in found.curve] == expected
    for steps, epsilons in found.curve:
        part = replay([path], DELTA, ["rdp", "dp_accounting.rdp"], steps=steps)
        assert epsilons == pytest.approx(tuple(part.epsilons.values()), rel=1e-12)
    assert found.curve[-1][1] == tuple(found.epsilons.values())


def test_a_curve_is_computed_by_and_by(save, monkeypatch):
    """Every step is composed once, however many points there are."""
    composed = []
    compose = RDPAccountant.compose

    def counted(self, event, count=1):
        composed.append(count)
        return compose(self, event, count)

    monkeypatch.setattr(RDPAccountant, "compose", counted)
    replay([save((A, 40), (B, 60))], DELTA, ["rdp"], every=10)
    # The last two: the total, by an accountant that was not asked before.
    assert composed == [10] * 10 + [40, 60]


def _kind(i, q=0.01):
    return SampledEvent(PoissonSampling(q), GaussianSumEvent(1.0, 1.0 + i / 4))


@pytest.mark.parametrize("every", [5, 7])
def test_a_curve_by_pld_is_that_of_partial_replays(save, every):
    # Kinds come and come again, and Gaussians without sampling, which are merged, grow too.
    pairs = [(_kind(i % 5), 3) for i in range(9)]
    pairs.insert(4, (GaussianSumEvent(1.0, 30.0), 2))
    pairs.append((GaussianSumEvent(1.0, 40.0), 2))
    path = save(*pairs)
    found = replay([path], DELTA, ["pld"], every=every)
    for steps, (epsilon,) in found.curve:
        exact = _epsilon(_first(pairs, steps), "pld")
        assert epsilon == pytest.approx(exact, rel=1e-6)
    assert found.epsilons["pld"] == _epsilon(pairs, "pld")


def test_a_curve_by_pld_composes_only_what_is_new(save, monkeypatch):
    from tfdp.accounting import pld

    counts = []
    composed = pld.composed

    def counted(step, count):
        counts.append(count)
        return composed(step, count)

    monkeypatch.setattr(pld, "composed", counted)
    replay([save(*[(_kind(i), 10) for i in range(8)])], DELTA, ["pld"], every=10)
    # One kind, and two, are composed anew: 1 + 2. From the third on, three at once, then each when
    # it comes. The whole is composed once more, for a number that does not depend on the curve.
    # All from scratch would be 1 + 2 + ... + 8, and 8.
    assert counts == [10] * (3 + 8 + 8)


def test_a_curve_goes_on_where_kinds_are_merged(save, monkeypatch):
    monkeypatch.setattr("tfdp.accounting.totals.Totals.__init__.__defaults__", (5,))
    # Of so many steps, twice as many cost half as much again.
    steps = [
        (SampledEvent(PoissonSampling(0.05), GaussianSumEvent(1.0, 2.0 + i / 300)), 100)
        for i in range(40)
    ]
    found = replay([save(*steps)], DELTA, ["rdp", "dp_accounting.rdp"], every=800)
    assert found.digits is not None
    for number, epsilons in found.curve:
        for name, epsilon in zip(found.epsilons, epsilons, strict=True):
            exact = _epsilon(steps[: number // 100], name)
            assert exact <= epsilon < 1.05 * exact
    assert [e for _, e in found.curve] == sorted(e for _, e in found.curve)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (GaussianSumEvent(1.0, 1.0, seeded=True), "seeded"),
        (ComposedEvent((GaussianSumEvent(1.0, 0.0), GaussianSumEvent(1.0, 1.0))), "zero"),
        (NonPrivateEvent(), "without protection"),
        (SampledEvent(PoissonSampling(0.5), RandomizedResponseEvent(0.0, 3), ZERO), "randomized"),
    ],
    ids=["seeded", "zero", "non-private", "randomized response"],
)
def test_why_it_is_not_private(save, event, reason):
    found = replay([save((event, 1))], DELTA, ["rdp"])
    assert found.epsilons["rdp"] == float("inf")
    assert reason in found.not_private_because[0]


def test_why_it_is_not_private_is_said_of_unlisted_steps_too(save, monkeypatch):
    monkeypatch.setattr("tfdp.accounting.replay._MOST_LISTED", 1)
    found = replay([save((A, 2), (NonPrivateEvent(), 3))], DELTA, ["rdp"])
    assert found.listed == ((A, 2),)
    assert found.unlisted_steps == 3
    assert "without protection" in found.not_private_because[0]


def test_nothing_costs_nothing(save):
    found = replay([save()], DELTA, ["rdp", "pld"], every=3)
    assert found.epsilons == {"rdp": 0, "pld": 0}
    assert found.curve == ((0, (0, 0)),)


@pytest.mark.parametrize("name", ["steps", "every"])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError)])
def test_numbers_are_checked(save, name, value, error):
    with pytest.raises(error, match=name):
        replay([save((A, 3))], DELTA, ["rdp"], **{name: value})


def test_memory_does_not_grow_with_the_number_of_entries(tmp_path):
    """Ten times the rows, alternating and adapting, in the same memory."""
    peaks = []
    for rows in (1_500, 15_000):
        path = tmp_path / f"{rows}.ledger"
        # Clips adapt: a new event in every other step, whose noise multiplier is the same.
        clips = (2.0 ** (i % 500) * (1 + i // 500 / 64) for i in range(rows // 2))
        pairs = ((SampledEvent(A.sampling, GaussianSumEvent(c, 2 * c)), 1) for c in clips)
        _ledger(*(pair for adapting in pairs for pair in (adapting, (B, 1)))).save(path)
        replay([path], DELTA, ["rdp"])  # What is imported and cached once.
        tracemalloc.start()
        found = replay([path], DELTA, ["rdp"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert found.steps == rows
    assert peaks[1] < 1.5 * peaks[0] + 4e6


PASS = ShuffledSampling(10, 100)
STEP_OF_PASS = SampledEvent(PASS, GaussianSumEvent(1.0, 4.0), ZERO)


def test_begun_passes_of_different_ledgers_are_different_passes(save):
    paths = [save((STEP_OF_PASS, 1)) for _ in range(10)]
    passes = [
        SampledEvent(dataclasses.replace(PASS, pass_index=i), STEP_OF_PASS.event, ZERO)
        for i in range(10)
    ]
    expected = _epsilon([(event, 1) for event in passes])
    found = replay(paths, DELTA, ["rdp", "dp_accounting.rdp"], every=1)
    assert found.epsilons["rdp"] == expected
    assert found.epsilons["dp_accounting.rdp"] == pytest.approx(expected, rel=1e-2)
    assert found.curve[-1][1][0] == expected
    assert len({event for event, _ in found.listed}) == 10
    assert replay(paths[:1], DELTA, ["rdp"]).epsilons["rdp"] < expected / 2


def test_passes_of_ledgers_that_one_accountant_replays_are_different_passes(save):
    ledgers = [PrivacyLedger.load(save((STEP_OF_PASS, 4), (A, 2))) for _ in range(3)]
    accountant = make_accountant("rdp")
    for ledger in ledgers:
        ledger.replay(accountant)
    assert accountant.get_epsilon(DELTA) == _epsilon(
        [
            *(
                (SampledEvent(dataclasses.replace(PASS, pass_index=i), STEP_OF_PASS.event, ZERO), 4)
                for i in range(3)
            ),
            (A, 6),
        ]
    )


@given(st.lists(st.lists(st.integers(0, 5), max_size=5), max_size=5))
def test_no_two_ledgers_share_the_number_of_a_pass(indices):
    numbers, seen = PassNumbers(), {}
    for ledger, found in enumerate(indices):
        numbers.begin_ledger()
        for index in found:
            event = SampledEvent(
                dataclasses.replace(PASS, pass_index=index), STEP_OF_PASS.event, ZERO
            )
            renumbered = numbers.renumbered(event).sampling.pass_index
            assert seen.setdefault(renumbered, (ledger, index)) == (ledger, index)
    assert numbers.renumbered(A) is A


def test_many_kinds_are_fewer_for_accountants_of_losses(save, monkeypatch):
    """Each kind is a distribution to compute: 30,000 of them would take hours."""
    monkeypatch.setattr("tfdp.accounting.replay._MOST_KINDS_OF_LOSSES", (5, 20))
    events = [SampledEvent(A.sampling, GaussianSumEvent(1.0, 3 + i / 1e4)) for i in range(12)]
    found = replay([save(*((event, 1) for event in events))], DELTA, ["pld"])
    exact = replay([save(*((event, 1) for event in events))], DELTA, ["rdp"])
    assert found.digits is not None and exact.digits is None
    afresh = PLDAccountant()
    for event in events:
        afresh.compose(event)
    price = afresh.get_epsilon(DELTA)
    assert price <= found.epsilons["pld"] <= 1.01 * price


def test_kinds_that_cannot_be_fewer_are_refused_by_accountants_of_losses(save, monkeypatch):
    monkeypatch.setattr("tfdp.accounting.replay._MOST_KINDS_OF_LOSSES", (5, 20))
    path = save(*((LaplaceSumEvent(1.0, 3 + i / 100), 1) for i in range(30)))
    with pytest.raises(UnsupportedEventError, match="more than 20 kinds of steps.*rdp"):
        replay([path], DELTA, ["pld"])
    assert replay([path], DELTA, ["rdp"]).steps == 30


def _of_a_pass(sampling, stddev):
    return SampledEvent(sampling, GaussianSumEvent(1.0, stddev), ZERO)


@pytest.mark.parametrize("name", ["rdp", "prv", "zcdp"])
def test_steps_of_one_pass_are_of_one_pass_whatever_their_noise(save, name):
    allocated = [RandomAllocationSampling(10, population_size=100, pass_index=i) for i in (0, 1)]
    pairs = [(_of_a_pass(allocated[i], z), 3) for z in (1.0, 2.0) for i in (0, 1)]
    bins = [BallsInBinsSampling(4, i, 7, 100) for i in range(4)]
    pairs += [(_of_a_pass(each, 3.0), 2) for each in bins]
    pairs += [(_of_a_pass(ShuffledSampling(10, 100, 2), z), 4) for z in (5.0, 6.0)]
    path, ledger = save(*pairs), _ledger(*pairs)
    assert replay([path], 1e-5, [name]).epsilons[name] == ledger.epsilon(1e-5, name)


def test_a_curve_never_falls_within_a_pass(save):
    step = _of_a_pass(RandomAllocationSampling(10, population_size=100), 1.0)
    curve = replay([save((step, 25))], 1e-5, ["rdp"], every=2).curve
    epsilons = [epsilon for _, (epsilon,) in curve]
    assert epsilons == sorted(epsilons) and len(set(epsilons)) == 3


def test_others_are_given_all_events_under_one_relation(save):
    relations = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE)
    pairs = [
        (SampledEvent(PoissonSampling(1.0), GaussianSumEvent(1.0, 4.0), relation), 2)
        for relation in relations
    ]
    name = "dp_accounting.rdp"
    found = replay([save(*pairs)], 1e-5, [name], every=1)
    assert found.epsilons[name] == _ledger(*pairs).epsilon(1e-5, name)
    alone = _ledger((pairs[0][0], 1)).epsilon(1e-5, name)
    assert found.curve[0] == (1, (alone,)) and found.curve[-1] == (4, (found.epsilons[name],))
