"""What is said of layers that may mix the records of a batch, and of which layers nothing is."""

import keras
import numpy as np
import pytest

import tfdp
from tests.gradients.blocks_test import RECORD_BY_RECORD, dense, nested
from tests.gradients.problems import BATCH, model_of
from tfdp.gradients import ModelLoss, explain

L, K = keras.layers, keras.ops
SAID = "may mix the records of a batch"


def said(caplog, model, engine="bookkeeping", seed=0, shape=None):
    caplog.clear()
    shape = (6, *(shape or model.input_shape[1:]))
    x = np.random.default_rng(seed).normal(size=shape).astype("float32")
    loss = ModelLoss(model, lambda y, outputs: K.mean(outputs))
    query = tfdp.GaussianSumQuery(1.0, 1.0)
    tfdp.clipped_gradient_sum(loss, model.trainable_variables, (x, None), query, engine=engine)
    return [r.getMessage() for r in caplog.records if SAID in r.getMessage()]


@pytest.mark.parametrize("name", sorted(set(RECORD_BY_RECORD) - {"own_gradient"}))
def test_layer_that_may_mix_records_is_named(name, caplog):
    model = model_of(dense(RECORD_BY_RECORD[name]), (BATCH, 4))
    reason = next(line for line in explain(model).split("\n") if line.startswith("block:"))
    (message,) = said(caplog, model)
    assert f"block ({reason.removeprefix('block: record by record: ')}). Where" in message
    assert "tfdp.gradients.explain(model)" in message


class TwoTowers(keras.Model):
    """Compares every record with every other one in code of its own."""

    def __init__(self):
        super().__init__()
        self.left, self.right = L.Dense(3), L.Dense(3)

    def call(self, inputs):
        return K.matmul(self.left(inputs), K.transpose(self.right(inputs)))


def two_towers():
    model = TwoTowers()
    model(np.zeros([1, 4], "float32"))
    return model


def rows_attend():
    inputs = keras.Input((4,))
    h = K.expand_dims(L.Dense(4)(inputs), 0)
    return keras.Model(inputs, L.Dense(2)(K.squeeze(L.MultiHeadAttention(1, 2)(h, h), 0)))


@pytest.mark.parametrize(
    ("make_model", "reason"),
    [
        (two_towers, "MatMul (notices_test.py"),
        (rows_attend, "where its code moves the axis of records"),
    ],
)
def test_a_model_that_may_mix_records_is_named_once(make_model, reason, caplog):
    model = make_model()
    (message,) = said(caplog, model, engine="auto", shape=(4,))
    assert message.startswith("The layers of this model") and reason in message
    assert said(caplog, model, engine="auto", shape=(4,)) == []


def test_nothing_is_said_of_a_model_that_is_vectorized_for_another_reason(caplog):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, L.Dense(2, activity_regularizer="l2")(inputs))
    assert said(caplog, model, engine="auto") == []


def test_layer_is_named_once_for_every_model(caplog):
    for _ in range(2):
        model = model_of(dense(RECORD_BY_RECORD["rolled"]), (BATCH, 4))
        assert len(said(caplog, model)) == 1
        assert said(caplog, model, seed=1) == []


QUIET = {
    "blocks": nested,
    "a gradient of its own, which keeps records apart": dense(RECORD_BY_RECORD["own_gradient"]),
    "options without a rule": lambda: L.LSTM(4, dropout=1.0, return_sequences=True),
    "a Lambda of each record": lambda: L.Lambda(lambda x: x - K.mean(x, -1, keepdims=True)),
}


def drops_everything():
    """Returns whether Keras has dropout at a rate of one."""
    try:
        keras.random.dropout(K.ones([1]), 1.0)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", QUIET)
def test_layer_that_is_merely_slow_or_known_is_not_named(name, caplog):
    if name == "options without a rule" and not drops_everything():
        pytest.skip("Keras 3.12 has no dropout of everything.")
    assert said(caplog, model_of(QUIET[name], (BATCH, 4))) == []
