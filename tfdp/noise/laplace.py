"""Standard Laplace draws from random words."""

import tensorflow as tf

from tfdp.noise.gaussian import uniforms_from_words

WORDS = 3


def laplace_from_words(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns draws with density exp(-|x|) / 2: one from every column of words.

    The quantile function of tensorflow-probability is evaluated at u / 2, in the lower half, where
    small numbers have all their digits; the sign is a bit that u does not use.

    Guarantees:
        Draws reach 64.4 in size, which a true draw passes with probability 2^-93.

    Args:
        words: uint32 [3, ...], uniform and independent.
        dtype: float32 or float64; the draw is made in float64.

    Raises:
        TypeError: `dtype` is neither.
    """
    # Imported when the first draw is made: it takes a second, and most queries need none.
    import tensorflow_probability as tfp

    if tf.as_dtype(dtype) not in (tf.float32, tf.float64):
        raise TypeError(f"Noise is drawn in float32 or float64. Received: dtype={dtype!r}.")
    standard = tfp.distributions.Laplace(tf.constant(0.0, tf.float64), 1.0)
    below = standard.quantile(uniforms_from_words(words) / 2)
    sign = tf.bitcast(words[1], tf.int32) < 0
    return tf.cast(tf.where(sign, below, -below), dtype)
