"""Keras' own losses of a batch, against the same losses called on single records."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.gradients import ModelLoss, UnsupportedModelError
from tfdp.gradients.engines import bookkeeping
from tfdp.gradients.usual_losses import losses_of_records

L, losses = keras.layers, keras.losses
N, CLASSES = 5, 3
_seeds = itertools.count()


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    global _seeds
    _seeds = itertools.count(1000)


def generator():
    return np.random.default_rng(next(_seeds))


def logits(*shape):
    return generator().normal(size=(N, *shape)).astype("float32")


def probabilities(*shape):
    return tf.nn.softmax(logits(*shape)).numpy()


def one_hot(*shape):
    return np.eye(CLASSES, dtype="float32")[labels(*shape)]


def labels(*shape):
    return generator().integers(0, CLASSES, (N, *shape))


NUMBERS = [
    *(losses.MeanSquaredError(), losses.MeanAbsoluteError(), losses.MeanSquaredLogarithmicError()),
    *(losses.MeanAbsolutePercentageError(), losses.Huber(delta=0.3), losses.LogCosh()),
    *(losses.CosineSimilarity(), losses.BinaryCrossentropy(from_logits=True)),
    *(losses.BinaryFocalCrossentropy(True, from_logits=True), losses.CategoricalHinge()),
    losses.MeanSquaredError(dtype="float64"),
]
OF_CLASSES = [
    losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    losses.CategoricalFocalCrossentropy(from_logits=True),
]
OF_PROBABILITIES = [
    *(losses.Poisson(), losses.KLDivergence(), losses.BinaryCrossentropy(label_smoothing=0.2)),
    *(losses.CategoricalCrossentropy(), losses.CategoricalFocalCrossentropy()),
]
SPARSE = losses.SparseCategoricalCrossentropy
CASES = [
    *((loss, logits(*shape), logits(*shape)) for loss in NUMBERS for shape in [(1,), (3,), (2, 3)]),
    *((loss, logits(), logits(1)) for loss in NUMBERS),
    *((loss, one_hot(*at), logits(*at, CLASSES)) for loss in OF_CLASSES for at in [(), (4, 2)]),
    *(
        (loss, one_hot(*at), probabilities(*at, 3))
        for loss in OF_PROBABILITIES
        for at in [(), (4,)]
    ),
    *((SPARSE(), labels(*at), probabilities(*at, 3)) for at in [(), (1,), (4,), (2, 2)]),
    *((SPARSE(from_logits=True), labels(*at), logits(*at, 3)) for at in [(), (4,)]),
    *((SPARSE(from_logits=True), labels(*at, 1), logits(*at, 3)) for at in [(), (4,)]),
    (SPARSE(from_logits=True, dtype="float64"), labels(4), logits(4, 3)),
    (SPARSE(from_logits=True), labels() - 0.4, logits(3)),  # Keras rounds towards zero.
    (losses.MeanSquaredError(), labels(2), logits(2)),
]


def ids(case):
    loss, y, y_pred = case
    return f"{type(loss).__name__}-{y.shape[1:]}-{y_pred.shape[1:]}"


def by_record(loss, y, y_pred, weights=None):
    """Returns the losses [n] and their gradients [n, ...], of one record after the other."""
    found = []
    for i in range(len(y)):
        own = tf.constant(y_pred[i : i + 1])
        with tf.GradientTape() as tape:
            tape.watch(own)
            value = loss(
                y[i : i + 1], own, sample_weight=None if weights is None else weights[i : i + 1]
            )
        found.append((value, tape.gradient(value, own)[0]))
    return [np.stack(each) for each in zip(*found, strict=True)]


def of_batch(loss, y, y_pred, weights=None):
    predictions = tf.constant(y_pred)
    with tf.GradientTape() as tape:
        tape.watch(predictions)
        weights = None if weights is None else tf.constant(weights)
        found = losses_of_records(loss, tf.constant(y), predictions, weights)
    gradients = tape.gradient(found.values, predictions, output_gradients=found.factors)
    return found.losses.numpy(), gradients.numpy()


@pytest.mark.parametrize("case", CASES, ids=ids)
@pytest.mark.parametrize(
    ("weighed", "reduction"), [(None, "sum_over_batch_size"), ((), "mean"), ((1,), "sum")]
)
def test_gives_what_single_records_give(case, weighed, reduction):
    loss, y, y_pred = case
    weights = None if weighed is None else np.abs(logits(*weighed))
    loss.reduction = reduction
    found = of_batch(loss, y, y_pred, weights)
    for ours, expected in zip(found, by_record(loss, y, y_pred, weights), strict=True):
        assert ours.dtype == expected.dtype
        np.testing.assert_allclose(ours, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("case", CASES, ids=ids)
@pytest.mark.parametrize("bad", [np.nan, 1e30])
def test_no_record_sees_another(case, bad):
    loss, y, y_pred = case
    expected = of_batch(loss, y, y_pred)
    y, y_pred = y.copy(), y_pred.copy()
    y[1:] = -7 if y.dtype == np.int64 else bad
    y_pred[1:] = bad
    for ours, before in zip(of_batch(loss, y, y_pred), expected, strict=True):
        np.testing.assert_array_equal(ours[0], before[0])
        assert not np.isnan(bad) or not np.array_equal(ours[1:], before[1:])


@pytest.mark.parametrize("label", [-1, CLASSES, np.nan, np.inf, -np.inf, 1e30, 2**40])
@pytest.mark.parametrize("shape", [(), (1,), (4,)])
@pytest.mark.parametrize("compiles", [False, True])
def test_class_that_there_is_none_of_makes_its_record_nan(label, shape, compiles):
    y, y_pred = labels(*shape).astype("float64"), logits(*shape[:1], CLASSES)
    y_pred = y_pred[:, 0] if shape == (1,) else y_pred
    expected = of_batch(SPARSE(from_logits=True), y, y_pred)
    y.reshape(N, -1)[2, -1] = label
    call = tf.function(
        lambda y, y_pred: gradients(SPARSE(from_logits=True), y, y_pred), jit_compile=compiles
    )
    for ours, before in zip(call(y, y_pred), expected, strict=True):
        assert np.isnan(ours[2]).all()
        others = [0, 1, 3, 4]
        # A gradient is a difference of numbers up to one.
        np.testing.assert_allclose(np.array(ours)[others], before[others], rtol=1e-6, atol=3e-7)


def gradients(loss, y, y_pred):
    with tf.GradientTape() as tape:
        tape.watch(y_pred)
        found = losses_of_records(loss, y, y_pred)
    return found.losses, tape.gradient(found.values, y_pred, output_gradients=found.factors)


class Own(losses.MeanSquaredError):
    def call(self, y_true, y_pred):
        return super().call(y_true, y_pred) - tf.reduce_mean(y_pred)


class OwnReduction(losses.MeanSquaredError):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return super().__call__(y_true, y_pred) ** 2


def changed(loss, y_true, y_pred):
    loss.call = lambda y_true, y_pred: tf.reduce_mean(y_pred, -1) ** 2
    return loss, y_true, y_pred


def masked(y_pred):
    tensor = tf.constant(y_pred)
    tensor._keras_mask = tf.ones(y_pred.shape[:2], tf.bool)
    return tensor


MSE = losses.MeanSquaredError
NOT_TAKEN = {
    "hinge": (losses.Hinge(), logits(3), logits(3)),
    "hinge of labels": (losses.SquaredHinge(), np.float32(labels(3) > 0), logits(3)),
    "records compared": (losses.Circle(), labels(), logits(3)),
    "whole images": (losses.Dice(), one_hot(), probabilities(3)),
    "own code": (Own(), logits(3), logits(3)),
    "own reduction": (OwnReduction(), logits(3), logits(3)),
    "code of the object": changed(MSE(), logits(3), logits(3)),
    "a function": (losses.mean_squared_error, logits(3), logits(3)),
    "no loss": (None, logits(3), logits(3)),
    "along the records": (losses.CosineSimilarity(axis=0), logits(3), logits(3)),
    "another axis": (losses.BinaryCrossentropy(axis=1), logits(2, 3), logits(2, 3)),
    "ignored class": (SPARSE(ignore_class=0), labels(), probabilities(3)),
    "no reduction": (MSE(reduction="none"), logits(3), logits(3)),
    "half precision": (MSE(dtype="float16"), logits(3), logits(3)),
    # A target for all numbers of a record: of so many records as numbers each would meet another.
    "broadcast targets": (MSE(), logits(), logits(N)),
    "broadcast predictions": (MSE(), logits(N), logits(1)),
    "broadcast parts": (MSE(), logits(1, 3), logits(2, 3)),
    "a number only": (MSE(), logits(), logits()),
    "more axes": (MSE(), logits(1), logits()),
    "classes of another axis": (SPARSE(), labels(2), probabilities(3)),
    "no parts": (MSE(), logits(0, 2), logits(0, 2)),
    "a mask": (MSE(), logits(2, 3), masked(logits(2, 3))),
    "a weight": (losses.Huber(delta=keras.Variable(0.5)), logits(3), logits(3)),
    "a weight's value": (losses.Huber(delta=tf.Variable(0.5)), logits(3), logits(3)),
    "a tensor": (losses.Huber(delta=tf.constant(0.5)), logits(3), logits(3)),
    "weights in a list": (
        losses.CategoricalFocalCrossentropy(alpha=[keras.Variable(0.5), 0.5, 0.5]),
        *(one_hot(), probabilities(3)),
    ),
    "an array": (MSE(), logits(3), logits(3).tolist()),
}


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_leaves_others_to_single_records(name):
    loss, y, y_pred = NOT_TAKEN[name]
    y_pred = y_pred if isinstance(y_pred, list) or tf.is_tensor(y_pred) else tf.constant(y_pred)
    assert losses_of_records(loss, tf.constant(y), y_pred) is None


def test_takes_options_that_are_numbers_or_arrays():
    for alpha in (0.5, [0.5] * 3, np.float32([0.5] * 3)):
        loss = losses.CategoricalFocalCrossentropy(alpha=alpha, from_logits=True)
        assert losses_of_records(loss, tf.constant(one_hot()), tf.constant(logits(3))) is not None


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.weight = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs):
        return inputs * self.weight


def test_weight_that_is_an_option_keeps_its_gradient():
    inputs, scale = keras.Input((4,)), Scale()
    model = keras.Model(inputs, scale(keras.layers.Dense(3)(inputs)))
    loss = ModelLoss(model, losses.Huber(delta=scale.weight))
    query = tfdp.GaussianSumQuery(l2_norm_clip=100.0, stddev=0.0)
    batch, variables = (logits(4), 5 * logits(3)), model.trainable_variables
    found, expected = (
        sums(tfdp.clipped_gradient_sum(loss, variables, batch, query, engine=engine))
        for engine in ("auto", "loop")
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    with pytest.raises(UnsupportedModelError, match="outside of the layers that own them"):
        tfdp.clipped_gradient_sum(loss, variables, batch, query, engine="bookkeeping")


def test_leaves_weights_of_parts_to_single_records():
    y, y_pred = tf.constant(logits(3, 2)), tf.constant(logits(3, 2))
    assert losses_of_records(MSE(), y, y_pred, tf.ones([N])) is not None
    assert losses_of_records(MSE(), y, y_pred, tf.ones([N, 3])) is None
    by_weights = MSE(reduction="mean_with_sample_weight")
    assert losses_of_records(by_weights, y, y_pred) is not None
    assert losses_of_records(by_weights, y, y_pred, tf.ones([N])) is None


def test_leaves_lengths_that_are_open_to_single_records():
    seen = []

    @tf.function(input_signature=[tf.TensorSpec([None, None, 2]), tf.TensorSpec([None, None, 2])])
    def call(y, y_pred):
        seen.append(losses_of_records(MSE(), y, y_pred))

    call.get_concrete_function()
    assert seen == [None]


def test_every_loss_of_keras_is_known_or_is_not_for_a_reason():
    taken = {type(loss) for loss, *_ in CASES}
    others = {
        *(losses.Hinge, losses.SquaredHinge),  # They look at all targets.
        *(losses.Dice, losses.Tversky),  # Of whole images.
        losses.Circle,  # Compares records.
        losses.CTC,  # Has lengths of its own.
        losses.CategoricalGeneralizedCrossEntropy,  # Gathers by labels.
        losses.Loss,
    }
    kinds = {
        kind
        for kind in vars(losses).values()
        if isinstance(kind, type) and issubclass(kind, losses.Loss)
    }
    assert kinds - others == taken


def of_two_layers():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((4,)), L.Dense(5, "relu"), L.Dense(3, "softmax")])


def sums(total):
    return tf.nest.flatten(total.sample_state)


class Halved(ModelLoss):
    def loss(self, example, outputs, scope):
        loss, aux = super().loss(example, outputs, scope)
        return loss / 2, aux


@pytest.mark.parametrize(("kind", "mapped"), [(ModelLoss, 0), (Halved, 1)])
@pytest.mark.parametrize("of_record", [None, 3])
def test_only_a_loss_of_ones_own_is_called_on_single_records(monkeypatch, kind, mapped, of_record):
    calls, own = [], bookkeeping.map_records
    monkeypatch.setattr(bookkeeping, "map_records", lambda *args: (calls.append(1), own(*args))[1])
    loss = kind(of_two_layers(), SPARSE())
    query = tfdp.GaussianSumQuery(l2_norm_clip=0.5, stddev=0.0)
    batch = (logits(4), labels())

    def total(engine):
        return tfdp.clipped_gradient_sum(
            *(loss, loss.model.trainable_variables, batch, query),
            engine=engine,
            has_aux=True,
            physical_batch_size=of_record,
            loss_scale=8.0,
        )

    found = total("bookkeeping")
    assert len(calls) == mapped or (mapped and of_record)
    expected = total("loop")
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-6)
    np.testing.assert_allclose(found.aux, expected.aux, rtol=1e-6)
    for ours, theirs in zip(*map(sums, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
