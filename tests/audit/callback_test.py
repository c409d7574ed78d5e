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


def found(monitor):
    return [attacks[0].auc for _, attacks in monitor.attacks]


def test_labels_of_one_column_are_those_of_none():
    columns = MembershipAttack(X[:60], Y[:60, None], X[60:], Y[60:, None])
    rows, model = MembershipAttack(*PARTS), network()
    model.fit(X[:60], Y[:60, None], epochs=1, verbose=0, callbacks=[columns, rows])
    assert found(columns) == found(rows) != []


@pytest.mark.parametrize("labels", [np.eye(4)[Y], Y[:, None, None], 3])
def test_labels_of_another_shape_are_refused(labels):
    with pytest.raises(ValueError, match=r"\[records\] or \[records, 1\]"):
        MembershipAttack(X, labels, X, Y)


@pytest.mark.parametrize("kind", [dict, list, tuple])
def test_structures_of_arrays_are_attacked(kind):
    inputs = {name: keras.Input((10,), name=name) for name in ("a", "b")}
    joined = keras.layers.Concatenate()(list(inputs.values()))
    outputs = keras.layers.Dense(4, activation="softmax")(joined)

    def divided(x):
        parts = {"a": x[:, :10], "b": x[:, 10:]}
        return parts if kind is dict else kind(parts.values())

    model = keras.Model(inputs if kind is dict else list(inputs.values()), outputs)
    model.compile("adam", "sparse_categorical_crossentropy")
    monitor = MembershipAttack(divided(X[:60]), Y[:60], divided(X[60:]), Y[60:])
    model.fit(divided(X), Y, epochs=1, verbose=0, callbacks=[monitor])
    p = model.predict(divided(X), verbose=0)
    expected = attack("loss", membership_scores("loss", p, Y), np.arange(120) < 60).auc
    assert found(monitor) == [expected]


def test_structures_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="59 records in the array .*'b'.*, 60 labels"):
        MembershipAttack({"a": X[:60], "b": X[:59]}, Y[:60], {"a": X, "b": X}, Y)
    with pytest.raises(ValueError, match="same structure .*'b': 'array'} and .*'c': 'array'}"):
        MembershipAttack({"a": X, "b": X}, Y, {"a": X, "c": X}, Y)
    for others in (X, (X, X)):
        with pytest.raises(ValueError, match="same structure"):
            MembershipAttack([X, X], Y, others, Y)
    with pytest.raises(ValueError, match="0 records, 120 labels"):
        MembershipAttack(3.0, Y, X, Y)
    numbers = MembershipAttack(X.tolist(), Y.tolist(), X, Y)  # No structure: one array.
    assert numbers._x.shape == (240, 20)


@pytest.mark.parametrize("squeezed", [True, False])
@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_one_output_is_the_second_of_two_classes(activation, squeezed):
    layers = [keras.Input((20,)), keras.layers.Dense(1, activation=activation)]
    model = keras.Sequential([*layers, keras.layers.Reshape(())] if squeezed else layers)
    from_logits = activation is None
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits))
    y = Y % 2
    monitor = MembershipAttack(X[:60], y[:60], X[60:], y[60:], from_logits=from_logits)
    model.fit(X[:60], y[:60] if squeezed else y[:60, None], verbose=0, callbacks=[monitor])
    told = model.predict(X, verbose=0).reshape(-1).astype(float)
    p = 1 / (1 + np.exp(-told)) if from_logits else told
    scores = membership_scores("loss", np.stack([1 - p, p], axis=1), y)
    assert found(monitor)[0].value == pytest.approx(
        attack("", scores, np.arange(120) < 60).auc.value
    )


@pytest.mark.parametrize(
    ("activation", "units", "changes", "error", "text"),
    [
        (None, 1, {}, ValueError, r"class 1, in \[0, 1\].*from_logits=True"),
        (None, 4, {}, ValueError, "sum to one"),
        ("softmax", 3, {}, ValueError, "0 to 2"),
        ("softmax", 4, {"scores": ["luck"]}, ValueError, "no such score"),
        (
            "softmax",
            4,
            {"y_others": Y[60:] * 1.0, "y_members": Y[:60] * 1.0},
            TypeError,
            "integers",
        ),
    ],
)
def test_what_cannot_be_attacked_spends_nothing(activation, units, changes, error, text):
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(units, activation=activation)])
    model = tfdp.keras.make_private(model)
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=30)
    model.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query), "mse")
    parts = dict(zip(("x_members", "y_members", "x_others", "y_others"), PARTS, strict=True))
    monitor = MembershipAttack(**{**parts, **changes})
    with pytest.raises(error, match=text):
        model.fit(X[:60], np.zeros((60, units)), batch_size=30, verbose=0, callbacks=[monitor])
    assert model.ledger.total_count == 0 and monitor.attacks == []


def test_models_of_several_outputs_are_refused():
    inputs = keras.Input((20,))
    model = keras.Model(inputs, [keras.layers.Dense(4, activation="softmax")(inputs)] * 2)
    model.compile("adam", ["sparse_categorical_crossentropy"] * 2)
    with pytest.raises(ValueError, match="one output, .* Received: 2 outputs"):
        model.fit(X, [Y, Y], verbose=0, callbacks=[MembershipAttack(*PARTS)])
