"""The loss of a record is the model's own: weights, penalties, added losses, inputs and outputs."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import L, N, X, Y, crossentropy, fit_step

import tfdp


def test_sample_weight_multiplies_the_loss_before_the_clip():
    weight = np.linspace(0, 3, N).astype("float32")
    model = toy.private()
    losses = [lambda i=i: weight[i] * crossentropy(model, i) for i in range(N)]
    expected, _ = toy.step_by_hand(model, losses)
    fit_step(model, sample_weight=weight)
    toy.assert_weights(model, expected)


def test_class_weight_multiplies_the_loss_before_the_clip():
    class_weight = {0: 0.2, 1: 3.0}
    model = toy.private()
    losses = [lambda i=i: class_weight[int(Y[i])] * crossentropy(model, i) for i in range(N)]
    expected, _ = toy.step_by_hand(model, losses)
    fit_step(model, class_weight=class_weight)
    toy.assert_weights(model, expected)


def test_class_weight_of_one_hot_labels():
    class_weight = {0: 0.2, 1: 3.0}
    model = toy.private(loss=keras.losses.CategoricalCrossentropy(from_logits=True))
    losses = [lambda i=i: class_weight[int(Y[i])] * crossentropy(model, i) for i in range(N)]
    expected, _ = toy.step_by_hand(model, losses)
    fit_step(model, y=np.eye(2, dtype="float32")[Y], class_weight=class_weight)
    toy.assert_weights(model, expected)


def test_weight_regularizer_is_added_after_the_clip():
    # Its gradient, 2 * 30 * w, is far above the clip: inside a record it would be cut down.
    model = toy.private(toy.dense(kernel_regularizer=keras.regularizers.L2(30.0)))
    kernel = model.get_layer("first").kernel
    losses = [lambda i=i: crossentropy(model, i) for i in range(N)]
    expected, _ = toy.step_by_hand(
        model, losses, penalty=lambda: 30 * tf.reduce_sum(kernel.value**2)
    )
    start = toy.weights(model)
    fit_step(model)
    toy.assert_weights(model, expected, 1e-5)
    assert np.linalg.norm(toy.weights(model)[0] - start[0]) > 10 * 0.5 * toy.CLIP * N / 10


ENGINES = ["bookkeeping", "vectorized", "loop"]


@pytest.mark.parametrize("engine", ENGINES)
def test_activity_regularizer_is_part_of_the_record(engine):
    plain = toy.dense(activity_regularizer=keras.regularizers.L2(50.0))
    model = toy.private(plain, toy.dp(engine=engine))
    first = model.get_layer("first")

    def loss(i):
        hidden = tf.tanh(X[i : i + 1] @ first.kernel.value + first.bias.value)
        return crossentropy(model, i) + 50 * tf.reduce_sum(hidden**2)

    expected, norms = toy.step_by_hand(model, [lambda i=i: loss(i) for i in range(N)])
    assert max(norms) > 10 * toy.CLIP
    fit_step(model)
    toy.assert_weights(model, expected)


class AddsLoss(keras.layers.Layer):
    def call(self, x):
        self.add_loss(20.0 * keras.ops.mean(x**2))
        return x


@pytest.mark.parametrize("engine", ENGINES)
def test_add_loss_is_part_of_the_record(engine):
    keras.utils.set_random_seed(3)
    plain = keras.Sequential([keras.Input((4,)), L.Dense(3, name="first"), AddsLoss(), L.Dense(2)])
    model = toy.private(plain, toy.dp(engine=engine))
    first = model.get_layer("first")

    def loss(i):
        hidden = X[i : i + 1] @ first.kernel.value + first.bias.value
        return crossentropy(model, i) + 20 * tf.reduce_mean(hidden**2)

    expected, _ = toy.step_by_hand(model, [lambda i=i: loss(i) for i in range(N)])
    fit_step(model)
    toy.assert_weights(model, expected)


def test_frozen_layer_does_not_move_and_takes_no_part_in_the_norm():
    plain = toy.dense()
    plain.get_layer("first").trainable = False
    model = toy.private(plain)
    frozen = [w.numpy() for w in model.get_layer("first").weights]
    assert len(model.trainable_variables) == 2
    expected, norms = toy.step_by_hand(
        model, [lambda i=i: crossentropy(model, i) for i in range(N)]
    )
    assert max(norms) > toy.CLIP
    fit_step(model)
    toy.assert_weights(model, expected)
    for before, after in zip(frozen, model.get_layer("first").weights, strict=True):
        np.testing.assert_array_equal(before, after.numpy())


def two_in_two_out():
    keras.utils.set_random_seed(3)
    a, b = keras.Input((3,), name="a"), keras.Input((1,), name="b")
    hidden = L.Dense(3, activation="tanh")(L.Concatenate()([a, b]))
    outputs = {
        "logits": L.Dense(2, name="logits")(hidden),
        "value": L.Dense(1, name="value")(hidden),
    }
    return keras.Model({"a": a, "b": b}, outputs)


TWO_X = {"a": X[:, :3], "b": X[:, 3:]}


TWO_Y = {"logits": Y, "value": X[:, :1] + 2}


def two_losses(model, i):
    out = model({"a": X[i : i + 1, :3], "b": X[i : i + 1, 3:]})
    value_loss = tf.reduce_mean((out["value"] - TWO_Y["value"][i : i + 1]) ** 2)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(Y[i : i + 1], out["logits"])[
        0
    ], value_loss


def private_two_in_two_out(**kwargs):
    loss = {"logits": toy.LOGITS_LOSS, "value": "mse"}
    return toy.private(
        two_in_two_out(), loss=loss, loss_weights={"logits": 1.0, "value": 0.3}, **kwargs
    )


def test_several_inputs_and_outputs_with_loss_weights():
    model = private_two_in_two_out(metrics={"logits": ["accuracy"], "value": ["mae"]})
    singles = np.array([[float(v) for v in two_losses(model, i)] for i in range(N)])
    predictions = model.predict(TWO_X, verbose=0)

    def loss(i):
        logits_loss, value_loss = two_losses(model, i)
        return logits_loss + 0.3 * value_loss

    expected, _ = toy.step_by_hand(model, [lambda i=i: loss(i) for i in range(N)])
    logs = {k: v[0] for k, v in fit_step(model, TWO_X, TWO_Y).history.items()}
    toy.assert_weights(model, expected)
    assert logs == pytest.approx(
        {
            "loss": singles[:, 0].mean() + 0.3 * singles[:, 1].mean(),
            "logits_loss": singles[:, 0].mean(),
            "value_loss": singles[:, 1].mean(),
            "logits_accuracy": (predictions["logits"].argmax(1) == Y).mean(),
            "value_mae": np.abs(predictions["value"] - TWO_Y["value"]).mean(),
        },
        rel=1e-5,
    )


def test_list_inputs_and_outputs():
    keras.utils.set_random_seed(3)
    a, b = keras.Input((3,)), keras.Input((1,))
    hidden = L.Concatenate()([a, b])
    model = toy.private(
        keras.Model([a, b], [L.Dense(2)(hidden), L.Dense(1)(hidden)]), loss=[toy.LOGITS_LOSS, "mse"]
    )
    y = TWO_Y["value"]

    def loss(i):
        logits, value = model([X[i : i + 1, :3], X[i : i + 1, 3:]])
        crossentropy = tf.nn.sparse_softmax_cross_entropy_with_logits(Y[i : i + 1], logits)[0]
        return crossentropy + tf.reduce_mean((value - y[i : i + 1]) ** 2)

    expected, _ = toy.step_by_hand(model, [lambda i=i: loss(i) for i in range(N)])
    fit_step(model, [X[:, :3], X[:, 3:]], [Y, y])
    toy.assert_weights(model, expected)


class WithTraining(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = L.Dense(2)

    def call(self, x, training=False):
        # Training doubles the logits, so the step shows which way was taken.
        return self.out(x) * (2.0 if training else 1.0)


class WithoutTraining(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = L.Dense(2)

    def call(self, x):
        return self.out(x)


@pytest.mark.parametrize(
    ("model_class", "kwargs"), [(WithTraining, {"training": True}), (WithoutTraining, {})]
)
def test_subclassed_model(model_class, kwargs):
    plain = model_class()
    plain(X[:1])
    model = toy.private(plain)
    losses = [lambda i=i: crossentropy(plain, i, **kwargs) for i in range(N)]
    expected, _ = toy.step_by_hand(model, losses)
    fit_step(model)
    toy.assert_weights(model, expected)


class OwnLoss(tfdp.keras.DPModel):
    """Its loss is another one where nobody says that it trains."""

    def __init__(self):
        super().__init__()
        self.out = L.Dense(2)

    def call(self, x):
        return self.out(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=False):
        return (1.0 if training else 100.0) * keras.ops.mean(keras.ops.square(y_pred))


class EarlierLoss(OwnLoss):
    """As before Keras 3.3."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return super().compute_loss(x, y, y_pred, sample_weight, training=True)


class WithNumber(OwnLoss):
    """Returns a number beside its prediction, as autoencoders do that are variational."""

    of_each = True

    def call(self, x):
        found = self.out(x)
        return found, keras.ops.mean(found, axis=-1 if self.of_each else None)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=False):
        outputs, numbers = y_pred
        loss = super().compute_loss(x, y, outputs, sample_weight, training)
        return loss + keras.ops.mean(numbers)


class WithWeights(OwnLoss):
    """Says itself what the weights of the parts of a record mean."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=False):
        return keras.ops.mean(keras.ops.sum(sample_weight * keras.ops.square(y_pred), 1))


def test_own_loss_says_what_weights_are():
    model, weights = WithWeights(), np.float32([[1, 2]]) + np.arange(N, dtype="float32")[:, None]
    model(X[:1])
    model.compile(toy.dp())
    losses = [
        lambda i=i: tf.reduce_sum(weights[i] * model.out(X[i : i + 1]) ** 2) for i in range(N)
    ]
    expected, _ = toy.step_by_hand(model, losses)
    model.fit(X, sample_weight=weights, sampling=tfdp.sampling.FullBatch(), verbose=0)
    toy.assert_weights(model, expected)


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("model_class", [OwnLoss, EarlierLoss, WithNumber])
def test_own_loss_is_that_of_training(model_class, run_eagerly):
    model = model_class()
    model(X[:1])
    model.compile(toy.dp(), run_eagerly=run_eagerly)
    number = float(model_class is WithNumber)
    losses = [
        lambda i=i: (
            tf.reduce_mean(model.out(X[i : i + 1]) ** 2)
            + number * tf.reduce_mean(model.out(X[i : i + 1]))
        )
        for i in range(N)
    ]
    expected, _ = toy.step_by_hand(model, losses)
    of_plain = [float(loss()) for loss in losses]
    logs = model.fit(X, Y, sampling=tfdp.sampling.FullBatch(), verbose=0).history
    toy.assert_weights(model, expected)
    assert logs["loss"] == pytest.approx([np.mean(of_plain)], rel=1e-5)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_an_output_that_is_no_records_is_named(run_eagerly):
    model = WithNumber()
    model.of_each = False
    model(X[:1])
    model.compile(toy.dp(), run_eagerly=run_eagerly)
    with pytest.raises(ValueError, match="An output of the model has no axis of records"):
        model.fit(X, Y, batch_size=4, verbose=0)


def test_float64_data_is_cast_as_keras_does():
    model = toy.private()
    expected, _ = toy.step_by_hand(model, [lambda i=i: crossentropy(model, i) for i in range(N)])
    fit_step(model, X.astype("float64"), Y.astype("float64"))
    toy.assert_weights(model, expected)


def squared_hinge_of_margin(y_true, y_pred):
    sign = 2.0 * keras.ops.cast(keras.ops.reshape(y_true, (-1,)), y_pred.dtype) - 1.0
    return keras.ops.square(keras.ops.relu(1.0 - sign * y_pred[:, 0]))


class MarginLoss(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return squared_hinge_of_margin(y_true, y_pred)


@pytest.mark.parametrize("loss", [squared_hinge_of_margin, MarginLoss()], ids=["function", "class"])
def test_custom_loss(loss):
    model = toy.private(toy.linear(), loss=loss)

    def by_hand(i):
        margin = (2.0 * Y[i] - 1.0) * model(X[i : i + 1])[0, 0]
        return tf.nn.relu(1.0 - margin) ** 2

    expected, _ = toy.step_by_hand(model, [lambda i=i: by_hand(i) for i in range(N)])
    fit_step(model)
    toy.assert_weights(model, expected)
