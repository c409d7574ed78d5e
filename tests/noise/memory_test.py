import threading

import numpy as np
import pytest
import tensorflow as tf

from tfdp.noise import memory

SIZE = 1 << 19  # Of 2 MiB: kept.


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch):
    for name in ("_given", "_given_of_samples"):
        monkeypatch.setattr(memory, name, type(memory._given)(maxlen=2))


def _address(array):
    return np.asarray(array).ctypes.data


def _overlap(left, right):
    return np.shares_memory(np.asarray(left), np.asarray(right))


def test_array_is_as_asked():
    for size in (0, 1, 5, 1000, SIZE):
        words = memory.words(size)
        assert words.shape == (size,)
        assert words.dtype == np.uint32
        assert words.flags.writeable
        assert words.flags.c_contiguous
        assert _address(words) % 64 == 0
        words[:] = 7


def test_memory_that_nobody_reads_is_used_again():
    first = memory.words(SIZE)
    address = _address(first)
    del first
    assert _address(memory.words(SIZE)) == address


@pytest.mark.parametrize(
    "derive",
    [
        lambda words: words,
        lambda words: words[100:200],
        lambda words: words[5:][3:9],
        lambda words: words.reshape(2, -1).T,
        lambda words: words.view(np.float32)[:4],
        lambda words: np.asarray(words, np.uint32)[7:8],
        lambda words: memoryview(words)[10:20],
        lambda words: np.frombuffer(words, np.uint8)[3:],
        lambda words: np.broadcast_to(words[:1], [5]),
    ],
)
def test_whatever_is_derived_from_an_array_keeps_its_memory(derive):
    words = memory.words(SIZE)
    words[:] = 1
    derived = derive(words)
    before = np.array(derived)
    del words
    others = [memory.words(SIZE) for _ in range(3)]
    for other in others:
        other[:] = 2
        assert not _overlap(derived, other)
    np.testing.assert_array_equal(derived, before)
    assert not memory._given


def test_tensor_keeps_its_memory():
    count = iter(range(1, 100))
    addresses = []

    def draw():
        words = memory.words(SIZE)
        words[:] = next(count)
        addresses.append(_address(words))
        return words

    function = tf.function(lambda: tf.numpy_function(draw, [], tf.uint32))
    tensors = [function() for _ in range(4)]
    # TensorFlow reads this very memory.
    assert [_address(tensor) for tensor in tensors] == addresses
    assert len(set(addresses)) == 4
    parts = [tensor[5:9] for tensor in tensors]
    for number, (tensor, part) in enumerate(zip(tensors, parts, strict=True), start=1):
        np.testing.assert_array_equal(tensor, np.full(SIZE, number))
        np.testing.assert_array_equal(part, np.full(4, number))


def test_a_step_uses_the_memory_of_an_earlier_one():
    addresses = set()

    def draw():
        words = memory.words(SIZE)
        addresses.add(_address(words))
        words[:] = 1
        return words

    function = tf.function(lambda: tf.reduce_sum(tf.numpy_function(draw, [], tf.uint32)))
    for _ in range(20):
        function()
    assert len(addresses) <= 3


@pytest.mark.parametrize("size", [1 << 10, (1 << 26) + 1])
def test_little_and_much_memory_is_not_held(size):
    words = memory.words(size)
    del words
    assert not memory._given


def test_no_more_is_held_than_two_of_them():
    arrays = [memory.words(SIZE) for _ in range(5)]
    arrays.clear()
    assert len(memory._given) == 2


def test_memory_of_another_size_stays_until_there_is_newer():
    small = memory.words(SIZE)
    address = _address(small)
    del small
    large = memory.words(2 * SIZE)
    assert large.shape == (2 * SIZE,)
    large[:] = 1
    assert _address(memory.words(SIZE)) == address
    others = [memory.words(3 * SIZE) for _ in range(2)]
    del others
    assert {given.nbytes for given in memory._given} == {4 * 3 * SIZE + 64}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, np.bool_])
def test_rows_of_samples_of_nearly_the_same_size_take_turns_in_memory(dtype):
    per_row = (1 << 18) // np.dtype(dtype).itemsize // 32
    larger = memory.rows((32, per_row), dtype)
    address = _address(larger)
    assert address % 64 == 0
    larger[:] = 1
    part = larger[3:]
    del larger
    assert not _overlap(part, memory.rows((32, per_row), dtype))
    memory._given_of_samples.clear()
    del part
    smaller = memory.rows((30, per_row), dtype)
    assert smaller.shape == (30, per_row)
    assert smaller.dtype == dtype
    assert smaller.flags.c_contiguous
    assert smaller.flags.writeable
    assert _address(smaller) == address
    assert _address(memory.rows((30, per_row), dtype)) != address


def test_rows_without_an_element_are_an_array():
    assert memory.rows((0, 7), np.float32).shape == (0, 7)
    assert not memory.is_kept((0, 7), np.float32)
    assert memory.is_kept((1 << 14, 1), np.float32)
    assert not memory.is_kept(((1 << 14) - 1, 1), np.float32)


def test_threads_never_share():
    wrong = []

    def work(number):
        for step in range(30):
            words = memory.words(SIZE)
            words[:] = 1000 * number + step
            part = words[::4096]
            del words
            if len(set(part.tolist())) != 1:
                wrong.append((number, step))

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
