"""Every engine gives what the explicit loop gives, whatever the layers and the query."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp

L = keras.layers
BATCH = 5


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = L.Dense(4, activation="tanh")
        self.second = L.Dense(3)

    def call(self, x):
        return self.second(self.first(x) + 1.0)


class Tied(keras.Model):
    """The embedding matrix is also the output projection."""

    def __init__(self):
        super().__init__()
        self.embedding = L.Embedding(7, 4)

    def call(self, tokens):
        return tf.reduce_mean(self.embedding(tokens), 1) @ tf.transpose(self.embedding.embeddings)


def _shared():
    x = keras.Input((4,))
    layer = L.Dense(4, activation="tanh")
    return keras.Model(x, L.Dense(3)(layer(layer(x)) + layer(x)))


def _attention():
    x = keras.Input((4, 6))
    return keras.Model(x, L.Dense(3)(L.Flatten()(L.MultiHeadAttention(2, 3)(x, x))))


def _chain(*layers):
    return keras.Sequential([*layers, L.Flatten(), L.Dense(3)])


def _tokens():
    return np.random.default_rng(0).integers(1, 7, (BATCH, 5))


def _normal(*shape):
    return np.random.default_rng(0).normal(size=(BATCH, *shape)).astype("float32")


MODELS = {
    "dense": lambda: (_chain(L.Dense(4, activation="relu")), _normal(6)),
    "dense_3d": lambda: (_chain(L.Dense(4, activation="relu")), _normal(3, 6)),
    "conv1d": lambda: (_chain(L.Conv1D(3, 3, strides=2)), _normal(8, 2)),
    "conv2d": lambda: (_chain(L.Conv2D(3, 3, padding="same", activation="relu")), _normal(6, 6, 2)),
    "conv3d": lambda: (_chain(L.Conv3D(2, 2)), _normal(4, 4, 4, 1)),
    "separable": lambda: (_chain(L.SeparableConv2D(3, 3)), _normal(6, 6, 2)),
    "embedding": lambda: (_chain(L.Embedding(7, 4)), _tokens()),
    "masked_embedding": lambda: (
        _chain(L.Embedding(7, 4, mask_zero=True), L.SimpleRNN(3)),
        _tokens() % 4,
    ),
    "lstm": lambda: (_chain(L.LSTM(4)), _normal(4, 3)),
    "gru": lambda: (_chain(L.GRU(4, return_sequences=True)), _normal(4, 3)),
    "attention": lambda: (_attention(), _normal(4, 6)),
    "layer_norm": lambda: (_chain(L.Dense(4), L.LayerNormalization()), _normal(3, 6)),
    "group_norm": lambda: (_chain(L.Conv2D(4, 3), L.GroupNormalization(2)), _normal(6, 6, 1)),
    "shared": lambda: (_shared(), _normal(4)),
    "subclassed": lambda: (Subclassed(), _normal(6)),
    "tied": lambda: (Tied(), _tokens()),
}


@pytest.fixture(scope="module", params=sorted(MODELS))
def problem(request):
    """(loss function, variables, examples) of a small model."""
    keras.utils.set_random_seed(1)
    model, x = MODELS[request.param]()
    y_pred = model(x)
    y = np.random.default_rng(1).normal(size=y_pred.shape).astype("float32")
    # Gradients of very different norms, so that some records are clipped and others are not.
    scale = np.logspace(-2, 1, BATCH).astype("float32")

    def loss_fn(example):
        x, y, scale = example
        return tf.reduce_mean(scale) * tf.reduce_mean(tf.square(model(x, training=True) - y))

    return loss_fn, model.trainable_variables, (tf.constant(x), tf.constant(y), tf.constant(scale))


def flat_query(variables):
    return tfdp.GaussianSumQuery(l2_norm_clip=0.3, stddev=1.0)


def nested_query(variables):
    return tfdp.query.per_layer(variables, 0.3, 1.0, 4)


def joint_query(variables):
    return tfdp.JointClippingQuery([1.0 + i for i in range(len(variables))], 0.3, 1.0)


class NotAScaling(tfdp.SumAggregationDPQuery):
    """Clips every coordinate: a sum, but not by factors of norms."""

    def preprocess_record(self, params, record):
        return tf.nest.map_structure(lambda leaf: tf.clip_by_value(leaf, -0.01, 0.01), record)

    def get_noised_result(self, sample_state, global_state):
        return sample_state, global_state, self.derive_event(global_state)

    def derive_event(self, global_state):
        return tfdp.NonPrivateEvent()


QUERIES = [
    flat_query,
    nested_query,
    joint_query,
    lambda variables: NotAScaling(),
    lambda variables: tfdp.NoPrivacySumQuery(),
    lambda variables: tfdp.NoPrivacyAverageQuery(),
]
QUERY_IDS = ["flat", "per_layer", "joint", "not_a_scaling", "sum", "average"]


def assert_close(left, right, relative=1e-5):
    left, right = tf.nest.flatten(left), tf.nest.flatten(right)
    scale = max(float(tf.reduce_max(tf.abs(leaf))) for leaf in right)
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=relative * scale)


def explicit_sum(problem, query):
    """What the definition says, in plain Python: the oracle of the oracle."""
    loss_fn, variables, examples = problem
    params = query.derive_sample_params(query.initial_global_state())
    state = query.initial_sample_state(variables)
    for i in range(BATCH):
        with tf.GradientTape() as tape:
            loss = loss_fn([leaf[i : i + 1] for leaf in examples])
        gradients = tape.gradient(loss, [v.value for v in variables])
        state = query.accumulate_record(params, state, [tf.convert_to_tensor(g) for g in gradients])
    return state


@pytest.mark.parametrize("engine", ["loop", "vectorized"])
def test_engines_equal_the_explicit_sum_for_every_layer(problem, engine):
    loss_fn, variables, examples = problem
    query = nested_query(variables)
    step = tf.function(
        lambda e: run((loss_fn, variables, e), query, engine=engine), autograph=False
    )
    with warnings.catch_warnings():
        # A masked recurrent layer cannot be vectorized; the engine says so.
        warnings.filterwarnings("ignore", "Gradients are computed one example at a time")
        result = step(examples)
    assert_close(result.sample_state, explicit_sum(problem, query))
    assert result.losses.shape == (BATCH,)


@pytest.fixture(scope="module")
def small():
    """A model with a convolution, a bias and a matrix, and more examples than fit one chunk."""
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((5, 5, 1)), L.Conv2D(2, 3), L.Flatten(), L.Dense(3)])
    rng = np.random.default_rng(3)
    x = tf.constant(rng.normal(size=(7, 5, 5, 1)), tf.float32)
    y = tf.constant(rng.integers(0, 3, 7))

    def loss_fn(example):
        x, y = example
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))

    return loss_fn, model.trainable_variables, (x, y)


def run(problem, query, **kwargs):
    return tfdp.clipped_gradient_sum(*problem, query, **kwargs)


IDS = tf.constant([0, 3, 3, 1, 0, 0, 3])  # Sizes 3, 1, 0, 3: ragged, and one empty.


# Of seven examples. Records are added up by a contraction, or one by one: one query for each.
SIZES = {"flat": (None, 1, 3, 7, 10), "not_a_scaling": (None, 1, 3, 7, 10)}


@pytest.mark.parametrize("name", QUERY_IDS)
@pytest.mark.parametrize("microbatches", [False, True], ids=["examples", "microbatches"])
def test_every_way_gives_the_same_sum(small, name, microbatches):
    query = QUERIES[QUERY_IDS.index(name)](small[1])
    mask = tf.constant([True] * 6 + [False])
    kwargs = {"mask": mask}
    if microbatches:
        kwargs |= {"num_microbatches": 4, "microbatch_ids": IDS}
    expected = run(small, query, engine="loop", **kwargs)
    for physical in SIZES.get(name, (None, 3)):
        got = run(small, query, physical_batch_size=physical, **kwargs)
        assert_close(got.sample_state, expected.sample_state)
        np.testing.assert_allclose(got.losses, expected.losses, rtol=1e-5)


@pytest.mark.parametrize("engine", ["loop", "vectorized"])
@pytest.mark.parametrize("physical", [None, 3])
@pytest.mark.parametrize("microbatches", [False, True], ids=["examples", "microbatches"])
def test_eager_equals_graph_equals_xla(small, engine, physical, microbatches):
    query = nested_query(small[1])
    kwargs = {"engine": engine, "physical_batch_size": physical}
    if microbatches:
        kwargs |= {"num_microbatches": 4, "microbatch_ids": IDS}
    expected = run(small, query, **kwargs)
    for jit in (False, True):
        step = tf.function(
            lambda x, y: run((*small[:2], (x, y)), query, **kwargs),
            jit_compile=jit,
            autograph=False,
        )
        assert_close(step(*small[2]).sample_state, expected.sample_state)


def test_microbatch_record_is_the_mean_gradient_of_its_examples(small):
    # Without clipping, the sum over microbatches of the mean gradient, by hand.
    _, variables, _ = small
    sums = [
        run(
            (*small[:2], [leaf[i : i + 1] for leaf in small[2]]), tfdp.NoPrivacySumQuery()
        ).sample_state
        for i in range(7)
    ]
    expected = []
    for k in range(len(variables)):
        g = [s[k] for s in sums]
        expected.append((g[0] + g[4] + g[5]) / 3 + (g[1] + g[2] + g[6]) / 3 + g[3])
    got = run(small, tfdp.NoPrivacySumQuery(), num_microbatches=4, microbatch_ids=IDS)
    assert_close(got.sample_state, expected)


@pytest.mark.parametrize("engine", ["loop", "vectorized"])
def test_record_that_is_not_finite_contributes_zero_to_every_group(small, engine):
    loss_fn, variables, (x, y) = small
    query = nested_query(variables)

    @tf.function(autograph=False)
    def total(x, mask):
        return run((loss_fn, variables, (x, y)), query, mask=mask, engine=engine).sample_state

    expected = total(x, tf.constant([True, True, True, False, True, True, True]))
    for bad in (np.nan, np.inf, -np.inf):
        poisoned = tf.concat([x[:3], tf.fill([1, 5, 5, 1], bad), x[4:]], 0)
        assert_close(total(poisoned, tf.ones([7], tf.bool)), expected)


@pytest.mark.parametrize("engine", ["loop", "vectorized"])
def test_masked_rows_contribute_exactly_nothing(small, engine):
    loss_fn, variables, (x, y) = small
    query = flat_query(variables)
    mask = tf.constant([True] * 5 + [False] * 2)
    garbage = tf.concat([x[:5], tf.fill([2, 5, 5, 1], np.nan)], 0)
    got = run((loss_fn, variables, (garbage, y)), query, mask=mask, engine=engine)
    other = tf.concat([x[:5], 1e3 * x[5:]], 0)
    again = run((loss_fn, variables, (other, y)), query, mask=mask, engine=engine)
    for a, b in zip(got.sample_state, again.sample_state, strict=True):
        np.testing.assert_array_equal(a, b)
    expected = run((loss_fn, variables, (x[:5], y[:5])), query, engine=engine)
    assert_close(got.sample_state, expected.sample_state)


@pytest.mark.parametrize("physical", [None, 2])
def test_empty_batch_gives_the_initial_state(small, physical):
    loss_fn, variables, (x, y) = small
    query = nested_query(variables)
    specs = [tf.TensorSpec([None, 5, 5, 1]), tf.TensorSpec([None], tf.int64)]
    step = tf.function(
        lambda x, y: run((loss_fn, variables, (x, y)), query, physical_batch_size=physical),
        input_signature=specs,
        autograph=False,
    )
    got = step(x[:0], y[:0])
    assert got.losses.shape == (0,)
    for leaf in tf.nest.flatten(got.sample_state):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))


def test_nested_structures_of_variables_and_double_precision():
    w = tf.Variable(np.linspace(-1, 1, 6).reshape(3, 2), dtype=tf.float64)
    b = tf.Variable([0.5, -0.5], dtype=tf.float64)
    variables = {"layer": (w, [b])}
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 3)))
    query = tfdp.NestedQuery(
        {"layer": (tfdp.GaussianSumQuery(0.5, 1.0), tfdp.GaussianSumQuery(0.2, 1.0))}
    )

    def loss_fn(example):
        return tf.reduce_sum((example @ w + b) ** 2)

    loop = tfdp.clipped_gradient_sum(loss_fn, variables, x, query, engine="loop")
    fast = tfdp.clipped_gradient_sum(loss_fn, variables, x, query)
    tf.nest.assert_same_structure(fast.sample_state, variables)
    assert_close(fast.sample_state, loop.sample_state, relative=1e-12)


def test_loss_scale_changes_nothing_in_the_result(small):
    query = flat_query(small[1])
    assert_close(run(small, query, loss_scale=1024.0).sample_state, run(small, query).sample_state)


def test_aux_is_stacked_over_examples(small):
    loss_fn, variables, (x, y) = small
    result = tfdp.clipped_gradient_sum(
        lambda e: (loss_fn(e), {"label": e[1]}),
        variables,
        (x, y),
        flat_query(variables),
        has_aux=True,
    )
    np.testing.assert_array_equal(result.aux["label"][:, 0], y)


class TestErrors:
    def test_variable_without_gradient_is_named(self, small):
        loss_fn, variables, examples = small
        unused = keras.Variable([1.0], name="unused_scale")
        for engine in ("loop", "vectorized"):
            with pytest.raises(ValueError, match="unused_scale"):
                run((loss_fn, [*variables, unused], examples), flat_query(None), engine=engine)

    def test_loss_of_several_numbers(self, small):
        _, variables, examples = small
        with pytest.raises(ValueError, match="one number"):
            run((lambda e: tf.zeros([3]), variables, examples), flat_query(None))

    def test_lengths_differ(self, small):
        loss_fn, variables, (x, y) = small
        with pytest.raises(ValueError, match="same length"):
            run((loss_fn, variables, (x, y[:-1])), flat_query(None))
        with pytest.raises(ValueError, match="same length"):
            run(small, flat_query(None), mask=tf.ones([3], tf.bool))

    @pytest.mark.parametrize(
        ("kwargs", "error", "match"),
        [
            ({"engine": "fast"}, ValueError, "engine must be one of"),
            ({"physical_batch_size": 0}, ValueError, "at least 1"),
            ({"physical_batch_size": 2.0}, TypeError, "integer"),
            ({"num_microbatches": 2}, ValueError, "go together"),
            ({"num_microbatches": -1, "microbatch_ids": IDS}, ValueError, "at least 1"),
        ],
    )
    def test_bad_arguments(self, small, kwargs, error, match):
        with pytest.raises(error, match=match):
            run(small, flat_query(None), **kwargs)

    def test_query_of_the_wrong_structure_shows_both(self, small):
        query = tfdp.NestedQuery([flat_query(None)] * 3)
        with pytest.raises(ValueError, match="Expected.*\n.*Received"):
            run(small, query)

    def test_not_a_query_no_variables_no_examples(self, small):
        loss_fn, variables, examples = small
        with pytest.raises(TypeError, match="DPQuery"):
            run(small, "gaussian")
        with pytest.raises(ValueError, match="no variables"):
            run((loss_fn, [], examples), flat_query(None))
        with pytest.raises(ValueError, match="no tensor"):
            run((loss_fn, variables, (None, None)), flat_query(None))
