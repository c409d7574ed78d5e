"""Uploads with noise: what is charged when, what moves by how much, how much noise there is."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from tfdp.accounting import Budget, PrivacyBudgetExceededError, RDPAccountant
from tfdp.events import (
    ComposedEvent,
    DiscreteGaussianSumEvent,
    GaussianSumEvent,
    NonPrivateEvent,
    PureEpsilonEvent,
)
from tfdp.federated.selective import (
    GaussianUpload,
    ParameterServer,
    Participant,
    SparseVectorUpload,
    private_uploads,
    run_epoch,
)
from tfdp.ledger import PrivacyLedger
from tfdp.noise import SeededRandomSource, SystemRandomSource
from tfdp.query.scores import STEPS


def sparse(ledger=None, theta_u=0.25, gamma=1.0, tau=0.0, epsilon=9.0, **options):
    ledger = PrivacyLedger() if ledger is None else ledger
    return SparseVectorUpload(theta_u, gamma, tau, epsilon, ledger, **options)


def gaussian(ledger=None, theta_u=0.25, clip=1.0, multiplier=2.0, gamma=100.0, **options):
    ledger = PrivacyLedger() if ledger is None else ledger
    return GaussianUpload(theta_u, clip, multiplier, gamma, ledger, **options)


BOTH = pytest.mark.parametrize("make", [sparse, gaussian])
CHANGES = np.linspace(-2, 2, 40).astype(np.float32)


class _NoBits(SystemRandomSource):
    """The machine stops when noise would be drawn."""

    def normal(self, *arguments):
        raise OSError("off")

    on_host = integers = laplace = discrete_gaussian = normal


@BOTH
def test_an_upload_is_charged_before_its_noise_is_drawn(make):
    upload = make(random_source=_NoBits())
    with pytest.raises(OSError, match="off"):
        upload(CHANGES)
    assert [tuple(entry) for entry in upload.ledger] == [(upload.event(40), 1)]


@BOTH
def test_what_is_not_charged_is_not_uploaded(make):
    ledger = PrivacyLedger()
    epsilon = RDPAccountant()
    epsilon.compose(make().event(40), 2)
    budget = Budget(epsilon.get_epsilon(1e-5), 1e-5, "rdp")
    participants = {"a": Participant(lambda w: w + 1, make(ledger, budget=budget))}
    server = ParameterServer(np.zeros(40, np.float32))
    for _ in range(2):
        run_epoch(server, participants)
    before = server.parameters.copy()
    with pytest.raises(PrivacyBudgetExceededError):
        participants["a"].turn(server)
    assert set(run_epoch(server, participants)) == {"a"}
    assert server.version == ledger.total_count == 2
    assert np.array_equal(server.parameters, before)


def test_events_say_what_the_noise_is_for():
    # c = 10; 8/9 and 1/9 of 9.
    expected = ComposedEvent((PureEpsilonEvent(8.0), PureEpsilonEvent(1.0)))
    assert sparse().event(40) == expected
    # From one vector of norm 1 to another.
    assert gaussian().event(40) == GaussianSumEvent(2.0, 2.0)
    event = gaussian(precision="exact").event(40)
    assert isinstance(event, DiscreteGaussianSumEvent)
    assert (event.l2_norm_bound, event.noise_stddev, event.seeded) == (2.0, 2.0, False)


def test_total_epsilon_is_that_of_all_epochs():
    upload = sparse()
    for _ in range(3):
        upload(CHANGES)
    assert upload.ledger.epsilon(0.0, "rdp") == pytest.approx(27)
    # Of a Gaussian with mu = sqrt(3) * 2 / 2.
    upload = gaussian()
    for _ in range(3):
        upload(CHANGES)
    assert upload.ledger.epsilon(1e-5, "rdp") == pytest.approx(9.2, abs=0.3)


@BOTH
def test_noise_that_somebody_could_repeat_is_charged_as_none(make):
    upload = make(random_source=SeededRandomSource(0))
    upload(CHANGES)
    assert [event for event, _ in upload.ledger] == [NonPrivateEvent()]


@BOTH
def test_nothing_is_charged_where_nothing_may_be_shared(make):
    upload = make(theta_u=0.02)
    assert upload(CHANGES)[0] == 40 and len(upload(CHANGES).indices) == 0
    assert upload.ledger.total_count == 0


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_counts_as_zero(make, bad, monkeypatch):
    changes = np.full(40, bad, np.float32)
    found = make(theta_u=1.0)(changes)
    assert np.all(np.isfinite(found.values)) and np.all(np.diff(found.indices) > 0)
    assert np.all(np.abs(found.values) <= 100)


# Noise is replaced by a chosen one, so that it is seen what it is added to and how large it is.


@pytest.fixture
def scales(monkeypatch):
    """Draws no noise, and returns the list of scales that were asked for."""
    asked = []

    def draw(fill, scale, size):
        asked.append((scale, size))
        return np.zeros(size, np.int64)

    monkeypatch.setattr(private_uploads, "discrete_laplaces", draw)
    return asked


def test_scales_are_those_of_the_formula(scales):
    upload = sparse(theta_u=0.25, gamma=0.5, tau=0.25, epsilon=9.0)
    found = upload(CHANGES)
    # c = 10, e1 + e2 = 8, e3 = 1, in steps of gamma / 2^20.
    e1 = 8 / (1 + 20 ** (2 / 3))
    (threshold, one), (sums, all_of_them), (numbers, shared) = scales
    assert (one, all_of_them, shared) == (1, 40, 10)
    assert float(threshold) == pytest.approx(STEPS / e1)
    assert float(sums) == pytest.approx(STEPS * 20 / (8 - e1))
    assert float(numbers) == STEPS * 20
    # Without noise: ten of those at or above the threshold, bounded to gamma.
    assert np.all(np.abs(CHANGES[found.indices]) >= 0.25)
    assert np.array_equal(
        found.values, (np.trunc(np.clip(CHANGES[found.indices] * 2, -1, 1) * STEPS) / STEPS / 2)
    )


def test_noise_of_the_threshold_moves_it(monkeypatch):
    def draw(fill, scale, size):
        return np.full(size, 2 * STEPS if size == 1 else 0)

    monkeypatch.setattr(private_uploads, "discrete_laplaces", draw)
    assert len(sparse()(CHANGES).indices) == 0


def test_data_move_magnitudes_by_one_bound_and_numbers_by_two(monkeypatch):
    seen = []

    def share(self, fill, steps, count):
        seen.append(np.sort(steps))
        return np.arange(0), np.arange(0)

    monkeypatch.setattr(SparseVectorUpload, "_share", share)
    upload = sparse(gamma=0.3)
    for changes in (
        np.float32([3e38, -3e38, 0.3, -0.3, np.nan, np.inf, 0.15, 1e-40]),
        np.random.default_rng(0).normal(size=10_000).astype(np.float32),
    ):
        upload(changes)
    assert seen[0].tolist() == [-STEPS] * 2 + [0] * 3 + [STEPS // 2] + [STEPS] * 2
    # Magnitudes are in [0, STEPS], and numbers in [-STEPS, STEPS]; both ends occur.
    assert seen[1].min() == -STEPS and seen[1].max() == STEPS
    assert seen[1].dtype == np.int64


def test_one_answer_of_neighbours_is_within_epsilon():
    """Two changes, one of which is shared: log ratios of neighbours, by integration.

    The density of a shared number is a product, and so are the two bounds: 8 for which one it is,
    1 for the number.
    """
    e1 = 8 / (1 + 2 ** (2 / 3))
    rho = np.linspace(-8, 8, 40_001)
    density = stats.laplace.pdf(rho, scale=1 / e1)
    dense = 2 / (8 - e1)

    def second_is_shared(magnitudes):
        below, above = (stats.laplace.sf(rho - m, scale=dense) for m in magnitudes)
        return integrate.trapezoid(density * (1 - below) * above, rho)

    corners = [second_is_shared((a, b)) for a in (0, 0.5, 1) for b in (0, 0.5, 1)]
    worst = math.log(max(corners) / min(corners))
    assert 3 < worst <= 8
    # The number: noise of scale 2 c / e3 = 2 for one that moves by 2.
    assert stats.laplace.logpdf(0, scale=2) - stats.laplace.logpdf(2, scale=2) == pytest.approx(1)
    # If only the noised number were bounded, and not the change, one of size 100 would be told
    # from zero by the bound itself.
    told = stats.laplace.sf(1 - 100, scale=2) / stats.laplace.sf(1, scale=2)
    assert math.log(told) > 1.1


def shares(upload, changes, runs):
    """How often each set of places was shared."""
    counts: dict = {}
    for _ in range(runs):
        key = tuple(upload(changes).indices.tolist())
        counts[key] = counts.get(key, 0) + 1
    return counts


def test_which_ones_are_shared_has_the_probabilities_of_the_mechanism():
    epsilon, runs = 6.0, 500
    upload = sparse(theta_u=0.5, tau=0.5, epsilon=epsilon)
    counts = shares(upload, np.float32([1.0, 0.0]), runs)
    assert set(counts) <= {(), (0,), (1,)}

    def expected(factor):
        total = epsilon * 8 / 9
        e1 = total / (1 + 2 ** (2 / 3))
        rho = np.linspace(-40, 40, 40_001)
        density = stats.laplace.pdf(rho, scale=factor / e1)
        large, small = (
            stats.laplace.sf(0.5 + rho - m, scale=factor * 2 / (total - e1)) for m in (1.0, 0.0)
        )
        # The large one comes first, or second, each half of the time.
        first = integrate.trapezoid(density * large * (1 + 1 - small) / 2, rho)
        second = integrate.trapezoid(density * small * (1 + 1 - large) / 2, rho)
        return runs * np.array([1 - first - second, first, second])

    found = [counts.get(key, 0) for key in ((), (0,), (1,))]
    assert stats.chisquare(found, expected(1)).pvalue > 1e-9
    # Noise that is too small by half would be seen, and so would all noise of the sums at once.
    assert stats.chisquare(expected(0.5), expected(1)).pvalue < 1e-15


def test_numbers_have_the_noise_of_their_share(check_independent):
    # c = n = 2000, and e3 = epsilon / 9 = 10^5: scale 2 c / e3 = 0.04. All are far above tau.
    upload = sparse(theta_u=1.0, gamma=1.0, tau=0.0, epsilon=9e5)
    first, second = (upload(np.full(2000, 0.5, np.float32)) for _ in range(2))
    assert len(first.indices) > 1900
    noise = first.values - 0.5
    assert stats.kstest(noise, stats.laplace(scale=0.04).cdf).pvalue > 1e-9
    # Of noise that is twice or half as large distributions are 0.125 apart.
    for factor in (0.5, 2.0):
        assert stats.kstest(noise * factor, stats.laplace(scale=0.04).cdf).pvalue < 1e-12
    both = np.intersect1d(first.indices, second.indices)
    check_independent(
        noise[np.isin(first.indices, both)], (second.values - 0.5)[np.isin(second.indices, both)]
    )


@pytest.mark.parametrize("precision", ["float", "exact"])
def test_gaussian_noise_is_that_of_the_event(check_stddev, precision):
    upload = gaussian(theta_u=0.5, clip=0.5, multiplier=3.0, precision=precision)
    check_stddev(upload(np.zeros(4000, np.float32)).values, 1.5)


def test_a_subset_is_clipped_together():
    upload = gaussian(theta_u=0.5, clip=2.0, multiplier=0.0)
    found = upload(np.full(8, 3.0, np.float32))
    # Four of them with norm 6 become four with norm 2.
    assert len(found.indices) == 4
    assert found.values == pytest.approx(np.ones(4), abs=1e-6)
    assert upload.ledger.epsilon(1e-5, "rdp") == math.inf
    upload = gaussian(theta_u=0.5, clip=100.0, multiplier=0.0, gamma=1.0)
    assert upload(np.full(8, 3.0, np.float32)).values.tolist() == [1.0] * 4


def test_places_are_chosen_without_looking():
    upload = gaussian(theta_u=0.25, multiplier=1.0)
    changes = np.float32([100, 0, 0, 0])
    counts = shares(upload, changes, 120)
    assert set(counts) == {(0,), (1,), (2,), (3,)}
    assert stats.chisquare(list(counts.values())).pvalue > 1e-9
    assert stats.chisquare([75, 15, 15, 15]).pvalue < 1e-15


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda: sparse(epsilon=0.0), ValueError),
        (lambda: sparse(epsilon=math.nan), ValueError),
        (lambda: sparse(tau=-1.0), ValueError),
        (lambda: sparse(gamma=0.0), ValueError),
        (lambda: sparse(theta_u=2.0), ValueError),
        (lambda: sparse(ledger="a file"), TypeError),
        (lambda: sparse(budget=1.0), TypeError),
        (lambda: sparse(random_source=np.random), TypeError),
        (lambda: gaussian(clip=0.0), ValueError),
        (lambda: gaussian(multiplier=-1.0), ValueError),
        (lambda: gaussian(multiplier=2.0**-30, precision="exact"), ValueError),
        (lambda: gaussian(precision="double"), ValueError),
        (lambda: gaussian(ledger=None, budget="b"), TypeError),
    ],
)
def test_refuses_bad_arguments(make, error):
    with pytest.raises(error):
        make()


def test_refuses_noise_that_has_too_many_digits_before_anything_is_shared():
    upload = sparse(theta_u=1.0, epsilon=1e-6)
    with pytest.raises(ValueError, match="more epsilon"):
        upload(np.zeros(1000, np.float32))
    assert upload.ledger.total_count == 0


def test_every_bound_that_is_taken_can_be_used():
    for gamma in (1e-12, 1e18):
        found = sparse(gamma=gamma)(np.zeros(40, np.float32))
        assert len(found.values) <= 10 and np.all(np.abs(found.values) <= gamma)
