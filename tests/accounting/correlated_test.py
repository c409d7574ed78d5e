"""tfdp.accounting.correlated: prices of runs against the Gaussian mechanism on C g, computed."""

import dataclasses
import itertools
import math

import dp_accounting
import numpy as np
import pytest
from scipy import linalg

from tests.factorizations.trees import tree_matrices
from tfdp.accounting import MonteCarloAccountant, PRVAccountant, make_accountant
from tfdp.accounting.dp_events import to_dp_event
from tfdp.accounting.mechanisms import SampledGaussian, SeparatedGaussian
from tfdp.accounting.normal_form import normal_form
from tfdp.accounting.totals import Totals
from tfdp.events import (
    BallsInBinsSampling,
    ComposedEvent,
    CorrelatedGaussianSumEvent,
    CyclicPoissonSampling,
    DiscreteGaussianSumEvent,
    EpsilonDeltaEvent,
    FixedOrderSampling,
    FullBatchSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    MinSeparationSampling,
    NeighboringRelation,
    NonPrivateEvent,
    ParallelComposition,
    PoissonSampling,
    PureEpsilonEvent,
    SampledEvent,
    TreeGaussianSumEvent,
    UnsupportedEventError,
)
from tfdp.factorizations import BinaryTree, ToeplitzFactorization, banded_square_root, one_step_back
from tfdp.ledger import PrivacyLedger

ADD, REPLACE, ZERO = NeighboringRelation
N, PERIOD, Z = 12, 4, 3.0
DELTA = 1e-5
BANDED, ENDLESS = banded_square_root(3), one_step_back(0.6)
UNSAMPLED = ("prv", "rdp", "zcdp", "gdp", "pld")


def _event(i, factorization=BANDED, stddev=Z, run=1, n=N, period=PERIOD):
    p, r = factorization.numerator, factorization.denominator
    return CorrelatedGaussianSumEvent(1.0, stddev, p, r, n, period, i, run)


def _ordered(i, event, relation=ZERO, period=PERIOD):
    return SampledEvent(FixedOrderSampling(5, 5 * period, i % period), event, relation)


def _turn(i, event, relation=ZERO, q=0.2):
    return SampledEvent(CyclicPoissonSampling(q, PERIOD, i % PERIOD), event, relation)


def _epsilon(events, name="prv"):
    ledger = PrivacyLedger()
    for event in events:
        ledger.append(event)
    return ledger.replay(make_accountant(name)).get_epsilon(DELTA)


def _gaussian(sensitivity, name="prv", z=Z):
    return _epsilon([GaussianSumEvent(sensitivity, z)], name)


def _worst(matrix, steps):
    return max(np.linalg.norm(matrix[:, list(s)].sum(axis=1)) for s in steps)


def _matrix(factorization, n=N):
    return linalg.toeplitz(factorization.column(n), np.zeros(n))


PARTICIPATIONS = [range(i, N, PERIOD) for i in range(PERIOD)]


@pytest.mark.parametrize("name", UNSAMPLED)
@pytest.mark.parametrize("factorization", [BANDED, ENDLESS])
@pytest.mark.parametrize(("relation", "factor"), [(ZERO, 1), (REPLACE, 2)])
def test_a_run_is_one_gaussian_mechanism(name, factorization, relation, factor):
    run = [_ordered(i, _event(i, factorization), relation) for i in range(N)]
    sensitivity = factor * _worst(_matrix(factorization), PARTICIPATIONS)
    assert _epsilon(run, name) == pytest.approx(_gaussian(sensitivity, name), rel=1e-6)


def _tree(i, efficient=True, run=1):
    return TreeGaussianSumEvent(1.0, Z, N, PERIOD, i, run, efficient)


@pytest.mark.parametrize("name", UNSAMPLED)
@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize(("relation", "factor"), [(ZERO, 1), (REPLACE, 2)])
def test_a_tree_is_one_gaussian_mechanism_on_its_nodes(name, efficient, relation, factor):
    run = [_ordered(i, _tree(i, efficient), relation) for i in range(N)]
    b, c = tree_matrices(N, efficient)
    sensitivity = factor * _worst(c[np.abs(b).max(axis=0) > 0], PARTICIPATIONS)
    assert _epsilon(run, name) == pytest.approx(_gaussian(sensitivity, name), rel=1e-6)
    # From the state after 5 steps on, every node that ends is released once more.
    again = _epsilon([*run, *run[5:]], name)
    assert again == pytest.approx(_gaussian(math.sqrt(2) * sensitivity, name), rel=1e-6)


def test_samples_do_not_amplify_a_tree():
    with pytest.raises(ValueError, match="no more bands than there are steps"):
        _turn(0, _tree(0))


@pytest.mark.parametrize("sizes", [[400] * 4, [10, 400, 400, 390], [1] * 100])
def test_trees_of_one_pass_cost_what_dp_accounting_says(sizes):
    # A data set in as many steps as all trees have; a record is in one of them.
    event = dp_accounting.SingleEpochTreeAggregationDpEvent(Z, sizes)
    accountant = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    )
    expected = accountant.compose(event).get_epsilon(DELTA)
    levels = max(size.bit_length() for size in sizes)
    assert BinaryTree().sensitivity(max(sizes)) ** 2 == pytest.approx(levels)
    assert _gaussian(math.sqrt(levels), "rdp") == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("steps", [1, 3, N - 1])
def test_a_run_that_stops_early_costs_no_less_than_what_it_released(steps):
    run = [_ordered(i, _event(i)) for i in range(steps)]
    released = _worst(_matrix(BANDED)[:steps], PARTICIPATIONS)
    assert _epsilon(run) >= _gaussian(released)
    assert _epsilon(run) == pytest.approx(_epsilon([_ordered(i, _event(i)) for i in range(N)]))


def test_continuations_of_one_state_cost_at_least_all_rows_with_their_fresh_noise():
    # From the state after `cut` steps the run went on twice; each row of C g that was released
    # twice has independent noise twice.
    for cut, first, second in itertools.product([0, 2, 7], [8, 12], [9, 12]):
        rows = [*range(first), *range(cut, second)]
        run = [_ordered(i, _event(i)) for i in rows]
        released = _worst(_matrix(BANDED)[rows], PARTICIPATIONS)
        assert _epsilon(run) >= _gaussian(released)
        assert _epsilon(run) == pytest.approx(
            _gaussian(math.sqrt(2) * _worst(_matrix(BANDED), PARTICIPATIONS)), rel=1e-6
        )


def test_two_runs_cost_what_two_do_and_copies_of_ledgers_no_less():
    one = [_ordered(i, _event(i)) for i in range(5)]
    two = [_ordered(i, _event(i, run=2)) for i in range(3)]
    assert _epsilon([*one, *two]) == pytest.approx(_epsilon([*one, *one]))
    # Charging both copies of a ledger repeats positions.
    assert _epsilon([*one, *one]) > _epsilon(one)


@pytest.mark.parametrize("name", ["prv", "rdp", "pld", "basic"])
@pytest.mark.parametrize("relation", [ZERO, REPLACE])
def test_groups_that_take_turns_are_poisson_samples(name, relation):
    run = [_turn(i, _event(i), relation) for i in range(N)]
    norm = np.linalg.norm(_matrix(BANDED)[:, 0])
    step = SampledEvent(PoissonSampling(0.2), GaussianSumEvent(norm, Z), relation)
    assert _epsilon(run, name) == pytest.approx(_epsilon([step] * (N // PERIOD), name), rel=1e-6)


@pytest.mark.parametrize("name", ["prv", "rdp", "pld", "basic"])
def test_repeated_random_steps_cost_more_than_both_ways_they_may_be_samples(name):
    # A row that was released twice from one draw has sqrt(2) times the sensitivity; two draws of a
    # row are two samples.
    run = [_turn(i, _event(i)) for i in [*range(N), *range(2, N)]]
    norm = np.linalg.norm(_matrix(BANDED)[:, 0])

    def sampled(size, count):
        step = SampledEvent(PoissonSampling(0.2), GaussianSumEvent(size, Z), ZERO)
        return _epsilon([step] * count, name)

    found, turns = _epsilon(run, name), N // PERIOD
    assert found >= sampled(math.sqrt(2) * norm, turns) > sampled(norm, turns)
    assert found >= sampled(norm, 2 * turns)


@pytest.mark.parametrize("name", ["prv", "rdp", "basic"])
def test_so_little_noise_that_repeated_steps_have_none_is_no_privacy(name):
    run = [_turn(i, _event(i, ToeplitzFactorization(), 1.2e-10)) for i in range(N)]
    assert _epsilon([*run, run[0]], name) == math.inf


def _apart(i, event, relation=ZERO, index=0, b=PERIOD, n=N):
    return SampledEvent(MinSeparationSampling(0.2, b, n, None, index), event, relation)


@pytest.mark.parametrize("name", UNSAMPLED)
@pytest.mark.parametrize(("relation", "factor"), [(ADD, 1), (ZERO, 1), (REPLACE, 2)])
@pytest.mark.parametrize("numerator", [BANDED.numerator, (1.0, -0.3, 0.9)])
def test_samples_that_are_apart_cost_no_more_than_the_worst_steps(
    name, relation, factor, numerator
):
    factorization = ToeplitzFactorization(numerator)
    run = [_apart(i, _event(i, factorization), relation) for i in range(N)]
    every = itertools.product([0, 1], repeat=N)
    apart = [np.flatnonzero(s) for s in every if np.convolve(s, np.ones(PERIOD)).max() <= 1]
    sensitivity = factor * _worst(np.abs(_matrix(factorization)), apart)
    assert _epsilon(run, name) == pytest.approx(_gaussian(sensitivity, name), rel=1e-6)
    # Stopped early it is charged as a whole, and so is a run beside it.
    assert _epsilon(run[:5], name) == _epsilon(run, name)
    both = [_apart(i, _event(i, factorization, run=2), relation, 1) for i in range(N)]
    two = _gaussian(math.sqrt(2) * sensitivity, name)
    assert _epsilon([*run, *both], name) == pytest.approx(two, rel=1e-6)


def test_sums_beside_each_other_are_one_mechanism_on_samples_that_are_apart():
    both = ComposedEvent((_event(0), GaussianSumEvent(0.5, 4.0)))
    column = tuple(x / Z for x in BANDED.numerator)
    (found,) = normal_form(_apart(0, both)).mechanisms
    assert found == SeparatedGaussian(0.2, PERIOD, N, ((0.125,), column))
    assert _epsilon([_apart(0, ComposedEvent((_event(0), GaussianSumEvent(1.0, 0.0))))]) == math.inf
    assert _epsilon([_apart(0, _event(0, ToeplitzFactorization((1.0, 1e308, 1e308))))]) == math.inf


def test_a_pass_that_was_left_and_taken_up_again_has_no_price():
    run = [_apart(i, _event(i)) for i in range(N)]
    with pytest.raises(UnsupportedEventError, match="differ in more than their position"):
        _epsilon([*run[:5], *(_apart(i, _event(i), index=1) for i in range(5, N))])
    with pytest.raises(UnsupportedEventError, match="taken 2 times on samples of one pass"):
        _epsilon([*run, *run[5:]])


@pytest.mark.parametrize("other", [lambda i: _event(i, run=2), lambda i: GaussianSumEvent(1.0, Z)])
def test_several_uses_of_one_pass_are_charged_as_if_steps_were_known(other):
    # One draw says which steps a unit is in, for both: they are no two mixtures.
    run, others = ([_apart(i, of(i)) for i in range(N)] for of in (_event, other))

    def sensitivity(events):
        accountant = MonteCarloAccountant(1000)
        for event in events:
            accountant.compose(event)
        terms = accountant._terms()
        assert all(type(m) is SampledGaussian and m.sampling_probability == 1 for m, _ in terms)
        return math.hypot(*(math.sqrt(n) / m.noise_multiplier for m, n in terms))

    moved = [normal_form(events[0]).mechanisms[0].sensitivity for events in (run, others)]
    assert sensitivity([*run, *others]) == pytest.approx(math.hypot(*moved), rel=1e-9)
    assert sensitivity([*others[:2], *run[:2]]) == pytest.approx(math.hypot(*moved), rel=1e-9)


def test_one_use_of_a_pass_is_amplified_beside_nothing_and_beside_other_passes():
    run = [_apart(i, _event(i)) for i in range(N)]
    nothing = [_apart(i, ComposedEvent(())) for i in range(N)]
    next_pass = [_apart(i, _event(i, run=2), index=1) for i in range(N)]
    accountant = MonteCarloAccountant(1000)
    for event in [*run, *nothing, *next_pass]:
        accountant.compose(event)
    assert accountant._terms() == [(normal_form(run[0]).mechanisms[0], 2)]


def test_uses_of_one_pass_are_no_cheaper_than_both_at_once():
    """A unit in one step of two, at most, with probability 1/101: two sums, or one of less noise.

    The two are told apart as often as the one, which is far more often than two mixtures are.
    """

    def epsilon(events):
        accountant = MonteCarloAccountant(100_000)
        for event in events:
            accountant.compose(event)
        return accountant.get_epsilon(0.005)

    def step(i, run, stddev):
        event = _event(i, ToeplitzFactorization(), stddev, run, 2, 2)
        return SampledEvent(MinSeparationSampling(0.01, 2, 2), event, ZERO)

    two = epsilon([step(i, run, 0.4) for run in (1, 2) for i in range(2)])
    assert two >= epsilon([step(i, 1, 0.4 / math.sqrt(2)) for i in range(2)]) > 3.0


def test_refuses_runs_that_samples_are_not_apart_for():
    with pytest.raises(ValueError, match="to be away for 4 steps.*where it is away for 3"):
        _apart(0, _event(0, banded_square_root(4)), b=3)
    with pytest.raises(ValueError, match="noise without end"):
        _apart(0, _event(0, ENDLESS))
    with pytest.raises(ValueError, match="noise without end"):
        _apart(0, _tree(0))
    with pytest.raises(ValueError, match="of a run of 12 steps, where a pass of samples has 24"):
        _apart(0, _event(0), n=2 * N)


def test_independent_noise_in_groups_of_one_is_dp_sgd():
    run = [
        SampledEvent(
            CyclicPoissonSampling(0.2, 1), _event(i, ToeplitzFactorization(), period=1), ZERO
        )
        for i in range(N)
    ]
    plain = SampledEvent(PoissonSampling(0.2), GaussianSumEvent(1.0, Z), ZERO)
    assert _epsilon(run) == pytest.approx(_epsilon([plain] * N), rel=1e-9)


def test_sums_beside_each_other_are_one_gaussian_mechanism():
    # Clips 1 and 0.5; the third has fresh noise in every step, and a unit is in three of them.
    run = [
        _ordered(
            i,
            ComposedEvent((_event(i), _event(i, ENDLESS, 6.0, run=2), GaussianSumEvent(0.5, 4.0))),
        )
        for i in range(N)
    ]
    squares = [
        (_worst(_matrix(BANDED), PARTICIPATIONS) / Z) ** 2,
        (_worst(_matrix(ENDLESS), PARTICIPATIONS) / 6) ** 2,
        3 * (0.5 / 4) ** 2,
    ]
    assert _epsilon(run) == pytest.approx(_gaussian(math.sqrt(sum(squares)), z=1.0), rel=1e-6)


def test_a_unit_that_is_added_moves_all_behind_it():
    run = [_ordered(i, _event(i), ADD) for i in range(N)]
    moved = 2 * _worst(_matrix(BANDED), [range(N)])
    assert _epsilon(run) == pytest.approx(_gaussian(moved), rel=1e-6)


def test_a_bare_event_is_about_a_unit_in_every_step():
    run = [_event(i) for i in range(N)]
    assert _epsilon(run) == pytest.approx(_gaussian(_worst(_matrix(BANDED), [range(N)])), rel=1e-6)


@pytest.mark.parametrize(
    "event",
    [
        _turn(0, _event(0), ADD),
        _ordered(0, ParallelComposition((_event(0),))),
        _ordered(0, ComposedEvent((_event(0), ParallelComposition((GaussianSumEvent(1.0, 1.0),))))),
        _ordered(0, ComposedEvent((_event(0), LaplaceSumEvent(1.0, 1.0)))),
        _ordered(0, ComposedEvent((_event(0), _event(0, n=N + 1)))),
        _ordered(0, ComposedEvent((_event(0), _event(4)))),
    ],
)
def test_refuses_what_is_not_known_to_be_one_mechanism(event):
    with pytest.raises(UnsupportedEventError):
        normal_form(event)


def test_refuses_a_run_that_changed_on_its_way():
    start = _ordered(0, _event(0))
    changed = [
        SampledEvent(FixedOrderSampling(4, 4 * PERIOD, 1), _event(1), ZERO),
        _ordered(1, _event(1), REPLACE),
        _ordered(1, _event(1, stddev=4.0)),
        _ordered(1, _event(1, n=N + 1)),
        _turn(1, _event(1)),
    ]
    for event in changed:
        accountant = PRVAccountant().compose(start)
        with pytest.raises(UnsupportedEventError, match="differ in more than their position"):
            accountant.compose(event)
        assert accountant.supports(_ordered(1, _event(1)))


def test_no_noise_is_no_privacy():
    assert _epsilon([_ordered(0, _event(0, stddev=0.0))]) == math.inf
    seeded = dataclasses.replace(_event(0), seeded=True)
    assert _epsilon([_ordered(0, seeded)]) == math.inf
    both = ComposedEvent((_event(0), NonPrivateEvent()))
    assert _epsilon([_ordered(0, both)]) == math.inf


def test_totals_keep_steps_apart():
    totals = Totals(most_kinds=2)
    for i in range(N):
        totals.add(_ordered(i, _event(i)), 1)
    assert len(totals) == N
    accountant = PRVAccountant()
    for event, count in totals:
        accountant.compose(event, count)
    assert accountant.get_epsilon(DELTA) == _epsilon([_ordered(i, _event(i)) for i in range(N)])


def test_refuses_groups_that_take_turns_at_different_steps():
    PRVAccountant(group_size=2).compose(_ordered(0, _event(0)))
    with pytest.raises(UnsupportedEventError, match="take turns"):
        PRVAccountant(group_size=2).compose(_turn(0, _event(0)))


def test_is_no_event_of_dp_accounting():
    ledger = PrivacyLedger()
    ledger.append(SampledEvent(FullBatchSampling(), _event(0, period=1), ZERO))
    with pytest.raises(UnsupportedEventError, match="cost together"):
        to_dp_event(list(ledger))


@pytest.mark.parametrize(
    ("factorization", "n", "period"),
    [
        # A series that leaves float64, one whose square does, and one whose sum of squares does.
        (ToeplitzFactorization((1.0,), (1.0, -2.0)), 2000, 1),
        (ToeplitzFactorization((1.0,), (1.0, -2.0)), 600, 1),
        (ToeplitzFactorization((1.0,), (1.0, -2.0)), 512, 1),
        (ToeplitzFactorization((1.0, 0.7e154, 0.7e154, 0.7e154, 0.7e154)), 8, 8),
        # And one whose columns are finite but not their sums over participations.
        (ToeplitzFactorization((1.0, 1e154)), 2000, 1),
        (ToeplitzFactorization((1.0, 1e308)), 2000, 1),
    ],
)
@pytest.mark.parametrize("name", UNSAMPLED)
def test_coefficients_of_a_ledger_that_grow_without_bound_have_no_price(
    factorization, n, period, name
):
    event = _event(0, factorization, n=n, period=period)
    ledger = PrivacyLedger()
    ledger.append(_ordered(0, event, period=period))
    with pytest.raises(UnsupportedEventError, match="overflows within"):
        ledger.replay(make_accountant(name))


@pytest.mark.parametrize("name", UNSAMPLED)
def test_large_coefficients_have_a_price_that_is_infinite_or_right(name):
    # The last sensitivity that there is: noise is nothing beside it.
    event = _event(0, ToeplitzFactorization((1.0, 1e153)), n=8)
    ledger = PrivacyLedger()
    ledger.append(_ordered(0, event))
    assert ledger.replay(make_accountant(name)).get_epsilon(DELTA) > 1e6


@pytest.mark.parametrize("name", ["rdp", "prv", "gdp"])
@pytest.mark.parametrize("relation", [ADD, ZERO, REPLACE])
@pytest.mark.parametrize(
    "sampling", [MinSeparationSampling(0.2, PERIOD, N), BallsInBinsSampling(PERIOD, 0, 7)], ids=str
)
def test_what_has_no_protection_beside_a_run_that_is_amplified_has_none(sampling, relation, name):
    def composed(*releases):
        event = SampledEvent(sampling, ComposedEvent(releases), relation)
        return make_accountant(name, relation).compose(event)

    assert composed(_event(0)).get_epsilon(1e-5) < math.inf
    both = composed(_event(0), NonPrivateEvent())
    assert both.get_epsilon(1e-5) == math.inf and both.get_delta(1.0) == 1


@pytest.mark.parametrize("name", ["rdp", "prv", "gdp"])
@pytest.mark.parametrize("relation", [ADD, ZERO, REPLACE])
@pytest.mark.parametrize(
    "sampling", [MinSeparationSampling(0.2, PERIOD, N), BallsInBinsSampling(PERIOD, 0, 7)], ids=str
)
def test_what_is_released_beside_a_run_that_is_amplified_is_not_free(sampling, relation, name):
    def epsilon(other):
        event = SampledEvent(sampling, ComposedEvent((_event(0), other)), relation)
        return make_accountant(name, relation).compose(event).get_epsilon(1e-5)

    # The run alone is below 10.
    assert epsilon(GaussianSumEvent(1.0, 0.02)) > 1000
    assert epsilon(DiscreteGaussianSumEvent(1.0, 0.05, 2**-20, 2**10)) > 1000
    for other in (LaplaceSumEvent(1.0, 0.05), PureEpsilonEvent(9.0), EpsilonDeltaEvent(9.0, 1e-9)):
        with pytest.raises(UnsupportedEventError, match="Releases beside"):
            epsilon(other)
