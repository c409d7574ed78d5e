"""Attacks at the ends of epochs see a model learn its members by heart, and tell nobody."""

import keras
import numpy as np
import pytest

import tfdp
from tfdp.audit import MembershipAttack, attack, membership_scores

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 20)).astype("float32")
Y = RNG.integers(0, 4, 120)  # There is nothing to learn: only to remember.
PARTS = (X[:60], Y[:60], X[60:], Y[60:])


def network(private=False, activation="softmax"):
    hidden = keras.layers.Dense(64, activation="relu")
    last = keras.layers.Dense(4, activation=activation)
    model = keras.Sequential([keras.Input((20,)), hidden, last])
    optimizer = keras.optimizers.Adam(0.02)
    if private:
        model = tfdp.keras.make_private(model)
        query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=30)
        optimizer = tfdp.keras.DPOptimizer(optimizer, query)
    from_logits = activation is None
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits))
    return model


def test_attacks_are_those_of_the_model_at_the_end_of_the_epoch():
    model, monitor = network(activation=None), MembershipAttack(*PARTS, every=2, from_logits=True)
    logs = model.fit(*PARTS[:2], epochs=41, verbose=0, callbacks=[monitor]).history
    assert [epoch for epoch, _ in monitor.attacks] == list(range(1, 41, 2))
    aucs = [attacks[0].auc.value for _, attacks in monitor.attacks]
    assert aucs[0] < 0.9 < aucs[-1] and [a.name for a in monitor.attacks[0][1]] == [
        "loss",
        "entropy",
    ]
    assert set(logs) == {"loss"}


def test_a_private_model_is_attacked_and_its_logs_hold_nothing_of_it():
    model, monitor = network(private=True), MembershipAttack(*PARTS, scores=["confidence"])
    logs = model.fit(*PARTS[:2], batch_size=30, epochs=1, verbose=0, callbacks=[monitor]).history
    ((epoch, (found,)),) = monitor.attacks
    p = model.predict(X, verbose=0)
    expected = attack("confidence", membership_scores("confidence", p, Y), np.arange(120) < 60)
    assert epoch == 0 and found.auc == expected.auc
    assert set(logs) == {"loss"}
    assert model.ledger.total_count == 2


def test_records_that_cannot_be_attacked_are_refused():
    with pytest.raises(ValueError, match="60 records, 59 labels"):
        MembershipAttack(X[:60], Y[:59], X[60:], Y[60:])
    with pytest.raises(ValueError, match="0 records"):
        MembershipAttack(X, Y, X[:0], Y[:0])
    with pytest.raises(ValueError, match="every"):
        MembershipAttack(*PARTS, every=0)
