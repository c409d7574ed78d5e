"""Data and numbers that `fit` and `train_on_batch` cannot use, and what they say to that.

Dtypes, shapes and structures are public and may be refused. What the data hold is not: there a
record contributes nothing, and nobody learns that it was there.
"""

import functools

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
import toy
from toy import L

import tfdp
from tfdp.keras import DPOptimizer
from tfdp.sampling import FullBatch, Unknown

X, Y = toy.data()
N = len(X)


def _model(**arguments):
    return toy.private(toy.linear(), run_eagerly=True, **arguments)


@functools.cache
def _refusing():
    """Returns a model that takes no step, because it is given nothing that it can use."""
    return _model()


def _fit(x=X, y=Y, **arguments):
    _refusing().fit(x, y, sampling=FullBatch(), verbose=0, **arguments)


def _fit_dataset(x=X, y=Y, sample_weight=None, **arguments):
    parts = (x, y) if sample_weight is None else (x, y, sample_weight)
    dataset = tf.data.Dataset.from_tensor_slices(parts).batch(N)
    _refusing().fit(dataset, sampling=FullBatch().resolve(N, N), verbose=0, **arguments)


def _fit_generator(x=X, y=Y, sample_weight=None, **arguments):
    parts = (x, y) if sample_weight is None else (x, y, sample_weight)
    policy = FullBatch().resolve(N, N)
    _refusing().fit((parts for _ in range(1)), sampling=policy, verbose=0, **arguments)


def _train_on_batch(x=X, y=Y, **arguments):
    _refusing().train_on_batch(x, y, **arguments)


def _array(dtype, shape=(N, 4)):
    return np.zeros(shape, dtype)


ENTRIES = {
    "fit": _fit,
    "data set": _fit_dataset,
    "generator": _fit_generator,
    "train_on_batch": _train_on_batch,
}
# Kind of data: (arguments, error, message, entry points that cannot be given it).
DATA = {
    "complex x": ({"x": _array("complex64")}, TypeError, "x must hold numbers.*complex64.*two", ()),
    "complex y": ({"y": _array("complex64", N)}, TypeError, "y must hold numbers.*complex64", ()),
    "strings as x": ({"x": _array("U3")}, TypeError, "x must hold numbers.*StringLookup", ()),
    "bytes as x": ({"x": _array("S3")}, TypeError, "x must hold numbers.*StringLookup", ()),
    "strings as y": ({"y": _array("U3", N)}, TypeError, "y must hold numbers.*StringLookup", ()),
    "objects": (
        {"x": np.full([N, 4], None, object)},
        TypeError,
        "must hold.*dtype object.*one dtype",
        ("data set",),
    ),
    "numbers as objects": (
        {"x": X.astype(object)},
        TypeError,
        "must hold.*dtype object.*one dtype",
        ("data set",),
    ),
    "dates": ({"x": _array("datetime64[s]")}, TypeError, "must hold.*origin", ("data set",)),
    "fields": ({"x": _array([("a", float)])}, TypeError, "must hold.*dtype", ("data set",)),
    "ragged": (
        {"x": tf.ragged.constant([[1.0]] * (N - 1) + [[1.0, 2.0]])},
        TypeError,
        "dense.*Ragged.*to_tensor",
        (),
    ),
    "sparse of SciPy": (
        {"x": scipy.sparse.csr_matrix(X)},
        TypeError,
        "x must be dense.*csr_matrix.*toarray",
        ("data set", "generator", "train_on_batch"),
    ),
    "sparse": ({"x": tf.sparse.from_dense(X)}, TypeError, "dense.*Sparse.*to_dense", ()),
    "no y": ({"y": None}, ValueError, "needs targets.*y=None", ()),
    "no x": ({"x": None}, ValueError, "no training data.*x=None", ("data set", "generator")),
    "strings as weights": (
        {"sample_weight": _array("U3", N)},
        TypeError,
        "sample_weight must hold numbers",
        (),
    ),
    "weights of two axes": (
        {"sample_weight": np.ones([N, 3], "float32")},
        ValueError,
        r"\[n\].*Received shape \[n, 3\]",
        (),
    ),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", DATA)
def test_data_that_cannot_be_used_are_named(entry, name):
    arguments, error, message, impossible = DATA[name]
    if entry in impossible:
        return
    if entry == "data set" and arguments.get("y", Y) is None:
        arguments = {**arguments, "x": (X,)[0], "y": None}
        dataset = tf.data.Dataset.from_tensor_slices(X).batch(N)
        with pytest.raises(error, match=message):
            _refusing().fit(dataset, sampling=FullBatch().resolve(N, N), verbose=0)
        return
    with pytest.raises(error, match=f"(?s){message}"):
        ENTRIES[entry](**arguments)


def test_error_says_how_numpy_makes_one_dtype():
    with pytest.raises(TypeError, match=r'one dtype.*\.astype\("float32"\)'):
        _fit(X.astype(object))
    with pytest.raises(TypeError, match=r'spell numbers.*\.astype\("float32"\)'):
        _fit(X.astype(str))
    x = keras.Input((1,), dtype="string")
    texts = toy.private(keras.Model(x, L.Embedding(3, 2)(L.StringLookup(vocabulary=["a"])(x))))
    with pytest.raises(TypeError, match=r"for texts, \.astype\(str\)"):
        texts.fit(np.full([N, 1], "a", object), Y, sampling=FullBatch(), verbose=0)


COUNTS = [
    ({"epochs": -1}, ValueError, "epochs must be at least 1"),
    ({"epochs": 0}, ValueError, "epochs must be at least 1"),
    ({"epochs": 1.5}, TypeError, "epochs must be an integer"),
    ({"epochs": True}, TypeError, "epochs must be an integer"),
    ({"epochs": "2"}, TypeError, "epochs must be an integer"),
    ({"initial_epoch": -1}, ValueError, "initial_epoch must be at least 0"),
    ({"initial_epoch": 0.5}, TypeError, "initial_epoch must be an integer"),
    ({"steps_per_epoch": -1}, ValueError, "steps_per_epoch must be at least 1"),
]
CLASS_WEIGHTS = [
    ({"a": 1}, TypeError, "keys of class_weight.*'a'"),
    ({0: "x"}, TypeError, r"class_weight\[0\] must be a real number"),
    ({0: np.nan}, ValueError, r"class_weight\[0\] must be finite"),
    ({0: -1.0}, ValueError, r"class_weight\[0\] must be finite, at least 0"),
    ({0: True}, TypeError, r"class_weight\[0\] must be a real number"),
    ({True: 1.0}, TypeError, "keys of class_weight.*True"),
    ({0.5: 1.0}, TypeError, "keys of class_weight.*0.5"),
    ({-1: 1.0}, ValueError, "integers from 0.*-1"),
    ([1.0, 2.0], TypeError, "class_weight must be a dict"),
]


@pytest.mark.parametrize("entry", [_fit, _fit_dataset])
@pytest.mark.parametrize(("arguments", "error", "message"), COUNTS, ids=str)
def test_numbers_of_steps_that_train_nothing_are_named(entry, arguments, error, message):
    with pytest.raises(error, match=message):
        entry(**arguments)


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (None, TypeError)]
)
def test_steps_at_once_that_train_nothing_are_named(value, error):
    model = toy.private(toy.linear(), steps_per_execution=value)
    with pytest.raises(error, match="steps_per_execution must be"):
        model.fit(X, Y, batch_size=2, verbose=0)
    assert model.ledger.total_count == 0


@pytest.mark.parametrize("entry", [_fit, _fit_dataset, _train_on_batch])
@pytest.mark.parametrize(("class_weight", "error", "message"), CLASS_WEIGHTS, ids=str)
def test_bad_class_weights_are_named(entry, class_weight, error, message):
    with pytest.raises(error, match=message):
        entry(class_weight=class_weight)


@pytest.mark.parametrize(
    ("split", "error"), [(2.0, ValueError), (-1.0, ValueError), ("a", TypeError), (True, TypeError)]
)
def test_bad_validation_split_is_named(split, error):
    with pytest.raises(error, match="validation_split must be"):
        _fit(validation_split=split)


@pytest.mark.parametrize("make", [toy.linear, lambda: keras.Sequential([L.Dense(2)])])
def test_axes_of_data_sets_are_known(make):
    batches = lambda: iter([(X, Y)])  # noqa: E731
    unknown = tf.data.Dataset.from_generator(batches, output_types=(tf.float32, tf.int32))
    with pytest.raises(ValueError, match="unknown rank.*output_signature"):
        toy.private(make()).fit(unknown, sampling=FullBatch().resolve(N, N), verbose=0)
    unbatched = tf.data.Dataset.from_tensor_slices((X, Y))
    with pytest.raises(ValueError, match="yield batches.*dataset.batch"):
        toy.private(make()).fit(unbatched, sampling=FullBatch().resolve(N, N), verbose=0)


def test_weights_of_classes_go_with_data_sets_of_tensorflow():
    generator = ((X, Y) for _ in range(1))
    policy = FullBatch().resolve(N, N)
    with pytest.raises(ValueError, match="tf.data.Dataset.*generator"):
        _refusing().fit(generator, sampling=policy, class_weight={0: 1.0}, verbose=0)


@pytest.mark.parametrize("rate", [np.nan, np.inf, -np.inf])
def test_learning_rate_is_finite(rate):
    with pytest.raises(ValueError, match="learning rate must be finite"):
        DPOptimizer(keras.optimizers.SGD(rate), toy.query())
    optimizer = toy.dp()
    with pytest.raises(ValueError, match="learning rate must be finite"):
        optimizer.learning_rate = rate
    assert float(optimizer.learning_rate) == 0.5


def _weights_after(entry, **arguments):
    model = _model(optimizer=toy.dp(engine="loop"))
    x, y = arguments.pop("x", X), arguments.pop("y", Y)
    if entry == "train_on_batch":
        model.train_on_batch(x, y, **arguments)
    elif entry == "data set":
        weights = [arguments.pop("sample_weight")] if "sample_weight" in arguments else []
        dataset = tf.data.Dataset.from_tensor_slices((x, y, *weights)).batch(N)
        model.fit(dataset, sampling=FullBatch().resolve(N, N), verbose=0, **arguments)
    else:
        model.fit(x, y, sampling=FullBatch(), verbose=0, **arguments)
    return toy.weights(model)


@pytest.mark.parametrize("entry", ["fit", "data set", "train_on_batch"])
def test_record_whose_weight_is_not_finite_contributes_nothing(entry):
    weights, without = np.ones([2, N], "float32")
    weights[3:6], without[3:6] = [np.nan, np.inf, -np.inf], 0.0
    got = _weights_after(entry, sample_weight=weights)
    expected = _weights_after(entry, sample_weight=without)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("entry", ["fit", "data set", "train_on_batch"])
def test_class_weights_are_those_of_the_classes(entry):
    labels = Y[:, None].astype("float32") if entry == "data set" else Y
    got = _weights_after(entry, y=labels, class_weight={1: 0.25, 7: 3.0})
    by_hand = np.where(Y == 1, 0.25, 1.0).astype("float32")
    expected = _weights_after(entry, y=labels, sample_weight=by_hand)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_weights_of_parts_of_an_example_are_taken():
    x = np.zeros([N, 5, 3], "float32")
    model = tfdp.keras.make_private(keras.Sequential([keras.Input((5, 3)), L.Dense(2)]))
    model.compile(toy.dp(engine="loop"), loss="mse", run_eagerly=True)
    for shape in ([N], [N, 1], [N, 5], [N, 5, 1]):
        weights = np.ones(shape, "float32")
        model.fit(x, np.zeros([N, 5, 2]), sample_weight=weights, sampling=FullBatch(), verbose=0)
    with pytest.raises(ValueError, match=r"\[n, 5\].*\[n, 2\]"):
        weights = np.ones([N, 2], "float32")
        model.fit(x, np.zeros([N, 5, 2]), sample_weight=weights, sampling=FullBatch(), verbose=0)


def test_denominator_of_another_batch_is_warned_of(caplog):
    for denominator, batch_size, warned in [(64, 4, True), (1, 4, False), (4, 4, False)]:
        caplog.clear()
        query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=denominator)
        model = toy.private(toy.linear(), DPOptimizer(keras.optimizers.SGD(0.1), query))
        model._set_batch_size(batch_size)
        assert ("denominator=64, and a sample has 4 records" in caplog.text) == warned


def test_empty_batch_is_a_step():
    model = _model(optimizer=toy.dp(engine="loop"))
    model.train_on_batch(X[:0], Y[:0])
    assert model.ledger.total_count == 1


def test_models_of_strings_take_strings():
    lookup = L.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    inputs = keras.Input((1,), dtype="string")
    model = tfdp.keras.make_private(keras.Model(inputs, L.Dense(2)(lookup(inputs))))
    model.compile(toy.dp(engine="loop"), loss=toy.LOGITS_LOSS, run_eagerly=True)
    model.train_on_batch(np.array([["a"], ["b"]]), np.array([0, 1]))
    assert model.ledger.total_count == 1


def test_texts_come_as_the_tensors_that_keras_takes():
    words = np.array([["a"], ["é"], ["c"], ["b"]])
    lookup = L.StringLookup(vocabulary=["a", "b", "é"], output_mode="one_hot")
    inputs = keras.Input((1,), dtype="string")
    weights = []
    for x in (words, tf.constant(words), np.char.encode(words, "utf-8")):
        keras.utils.set_random_seed(0)
        model = toy.private(keras.Model(inputs, L.Dense(2)(lookup(inputs))))
        toy.fit_step(model, x, np.array([0, 1, 0, 1]))
        weights.append(toy.weights(model))
    for others in weights[1:]:
        for ours, theirs in zip(weights[0], others, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("text", ["é", "\U0001f600", "\ud800", "\x1b", ""])
@pytest.mark.parametrize("way", ["fit", "eager", "split", "train_on_batch"])
def test_no_text_ends_the_run(way, text):
    words = np.array([["a"], ["b"], [text]], "U2")
    targets = np.array([0, 1, 0])
    lookup = L.StringLookup(vocabulary=["a", "b", "é"], output_mode="one_hot")
    inputs = keras.Input((1,), dtype="string")
    plain = keras.Model(inputs, L.Dense(2)(lookup(inputs)))
    model = toy.private(plain, run_eagerly=way == "eager")
    everybody = {"sampling": tfdp.sampling.FullBatch(), "verbose": 0}
    if way == "train_on_batch":
        model.train_on_batch(words, targets)
    elif way == "split":
        model.fit(words, targets, validation_split=0.4, **everybody)
    else:
        model.fit(words, targets, validation_data=(words, targets.copy()), **everybody)
    assert model.ledger.total_count == 1


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"callbacks": [3]}, TypeError, "callbacks must hold .*: 3"),
        ({"validation_data": 3}, TypeError, "validation_data must hold arrays"),
        ({"validation_data": "x"}, TypeError, "validation_data must hold arrays"),
        ({"validation_data": (X, Y, Y, Y)}, ValueError, "validation_data has 4 parts"),
        ({"validation_steps": -1}, ValueError, "validation_steps"),
        ({"validation_batch_size": 0}, ValueError, "validation_batch_size"),
        ({"validation_freq": 0}, ValueError, "validation_freq"),
        ({"validation_freq": "often"}, TypeError, "validation_freq"),
    ],
    ids=str,
)
def test_bad_callbacks_and_validation_are_refused_before_the_first_step(arguments, error, message):
    with pytest.raises(error, match=message):
        _fit(**{"validation_data": (X + 0, Y + 0), **arguments})
    assert _refusing().ledger.total_count == 0


@pytest.mark.parametrize(
    "name, value",
    [("y", Y), ("sample_weight", np.ones(N)), ("batch_size", 7), ("validation_split", 0.2)],
)
def test_what_a_data_set_has_itself_is_refused_beside_it(name, value):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(N)
    with pytest.raises(ValueError, match=f"{name} was given beside a data set"):
        _refusing().fit(dataset, **{name: value}, sampling=Unknown(), verbose=0)
    assert _refusing().ledger.total_count == 0
