"""What stands for a model's outputs before its first step: `training_test.py` trains what comes of
it.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp.keras import prepared
from tfdp.keras.prepared import _outputs

L = keras.layers
STEPS = 40


class Cell(L.SimpleRNNCell):
    """Counts how often it is called."""

    times = 0

    def call(self, *args, **kwargs):
        type(self).times += 1
        return super().call(*args, **kwargs)


def labels():
    return keras.Sequential([keras.Input((STEPS, 3)), L.GRU(4), L.Dense(2)])


def several():
    tokens = keras.Input((STEPS,), dtype="int32", name="tokens")
    start = keras.Input((4,), name="start")
    x = L.Embedding(9, 4, mask_zero=True)(tokens)
    steps, state = L.GRU(4, return_sequences=True, return_state=True)(x, initial_state=start)
    outputs = {"steps": L.Dense(3)(steps), "both": [state, L.Bidirectional(L.LSTM(2))(x)]}
    return keras.Model({"tokens": tokens, "start": start}, outputs)


def half():
    layers = [L.LSTM(4, dtype="mixed_float16"), L.Dense(2, dtype="mixed_float16")]
    return keras.Sequential([keras.Input((STEPS, 3)), *layers])


def images():
    image = keras.Input((3, 8, 8, 1))
    return keras.Model(image, L.Flatten()(L.ConvLSTM2D(2, 3, dropout=0.5)(image)))


class OwnModel(keras.Model):
    """Has no graph of its own."""

    def __init__(self):
        super().__init__()
        self.loop, self.last = L.RNN(Cell(4)), L.Dense(2)

    def call(self, inputs):
        return self.last(self.loop(inputs))


def example_of(model):
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    return tf.nest.map_structure(lambda t: tf.zeros([1, *t.shape[1:]], t.dtype), inputs)


@pytest.mark.parametrize("make", [labels, several, half, images])
def test_they_have_the_structure_shapes_and_types_of_the_models(make):
    model = make()
    x = example_of(model)
    found, expected = _outputs(model, x), model(x)
    tf.nest.assert_same_structure(found, expected)
    for left, right in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert (left.shape, left.dtype) == (right.shape, right.dtype)


def test_a_loop_takes_no_steps_before_the_first_one(monkeypatch):
    def times():
        Cell.times = 0
        layers = [L.RNN(Cell(4)), L.Dense(2)]
        model = toy.private(keras.Sequential([keras.Input((STEPS, 3)), *layers]))
        model.fit(np.ones([8, STEPS, 3]), np.ones([8], int), batch_size=4, verbose=0)
        return Cell.times

    assert times() < STEPS / 2
    # Calling the model takes all of them.
    monkeypatch.setattr(prepared, "_outputs", lambda model, x: model(x))
    assert times() > STEPS


def test_a_model_that_is_not_built_is_called_and_has_all_variables_then():
    model = OwnModel()
    x = tf.zeros([1, STEPS, 3])
    Cell.times = 0
    assert _outputs(model, x).shape == [1, 2] and Cell.times > STEPS
    assert len(model.trainable_variables) == 5
    Cell.times = 0
    assert _outputs(model, x).shape == [1, 2] and Cell.times < STEPS


# Losses that layers add.


class AddsLoss(L.Layer):
    """Its loss is the mean of squares."""

    def call(self, inputs):
        self.add_loss(keras.ops.mean(inputs**2))
        return inputs


class OnlyAdded(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.adds = L.Dense(3), AddsLoss()

    def call(self, inputs):
        return self.adds(self.dense(inputs))


class Doubled(OnlyAdded):
    """Has a loss of its own, in which Keras adds up those of layers."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 2 * super().compute_loss(x, y, y_pred, sample_weight)


def of_activity():
    return keras.Sequential([keras.Input((4,)), L.Dense(3, activity_regularizer="l2")])


def of_two_outputs():
    x = keras.Input((4,))
    hidden = AddsLoss()(L.Dense(3)(x))
    return keras.Model(x, [hidden, AddsLoss()(L.Dense(2)(hidden))])


def of_loop():
    x = keras.Input((4,))
    return keras.Model(x, AddsLoss()(L.LSTM(3)(L.Reshape((2, 2))(x))))


def fit_data_set(model, x):
    declared = tfdp.sampling.Shuffled(batch_size=len(x), population_size=len(x))
    data = tf.data.Dataset.from_tensor_slices(x).batch(len(x))
    model.fit(data, sampling=declared, verbose=0)


def fit_array(model, x):
    model.fit(x, sampling=tfdp.sampling.FullBatch(), verbose=0)


def dp_model(kind):
    return type(kind.__name__, (kind, tfdp.keras.DPModel), {})()


ONLY_ADDED = {
    "activity": (of_activity, None, fit_array),
    "two_outputs": (of_two_outputs, None, fit_array),
    "loop": (of_loop, None, fit_array),
    "subclassed": (OnlyAdded, None, fit_array),
    "dp_model": (OnlyAdded, lambda: dp_model(OnlyAdded), fit_array),
    "own_loss": (Doubled, lambda: dp_model(Doubled), fit_array),
    "data_set": (OnlyAdded, None, fit_data_set),
    "one_batch": (OnlyAdded, None, lambda model, x: model.train_on_batch(x)),
}


@pytest.mark.parametrize("name", ONLY_ADDED)
def test_a_model_whose_only_losses_are_those_of_layers_is_trained(name):
    make, make_dp, train = ONLY_ADDED[name]
    x = toy.X
    plain = make()
    plain(x)
    start = plain.get_weights()
    private = make_dp() if make_dp else tfdp.keras.make_private(make())
    private(x)
    private.set_weights(start)
    # Before 3.13 Keras adds up what regularizers of outputs take of a batch, undivided.
    adds_up = name == "activity" and tuple(map(int, keras.__version__.split(".")[:2])) < (3, 13)
    plain.compile(keras.optimizers.SGD(0.1 / len(x) if adds_up else 0.1))
    plain.fit(x, batch_size=len(x), shuffle=False, verbose=0)
    query = tfdp.GaussianAverageQuery(l2_norm_clip=1e9, stddev=0.0, denominator=len(x))
    private.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query))
    train(private, x)
    for before, expected, got in zip(
        start, plain.get_weights(), private.get_weights(), strict=True
    ):
        assert np.abs(expected - before).max() > 0
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_a_model_without_any_loss_is_refused_and_nothing_is_charged():
    private = tfdp.keras.make_private(keras.Sequential([keras.Input((4,)), L.Dense(3)]))
    private.compile(toy.dp())
    with pytest.raises(ValueError, match="No loss to compute"):
        private.fit(toy.X, batch_size=4, verbose=0)
    assert private.ledger.total_count == 0


# Losses that divide by weights.


def dividing(**kwargs):
    return keras.losses.MeanSquaredError(reduction="mean_with_sample_weight", **kwargs)


def of_weights(two_outputs=None):
    x = keras.Input((4,))
    outputs = {"a": L.Dense(1, name="a")(x), "b": L.Dense(1, name="b")(x)}
    if two_outputs is None:
        model, loss = keras.Model(x, outputs["a"]), dividing()
    elif two_outputs is dict:
        model, loss = keras.Model(x, outputs), {"a": "mse", "b": dividing()}
    else:
        model, loss = keras.Model(x, list(outputs.values())), ["mse", dividing()]
    private = tfdp.keras.make_private(model)
    private.compile(toy.dp(), loss)
    return private


ONES, ZEROS = np.ones([toy.N, 1], "float32"), np.zeros([toy.N, 1], "float32")
WEIGHTS = np.arange(1.0, toy.N + 1)
DECLARED = tfdp.sampling.Shuffled(batch_size=4, population_size=toy.N)
WEIGHED = {
    "array": lambda: of_weights().fit(toy.X, ONES, sample_weight=WEIGHTS, batch_size=4, verbose=0),
    "classes": lambda: of_weights().fit(
        toy.X, ONES, class_weight={1: 3.0}, batch_size=4, verbose=0
    ),
    "batch": lambda: of_weights().train_on_batch(toy.X, ONES, sample_weight=WEIGHTS),
    "classes_of_batch": lambda: of_weights().train_on_batch(toy.X, ONES, class_weight={1: 3.0}),
    "data_set": lambda: of_weights().fit(
        tf.data.Dataset.from_tensor_slices((toy.X, ONES, WEIGHTS)).batch(4),
        sampling=DECLARED,
        verbose=0,
    ),
    "classes_of_data_set": lambda: of_weights().fit(
        tf.data.Dataset.from_tensor_slices((toy.X, ONES)).batch(4),
        sampling=DECLARED,
        class_weight={1: 3.0},
        verbose=0,
    ),
    "dict": lambda: of_weights(dict).fit(
        toy.X,
        {"a": ONES, "b": ONES},
        sample_weight={"a": WEIGHTS, "b": WEIGHTS},
        batch_size=4,
        verbose=0,
    ),
    "list": lambda: of_weights(list).train_on_batch(
        toy.X, [ONES, ONES], sample_weight=[WEIGHTS, WEIGHTS]
    ),
}


@pytest.mark.parametrize("name", WEIGHED)
def test_weights_that_a_loss_would_divide_by_are_refused(name):
    with pytest.raises(ValueError, match='Use reduction="sum_over_batch_size"'):
        WEIGHED[name]()


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_they_are_refused_in_every_step_before_it_is_charged(run_eagerly):
    model = of_weights()
    model.run_eagerly = run_eagerly
    model.fit(toy.X, ZEROS, batch_size=4, verbose=0, steps_per_epoch=1)
    batch = (toy.X, ONES, WEIGHTS.astype("float32"))
    with pytest.raises(ValueError, match='Use reduction="sum_over_batch_size"'):
        model.fit(*batch[:2], sample_weight=batch[2], batch_size=4, verbose=0)
    with pytest.raises(ValueError, match='Use reduction="sum_over_batch_size"'):
        model.train_step(tuple(map(tf.constant, batch)))
    assert model.ledger.total_count == 1


def test_weights_that_the_query_takes_are_not_those_of_the_loss():
    private = tfdp.keras.make_private(keras.Sequential([keras.Input((4,)), L.Dense(1)]))
    query = tfdp.WeightedAverageQuery(1.0, noise_multiplier=1.0, max_weight=3.0, denominator=4)
    private.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query), dividing())
    private.fit(toy.X, ONES, sample_weight=WEIGHTS, batch_size=4, verbose=0)
    assert private.ledger.total_count == 3


K = keras.losses


@pytest.mark.parametrize(
    ("losses", "warnings"),
    [
        ([K.Circle(), "circle", K.circle], 3),
        ([K.Dice(), K.Tversky(), "dice", "tversky", K.tversky, K.Dice(axis=(0, 1))], 6),
        ([K.Dice(axis=(1,)), K.Tversky(axis=(1,)), "mse", K.MeanSquaredError(), None], 0),
    ],
)
def test_a_warning_says_which_losses_compare_records(losses, warnings, caplog):
    prepared._warn_of_mixing(losses)
    assert [r.getMessage().count("one record at a time") for r in caplog.records] == [1] * warnings


def test_fit_warns_of_them(caplog):
    private = tfdp.keras.make_private(keras.Sequential([keras.Input((4,)), L.Dense(1)]))
    private.compile(toy.dp(), K.Dice())
    private.fit(toy.X, ONES, batch_size=4, verbose=0)
    assert "In Keras the loss dice compares the records of a batch" in caplog.text


class FirstNumber(L.Layer):
    """Ends the run for what is no number."""

    def call(self, texts):
        return tf.strings.to_number(texts)


@pytest.mark.parametrize(
    "layer",
    [L.StringLookup(vocabulary=["1", "2"], num_oov_indices=0), FirstNumber()],
    ids=["lookup", "number"],
)
def test_what_takes_no_blank_record_is_refused_before_anything_is_charged(layer):
    x = keras.Input((4,), dtype="string")
    model = toy.private(keras.Model(x, L.Dense(2)(keras.ops.cast(layer(x), "float32"))), loss="mse")
    texts = np.array([["1", "2", "2", "1"]] * 8)
    with pytest.raises(
        tfdp.gradients.RefusedKernelError, match="a record of zeros and empty texts"
    ):
        model.fit(texts, np.zeros([8, 2], "float32"), batch_size=4, verbose=0)
    assert model.ledger.total_count == 0


def test_shapes_for_which_there_is_no_kernel_are_not_blamed_on_records():
    """TensorFlow cannot broadcast every other of seven axes; plain Keras says so, too."""
    numbers = np.zeros([1, 1, 2, 1, 2, 1, 2], "float32")
    model = keras.Sequential(
        [
            keras.Input((64,)),
            L.Reshape((2,) * 6),
            L.Lambda(lambda x: x * numbers),
            L.Flatten(),
            L.Dense(2),
        ]
    )
    for made in (model, tfdp.keras.make_private(model)):
        made.compile(toy.dp() if made is not model else "sgd", "mse")
        with pytest.raises(tf.errors.UnimplementedError, match="Broadcast between"):
            made.fit(np.zeros([8, 64]), np.zeros([8, 2]), batch_size=4, verbose=0)
