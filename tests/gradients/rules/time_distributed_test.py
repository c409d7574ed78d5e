"""TimeDistributed on a batch, against the explicit loop over records."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    TOKENS,
    Block,
    Position,
    WithoutMask,
    assert_agrees_with_xla,
    assert_broken_record_contributes_nothing,
    assert_engines_agree,
    assert_layer_agrees,
    assert_layer_is_exact,
    assert_tokens_agree,
    by_engine,
    floatx,
    lora,
    model_of,
    normal,
    problem,
)
from tfdp.gradients import ModelLoss
from tfdp.gradients.explaining import explain
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.rules.rule import rule_for

L = keras.layers


def minus_mean(x):
    """Mixes what is in a batch."""
    return x - tf.reduce_mean(x, axis=0, keepdims=True) / 2


class OwnBlock(Block):
    def build(self, shape):
        self.attention.build(shape, shape)
        self.norm.build(shape)

    def compute_output_shape(self, shape):
        return shape


class OwnTable(Position):
    def compute_output_shape(self, shape):
        return shape


LAYERS = {
    "convolution": (lambda: L.Conv2D(2, (2, 3), padding="same", activation="relu"), (3, 5, 4, 2)),
    "convolution_1d": (lambda: L.Conv1D(3, 2, strides=2), (3, 6, 2)),
    "convolution_3d": (lambda: L.Conv3D(2, 2), (2, 3, 3, 3, 2)),
    "convolution_of_groups": (lambda: L.Conv2D(4, 2, groups=2), (3, 4, 4, 2)),
    "convolution_transposed": (lambda: L.Conv2DTranspose(2, 3, strides=2), (3, 3, 3, 2)),
    "convolution_dilated": (lambda: L.Conv2D(2, 2, dilation_rate=2), (3, 4, 4, 2)),
    "dense": (lambda: L.Dense(3, activation="tanh"), (5, 4)),
    "dense_on_sequences": (lambda: L.Dense(3), (3, 5, 4)),
    "depthwise": (lambda: L.DepthwiseConv2D(2), (3, 4, 4, 2)),
    "einsum": (lambda: L.EinsumDense("abc,bcd->adb", (3, 2)), (3, 2, 4)),
    "group_normalization": (lambda: L.GroupNormalization(2), (3, 4, 4)),
    "layer_normalization": (lambda: L.LayerNormalization(), (5, 4)),
    "model": (
        lambda: keras.Sequential([L.Conv1D(3, 2, activation="relu"), L.Flatten(), L.Dense(2)]),
        (3, 4, 2),
    ),
    "own_block": (OwnBlock, (2, 4, 3)),
    "prelu": (lambda: L.PReLU(alpha_initializer="ones"), (3, 4)),
    "recurrent": (lambda: L.GRU(3), (2, 4, 3)),
    "separable": (lambda: L.SeparableConv1D(3, 2), (3, 4, 2)),
    "time_distributed": (lambda: L.TimeDistributed(L.Dense(3)), (2, 3, 4)),
    "without_a_rule": (lambda: L.SimpleRNN(3, activation="softmax"), (2, 4, 3)),
    "weights_of_its_own": (OwnTable, (3, 4)),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    make, shape = LAYERS[name]
    assert rule_for(L.TimeDistributed(make())) is not None
    assert_layer_is_exact(lambda: L.TimeDistributed(make()), shape)


def test_what_is_in_it_runs_as_its_rule_says():
    make, shape = LAYERS["model"]
    lines = explain(model_of(lambda: L.TimeDistributed(make()), shape)).split("\n")
    assert [line.split(": ")[1] for line in lines] == [
        "DenseRule", "ConvolutionRule", "DenseRule", "DenseRule",
    ]  # fmt: skip


class Around(L.Layer):
    """A block of a user's own around it, whose own scale the steps are multiplied by."""

    def __init__(self, scaled):
        super().__init__()
        self.inner, self.last = L.TimeDistributed(L.Dense(3, "tanh")), L.Dense(2)
        self.scaled = scaled

    def build(self, shape):
        self.inner.build(shape)
        self.last.build((*shape[:-1], 3))
        if self.scaled:
            self.scale = self.add_weight(shape=(3,), initializer="ones")

    def call(self, inputs):
        steps = self.inner(inputs)
        return self.last(steps * self.scale if self.scaled else steps)


@pytest.mark.parametrize("scaled", [False, True])
def test_inside_a_block(scaled):
    assert "record by record" not in explain(model_of(lambda: Around(scaled), (5, 4)))
    assert_layer_agrees(lambda: Around(scaled), (5, 4))


def test_low_rank_adaptation():
    def make():
        inner = lora(L.Dense(3))
        layer = L.TimeDistributed(inner)
        layer.prepare = lambda shape: vars(inner).pop("prepare")((None, *shape[2:]))
        return layer

    assert_layer_agrees(make, (3, 4))


def test_tokens():
    keras.utils.set_random_seed(1)
    ids = keras.Input((2, 3), dtype="int32")
    y = L.TimeDistributed(L.Embedding(7, 4))(ids)
    model = keras.Model(ids, L.Dense(2)(L.Flatten()(y)))
    tokens = np.concatenate([TOKENS, TOKENS[:, :1]], 1).reshape(BATCH, 2, 3)
    assert_tokens_agree(model, tokens)


def test_layer_that_is_used_inside_and_outside():
    keras.utils.set_random_seed(1)
    x, dense = keras.Input((3, 4)), L.Dense(4, activation="tanh")
    y = L.TimeDistributed(dense)(x)
    y = L.Concatenate()([L.Flatten()(L.TimeDistributed(dense)(y)), dense(x[:, 0])])
    assert_engines_agree(*problem(keras.Model(x, L.Dense(2)(y)), normal(3, 4)))


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda: L.Dense(3), (5, 4)),
        (lambda: L.LSTM(3), (3, 2, 4)),
        (lambda: L.Conv1D(3, 2), (3, 4, 2)),
        (lambda: L.SimpleRNN(3, activation="softmax"), (2, 4, 3)),
    ],
    ids=["dense", "lstm", "convolution", "without_a_rule"],
)
def test_number_of_steps_that_is_not_known(make, shape):
    keras.utils.set_random_seed(1)
    layers = [keras.Input((None, *shape[1:])), L.TimeDistributed(make()), L.Flatten()]
    layers[2:] = [L.TimeDistributed(L.Flatten()), L.GlobalAveragePooling1D(), L.Dense(2)]
    loss, variables, examples = problem(keras.Sequential(layers), normal(*shape))
    assert_engines_agree(loss, variables, examples)


def test_masked_steps():
    keras.utils.set_random_seed(1)
    ids = keras.Input((5,), dtype="int32")
    y = L.TimeDistributed(L.Dense(3))(L.Embedding(7, 4, mask_zero=True)(ids))
    model = keras.Model(ids, L.Dense(2)(L.LSTM(3)(y)))
    tokens = TOKENS.copy()
    tokens[0, [0, 2]] = tokens[1, 3:] = tokens[2] = 0
    assert_engines_agree(*problem(model, tokens))


@pytest.mark.parametrize("layer", [lambda: L.LSTM(3), lambda: L.Softmax()], ids=["lstm", "softmax"])
def test_masks_of_steps(layer):
    """A layer in it gets the masks of its steps."""
    keras.utils.set_random_seed(1)
    x = keras.Input((3, 4, 2))
    inner = layer()
    shown = x[..., :1] if isinstance(inner, L.Softmax) else x[..., 0]
    mask = keras.ops.abs(shown) > 0.5
    mask = keras.ops.repeat(mask, 2, -1) if isinstance(inner, L.Softmax) else mask
    y = L.TimeDistributed(inner)(L.Dense(2)(x), mask=mask)
    y = L.Flatten()(WithoutMask()(y))
    assert_engines_agree(*problem(keras.Model(x, L.Dense(2)(y)), normal(3, 4, 2)))


def test_frozen_parts_and_microbatches():
    model = model_of(lambda: L.TimeDistributed(L.Conv1D(3, 2)), (3, 4, 2))
    model.layers[2].layer.bias.trainable = False
    grouping = {"num_microbatches": 2, "microbatch_ids": [1, 0, 1, 1]}
    assert_engines_agree(*problem(model, normal(3, 4, 2)))
    assert_engines_agree(*problem(model, normal(3, 4, 2)), **grouping)
    assert_engines_agree(*problem(model, normal(3, 4, 2)), examples_per_record=2)


def test_mixed_precision():
    with floatx("float32"):
        keras.config.set_dtype_policy("mixed_bfloat16")
        model = model_of(lambda: L.TimeDistributed(L.Dense(3)), (5, 4))
        assert_engines_agree(*problem(model, normal(5, 4)), tolerance=0.02)


@pytest.mark.parametrize("name", ["convolution", "recurrent"])
def test_with_xla(name):
    make, shape = LAYERS[name]
    model = model_of(lambda: L.TimeDistributed(make()), shape)
    assert_agrees_with_xla(*problem(model, normal(*shape)))


@pytest.mark.parametrize("name", ["convolution", "dense", "without_a_rule"])
def test_record_with_a_step_that_is_not_finite_contributes_nothing(name):
    make, shape = LAYERS[name]
    assert_broken_record_contributes_nothing(lambda: L.TimeDistributed(make()), shape, (1,))


MIXING = {
    "function": lambda: L.Dense(3, activation=minus_mean),
    "layer": lambda: keras.Sequential([L.Dense(3), L.Lambda(minus_mean)]),
}


@pytest.mark.parametrize("name", sorted(MIXING))
def test_layer_that_mixes_a_batch_is_kept_from_it(name):
    """In the loop, too, a batch is one step of one record."""
    model = model_of(lambda: L.TimeDistributed(MIXING[name]()), (3, 4))
    assert "record by record" in explain(model)
    assert_engines_agree(*problem(model, normal(3, 4)))


def least_distance_of_steps(y, outputs):
    steps = tf.reshape(outputs, [6, -1])
    distances = tf.reduce_sum(tf.square(steps[:, None] - steps), 2)
    return tf.reduce_min(distances + 1e9 * tf.eye(6))


def number_of_record(y, outputs):
    return tf.reduce_sum(outputs * tf.sin(tf.range(outputs.shape[1], dtype=tf.float32)))


@pytest.mark.parametrize(
    "draw",
    [lambda: L.Dropout(0.5), lambda: L.Lambda(lambda x: keras.random.dropout(x, 0.5))],
    ids=["on_the_batch", "record_by_record"],
)
def test_steps_and_records_draw_on_their_own(draw):
    """All steps of all records are the same, but for what they drop."""
    keras.utils.set_random_seed(1)
    x = keras.Input((6, 16))
    layer = keras.Sequential([L.Dense(32), draw()])
    model = keras.Model(x, L.Flatten()(L.TimeDistributed(layer)(x)))
    examples = tf.ones([BATCH, 6, 16]), tf.zeros([BATCH, 1])

    @tf.function(autograph=False)
    def losses(number):
        query = tfdp.GaussianSumQuery(1e9, 1.0)
        return tfdp.clipped_gradient_sum(
            ModelLoss(model, number), model.trainable_variables, examples, query,
            engine="bookkeeping",
        ).losses  # fmt: skip

    assert (losses(least_distance_of_steps).numpy() > 1e-3).all()
    seen = np.concatenate([losses(number_of_record) for _ in range(2)])
    assert len(np.unique(np.round(seen, 4))) == 2 * BATCH


class DrawsByRecord(L.Layer):
    """Draws, and has no rule: nothing knows sums along the first axis to keep records apart."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(1)

    def call(self, inputs):
        drawn = keras.random.normal(keras.ops.shape(inputs), seed=self.generator)
        return 0 * inputs + keras.ops.cumsum(drawn, axis=0)

    def compute_output_shape(self, shape):
        return shape


def test_every_step_of_every_step_draws_for_itself():
    x = keras.Input((3, 4, 2, 1))
    steps = DrawsByRecord()
    for _ in range(3):
        steps = L.TimeDistributed(steps)
    model = keras.Model(x, L.Dense(1, use_bias=False, kernel_initializer="ones")(
        L.Flatten()(steps(x))
    ))  # fmt: skip
    examples = tf.ones([2, 3, 4, 2, 1]), tf.zeros([2, 1])
    query = tfdp.GaussianSumQuery(1e9, 1.0)
    for row in range(2):
        gradient = tfdp.clipped_gradient_sum(
            ModelLoss(model, lambda y, p: tf.reduce_sum(p)), model.trainable_variables, examples,
            query, engine="bookkeeping", mask=tf.range(2) == row,
        ).sample_state[0]  # fmt: skip
        # The gradient of the weights is what was drawn.
        assert len(np.unique(np.round(gradient, 6))) == 3 * 4 * 2


@pytest.mark.parametrize("make", [lambda: L.RandomCrop(2, 2), L.RandomGaussianBlur])
def test_one_draw_for_all_images_stays_one_for_each_step(make):
    assert rule_for(L.TimeDistributed(make())) is None


@pytest.mark.parametrize("make", [lambda: L.RandomCrop(4, 4), L.RandomGaussianBlur])
def test_what_draws_once_for_all_images_goes_over_the_steps_in_turn(make):
    x = keras.Input((2, 6, 6, 3))
    model = keras.Model(x, L.Dense(1)(L.Flatten()(L.TimeDistributed(make())(x))))
    assert explain(model).splitlines()[0].endswith("block, on the batch")
    total = by_engine(
        *problem(model, normal(2, 6, 6, 3)), tfdp.GaussianSumQuery(0.3, 1.0), "bookkeeping"
    )
    assert all(np.isfinite(leaf).all() for leaf in total)
    assert any(np.any(leaf) for leaf in total)


@pytest.mark.parametrize("engine", ["vectorized", "loop"])
def test_a_crop_in_it_is_refused_as_the_documents_say(engine):
    x = keras.Input((2, 6, 6, 3))
    model = keras.Model(x, L.Dense(1)(L.Flatten()(L.TimeDistributed(L.RandomCrop(4, 4))(x))))
    loss, variables, examples = problem(model, normal(2, 6, 6, 3))
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    with pytest.raises(ValueError, match="slice whose length follows"):
        by_engine(loss, variables, examples, query, engine)


def test_all_steps_may_be_cropped_at_one_place():
    """What docs/engines.md says to do."""
    x = keras.Input((2, 6, 6, 3))
    steps = L.Reshape((6, 6, 6))(L.Permute((2, 3, 1, 4))(x))
    y = L.Reshape((4, 4, 2, 3))(L.RandomCrop(4, 4)(steps))
    model = keras.Model(x, L.Dense(1)(L.Flatten()(L.Permute((3, 1, 2, 4))(y))))
    loss, variables, examples = problem(model, normal(2, 6, 6, 3))
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    total = by_engine(loss, variables, examples, query, "bookkeeping")
    assert all(np.isfinite(leaf).all() for leaf in total)
    assert any(np.any(leaf) for leaf in total)


def test_recomputed_layers_have_no_rule():
    with keras.RematScope(mode="full"):
        layer = L.TimeDistributed(L.Dense(3))
    assert rule_for(layer) is None


class TwoTensors(L.Layer):
    def call(self, inputs):
        return inputs, 2 * inputs

    def compute_output_shape(self, shape):
        return shape


def test_more_than_one_tensor_is_refused():
    keras.utils.set_random_seed(1)
    x = keras.Input((3, 4))
    y = L.TimeDistributed(TwoTensors())(L.Dense(4)(x))
    loss, variables, examples = problem(keras.Model(x, L.Dense(2)(L.Flatten()(y))), normal(3, 4))
    query = tfdp.GaussianSumQuery(0.3, 1.0)
    with pytest.raises(UnsupportedModelError, match="must return one tensor"):
        by_engine(loss, variables, examples, query, "bookkeeping")
