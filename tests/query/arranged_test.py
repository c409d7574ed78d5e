import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.query import ArrangedQuery, GaussianSumQuery, NestedQuery, by_layer, per_layer

L = keras.layers
X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
Y = np.arange(6) % 2
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _model():
    keras.utils.set_random_seed(5)
    layers = [L.Dense(3, "tanh", name="b"), L.Dense(2, name="a")]
    return keras.Sequential([keras.Input((4,)), *layers])


def _sum(query, model, engine):
    total = tfdp.clipped_gradient_sum(
        tfdp.gradients.ModelLoss(model, LOSS),
        model.trainable_variables,
        (tf.constant(X), tf.constant(Y)),
        query,
        engine=engine,
    ).sample_state
    return query.get_noised_result(total, query.initial_global_state())[0]


def _by_hand(model, clips, members):
    """Returns the sum of gradients, each group of variables clipped by its own norm."""
    total = [np.zeros(v.shape) for v in model.trainable_variables]
    for x, y in zip(X, Y, strict=True):
        with tf.GradientTape() as tape:
            loss = LOSS(y[None], model(x[None]))
        found = tape.gradient(loss, [v.value for v in model.trainable_variables])
        for clip, places in zip(clips, members, strict=True):
            norm = np.sqrt(sum(np.sum(np.square(found[i])) for i in places))
            for i in places:
                total[i] += found[i] * min(1.0, clip / norm)
    return total


@pytest.mark.parametrize("engine", ["loop", "vectorized", "bookkeeping"])
def test_kernel_and_bias_are_clipped_together(engine):
    model = _model()
    clip = 0.3 / np.sqrt(2)
    for query in (
        per_layer(model, 0.3, 0.0, 1),
        by_layer(model, {"a": GaussianSumQuery(clip, 0.0), "b": GaussianSumQuery(clip, 0.0)}),
    ):
        expected = _by_hand(model, [clip, clip], [[0, 1], [2, 3]])
        for got, wanted in zip(_sum(query, model, engine), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)


def test_groups_of_a_function_need_not_be_neighbours():
    model = _model()
    query = per_layer(model, [0.2, 0.1], 0.0, 1, group_by=lambda v: v.path.endswith("bias"))
    assert query.arrangement == [[0, 2], [1, 3]]
    expected = _by_hand(model, [0.2, 0.1], [[0, 2], [1, 3]])
    for got, wanted in zip(_sum(query, model, "bookkeeping"), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)


def test_other_queries_work_in_another_order_too():
    # Exact sums and averages of what was there are no scalings.
    exact = tfdp.GaussianAverageQuery(5.0, noise_multiplier=0.0, denominator=2, precision="exact")
    query = ArrangedQuery(
        NestedQuery({"p": exact, "q": tfdp.NoPrivacyAverageQuery()}), {"q": 0, "p": [2, 1]}
    )
    state = query.initial_sample_state([tf.zeros([]), tf.zeros([2]), tf.zeros([])])
    params = query.derive_sample_params(query.initial_global_state())
    for value in (1.0, 3.0):
        record = [tf.constant(value), tf.constant([6.0, 8.0]), tf.constant(0.0)]
        state = query.accumulate_record(params, state, record)
    average, clipped, zero = query.get_noised_result(state, query.initial_global_state())[0]
    np.testing.assert_allclose(average, 2.0)
    np.testing.assert_allclose(clipped, [3.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(zero, 0.0)


def test_trains_with_a_clip_for_every_layer():
    model = tfdp.keras.make_private(_model())
    small, large = (
        tfdp.GaussianAverageQuery(clip, noise_multiplier=2**0.5, denominator=6)
        for clip in (0.5, 2.0)
    )
    query = by_layer(model, {"a": large, "b": small})
    model.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query), loss=LOSS)
    model.fit(X, Y, sampling=tfdp.sampling.FullBatch(), verbose=0)
    ((event, _),) = [(entry.event.event, entry.count) for entry in model.ledger]
    assert [e.l2_norm_bound for e in event.events] == [2.0, 0.5]


def test_layers_of_a_functional_model_and_of_models_in_it_have_paths():
    inner = keras.Sequential([keras.Input((3,)), L.Dense(2, name="deep")], name="block")
    x = keras.Input((4,))
    model = keras.Model(x, inner(L.Dense(3, name="first")(x)))
    queries = {"first": GaussianSumQuery(1.0, 1.0), "block/deep": GaussianSumQuery(1.0, 1.0)}
    assert by_layer(model, queries).arrangement == {"first": [0, 1], "block/deep": [2, 3]}


@pytest.mark.parametrize("queries", [{}, {"a": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 1, "d": 1}])
def test_every_layer_has_a_query_and_every_query_a_layer(queries):
    queries = {name: GaussianSumQuery(1.0, 1.0) for name in queries}
    with pytest.raises(ValueError, match=r"each layer. Expected: \['a', 'b'\]"):
        by_layer(_model(), queries)


@pytest.mark.parametrize(
    ("arrangement", "error"),
    [
        ([0, 0], ValueError),
        ([1, 2], ValueError),
        ({"a": [0, 2]}, ValueError),
        ([0, 1.0], TypeError),
        ([0, True], TypeError),
        (["a"], TypeError),
    ],
    ids=str,
)
def test_arrangement_has_every_index_once(arrangement, error):
    with pytest.raises(error, match="arrangement must hold"):
        ArrangedQuery(GaussianSumQuery(1.0, 1.0), arrangement)


def test_number_of_leaves_is_checked():
    query = ArrangedQuery(GaussianSumQuery(1.0, 1.0), [1, 0])
    with pytest.raises(ValueError, match="must have 2 leaves. Received 3"):
        query.initial_sample_state([tf.zeros([])] * 3)
    with pytest.raises(TypeError, match="query must be a DPQuery"):
        ArrangedQuery(None, [0])


@pytest.mark.parametrize("group_by", ["layers", 3, None])
def test_unknown_grouping_is_refused(group_by):
    with pytest.raises(ValueError, match="group_by must be"):
        per_layer(_model(), 1.0, 1.0, 4, group_by=group_by)
