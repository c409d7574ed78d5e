"""Traps about clipping and summing: what a record may do to a sum.

`tests/traps/list_test.py` has the list of all traps.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.keras import toy

L = keras.layers
ENGINES = ["bookkeeping", "vectorized", "loop"]
X, Y = toy.data()
N = len(X)


def total(model, x, y, engine, clip=0.1, **kwargs):
    """Returns the sum of clipped gradients of a model's mean squared error."""
    loss = tfdp.gradients.ModelLoss(model, keras.losses.MeanSquaredError())
    query = tfdp.GaussianSumQuery(clip, 0.0)
    variables = model.trainable_variables
    clipped = tfdp.clipped_gradient_sum(loss, variables, (x, y), query, engine=engine, **kwargs)
    return [np.asarray(s) for s in clipped.sample_state]


def assert_equal(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)


# One record.


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_passes_the_clip(engine, bad):
    # min(1, C / nan) is 1 where the order of the arguments is unlucky.
    x, y = X.copy(), np.float32(X[:, :2])
    x[3] = bad
    others = np.arange(N) != 3
    model = toy.dense()
    sums = total(model, x, y, engine)
    assert all(np.isfinite(s).all() for s in sums)
    assert_equal(sums, total(model, x[others], y[others], engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_in_one_variable_drops_the_record_from_every_group(engine, bad):
    # The other variable's gradient is finite, and has a clip of its own.
    inputs = [keras.Input((3,)), keras.Input((2,))]
    outputs = [L.Dense(1, use_bias=False)(i) for i in inputs]
    model = keras.Model(inputs, L.Add()(outputs))
    loss = tfdp.gradients.ModelLoss(model, lambda y, p: tf.reduce_sum(p))
    query = tfdp.query.NestedQuery([tfdp.GaussianSumQuery(1.0, 0.0) for _ in outputs])
    left, right = np.ones([4, 3], "float32"), np.ones([4, 2], "float32")
    left[2, 1] = bad
    examples = ([tf.constant(left), tf.constant(right)], tf.zeros([4]))
    clipped = tfdp.clipped_gradient_sum(
        loss, model.trainable_variables, examples, query, engine=engine
    )
    # Three records, each of norm one in each group.
    for total, size in zip(clipped.sample_state, (3, 2), strict=True):
        np.testing.assert_allclose(np.ravel(total), np.full(size, 3 / size**0.5), rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_zero_norm_division(engine):
    model = toy.linear()
    x, y = np.zeros([3, 4], "float32"), np.zeros([3, 2], "float32")
    for s in total(model, x, y, engine):
        np.testing.assert_array_equal(s, np.zeros_like(s))


def test_clip_reaching_zero():
    for clip in (0.0, -1.0, 1e-300):
        with pytest.raises(ValueError, match="l2_norm_clip"):
            tfdp.GaussianSumQuery(clip, 1.0)
    # A clip that adapts may come to zero later: there is then no event, and so no step.
    query = tfdp.GaussianSumQuery(1.0, 1.0)
    state = query.initial_global_state()._replace(l2_norm_clip=np.float32(0.0))
    with pytest.raises(ValueError, match="l2_norm_bound"):
        query.derive_event(state)
    with pytest.raises(ValueError, match="clip"):
        tfdp.query.per_layer([np.zeros([2]), np.zeros([2])], [1.0, 0.0], 1.0, denominator=1)


# The number of records.


def linear_steps(x, denominator, **kwargs):
    """Returns what a step of SGD(1) does to the matrix of a linear loss: the average gradient."""
    optimizer = tfdp.keras.DPOptimizer(
        keras.optimizers.SGD(1.0),
        tfdp.GaussianAverageQuery(100.0, noise_multiplier=0.0, denominator=denominator),
    )
    variable = tf.Variable(tf.zeros([x.shape[1]]))
    gradients = optimizer.private_gradients(
        lambda e: tf.reduce_sum(e * variable), [variable], tf.constant(x), **kwargs
    )
    return gradients[0].numpy()


@pytest.mark.parametrize("size", [1, 2, 7])
def test_realised_batch_size_as_denominator(size):
    moved = linear_steps(np.ones([size, 3], "float32"), denominator=4.0)
    np.testing.assert_allclose(moved, np.full(3, size / 4), rtol=1e-6)  # Not 1.


def test_integer_int_n_q_expected_size():
    # q N = 1.5: int(q N) = 1 would scale the update and its noise by one and a half.
    policy = tfdp.sampling.Poisson(sampling_probability=0.15, population_size=10)
    assert policy.expected_batch_size == 1.5
    moved = linear_steps(np.ones([3, 2], "float32"), denominator=policy.expected_batch_size)
    np.testing.assert_allclose(moved, [2.0, 2.0], rtol=1e-6)
    # 256 / 60000 * 60000 is 255.99999999999997, of which int makes 255.
    resolved = tfdp.sampling.Poisson().resolve(60_000, 256)
    assert resolved.expected_batch_size == resolved.padded_size - 48 == 256


@pytest.mark.parametrize("engine", ENGINES)
def test_padded_batch_changes_the_number_of_records(engine):
    # The bias gets a gradient from rows of zeros too, and from rows of NaN.
    model = toy.dense()
    y = np.float32(X[:, :2])
    expected = total(model, X, y, engine)
    for filler in (0.0, 5.0, np.nan):
        x = np.concatenate([X, np.full([4, 4], filler, "float32")])
        padded_y = np.concatenate([y, np.ones([4, 2], "float32")])
        mask = np.arange(N + 4) < N
        assert_equal(total(model, x, padded_y, engine, mask=mask), expected)


def drawn(num_examples, batch_size, steps):
    """Returns the sizes of the samples that `fit` drew, by what the weights moved.

    One-hot records and a linear loss: a kernel row moves by one where its record was drawn, and the
    bias counts records. Padding would count too, having a bias gradient of one.
    """
    layers = [keras.Input((num_examples,)), L.Dense(1)]
    model = tfdp.keras.make_private(keras.Sequential(layers))
    query = tfdp.GaussianAverageQuery(100.0, noise_multiplier=0.0, denominator=1)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query)
    model.compile(optimizer, loss=lambda y, p: p[:, 0])
    x = np.eye(num_examples, dtype="float32")
    places = [toy.weights(model)]
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: places.append(toy.weights(model))
    )
    arguments = {"batch_size": batch_size, "steps_per_epoch": steps, "verbose": 0}
    model.fit(x, x[:, 0], callbacks=[note], **arguments)
    sizes = []
    for before, after in zip(places, places[1:], strict=False):
        kernel, bias = (b - a for b, a in zip(before, after, strict=True))
        assert np.allclose(kernel * (kernel - 1), 0, atol=1e-4)
        np.testing.assert_allclose(bias.sum(), kernel.sum(), atol=1e-3)
        sizes.append(round(float(bias.sum())))
    assert len(sizes) == steps == model.ledger.total_count
    return sizes


def test_padded_batches_of_fit_hold_the_records_that_were_drawn():
    # Poisson; twenty equal sizes: less than once in 10^14 runs.
    assert len(set(drawn(40, 8, steps=20))) > 1


def test_empty_samples_are_steps():
    # A sample is empty with probability (1 - 1 / 30)^30 = 0.36: none of 45, once in 10^8 runs.
    assert 0 in drawn(30, 1, steps=45)


# The fast path against the explicit one.


def shared():
    layer = L.Dense(4, activation="tanh")
    inputs = keras.Input((4,))
    return keras.Model(inputs, L.Dense(2)(layer(layer(inputs)))), X, X[:, :2]


def frozen():
    model = keras.Sequential([keras.Input((4,)), L.Dense(4, name="stays"), L.Dense(2)])
    model.get_layer("stays").trainable = False
    return model, X, X[:, :2]


class _Bias(keras.layers.Layer):
    def build(self, shape):
        self.bias = self.add_weight(shape=(2, 3, 4), initializer="ones", name="bias")

    def call(self, x):
        return x * self.bias


def bias_of_three_axes():
    layers = [
        keras.Input((4,)),
        L.Dense(24),
        L.Reshape((2, 3, 4)),
        _Bias(),
        L.Flatten(),
        L.Dense(2),
    ]
    return keras.Sequential(layers), X, X[:, :2]


def convolution():
    rng = np.random.default_rng(1)
    layers = [
        keras.Input((6, 5, 3)),
        L.Conv2D(4, 3, strides=2, padding="same", data_format="channels_last"),
        L.DepthwiseConv2D(2, data_format="channels_last"),
        L.Flatten(),
        L.Dense(2),
    ]
    return keras.Sequential(layers), rng.normal(size=(N, 6, 5, 3)).astype("float32"), X[:, :2]


@pytest.mark.parametrize("make", [shared, frozen, bias_of_three_axes, convolution])
def test_fast_path_differs_from_the_explicit_path(make):
    keras.utils.set_random_seed(5)
    model, x, y = make()
    expected = total(model, x, np.float32(y), "loop")
    assert_equal(total(model, x, np.float32(y), "auto"), expected)
    # Clipping was in force: else errors of norms would not show.
    unclipped = total(model, x, np.float32(y), "auto", clip=100.0)
    norm, clipped_norm = (np.sqrt(sum(np.sum(s**2) for s in t)) for t in (unclipped, expected))
    assert norm > 2 * clipped_norm


def test_layer_normalization_with_microbatches():
    keras.utils.set_random_seed(5)
    layers = [keras.Input((4,)), L.Dense(6), L.LayerNormalization(), L.Dense(2)]
    model, y = keras.Sequential(layers), np.float32(X[:, :2])
    groups = {"num_microbatches": 4, "microbatch_ids": np.arange(N) % 3}  # One is empty.
    expected = total(model, X, y, "loop", **groups)
    assert_equal(total(model, X, y, "bookkeeping", **groups), expected)
    assert not np.allclose(expected[0], total(model, X, y, "loop")[0], atol=1e-3)


@pytest.mark.parametrize("engine", ["auto", "vectorized", "loop"])
def test_unused_variable_is_refused_in_every_engine(engine):
    model, unused = toy.linear(), keras.Variable(np.ones([2]), name="never_used")
    loss = tfdp.gradients.ModelLoss(model, keras.losses.MeanSquaredError())
    with pytest.raises(ValueError, match="never_used"):
        tfdp.clipped_gradient_sum(
            loss,
            [*model.trainable_variables, unused],
            (X, np.float32(X[:, :2])),
            tfdp.GaussianSumQuery(1.0, 0.0),
            engine=engine,
        )


# Losses that mix records.


@pytest.mark.parametrize("engine", ENGINES)
def test_batch_dependent_loss(engine):
    # Each record's loss is computed as for a batch of one: there the difference from the mean of
    # the batch is zero, and so is its gradient.
    model = toy.linear()

    def centred(y, p):
        return tf.reduce_sum((p - tf.reduce_mean(p, axis=0)) ** 2) + tf.reduce_sum(p - y) / 10

    loss = tfdp.gradients.ModelLoss(model, centred)
    query = tfdp.GaussianSumQuery(10.0, 0.0)
    y = np.float32(X[:, :2])

    def kernel(x):
        clipped = tfdp.clipped_gradient_sum(
            loss, model.trainable_variables, (x, y), query, engine=engine
        )
        return np.asarray(clipped.sample_state[0])

    np.testing.assert_allclose(kernel(X), X.sum(0)[:, None] * np.full([1, 2], 0.1), atol=1e-5)
    moved = X.copy()
    moved[0] += 3  # One record moves the sum by what itself contributes, and no other's.
    np.testing.assert_allclose(kernel(moved) - kernel(X), np.full([4, 2], 0.3), atol=1e-5)
