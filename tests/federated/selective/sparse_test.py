"""Messages: what is written is read, and nothing else is."""

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.federated.selective.sparse import (
    BadMessageError,
    SparseVector,
    decode,
    encode,
    largest,
    number_of,
)


def some(size, indices, value=1.0):
    indices = np.array(sorted(indices), np.int64)
    return SparseVector(size, indices, np.full(len(indices), value, np.float32))


def equal(left, right):
    return left.size == right.size and all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(left[1:], right[1:], strict=True)
    )


@given(st.sets(st.integers(0, 2**31 - 2), max_size=20))
def test_what_is_written_is_read(indices):
    vector = some(2**31 - 1, indices, -0.1)
    assert equal(decode(encode(vector), 2**31 - 1), vector)


@pytest.mark.parametrize("size, length", [(0, 1), (127, 1), (128, 2), (2**14, 3), (2**28, 5)])
def test_a_gap_has_so_many_bytes(size, length):
    # A gap of 127 has seven bits; the header has nine bytes, the number four.
    assert len(encode(some(size + 1, [size]))) == 9 + 4 + length


def test_every_message_that_is_read_is_the_one_that_would_be_written():
    """Messages of two bytes of indices: each vector has one form."""
    read = 0
    for count, low, high in itertools.product(
        (1, 2), range(256), (0, 1, 2, 3, 126, 127, 128, 129, 255)
    ):
        header = struct.pack("<cII", b"s", 300, count)
        message = header + bytes(4 * count) + bytes([low, high])
        try:
            vector = decode(message, 300)
        except BadMessageError:
            continue
        read += 1
        assert encode(vector) == message
    # One index from 128 to 299; two gaps below 128, of which six are tried for the second.
    assert read == 300 - 128 + 128 * 6


def test_what_is_no_message_is_refused():
    message = encode(some(1000, [1, 500, 999]))
    changed = {
        "cut": message[:-1],
        "longer": message + b"\0",
        "another format": b"t" + message[1:],
        "another length": message[:1] + struct.pack("<I", 1001) + message[5:],
        "a number more": message[:5] + struct.pack("<I", 4) + message[9:],
        "a huge number": message[:5] + struct.pack("<I", 2**32 - 1) + message[9:],
        "NaN": encode(some(1000, [3], np.nan)),
        "infinity": encode(some(1000, [3], np.inf)),
        "index out of range": struct.pack("<cII", b"s", 1000, 1) + bytes(4) + b"\xe8\x07",
        "an index of 42 bits": struct.pack("<cII", b"s", 1000, 1)
        + bytes(4)
        + b"\xff" * 5
        + b"\x01",
        "an index of 35 bits": struct.pack("<cII", b"s", 1000, 1)
        + bytes(4)
        + b"\xff" * 4
        + b"\x7f",
        "empty": b"",
    }
    assert struct.pack("<cII", b"s", 1000, 1) + bytes(4) + b"\xe7\x07" == encode(
        some(1000, [999], 0)
    )
    for name, bad in changed.items():
        with pytest.raises(BadMessageError):
            raise AssertionError(name, decode(bad, 1000))
    with pytest.raises(BadMessageError, match="all numbers"):
        decode(message, None)


def test_any_bytes_are_read_or_refused():
    read = []

    @given(st.binary(max_size=40))
    def check(message):
        for text in (message, struct.pack("<cII", b"s", 100, len(message) // 5) + message):
            try:
                vector = decode(text, 100)
            except BadMessageError:
                continue
            assert encode(vector) == text
            read.append(vector)

    check()
    assert any(len(vector.indices) for vector in read)


def test_indices_that_repeat_cannot_be_written():
    for indices in ([3, 3], [4, 3]):
        with pytest.raises(ValueError, match="ascending"):
            encode(SparseVector(9, np.array(indices), np.ones(2, np.float32)))


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 12))
def test_largest_is_the_head_of_a_stable_sort(values, count):
    values = np.array(values, np.float64)
    count = min(count, len(values))
    slow = sorted(sorted(range(len(values)), key=lambda i: (-values[i], i))[:count])
    assert largest(values, count).tolist() == slow


def test_whole_fractions_are_not_lost_to_rounding():
    assert number_of(0.29, 100) == 29  # 0.29 * 100 is 28.999999999999996.
    assert number_of(0.1, 109_386) == 10_938
    assert (number_of(0.0, 7), number_of(1.0, 7), number_of(1e-9, 7)) == (0, 7, 0)
