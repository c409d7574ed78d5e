"""Exposure of a model whose probabilities are known, counted and extrapolated."""

import itertools

import numpy as np
import pytest
from scipy import stats

from tfdp.audit import (
    exact_exposure,
    extrapolated_exposure,
    log_perplexities,
    random_secrets,
    skew_normal_p_value,
)

# The next digit is k with probability proportional to 2^-k, whatever came before.
PROBABILITIES = 2.0 ** -np.arange(4) / np.sum(2.0 ** -np.arange(4))


def known_model(tokens):
    return np.broadcast_to(np.log(PROBABILITIES), (*np.shape(tokens), 4))


def test_each_token_has_the_distribution_after_the_one_before():
    def model(tokens):  # After the token k in place i, each of 4 has the logarithm 10 i + k.
        told = 10.0 * np.arange(tokens.shape[1]) + tokens
        return np.broadcast_to(told[..., None], (*tokens.shape, 4))

    texts = np.array([[3, 1, 2, 0], [0, 0, 1, 3]])
    # 3 + 11 + 22 and 0 + 10 + 21; what follows the last token is not asked.
    assert log_perplexities(model, texts).tolist() == [-36.0, -31.0]
    assert log_perplexities(model, texts, start=3).tolist() == [-22.0, -21.0]


def test_exposure_of_a_known_model_is_its_rank():
    # After a common beginning, a text is less probable the larger the sum of its digits is.
    space = np.array([(3, *digits) for digits in itertools.product(range(4), repeat=3)])
    found = log_perplexities(known_model, space)
    expected = np.log(2) * space[:, 1:].sum(axis=1) - 3 * np.log(PROBABILITIES[0])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    most_likely, next_one, last = (
        exact_exposure(found[i], np.delete(np.round(found, 9), i)) for i in (0, 1, 63)
    )
    # The text of zeros is alone; three texts have a sum of one; of all 64 the last is the last.
    assert (most_likely.rank, most_likely.bits, most_likely.most) == (1, 6.0, 6.0)
    assert next_one.rank in (2, 4)
    assert (last.rank, last.bits) == (64, 0.0)


def test_texts_as_probable_as_the_secret_count_against_it():
    assert exact_exposure(1.0, np.ones(7)).bits == 0.0
    assert exact_exposure(1.0, [1.0, 2.0, 2.0]).bits == 1.0


def test_random_secrets_have_uniform_ranks():
    rng = np.random.default_rng(0)
    bits = np.array([exact_exposure(*_split(rng.normal(size=64))).bits for _ in range(2000)])
    # Above b bits with probability 2^-b at most: 1/4 of 2000, and 10 standard deviations more.
    assert np.mean(bits > 2) < 0.25 + 10 * np.sqrt(0.1875 / 2000)
    assert np.mean(bits >= 6) < 1 / 64 + 10 * np.sqrt(1 / 64 / 2000)


def _split(values):
    return values[0], values[1:]


def test_extrapolation_finds_the_tail_of_a_known_distribution():
    shape, place, scale = -2.0, 50.0, 5.0
    sample = stats.skewnorm.rvs(shape, place, scale, size=20_000, random_state=1)
    secret = stats.skewnorm.ppf(2.0**-20, shape, place, scale)
    found = extrapolated_exposure(secret, sample, space=1e9)
    assert found.rank is None and found.most == pytest.approx(np.log2(1e9))
    # Twenty bits; fits of 20,000 texts are off by half a bit there.
    assert found.bits == pytest.approx(20, abs=2)
    # Where the sample reaches, both ways of counting agree.
    near = stats.skewnorm.ppf(2.0**-6, shape, place, scale)
    assert extrapolated_exposure(near, sample, 1e9).bits == pytest.approx(6, abs=0.3)
    assert exact_exposure(near, sample).bits == pytest.approx(6, abs=0.3)
    assert skew_normal_p_value(sample) > 1e-6
    assert skew_normal_p_value(np.random.default_rng(0).exponential(size=5000)) < 1e-6


def test_no_exposure_is_above_the_space_or_below_zero():
    sample = np.random.default_rng(0).normal(size=1000)
    assert extrapolated_exposure(-1e3, sample, 1e6).bits == np.log2(1e6)
    assert extrapolated_exposure(1e3, sample, 1e6).bits == pytest.approx(0, abs=1e-9)


def test_secrets_are_different_and_a_function_of_the_seed():
    secrets = random_secrets(list("0123456789"), 3, 1000, seed=0)
    assert secrets.shape == (1000, 3) and len({"".join(s) for s in secrets}) == 1000
    # A text is a sequence of symbols.
    assert np.array_equal(secrets, random_secrets("0123456789", 3, 1000, seed=0))
    few = random_secrets([0, 1], 8, 20, seed=1)
    assert np.array_equal(few, random_secrets([0, 1], 8, 20, seed=1))
    with pytest.raises(ValueError, match="secrets=1001"):
        random_secrets(list("0123456789"), 3, 1001, seed=0)


def test_what_cannot_be_compared_is_refused():
    for call in (
        lambda: exact_exposure(1.0, []),
        lambda: exact_exposure(1.0, [np.nan]),
        lambda: extrapolated_exposure(1.0, np.zeros(99), 1e3),
        lambda: extrapolated_exposure(1.0, np.zeros(200), 1e3),
        lambda: extrapolated_exposure(1.0, np.arange(200.0), 100),
        lambda: log_perplexities(known_model, [[1, 2]], start=2),
        lambda: log_perplexities(known_model, [[1, 2, -1]]),
        lambda: log_perplexities(known_model, [[1, 2, 4]]),
        lambda: log_perplexities(lambda tokens: np.zeros((1, 2)), [[1, 2]]),
    ):
        with pytest.raises(ValueError, match=r"Received|finite|equally"):
            call()


def test_exposures_that_tensorflow_privacy_publishes():
    # There the secret is ranked beside a sample of 16, here among 17 texts: log2(17 / 16) more.
    others = np.arange(1.0, 17.0)
    for perplexity, rank in [(0.0, 1), (0.1, 1), (3.5, 4), (20.0, 17)]:
        found = exact_exposure(perplexity, others)
        assert found.rank == rank
        assert found.bits - np.log2(17 / 16) == pytest.approx(np.log2(16) - np.log2(rank))
