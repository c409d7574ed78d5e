"""The sparse vector technique: probabilities of its answers, and those of broken variants."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from scipy import integrate, stats

from tfdp.accounting import RDPAccountant
from tfdp.events import NonPrivateEvent, PureEpsilonEvent
from tfdp.noise import SeededRandomSource
from tfdp.query import AboveThresholdQuery
from tfdp.query.scores import STEPS

EPSILON = 1.0


def probability(sums, answers, threshold_scale, sum_scale, released=None):
    """Returns the probability (density, with a released number) of answers about a threshold 0.

    By integration over the noise of the threshold, given which answers are independent. `released`
    is the noised sum of the last answer where it is the one that was compared.
    """
    rho = np.linspace(-60 * threshold_scale, 60 * threshold_scale, 60_001)
    density = stats.laplace.pdf(rho, scale=threshold_scale)
    for index, (total, above) in enumerate(zip(sums, answers, strict=True)):
        if sum_scale == 0:
            density = density * ((total >= rho) == above)
        elif released is not None and index == len(sums) - 1:
            density = density * stats.laplace.pdf(released - total, scale=sum_scale)
            density = density * (released >= rho)
        else:
            tail = stats.laplace.sf(rho - total, scale=sum_scale)
            density = density * (tail if above else 1 - tail)
    return integrate.trapezoid(density, rho)


def scales(query):
    """Returns the two scales in units of the sensitivity."""
    return [float(scale) / STEPS for scale in query.scales[:2]]


# Every pattern that ends with the last answer that may be above, or goes through all sums.
def outcomes(size, max_above):
    seen = set()
    for bits in itertools.product([False, True], repeat=size):
        answers = []
        for bit in bits:
            answers.append(bit)
            if sum(answers) == max_above:
                break
        seen.add(tuple(answers))
    return sorted(seen)


@pytest.mark.parametrize("monotonic", [False, True])
@pytest.mark.parametrize("max_above", [1, 2])
def test_answers_of_neighbours_are_within_epsilon(monotonic, max_above):
    query = AboveThresholdQuery(0.0, EPSILON, 1.0, max_above, monotonic)
    moves = [0, 1] if monotonic else [-1, 1]
    base = (0.0, 1.0, -1.0)
    patterns = outcomes(3, max_above)
    worst = 0.0
    before = [probability(base[: len(p)], p, *scales(query)) for p in patterns]
    assert sum(before) == pytest.approx(1, rel=1e-5)
    for move in itertools.product(moves, repeat=3):
        moved = np.add(base, move)
        for pattern, p in zip(patterns, before, strict=True):
            q = probability(moved[: len(pattern)], pattern, *scales(query))
            worst = max(worst, abs(math.log(p / q)))
    assert EPSILON / 4 < worst <= EPSILON + 1e-4


# Broken variants, as Lyu, Su and Li 2017 name them in figure 1: scales of threshold and sums, in
# units of the sensitivity, for an epsilon that each claims; then sums of two neighbours, and
# answers that tell them apart.
SHORT, LONG = 1, 12
BROKEN = {
    "algorithm 3 (Roth 2011): the noised sum that was compared is released": (
        (2 / EPSILON, 2 / EPSILON),
        [0.0] * LONG + [1.0],
        [1.0] * LONG + [0.0],
        [False] * LONG + [True],
        0.0,
    ),
    "algorithm 4 (Lee and Clifton 2014): the noise of sums does not grow with max_above": (
        (4 / EPSILON, 4 / (3 * EPSILON)),
        [0.0] * LONG + [1.0] * LONG,
        [1.0] * LONG + [0.0] * LONG,
        [False] * LONG + [True] * LONG,
        None,
    ),
    "algorithm 5 (Stoddard et al. 2014): sums have no noise": (
        (2 / EPSILON, 0.0),
        [0.0, 1.0],
        [1.0, 0.0],
        [False, True],
        None,
    ),
    "algorithm 6 (Chen et al. 2015): any number of sums may be above": (
        (2 / EPSILON, 2 / EPSILON),
        [0.0] * (2 * LONG),
        [1.0] * LONG + [-1.0] * LONG,
        [False] * LONG + [True] * LONG,
        None,
    ),
}


@pytest.mark.parametrize("variant", BROKEN.values(), ids=BROKEN)
def test_broken_variants_violate_their_epsilon(variant):
    noise, sums, neighbour, answers, released = variant
    p = probability(sums, answers, *noise, released)
    q = probability(neighbour, answers, *noise, released)
    assert q == 0 or math.log(p / q) > 1.5 * EPSILON
    if released is None:
        # Of what they answer, ours can answer as much within epsilon.
        query = AboveThresholdQuery(0.0, EPSILON, 1.0, max_above=sum(answers))
        p, q = (probability(values, answers, *scales(query)) for values in (sums, neighbour))
        assert abs(math.log(p / q)) <= EPSILON


@pytest.mark.parametrize("max_above", [1, 2])
def test_frequencies_of_answers_are_the_probabilities(max_above):
    query = AboveThresholdQuery(5.0, 4.0, 2.0, max_above)
    sums = np.array([4.0, 8.0, 3.0])
    state = tf.constant(np.round(sums / 2.0 * STEPS).astype(np.int64))
    counts = dict.fromkeys(outcomes(3, max_above), 0)
    for _ in range(1000):
        result = query.get_noised_result(state, ())[0]
        answered = int(result.answered)
        counts[tuple(result.above.numpy()[:answered].tolist())] += 1
        assert not result.above.numpy()[answered:].any()
        assert not result.values.numpy().any()
    expected = {
        pattern: probability((sums[: len(pattern)] - 5.0) / 2.0, pattern, *scales(query))
        for pattern in counts
    }
    for pattern, count in counts.items():
        low, high = stats.binom.interval(1 - 1e-10, 1000, expected[pattern])
        assert low <= count <= high, pattern


def test_released_numbers_have_noise_of_their_own():
    query = AboveThresholdQuery(0.0, 100.0, 2.0, max_above=3, numeric_epsilon=0.5)
    state = tf.constant([-(2**30), 2**30, 2**30, 2**30, 2**30], tf.int64)
    draws = []
    for _ in range(700):
        above, answered, values = query.get_noised_result(state, ())[0]
        assert above.numpy().tolist() == [False, True, True, True, False] and int(answered) == 4
        assert values.numpy()[[0, 4]].tolist() == [0.0, 0.0]
        draws += (values.numpy()[1:4] - 2.0**30 / STEPS * 2.0).tolist()
    # Lap(3 * 2 / 0.5)
    assert stats.kstest(np.array(draws) / 12.0, "laplace").pvalue > 1e-9
    assert stats.kstest(np.array(draws) / 6.0, "laplace").pvalue < 1e-9


def test_in_a_graph_and_charged_whatever_is_above():
    query = AboveThresholdQuery(0.0, 1.0, 1.0, 2, numeric_epsilon=0.5)
    state = query.initial_sample_state(tf.zeros([4]))
    results = tf.function(lambda: query.get_noised_result(state, ())[0])()
    assert [r.shape for r in results] == [(4,), (), (4,)]
    assert query.derive_event(()) == PureEpsilonEvent(1.5)
    accountant = RDPAccountant()
    accountant.compose(query.derive_event(()))
    assert accountant.get_epsilon(1e-12) <= 1.5
    seeded = AboveThresholdQuery(0.0, 1.0, 1.0, random_source=SeededRandomSource(0))
    assert seeded.derive_event(()) == NonPrivateEvent()


def test_records_are_clipped_to_the_sensitivity():
    query = AboveThresholdQuery(0.0, 1.0, 2.0)
    record = tf.constant([1.0, 5.0, -5.0])
    np.testing.assert_array_equal(query.preprocess_record((), record), [STEPS // 2, STEPS, -STEPS])
    positive = AboveThresholdQuery(0.0, 1.0, 2.0, monotonic=True)
    np.testing.assert_array_equal(positive.preprocess_record((), record), [STEPS // 2, STEPS, 0])
    bad = tf.constant([1.0, np.nan, 1.0])
    np.testing.assert_array_equal(query.preprocess_record((), bad), [0, 0, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": math.nan}, "threshold must be"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": 5e-324}, "epsilon must be finite, at least 1e-300"),
        ({"sensitivity": -1.0}, "sensitivity must be"),
        ({"max_above": 0}, "max_above must be"),
        ({"max_above": 1.0}, "max_above must be"),
        ({"monotonic": 1}, "monotonic must be"),
        ({"numeric_epsilon": 0.0}, "numeric_epsilon must be"),
        ({"numeric_epsilon": 5e-324}, "numeric_epsilon must be finite, at least 1e-300"),
        ({"random_source": 1}, "random_source must be"),
    ],
)
def test_refuses_bad_arguments(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        AboveThresholdQuery(**{"threshold": 0.0, "epsilon": 1.0, "sensitivity": 1.0, **arguments})


def test_the_least_epsilon_has_an_answer_however_many_may_be_above():
    query = AboveThresholdQuery(0.0, 1e-300, 1.0, max_above=2**63 - 1)
    result = query.get_noised_result(tf.zeros([3], tf.int64), ())[0]
    assert int(result.answered) == 3


def test_two_epsilons_are_added_up_without_losing_anything():
    assert 0.1 + 0.7 < Fraction(0.1) + Fraction(0.7)  # As floats are rounded.
    for numeric in (0.7, 0.5, 1e-300, 1e6):
        query = AboveThresholdQuery(0.0, 0.1, 1.0, numeric_epsilon=numeric)
        charged = Fraction(query.derive_event(()).epsilon)
        assert charged >= Fraction(0.1) + Fraction(numeric)
        assert charged <= 0.1 + numeric + math.ulp(0.1 + numeric)
    assert AboveThresholdQuery(0.0, 0.1, 1.0).derive_event(()) == PureEpsilonEvent(0.1)
