"""Draws of a block's own code, for all records of a batch at once."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.gradients import ModelLoss, explain, keras_internals

L, K, R = keras.layers, keras.ops, keras.random
N, WIDTH = 8, 4


class Drawing(L.Layer):
    """Returns what a function makes of a seed generator and its input."""

    def __init__(self, draw):
        super().__init__(name="drawing")
        self.draw = draw
        self.seed_generator = R.SeedGenerator(3)

    def call(self, inputs):
        return self.draw(self.seed_generator, inputs)

    def compute_output_shape(self, shape):
        return shape


class Weighted(Drawing):
    """The same times a weight of its own."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(WIDTH,), initializer="ones")

    def call(self, inputs):
        return self.scale * super().call(inputs)


def model_of(layer, shape=(WIDTH,)):
    inputs = keras.Input(shape)
    hidden = L.Dense(shape[-1], use_bias=False, kernel_initializer="ones", name="dense")(inputs)
    return keras.Model(inputs, layer(hidden))


def drop_path(generator, x):
    shape = (K.shape(x)[0], *(1,) * (len(x.shape) - 1))
    return x / 0.5 * K.floor(0.5 + R.uniform(shape, seed=generator))


def sampling(generator, x):
    return x * R.normal((K.shape(x)[0], K.shape(x)[1]), seed=generator)


def rows_of(x):
    return K.shape(x)[0]


ON_BATCH = {
    "drop_path": drop_path,
    "dropout": lambda g, x: R.dropout(x, 0.5, seed=g),
    "dropout_of_columns": lambda g, x: R.dropout(x, 0.5, noise_shape=(None, 1), seed=g),
    "from_a_range": lambda g, x: x * R.uniform(K.shape(x), -1.0, 2.0, seed=g),
    "normal": sampling,
    "of_several_axes": lambda g, x: x * K.sum(R.normal((rows_of(x), 3, WIDTH), seed=g), 1),
    "of_tensorflow": lambda g, x: x * tf.random.stateless_normal(K.shape(x), g.next()),
    "some_whole_numbers": lambda g, x: x * K.cast(R.randint(K.shape(x), -3, 7, seed=g), x.dtype),
    "truncated": lambda g, x: x * R.truncated_normal(K.shape(x), seed=g),
    "twice": lambda g, x: x * R.normal(K.shape(x), seed=g) + R.uniform((rows_of(x), 1), seed=g),
    "without_a_seed": lambda g, x: x * R.normal(K.shape(x)),
}


def stateless(seed, x):
    return x * tf.random.stateless_normal(K.shape(x), seed)


def from_one_seed_twice(generator, x):
    seed = generator.next()
    return stateless(seed, x) + x * tf.random.stateless_normal([rows_of(x), 1], seed)


RECORD_BY_RECORD = {
    "a_number_added": lambda g, x: stateless(g.next() + [0, 1], x),
    "a_part_of_a_seed": lambda g, x: stateless(tf.repeat(g.next()[:1], 2), x),
    "by_number_of_records": lambda g, x: K.transpose(R.normal((WIDTH, rows_of(x)), seed=g)) * x,
    "categories": lambda g, x: x * K.cast(R.categorical(x, WIDTH, seed=g), x.dtype),
    "constant": lambda g, x: x * R.normal(K.shape(x), seed=3),
    "few_seeds": lambda g, x: stateless(g.next() % 2, x),
    "few_seeds_by_a_cast": lambda g, x: stateless(
        tf.cast(tf.cast(g.next(), tf.int8), tf.int64), x
    ),
    "from_one_seed_twice": from_one_seed_twice,
    "gamma": lambda g, x: x * R.gamma(K.shape(x), 2.0, seed=g),
    "known": lambda g, x: stateless(g.next() * 0, x),
    "modulus_in_front": lambda g, x: stateless(2**40 % (1 + g.next()), x),
    "of_two_seeds": lambda g, x: stateless(g.next() * g.next(), x),
    "one_for_all_records": lambda g, x: x * R.normal((WIDTH,), seed=g),
    "records_as_bounds": lambda g, x: x + K.cast(
        tf.random.stateless_uniform(
            K.shape(x), g.next(), 0, K.cast(x[0, 0] * 0 + 9, "int32"), tf.int32
        ),
        x.dtype,
    ),
    "seed_by_record": lambda g, x: stateless(g.next() + K.cast(x[0, :1], "int64"), x),
    "shuffled": lambda g, x: R.shuffle(x, 0, seed=g),
}  # fmt: skip


def by_record(model):
    """Returns what is said of layers that run record by record."""
    return "".join(line for line in explain(model).split("\n") if "record by record" in line)


@pytest.mark.parametrize("name", ON_BATCH)
def test_draws_for_each_record_run_on_the_batch(name):
    assert not by_record(model_of(Drawing(ON_BATCH[name])))


@pytest.mark.parametrize("name", RECORD_BY_RECORD)
def test_draws_that_could_connect_records_run_record_by_record(name):
    assert "drawing: record by record" in by_record(model_of(Drawing(RECORD_BY_RECORD[name])))


def test_draws_beside_weights_of_their_own_run_record_by_record():
    assert "has weights of its own" in by_record(model_of(Weighted(drop_path)))


class Outer(L.Layer):
    """Takes the seed from which a layer in it draws."""

    def __init__(self, shared):
        super().__init__(name="outer")
        self.generator, self.shared = R.SeedGenerator(3), shared
        self.drawing = Drawing(lambda g, x: stateless(self.seed if shared else g.next(), x))

    def call(self, inputs):
        self.seed = self.generator.next()
        return self.drawing(inputs) + stateless(self.seed, inputs)


@pytest.mark.parametrize("shared", [True, False])
def test_a_seed_from_outside_of_a_block_is_not_known(shared):
    # Each of the two would draw from it once.
    assert ("drawing" in by_record(model_of(Outer(shared)))) is shared


def clipped_sum(model, x, clip, **kwargs):
    """Returns (sum of clipped gradients, outputs), both as arrays."""
    clipped = tfdp.clipped_gradient_sum(
        ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs)),
        model.trainable_variables,
        (tf.constant(x), tf.zeros([len(x)])),
        tfdp.GaussianSumQuery(clip, 1.0),
        engine="bookkeeping",
        has_aux=True,
        **kwargs,
    )
    return clipped.sample_state[0].numpy(), np.reshape(clipped.aux, [len(x), -1])


FACTORS = ["drop_path", "dropout", "from_a_range", "normal", "of_several_axes", "truncated"]


@pytest.mark.parametrize("name", FACTORS)
def test_gradients_are_those_of_what_was_drawn(name):
    x = np.geomspace(0.1, 10, N * WIDTH, dtype=np.float32).reshape(N, WIDTH)
    total, outputs = clipped_sum(model_of(Drawing(ON_BATCH[name])), x, 3.0)
    factors = outputs / (x @ np.ones((WIDTH, WIDTH)))
    gradients = x[:, :, None] * factors[:, None, :]
    norms = np.linalg.norm(gradients, axis=(1, 2), keepdims=True)
    assert (norms > 3.0).any() and (norms < 3.0).any()
    expected = np.sum(gradients * np.minimum(1.0, 3.0 / np.maximum(norms, 1e-9)), 0)
    np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-5)


def test_paths_are_dropped_as_often_as_they_are_said_to_be():
    run = tf.function(
        lambda: (
            tfdp.clipped_gradient_sum(
                ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs)),
                model.trainable_variables,
                (tf.ones([1000, WIDTH]), tf.zeros([1000])),
                tfdp.GaussianSumQuery(1.0, 1.0),
                has_aux=True,
            ).aux
        ),
        autograph=False,
    )
    model = model_of(Drawing(drop_path))
    kept = np.mean([run().numpy()[..., 0] > 0 for _ in range(10)])
    # Ten thousand draws: 6.2 standard deviations.
    assert abs(kept - 0.5) < 6.2 * 0.5 / 100


@pytest.mark.parametrize("kwargs", [{"physical_batch_size": 4}, {"jit_compile": True}])
def test_draws_are_fresh_in_other_modes(kwargs):
    model = model_of(Drawing(sampling))
    jit_compile = kwargs.pop("jit_compile", False)
    seeds = tfdp.gradients.draw_seeds

    def run(drawn):
        return tfdp.clipped_gradient_sum(
            ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs)),
            model.trainable_variables,
            (tf.ones([N, WIDTH]), tf.zeros([N])),
            tfdp.GaussianSumQuery(1.0, 1.0),
            has_aux=True,
            seeds=drawn,
            **kwargs,
        ).aux

    step = tf.function(run, autograph=False, jit_compile=jit_compile)
    both = np.concatenate([np.ravel(step(seeds(N))) for _ in range(2)])
    assert len(np.unique(both)) == 2 * N * WIDTH


def test_the_steps_of_a_record_draw_for_themselves():
    inputs = keras.Input((3, WIDTH))
    hidden = L.Dense(WIDTH, use_bias=False, kernel_initializer="ones")(inputs)
    model = keras.Model(inputs, L.TimeDistributed(Drawing(sampling))(hidden))
    _, outputs = clipped_sum(model, np.ones((N, 3, WIDTH), np.float32), 1.0)
    assert len(np.unique(outputs)) == N * 3 * WIDTH


@pytest.mark.parametrize(
    ("layer", "draws"),
    [
        (lambda: L.Dense(2), False),
        (lambda: L.Dropout(0.5), True),
        (lambda: L.Dropout(0.0), False),
        (lambda: L.GaussianNoise(1.0), True),
        (lambda: L.LSTM(2), False),
        (lambda: L.LSTM(2, dropout=0.5), True),
        (lambda: L.GRU(2, recurrent_dropout=0.5), True),
        (lambda: L.RandomFlip(), True),
        (lambda: Drawing(sampling), True),
        (lambda: L.TimeDistributed(Drawing(sampling)), True),
    ],
)
def test_layers_that_seem_to_draw(layer, draws):
    assert keras_internals.draws_when_called(layer()) is draws
