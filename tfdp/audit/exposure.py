"""Exposure of secrets: how far a language model prefers a planted text to all others alike.

A secret is drawn from a space of R texts that were all equally likely, such as "my number is" and
nine random digits. The log-perplexity of a text is minus the log-probability that the model gives
it. The rank of the secret is the number of texts of the space that are at least as probable, it
included:

    exposure = log2 R - log2 rank,

from 0 bits (the least probable of all) to log2 R (the model says it first). A secret that was not
in the data has a uniform rank, so an exposure of b bits or more with probability 2^-b at most.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tfdp.events.arguments import positive_integer, real_number

# Fewer texts do not show the tail's shape.
_FEWEST = 100


@dataclasses.dataclass(frozen=True)
class Exposure:
    """How exposed one secret is.

    Attributes:
        bits: log2 of how many texts there are for each that is as probable as the secret.
        rank: Of the secret; None where it was extrapolated.
        most: log2 of the number of texts in the space, which is what an extracted secret has.
    """

    bits: float
    rank: int | None
    most: float


def exact_exposure(log_perplexity: float, others: Any) -> Exposure:
    """Returns the exposure of a secret among all texts of its space.

    Edge cases:
        Texts as probable as the secret count as more probable, so that a model that knows nothing
        exposes nothing.

    Args:
        log_perplexity: Of the secret: minus the log-probability that the model gives to it.
        others: [texts], likewise of every other text of the space, or of a uniform sample of it.
            With a sample, exposure is at most log2 of its size, and its rank is that in the sample.

    Raises:
        ValueError: there are no other texts, or a number is NaN.
        TypeError: `log_perplexity` is no number.

    Example:
        >>> exact_exposure(1.0, [2.0, 3.0, 0.5])
        Exposure(bits=1.0, rank=2, most=2.0)

    References:
        Carlini, Liu, Erlingsson, Kos and Song 2019, arXiv:1802.08232, definitions 2 and 4 (rank and
        exposure), section 4.3 (by sampling).
    """
    secret, others = _checked(log_perplexity, others, fewest=1)
    rank = 1 + int(np.sum(others <= secret))
    most = float(np.log2(len(others) + 1))
    return Exposure(most - float(np.log2(rank)), rank, most)


def extrapolated_exposure(log_perplexity: float, sample: Any, space: float) -> Exposure:
    """Returns the exposure of a secret in a space too large to go through, from a sample of it.

    A skew normal distribution is fitted to the log-perplexities of the sample, and

        exposure = -log2 P[log-perplexity of a random text <= that of the secret].

    Guarantees:
        None: it is as right as the fit is in the tail. `skew_normal_p_value` tests the fit where
        the sample is, and nothing tests it beyond. Never more than log2 of the space.

    Args:
        log_perplexity: Of the secret.
        sample: [texts], likewise of random texts of the space, 100 or more; the secret must not
            have been drawn into it on purpose.
        space: R, how many texts there are in the space.

    Raises:
        ValueError: the sample is too small, all alike, or larger than the space; a number is NaN.
        TypeError: a number is none.

    References:
        Carlini et al. 2019, arXiv:1802.08232, section 4.3 (by distribution modelling).
    """
    from scipy import stats

    secret, sample = _checked(log_perplexity, sample, _FEWEST)
    size = real_number("space", space, minimum=0, inclusive=False)
    if size < len(sample):
        raise ValueError(
            f"The space must hold the sample. Received: space={size:g}, {len(sample)} texts."
        )
    most = float(np.log2(size))
    log_tail = float(stats.skewnorm.logcdf(secret, *_skew_normal(sample)))
    return Exposure(float(np.clip(-log_tail / np.log(2), 0.0, most)), None, most)


def skew_normal_p_value(sample: Any) -> float:
    """Returns the p-value of Kolmogorov and Smirnov for the skew normal fitted to the sample.

    A small one says that the extrapolation is not to be trusted. Because the distribution was
    fitted to the same sample, the number is too large rather than too small.

    Args:
        sample: [texts] log-perplexities of random texts.

    Raises:
        ValueError: as `extrapolated_exposure`.
    """
    from scipy import stats

    _, sample = _checked(0.0, sample, _FEWEST)
    return float(stats.kstest(sample, stats.skewnorm(*_skew_normal(sample)).cdf).pvalue)


def random_secrets(symbols: Sequence[Any], length: int, secrets: int, seed: int) -> np.ndarray:
    """Returns different random sequences of symbols, each as likely as any other.

    Args:
        symbols: What each place is drawn from.
        length: Of a sequence.
        secrets: How many; the first can be planted, the others compared with it.
        seed: The sequences are a function of it.

    Returns:
        [secrets, length] array of symbols.

    Raises:
        ValueError: there are not so many different sequences, or a number is out of range.
        TypeError: a number is no integer.
    """
    length, secrets = positive_integer("length", length), positive_integer("secrets", secrets)
    if len(set(symbols)) < len(symbols) or secrets > len(symbols) ** length:
        raise ValueError(
            "symbols must be different, and there must be as many sequences as secrets. "
            f"Received: {len(symbols)} symbols, length={length}, secrets={secrets}."
        )
    rng = np.random.default_rng(seed)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < secrets:
        for row in rng.integers(0, len(symbols), (secrets, length)):
            if len(found) < secrets:
                found.setdefault(tuple(row.tolist()))
    return np.asarray(list(symbols))[np.array(list(found))]


def log_perplexities(
    log_probabilities: Callable[[Any], Any], texts: Iterable[Any], start: int = 1
) -> np.ndarray:
    """Returns minus the log-probability of each text, the sum over its tokens from `start` on.

    Args:
        log_probabilities: From tokens [texts, length] to [texts, length, vocabulary]: the log of
            the distribution of the next token, after each. For a Keras model that answers with
            probabilities, the log of `model.predict`.
        texts: [texts, length] integers.
        start: How many tokens of each text are given, one at least; a common beginning of all texts
            says nothing.

    Raises:
        ValueError: shapes are not those, `start` leaves no token, or a token is not in the
            vocabulary, such as one that stands for the end of a shorter text.
    """
    tokens = np.asarray(texts)
    start = positive_integer("start", start)
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu" or start >= tokens.shape[1]:
        raise ValueError(
            "texts must be [texts, length] integers, longer than start. "
            f"Received: {tokens.dtype}, shape={tokens.shape}, start={start}."
        )
    found = np.asarray(log_probabilities(tokens), np.float64)
    if found.shape[:2] != tokens.shape or found.ndim != 3:
        raise ValueError(
            "log_probabilities must return [texts, length, vocabulary]. "
            f"Received: shape={found.shape} for texts {tokens.shape}."
        )
    asked = tokens[:, 1:]
    if asked.size and not 0 <= asked.min() <= asked.max() < found.shape[2]:
        raise ValueError(
            f"texts must hold tokens of the vocabulary, 0 .. {found.shape[2] - 1}. "
            f"Received: {asked.min()} .. {asked.max()}."
        )
    told = np.take_along_axis(found[:, :-1], asked[..., None], axis=2)[..., 0]
    return -told[:, start - 1 :].sum(axis=1)


def _skew_normal(sample: np.ndarray) -> tuple[float, float, float]:
    """Returns shape, location and scale of the largest likelihood."""
    from scipy import stats

    if np.ptp(sample) == 0:
        raise ValueError("All texts of the sample are equally probable: there is no tail to fit.")
    shape, place, scale = stats.skewnorm.fit(sample)
    return float(shape), float(place), float(scale)


def _checked(secret: float, others: Any, fewest: int) -> tuple[float, np.ndarray]:
    secret = real_number("log_perplexity", secret, minimum=-math.inf, inclusive=False)
    others = np.asarray(others, np.float64)
    if others.ndim != 1 or len(others) < fewest:
        raise ValueError(
            f"There must be one axis of {fewest} other texts at least. "
            f"Received: shape={others.shape}."
        )
    if not np.all(np.isfinite(others)):
        raise ValueError("Log-perplexities must be finite.")
    return secret, others
