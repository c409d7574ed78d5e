"""Which changes are shared, against the definition written out."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from tfdp.federated.selective import LargestValues, RandomAboveThreshold

NUMBERS = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 1e-3, np.nan, np.inf, -np.inf]
CHANGES = st.lists(st.sampled_from(NUMBERS), max_size=10)
FRACTIONS = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])


def shared(vector):
    return dict(zip(vector.indices.tolist(), vector.values.tolist(), strict=True))


def bounded(change, gamma):
    return max(-gamma, min(gamma, change))


@given(CHANGES, FRACTIONS, st.sampled_from([0.75, 2.0, 100.0]))
def test_largest_values_are_those_of_the_definition(changes, theta_u, gamma):
    candidates = [i for i, d in enumerate(changes) if np.isfinite(d) and d != 0]
    # A sort that keeps the order of equal ones.
    candidates.sort(key=lambda i: -abs(changes[i]))
    expected = candidates[: int(theta_u * len(changes))]
    found = LargestValues(theta_u, gamma)(np.array(changes, np.float32))
    assert found.size == len(changes)
    assert found.indices.tolist() == sorted(expected)
    assert found.values.tolist() == [
        np.float32(bounded(changes[i], gamma)) for i in sorted(expected)
    ]


@example([0.001], 1.0, 0.0, 0)  # No float32.
@given(CHANGES, FRACTIONS, st.sampled_from([0.0, 0.5, 0.75, 1.0]), st.integers(0, 3))
def test_random_ones_are_some_above_the_threshold(changes, theta_u, tau, seed):
    gamma = 0.75
    above = [i for i, d in enumerate(changes) if np.isfinite(d) and abs(bounded(d, gamma)) > tau]
    select = RandomAboveThreshold(theta_u, gamma, tau, np.random.default_rng(seed))
    found = shared(select(np.array(changes, np.float32)))
    assert len(found) == min(len(above), int(theta_u * len(changes)))
    assert set(found) <= set(above)
    assert all(found[i] == np.float32(bounded(changes[i], gamma)) for i in found)


def test_every_set_of_random_ones_is_as_likely():
    select = RandomAboveThreshold(0.4, 1.0, 0.1, np.random.default_rng(0))
    changes = np.array([1.0, 0.0, 0.5, -0.2, 0.3], np.float32)
    counts: dict = {}
    for _ in range(3000):
        key = tuple(shared(select(changes)))
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 6  # Two of the four that are above 0.1.
    assert stats.chisquare(list(counts.values())).pvalue > 1e-9
    # Were one of them preferred by a fifth, this would be seen.
    wrong = 3000 / 6 * np.array([1.2, 1.2, 1.2, 0.8, 0.8, 0.8])
    assert stats.chisquare(wrong).pvalue < 1e-12


def test_random_bits_of_the_system_serve_too():
    assert len(RandomAboveThreshold(0.5, 1.0, 0.0)(np.ones(10, np.float32)).indices) == 5


@pytest.mark.parametrize("generator", [0, 5])
def test_what_is_no_generator_is_refused(generator):
    with pytest.raises(TypeError, match="generator must be .* Received: int."):
        RandomAboveThreshold(0.5, 1.0, 0.0, generator)


def test_bound_is_not_exceeded_by_rounding_to_float32():
    # The float32 next to 0.1 is larger than 0.1.
    for select in (LargestValues(1.0, 0.1), RandomAboveThreshold(1.0, 0.1, 0.0)):
        values = select(np.array([5.0, -5.0], np.float32)).values.astype(np.float64)
        assert np.all(np.abs(values) <= 0.1) and np.all(np.abs(values) > 0.0999999)


def test_numbers_beyond_float32_have_not_changed():
    assert len(LargestValues(1.0, 1.0)(np.array([1e300, -1e300])).indices) == 0


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: LargestValues(1.5, 1.0), "theta_u"),
        (lambda: LargestValues(float("nan"), 1.0), "theta_u"),
        (lambda: LargestValues(0.5, 0.0), "gamma"),
        (lambda: RandomAboveThreshold(0.5, 1.0, -1.0), "tau"),
        (lambda: LargestValues(0.5, 1.0)(np.ones((2, 2), np.float32)), "one vector"),
        (lambda: LargestValues(0.5, 1.0)(np.ones(2, np.int32)), "floating-point"),
    ],
)
def test_refuses_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
