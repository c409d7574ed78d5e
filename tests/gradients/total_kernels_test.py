"""Operations that tfdp calls on numbers of a record: those that come back from all."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

import tfdp
from tests.fuzz.fuzz_kernels import Worker, operations
from tests.gradients.integers_test import ENGINES
from tfdp.gradients import indices, kernels
from tfdp.gradients.record_wise_checks import CHECKS
from tfdp.gradients.total_kernels import TOTAL

N = 4
# Each calls a kernel that is not listed on a record's nine numbers.
UNKNOWN = {
    "isotonic": lambda x: tf.raw_ops.IsotonicRegression(input=x)[0],
    "neighbors": lambda x: tf.raw_ops.NearestNeighbors(points=x, centers=x, k=1)[1],
    "quantized": lambda x: tf.raw_ops.Dequantize(
        input=tf.cast(tf.cast(x, tf.int32), tf.quint8), min_range=0.0, max_range=1.0
    ),
    "in_a_function": lambda x: tf.function(
        lambda y: tf.raw_ops.IsotonicRegression(input=y)[0], autograph=False
    )(x),
    "in_a_branch": lambda x: tf.cond(
        x[0, 0] > 0.0, lambda: tf.raw_ops.IsotonicRegression(input=x)[0], lambda: x
    ),
    "in_a_loop": lambda x: tf.while_loop(
        lambda i, y: i < 2,
        lambda i, y: (i + 1, tf.raw_ops.IsotonicRegression(input=y)[0]),
        [0, x],
    )[1],
}


@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "bookkeeping"])
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_nobody_knows_is_refused_before_any_record(name, engine):
    weight = tf.Variable(1.0)
    query = tfdp.GaussianSumQuery(0.25, 0.0)

    def loss(x):
        return tf.reduce_sum(weight * UNKNOWN[name](tf.stop_gradient(x)))

    def total(x):
        return tfdp.clipped_gradient_sum(loss, [weight], x, query, engine=engine).sample_state

    with pytest.raises(kernels.RefusedKernelError, match="Whether it ends the run for some"):
        tf.function(total, autograph=False).get_concrete_function(tf.TensorSpec([N, 9]))


def test_it_may_be_called_on_what_is_no_record():
    weight = tf.Variable(1.0)
    fixed = tf.constant([[3.0, 1.0, 2.0]])

    def loss(x):
        return tf.reduce_sum(weight * x) * tf.raw_ops.IsotonicRegression(input=fixed)[0][0, 0]

    query = tfdp.GaussianSumQuery(100.0, 0.0)
    found = tfdp.clipped_gradient_sum(loss, [weight], tf.ones([N, 9]), query, engine="loop")
    np.testing.assert_allclose(found.sample_state[0], N * 9 * 3.0)


class Sorted(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(tf.raw_ops.IsotonicRegression(input=y_pred)[0])


def test_a_metric_on_raw_data_is_refused_likewise():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    private = tfdp.keras.DPModel(model.inputs, model.outputs)
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=2)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query)
    private.compile(optimizer, "mse", metrics=[Sorted()], jit_compile=False)
    with pytest.raises(tfdp.keras.NotPrivateError, match="IsotonicRegression"):
        private.fit(np.zeros([8, 3]), np.zeros([8, 2]), batch_size=2, verbose=0)
    assert private.ledger.total_count == 0


def test_every_name_is_of_an_operation():
    assert not [name for name in TOTAL if op_def_registry.get(name) is None]


def test_what_has_a_check_is_listed_only_where_other_types_need_none():
    assert not TOTAL & set(kernels.KERNELS)
    assert {name for name in TOTAL if name in indices.CHECKS} == set(indices.OF_INTEGERS)


def test_what_runs_on_a_batch_comes_back_from_all_numbers():
    assert not set(CHECKS) - TOTAL - set(kernels.KERNELS) - set(indices.CHECKS)


@pytest.fixture(scope="module")
def worker():
    worker = Worker(seconds=2, enough=3)
    yield worker
    worker.stop()


def test_every_operation_comes_back_from_numbers_of_all_kinds(worker):
    found = {name: worker.result(name) for name in operations() if name in TOTAL}
    verdicts = [result["verdict"] for result in found.values()]
    assert set(verdicts) <= {"takes all", "not called", "has no kernel on a CPU"}, {
        name: result for name, result in found.items() if result["verdict"] != "takes all"
    }
    # Chance hardly finds arguments for a few.
    assert verdicts.count("not called") < 0.05 * len(verdicts)


# The gradients of these are of inverses, or are checks themselves.
UNSAFE = set(kernels.WITH_UNSAFE_GRADIENTS)
SAFE = [
    "BatchMatMulV2",
    "Cholesky",
    "Einsum",
    "MatrixTriangularSolve",
    "Qr",
    "Svd",
    "Prod",
    "Softmax",
]


@pytest.fixture(scope="module")
def differentiated():
    worker = Worker(5, 3, "--gradients")
    yield worker
    worker.stop()


@pytest.mark.parametrize("name", [*sorted(UNSAFE), *SAFE])
def test_which_gradients_have_an_operation_that_may_end_the_run(name, differentiated):
    found = differentiated.result(name)
    of_shapes = {"BroadcastGradientArgs", "Const", "InvertPermutation", "ListDiff", "Range"}
    others = set(found["kinds"]) - TOTAL - set(indices.CHECKS) - of_shapes
    assert found["verdict"] == "gradient" and bool(others) == (name in UNSAFE)


def test_the_search_finds_what_does_not():
    worker = Worker(5, 20, "--checked")
    for name in ("MatrixInverse", "CheckNumerics", "Where", "Unique", "Range"):
        verdict = worker.result(name)["verdict"]
        assert verdict in ("refuses numbers", "results of another size"), name
    worker.stop()
