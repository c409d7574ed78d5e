"""Batch normalization is refused once, and `convert_norm` replaces it."""

import keras
import numpy as np
import pytest

import tfdp
from tfdp.keras import NotPrivateError, convert_norm

L = keras.layers


def _randomized(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.uniform(0.5, 1.5, weight.shape))
    return model


def _sequential():
    layers = [L.Conv2D(6, 3), L.BatchNormalization(epsilon=0.01), L.Flatten(), L.Dense(4)]
    return keras.Sequential([keras.Input((5, 5, 3)), *layers, L.BatchNormalization(scale=False)])


def _nested():
    inputs = keras.Input((5, 5, 3))
    part = _sequential()
    frozen = L.BatchNormalization(name="frozen", trainable=False)
    return keras.Model(inputs, L.Add()([frozen(part(inputs)), L.Dense(4)(L.Flatten()(inputs))]))


@pytest.mark.parametrize("build", [_sequential, _nested])
def test_weights_are_kept_where_they_can_be(build):
    model = _randomized(build())
    result, replaced = convert_norm(model)
    assert len(replaced) == 2
    assert replaced[0].endswith("GroupNormalization(groups=6) for 6 channels")
    # One number alone in its group would become zero.
    assert replaced[1].endswith("GroupNormalization(groups=1) for 4 channels")
    left = [w for w in model.weights if "moving" not in w.path or "frozen" in w.path]
    assert [w.shape for w in result.weights] == [w.shape for w in left]
    for old, new in zip(left, result.weights, strict=True):
        np.testing.assert_array_equal(old.numpy(), new.numpy())
        assert old is not new
    assert len(result.trainable_weights) == len(model.trainable_weights)
    layers = result._flatten_layers()
    norms = [layer for layer in layers if isinstance(layer, L.GroupNormalization)]
    assert sorted(norm.epsilon for norm in norms) == [0.001, 0.01]


def _fit(model):
    optimizer = tfdp.keras.DPKerasSGDOptimizer(
        l2_norm_clip=1.0, noise_multiplier=1.0, denominator=4, learning_rate=0.1
    )
    private = tfdp.keras.make_private(model)
    private.compile(optimizer, "mse")
    private.fit(np.ones([8, 5, 5, 3]), np.zeros([8, 4]), batch_size=4, verbose=0)
    return private


def test_what_it_returns_trains_privately():
    private = _fit(convert_norm(_nested())[0])
    assert private.ledger.total_count == 2
    assert 0 < private.ledger.replay(tfdp.accounting.RDPAccountant()).get_epsilon(1e-5) < 10


def test_refusal_says_it_once_for_all_layers():
    with pytest.raises(NotPrivateError, match="convert_norm") as error:
        _fit(_nested())
    assert str(error.value).count("moving averages") == 1
    assert "frozen" not in str(error.value)


def test_keras_application():
    model = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=3)
    result, replaced = convert_norm(model, groups=8)
    norms = [layer for layer in model.layers if isinstance(layer, L.BatchNormalization)]
    assert len(replaced) == len(norms) > 20
    assert not any(isinstance(layer, L.BatchNormalization) for layer in result.layers)
    assert all(
        layer.groups <= 8
        for layer in result.layers
        if hasattr(layer, "groups") and "Group" in type(layer).__name__
    )
    tfdp.keras.make_private(result)


class _Block(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = L.BatchNormalization()

    def call(self, inputs):
        return self.norm(inputs)


def test_what_cannot_be_reached_is_named():
    with pytest.raises(ValueError, match="_Block 'block'"):
        convert_norm(keras.Sequential([keras.Input((3,)), _Block(name="block")]))
    with pytest.raises(TypeError, match="functional or sequential"):
        convert_norm(_Block())
    with pytest.raises(ValueError, match="groups"):
        convert_norm(_sequential(), groups=0)


def test_make_private_replaces_batch_normalization_and_says_so(caplog):
    plain = _randomized(_nested())
    model = tfdp.keras.make_private(plain, batch_norm="group")
    expected, replaced = convert_norm(plain)
    assert [record.getMessage() for record in caplog.records if record.name == "tfdp"] == [
        f"Batch normalization was replaced: {'; '.join(replaced)}."
    ]
    x = np.float32(np.random.default_rng(1).normal(size=(2, 5, 5, 3)))
    np.testing.assert_array_equal(model(x), expected(x))
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=2)
    model.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query), "mse")


def test_batch_norm_is_replaced_by_what_is_known_or_not_at_all():
    with pytest.raises(ValueError, match="batch_norm must be None"):
        tfdp.keras.make_private(_sequential(), batch_norm="layer")
    private = tfdp.keras.make_private(_sequential())
    with pytest.raises(ValueError, match="private already"):
        tfdp.keras.make_private(private, batch_norm="group")
