"""Words that a GPU expands from a key. Whatever makes them, they are the same: here it is a CPU."""

import numpy as np
import pytest
import tensorflow as tf
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from tests.noise.stages import Counting, assert_all_differ
from tfdp.noise import SystemRandomSource, bits, chacha, gaussian, requests, staged, staging
from tfdp.query import GaussianSumQuery

# RFC 8439, appendix A.1: key, number of the block, keystream; the nonce is zero in all of them.
VECTORS = {
    "first": (
        bytes(32),
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    "second": (
        bytes(32),
        1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    "third": (
        bytes(31) + b"\1",
        1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    "fourth": (
        b"\0\xff" + bytes(30),
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
}
LARGE = [(2**15,), (301, 333), (2**15 + 17,), (200, 5, 40)]


def _blocks(key, count):
    """The keystream as bytes, one block after another."""
    words = chacha.keystream(tf.constant(np.frombuffer(key, np.uint32)), count)
    return words.numpy().reshape(chacha.BLOCK_WORDS, count).T.tobytes()


def _oracle(key, count):
    """The keystream of another implementation, in the order of `chacha.keystream`."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    blocks = np.frombuffer(cipher.update(bytes(64 * count)), np.uint32)
    return blocks.reshape(count, chacha.BLOCK_WORDS).T.ravel()


@pytest.fixture
def gpu(monkeypatch):
    """A machine whose noise is needed on a GPU, as far as anybody asks."""
    monkeypatch.setattr(chacha, "on_gpu", lambda: True)


@pytest.mark.parametrize("key, number, expected", VECTORS.values(), ids=VECTORS)
def test_blocks_are_those_of_rfc_8439(key, number, expected):
    assert _blocks(key, 3)[64 * number : 64 * (number + 1)].hex() == expected


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 2**12 + 1])
def test_keystream_is_that_of_another_implementation(count):
    key = np.random.default_rng(count).bytes(32)
    np.testing.assert_array_equal(
        chacha.keystream(tf.constant(np.frombuffer(key, np.uint32)), count), _oracle(key, count)
    )


def test_only_a_gpu_asks_for_it(monkeypatch):
    assert chacha.on_gpu() == bool(tf.config.list_physical_devices("GPU"))
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [f"a {kind}"])
    assert chacha.on_gpu()


def test_words_of_a_draw_are_the_keystream_of_its_key(gpu):
    count = staging._EXPANDED + 5
    words = staging.uniform(bits.SeededFill(3), count)
    key = np.empty(chacha.KEY_WORDS, np.uint32)
    bits.SeededFill(3)(key)
    blocks = -(-count // chacha.BLOCK_WORDS)
    np.testing.assert_array_equal(words, _oracle(key.tobytes(), blocks)[:count])


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_noise_of_a_stage_is_made_of_the_words_of_one_key(gpu, dtype):
    source = Counting()

    @tf.function
    def noise():
        return staged(lambda: [source.normal(shape, dtype) for shape in LARGE])

    drawn = noise()
    assert source.draws == [chacha.KEY_WORDS]
    key = np.empty(chacha.KEY_WORDS, np.uint32)
    Counting()._fill(key)
    rows = gaussian.words_per_pair(dtype)
    counts = [rows * -(-np.prod(shape[:-1], dtype=int) // 2) * shape[-1] for shape in LARGE]
    counts[0], counts[2] = rows * 2**14, rows * (2**14 + 9)
    counts[3] = rows * 20_000  # Its rows are too short for loops of their own.
    starts = np.cumsum([0] + [-(-count // 16) for count in counts])
    words = _oracle(key.tobytes(), int(starts[-1]))
    for draw, shape, start, count in zip(drawn, LARGE, starts[:-1], counts, strict=True):
        mine = tf.reshape(words[16 * start : 16 * start + count], [rows, -1])
        row = shape[-1] if shape == (301, 333) else 1
        made = gaussian.normals_from_words(
            tf.reshape(mine, [rows, -1, row]), dtype, int(np.prod(shape)) // row
        )
        np.testing.assert_allclose(tf.reshape(draw, [-1]), tf.reshape(made, [-1]), rtol=1e-6)


@pytest.mark.parametrize("mode", ["eager", "graph", "staged"])
@pytest.mark.parametrize("draw", ["normal", "laplace"])
def test_no_word_is_given_twice(gpu, mode, draw):
    source = SystemRandomSource()

    def noise():
        return [getattr(source, draw)(shape, tf.float64) for shape in LARGE]

    function = {"eager": noise, "graph": tf.function(noise)}.get(mode)
    function = function or tf.function(lambda: staged(noise))
    assert_all_differ(*function(), *function())


def test_each_draw_has_a_key_of_its_own(gpu):
    source = Counting()
    function = tf.function(lambda: source.normal([2**15], tf.float32))
    for _ in range(3):
        function()
        source.normal([2**15], tf.float32)
    assert source.draws == [chacha.KEY_WORDS] * 6


def test_small_draws_and_whole_numbers_are_the_hosts(gpu):
    source = Counting()
    source.normal([100], tf.float32)
    source.integers([2**15], 7)
    source.discrete_gaussian([2**15], 1)
    assert chacha.KEY_WORDS not in source.draws
    assert source.draws[0] == gaussian.words_per_pair(tf.float32) * 50


def test_a_stage_that_cannot_be_one_draws_all_the_same(gpu):
    source = SystemRandomSource()

    @tf.function
    def noise():
        def fn():
            large = source.normal([2**15], tf.float64)
            body = lambda i, x: (i + 1, x + source.normal([2**15], tf.float64))  # noqa: E731
            return large, tf.while_loop(lambda i, x: i < 2, body, (0, tf.zeros_like(large)))[1]

        return staged(fn)

    first, second = noise(), noise()
    assert_all_differ(*first, *second)


@pytest.mark.parametrize("draw", ["normal", "laplace"])
def test_every_turn_of_a_loop_in_a_stage_has_words_of_its_own(gpu, draw):
    source = SystemRandomSource()

    @tf.function
    def noise():
        def fn():
            def body(i, rows):
                return i + 1, rows.write(i, getattr(source, draw)([2**15], tf.float64))

            rows = tf.TensorArray(tf.float64, 2)
            return tf.while_loop(lambda i, _: i < 2, body, (0, rows))[1].stack()

        return staged(fn)

    assert_all_differ(*noise(), *noise())


def test_sources_of_one_stage_have_keys_of_their_own(gpu):
    one, two = Counting(1), Counting(2)
    noise = tf.function(
        lambda: staged(lambda: [s.normal([2**15], tf.float64) for s in (one, two, one)])
    )
    assert_all_differ(*noise())
    assert one.draws == two.draws == [chacha.KEY_WORDS]


def test_noise_of_a_query_is_normal_and_of_its_size(gpu):
    query = GaussianSumQuery(2.0, 6.0)
    state = query.initial_global_state()

    @tf.function
    def noised():
        return query.get_noised_result([tf.zeros([400, 300])], state)[0]

    draws = np.concatenate([np.ravel(noised()[0]) for _ in range(3)]).astype(np.float64)
    assert stats.kstest(draws, stats.norm(0, 6.0).cdf).pvalue > 1e-6
    assert stats.kstest(draws, stats.norm(0, 6.3).cdf).pvalue < 1e-6


def test_refuses_more_words_than_the_counter_has_blocks():
    stream = requests.Keystream(bits.system_fill)
    with pytest.raises(ValueError, match="where the counter ends"):
        stream.take(chacha.BLOCK_WORDS * 2**32, staging.draw)


@pytest.mark.parametrize("map_rows", [tf.map_fn, tf.vectorized_map])
def test_draws_differ_between_mapped_rows(gpu, map_rows):
    source = SystemRandomSource()
    rows = tf.function(
        lambda: map_rows(
            lambda row: row + source.normal([2**15], tf.float64), tf.zeros([3, 1], tf.float64)
        )
    )
    assert_all_differ(rows(), rows())


def test_draws_differ_in_a_data_set(gpu):
    source = SystemRandomSource()
    data = tf.data.Dataset.range(2).map(lambda i: source.normal([2**15], tf.float64))
    assert_all_differ(*[element.numpy() for element in data.repeat(2)])
