"""Layers that prepare the columns of a table: which run on the batch, whatever is in it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    assert_engines_agree,
    assert_sums_agree,
    by_engine,
    head,
    squared_error,
    targets,
    traced_sum,
)
from tfdp.gradients import ModelLoss, explain
from tfdp.gradients.rules.rule import rule_for

L = keras.layers
WORDS = ["a", "b", "é", "longer words"]
QUERY = tfdp.GaussianSumQuery(0.3, 1.0)
ROWS = np.arange(BATCH)


def words(width=1, seed=0):
    chosen = np.random.default_rng(seed).choice([*WORDS, "unknown"], (BATCH, width))
    return np.char.encode(chosen, "utf-8")


def integers(width=1, seed=0):
    return np.random.default_rng(seed).integers(0, 6, (BATCH, width))


def numbers(width=1, seed=0):
    return np.random.default_rng(seed).normal(size=(BATCH, width)).astype("float32")


# Layers, and the columns that they are called on.
LAYERS = {
    "category_count": (lambda: L.CategoryEncoding(5, output_mode="count"), [integers(3)]),
    "category_multi_hot": (lambda: L.CategoryEncoding(5), [integers(3)]),
    "category_one_hot": (lambda: L.CategoryEncoding(5, output_mode="one_hot"), [integers()]),
    "category_one_hot_wide": (lambda: L.CategoryEncoding(5, output_mode="one_hot"), [integers(2)]),
    "crossing": (lambda: L.HashedCrossing(7), [words(), integers()]),
    "crossing_one_hot": (
        lambda: L.HashedCrossing(7, output_mode="one_hot"),
        [words(), words(seed=1)],
    ),
    "discretization": (lambda: L.Discretization([-0.5, 0.5]), [numbers(2)]),
    "discretization_alone": (lambda: L.Discretization([-0.5, 0.5]), [numbers()[:, 0]]),
    "discretization_count": (
        lambda: L.Discretization([-0.5, 0.5], output_mode="count"),
        [numbers(3)],
    ),
    "hashing": (lambda: L.Hashing(5), [words(2)]),
    "hashing_alone": (lambda: L.Hashing(5), [words()[:, 0]]),
    "hashing_multi_hot": (lambda: L.Hashing(5, output_mode="multi_hot"), [words(3)]),
    "hashing_one_hot": (lambda: L.Hashing(5, output_mode="one_hot"), [integers()]),
    "hashing_strong": (lambda: L.Hashing(5, salt=[3, 4], mask_value="a"), [words(2)]),
    "integers": (lambda: L.IntegerLookup(vocabulary=[2, 3, 4]), [integers(2)]),
    "integers_alone": (lambda: L.IntegerLookup(vocabulary=[2, 3, 4]), [integers()[:, 0]]),
    "integers_multi_hot": (
        lambda: L.IntegerLookup(
            vocabulary=[2, 3], num_oov_indices=3, mask_token=0, output_mode="multi_hot"
        ),
        [integers(3)],
    ),
    "words": (lambda: L.StringLookup(vocabulary=WORDS), [words(2)]),
    "words_alone": (lambda: L.StringLookup(vocabulary=WORDS), [words()[:, 0]]),
    "words_count": (lambda: L.StringLookup(vocabulary=WORDS, output_mode="count"), [words(3)]),
    "words_hashed": (lambda: L.StringLookup(vocabulary=WORDS, num_oov_indices=3), [words(2)]),
    "words_one_hot": (lambda: L.StringLookup(vocabulary=WORDS, output_mode="one_hot"), [words()]),
}

# Older versions of Keras tell another shape of it than they compute, and no layer can follow.
if L.Discretization([0.0], output_mode="one_hot")(keras.Input((1,))).shape == (None, 2):
    LAYERS["discretization_one_hot"] = (
        lambda: L.Discretization([-0.5, 0.5], output_mode="one_hot"),
        [numbers()],
    )


def model_of(make, columns):
    """Returns a model of the columns in which a weight multiplies what the layer makes of them."""
    keras.utils.set_random_seed(1)
    dtypes = ["string" if column.dtype.kind == "S" else column.dtype.name for column in columns]
    pairs = zip(columns, dtypes, strict=True)
    inputs = [keras.Input(column.shape[1:], dtype=dtype) for column, dtype in pairs]
    outputs = make()(inputs if len(inputs) > 1 else inputs[0])
    if len(outputs.shape) == 1:  # Of each record one number.
        outputs = keras.ops.expand_dims(outputs, -1)
    return keras.Model(inputs, head(keras.ops.cast(outputs, "float32") + 0.5))


def problem_of(model, columns):
    columns = [tf.constant(column) for column in columns]
    examples = columns if len(columns) > 1 else columns[0], tf.constant(targets(2))
    return ModelLoss(model, squared_error), model.trainable_variables, examples


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer_runs_on_the_batch_and_is_exact(name):
    make, columns = LAYERS[name]
    model = model_of(make, columns)
    assert explain(model) == "head: DenseRule"
    assert_engines_agree(*problem_of(model, columns))


ODD = {
    "S": [b"", b"\x00", b"\xff\xfe", b"[UNK]", "\U0001f600".encode(), b"x" * 10_000],
    "i": [-1, 5, 10**9, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)],
    "f": [np.nan, np.inf, -np.inf, 3e38, -0.0, 1e-45],
}


def with_odd(columns, value, row=1):
    """Returns columns of which one has another value in a row, or fewer if it takes none such."""
    kind = next(kind for kind in "Sif" if columns[0].dtype.kind == kind)
    assert value in ODD[kind] or np.isnan(value)
    first = columns[0].astype("S10000") if kind == "S" else np.array(columns[0])
    first[(row, -1)[: first.ndim]] = value
    return [first, *columns[1:]]


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_whatever_a_record_holds_others_are_as_they_are(name):
    make, columns = LAYERS[name]
    model = model_of(make, columns)
    loss, variables, _ = problem_of(model, columns)
    total, everybody = traced_sum(loss, variables, QUERY), tf.ones([BATCH], tf.bool)

    @tf.function(autograph=False)
    def one_by_one(examples):
        found = tfdp.clipped_gradient_sum(loss, variables, examples, QUERY, engine="vectorized")
        return found.sample_state

    for value in ODD[columns[0].dtype.kind]:
        examples = problem_of(model, with_odd(columns, value))[2]
        found = total(examples, everybody)
        # It counts as it does where every record runs by itself: in full, or not at all.
        if not name.startswith("crossing"):  # For which no other engine has a kernel.
            assert_sums_agree(found, one_by_one(examples))
        alone, others = (total(examples, m) for m in (ROWS == 1, ROWS != 1))
        assert_sums_agree(found, [a + o for a, o in zip(alone, others, strict=True)])
        # Keras makes the ids of this layer 32-bit integers before it counts them.
        is_out = name in ("category_count", "category_multi_hot") and not 0 <= value < 2**31
        assert any(np.any(part) for part in alone) != is_out, value


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_no_records_are_nothing(name):
    make, columns = LAYERS[name]
    loss, variables, examples = problem_of(model_of(make, columns), columns)
    nobody = tf.nest.map_structure(lambda part: part[:0], examples)
    sums = by_engine(loss, variables, nobody, QUERY, "bookkeeping")
    assert not any(np.any(part) for part in sums)


# What stops at some values, or has numbers of its own or sparse ones.
WITHOUT = {
    "no_place_for_the_unknown": lambda: L.StringLookup(vocabulary=WORDS, num_oov_indices=0),
    "no_place_for_other_integers": lambda: L.IntegerLookup(vocabulary=[3], num_oov_indices=0),
    "no_nan_among_integers": lambda: L.CategoryEncoding(5, output_mode="count", dtype="int32"),
    "sparse": lambda: L.Hashing(5, output_mode="one_hot", sparse=True),
    "sparse_lookup": lambda: L.StringLookup(vocabulary=WORDS, output_mode="multi_hot", sparse=True),
    "frequencies": lambda: L.StringLookup(
        vocabulary=WORDS, idf_weights=[1.0] * 4, output_mode="tf_idf"
    ),
}


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_other_layers_run_record_by_record(name):
    assert rule_for(WITHOUT[name]()) is None


class Mixing:
    """Takes the place of an object that a layer asks."""

    def __init__(self, part):
        self.part = part

    def __getattr__(self, name):
        return getattr(self.part, name)

    def lookup(self, words):
        return tf.reverse(self.part.lookup(words), [0])


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (lambda: L.StringLookup(vocabulary=WORDS), "lookup_table"),
        (lambda: L.IntegerLookup(vocabulary=[3]), "lookup_table"),
        (lambda: L.Discretization([0.0]), "backend"),
        (lambda: L.CategoryEncoding(5), "backend"),
    ],
)
def test_objects_of_others_in_a_layer_do_not_run_on_the_batch(layer, name):
    layer = layer()
    assert rule_for(layer) is not None
    object.__setattr__(layer, name, Mixing(getattr(layer, name)))
    assert rule_for(layer) is None


def test_integers_and_one_hot_are_never_nan():
    for layer in (
        L.CategoryEncoding(5, output_mode="one_hot", dtype="int32"),
        L.StringLookup(vocabulary=WORDS, invert=True, num_oov_indices=0, output_mode="int"),
    ):
        assert rule_for(layer) is not None


def test_what_is_called_on_other_things_runs_record_by_record():
    with tf.Graph().as_default():
        records = tf.compat.v1.placeholder(tf.int64, [None, 1])
        one_number = tf.compat.v1.placeholder(tf.int64, [None])
        for layer, takes, others in (
            (L.CategoryEncoding(5), [(records,)], [(one_number,), (records, records)]),
            (L.Hashing(5), [(records,), (one_number,)], []),
            (L.Hashing(5, output_mode="one_hot"), [(records,)], [(one_number,)]),
            (L.IntegerLookup(vocabulary=[3]), [(records,), (one_number,)], []),
            (L.IntegerLookup(vocabulary=[3], output_mode="count"), [(records,)], [(one_number,)]),
            (
                L.HashedCrossing(5),
                [([records, records],)],
                [([one_number, one_number],), ([records, tf.zeros([1, 1], tf.int64)],)],
            ),
        ):
            rule = rule_for(layer)
            assert all(rule.holds_on(layer, *arguments) for arguments in takes)
            assert not any(rule.holds_on(layer, *arguments) for arguments in others)


def test_weights_of_counts_run_record_by_record():
    ids, weights = keras.Input((3,), dtype="int64"), keras.Input((3,))
    counted = L.CategoryEncoding(5, output_mode="count", name="counted")(ids, count_weights=weights)
    model = keras.Model([ids, weights], head(counted))
    assert "counted: record by record" in explain(model)
    columns = [integers(3), np.abs(numbers(3))]
    assert_engines_agree(*problem_of(model, columns))


def test_ids_in_half_precision_are_those_that_they_are():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        layer = L.CategoryEncoding(3000, output_mode="count")
        ids = tf.compat.v1.placeholder_with_default(
            tf.constant([[2048.0, 7], [np.inf, 1], [np.nan, 1], [-0.5, 1], [65504, 2]], tf.float16),
            [None, 2],
        )
        found = session.run(rule_for(layer).run(None, layer, layer.call, ids))
    wanted = np.zeros([5, 3000])
    wanted[0, [2048, 7]] = wanted[3, [0, 1]] = 1
    wanted[4, 2] = 1
    wanted[1:3] = np.nan
    np.testing.assert_array_equal(found, wanted)


def test_columns_of_a_feature_space_run_on_the_batch():
    of = keras.utils.FeatureSpace
    space = of(
        {
            "word": of.string_categorical(num_oov_indices=1),
            "id": of.integer_categorical(output_mode="one_hot"),
            "hashed": of.string_hashed(num_bins=4),
            "number": of.float_normalized(),
            "bin": of.float_discretized(num_bins=3),
        },
        crosses=[of.cross(("word", "hashed"), crossing_dim=5)],
        output_mode="concat",
    )
    columns = {
        "word": words()[:, 0],
        "id": integers()[:, 0],
        "hashed": words(seed=1)[:, 0],
        "number": numbers()[:, 0],
        "bin": numbers(seed=1)[:, 0],
    }
    space.adapt(tf.data.Dataset.from_tensor_slices(columns))
    model = keras.Model(space.get_inputs(), L.Dense(2, name="head")(space.get_encoded_features()))
    assert explain(model) == "head: DenseRule"
