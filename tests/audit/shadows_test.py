"""Shadow models are trained on the halves that they name, in one process and in several."""

import os

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


def test_every_model_has_its_half_and_a_seed_of_its_own():
    seen = []

    def make_model(x, y, seed):
        seen.append((x[:, 0].tolist(), y.tolist(), seed))
        return remember(x, y, seed)

    labels = np.arange(12) % 5
    found = shadow_models(make_model, X, labels, models=4, seed=7)
    halves = random_halves(4, 12, seed=7)
    assert np.array_equal(found.memberships, halves)
    expected = zip(halves, range(7, 11), strict=True)
    assert seen == [(X[half, 0].tolist(), labels[half].tolist(), seed) for half, seed in expected]


def tell_the_process(x, y, seed):
    return lambda x: np.full((len(x), 1), os.getpid())


def test_several_workers_are_other_processes():
    for workers in (1, 2):
        found = shadow_models(tell_the_process, X, Y, models=2, workers=workers).predictions
        assert np.all(found == os.getpid()) if workers == 1 else not np.any(found == os.getpid())


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


def predict_few(x, y, seed):
    return lambda x: np.zeros((len(x) - 1, 2))


def test_what_cannot_be_used_is_refused():
    with pytest.raises(ValueError, match=r"shape=\(11, 2\) for 12 records"):
        shadow_models(predict_few, X, Y, models=2)
    with pytest.raises(ValueError, match="^workers must be"):
        shadow_models(remember, X, Y, models=2, workers=0)
    with pytest.raises(ValueError, match="^records must be"):
        random_halves(2, 0, seed=0)
    for workers in (1, 2):
        with pytest.raises(ValueError, match=r"\[records, classes\]"):
            shadow_models(refuse, X, Y, models=2, workers=workers)
    with pytest.raises(ValueError, match="12 and 3"):
        shadow_models(remember, X, Y[:3], models=2)
