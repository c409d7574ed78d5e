"""Task models of KerasHub, whose `fit` adds preprocessing to Keras' own: real ones where KerasHub
is installed, and one that is built as they are.
"""

import keras
import numpy as np
import pytest
import toy
from toy import L

import tfdp
from tfdp.keras import NotPrivateError, make_private
from tfdp.sampling import FullBatch

TOKENS = np.random.default_rng(0).integers(1, 7, (6, 5)).astype("int32")
LABELS = np.array([0, 1, 0, 1, 1, 0])


class Pipeline(keras.Model):
    """A functional model that would preprocess what its `fit` gets."""

    def __init__(self, inputs, outputs, preprocessor=None, **kwargs):
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.preprocessor = preprocessor

    def preprocess_samples(self, x, y=None, sample_weight=None):
        x = x if self.preprocessor is None else self.preprocessor(x)
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    def fit(self, x=None, y=None, sample_weight=None, **kwargs):
        data = self.preprocess_samples(x, y, sample_weight)
        return super().fit(*keras.utils.unpack_x_y_sample_weight(data), **kwargs)


Pipeline.__module__ = "keras_hub.src.utils.pipeline_model"


@keras.saving.register_keras_serializable("tests")
class Classifier(Pipeline):
    """A task model, with a configuration of its own."""

    def __init__(self, units=3, preprocessor=None, **kwargs):
        ids = keras.Input((5,), dtype="int32", name="token_ids")
        x = L.GlobalAveragePooling1D()(L.Embedding(7, units, name="embedding")(ids))
        outputs = L.Dense(2, name="logits")(x)
        super().__init__({"token_ids": ids}, outputs, preprocessor=preprocessor, **kwargs)
        self.units = units

    def get_config(self):
        return {"units": self.units}


class OwnStep(Classifier):
    def train_step(self, data):
        return super().train_step(data)


def task(**kwargs):
    keras.utils.set_random_seed(3)
    return Classifier(**kwargs)


def fitted(private):
    """Returns the private model after one step without noise."""
    private.compile(toy.dp(), loss=toy.LOGITS_LOSS)
    private.fit({"token_ids": TOKENS}, LABELS, sampling=FullBatch(), verbose=0)
    return private


@pytest.mark.parametrize(
    "kwargs", [{}, {"loss": "auto"}, {"loss": toy.LOGITS_LOSS, "metrics": "auto"}]
)
def test_what_a_task_would_fill_in_is_to_be_given(kwargs):
    private = tfdp.keras.make_private(task())
    with pytest.raises(ValueError, match="Give both: loss="):
        private.compile(toy.dp(), **kwargs)


def test_task_is_trained_as_its_functional_model():
    mine, plain = task(), task()
    before = toy.weights(mine)
    private = fitted(make_private(mine))
    expected = fitted(make_private(keras.Model(plain.input, plain.output)))
    for v, w, start in zip(mine.weights, toy.weights(expected), before, strict=True):
        np.testing.assert_array_equal(v.numpy(), w)
        assert np.any(w != start)
    assert private.ledger.total_count == 1
    assert private.trainable_variables[0] is mine.trainable_variables[0]
    assert [layer.name for layer in private.layers] == [layer.name for layer in mine.layers]


def test_what_is_saved_is_the_task_and_its_ledger(tmp_path):
    mine = task()
    private = fitted(make_private(mine))
    private.save(tmp_path / "task.keras")
    loaded = keras.models.load_model(tmp_path / "task.keras")
    assert isinstance(loaded, Classifier)
    again = make_private(loaded)
    again.compile(toy.dp(), loss=toy.LOGITS_LOSS)
    assert again.ledger.total_count == 1

    other = make_private(task())
    other.compile(toy.dp(), loss=toy.LOGITS_LOSS)
    other.load_weights(tmp_path / "task.keras")
    assert other.ledger.total_count == 1
    private.save_weights(tmp_path / "x.weights.h5")
    third = make_private(task())
    third.compile(toy.dp(), loss=toy.LOGITS_LOSS)
    third.load_weights(tmp_path / "x.weights.h5")
    assert third.ledger.total_count == 1
    for model in (loaded, other, third):
        for mine_now, theirs in zip(toy.weights(private), toy.weights(model), strict=True):
            np.testing.assert_array_equal(mine_now, theirs)


def test_task_that_would_preprocess_is_told_how_to():
    mine = task(preprocessor=lambda texts: {"token_ids": TOKENS})
    with pytest.raises(NotPrivateError, match="preprocessor = None"):
        make_private(mine)
    data = mine.preprocess_samples(["some", "texts"], LABELS)
    mine.preprocessor = None
    private = make_private(mine)
    private.compile(toy.dp(), loss=toy.LOGITS_LOSS)
    private.fit(*data, sampling=FullBatch(), verbose=0)
    assert private.ledger.total_count == 1


def test_task_with_a_step_of_its_own_is_refused():
    with pytest.raises(NotPrivateError, match="own train_step"):
        make_private(OwnStep())


def test_fit_of_anybody_else_is_refused():
    class Mine(keras.Model):
        def fit(self, *args, **kwargs):
            return super().fit(*args, **kwargs)

    with pytest.raises(NotPrivateError, match="own fit"):
        make_private(Mine())


SIZES = {
    "vocabulary_size": 9,
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 4,
    "intermediate_dim": 4,
    "max_sequence_length": 5,
    "dropout": 0.0,
}


def bert(models, dtype):
    backbone = models.BertBackbone(**SIZES, dtype=dtype)
    model = models.BertTextClassifier(backbone, num_classes=2, dropout=0.0, preprocessor=None)
    ids = {"token_ids": TOKENS, "segment_ids": 0 * TOKENS, "padding_mask": TOKENS > 1}
    return model, ids, LABELS


def gpt2(models, dtype):
    backbone = models.GPT2Backbone(**SIZES, dtype=dtype)
    model = models.GPT2CausalLM(backbone, preprocessor=None)
    return model, {"token_ids": TOKENS, "padding_mask": TOKENS > 1}, np.roll(TOKENS, -1, axis=1)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("build", [bert, gpt2])
def test_task_of_keras_hub(build, lora, dtype):
    models = pytest.importorskip("keras_hub").models

    def step(engine):
        keras.utils.set_random_seed(3)
        model, x, y = build(models, dtype)
        if lora:
            model.backbone.enable_lora(2)
        private = make_private(model)
        query = tfdp.GaussianAverageQuery(0.05, stddev=0.0, denominator=len(y))
        optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, engine=engine)
        private.compile(optimizer, loss=toy.LOGITS_LOSS, jit_compile=False)
        before = toy.weights(private)
        private.fit(x, y, sampling=FullBatch(), verbose=0)
        assert private.ledger.total_count == 1
        return [a - b for a, b in zip(before, toy.weights(private), strict=True)]

    moved, expected = step("bookkeeping"), step("loop")
    largest = max(np.max(np.abs(e)) for e in expected)
    assert largest > 1e-5
    tolerance = largest * (1e-3 if dtype == "float32" else 0.1)
    for mine, other in zip(moved, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=tolerance)
