import itertools
import subprocess
import sys
import threading
import time
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tests.sampling.draws import elements
from tfdp.events import NeighboringRelation, UnknownSampling
from tfdp.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedOrder,
    FixedSize,
    FullBatch,
    MinSeparationPoisson,
    PaddedBatch,
    Poisson,
    RandomAllocation,
    SamplingPolicy,
    Shuffled,
    Source,
    TruncatedPoisson,
    Unknown,
    Users,
    batches,
)
from tfdp.sampling.arrays import _Calls, _rows, samples


class Scripted(SamplingPolicy):
    """Yields the samples it was given, over and over."""

    neighboring_relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    expected_batch_size = None
    padded_size = None
    size_step = 1

    def __init__(self, samples, padded_size):
        self._samples = [np.array(units, np.int64) for units in samples]
        self.padded_size = padded_size

    def resolve(self, population_size, batch_size):
        return self

    def description(self, pass_index):
        return UnknownSampling()

    def draw(self, generator):
        return itertools.cycle(self._samples)


def _take(count, *arguments, **keywords):
    return list(itertools.islice(elements(batches(*arguments, **keywords)), count))


def _data(count):
    """Row i of everything is known from i, and no row is zero."""
    rows = np.arange(1, count + 1)
    return rows[:, None] * np.array([1.0, 10.0], np.float32), 100 * rows, 1000.0 * rows


def test_pads_to_a_fixed_shape_with_zeros():
    x, y, weight = _data(6)
    policy = Scripted([[4, 1], [], [0, 5, 2, 3]], padded_size=4)
    two, none, four = _take(3, x, y, weight, policy)

    np.testing.assert_array_equal(two.x, [[5, 50], [2, 20], [0, 0], [0, 0]])
    np.testing.assert_array_equal(two.y, [500, 200, 0, 0])
    np.testing.assert_array_equal(two.sample_weight, [5000, 2000, 0, 0])
    np.testing.assert_array_equal(two.mask, [True, True, False, False])

    assert none.x.shape == (4, 2)
    assert not none.x.any() and not none.y.any() and not none.mask.any()

    np.testing.assert_array_equal(four.y, [100, 600, 300, 400])
    assert four.mask.all()


def test_without_a_constant_size_little_more_than_the_sample_is_there():
    x, y, weight = _data(9)
    samples = [[4, 1], [], [8], [0, 5, 2, 3], list(range(9))]
    policy = Scripted(samples, padded_size=8)
    policy.size_step = 3
    found = _take(5, x, y, weight, policy, constant_size=False)
    assert [len(batch.mask) for batch in found] == [3, 3, 3, 6, 9]
    for batch, sample in zip(found, samples, strict=True):
        assert batch.mask.sum() == len(sample) and batch.mask[: len(sample)].all()
        np.testing.assert_array_equal(batch.y[: len(sample)], y[sample])
        assert not batch.x[len(sample) :].any() and not batch.sample_weight[len(sample) :].any()
    shared = _take(5, x, y, weight, policy, constant_size=False, row_multiple=2)
    assert [len(batch.mask) for batch in shared] == [4, 4, 4, 4, 12]


def test_keeps_dtypes():
    x, y, weight = _data(3)
    (batch,) = _take(1, x.astype(np.float16), y.astype(np.uint8), weight, FullBatch(3))
    assert isinstance(batch, PaddedBatch)
    assert (batch.x.dtype, batch.y.dtype) == (np.float16, np.uint8)
    assert (batch.sample_weight.dtype, batch.mask.dtype) == (np.float64, np.bool_)


@pytest.mark.parametrize("text", ["\u00e9", "\U0001f600", "\ud800", ""])
def test_texts_come_in_utf_8_whatever_their_letters(text):
    texts = np.array([["a"], [text], ["b"]], "U2")
    drawn = batches(texts, None, None, FullBatch().resolve(3, 3))
    found = next(iter(drawn)).x.numpy()[:3, 0]
    assert [one.decode("utf-8", "surrogatepass") for one in found] == ["a", text, "b"]


@pytest.mark.parametrize("size, rows", [(3, 3), (4, 6), (6, 6), (7, 9)])
def test_larger_sample_is_padded_to_a_multiple(size, rows):
    x, y, _ = _data(8)
    (batch,) = _take(1, x, y, None, Scripted([range(size)], padded_size=3))
    assert batch.x.shape == (rows, 2)
    assert batch.mask.sum() == size
    np.testing.assert_array_equal(batch.y, [*range(100, 100 * size + 1, 100)] + [0] * (rows - size))


def test_missing_y_and_sample_weight_stay_none():
    x, _, _ = _data(4)
    (batch,) = _take(1, x, None, None, FullBatch(4))
    np.testing.assert_array_equal(batch.x, x)
    assert batch.y is None
    assert batch.sample_weight is None


def test_nested_inputs_and_targets_stay_aligned():
    # Lists come back as tuples.
    x, y, weight = _data(5)
    inputs = {"image": x, "extra": [y, (weight, -y)]}
    targets = [y, {"b": x, "a": weight}]
    (batch,) = _take(1, inputs, targets, weight, Scripted([[3, 0]], padded_size=3))
    rows = np.array([4, 1, 0])
    assert (type(batch.x["extra"]), type(batch.y)) == (tuple, tuple)
    np.testing.assert_array_equal(batch.x["image"], rows[:, None] * [1, 10])
    np.testing.assert_array_equal(batch.x["extra"][0], 100 * rows)
    np.testing.assert_array_equal(batch.x["extra"][1][0], 1000 * rows)
    np.testing.assert_array_equal(batch.x["extra"][1][1], -100 * rows)
    np.testing.assert_array_equal(batch.y[0], 100 * rows)
    np.testing.assert_array_equal(batch.y[1]["b"], rows[:, None] * [1, 10])
    np.testing.assert_array_equal(batch.y[1]["a"], 1000 * rows)
    np.testing.assert_array_equal(batch.sample_weight, 1000 * rows)


def test_units_of_several_examples_come_and_go_together():
    # 10 examples in units of 4: {0..3}, {4..7}, {8, 9}. Row i holds i + 1.
    x, y, _ = _data(10)
    policy = Scripted([[1], [2, 0], [2], [0, 1, 2]], padded_size=2)
    one, two, last, three = _take(4, x, y, None, policy, examples_per_unit=4)

    np.testing.assert_array_equal(one.y, [500, 600, 700, 800] + [0] * 4)
    np.testing.assert_array_equal(one.mask, [1, 1, 1, 1, 0, 0, 0, 0])
    # Every unit keeps four rows, so that a row's unit is known from its place.
    np.testing.assert_array_equal(two.y, [900, 1000, 0, 0, 100, 200, 300, 400])
    np.testing.assert_array_equal(two.mask, [1, 1, 0, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(last.y, [900, 1000] + [0] * 6)
    np.testing.assert_array_equal(last.mask, [1, 1, 0, 0, 0, 0, 0, 0])
    assert three.y.shape == (16,)
    assert three.mask.sum() == 10
    for batch in (one, two, last, three):
        np.testing.assert_array_equal(batch.x[:, 0] * 100, batch.y)
        assert not batch.y[~batch.mask].any()


def test_shuffled_pass_drops_nothing():
    x, y, _ = _data(10)
    policy = Shuffled().resolve(10, 4)
    drawn = _take(2 * policy.steps_per_pass, x, y, None, policy)
    for one_pass in (drawn[:3], drawn[3:]):
        assert [batch.mask.sum() for batch in one_pass] == [4, 4, 2]
        seen = np.concatenate([batch.y[batch.mask] for batch in one_pass])
        assert sorted(seen) == sorted(y)


def test_shuffled_pass_over_units_drops_nothing():
    x, y, _ = _data(10)
    policy = Shuffled().resolve(3, 2)
    drawn = _take(policy.steps_per_pass, x, y, None, policy, examples_per_unit=4)
    seen = np.concatenate([batch.y[batch.mask] for batch in drawn])
    assert sorted(seen) == sorted(y)


@pytest.mark.parametrize("policy", [Poisson(0.3, 10), FixedSize(4, 10), Shuffled(4, 10)])
def test_rows_are_those_the_policy_draws(policy):
    x, y, weight = _data(10)
    drawn = _take(20, x, y, weight, policy, generator=np.random.default_rng(0))
    expected = itertools.islice(policy.draw(np.random.default_rng(0)), 20)
    for batch, units in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(batch.y[batch.mask], y[units])
        np.testing.assert_array_equal(batch.x[batch.mask], x[units])
        np.testing.assert_array_equal(batch.sample_weight[batch.mask], weight[units])
        assert len(batch.mask) % policy.padded_size == 0


def test_empty_poisson_samples_are_yielded():
    # (1 - 0.01)^3 = 0.97 of the samples are empty.
    x, y, _ = _data(3)
    sizes = [batch.mask.sum() for batch in _take(50, x, y, None, Poisson(0.01, 3))]
    assert len(sizes) == 50
    assert 0 in sizes


def test_draws_are_not_repeated_without_a_generator():
    # Two equal permutations of 30: once in 10^32.
    x, y, _ = _data(30)
    left, right = (_take(1, x, y, None, Shuffled(30, 30))[0] for _ in range(2))
    assert not np.array_equal(left.y, right.y)


def test_iterators_of_a_data_set_do_not_share_their_draws():
    x, y, weight = _data(6)
    data = batches(x, y, weight, Scripted([[0], [1], [2]], padded_size=1))
    first, second = elements(data), elements(data)
    for iterator, expected in ((first, 1), (first, 2), (second, 1), (first, 3), (second, 2)):
        assert next(iterator).x.tolist() == [[expected, 10.0 * expected]]


class Ending(Scripted):
    """Counts the draws that have been closed."""

    ended = 0

    def draw(self, generator):
        try:
            yield from self._samples
        finally:
            self.ended += 1


def test_draws_end_and_arrays_are_given_back_with_the_data_set(collect):
    policy = Ending([[0]] * 20, padded_size=1)
    x, y, weight = _data(6)
    given = weakref.ref(x)
    iterator = elements(batches(x, y, weight, policy))
    next(iterator)
    del x
    collect()
    assert not policy.ended and given() is not None  # The iterator may still be used.
    next(iterator)
    del iterator
    collect()
    assert policy.ended and given() is None


def test_draws_of_earlier_epochs_are_dropped():
    policy = Ending([[0]] * 20, padded_size=1)
    data = batches(*_data(6), policy)
    first = elements(data)
    next(first)
    for epoch in range(30):
        assert len(list(data.take(2))) == 2
        assert epoch + 1 - policy.ended <= 8
    with pytest.raises(tf.errors.UnknownError, match="Use fewer iterators at a time"):
        for _ in range(4):  # Two samples were prefetched.
            next(first)


def test_large_memory_of_the_process_is_not_made_new_for_every_tensor(monkeypatch):
    # tf.data's generator data sets call mallopt, and nothing can take that back.
    monkeypatch.delattr(tf.data.Dataset, "from_generator")
    assert len(_take(2, *_data(6), Scripted([[0], [1]], padded_size=1))) == 2


def test_second_iteration_does_not_repeat_the_first():
    x, y, _ = _data(30)
    dataset = batches(x, y, None, Shuffled(30, 30))
    left, right = (next(elements(dataset)) for _ in range(2))
    assert not np.array_equal(left.y, right.y)


@pytest.mark.parametrize(
    "x",
    [
        np.arange(24.0).reshape(6, 4)[:, ::2],
        np.arange(12.0).reshape(6, 2).astype(">f8"),
        np.asfortranarray(np.arange(12).reshape(6, 2)),
        np.array(["one", "two", "three", "four", "five", "six"]),
        np.arange(6) > 2,
    ],
    ids=["every_second_column", "big_endian", "by_columns", "strings", "truth_values"],
)
def test_rows_of_arrays_however_they_lie_in_memory(x):
    rows = _rows(x, np.array([4, 0, 1]), np.array([True, False, True]))
    np.testing.assert_array_equal(rows[[0, 2]], x[[4, 1]])
    assert rows.dtype == x.dtype and rows.shape == (3, *x.shape[1:])
    np.testing.assert_array_equal(rows[1], np.zeros(x.shape[1:], x.dtype))


_ENDS_WHILE_READING = """
import sys, time
import numpy as np
import tfdp

class Slow:
    def __len__(self):
        return 64

    def __getitem__(self, row):
        time.sleep(0.02)
        return np.zeros(3, np.float32)

policy = tfdp.sampling.Poisson().resolve(64, 16)
sys.data = tfdp.sampling.batches(tfdp.sampling.Source(Slow()), None, None, policy)
sys.iterators = [iter(sys.data) for _ in range(4)]
for iterator in sys.iterators:
    next(iterator)
raise ValueError("the training ended here")
"""


def test_program_ends_although_samples_are_being_read():
    # TensorFlow waits for what it prefetches, which would wait for Python, which has ended.
    done = subprocess.run(
        [sys.executable, "-c", _ENDS_WHILE_READING], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, "the training ended here" in done.stderr) == (1, True)


class _Reading:
    """Something that samples come from."""


def test_the_end_waits_for_calls_under_way_and_lets_none_begin():
    calls, reading, done = _Calls(), _Reading(), []

    def read():
        with calls.one_of(reading):
            begun.set()
            time.sleep(0.3)
            done.append(True)

    begun, thread = threading.Event(), threading.Thread(target=read)
    thread.start()
    begun.wait()
    calls.end()
    assert done
    with pytest.raises(RuntimeError, match="ending"), calls.one_of(reading):
        pass
    thread.join()


def test_the_end_does_not_wait_where_no_samples_are_left(monkeypatch, collect):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    calls = _Calls()
    with calls.one_of(_Reading()):
        pass
    collect()
    calls.end()
    assert not waits


@pytest.mark.parametrize("dtype", [">i4", ">f8", ">u2"])
@pytest.mark.parametrize("map", [None, lambda example: example], ids=["arrays", "mapped"])
def test_bytes_in_another_order_are_the_same_numbers(map, dtype):
    x = np.arange(8, dtype=dtype).reshape(8, 1)
    policy = FullBatch().resolve(8, 8)
    for data in (x, Source(x, map=map), Source(list(x), map=map)):
        drawn = samples(data, None, None, policy)
        assert drawn.signature[0].dtype == x.dtype.newbyteorder("=")
        for found in (next(drawn.make())[0], next(iter(drawn.dataset())).x.numpy()):
            assert found.dtype.isnative
            np.testing.assert_array_equal(found, x)
    floats = Source(np.arange(8.0)).with_floats(">f4")
    assert floats.read(np.array([3]))[0].dtype == np.dtype("f4").newbyteorder("=")


@pytest.mark.parametrize(
    ("rows", "per_unit", "users"),
    [(12, 1, None), (8, 1, None), (12, 2, None), (12, 1, Users(np.arange(12) // 2, 2))],
)
def test_a_policy_for_another_number_of_units_is_refused(rows, per_unit, users):
    policy = FullBatch().resolve(10, 10)
    for data in (np.arange(rows), Source(np.arange(rows))):
        with pytest.raises(ValueError, match="draws from 10 units, and the data have"):
            batches(data, None, None, policy, per_unit, users=users)


class Frame:
    """As a DataFrame of pandas: an array can be made of it, and [i] is something else."""

    def __init__(self, rows):
        self._rows, self.dtype, self.shape = rows, rows.dtype, rows.shape

    def __len__(self):
        return len(self._rows)

    def __array__(self, dtype=None, copy=None):
        return self._rows

    def __getitem__(self, label):
        raise KeyError(label)


@pytest.mark.parametrize(
    "make", [Frame, tf.constant, lambda rows: types.MappingProxyType({"": rows})]
)
def test_what_arrays_can_be_made_of_is_drawn_from_as_arrays(make):
    rows = np.arange(24, dtype=np.float32).reshape(12, 2)
    drawn = batches(make(rows), rows[:, 0], None, FullBatch().resolve(12, 12))
    batch = next(iter(drawn))
    (x,) = tf.nest.flatten(batch.x)
    np.testing.assert_array_equal(x[batch.mask], rows)
    np.testing.assert_array_equal(batch.y[batch.mask], rows[:, 0])


@pytest.mark.parametrize(
    "policy",
    [
        Poisson(),
        Poisson(sampling_probability=0.5),
        TruncatedPoisson(),
        RandomAllocation(num_steps=3),
        BallsInBins(),
        CyclicPoisson(2),
        MinSeparationPoisson(2),
        FixedOrder(),
        FixedSize(batch_size=3),
        FullBatch(),
        Shuffled(batch_size=3),
        Unknown(),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_a_policy_that_is_not_resolved_is_refused(policy):
    with pytest.raises(ValueError, match="policy.resolve"):
        batches(np.zeros([12, 2]), None, None, policy)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"x": [[1.0, 2.0]] * 12}, TypeError, "a list stands for several"),
        ({"x": np.zeros([12], object)}, TypeError, "arrays of numbers or texts"),
        ({"x": None}, ValueError, "nothing to draw from"),
        ({"policy": "poisson"}, TypeError, "policy must be one"),
        ({"examples_per_unit": 0}, ValueError, "examples_per_unit"),
        ({"examples_per_unit": 1.5}, TypeError, "examples_per_unit"),
        ({"row_multiple": 0}, ValueError, "row_multiple"),
        ({"users": [1] * 12}, TypeError, "tfdp.sampling.Users"),
    ],
)
def test_what_samples_cannot_be_drawn_from_is_refused(changed, error, message):
    given = {"x": np.zeros([12, 2]), "policy": Poisson().resolve(12, 4), **changed}
    with pytest.raises(error, match=message):
        batches(given.pop("x"), None, None, given.pop("policy"), **given)
