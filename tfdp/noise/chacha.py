"""Random words on a GPU: ChaCha20, under a key from the host.

A host fills words with AES several times faster than it can send them to a GPU, and a GPU has no
instructions for AES. ChaCha20 is additions, exclusive ors and rotations, which every device has: so
the key alone is sent.
"""

import tensorflow as tf

KEY_WORDS = 8
BLOCK_WORDS = 16
# The number of a block has 32 bits.
MOST_BLOCKS = 2**32 - 1

_CONSTANTS = [int.from_bytes(b"expand 32-byte k"[i : i + 4], "little") for i in range(0, 16, 4)]
_DOUBLE_ROUNDS = 10


def on_gpu() -> bool:
    """Returns whether TensorFlow sees a GPU, on which noise is needed then."""
    return bool(tf.config.get_visible_devices("GPU"))


def keystream(key: tf.Tensor, blocks: int | tf.Tensor) -> tf.Tensor:
    """Returns the ChaCha20 keystream of blocks 0, 1, ... with a nonce of zeros.

    Args:
        key: uint32 [KEY_WORDS], used for this call only: the same key gives the same words.
        blocks: How many blocks; an integer, or a scalar of any integer dtype.

    Returns:
        uint32 [BLOCK_WORDS * blocks]: the first words of all blocks, then the second ones, ...

    References:
        Bernstein 2008, "ChaCha, a variant of Salsa20"; RFC 8439, section 2.3.
    """
    # TensorFlow makes int64 ranges on a GPU, and others on the host.
    return _keystream(key, tf.range(tf.cast(blocks, tf.int64)))


@tf.function(
    input_signature=[tf.TensorSpec([KEY_WORDS], tf.uint32), tf.TensorSpec([None], tf.int64)],
    jit_compile=True,
    autograph=False,
)
def _keystream(key: tf.Tensor, counters: tf.Tensor) -> tf.Tensor:
    counters = tf.cast(counters, tf.uint32)
    zeros = tf.zeros_like(counters)
    constants = tf.stack([zeros + tf.constant(word, tf.uint32) for word in _CONSTANTS])
    keys = [tf.stack([zeros + word for word in tf.unstack(part)]) for part in tf.split(key, 2)]
    # The four rows of the state, each of them [4, blocks].
    state = (constants, *keys, tf.stack([counters, zeros, zeros, zeros]))

    # A loop: unrolled, XLA would compute the same rounds anew for each word of the result.
    def double_round(i, *rows):
        a, b, c, d = _quarter_rounds(*rows)
        # The quarter rounds of diagonals are those of columns once the rows are turned.
        a, b, c, d = _quarter_rounds(a, *_turned((b, c, d), -1))
        return (i + 1, a, *_turned((b, c, d), 1))

    _, *rows = tf.while_loop(
        lambda i, *_: i < _DOUBLE_ROUNDS,
        double_round,
        (0, *state),
        maximum_iterations=_DOUBLE_ROUNDS,
    )
    return tf.reshape(tf.concat([a + b for a, b in zip(state, rows, strict=True)], 0), [-1])


def _turned(rows: tuple[tf.Tensor, ...], sign: int) -> list[tf.Tensor]:
    return [tf.roll(row, sign * k, 0) for k, row in enumerate(rows, start=1)]


def _quarter_rounds(
    a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the quarter rounds of all columns (RFC 8439, section 2.1)."""
    for first, second in ((16, 12), (8, 7)):
        a += b
        d = _rotated(d ^ a, first)
        c += d
        b = _rotated(b ^ c, second)
    return a, b, c, d


def _rotated(words: tf.Tensor, by: int) -> tf.Tensor:
    """Returns words rotated to the left by so many bits."""
    left = tf.bitwise.left_shift(words, tf.constant(by, tf.uint32))
    return left | tf.bitwise.right_shift(words, tf.constant(32 - by, tf.uint32))
