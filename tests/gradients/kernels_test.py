"""Kernels that end the run for some numbers: a record with such numbers contributes nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.integers_test import ENGINES, summing
from tfdp.gradients import kernels, mapped_call
from tfdp.gradients.mapping import map_records
from tfdp.gradients.rewriting import with_checks
from tfdp.gradients.vectorizing import VectorizingError

K = keras.ops
N = 4
CLIP = 0.25
EYE = np.eye(3, dtype="float32")
BOX = tf.constant([[0.0, 0.0, 1.0, 1.0]])


def spd(a):
    """Never singular for numbers of ordinary size."""
    return tf.matmul(a, a, transpose_b=True) + EYE


def _scalar(numbers):
    return tf.reshape(numbers, [-1])[0]


def _draws(a, more=2):
    seed = tf.constant([1, 2])
    end = tf.cast(tf.clip_by_value(_scalar(a), -3.0, 3.0), tf.int32) + more
    return a * tf.cast(tf.random.stateless_uniform([1, 3, 3], seed, 0, end, tf.int32) + 1, a.dtype)


def _crop(a):
    owner = tf.where(_scalar(a) == 0.0, 9, 0)
    return tf.image.crop_and_resize(a[..., None], a[0, :1, :1] * 0.01 + BOX, [owner], [2, 2])


def _hue(a):
    numbers = tf.stop_gradient(a)
    return a * tf.image.adjust_hue(numbers[..., None, :], _scalar(numbers) * 0.01)[..., 0, :]


def _permuted(a):
    order = tf.where(_scalar(a) == 0.0, [0, 0, 5], [2, 0, 1])
    return tf.gather(a[0], tf.math.invert_permutation(order))


def _unravelled(a):
    place = tf.where(_scalar(a) == 0.0, 99, 1)
    return a[0] * tf.cast(tf.unravel_index(place, [2, 2])[1], a.dtype)


def _histogram(a):
    numbers = tf.stop_gradient(a)
    counts = tf.histogram_fixed_width(numbers, [0.0, _scalar(numbers)], nbins=2)
    return a * tf.cast(counts[0], a.dtype)


def _histogram_of_integers(a):
    numbers = tf.cast(tf.clip_by_value(tf.stop_gradient(a), -9.0, 9.0) * 10.0, tf.int32)
    counts = tf.histogram_fixed_width(numbers, [0, _scalar(numbers)], nbins=2)
    return a * tf.cast(counts[0], a.dtype)


# name -> from a record's matrix [1, 3, 3] to anything, and some of BAD that TensorFlow refuses
OPERATIONS = {
    "inv": (tf.linalg.inv, {"zeros", "ones", "nan", "huge"}),
    "inv_adjoint": (lambda a: tf.linalg.inv(a, adjoint=True), {"zeros", "ones", "nan", "huge"}),
    "keras_inv": (K.inv, {"zeros", "ones", "nan", "huge"}),
    "solve": (lambda a: K.solve(a, a + 1.0), {"zeros", "ones", "nan", "huge"}),
    "solve_adjoint": (lambda a: tf.linalg.solve(a, EYE[None], adjoint=True), {"zeros", "nan"}),
    "det": (tf.linalg.det, {"zeros", "nan"}),
    "keras_cholesky": (lambda a: K.cholesky(spd(a)), {"nan", "huge"}),
    "cholesky": (lambda a: tf.linalg.cholesky(spd(a)), set()),
    "eigh": (lambda a: K.eigh(a + tf.linalg.matrix_transpose(a))[0], {"nan", "one_nan"}),
    "sqrtm": (lambda a: tf.linalg.sqrtm(spd(a)), {"nan", "huge"}),
    "check_numerics": (lambda a: tf.debugging.check_numerics(a, "bad"), {"nan", "one_nan"}),
    "banded": (lambda a: tf.linalg.banded_triangular_solve(a, EYE[None]), {"zeros", "nan"}),
    "uniform_int": (_draws, {"neg"}),
    "uniform_int_of_none": (lambda a: _draws(a, 3), {"neg"}),
    "crop_and_resize": (_crop, {"zeros"}),
    "invert_permutation": (_permuted, {"zeros"}),
    "unravel_index": (_unravelled, {"zeros"}),
    "hue": (_hue, set()),
    "histogram": (_histogram, {"zeros", "nan", "neg"}),
    "histogram_of_integers": (_histogram_of_integers, {"zeros", "neg"}),
}
BAD = {
    "zeros": EYE * 0,
    "ones": np.ones_like(EYE),
    "nan": EYE * np.nan,
    "one_nan": np.where(np.arange(9).reshape(3, 3) == 4, np.nan, EYE + 0.1).astype("float32"),
    "inf": np.full_like(EYE, np.inf),
    "huge": np.full_like(EYE, 3e38),
    "neg": -3 * np.ones_like(EYE),
    "tiny": EYE * 1e-40,
}


def value_and_gradient(operation):
    def fn(record):
        with tf.GradientTape() as tape:
            tape.watch(record)
            value = tf.reduce_sum(tf.square(operation(record[0])))
        gradient = tape.gradient(value, record, unconnected_gradients="zero")
        return value, gradient[0]

    return fn


def ordinary(rows, seed=0):
    numbers = np.random.default_rng(seed).uniform(0.1, 0.3, size=(rows, 3, 3))
    return (numbers + EYE).astype("float32")


@pytest.mark.parametrize("name", OPERATIONS)
def test_ordinary_numbers_give_the_same_and_no_others_raise(name):
    operation, raising = OPERATIONS[name]
    fn = value_and_gradient(operation)
    checked = with_checks(fn, [tf.TensorSpec([1, 3, 3])])
    safe = tf.function(lambda a: checked([a]), autograph=False)
    plain = tf.function(lambda a: fn([a]), autograph=False)
    for x in ordinary(5):
        for got, expected in zip(safe(x[None]), plain(x[None]), strict=True):
            assert np.isfinite(got).all()
            np.testing.assert_allclose(got, expected, rtol=1e-4)
    for bad in BAD.values():
        safe(bad[None])
    for bad in raising:
        if not np.isfinite(BAD[bad]).all():
            value, gradient = safe(BAD[bad][None])
            assert not (np.isfinite(value) and np.isfinite(gradient).all()), bad
        # Power: TensorFlow alone ends the run.
        with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError)):
            plain(BAD[bad][None])


class Applied(keras.layers.Layer):
    """Applies an operation, record by record: nothing knows it to keep records apart."""

    def __init__(self, operation):
        super().__init__()
        self.operation = operation

    def call(self, inputs):
        return self.operation(keras.ops.reshape(inputs, (-1, 3, 3)))[..., :1]

    def compute_output_shape(self, shape):
        return tuple(self.operation(tf.constant(ordinary(1))).shape[:-1]) + (1,)


def model_with(operation):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((9,))
    hidden = keras.layers.Dense(9, kernel_initializer="identity")(inputs)
    outputs = Applied(operation)(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(outputs)))


IN_MODELS = {
    "inv": K.inv,
    "solve": lambda a: K.solve(a, a + 1.0),
    "keras_cholesky": lambda a: K.cholesky(spd(a)),
    "det": lambda a: a * K.reshape(K.det(a), (-1, 1, 1)),
    "eigh": lambda a: K.eigh(a + K.transpose(a, (0, 2, 1)))[1],
    "sqrtm": lambda a: tf.linalg.sqrtm(spd(a)),
    "check_numerics": lambda a: tf.debugging.check_numerics(a, "bad"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", IN_MODELS)
def test_a_record_that_kernels_do_not_take_leaves_the_others_as_they_are(name, engine):
    model = model_with(IN_MODELS[name])
    loss = tfdp.gradients.ModelLoss(model, lambda y, p: tf.reduce_sum(tf.square(p - y)))
    total = summing(loss, model.trainable_variables, engine, False)
    x, y = ordinary(N).reshape(N, 9), np.zeros([N, 1], "float32")
    others = np.arange(N) != 1
    left = total(x, y, others)
    assert np.linalg.norm(total(x, y, others | True) - left) > 0.1 * CLIP
    for kind, bad in BAD.items():
        changed = x.copy()
        changed[1] = bad.ravel()
        sums = total(changed, y, others | True)
        assert np.isfinite(sums).all()
        assert np.linalg.norm(sums - left) <= CLIP * (1 + 1e-5), kind
        if not np.isfinite(bad).all():
            np.testing.assert_allclose(sums, left, rtol=1e-6, atol=1e-7)


def _moved(a):
    """Moves images of 3 x 3 by a matrix of the record's own, which may be singular."""
    transforms = tf.reshape(a, [-1, 9])[:, :8]
    images = tf.ones([1, 3, 3, 1]) * a[..., None]
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=[3, 3],
        fill_value=0.0,
        interpolation="BILINEAR",
    )
    return moved[..., 0]


@pytest.mark.parametrize(
    ("operation", "is_refused"),
    [
        (IN_MODELS["det"], True),
        (IN_MODELS["check_numerics"], True),
        (_moved, True),
        (lambda a: a * a, False),
    ],
)
def test_what_tensorflow_differentiates_has_no_gradient_that_may_end_the_run(
    operation, is_refused, monkeypatch
):
    def vectorized(*arguments):
        raise VectorizingError("This stands for a loop whose gradient cannot be vectorized.")

    monkeypatch.setattr(mapped_call, "vectorized", vectorized)
    model = model_with(operation)
    loss = tfdp.gradients.ModelLoss(model, lambda y, p: tf.reduce_sum(tf.square(p - y)))
    x, y = ordinary(N).reshape(N, 9), np.zeros([N, 1], "float32")
    total = summing(loss, model.trainable_variables, "bookkeeping", False)
    if is_refused:
        with pytest.raises(tfdp.gradients.UnsupportedModelError, match="gradient may end"):
            total(x, y, np.ones(N, bool))
    else:
        assert np.isfinite(total(x, y, np.ones(N, bool))).all()


def test_a_record_with_nan_does_not_end_fit():
    model = model_with(lambda a: K.inv(spd(a)))
    x, y = ordinary(32).reshape(32, 9), np.zeros([32, 1], "float32")
    x[7] = np.nan
    private = tfdp.keras.DPModel(model.inputs, model.outputs)
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=16)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query)
    private.compile(optimizer, "mse", jit_compile=False)
    private.fit(x, y, batch_size=16, epochs=4, verbose=0)
    assert private.ledger.total_count == 8
    assert all(np.isfinite(weight).all() for weight in private.get_weights())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "operation",
    [
        lambda a: tf.math.real(tf.linalg.eig(a)[0]),
        lambda a: a * tf.math.real(tf.linalg.logm(tf.cast(tf.stop_gradient(a), tf.complex64))),
        lambda a: tf.nn.fractional_max_pool(a[..., None], [1.0, 1.4, 1.4, 1.0])[0],
        lambda a: tf.nn.fractional_avg_pool(a[..., None], [1.0, 1.4, 1.4, 1.0])[0],
        lambda a: a * tf.linalg.lu(tf.stop_gradient(a))[0],
        lambda a: a * tf.quantization.quantize_and_dequantize_v2(a, _scalar(a), 1.0, True),
        lambda a: a * tf.strings.to_number(tf.strings.as_string(a)),
    ],
)
def test_what_cannot_be_known_before_is_refused_before_any_record(operation, engine):
    weight = tf.Variable(1.0)
    loss = lambda x: tf.reduce_sum(operation(tf.reshape(x * weight, [1, 3, 3])))  # noqa: E731
    engine = "vectorized" if engine == "bookkeeping" else engine
    query = tfdp.GaussianSumQuery(CLIP, 0.0)

    def total(x):
        return tfdp.clipped_gradient_sum(loss, [weight], x, query, engine=engine).sample_state

    with pytest.raises(kernels.RefusedKernelError, match=r"numbers of a record.*(Use|Give|Decode)"):
        tf.function(total, autograph=False).get_concrete_function(tf.TensorSpec([N, 9]))


@pytest.mark.parametrize("name", OPERATIONS)
def test_for_all_records_at_once_as_for_each(name):
    fn = value_and_gradient(OPERATIONS[name][0])
    one = with_checks(fn, [tf.TensorSpec([1, 3, 3])])
    each = tf.function(lambda a: one([a]), autograph=False)
    records = np.stack([*ordinary(3), *BAD.values()])
    found = map_records(fn, [tf.constant(records)])[0](tf.constant(records))
    expected = [each(record[None]) for record in records]
    for got, *of_each in zip(found, *expected, strict=True):
        finite = np.isfinite(got).reshape(len(records), -1).all(1)
        assert finite[:3].all()
        for ok, row, of_one in zip(finite, got, of_each, strict=True):
            assert ok == np.isfinite(of_one).all()
            if ok:
                np.testing.assert_allclose(row, of_one, rtol=1e-3, atol=1e-5)


def _asserting(about):
    def loss(weight, x):
        numbers = x if about == "record" else weight
        tf.debugging.assert_less(numbers, 10.0)
        tf.debugging.Assert(tf.reduce_all(numbers < 10.0), [numbers])
        with tf.control_dependencies([tf.debugging.assert_less(numbers, 10.0)]):
            total = tf.identity(tf.reduce_sum(weight * x))
        # With another check, and without.
        return total, total + tf.gather(weight, tf.cast(x[0, 0], tf.int32) % 2)

    return loss


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("engine", ["vectorized", "loop"])
def test_assertions_about_a_record_are_left_out(engine, which):
    weight = tf.Variable([1.0, 2.0])
    query = tfdp.GaussianSumQuery(CLIP, 0.0)

    def total(x, about):
        def loss(record):
            return _asserting(about)(weight, record)[which]

        return tfdp.clipped_gradient_sum(loss, [weight], x, query, engine=engine).sample_state

    x = np.full([4, 2], 0.1, "float32")
    x[2] = 11.0
    # Of all weights likewise, which are public: the assertion holds for these.
    np.testing.assert_allclose(total(x, "record")[0], total(x, "weights")[0], rtol=1e-6)
    # Power: TensorFlow alone ends the run.
    with pytest.raises(tf.errors.InvalidArgumentError):
        _asserting("record")(weight, x[2:3])


@pytest.mark.parametrize("n", [2, 5, 17, 40])
def test_every_matrix_that_is_let_through_is_taken(n):
    """Matrices of low and of almost low rank, large and small."""
    operations = [
        tf.linalg.inv,
        lambda a: tf.linalg.solve(a, tf.zeros_like(a), adjoint=True),
        tf.linalg.eigh,
    ]

    @tf.function(autograph=False)
    def checked(matrices):
        specs = [tf.TensorSpec([1, n, n])]
        return [with_checks(lambda r, f=f: f(r[0]), specs)([matrices]) for f in operations]

    rng, refused = np.random.default_rng(n), 0
    for scale in (1e-38, 1e-20, 1.0, 1e18, 1e37):
        for _ in range(12):
            rank = int(rng.integers(1, n + 1))
            left, right = rng.integers(-2, 3, (n, rank)), rng.integers(-2, 3, (rank, n))
            exponents = rng.choice([0.0, 0.0, 1e-7, 1e-30, 1e7], (n, n)) * rng.normal(size=(n, n))
            matrix = (left @ right + exponents * rng.integers(0, 2)) * scale
            matrix = np.clip(matrix, -3e38, 3e38).astype("float32")
            checked(matrix[None])  # Which raises nothing.
            try:
                tf.linalg.inv(matrix)
            except tf.errors.InvalidArgumentError:
                refused += 1
    assert refused  # TensorFlow's own kernel does not take some of them.
