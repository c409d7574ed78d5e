"""tfdp.accounting.bins: steps about bins that were drawn once cost one mixture."""

import itertools
import math

import numpy as np
import pytest

from tfdp.accounting import MonteCarloAccountant, PRVAccountant, RDPAccountant, make_accountant
from tfdp.accounting.bins import Kinds
from tfdp.accounting.mechanisms import (
    AllocatedGaussian,
    BinnedGaussian,
    PureEpsilon,
    RemoveThenAdd,
    SampledGaussian,
)
from tfdp.accounting.normal_form import normal_form
from tfdp.events import (
    BallsInBinsSampling,
    ComposedEvent,
    CorrelatedGaussianSumEvent,
    GaussianSumEvent,
    NeighboringRelation,
    PureEpsilonEvent,
    RandomAllocationSampling,
    SampledEvent,
    TreeGaussianSumEvent,
    UnsupportedEventError,
)
from tfdp.factorizations import (
    BinaryTree,
    ToeplitzFactorization,
    banded_square_root,
    independent,
    one_step_back,
)

ADD, REPLACE, ZERO = NeighboringRelation
BINS, N, Z = 4, 12, 2.0
ENDLESS, BANDED = one_step_back(0.6), banded_square_root(2)


def _step(i, z=Z, relation=ZERO, draw=7, release=None, bins=BINS):
    release = GaussianSumEvent(1.0, z) if release is None else release
    return SampledEvent(BallsInBinsSampling(bins, i % bins, draw), release, relation)


def _of_run(i, factorization=ENDLESS, run=1, relation=ZERO, draw=7, n=N, z=Z, period=BINS):
    p, r = factorization.numerator, factorization.denominator
    event = CorrelatedGaussianSumEvent(1.0, z, p, r, n, period, i, run)
    return _step(i, relation=relation, draw=draw, release=event)


def _composed(steps, name="rdp"):
    accountant = make_accountant(name) if isinstance(name, str) else name
    for each in steps:
        event, count = each if isinstance(each, tuple) else (each, 1)
        accountant.compose(event, count)
    return accountant


def _terms(steps, name="rdp"):
    return sorted(_composed(steps, name)._terms(), key=repr)


DRAWN = MonteCarloAccountant


@pytest.mark.parametrize(("steps", "turns"), [(1, 1), (4, 1), (5, 2), (8, 2), (11, 3), (12, 3)])
def test_turns_are_one_step_of_less_noise(steps, turns):
    (found,) = _terms([_step(i) for i in range(steps)])
    assert found == (AllocatedGaussian(BINS, pytest.approx(Z / math.sqrt(turns), rel=1e-8)), 1)


def test_one_bin_alone_counts_as_often_as_it_was_used():
    # Three steps, of which a unit is in all or in none: not one turn of four.
    (found,) = _terms([(_step(1), 3)])
    assert found == (AllocatedGaussian(BINS, pytest.approx(Z / math.sqrt(3), rel=1e-8)), 1)
    assert _terms([_step(1), _step(2), (_step(1), 2)]) == [found]


def test_noise_of_several_multipliers_adds_up():
    steps = [_step(i, z) for z in (2.0, 1.0) for i in range(BINS)]
    z = 1 / math.sqrt(1 / 4 + 1)
    assert _terms(steps) == [(AllocatedGaussian(BINS, pytest.approx(z, rel=1e-8)), 1)]


def test_draws_are_apart_and_relations_are_not():
    steps = [_step(i, draw=draw) for draw in (1, 2) for i in range(BINS)]
    assert _terms(steps) == [(AllocatedGaussian(BINS, Z), 2)]
    # Kept bins cost more than new ones, which the price tells.
    new = PRVAccountant()
    for index in range(4):
        sampling = RandomAllocationSampling(BINS, 1, None, index)
        new.compose(SampledEvent(sampling, GaussianSumEvent(1.0, Z), ZERO), BINS)
    kept = _composed([_step(i) for i in range(4 * BINS)], PRVAccountant())
    assert kept.get_epsilon(1e-5) > 1.05 * new.get_epsilon(1e-5)


@pytest.mark.parametrize("relation", [ADD, ZERO])
def test_drawn_losses_hold_what_is_computed_for_independent_noise(relation):
    steps = [_step(i, relation=relation) for i in range(3 * BINS)]
    computed = _composed(steps, PRVAccountant())
    drawn = _composed(steps, DRAWN(200_000))
    run = [_of_run(i, independent(), relation=relation) for i in range(3 * BINS)]
    for epsilon in (0.5, 1.0, 2.0):
        delta = computed.get_delta(epsilon)
        for accountant in (drawn, _composed(run, DRAWN(200_000))):
            lower, _, upper = accountant.get_delta_interval(epsilon)
            assert lower <= delta * (1 + 1e-3) and delta <= upper
    # Bins that are drawn anew are cheaper by more than the interval is wide.
    assert lower > 0
    one = _composed([_step(i) for i in range(BINS)], PRVAccountant())
    assert drawn.get_delta_interval(1.0).lower > one.get_delta(1.0)


def test_replaced_units_are_two_neighbours_in_a_row():
    (found,) = _terms([_step(i, relation=REPLACE) for i in range(8)])
    z = pytest.approx(Z / math.sqrt(2), rel=1e-8)
    assert found == (RemoveThenAdd(AllocatedGaussian(BINS, z)), 1)
    # Endless noise is charged as if bins were known, and the sum moves twice as far.
    run = [_of_run(i, relation=REPLACE) for i in range(N)]
    moved = 2 * ENDLESS.sensitivity(N, BINS)
    ((known, times),) = _terms(run)
    assert times == 1
    assert known == SampledGaussian(1.0, pytest.approx(Z / moved, rel=1e-8))
    ((told, _),) = _terms([_of_run(i, BANDED, relation=REPLACE) for i in range(N)])
    moved = BANDED.sensitivity(N, BINS)
    assert told == RemoveThenAdd(AllocatedGaussian(2, pytest.approx(Z / moved, rel=1e-8)))


def test_a_run_is_one_mixture_whatever_its_bands():
    run = [_of_run(i) for i in range(N)]
    expected = BinnedGaussian(BINS, N, ((ENDLESS, Z),))
    assert _terms(run, DRAWN(10)) == [(expected, 1)]
    # Stopped early it is charged as a whole.
    assert _terms(run[:5], DRAWN(10)) == _terms(run, DRAWN(10))
    tree = TreeGaussianSumEvent(1.0, Z, N, BINS, 0, 1)
    expected = BinnedGaussian(BINS, N, ((BinaryTree(), Z),))
    assert _terms([_step(0, release=tree)], DRAWN(10)) == [(expected, 1)]


def test_a_unit_that_is_added_moves_no_other_to_another_bin():
    added = [_of_run(i, relation=ADD) for i in range(N)]
    assert _terms(added, DRAWN(10)) == [(BinnedGaussian(BINS, N, ((ENDLESS, Z),)), 1)]
    assert _terms(added) == _terms([_of_run(i) for i in range(N)])


def test_sums_beside_each_other_are_one_mixture():
    both = ComposedEvent((_of_run(0).event, GaussianSumEvent(0.5, 4.0)))
    ((found, _),) = _terms([_step(0, release=both)], DRAWN(10))
    assert set(found.releases) == {(ENDLESS, Z), (independent(), 8.0)}
    silent = ComposedEvent((_of_run(0).event, GaussianSumEvent(1.0, 0.0)))
    assert _composed([_step(0, release=silent)]).get_epsilon(1e-5) == math.inf


def test_signs_of_the_columns_do_not_count():
    signed, unsigned = (ToeplitzFactorization((1.0, sign * 0.4, 0.3)) for sign in (-1, 1))
    mechanisms = [BinnedGaussian(BINS, N, ((c, Z),)) for c in (signed, unsigned)]
    assert mechanisms[0].sensitivity == mechanisms[1].sensitivity
    delta = [_composed([_of_run(0, c)], DRAWN(20_000)).get_delta(1.0) for c in (signed, unsigned)]
    assert delta[0] == delta[1]


def test_steps_that_were_taken_again_count_as_rows_that_are_there_twice():
    run = [_of_run(i) for i in range(N)]
    ((found, times),) = _terms([*run, *run[5:]], DRAWN(10))
    assert times == 1
    assert found == BinnedGaussian(BINS, N, ((ENDLESS, pytest.approx(Z / math.sqrt(2))),))
    # The rows that were released, with the unit in one bin after the other.
    rows = [*range(N), *range(5, N)]
    matrix = np.array([[ENDLESS.column(N)[i - j] if i >= j else 0 for j in range(N)] for i in rows])
    moved = np.stack([matrix[:, j::BINS].sum(axis=1) for j in range(BINS)], axis=1)
    whole = ENDLESS.products_of_turns(N, BINS)
    assert np.all(moved.T @ moved <= 2 * whole * (1 + 1e-12))


@pytest.mark.parametrize("other", ["run", "steps"])
def test_two_uses_of_one_draw_are_charged_as_if_bins_were_known(other):
    run = [_of_run(i) for i in range(N)]
    again = [_of_run(i, run=2) for i in range(N)] if other == "run" else [_step(0)]
    known = [
        SampledGaussian(1.0, pytest.approx(Z / ENDLESS.sensitivity(N, BINS), rel=1e-8)),
        SampledGaussian(1.0, Z),
    ]
    found = _terms([*run, *again], DRAWN(10))
    assert found == [(known[0], 2)] if other == "run" else [(each, 1) for each in known]
    # Another draw is another matter.
    apart = [_of_run(i, run=2, draw=8) for i in range(N)]
    (two,) = _terms([*run, *apart], DRAWN(10))
    assert two == (BinnedGaussian(BINS, N, ((ENDLESS, Z),)), 2)


def test_what_is_added_and_taken_back_leaves_nothing():
    accountant = _composed([_of_run(i) for i in range(6)], DRAWN(10))
    before = accountant._terms()
    for event in (_of_run(3), _of_run(3, run=2), _step(1), _step(2, draw=9)):
        with accountant.composed_meanwhile(event):
            assert accountant._terms() != before
        assert accountant._terms() == before
    kinds = Kinds()
    for count in (2, -2):
        kinds.add(normal_form(_step(1)), count)
    assert list(kinds) == []


def test_a_run_that_goes_on_with_other_bins_is_refused():
    accountant = _composed([_of_run(0)])
    with pytest.raises(UnsupportedEventError, match="differ in more than their position"):
        accountant.compose(_of_run(1, draw=8))
    assert accountant.supports(_of_run(1))


def test_other_releases_are_charged_for_every_turn():
    pure = PureEpsilonEvent(0.1)
    assert _terms([_step(i, release=pure) for i in range(3 * BINS)]) == [(PureEpsilon(0.1), 3)]
    mixed = [_step(0), _step(0, release=pure), (_step(1, release=pure), 2)]
    assert _terms(mixed) == [(PureEpsilon(0.1), 2), (SampledGaussian(1.0, Z), 1)]


@pytest.mark.parametrize("name", ["prv", "rdp", "gdp", "zcdp", "pld"])
def test_accountants_that_do_not_draw_charge_what_dominates(name):
    run = [_of_run(i) for i in range(N)]
    alone = GaussianSumEvent(ENDLESS.sensitivity(N, BINS), Z)
    expected = make_accountant(name).compose(alone).get_epsilon(1e-3)
    assert _composed(run, name).get_epsilon(1e-3) == pytest.approx(expected, rel=1e-6)
    assert _composed(run, DRAWN(100_000)).get_epsilon(1e-3) < 0.9 * expected


def test_noise_that_supposes_a_unit_in_every_step_is_not_amplified():
    run = [_of_run(i, period=1) for i in range(N)]
    alone = SampledGaussian(1.0, pytest.approx(Z / ENDLESS.sensitivity(N, 1), rel=1e-8))
    assert _terms(run, DRAWN(10)) == [(alone, 1)]
    # One step that was taken twice is two, also where bins differ.
    both = [_step(i, release=run[3].event) for i in (0, 1)]
    assert _terms(both, DRAWN(10)) == [(alone, 2)]


@pytest.mark.parametrize("bins", [4, 5, 7, 8, 11])
@pytest.mark.parametrize("bands", [1, 2, 3])
def test_banded_noise_is_cheaper_for_any_accountant(bins, bands):
    factorization, n = banded_square_root(bands), 3 * bins - 1
    mechanism = BinnedGaussian(bins, n, ((factorization, 3.0),))
    told = RDPAccountant._priced(RDPAccountant(), mechanism, _step(0))
    z = pytest.approx(3.0 / factorization.sensitivity(n, bins), rel=1e-8)
    count = bins // bands
    assert told == (AllocatedGaussian(count, z) if count > 1 else SampledGaussian(1.0, z))
    # Of the bins k, k + bands, ... the means are orthogonal, whatever k.
    products = factorization.products_of_turns(n, bins)
    for k in range(bins):
        some = [(k + i * bands) % bins for i in range(count)]
        off = products[np.ix_(some, some)] - np.diag(products.diagonal()[some])
        assert np.all(off == 0) and products.diagonal().max() <= mechanism.sensitivity**2 * 9
        # With one more of them they would not be, but for independent noise.
        more = [*some, (k + count * bands) % bins] if bins % bands else []
        assert all(products[i, j] > 0 for i, j in itertools.pairwise(more[-1:] + more[:1]))


def test_what_others_charge_is_not_below_what_is_drawn():
    run = [_of_run(i, BANDED) for i in range(N)]
    for epsilon in (0.3, 1.0, 2.0):
        drawn = _composed(run, DRAWN(100_000)).get_delta_interval(epsilon)
        assert _composed(run, PRVAccountant()).get_delta(epsilon) > drawn.lower
        # It is worth something.
        alone = PRVAccountant().compose(GaussianSumEvent(BANDED.sensitivity(N, BINS), Z))
        assert _composed(run, PRVAccountant()).get_delta(epsilon) < 0.9 * alone.get_delta(epsilon)
