"""Bounds of integers, held to the integers that come out."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.bounds import Bounds, are_places, bounds_of
from tfdp.gradients.static_values import static_value

K = keras.ops
ANY = tf.int32.min, tf.int32.max


def whole(x):
    """Whole numbers of any value."""
    return tf.bitcast(x, tf.int32)


def clip(x, least=1, largest=3):
    return tf.clip_by_value(whole(x), least, largest)


def from_the_end(i, size):
    return tf.where(i < 0, i + size, i)


# name -> (function of records [n, 4], bounds of what it gives)
BOUNDED = {
    "argmax": (lambda x: tf.argmax(x, 1), (0, 3)),
    "argmin": (lambda x: tf.argmin(x[:, :2], -1), (0, 1)),
    "bins": (lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0]), (0, 3)),
    "clip": (clip, (1, 3)),
    "clip_and_constants": (lambda x: clip(x) * 0 + tf.range(200)[:, None, None], (0, 199)),
    "codes": (lambda x: tf.one_hot(clip(x), 4, on_value=5, off_value=-2), (-2, 5)),
    "constants": (lambda x: tf.range(200) - 7, (-7, 192)),
    "counted_backwards": (lambda x: tf.range(200, 5, -1), (6, 200)),
    "difference": (lambda x: clip(x) - clip(x, -5, 7), (-6, 8)),
    "from_the_end": (lambda x: from_the_end(tf.argmax(x, 1) - 4, 4), (0, 3)),
    "from_the_end_too_far": (lambda x: from_the_end(tf.argmax(x, 1) - 5, 4), (-5, 2)),
    "from_the_end_of_others": (
        lambda x: tf.where(clip(x) < 0, clip(x, -4, -1) + 4, clip(x, 0, 3)),
        (0, 3),
    ),
    "from_the_end_by_another_number": (
        lambda x: tf.where((i := clip(x, -4, 3)) < 1, i + 4, i),
        (-4, 7),
    ),
    "highest": (lambda x: tf.maximum(whole(x), 7), (7, ANY[1])),
    "joined": (lambda x: tf.concat([clip(x), clip(x, -3, 0)], 1), (-3, 3)),
    "joined_to_any": (lambda x: tf.concat([clip(x), whole(x)], 1), None),
    "largest": (lambda x: tf.math.top_k(x, 2)[1], (0, 3)),
    "largest_of_integers": (lambda x: tf.math.top_k(clip(x), 2)[0], (1, 3)),
    "lowest": (lambda x: tf.minimum(whole(x), 7), (ANY[0], 7)),
    "moved": (
        lambda x: tf.squeeze(
            tf.roll(tf.reverse(tf.transpose(clip(x)[:, None], [0, 2, 1]), [1]), 1, 1), 2
        ),
        (1, 3),
    ),
    "narrow": (lambda x: tf.cast(clip(x, 0, 127), tf.int8), (0, 127)),
    "narrower_than_they_are": (lambda x: tf.cast(clip(x, 0, 128), tf.int8), None),
    "negative": (lambda x: -clip(x), (-3, -1)),
    "of_floats": (lambda x: tf.cast(tf.clip_by_value(x, 0.0, 3.0), tf.int32), None),
    "of_truth": (lambda x: tf.cast(x > 0, tf.int32), (0, 1)),
    "order": (lambda x: tf.argsort(x, 1), (0, 3)),
    "parts": (
        lambda x: tf.split(tf.stack(tf.unstack(clip(x), axis=1), 1)[:, 1:3], 2, 1)[1],
        (1, 3),
    ),
    "product": (lambda x: clip(x, -5, 3) * -2 + clip(x, -1, 2) * clip(x, -3, 4), (-12, 18)),
    "product_that_does_not_fit": (lambda x: clip(x, 0, 2**16) * 2**15, None),
    "quotient": (lambda x: clip(x, -7, 9) // tf.range(2, 6), (-4, 4)),
    "quotient_of_a_negative": (lambda x: clip(x) // -2, None),
    "remainder": (lambda x: whole(x) % 5, (0, 4)),
    "remainder_of_a_negative": (lambda x: whole(x) % -5, None),
    "remainder_of_several": (lambda x: whole(x) % tf.range(1, 5), (0, 3)),
    "size": (lambda x: tf.abs(clip(x, -7, 3)) + tf.abs(clip(x, -7, -3)), (3, 14)),
    "size_that_does_not_fit": (lambda x: tf.abs(tf.minimum(whole(x), 0)), None),
    "sum": (lambda x: clip(x) + clip(x, -5, 7) + 10, (6, 20)),
    "sum_that_does_not_fit": (lambda x: tf.maximum(whole(x), 7) + 1, None),
    "table": (lambda x: tf.gather(tf.constant([[3, 9, -1, 4]] * 40), clip(x), axis=1), (-1, 9)),
    "tiled": (lambda x: tf.tile(tf.broadcast_to(clip(x)[:, :1], tf.shape(x)), [1, 2]), (1, 3)),
    "unknown": (whole, None),
}
# NaN, infinities, what is too large for an integer, and bits that are one.
HARD = [np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0, 1.0, -1.0, 2.5e-45]


def records():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)) * 10.0 ** rng.integers(-3, 12, size=(400, 1))
    hard = rng.random(x.shape) < 0.3
    x[hard] = rng.choice(HARD, size=hard.sum())
    return x.astype("float32")


def traced(function):
    """Returns the function of records, and the bounds of what it gives."""
    found = []

    def run(x):
        y = function(x)
        found.append(bounds_of(y))
        return y

    run = tf.function(run, autograph=False)
    return run.get_concrete_function(tf.TensorSpec([None, 4], tf.float32)), found[0]


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_integers_lie_between_their_bounds(name):
    function, expected = BOUNDED[name]
    function, bounds = traced(function)
    assert bounds == (None if expected is None else Bounds(*expected))
    if bounds is not None:
        y = function(tf.constant(records())).numpy().astype("int64")
        assert bounds.least <= y.min() and y.max() <= bounds.largest


def _programs(rng, count):
    """Yields functions of [n, 4] that give integers, by random operations."""

    def number():
        return int(rng.integers(-6, 7))

    starts = [
        lambda x: whole(x),
        lambda x: tf.argmax(x, 1, output_type=tf.int32)[:, None],
        lambda x: tf.argsort(x, 1),
        lambda x: tf.cast(x > number(), tf.int32),
        lambda x: tf.constant(rng.integers(*ANY, size=(1, 4)), tf.int32),
        lambda x: tf.range(-70, 70, 35)[None],
        lambda x: tf.cast(whole(x) % 7, tf.int32),
    ]
    steps = [
        lambda i, j: i + j,
        lambda i, j: i - j,
        lambda i, j: -i,
        lambda i, j: i + number(),
        lambda i, j: i * j,
        lambda i, j: i // (abs(number()) + 1),
        lambda i, j: tf.abs(i),
        lambda i, j: tf.minimum(i, j),
        lambda i, j: tf.maximum(i, number()),
        lambda i, j: tf.clip_by_value(i, number(), number() + 6),
        lambda i, j: i % (abs(number()) + 1),
        lambda i, j: tf.where(i < number(), i, j),
        lambda i, j: from_the_end(i, number()),
        lambda i, j: from_the_end(j, i),
        lambda i, j: tf.cast(tf.cast(i, tf.int8), tf.int32),
        lambda i, j: tf.cast(tf.cast(i, tf.uint16), tf.int32),
        lambda i, j: tf.concat([i, j], 1)[:, -4:],
        lambda i, j: tf.transpose(tf.transpose(i)),
        lambda i, j: tf.one_hot(i, 4, number(), number(), dtype=tf.int32)[:, 0],
    ]
    for _ in range(count):
        start = rng.integers(len(starts), size=2)
        chosen = rng.integers(len(steps), size=rng.integers(7))

        def program(x, start=start, chosen=chosen):
            i, j = (tf.broadcast_to(starts[s](x), tf.shape(x)) for s in start)
            for s in chosen:
                i, j = j, steps[s](i, j)
            return j

        yield program


def test_integers_of_random_programs_lie_between_their_bounds():
    x = tf.constant(records())
    bounded = 0
    for program in _programs(np.random.default_rng(0), 400):
        function, bounds = traced(program)
        if bounds is not None and bounds != Bounds(*ANY):
            y = function(x).numpy().astype("int64")
            assert bounds.least <= y.min() and y.max() <= bounds.largest
            bounded += 1
    assert bounded > 150


def test_bounds_of_what_is_used_many_times_are_found_at_once():
    def doubled(x):
        i = clip(x, 0, 0)
        for _ in range(200):
            i = i + i
        return i

    assert traced(doubled)[1] == Bounds(0, 0)


@pytest.mark.parametrize(
    ("least", "largest", "size", "fit"),
    [(0, 3, 4, True), (0, 4, 4, False), (-1, 3, 4, False), (0, 3, None, False), (0, 0, 1, True)],
)
def test_places_are_those_along_an_axis(least, largest, size, fit):
    found = []
    traced(lambda x: found.append(are_places(clip(x, least, largest), size)) or x)
    traced(lambda x: found.append(are_places(whole(x), size)) or x)
    assert found == [fit, False]


def test_floats_and_nothing_have_no_bounds():
    assert bounds_of(tf.constant(1.0)) is None
    assert bounds_of(tf.zeros([0], tf.int32)) is None
    assert bounds_of(tf.constant([3, -1])) == Bounds(-1, 3)


def test_nothing_is_known_of_records_whose_values_were_known_before():
    """Whatever the engine does must not depend on them."""
    ids, found = tf.constant([3, 1]), []

    def run():
        records = tf.compat.v1.placeholder_with_default(ids, [None])
        found.extend([static_value(records + 1), bounds_of(records), bounds_of(records + 1)])
        found.append(are_places(records, 4))
        return records

    tf.function(run, autograph=False).get_concrete_function()
    assert found == [None, None, None, False]
