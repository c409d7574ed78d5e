"""Lower bounds from scores of many runs with a canary and many without.

A canary is a record that an attacker knows. A score is any number that the attacker computes from
what a run releases, such as the released sum along the canary's gradient: larger where the canary
is believed to be in. With a threshold it is a test, and differential privacy says how good a test
can be: for every event S of the output

    P[S | in] <= e^epsilon P[S | out] + delta,    and the same with in and out exchanged.

One half of the scores, drawn at random, chooses S: a threshold, and the direction in which to read
it. The other half measures the two probabilities, with the bounds of Clopper and Pearson (1934).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdp.events.arguments import real_number

# From (lower bounds of P[S | in], upper bounds of P[S | out]), arrays, to what these prove.
_Proven = Callable[[np.ndarray, np.ndarray], np.ndarray]


def epsilon_lower_bound(
    scores_in: Sequence[float],
    scores_out: Sequence[float],
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Returns an epsilon that the mechanism exceeds at this delta, with the given confidence.

    Guarantees:
        A mechanism that is (epsilon, delta)-differentially private for the two data sets gets a
        larger number with probability 1 - confidence at most, whatever the scores are, if they are
        independent.

    Edge cases:
        0.0 where nothing is shown. From n scores of each kind no more than about log(n / 8) can be
        shown, at 95 %: what is rarer than that is never seen. Equal scores are fine, and infinite
        ones.

    Args:
        scores_in: Of runs with the canary; independent, at least two.
        scores_out: Of runs without it; likewise, not necessarily as many.
        delta: In [0, 1).
        confidence: In (0, 1).

    Raises:
        ValueError: a number is out of range, there are too few scores, or one is NaN.
        TypeError: an argument is not a number.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores_in, scores_out = rng.normal(2.0, size=5000), rng.normal(0.0, size=5000)
        >>> round(epsilon_lower_bound(scores_in, scores_out, delta=1e-5), 1)
        3.9

    References:
        Jagielski, Ullman and Oprea 2020, arXiv:2006.07709; Nasr et al. 2023, arXiv:2302.07956.
    """
    delta = real_number("delta", delta, minimum=0, inclusive=True, maximum=1)
    if delta == 1:
        raise ValueError("delta must be less than 1. Received: delta=1.")

    def proven(rate_in, rate_out):
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(rate_in - delta, 0.0)) - np.log(rate_out)

    return _lower_bound(scores_in, scores_out, confidence, proven)


def mu_lower_bound(
    scores_in: Sequence[float], scores_out: Sequence[float], confidence: float = 0.95
) -> float:
    """Returns a mu that the mechanism exceeds, with the given confidence.

    A mechanism is mu-Gaussian-private where no test tells its outputs apart better than the best
    one tells N(mu, 1) from N(0, 1). With noise multiplier z, T sums of all records are so for
    mu = sqrt(T) / z. Where that is what is claimed, this bound is much closer to it than
    `epsilon_lower_bound`: epsilon at a small delta is about events that are hardly ever seen, mu is
    about all.

    Guarantees:
        A mechanism that is mu-Gaussian-private for the two data sets gets a larger number with
        probability 1 - confidence at most. A mechanism whose trade-off is not a Gaussian's has no
        mu, and nothing follows about its epsilon.

    Edge cases:
        0.0 where nothing is shown.

    Args:
        scores_in: As in `epsilon_lower_bound`.
        scores_out: As in `epsilon_lower_bound`.
        confidence: In (0, 1).

    Raises:
        ValueError: as in `epsilon_lower_bound`.
        TypeError: `confidence` is not a number.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores_in, scores_out = rng.normal(2.0, size=5000), rng.normal(0.0, size=5000)
        >>> mu = mu_lower_bound(scores_in, scores_out)
        >>> round(mu, 2)
        1.86
        >>> from tfdp.accounting import GDPAccountant
        >>> from tfdp.events import GaussianSumEvent
        >>> mechanism = GDPAccountant().compose(GaussianSumEvent(mu, noise_stddev=1.0))
        >>> round(mechanism.get_epsilon(1e-5), 1)
        9.1

    References:
        Dong, Roth and Su 2019, arXiv:1905.02383; Nasr et al. 2023, arXiv:2302.07956.
    """
    from scipy import special

    def proven(rate_in, rate_out):
        return special.ndtri(rate_in) - special.ndtri(rate_out)

    return _lower_bound(scores_in, scores_out, confidence, proven)


def _lower_bound(scores_in: Any, scores_out: Any, confidence: float, proven: _Proven) -> float:
    failure = 1 - check_confidence(confidence)
    # A fixed seed, so that the same scores have the same bound; their order means nothing then.
    rng = np.random.default_rng(0)
    halves_in = _halves(_scores("scores_in", scores_in), rng)
    halves_out = _halves(_scores("scores_out", scores_out), rng)
    choices = []
    # The canary may show by a large score or by a small one, and its absence, too.
    for sign in (1, -1):
        for swap in (False, True):
            for_choice, for_measure = (
                (sign * b, sign * a) if swap else (sign * a, sign * b)
                for a, b in zip(halves_in, halves_out, strict=True)
            )
            scores = np.sort(np.concatenate(for_choice))
            thresholds = _candidates(scores)
            bounds = _proven_at(thresholds, for_choice, failure, proven)
            best = int(np.argmax(bounds))
            choices.append((bounds[best], _amid(scores, thresholds[best]), for_measure))
    _, threshold, for_measure = max(choices, key=lambda choice: choice[0])
    return max(0.0, float(_proven_at(np.array([threshold]), for_measure, failure, proven)[0]))


def _candidates(scores: np.ndarray) -> np.ndarray:
    """Returns some of the sorted scores, more of them towards both ends."""
    ranks = np.unique(np.geomspace(1, len(scores), 300).astype(int))
    return np.unique(np.concatenate([scores[ranks - 1], scores[-ranks]]))


def _amid(scores: np.ndarray, threshold: float) -> float:
    """Returns the middle between a score and the next larger one of those that are sorted.

    Both choose the same event there. Elsewhere a score may lie a little beyond the largest one.
    """
    following = np.searchsorted(scores, threshold, side="right")
    if following == len(scores) or not np.isfinite([threshold, scores[following]]).all():
        return threshold
    middle = threshold / 2 + scores[following] / 2
    return middle if threshold < middle < scores[following] else threshold


def _proven_at(
    thresholds: np.ndarray,
    scores: tuple[np.ndarray, np.ndarray],
    failure: float,
    proven: _Proven,
) -> np.ndarray:
    """Returns what is proven by the event that a score is above a threshold, for each of them."""
    from scipy import special

    (above_in, n_in), (above_out, n_out) = (
        (len(s) - np.searchsorted(np.sort(s), thresholds, side="right"), len(s)) for s in scores
    )
    # Clopper and Pearson, each wrong with probability failure / 2; at the ends they are 0 and 1.
    rate_in = np.where(
        above_in == 0,
        0.0,
        special.betaincinv(np.maximum(above_in, 1), n_in - above_in + 1, failure / 2),
    )
    rate_out = np.where(
        above_out == n_out,
        1.0,
        special.betainccinv(above_out + 1, np.maximum(n_out - above_out, 1), failure / 2),
    )
    return proven(rate_in, rate_out)


def _halves(scores: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    scores = rng.permutation(scores)
    return scores[: len(scores) // 2], scores[len(scores) // 2 :]


def _scores(name: str, scores: Any) -> np.ndarray:
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 1 or len(scores) < 2:
        raise ValueError(
            f"{name} must be one axis of at least two scores: one chooses the threshold, the other "
            f"one is measured. Received: shape={scores.shape}."
        )
    if np.isnan(scores).any():
        raise ValueError(f"{name} holds NaN: there is no telling if that is large or small.")
    return scores


def check_confidence(confidence: float) -> float:
    """Returns the confidence if it is strictly between 0 and 1.

    Raises:
        ValueError: it is not.
        TypeError: it is not a number.
    """
    confidence = real_number("confidence", confidence, minimum=0, inclusive=False, maximum=1)
    if confidence == 1:
        raise ValueError("confidence must be less than 1. Received: confidence=1.")
    return confidence
