"""What `fit` takes as data: lengths, splits, weights of classes, and first looks at data sets."""

import collections
import os
import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tfdp.keras.data import is_dataset, length, peek, prepare_arrays, shares_memory, weighted_arrays
from tfdp.sampling import Poisson, Source, batches

X, Y = np.arange(10.0)[:, None], np.arange(10) % 2


def test_data_sets_yield_batches_and_arrays_hold_examples():
    mappings = ({"a": X}, collections.UserDict(a=X), types.MappingProxyType({"a": X}))
    for held in (X, [X, X], (X,), *mappings, tf.constant(X)):
        assert not is_dataset(held)
    for given in mappings:
        x, _, _ = weighted_arrays(given, Y, None, None)
        assert type(x) is dict and x["a"].shape == X.shape


@pytest.mark.parametrize("weight", [None, Y], ids=["", "weighted"])
def test_samples_that_were_drawn_for_a_loop_are_no_data_set(weight):
    with pytest.raises(TypeError, match="Pass the arrays to fit"):
        peek(batches(X, Y, weight, Poisson().resolve(10, 4)))
    for yields in (tf.data.Dataset.from_tensors(X), iter([X]), (x for x in [X])):
        assert is_dataset(yields)


def test_length_is_shared():
    assert length(X, {"y": Y}, None) == 10
    with pytest.raises(ValueError, match=r"Received lengths: \[9, 10\]"):
        length(X, Y[1:])
    with pytest.raises(ValueError, match="no training data"):
        length(None)
    with pytest.raises(ValueError, match="are empty"):
        length(X[:0])


def test_validation_is_split_from_the_end():
    x, y, weight, validation = prepare_arrays(X, Y, None, None, 0.2, None)
    assert (len(x), len(y), weight) == (8, 8, None)
    assert [part.tolist() for part in validation] == [[[8.0], [9.0]], [0, 1]]


@pytest.mark.parametrize("split", [1e-20, 0.999])
def test_no_part_of_a_split_is_empty(split):
    with pytest.raises(ValueError, match="leaves one part empty"):
        prepare_arrays(X[:3], Y[:3], None, None, split, None)


def test_weights_of_classes_by_hand():
    _, _, weight = weighted_arrays(X[:3], Y[:3], None, {0: 2.0, 1: 0.5})
    np.testing.assert_allclose(weight, [2.0, 0.5, 2.0])
    with pytest.raises(ValueError, match="not both"):
        weighted_arrays(X, Y, np.ones(10), {0: 1.0})


def test_validation_data_may_not_be_the_training_data():
    assert shares_memory(X, (X[3:], Y))
    assert not shares_memory(X, (X.copy(), Y))
    assert shares_memory(Source((X, Y)), (X[3:], Y))
    assert not shares_memory(Source((X, Y)), (X.copy(), Y.copy()))


def test_validation_data_may_not_be_mapped_from_what_is_trained_on(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(40.0).reshape(10, 4))
    np.save(tmp_path / "other.npy", np.arange(40.0).reshape(10, 4))
    os.symlink(tmp_path / "x.npy", tmp_path / "same.npy")

    def mapped(name="x"):
        return np.load(tmp_path / f"{name}.npy", mmap_mode="r")

    for x, other, shared in [
        (mapped(), mapped(), True),
        (mapped(), mapped("same"), True),
        (mapped(), mapped("other"), False),
        (mapped()[:6], mapped()[6:], False),
        (mapped()[:6], mapped()[5:], True),
        (mapped()[:6][::-1], mapped()[5:], True),
        (mapped()[6:][::-1], mapped()[:6], False),
        (mapped()[2:4][1:], mapped()[3:], True),
        (mapped()[:0], mapped(), False),
        (mapped()[:6], np.array(mapped()), False),
    ]:
        assert shares_memory(x, (other, None)) == shared
        if len(x):
            assert shares_memory(Source((x, Y[: len(x)])), (other, None)) == shared
    header = mapped().offset
    raw = np.memmap(tmp_path / "x.npy", np.uint8, "r", offset=header + 8 * 4 * 6)
    assert shares_memory(mapped()[5:7], raw) and not shares_memory(mapped()[:6], raw)


def test_first_look_at_an_iterator_takes_nothing_away():
    (x, y, _), dataset, rows = peek(iter([(X[:4], Y[:4]), (X[4:8], Y[4:8])]))
    assert (x.shape, y.shape, rows) == ((1, 1), (1,), 4)
    assert float(tf.reduce_sum(tf.abs(x))) == 0.0
    assert [len(batch[0]) for batch in dataset] == [4, 4]


def test_empty_data_set_is_refused():
    with pytest.raises(ValueError, match="are empty"):
        peek(iter([]))


@pytest.mark.parametrize("value", [1.0, np.inf, 1e300])
def test_no_warning_tells_of_a_number_that_is_too_large(value):
    x = np.ones((3, 1))
    x[1] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = weighted_arrays(x, x, x[:, 0], None)
    for array in found:
        assert array.dtype == "float32"
        assert array[1] == (1.0 if value == 1 else np.inf)
