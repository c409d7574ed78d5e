"""Guesses of one run: from a score for every canary to how many guessed coins are right."""

from typing import Any

import numpy as np

from tfdp.events.arguments import positive_integer


def correct_guesses(scores: Any, inserted: Any, guesses: int) -> int:
    """Returns how many guesses are right, if one guesses where scores are most extreme.

    The ceil(guesses / 2) canaries with the largest scores are guessed to be in the data, and the
    floor(guesses / 2) with the smallest ones to be out. No guess is made for the others.

    Guarantees:
        The guesses are a function of the scores alone. Where scores are equal, lots decide (with a
        fixed seed), not the order of the canaries, which may know the coins.

    Args:
        scores: One per canary; larger where the canary is believed to be in.
        inserted: One boolean per canary: whether its coin put it into the data.
        guesses: How many to make; to be decided upon before the coins are looked at.

    Raises:
        ValueError: the shapes differ, a score is NaN, or there are more guesses than canaries.
        TypeError: `guesses` is no integer, or `inserted` is not boolean.

    Example:
        >>> correct_guesses([0.1, 3.0, -2.0, 0.3], [True, True, False, False], guesses=2)
        2
    """
    scores = np.asarray(scores, np.float64)
    inserted = np.asarray(inserted)
    guesses = positive_integer("guesses", guesses)
    if inserted.dtype != bool:
        raise TypeError(f"inserted must be boolean. Received: dtype={inserted.dtype}.")
    if scores.ndim != 1 or scores.shape != inserted.shape:
        raise ValueError(
            "scores and inserted must be vectors of the same length, with an entry for every "
            f"canary. Received: {scores.shape} and {inserted.shape}."
        )
    if np.isnan(scores).any():
        raise ValueError("scores holds NaN: there is no telling if that is large or small.")
    if guesses > len(scores):
        raise ValueError(
            "There can be at most one guess a canary. "
            f"Received: guesses={guesses}, canaries={len(scores)}."
        )
    lots = np.random.default_rng(0).permutation(len(scores))
    ranked = inserted[np.lexsort((lots, scores))]
    out, into = guesses // 2, guesses - guesses // 2
    return int(np.sum(~ranked[:out]) + np.sum(ranked[len(ranked) - into :]))


def check_counts(correct: int, guesses: int, canaries: int) -> tuple[int, int, int]:
    """Returns the three numbers if they can be those of a run.

    Raises:
        ValueError: a number is out of range, or not correct <= guesses <= canaries.
        TypeError: one is not an integer.
    """
    canaries = positive_integer("canaries", canaries)
    guesses = positive_integer("guesses", guesses)
    correct = 0 if correct == 0 else positive_integer("correct", correct)
    if not correct <= guesses <= canaries:
        raise ValueError(
            "There must be at most as many correct guesses as guesses, and at most one guess a "
            f"canary. Received: correct={correct}, guesses={guesses}, canaries={canaries}."
        )
    return correct, guesses, canaries
