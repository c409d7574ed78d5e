"""How far one unit can move a sum, by the way examples become records."""

import pytest
import tensorflow as tf

from tfdp.keras.microbatching import Microbatching


def test_examples_that_are_records_move_a_sum_once():
    microbatching = Microbatching(None, "example")
    assert microbatching.sensitivity_factor == 1
    assert microbatching.assign(tf.constant(6), None) == (None, None)
    assert not microbatching.set_batch_size(17)
    assert not microbatching.spans_replicas


def test_example_in_a_microbatch_moves_a_clipped_mean_twice():
    microbatching = Microbatching(2, "example")
    assert microbatching.sensitivity_factor == 2  # As long as nothing is known.
    assert microbatching.set_batch_size(6)
    assert microbatching.sensitivity_factor == 2
    assert microbatching.set_batch_size(2)
    assert microbatching.sensitivity_factor == 1  # One example each.
    assert not microbatching.set_batch_size(2)


def test_microbatch_that_is_the_unit_moves_it_once_and_holds_consecutive_examples():
    microbatching = Microbatching(2, "microbatch")
    microbatching.set_batch_size(6)
    assert microbatching.sensitivity_factor == 1
    ids, number = microbatching.assign(tf.constant(6), None)
    assert ids.numpy().tolist() == [0, 0, 0, 1, 1, 1]
    assert int(number) == 2


@pytest.mark.parametrize("size", [5, None])
def test_units_need_batches_that_they_divide(size):
    with pytest.raises(ValueError, match="num_microbatches divides"):
        Microbatching(2, "microbatch").set_batch_size(size)


def test_ids_are_for_microbatches_only():
    with pytest.raises(ValueError, match="record of its own"):
        Microbatching(None, "example").assign(tf.constant(2), tf.constant([0, 1]))
    with pytest.raises(ValueError, match="set_batch_size first"):
        Microbatching(2, "microbatch").assign(tf.constant(2), None)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((2, "user"), ValueError), ((None, "microbatch"), ValueError), ((0, "example"), ValueError)]
    + [((2.5, "example"), TypeError)],
)
def test_bad_arguments(arguments, error):
    with pytest.raises(error):
        Microbatching(*arguments)
