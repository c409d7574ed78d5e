"""What a record draws is fresh, secret and its own, whatever draws and whatever computes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.gradients import ModelLoss, SideEffectError, UnsupportedModelError, draw_seeds

L = keras.layers
ENGINES = ["bookkeeping", "vectorized", "loop"]
N, WIDTH = 128, 4
# Correlations of independent draws have a standard deviation of at most 1 / N^(1/2), whatever a
# record's columns have in common: they are beyond 6.2 of them with probability 1e-9. What follows
# from the row has 1.
LIMIT = 6.2 / np.sqrt(N)


@keras.saving.register_keras_serializable("record_scope_test")
class Noisy(L.Layer):
    """Adds what a function draws for the shape of the input. No rule knows it."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, inputs):
        return inputs + self.draw(self.seed_generator, tf.shape(inputs))


class Promised(Noisy):
    """The same, of which somebody says that it treats records separately."""


tfdp.gradients.register_rule(Promised, tfdp.gradients.RecordWise())


def scaled(layer):
    return [L.Dense(WIDTH, kernel_initializer="ones"), layer]


def attention():
    inputs = keras.Input((WIDTH,))
    steps = L.Reshape((2, 2))(inputs)
    attended = L.MultiHeadAttention(1, 2, dropout=0.5, seed=1)(steps, steps)
    return keras.Model(inputs, L.Flatten()(attended))


def recurrent(layer, **kwargs):
    return keras.Sequential([keras.Input((WIDTH,)), L.Reshape((2, 2)), layer(4, seed=1, **kwargs)])


def flipped():
    image = [L.Dense(WIDTH, kernel_initializer="glorot_normal"), L.Reshape((2, 2, 1))]
    return keras.Sequential([keras.Input((WIDTH,)), *image, L.RandomFlip(seed=1), L.Flatten()])


def chain(layer):
    return keras.Sequential([keras.Input((WIDTH,)), *scaled(layer)])


def by_generator(generator, shape):
    return keras.random.normal(shape, seed=generator)


def by_nobody(generator, shape):
    return keras.random.normal(shape)


def by_numbers(generator, shape):
    return tf.random.stateless_normal(shape, generator.next())


def by_several(generator, shape):
    numbers = keras.random.randint(shape, 0, 2, seed=generator)
    return tf.cast(numbers, tf.float32) + keras.random.truncated_normal(shape, seed=generator)


WAYS = {
    "dropout": lambda: chain(L.Dropout(0.5, seed=1)),
    "alpha_dropout": lambda: chain(L.AlphaDropout(0.5, seed=1)),
    "gaussian_dropout": lambda: chain(L.GaussianDropout(0.5, seed=1)),
    "gaussian_noise": lambda: chain(L.GaussianNoise(1.0, seed=1)),
    "attention": attention,
    "lstm": lambda: recurrent(L.LSTM, dropout=0.5, unroll=True),
    "gru_inputs": lambda: recurrent(L.GRU, dropout=0.5),
    "gru": lambda: recurrent(L.GRU, recurrent_dropout=0.5, unroll=True),
    "random_flip": flipped,
    "own_layer": lambda: chain(Noisy(by_generator)),
    "own_layer_without_seed": lambda: chain(Noisy(by_nobody)),
    "own_layer_and_numbers_of_a_seed": lambda: chain(Noisy(by_numbers)),
    "own_layer_that_draws_twice": lambda: chain(Noisy(by_several)),
    "promised_layer": lambda: chain(Promised(by_generator)),
    "promised_layer_without_seed": lambda: chain(Promised(by_nobody)),
}


def drawn(model, engine, seeds=None, rows=N, **kwargs):
    """Returns what the model makes of ones, for each of some records."""
    loss = ModelLoss(model, lambda y, outputs: tf.reduce_sum(outputs))
    examples = tf.ones([rows, WIDTH]), tf.zeros([rows])
    clipped = tfdp.clipped_gradient_sum(
        loss,
        model.trainable_variables,
        examples,
        tfdp.GaussianSumQuery(1.0, 1.0),
        engine=engine,
        has_aux=True,
        seeds=seeds,
        **kwargs,
    )
    return tf.reshape(clipped.aux, [rows, -1])


def correlation(left, right):
    left, right = (np.ravel(x - np.mean(x, 0)) for x in (left, right))
    return np.corrcoef(left, right)[0, 1]


def assert_independent(run):
    """The state of all seed generators is as at the beginning when a step runs again."""
    first, second = run().numpy(), run().numpy()
    assert first.std() > 0.01
    # The same row at another step, the same step's next row, and both.
    assert abs(correlation(first, second)) < LIMIT
    assert abs(correlation(first[1:], first[:-1])) < LIMIT
    assert abs(correlation(first[1:], second[:-1])) < LIMIT


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", WAYS)
def test_draws_follow_neither_row_nor_step(way, engine):
    model = WAYS[way]()
    states = [v.numpy() for v in model.non_trainable_variables]
    assert_independent(tf.function(lambda: drawn(model, engine), autograph=False))
    # Nothing of a draw is in what would be saved.
    np.testing.assert_equal([v.numpy() for v in model.non_trainable_variables], states)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["eager", "xla", "physical batches"])
def test_draws_follow_neither_row_nor_step_in_every_mode(engine, mode):
    model = WAYS["dropout"]()
    if mode == "xla":
        compiled = tf.function(
            lambda seeds: drawn(model, engine, seeds), autograph=False, jit_compile=True
        )
        assert_independent(lambda: compiled(draw_seeds(N)))
    elif mode == "eager" and engine == "loop":
        rows = 16  # One step is enough: each row could be that of the last step.
        first, second = (drawn(model, engine, rows=rows).numpy() for _ in range(2))
        assert (first != second).sum() > 8  # Of 64, half of which differ.
        assert (first[1:] != first[:-1]).sum() > 8
    else:
        rows = 8 if mode == "physical batches" else None
        run = lambda: drawn(model, engine, physical_batch_size=rows)  # noqa: E731
        assert_independent(run if mode == "eager" else tf.function(run, autograph=False))


def test_records_with_the_same_seeds_draw_the_same_wherever_they_stand():
    # One more record in front moves all others on by a row.
    seeds = draw_seeds(9)
    for engine in ("vectorized", "loop"):
        model = WAYS["own_layer"]()
        with_it = drawn(model, engine, seeds, 9)
        without_it = drawn(model, engine, seeds[1:], 8)
        np.testing.assert_array_equal(with_it[1:], without_it)


@pytest.mark.parametrize("engine", ENGINES)
def test_layer_that_is_called_twice_draws_twice(engine):
    inputs = keras.Input((WIDTH,))
    layer = Noisy(by_generator)
    hidden = L.Dense(WIDTH, kernel_initializer="zeros")(inputs)
    model = keras.Model(inputs, L.Concatenate()([layer(hidden), layer(hidden)]))
    left, right = tf.split(tf.function(lambda: drawn(model, engine), autograph=False)(), 2, 1)
    assert abs(correlation(left, right)) < LIMIT


class Counted(L.Layer):
    """Counts how often it is traced."""

    def __init__(self):
        super().__init__()
        self.times = 0

    def call(self, inputs):
        self.times += 1
        return inputs


tfdp.gradients.register_rule(Counted, tfdp.gradients.RecordWise())


@pytest.mark.parametrize(
    ("last", "times"),
    # Of a layer without a seed generator it is found out at its call.
    [
        (lambda: L.Dropout(0.5), 1),
        (lambda: L.Dropout(0.0), 1),
        (lambda: Noisy(by_generator), 1),
        (lambda: L.Lambda(lambda x: x + keras.random.normal(tf.shape(x))), 2),
    ],
)
def test_a_model_that_drops_out_is_not_traced_until_then_for_nothing(last, times):
    first, own = Counted(), [L.Dense(WIDTH, kernel_initializer="ones"), last()]
    model = keras.Sequential([keras.Input((WIDTH,)), first, *own])
    first.times = 0
    tf.function(lambda: drawn(model, "bookkeeping"), autograph=False)()
    assert first.times == times


@pytest.mark.parametrize("engine", ENGINES)
def test_loss_draws_for_each_record(engine):
    generator = keras.random.SeedGenerator(3)  # Held by nobody whom Keras knows.
    model = keras.Sequential([keras.Input((WIDTH,)), L.Dense(1, kernel_initializer="ones")])

    def noisy(y, outputs):
        return tf.reduce_sum(outputs * keras.random.normal([1], seed=generator))

    def losses():
        return tfdp.clipped_gradient_sum(
            ModelLoss(model, noisy),
            model.trainable_variables,
            (tf.ones([N, WIDTH]), tf.zeros([N])),
            tfdp.GaussianSumQuery(1.0, 1.0),
            engine=engine,
        ).losses

    run = tf.function(losses, autograph=False)
    first, second = run().numpy(), run().numpy()
    assert abs(correlation(first, second)) < LIMIT
    assert abs(correlation(first[1:], first[:-1])) < LIMIT


STREAMS = {
    "global stream": lambda generator, shape: tf.random.normal(shape),
    "global stream with a seed": lambda generator, shape: tf.random.uniform(shape, seed=1),
    "shuffle": lambda generator, shape: tf.random.shuffle(tf.ones(shape)),
    "dropout": lambda generator, shape: tf.nn.dropout(tf.ones(shape), 0.5),
    "poisson": lambda generator, shape: tf.random.poisson([], tf.ones(shape)),
}


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
@pytest.mark.parametrize("stream", STREAMS)
def test_streams_that_records_share_are_refused(stream, engine):
    with pytest.raises(SideEffectError, match="SeedGenerator"):
        drawn(chain(Noisy(STREAMS[stream])), engine)


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
def test_generator_of_tensorflow_is_refused(engine):
    generator = tf.random.Generator.from_seed(1)
    layer = Noisy(lambda _, shape: generator.normal(shape))
    with pytest.raises(SideEffectError, match="Stateful|Rng"):
        drawn(chain(layer), engine)


CONSTANT = {
    "keras": lambda generator, shape: keras.random.normal(shape, seed=3),
    "tensorflow": lambda generator, shape: tf.random.stateless_normal(shape, [1, 2]),
    "in a branch": lambda generator, shape: tf.cond(
        tf.reduce_sum(shape) > 0,
        lambda: tf.random.stateless_normal(shape, [1, 2]),
        lambda: tf.zeros(shape),
    ),
}


@pytest.mark.parametrize("way", CONSTANT)
def test_constant_seeds_give_every_record_the_same(way):
    for engine in ENGINES:
        result = drawn(chain(Noisy(CONSTANT[way])), engine).numpy()
        np.testing.assert_array_equal(result, np.broadcast_to(result[:1], result.shape))


@pytest.mark.parametrize("way", CONSTANT)
def test_constant_seeds_of_a_batch_are_refused(way):
    # In one draw of [n, ...] what a record gets follows from its row.
    with pytest.raises(UnsupportedModelError, match="row"):
        drawn(chain(Promised(CONSTANT[way])), "bookkeeping")
    result = drawn(chain(Promised(CONSTANT[way])), "auto").numpy()
    np.testing.assert_array_equal(result, np.broadcast_to(result[:1], result.shape))


def test_constant_seeds_of_a_batch_are_refused_beside_secret_ones():
    both = keras.Sequential([L.Dropout(0.5), Promised(CONSTANT["tensorflow"])])
    with pytest.raises(UnsupportedModelError, match="row"):
        drawn(chain(both), "bookkeeping")


def test_mask_of_dropout_is_each_records_own():
    # With this noise_shape a batch would share one.
    model = chain(L.Dropout(0.5, noise_shape=(1, WIDTH), seed=1))
    result = drawn(model, "bookkeeping").numpy()
    assert abs(correlation(result[1:], result[:-1])) < LIMIT


def test_seeds_are_fresh_and_fill_their_range():
    seeds = np.concatenate([draw_seeds(4096).numpy() for _ in range(2)])
    assert seeds.shape == (8192, 2)
    # Two of 16384 among 2^31 are equal with probability 6 %: pairs, with 3e-12.
    assert len({tuple(pair) for pair in seeds}) == 8192
    assert seeds.min() >= 0
    # The mean of 16384 uniform numbers is within 6.2 of its standard deviations.
    assert abs(seeds.mean() / 2**31 - 0.5) < 6.2 / np.sqrt(12 * seeds.size)
