"""Shadow models are trained on the halves that they name, in one process and in several."""

import numpy as np
import pytest

from tfdp.audit import attack, lira, membership_scores, shadow_models
from tfdp.audit.shadows import random_halves


def remember(x, y, seed):
    """A "model" that is sure of the records that it was trained on, and of no other."""
    known = set(x[:, 0].tolist())
    rng = np.random.default_rng(seed)

    def predict(x):
        p = np.array([0.9 if value in known else 0.6 for value in x[:, 0]])
        p += rng.uniform(-0.05, 0.05, len(p))
        return np.column_stack([p, 1 - p])

    return predict


X, Y = np.arange(12.0)[:, None], np.zeros(12, int)


def test_every_record_is_in_half_of_the_models():
    halves = random_halves(6, 1000, seed=0)
    assert np.all(halves.sum(axis=0) == 3)
    assert halves.any(axis=1).all() and not halves.all(axis=1).any()
    assert not np.array_equal(halves, random_halves(6, 1000, seed=1))
    # Memberships of two records are independent: 3 / 10 of the models hold a pair twice.
    assert abs(np.mean(halves[0] & halves[1]) - 0.2) < 0.1
    with pytest.raises(ValueError, match="models=3"):
        random_halves(3, 10, seed=0)


def test_models_see_their_half_and_predict_everybody():
    told = []
    shadows = shadow_models(remember, X, Y, models=4, progress=lambda *counts: told.append(counts))
    assert shadows.predictions.shape == (4, 12, 2)
    assert np.array_equal(shadows.predictions[:, :, 0] > 0.75, shadows.memberships)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_processes_train_the_same_models():
    told = []
    alone = shadow_models(remember, X, Y, models=2, seed=3)
    shared = shadow_models(
        remember, X, Y, models=2, seed=3, workers=2, progress=lambda *c: told.append(c)
    )
    assert np.array_equal(alone.predictions, shared.predictions)
    assert np.array_equal(alone.memberships, shared.memberships)
    assert told == [(1, 2), (2, 2)]


def test_shadows_show_who_was_a_member():
    shadows = shadow_models(remember, X, Y, models=10)
    statistics = np.stack([membership_scores("loss", p, Y) for p in shadows.predictions])
    scores = lira(statistics[0], statistics[1:], shadows.memberships[1:], fixed_variance=True)
    assert attack("LiRA", scores, shadows.memberships[0]).auc.value == 1.0


def refuse(x, y, seed):
    return lambda x: np.zeros(len(x))


def test_what_cannot_be_used_is_refused():
    for workers in (1, 2):
        with pytest.raises(ValueError, match=r"\[records, classes\]"):
            shadow_models(refuse, X, Y, models=2, workers=workers)
    with pytest.raises(ValueError, match="12 and 3"):
        shadow_models(remember, X, Y[:3], models=2)
