"""What users of TensorFlow Privacy wrote means the same here, or says what to write."""

import keras
import numpy as np
import pytest
import toy
from toy import L

import tfdp
from tfdp.keras import DPModel, DPOptimizer, DPSequential

X, Y = toy.data()
SUM = tfdp.GaussianSumQuery(1.0, 0.0)
AVERAGE = tfdp.NormalizedQuery(SUM, 10)


def _make(query):
    return DPOptimizer(keras.optimizers.SGD(0.1), query)


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        (SUM, "GaussianSumQuery"),
        (tfdp.JointClippingQuery([1.0, 1.0], 1.0, 0.0), "JointClippingQuery"),
        (tfdp.NoPrivacySumQuery(), "NoPrivacySumQuery"),
        (tfdp.query.WeightedSumQuery(SUM, 2.0), "WeightedSumQuery"),
        (tfdp.NestedQuery([AVERAGE, {"k": SUM}]), "GaussianSumQuery"),
        (tfdp.NestedSumQuery([tfdp.NoPrivacySumQuery(), SUM]), "GaussianSumQuery, NoPrivacySum"),
    ],
)
def test_sum_that_nothing_divides_is_warned_of(query, kinds):
    # TensorFlow Privacy's optimizers divide by the number of microbatches.
    with pytest.warns(UserWarning, match=f"^{kinds}.*NormalizedQuery"):
        _make(query)


@pytest.mark.parametrize(
    "query",
    [
        AVERAGE,
        tfdp.NormalizedQuery(SUM, 1),
        tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=10),
        tfdp.NestedQuery([AVERAGE, {"k": AVERAGE}]),
        tfdp.NormalizedQuery(tfdp.NestedSumQuery([SUM, SUM]), 10),
        tfdp.NoPrivacyAverageQuery(),
    ],
)
@pytest.mark.filterwarnings("error")
def test_average_is_not_warned_of(query):
    assert _make(query).query is query


def _sequential(*args, **kwargs):
    return DPSequential(*args, layers=[keras.Input((4,)), L.Dense(2)], **kwargs)


def _functional(*args, **kwargs):
    x = keras.Input((4,))
    return DPModel(*args, inputs=x, outputs=L.Dense(2)(x), **kwargs)


class _Derived(DPModel):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


MODELS = [_sequential, _functional, _Derived]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize(
    "arguments",
    [
        {"l2_norm_clip": 1.0, "noise_multiplier": 1.1},
        {"num_microbatches": 4},
        {"use_xla": False},
        {"layer_registry": None},
        {"sparsity_preserving_dpsgd_config": None},
    ],
    ids=str,
)
def test_clip_and_noise_of_a_model_are_refused(make, arguments):
    # Keras drops arguments of Model(inputs, outputs) that it does not know.
    with pytest.raises(TypeError, match=f"belong to the optimizer.*{min(arguments)}"):
        make(**arguments)


@pytest.mark.parametrize("make", MODELS)
def test_clip_and_noise_without_names_are_refused(make):
    with pytest.raises(TypeError, match="belong to the optimizer.*Received: 1.0, 1.1, 4"):
        make(1.0, 1.1, 4)


@pytest.mark.parametrize("name", ["noise", "dtype", "output"])
def test_model_of_inputs_and_outputs_drops_no_argument(name):
    with pytest.raises(TypeError, match=f"Received also: {name}"):
        _functional(**{name: 1.0})


def test_what_keras_takes_is_taken():
    assert _functional(name="mine", trainable=True).name == "mine"
    assert _sequential(name="mine").name == "mine"
    assert np.shape(_sequential(trainable=True)(X)) == (len(X), 2)


@pytest.mark.parametrize("clip", [10.0, 40.0, 200.0, 1e9])
def test_published_step_of_a_linear_model(clip):
    # TensorFlow Privacy's own case: the gradient is (-90, -120, -30) at zero, then clipped.
    dense = L.Dense(1, kernel_initializer="zeros", bias_initializer="zeros")
    model = tfdp.keras.make_private(keras.Sequential([keras.Input((2,)), dense]))
    optimizer = tfdp.keras.DPKerasSGDOptimizer(
        l2_norm_clip=clip,
        noise_multiplier=0.0,
        num_microbatches=1,
        gradient_accumulation_steps=1,
        learning_rate=0.01,
    )
    loss = keras.losses.MeanSquaredError(reduction="none")
    model.compile(optimizer, loss, run_eagerly=True)
    optimizer.set_batch_size(1)
    model.train_on_batch(np.array([[3.0, 4.0]]), np.array([[15.0]]))
    gradient = np.array([90.0, 120.0, 30.0])
    gradient *= min(1.0, clip / np.linalg.norm(gradient))
    got = np.concatenate([w.flatten() for w in model.get_weights()])
    np.testing.assert_allclose(got, 0.01 * gradient, rtol=1e-5)


@pytest.mark.parametrize("steps", [2, 4])
def test_accumulation_of_noised_gradients_says_what_to_write(steps):
    with pytest.raises(ValueError, match="physical_batch_size"):
        tfdp.keras.DPKerasSGDOptimizer(1.0, 1.0, 4, gradient_accumulation_steps=steps)


@pytest.mark.parametrize("value", [True, False])
def test_noise_for_variables_without_a_gradient_is_refused(value):
    with pytest.raises(TypeError, match="layer.trainable = False"):
        tfdp.keras.DPKerasSGDOptimizer(1.0, 1.0, 4, unconnected_gradients_to_zero=value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tfdp.GaussianAverageQuery(1.0, 2.0, 256),
        lambda: tfdp.PrivacyLedger(60_000, 0.01),
        lambda: tfdp.keras.DPKerasSGDOptimizer(1.0, 1.0, 4, 1),
        lambda: tfdp.keras.DPKerasSGDOptimizer(1.0, 1.0),
        lambda: tfdp.keras.DPOptimizer(tfdp.GaussianSumQuery(1.0, 1.0), 4),
        lambda: tfdp.keras.DPFTRLTreeAggregationOptimizer(1.0, 1.0, [np.zeros(3)], 4),
        lambda: tfdp.query.TreeResidualSumQuery.build_l2_gaussian_query(1.0, 1.0, X),
        lambda: tfdp.query.TreeCumulativeSumQuery(X, lambda: 0.0, lambda r, clip: r, 1.0),
        lambda: tfdp.NormalizedQuery(SUM, None),
        lambda: tfdp.NoPrivacyAverageQuery().preprocess_record((), X, 3.0),
    ],
)
def test_arguments_that_meant_something_else_are_refused(make):
    with pytest.raises(TypeError):
        make()
