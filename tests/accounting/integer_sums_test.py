"""Prices of sums of integers, against divergences that are summed up to forty digits."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from tfdp import accounting
from tfdp.accounting import integer_sums
from tfdp.accounting.dp_events import to_dp_event
from tfdp.accounting.mechanisms import (
    BoundedRange,
    Concentrated,
    NoPrivacy,
    PureEpsilon,
    SampledGaussian,
    SampledLaplace,
    SkellamNoise,
)
from tfdp.accounting.normal_form import normal_form
from tfdp.events import (
    ComposedEvent,
    ExponentialMechanismEvent,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSharesSumEvent,
    GaussianSumEvent,
    IntegerGaussianSumEvent,
    LaplaceSumEvent,
    NeighboringRelation,
    ParallelComposition,
    PoissonSampling,
    PureEpsilonEvent,
    SampledEvent,
    SkellamSharesSumEvent,
    UnsupportedEventError,
)
from tfdp.ledger.entry import LedgerEntry

ADD, REPLACE, ZERO = NeighboringRelation
SUM = IntegerGaussianSumEvent(2.0, 4.0)
RHO = 1 / 8


def divergence(probability, shift, order, support):
    """Returns the Renyi divergence of integers that are moved from those that are not."""
    with mpmath.workdps(40):
        a = mpmath.mpf(order)
        weights = [probability(x) for x in support]
        moved = dict(zip(support, weights, strict=True))
        total = mpmath.fsum(
            moved[x - shift] ** a * w ** (1 - a)
            for x, w in zip(support, weights, strict=True)
            if x - shift in moved and w > 0
        )
        return float(mpmath.log(total / mpmath.fsum(weights)) / (a - 1))


@pytest.mark.parametrize("stddev", [0.25, 0.7, 3.0])
@pytest.mark.parametrize("order", [1.5, 2, 3.25, 8])
def test_no_divergence_of_a_discrete_gaussian_is_above_that_of_a_gaussian(stddev, order):
    def density(x):
        return mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(stddev) ** 2))

    for shift in (1, 2):
        # Tails matter at a times the shift.
        exact = divergence(density, shift, order, range(-80, 81))
        (price,) = normal_form(IntegerGaussianSumEvent(float(shift), stddev)).mechanisms
        assert exact <= price.rho * order * (1 + 1e-12)
        if float(order * shift).is_integer():
            assert exact == pytest.approx(price.rho * order, rel=1e-9)


def test_renyi_and_concentrated_prices_are_those_of_a_gaussian():
    gaussian = GaussianSumEvent(2.0, 4.0)
    for make in (accounting.RDPAccountant, accounting.ZCDPAccountant):
        one, other = make().compose(SUM, 10), make().compose(gaussian, 10)
        assert one.get_epsilon(1e-5) == pytest.approx(other.get_epsilon(1e-5), rel=1e-6)
        assert one.get_delta(2.0) == pytest.approx(other.get_delta(2.0), rel=1e-6)
    assert accounting.ZCDPAccountant().compose(SUM, 8).rho == 8 * RHO
    orders = [1.1, 2, 70]
    np.testing.assert_allclose(
        accounting.RDPAccountant().compose(SUM).get_rdp(orders), np.multiply(orders, RHO)
    )


def test_the_default_accountant_says_what_divergences_say():
    renyi = accounting.RDPAccountant().compose(SUM, 10).compose(GaussianSumEvent(1.0, 2.0))
    prv = accounting.PRVAccountant().compose(SUM, 10).compose(GaussianSumEvent(1.0, 2.0))
    assert prv.get_epsilon(1e-5) == pytest.approx(renyi.get_epsilon(1e-5), rel=1e-6)
    assert prv.get_delta(3.0) == pytest.approx(renyi.get_delta(3.0), rel=1e-6)
    assert prv.get_epsilon_interval(1e-5).lower == 0


@pytest.mark.parametrize("name", ["pld", "gdp", "strong", "basic"])
def test_others_refuse_by_name_and_say_who_knows(name):
    with pytest.raises(UnsupportedEventError, match="Concentrated.*Ask 'rdp'"):
        accounting.make_accountant(name).compose(SUM)


@pytest.mark.parametrize(
    ("sampling", "relation", "times"),
    [
        (PoissonSampling(0.01), ADD, 1),
        (PoissonSampling(0.01), ZERO, 1),
        (PoissonSampling(0.01), REPLACE, 4),
        (FixedSizeSampling(10, 1000), REPLACE, 4),
        (FixedSizeSampling(10, 1000), ADD, 4),
        (FullBatchSampling(), REPLACE, 4),
        (FullBatchSampling(), ZERO, 1),
    ],
)
def test_samples_are_charged_as_the_whole(sampling, relation, times):
    step = SampledEvent(sampling, SUM, relation)
    assert normal_form(step).mechanisms == (Concentrated(times * RHO),)
    twice = SampledEvent(sampling, ComposedEvent((SUM, SUM)), relation)
    assert sum(m.rho for m in normal_form(twice).mechanisms) == 2 * times * RHO
    accountant = accounting.ZCDPAccountant().compose(step)
    assert accountant.rho == times * RHO


@pytest.mark.parametrize(
    ("sampling", "relation", "factor"),
    [
        (PoissonSampling(0.5), ADD, 1),
        (PoissonSampling(0.5), REPLACE, 2),
        (FixedSizeSampling(1, 9), ADD, 2),
        (FixedSizeSampling(1, 9), REPLACE, 2),
    ],
)
def test_beside_a_sum_of_integers_nothing_is_amplified(sampling, relation, factor):
    beside = {
        GaussianSumEvent(1.0, 2.0): SampledGaussian(1.0, 2.0 / factor),
        LaplaceSumEvent(1.0, 2.0): SampledLaplace(1.0, 2.0 / factor),
        PureEpsilonEvent(0.5): PureEpsilon(0.5 * factor),
        ExponentialMechanismEvent(0.5): BoundedRange(0.5 * factor),
    }
    step = SampledEvent(sampling, ComposedEvent((SUM, *beside)), relation)
    expected = {Concentrated(factor**2 * RHO), *beside.values()}
    assert set(normal_form(step).mechanisms) == expected
    # So the price is that of all of them in a full batch.
    whole = FullBatchSampling()
    if relation is REPLACE:
        full = SampledEvent(whole, ComposedEvent((SUM, *beside)), relation)
        assert set(normal_form(full).mechanisms) == expected


def test_disjoint_parts_cost_what_the_dearest_does():
    parts = ParallelComposition((SUM, IntegerGaussianSumEvent(4.0, 4.0)))
    assert normal_form(parts).mechanisms == (Concentrated(4 * RHO),)


def test_without_noise_there_is_no_privacy():
    for event in (IntegerGaussianSumEvent(1.0, 0.0), IntegerGaussianSumEvent(1.0, 1.0, True)):
        assert normal_form(event).mechanisms == (NoPrivacy(),)
    assert normal_form(IntegerGaussianSumEvent(1e300, 1e-300)).mechanisms == (NoPrivacy(),)


def test_dp_accounting_says_the_same():
    import dp_accounting

    event = to_dp_event([LedgerEntry(SUM, 10)])
    orders = [1.5, 2, 3, 5, 8, 16, 32]
    theirs = dp_accounting.rdp.RdpAccountant(orders=orders).compose(event)
    ours = accounting.RDPAccountant().compose(SUM, 10).get_epsilon(1e-5)
    assert ours <= theirs.get_epsilon(1e-5) <= 1.2 * ours


def convolved(stddev, count, support):
    """Returns the probabilities of a sum of so many discrete Gaussians, to forty digits."""
    with mpmath.workdps(40):
        s2 = mpmath.mpf(stddev) ** 2
        one = [mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * s2)) for x in range(-support, support + 1)]
        total = mpmath.fsum(one)
        one = [p / total for p in one]
        sums = one
        for _ in range(count - 1):
            # Far tails are cut off: the support stays.
            sums = [
                mpmath.fsum(
                    sums[j] * one[i - j + support]
                    for j in range(max(0, i - support), min(2 * support, i + support) + 1)
                )
                for i in range(2 * support + 1)
            ]
        return {x: sums[x + support] for x in range(-support, support + 1)}


# Standard deviation of a share, shares, and where their tails are cut off.
SHARES = [(0.3, 2, 12), (0.5, 3, 16), (0.8, 4, 24)]


@pytest.mark.parametrize(("stddev", "count", "support"), SHARES)
def test_ratio_to_a_discrete_gaussian_is_within_the_interval(stddev, count, support):
    sums = convolved(stddev, count, support)
    log_ratio = [
        float(mpmath.log(p) + mpmath.mpf(x) ** 2 / (2 * count * mpmath.mpf(stddev) ** 2))
        for x, p in sums.items()
        if abs(x) <= support // 2
    ]
    width = max(log_ratio) - min(log_ratio)
    bound = integer_sums.interval_of_shares(stddev, count)
    assert width <= bound * (1 + 1e-9)
    # Two shares attain it; more of them are nearer to a discrete Gaussian than is known here.
    assert count > 2 or width >= 0.999999 * bound
    # The published bound is larger.
    published = 10 * sum(
        math.exp(-2 * (math.pi * stddev) ** 2 * k / (k + 1)) for k in range(1, count)
    )
    assert bound <= published or stddev < math.sqrt(0.5)


@pytest.mark.parametrize(("stddev", "count", "support"), SHARES)
@pytest.mark.parametrize("order", [1.25, 2, 6])
def test_price_of_shares_is_above_the_divergence(stddev, count, support, order):
    sums = convolved(stddev, count, support)
    event = SampledEvent(FullBatchSampling(), GaussianSharesSumEvent(1.0, stddev, count, 1), ZERO)
    (price,) = normal_form(event).mechanisms
    exact = divergence(sums.__getitem__, 1, order, range(-support // 2, support // 2 + 1))
    assert exact <= price.rho * order * (1 + 1e-9)
    if stddev > 0.7:
        assert price.rho * order <= 1.03 * exact


def test_noise_of_usual_size_is_that_of_a_gaussian():
    shares = GaussianSharesSumEvent(1000.0, 100.0, 400, 2**20)
    (price,) = normal_form(SampledEvent(FullBatchSampling(), shares, REPLACE)).mechanisms
    assert price.rho == pytest.approx(0.5, rel=1e-9)


def test_a_replacement_moves_shares_twice_as_far():
    shares = GaussianSharesSumEvent(2.0, 0.5, 4, 2**10)
    (price,) = normal_form(SampledEvent(FullBatchSampling(), shares, REPLACE)).mechanisms
    twice = SampledEvent(FullBatchSampling(), shares.scaled(2.0), ZERO)
    assert normal_form(twice).mechanisms == (Concentrated(pytest.approx(price.rho, rel=1e-9)),)


def test_fewer_shares_may_be_the_better_bound():
    # Where T is large: one share alone has none.
    for count in (1, 2, 64, 10**6, 2**62):
        shares = GaussianSharesSumEvent(10.0, 0.25, count, 2**30)
        (price,) = normal_form(SampledEvent(FullBatchSampling(), shares, ZERO)).mechanisms
        assert price.rho <= 100 / 0.25**2 / 2 * (1 + 1e-9)


@pytest.mark.parametrize("count", [1, 2, 3, 100, 1024, 1025, 5000])
def test_interval_of_many_shares_is_not_below_the_sum(count):
    every = [integer_sums._width(0.49 * k / (k + 1)) for k in range(1, count)]
    found = integer_sums.interval_of_shares(0.7, count)
    assert math.fsum(every) * (1 - 1e-12) <= found <= 1.1 * math.fsum(every) + 1e-12


def test_both_ways_to_compute_a_width_meet():
    below, above = integer_sums._width(0.16), integer_sums._width(0.16 * (1 + 1e-12))
    assert below == pytest.approx(above, rel=1e-8)


@pytest.mark.parametrize(
    "shares", [GaussianSharesSumEvent(1.0, 2.0, 100, 10), SkellamSharesSumEvent(1.0, 1.0, 2.0, 100)]
)
def test_records_that_take_their_noise_with_them_have_no_price(shares):
    for event in (shares, SampledEvent(PoissonSampling(0.5), shares, ADD)):
        for name in ("rdp", "prv", "zcdp"):
            with pytest.raises(UnsupportedEventError, match="Declare ZERO_OUT or REPLACE_ONE"):
                accounting.make_accountant(name).compose(event)
    accountant = accounting.RDPAccountant().compose(
        SampledEvent(PoissonSampling(0.5), shares, ZERO)
    )
    assert accountant.get_rdp([8])[0] == pytest.approx(8 / 800, rel=0.01)


def test_shares_without_noise_are_no_privacy():
    for event in (
        GaussianSharesSumEvent(1.0, 0.0, 5, 5),
        GaussianSharesSumEvent(1.0, 1.0, 5, 5, seeded=True),
        GaussianSharesSumEvent(1e200, 1.0, 5, 2**62),
        SkellamSharesSumEvent(1.0, 1.0, 0.0, 5),
        SkellamSharesSumEvent(1.0, 1.0, 1.0, 5, seeded=True),
        SkellamSharesSumEvent(1e300, 1e300, 1e-300, 5),
    ):
        sampled = SampledEvent(FullBatchSampling(), event, ZERO)
        assert normal_form(sampled).mechanisms == (NoPrivacy(),)


SKELLAM = SkellamSharesSumEvent(5.0, 2.0, 3.0, 16)


@pytest.mark.parametrize(
    ("sampling", "relation", "factor"),
    [
        (PoissonSampling(0.01), ZERO, 1),
        (PoissonSampling(0.01), REPLACE, 2),
        (FixedSizeSampling(10, 1000), ZERO, 1),
        (FixedSizeSampling(10, 1000), REPLACE, 2),
        (FullBatchSampling(), REPLACE, 2),
    ],
)
def test_skellam_shares_are_charged_as_the_whole(sampling, relation, factor):
    step = SampledEvent(sampling, SKELLAM, relation)
    (found,) = normal_form(step).mechanisms
    assert (found.l2_norm, found.variance) == (2.0 * factor, 144.0)
    assert found.l1_norm in (4.0 * factor, 5.0 * factor)
    both = SampledEvent(
        sampling, ComposedEvent((SKELLAM, GaussianSharesSumEvent(1.0, 2.0, 4, 9))), relation
    )
    kinds = {type(mechanism) for mechanism in normal_form(both).mechanisms}
    assert kinds == {SkellamNoise, Concentrated}


def test_an_l1_norm_of_integers_is_at_most_the_square_of_the_l2_norm():
    for l1, expected in ((3.0, 3.0), (5.0, 4.0), (1e9, 4.0)):
        event = SampledEvent(FullBatchSampling(), SkellamSharesSumEvent(l1, 2.0, 3.0, 1), ZERO)
        assert normal_form(event).mechanisms == (SkellamNoise(expected, 2.0, 9.0),)


def test_who_prices_skellam_noise():
    step = SampledEvent(FullBatchSampling(), SKELLAM, ZERO)
    renyi = accounting.RDPAccountant().compose(step, 10).get_epsilon(1e-5)
    assert accounting.PRVAccountant().compose(step, 10).get_epsilon(1e-5) <= renyi * (1 + 1e-9)
    gaussian = SampledEvent(FullBatchSampling(), GaussianSumEvent(2.0, 12.0), ZERO)
    least = accounting.RDPAccountant().compose(gaussian, 10).get_epsilon(1e-5)
    assert least < renyi < 1.01 * least
    # The best order is found, between whole ones too.
    orders = np.arange(1.01, 60, 0.01)
    on_grid = accounting.RDPAccountant(orders).compose(step, 10).get_epsilon(1e-5)
    assert renyi <= on_grid * (1 + 1e-3)
    for name in ("zcdp", "gdp", "pld", "strong", "basic"):
        with pytest.raises(UnsupportedEventError, match="SkellamNoise.*Ask 'rdp'"):
            accounting.make_accountant(name).compose(step)
    with pytest.raises(UnsupportedEventError, match="not supported in a ParallelComposition"):
        normal_form(SampledEvent(FullBatchSampling(), ParallelComposition((SKELLAM,)), ZERO))


EXTREMES = [5e-324, 1e-310, 1e-170, 1e-150, 1e-10, 1.0, 1e10, 1e150, 1e170, 1e308]


@pytest.mark.parametrize("name", ["rdp", "zcdp", "prv", "pld"])
def test_numbers_at_the_ends_of_a_float_have_a_price(name):
    priced = 0
    for bound, stddev in itertools.product(EXTREMES, EXTREMES):
        for event in (
            IntegerGaussianSumEvent(bound, stddev),
            GaussianSharesSumEvent(bound, stddev, 2, 1),
            GaussianSharesSumEvent(bound, stddev, 1, 10**9),
            SkellamSharesSumEvent(bound, bound, stddev, 2),
            SkellamSharesSumEvent(1e308, bound, stddev, 2),
        ):
            accountant = accounting.make_accountant(name)
            try:
                accountant.compose(SampledEvent(FullBatchSampling(), event, REPLACE))
                epsilon = accountant.get_epsilon(1e-5)
            except UnsupportedEventError:
                continue
            priced += 1
            assert epsilon >= 0
            if stddev <= 1e-3 * bound:
                assert epsilon > 1
    assert priced >= 100
