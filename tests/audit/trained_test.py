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
        (
            ("nearest neighbors", [[np.nan], [0], [np.inf], [0]], np.array([True, False] * 2)),
            ValueError,
            "NaN or infinity in 2 of 4 records",
        ),
    ],
)
def test_arguments_are_validated(arguments, error, text):
    with pytest.raises(error, match=text):
        trained_scores(*arguments)


@pytest.mark.parametrize(
    ("members", "others", "folds", "enough"),
    [
        (3, 3, 2, False),
        (3, 30, 2, False),  # One part holds two of the three members.
        (4, 30, 2, True),
        (30, 3, 3, True),
        (11, 10, 2, False),  # Ten records train one of the two.
        (11, 11, 2, True),
        (4, 13, 3, True),
        (4, 12, 3, False),
    ],
)
def test_a_perceptron_has_the_records_to_stop_early(members, others, folds, enough):
    rng = np.random.default_rng(2)
    features, is_member = rng.normal(size=(members + others, 3)), np.arange(members + others)
    is_member = is_member < members
    if enough:
        scores = trained_scores("multilayer perceptron", features, is_member, folds)
        assert np.isfinite(scores).all()
        return
    with pytest.raises(
        ValueError, match=f"11 records or more .*: folds={folds}, {members} members"
    ):
        trained_scores("multilayer perceptron", features, is_member, folds)
    trained_scores("random forest", features, is_member, folds)
