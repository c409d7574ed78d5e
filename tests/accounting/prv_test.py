"""tfdp.accounting.PRVAccountant: intervals that contain what is known, and each other."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accounting.reference import load_reference
from tfdp.accounting import (
    BasicComposition,
    MomentsAccountant,
    PLDAccountant,
    PRVAccountant,
    RDPAccountant,
    StrongComposition,
)
from tfdp.accounting.analytic_gaussian import gaussian_delta, gaussian_epsilon
from tfdp.events import (
    EpsilonDeltaEvent,
    ExponentialMechanismEvent,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    PoissonSampling,
    PureEpsilonEvent,
    RandomAllocationSampling,
    RandomizedResponseEvent,
    SampledEvent,
    TruncatedPoissonSampling,
    UnsupportedEventError,
)

ADD, REPLACE, ZERO = NeighboringRelation


def _step(q, z, relation=ADD):
    return SampledEvent(PoissonSampling(q), GaussianSumEvent(1.0, z), relation)


def _bracket(pairs, delta, relative_error=0.005):
    accountant = PRVAccountant(relative_error)
    for event, count in pairs:
        accountant.compose(event, count)
    interval = accountant.get_epsilon_interval(delta)
    assert interval.upper == accountant.get_epsilon(delta)
    assert interval.lower <= interval.estimate <= interval.upper
    return interval


def test_interval_contains_the_reference():
    for row in load_reference("epsilon_dp_sgd.json"):
        pairs = [(_step(row["q"], row["noise_multiplier"]), row["steps"])]
        found = _bracket(pairs, row["delta"])
        # Theirs is an upper bound as well, on a grid that is finer or coarser.
        assert row["pld_lower"] < found.lower < row["pld_upper"]
        assert found.upper < row["pld_upper"] * (1 + 3e-4)
        assert found.upper < row["rdp_dp_accounting"]
        assert found.upper - found.lower < 0.01 * found.upper


STEPS = {
    "sgd": [(_step(0.01, 1.0), 500)],
    "little_noise": [(_step(0.001, 0.5), 300)],
    "few": [(_step(0.2, 3.0), 4)],
    "large_q": [(_step(0.9, 5.0), 20)],
    "many_kinds": [(_step(0.004 * i, 0.8 + 0.1 * i), 10 * i) for i in range(1, 6)],
    "with_a_query": [(_step(0.01, 1.5), 300), (GaussianSumEvent(1.0, 20.0), 3)],
    "laplace": [(SampledEvent(PoissonSampling(0.05), LaplaceSumEvent(1.0, 2.0)), 200)],
    "pure": [(PureEpsilonEvent(0.05), 100)],
    "mixed": [(_step(0.01, 1.5), 300), (PureEpsilonEvent(0.1), 3), (LaplaceSumEvent(1, 9), 2)],
    "response": [
        (SampledEvent(FullBatchSampling(), RandomizedResponseEvent(0.9, 10), ZERO), 5),
        (_step(0.01, 1.5, ZERO), 300),
    ],
}


@pytest.mark.parametrize("delta", [1e-3, 1e-6])
@pytest.mark.parametrize("name", STEPS)
def test_intervals_contain_each_other_and_pld_below_rdp(name, delta):
    found = [_bracket(STEPS[name], delta, error) for error in (0.05, 0.01, 0.002)]
    for coarse, fine in itertools.pairwise(found):
        assert coarse.lower <= fine.lower < fine.upper <= coarse.upper * (1 + 1e-9)
    wide, _, narrow = found
    assert narrow.upper - narrow.lower < 0.02 * narrow.upper
    # The estimate of a coarse grid is nearer to the truth than its bounds.
    assert abs(wide.estimate - narrow.estimate) < 0.3 * (wide.upper - wide.lower)
    others = {}
    for make in (PLDAccountant, RDPAccountant):
        accountant = make()
        for event, count in STEPS[name]:
            accountant.compose(event, count)
        others[make] = accountant.get_epsilon(delta)
    assert narrow.lower <= others[PLDAccountant] <= narrow.upper * 1.01
    assert narrow.upper <= others[RDPAccountant] * (1 + 1e-6)


def test_delta_lies_above_the_lower_bound_of_epsilon():
    accountant = PRVAccountant().compose(_step(0.01, 1.0), 500)
    found = accountant.get_epsilon_interval(1e-5)
    assert accountant.get_delta(found.upper) == pytest.approx(1e-5, rel=1e-6)
    assert accountant.get_delta(found.lower) > 1e-5


@pytest.mark.parametrize("count", [1, 100, 10**7])
@pytest.mark.parametrize("z", [0.05, 3.0, 1e4])
def test_gaussians_without_sampling_are_exact(z, count):
    exact = gaussian_epsilon(math.sqrt(count) / z, 1e-5)
    found = PRVAccountant().compose(GaussianSumEvent(1.0, z), count).get_epsilon_interval(1e-5)
    assert found == pytest.approx((exact,) * 3, rel=1e-12)


def test_one_step_is_the_amplified_gaussian():
    # (epsilon, delta) on everything is (log(1 + q (e^epsilon - 1)), q delta) on a sample, exactly.
    for q, z in ((0.01, 0.5), (0.5, 1.0), (1e-4, 0.3)):
        exact = math.log1p(q * math.expm1(gaussian_epsilon(1 / z, 1e-6 / q)))
        found = _bracket([(_step(q, z), 1)], 1e-6)
        assert found.lower < exact < found.upper
        assert found.upper < exact * 1.005


@given(
    q=st.floats(1e-4, 0.5),
    z=st.floats(0.5, 8.0),
    count=st.integers(1, 2000),
    log_delta=st.floats(-30, -3),
    more=st.floats(0.01, 0.3),
)
@settings(max_examples=10)
def test_brackets_move_with_steps_sampling_and_noise(q, z, count, log_delta, more):
    delta = math.exp(log_delta)
    base = _bracket([(_step(q, z), count)], delta)
    dearer = [
        [(_step(q, z), count + math.ceil(more * count))],
        [(_step(min(1.0, q * (1 + more)), z), count)],
        [(_step(q, z / (1 + more)), count)],
    ]
    for pairs in dearer:
        found = _bracket(pairs, delta)
        assert found.upper >= base.lower
        if base.lower > 0 and more > 0.05:
            assert found.upper > base.upper


def test_tiny_deltas_have_finite_epsilons():
    # dp-accounting cuts off tails of 1e-15, and gives up.
    found, steps = [], 100
    for delta in (1e-10, 1e-20, 1e-60):
        accountant = PRVAccountant().compose(_step(0.01, 2.0), steps)
        found.append(accountant.get_epsilon_interval(delta))
        # At least what one of the steps costs at delta, at most what Renyi divergences say.
        once = math.log1p(0.01 * math.expm1(gaussian_epsilon(0.5, delta / 0.01)))
        renyi = RDPAccountant().compose(_step(0.01, 2.0), steps).get_epsilon(delta)
        assert once < found[-1].upper < renyi
    assert found[0].lower > 0.98 * found[0].upper
    assert found[0].upper < found[1].upper < found[2].upper


def test_many_steps_keep_their_bracket():
    # 10^6 steps of q = 1e-3 are about 10^4 of q = 0.01, or as Gaussian as these.
    many = _bracket([(_step(1e-3, 4.0), 10**6)], 1e-5)
    few = _bracket([(_step(1e-2, 4.0), 10**4)], 1e-5)
    assert many.lower == pytest.approx(few.lower, rel=0.02)
    assert many.upper - many.lower < 0.01 * many.upper


def test_truncated_sample_has_a_wider_bracket():
    truncated = SampledEvent(TruncatedPoissonSampling(0.01, 1000, 28), LaplaceSumEvent(1.0, 1.0))
    whole = _bracket([(SampledEvent(PoissonSampling(0.01), truncated.event), 100)], 1e-5)
    found = _bracket([(truncated, 100)], 1e-5)
    assert found.lower < whole.lower < whole.upper < found.upper
    # The truth is that of a whole sample at a delta that failures make larger or smaller.
    sometimes = SampledEvent(TruncatedPoissonSampling(0.01, 1000, 31), truncated.event)
    found = _bracket([(sometimes, 100)], 1e-5)
    assert found.lower < 0.98 * whole.lower < whole.upper < found.estimate == found.upper < 0.35
    never = SampledEvent(TruncatedPoissonSampling(0.01, 1000, 15), LaplaceSumEvent(1.0, 1.0))
    assert PRVAccountant().compose(never, 100).get_epsilon_interval(1e-5).upper == math.inf


def test_what_no_neighbours_are_known_for_has_no_lower_bound():
    for event in (
        ExponentialMechanismEvent(0.1),
        SampledEvent(FixedSizeSampling(1, 100), GaussianSumEvent(1.0, 2.0), REPLACE),
    ):
        found = PRVAccountant().compose(event, 10).get_epsilon_interval(1e-5)
        assert found.lower == 0 < found.upper


def test_exponential_mechanisms_cost_no_more_than_renyi_says():
    # The pair of the worst of every epsilon is worse than the worst composition.
    event = ExponentialMechanismEvent(0.2)
    prv, rdp = (make().compose(event, 100) for make in (PRVAccountant, RDPAccountant))
    assert prv.get_epsilon(1e-5) <= rdp.get_epsilon(1e-5) * (1 + 1e-4)
    pure = PRVAccountant().compose(PureEpsilonEvent(0.2), 100)
    assert prv.get_epsilon(1e-5) < 0.6 * pure.get_epsilon(1e-5)


@pytest.mark.parametrize("z", [0.6, 3.0])
def test_fixed_size_is_between_poisson_and_no_sampling(z):
    # One in 100, and a replacement moves the sum by 2.
    fixed = SampledEvent(FixedSizeSampling(10, 1000), GaussianSumEvent(0.5, z), REPLACE)
    found = PRVAccountant().compose(fixed, 500).get_epsilon(1e-5)
    renyi = RDPAccountant().compose(fixed, 500).get_epsilon(1e-5)
    poisson = PRVAccountant().compose(_step(0.01, z), 500).get_epsilon_interval(1e-5)
    assert poisson.lower < found < renyi
    assert found < PRVAccountant().compose(GaussianSumEvent(1.0, z), 500).get_epsilon(1e-5) / 10


# --- Neighbours in a row ---


def test_poisson_under_replacement_is_two_neighbours_in_a_row():
    step = _step(0.01, 1.0, REPLACE)
    found = PRVAccountant().compose(step, 500).get_epsilon_interval(1e-5)
    once = PRVAccountant().compose(_step(0.01, 1.0), 500).get_epsilon_interval(1e-5)
    assert found.lower == pytest.approx(once.lower, rel=1e-3)
    assert once.upper < found.upper < RDPAccountant().compose(step, 500).get_epsilon(1e-5)
    accountant = PRVAccountant().compose(step, 500)
    assert accountant.get_delta(found.upper) == pytest.approx(1e-5, rel=1e-4)
    # Beside something that is replaced at once.
    accountant.compose(SampledEvent(FullBatchSampling(), GaussianSumEvent(1.0, 20.0), REPLACE))
    assert found.upper < accountant.get_epsilon(1e-5) < found.upper + 1


@pytest.mark.parametrize(("q", "z", "count", "size"), [(0.01, 2.0, 100, 3), (0.001, 1.0, 300, 5)])
def test_group_equals_mixture_of_gaussians(q, z, count, size):
    weights = [math.comb(size, i) * q**i * (1 - q) ** (size - i) for i in range(size + 1)]
    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        z, list(map(float, range(size + 1))), weights, value_discretization_interval=1e-3
    ).self_compose(count)
    accountant = PRVAccountant(group_size=size).compose(_step(q, z), count)
    found = accountant.get_epsilon_interval(1e-5)
    assert found.lower < theirs.get_epsilon_for_delta(1e-5) < found.upper * 1.01
    assert found.upper < theirs.get_epsilon_for_delta(1e-5) * 1.002
    assert accountant.get_delta(found.upper) == pytest.approx(1e-5, rel=1e-3)


def test_groups_grow():
    pairs = [(_step(0.01, 2.0), 100), (PureEpsilonEvent(0.01), 2)]
    epsilons = []
    for size in (1, 2, 5):
        accountant = PRVAccountant(group_size=size)
        for event, count in pairs:
            accountant.compose(event, count)
        epsilons.append(accountant.get_epsilon(1e-5))
    assert epsilons[0] == PRVAccountant().compose(*pairs[0]).compose(*pairs[1]).get_epsilon(1e-5)
    # Less than in proportion would be wrong: each adds at least as much as the one before.
    assert epsilons[1] > 1.9 * epsilons[0]
    assert epsilons[2] > 2.4 * epsilons[1]


def test_group_without_sampling_is_exact():
    accountant = PRVAccountant(group_size=4).compose(GaussianSumEvent(1.0, 8.0), 2)
    assert accountant.get_epsilon(1e-5) == gaussian_epsilon(4 * math.sqrt(2) / 8, 1e-5)


def test_group_of_what_is_charged_as_pure_has_no_lower_bound():
    event = SampledEvent(PoissonSampling(0.1), LaplaceSumEvent(1.0, 5.0))
    found = PRVAccountant(group_size=2).compose(event, 10).get_epsilon_interval(1e-5)
    assert found.lower == 0 < found.upper
    assert PRVAccountant().compose(event, 10).get_epsilon_interval(1e-5).lower > 0


@pytest.mark.parametrize(
    "event",
    [
        SampledEvent(TruncatedPoissonSampling(0.01, 1000, 40), LaplaceSumEvent(1.0, 1.0)),
        EpsilonDeltaEvent(0.1, 1e-7),
    ],
    ids=["truncated", "with a delta"],
)
def test_group_of_what_fails_is_refused(event):
    with pytest.raises(UnsupportedEventError, match="group_size=2"):
        PRVAccountant(group_size=2).compose(event)


def test_a_delta_of_a_release_is_in_the_upper_bound_alone():
    pairs = [(_step(0.01, 1.0), 100), (EpsilonDeltaEvent(0.1, 5e-6), 1)]
    found = _bracket(pairs, 1e-5)
    without = _bracket([pairs[0], (PureEpsilonEvent(0.1), 1)], 1e-5)
    assert found.lower <= without.lower < without.upper < found.estimate == found.upper


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"relative_error": 0}, ValueError, "relative_error"),
        ({"relative_error": 0.6}, ValueError, "relative_error"),
        ({"relative_error": "small"}, TypeError, "relative_error"),
        ({"group_size": 0}, ValueError, "group_size"),
        ({"group_size": 2.0}, TypeError, "group_size"),
    ],
)
def test_arguments_are_checked(arguments, error, match):
    with pytest.raises(error, match=match):
        PRVAccountant(**arguments)


def test_interval_of_nothing_and_of_no_privacy():
    assert PRVAccountant().get_epsilon_interval(1e-5) == (0, 0, 0)
    accountant = PRVAccountant().compose(GaussianSumEvent(1.0, 0.0))
    assert accountant.get_epsilon_interval(1e-5) == (math.inf,) * 3
    assert np.isnan(accountant.get_epsilon_interval(1e-5)).sum() == 0


@pytest.mark.parametrize("noise_multiplier", [0.75, 0.78, 0.8, 0.9])
def test_rare_samples_are_priced_as_well_by_every_noise(noise_multiplier):
    """The tilt that suits Renyi divergences shows nothing here: they are about larger losses."""
    step = SampledEvent(PoissonSampling(512e-6), GaussianSumEvent(1.0, noise_multiplier))
    prv = PRVAccountant().compose(step, 1000).get_epsilon(1e-6)
    pld = PLDAccountant().compose(step, 1000).get_epsilon(1e-6)
    assert prv == pytest.approx(pld, rel=0.01)


@pytest.mark.parametrize("q", [1e-5, 5e-4])
def test_never_above_renyi_divergences(q):
    for noise_multiplier, steps, delta in ((0.5, 1000, 1e-6), (0.8, 1000, 1e-9), (1.0, 10, 1e-9)):
        step = SampledEvent(PoissonSampling(q), GaussianSumEvent(1.0, noise_multiplier))
        prv = PRVAccountant().compose(step, steps).get_epsilon(delta)
        assert prv <= RDPAccountant().compose(step, steps).get_epsilon(delta)


@pytest.mark.parametrize(
    ("step", "count", "size", "epsilon"),
    [
        # The tails that grids cut off are larger than these deltas.
        (_step(1e-4, 2.4), 206, 1, 0.24),
        (_step(6e-3, 5.9, ZERO), 4, 1, 1.7),
        (_step(2e-4, 7.2, REPLACE), 2, 1, 0.08),
        # Of a group that is replaced a grid says little.
        (_step(0.01, 4.0, REPLACE), 300, 2, 0.5),
        (_step(0.01, 4.0, REPLACE), 300, 4, 0.5),
    ],
)
def test_delta_is_never_above_that_of_divergences(step, count, size, epsilon):
    prv, rdp = (
        make(group_size=size).compose(step, count) for make in (PRVAccountant, RDPAccountant)
    )
    assert 0 < prv.get_delta(epsilon) <= rdp.get_delta(epsilon) * (1 + 1e-9)


def test_delta_is_at_most_the_probability_that_a_unit_is_in_any_sample():
    for relation, sampled in ((ADD, 3e-4), (REPLACE, 6e-4)):
        accountant = PRVAccountant(group_size=2).compose(_step(1e-4, 0.05, relation), 3)
        assert 0 < accountant.get_delta(0.0) <= 2 * sampled * (1 + 1e-9)
        assert accountant.get_epsilon(2 * sampled * (1 + 1e-9)) == 0


@pytest.mark.parametrize(
    ("z", "q", "count", "delta", "most"),
    [
        # What divergences say is 1.9 at 1e-8, 0.84 at 1e-5.
        (0.6, 1e-5, 10**6, 1e-5, 0.135),
        (0.6, 1e-5, 10**6, 1e-8, 0.77),
        (0.6, 1e-5, 10**5, 1e-5, 0.046),
        (0.5, 1e-5, 10**5, 1e-5, 0.205),
    ],
)
def test_rare_samples_do_not_fall_back_to_divergences(z, q, count, delta, most):
    accountant = PRVAccountant().compose(_step(q, z), count)
    assert 0 < accountant.get_epsilon(delta) <= most


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.3, 1.0, 2.0, 3.0, 10.0])
@pytest.mark.parametrize("event", [ExponentialMechanismEvent, PureEpsilonEvent])
def test_one_pure_release_is_priced_whatever_its_epsilon(event, epsilon):
    # Cells of the grid without any probability are zero, not a little less.
    found = PRVAccountant().compose(event(epsilon)).get_epsilon(1e-5)
    assert 0.9 * epsilon < found <= epsilon


def test_delta_of_replaced_units_with_hardly_any_noise_is_no_more_than_that_of_divergences():
    # Of two neighbours in a row a grid shows a bound far above one.
    accountants = PRVAccountant(), RDPAccountant()
    for accountant in accountants:
        accountant.compose(_step(0.99, 8.0, REPLACE))
        few = SampledEvent(FixedSizeSampling(9, 17), GaussianSumEvent(1.0, 0.3), REPLACE)
        accountant.compose(few, 9)
        accountant.compose(SampledEvent(FullBatchSampling(), GaussianSumEvent(1, 1.4), REPLACE), 26)
    found, expected = (accountant.get_delta(180.0) for accountant in accountants)
    assert 0.1 < found <= expected


# --- Events under several relations ---


MIXED = {
    "poisson": (_step(0.01, 0.5, ZERO), 20),
    "poisson_added": (_step(0.01, 0.8), 200),
    "laplace": (SampledEvent(PoissonSampling(0.01), LaplaceSumEvent(1.0, 0.3), ZERO), 20),
    "allocation": (SampledEvent(RandomAllocationSampling(9), GaussianSumEvent(1.0, 0.8), ZERO), 9),
    "truncated": (
        SampledEvent(TruncatedPoissonSampling(0.01, 10_000, 150), GaussianSumEvent(1, 0.5), ZERO),
        20,
    ),
    "fixed_size": (SampledEvent(FixedSizeSampling(10, 1000), GaussianSumEvent(1.0, 1.0), ADD), 20),
    "response": (SampledEvent(FullBatchSampling(), RandomizedResponseEvent(0.1, 100), ZERO), 1),
    "unsampled": (GaussianSumEvent(1.0, 2.0), 1),
}
REPLACED = {
    "poisson": _step(1e-6, 1e3, REPLACE),
    "truncated": SampledEvent(
        TruncatedPoissonSampling(0.01, 10_000, 400), GaussianSumEvent(1.0, 1e3), REPLACE
    ),
    "allocation": SampledEvent(RandomAllocationSampling(9), GaussianSumEvent(1.0, 1e3), REPLACE),
    "laplace": SampledEvent(PoissonSampling(1e-3), LaplaceSumEvent(1.0, 1e3), REPLACE),
}


@pytest.mark.parametrize("make", [PRVAccountant, RDPAccountant, MomentsAccountant])
@pytest.mark.parametrize("name", MIXED)
def test_a_replacement_beside_other_events_costs_no_less_than_they_alone(name, make):
    event, count = MIXED[name]
    alone = make().compose(event, count)
    epsilon = alone.get_epsilon(1e-5)
    half = min(epsilon, 100.0) / 2
    # Each is beside one of them, and all of them are beside some.
    further = list(REPLACED.values())[list(MIXED).index(name) % len(REPLACED)]
    both = make().compose(event, count).compose(further)
    # Grids of other steps round otherwise, within the relative error of an epsilon.
    of_epsilon, of_delta = (5e-3, 5e-2) if make is PRVAccountant else (1e-6, 1e-6)
    assert both.get_epsilon(1e-5) >= epsilon * (1 - of_epsilon)
    assert both.get_delta(half) >= alone.get_delta(half) * (1 - of_delta)
    if make is PRVAccountant:  # Nor is nearly nothing charged as much as the rest once more.
        assert both.get_epsilon(1e-5) <= epsilon * 1.05 + 0.05


@pytest.mark.parametrize(
    "make", [PRVAccountant, RDPAccountant, BasicComposition, StrongComposition]
)
def test_any_two_events_cost_no_less_than_one_of_them(make):
    pairs = [*MIXED.values(), *((event, 3) for event in REPLACED.values())]
    for (event, count), (further, more) in itertools.pairwise(pairs):
        if not (make().supports(event) and make().supports(further)):
            continue
        alone = make().compose(event, count).get_epsilon(1e-5)
        both = make().compose(event, count).compose(further, more).get_epsilon(1e-5)
        assert both >= alone * (1 - 1e-3)


@pytest.mark.parametrize("name", REPLACED)
def test_one_step_beside_a_replacement_costs_its_closed_form(name):
    q, z = 0.01, 0.5
    accountant = PRVAccountant().compose(_step(q, z, ZERO)).compose(REPLACED[name])
    for epsilon in (0.5, 2.0):
        exact = q * gaussian_delta(1 / z, math.log1p(math.expm1(epsilon) / q))
        assert accountant.get_delta(epsilon) >= exact
    exact = math.log1p(q * math.expm1(gaussian_epsilon(1 / z, 1e-5 / q)))
    assert accountant.get_epsilon(1e-5) >= exact
