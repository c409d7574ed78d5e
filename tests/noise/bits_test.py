import os
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tfdp.noise import bits

# NIST SP 800-38A, appendix F.5.5 (CTR-AES256.Encrypt): key, first counter block, output blocks.
KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
COUNTER = 0xF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF
OUTPUT_BLOCKS = [
    "0bdf7df1591716335e9a8b15c860c502",
    "5a6e699d536119065433863c8f657b94",
    "1bc12c9c01610d5d0d8bd6a3378eca62",
    "2956e1c8693536b1bee99c73a31576b6",
]


def _counter_mode(key, first, blocks):
    """SP 800-38A, section 6.5, one block after another."""
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counters = [(first + i) % 2**128 for i in range(blocks)]
    return b"".join(encryptor.update(counter.to_bytes(16, "big")) for counter in counters)


def _keystream(key, length):
    out = np.full(length, 0xA5, np.uint8)
    bits.keystream(key, out)
    return out.tobytes()


def test_oracle_gives_the_vectors_of_nist():
    assert _counter_mode(KEY, COUNTER, 4) == bytes.fromhex("".join(OUTPUT_BLOCKS))


@pytest.mark.parametrize("key", [KEY, bytes(32), bytes(range(32))], ids=["nist", "zero", "range"])
def test_keystream_is_counter_mode(key):
    # Long enough for several parts, the last of them odd.
    length = 3 * 2**18 + 16 * 5 + 3
    expected = _counter_mode(key, 2, -(-length // 16))[:length]
    assert _keystream(key, length) == expected
    assert _keystream(KEY[:-1] + b"\0", length) != expected


def test_keystream_is_that_of_gcm_test_case_14():
    # McGrew, Viega, "The Galois/Counter Mode of Operation", appendix B: zero key, nonce and text.
    assert _keystream(bytes(32), 16).hex() == "cea7403d4d606b6e074ec5d3baf39d18"


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 2**18 - 1, 2**18, 2**18 + 1])
def test_keystream_overwrites_all_of_an_array_and_nothing_else(length):
    memory = np.zeros(length + 2, np.uint8)
    bits.keystream(KEY, memory[1:-1])
    assert memory[0] == memory[-1] == 0
    assert memory[1:-1].tobytes() == _counter_mode(KEY, 2, length // 16 + 1)[:length]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_keystream_fills_arrays_of_words(dtype):
    out = np.zeros(100, dtype)
    bits.keystream(KEY, out)
    assert out.tobytes() == _keystream(KEY, out.nbytes)


def test_refuses_a_key_of_another_length():
    with pytest.raises(ValueError, match="key must be 32 bytes long. Received 16 bytes."):
        bits.keystream(bytes(16), np.zeros(1, np.uint32))


def test_refuses_a_draw_in_which_the_counter_would_end():
    too_long = np.broadcast_to(np.uint8(0), 2**36 - 31)
    with pytest.raises(ValueError, match="at most 68719476704 bytes"):
        bits.keystream(KEY, too_long)


def test_refuses_an_array_with_gaps():
    with pytest.raises((TypeError, ValueError)):
        bits.keystream(KEY, np.zeros(10, np.uint32)[::2])


def test_system_fill_takes_a_new_key_of_the_operating_system_for_each_call(monkeypatch):
    keys = [bytes([i]) * 32 for i in range(3)]
    asked, given = [], iter(keys)
    monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or next(given))
    for key in keys:
        out = np.zeros(50, np.uint8)
        bits.system_fill(out)
        assert out.tobytes() == _keystream(key, 50)
    assert asked == [32, 32, 32]


def test_system_fill_fails_without_the_operating_systems_generator(monkeypatch):
    def unavailable(size):
        raise NotImplementedError("no generator")

    monkeypatch.setattr(os, "urandom", unavailable)
    with pytest.raises(NotImplementedError):
        bits.system_fill(np.zeros(1, np.uint32))


def _fill(fill, words=8):
    out = np.zeros(words, np.uint32)
    fill(out)
    return out.tobytes()


def test_seeded_fill_repeats_itself_and_never_a_draw():
    left, right = bits.SeededFill(7), bits.SeededFill(7)
    draws = [_fill(left) for _ in range(20)]
    assert draws == [_fill(right) for _ in range(20)]
    others = [_fill(bits.SeededFill(seed)) for seed in (-7, 0, 1, 8, 70, 2**64 + 7, 2**300)]
    assert len({*draws, *others}) == 27


@pytest.mark.parametrize("make", [lambda: bits.system_fill, lambda: bits.SeededFill(1)])
def test_threads_never_share_a_draw(make):
    fill, draws = make(), []

    def work():
        draws.extend(_fill(fill) for _ in range(300))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(draws)) == 8 * 300


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_process_draws_other_bits(in_child):
    children = [in_child(lambda: _fill(bits.system_fill)) for _ in range(3)]
    draws = [*children, _fill(bits.system_fill)]
    assert [len(draw) for draw in draws] == [32] * 4
    assert len(set(draws)) == 4
    # The test can tell: a state that is copied gives the same bits on both sides.
    state = bits.SeededFill(0)
    assert in_child(lambda: _fill(state)) == _fill(state)


def test_bits_are_balanced_and_independent_of_their_neighbours():
    out = np.zeros(10**6 // 8, np.uint8)
    bits.system_fill(out)
    ones = np.unpackbits(out).astype(np.int8)
    signs = 2 * ones - 1

    def is_balanced(signs):
        # Sums of 10^6 signs have standard deviation 1000; 6.2 of them: once in 10^9.
        return abs(np.sum(signs, dtype=np.int64)) < 6200

    assert is_balanced(signs)
    assert all(is_balanced(signs[lag:] * signs[:-lag]) for lag in (1, 2, 8, 32, 128))
    signs[:20_000] = 1
    assert not is_balanced(signs)
    assert not is_balanced(signs[32:] * signs[:-32])


def test_buffered_bits_are_those_of_the_blocks_and_none_is_given_twice():
    asked = []

    def fill(out):
        asked.append(out.nbytes)
        bits.system_fill(out)
        blocks.append(out.copy())

    blocks = []
    buffered = bits.Buffered(fill)
    words = np.empty(1500, np.uint64)
    for place in range(0, 1500, 3):
        buffered(words[place : place + 3])
    assert asked == [4096] * 3
    # 170 draws of three words are in a block; its last two words are left out.
    given = np.concatenate([block.view(np.uint64)[:510] for block in blocks])[:1500]
    np.testing.assert_array_equal(words, given)
    assert len(np.unique(words)) == 1500
    large = np.empty(5000, np.uint8)
    buffered(large)
    assert asked == [4096] * 3 + [5000]


@pytest.mark.parametrize("shape", [(3, 4), (90, 80)], ids=["small", "large"])
def test_buffered_bits_are_written_into_every_kind_of_array(shape):
    # What NumPy makes a row of is a copy for some: the array stayed as it was, without an error.
    buffered = bits.Buffered(bits.system_fill)
    whole = np.zeros(shape, np.uint64)
    for part in (whole, whole.T, whole.T[1:], whole[:, 1], whole[::-1], np.asfortranarray(whole)):
        part[...] = 0
        buffered(part)
        assert len(np.unique(part)) == part.size
        assert np.all(part)


@pytest.mark.parametrize("dtype", [np.bool_, np.float64, np.complex64, object, "S4"])
def test_buffered_bits_are_integers(dtype):
    # Of eight bits as a truth value one in 256 would be False.
    with pytest.raises(TypeError, match="arrays of integers"):
        bits.Buffered(bits.system_fill)(np.zeros(3, dtype))
