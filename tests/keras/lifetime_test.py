"""What was trained is given back to the system once its user drops it."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.keras import distribution

pytestmark = pytest.mark.usefixtures("collect")

X = np.ones([8, 4, 3], np.float32)
Y = np.arange(8) % 2


@keras.saving.register_keras_serializable("tests_of_lifetime")
class _OwnLayer(keras.layers.Layer):
    """A layer without a rule, which runs record by record."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=[shape[-1]])

    def call(self, inputs):
        return tf.cumsum(inputs, axis=1) * self.kernel


_LAYERS = {
    "dense": lambda: keras.layers.Dense(2),
    "gru": lambda: keras.layers.GRU(2),
    "normalization": lambda: keras.layers.LayerNormalization(),
    "dropout": lambda: keras.layers.Dropout(0.5),
    "own": _OwnLayer,
}


def _compiled(layer="dense", **keywords):
    layers = [keras.Input(X.shape[1:]), _LAYERS[layer]()]
    layers += [keras.layers.Flatten(), keras.layers.Dense(2, "softmax")]
    model = tfdp.keras.make_private(keras.Sequential(layers))
    query = tfdp.GaussianAverageQuery(l2_norm_clip=1.0, noise_multiplier=1.0, denominator=4)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query, **keywords)
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _fit(model):
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)


def _fit_data_set(model):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    sampling = tfdp.sampling.Shuffled(batch_size=4, population_size=8)
    model.fit(data, sampling=sampling, verbose=0)


def _train_on_batch(model):
    model.train_on_batch(X, Y)


def _custom_loop(model):
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="none")

    def step(x, y):
        model.optimizer.private_step(
            lambda record: loss(record[1], model(record[0])), model.trainable_variables, (x, y)
        )

    tf.function(step, autograph=False)(tf.constant(X), tf.constant(Y))


def _references(model):
    """Returns references to a model, its optimizer and its weights."""
    return [weakref.ref(held) for held in (model, model.optimizer, *model.trainable_variables)]


def _kept(references):
    gc.collect()
    return [reference() for reference in references if reference() is not None]


@pytest.mark.parametrize("train", [_fit, _fit_data_set, _train_on_batch, _custom_loop])
def test_nothing_keeps_a_model_that_was_trained(train):
    model = _compiled()
    references = _references(model)
    train(model)
    assert len(_kept(references)) == len(references)
    del model
    assert not _kept(references)


@pytest.mark.parametrize("engine", ["auto", "vectorized", "loop"])
@pytest.mark.parametrize("layer", _LAYERS)
def test_nothing_keeps_it_whatever_its_layers_and_its_engine(layer, engine):
    model = _compiled(layer, engine=engine)
    references = _references(model)
    _fit(model)
    del model
    assert not _kept(references)


def test_nothing_keeps_it_whose_records_are_users():
    model = _compiled(privacy_unit="user")
    references = _references(model)
    ids = np.arange(8) // 2
    model.fit(X, Y, privacy_unit=ids, max_examples_per_user=2, batch_size=2, verbose=0)
    del model
    assert not _kept(references)


def test_nothing_keeps_it_where_metrics_and_budgets_are_private():
    accuracy = tfdp.keras.PrivateAccuracy(noise_multiplier=5.0)
    model = _compiled(private_metrics=[accuracy])
    budget = tfdp.keras.PrivacyBudget(target_epsilon=100.0, target_delta=1e-2)
    references = [*_references(model), weakref.ref(budget), weakref.ref(accuracy)]
    model.fit(X, Y, batch_size=4, callbacks=[budget], verbose=0)
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    del model, budget, accuracy
    assert not _kept(references)


def test_tensorflow_keeps_what_a_graph_calls_on_the_host(monkeypatch):
    # So the tests above see it where it is kept.
    def on_host(function, inputs, count, called):
        del called
        result = tf.numpy_function(lambda *arrays: np.array(function(*arrays)), inputs, tf.int64)
        return tf.unstack(tf.ensure_shape(result, [count]))

    monkeypatch.setattr(distribution, "on_host", on_host)
    model = _compiled()
    references = _references(model)
    _fit(model)
    del model
    assert _kept(references)


def test_graph_whose_optimizer_is_gone_releases_nothing():
    called = []
    total = tf.Variable(0.0)

    @tf.function(autograph=False)
    def step():
        paid = distribution.on_host(lambda: [1], [], 1, called)
        with tf.control_dependencies(paid):
            total.assign_add(1.0)

    step()
    assert total.numpy() == 1
    called.clear()
    gc.collect()
    with pytest.raises(tf.errors.OpError, match="optimizer of this step is gone"):
        step()
    assert total.numpy() == 1
