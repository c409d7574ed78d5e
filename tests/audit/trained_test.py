"""Trained attackers: they find what there is to find, and nothing where there is nothing."""

import builtins

import numpy as np
import pytest

from tfdp.audit import attack
from tfdp.audit.trained import ATTACKERS, attacker_features, trained_scores


def records(rng, confident, n=300):
    """Returns (probabilities, labels, members), where members' predictions may be surer."""
    members = np.arange(2 * n) < n
    labels = rng.integers(0, 4, 2 * n)
    logits = rng.normal(size=(2 * n, 4))
    logits[np.arange(2 * n), labels] += np.where(members, confident, 1.0)
    p = np.exp(logits)
    return p / p.sum(axis=1, keepdims=True), labels, members


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_attackers_find_members_that_are_predicted_better(attacker):
    p, labels, members = records(np.random.default_rng(0), confident=3.0)
    scores = trained_scores(attacker, attacker_features(p, labels), members)
    assert attack(attacker, scores, members).auc.lower > 0.65


def test_attackers_find_nothing_where_there_is_nothing():
    # One that had seen what it scores would: its own memory of 300 records would do.
    p, labels, members = records(np.random.default_rng(1), confident=1.0)
    for attacker in ("logistic regression", "random forest"):
        scores = trained_scores(attacker, attacker_features(p, labels), members)
        # The standard deviation of the area is 0.024.
        assert abs(attack(attacker, scores, members).auc.value - 0.5) < 0.15


def test_scikit_learn_is_named_where_it_is_missing(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"tfdp\[audit\]"):
        trained_scores("random forest", np.zeros((4, 1)), np.array([True, True, False, False]))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("luck", np.zeros((4, 1)), np.array([True, False] * 2)), ValueError, "'luck'"),
        (("random forest", np.zeros(4), np.array([True, False] * 2)), ValueError, "features"),
        (("random forest", np.zeros((4, 1)), np.ones(4)), TypeError, "boolean"),
        (
            ("random forest", np.zeros((4, 1)), np.array([True, False] * 2), 3),
            ValueError,
            "folds=3",
        ),
    ],
)
def test_arguments_are_validated(arguments, error, text):
    with pytest.raises(error, match=text):
        trained_scores(*arguments)
