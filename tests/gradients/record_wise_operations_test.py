"""Which operations are known to keep the records apart."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.record_wise_operations import Kinds, MixesError
from tfdp.gradients.static_values import static_value

# Smaller ones would be copied into the graph.
OUTSIDE = tf.range(200.0)

K = keras.ops

APART = {
    "attention": lambda x: K.dot_product_attention(*[x[:, :, tf.newaxis]] * 3),
    "bins": lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 1.0]),
    "bits": lambda x: tf.bitcast(tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), -2), x.dtype),
    "diagonals": lambda x: (
        tf.linalg.diag(x[..., :3], k=1)
        + tf.linalg.set_diag(x, tf.linalg.diag_part(x) * 2)[:, None]
        + tf.reduce_sum(tf.linalg.diag_part(x, k=(-1, 1)), 1)[:, None, None]
        + tf.linalg.diag(x[:, :3], k=(-1, 1), num_rows=4)[:, None]
    ),
    "identity_of_each": lambda x: x + tf.eye(4, batch_shape=[tf.shape(x)[0]]),
    "moved": lambda x: tf.transpose(tf.expand_dims(tf.transpose(x, [2, 0, 1]), 1), [2, 3, 1, 0]),
    "moved_and_made_smaller": lambda x: tf.squeeze(tf.transpose(x[:, :1], [1, 0, 2]), 0),
    "moved_and_split": lambda x: tf.transpose(
        tf.split(tf.transpose(x, [1, 0, 2]), 2, 0)[1], [1, 0, 2]
    ),
    "moved_and_reshaped": lambda x: tf.transpose(
        tf.reshape(tf.reshape(tf.transpose(x, [1, 0, 2]), [2, 2, tf.shape(x)[0], 4]), [4, -1, 4]),
        [1, 0, 2],
    ),
    "moved_and_summed": lambda x: tf.reduce_sum(tf.transpose(x, [1, 0, 2]), 0),
    "moved_and_taken_apart": lambda x: tf.unstack(tf.transpose(x, [1, 2, 0]), axis=1)[3][0][
        :, tf.newaxis
    ],
    "parts_of_a_product": lambda x: sum(
        tf.transpose(tf.reshape(x, [-1, 2, 2, 4]), [2, 0, 1, 3])[i] * (i + 1) for i in range(2)
    ),
    "power": lambda x: x ** x[:, :1] + tf.cast(tf.cast(x, tf.int32) ** [0, 1, 2, 3], x.dtype),
    "power_of_merged": lambda x: tf.reshape(tf.reshape(x, [-1, 4]) ** 2, [-1, 16]),
    "remainder": lambda x: tf.math.floormod(x, 0.3) + x // x[:, :1],
    "remainder_of_integers": lambda x: tf.cast(x, tf.int32) % 3 // tf.constant([1, 2, 3, -4]),
    "patches": lambda x: (
        K.image.extract_patches(x[..., tf.newaxis], 2)
        + tf.image.extract_patches(
            x[..., tf.newaxis], [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"
        )
    ),
    "resized": lambda x: tf.image.resize(x[..., tf.newaxis], [2, 7]),
    "sorted": lambda x: tf.sort(x, axis=-1),
    "spectrum": lambda x: tf.signal.irfft(tf.signal.rfft(x, [3]), [4]),
    "spectrum_along_three_axes": lambda x: tf.signal.irfft3d(tf.signal.rfft3d(x[..., None])),
    "spectrum_along_two_axes": lambda x: tf.math.real(tf.signal.fft2d(tf.complex(x, x))),
    "taken_along_an_axis": lambda x: K.take_along_axis(x, K.argsort(x, axis=1), axis=1),
    "taken_along_an_axis_for_all": lambda x: K.take_along_axis(x, K.argmax(x, 1)[:, None], axis=1),
    "taken_along_an_axis_of_a_table": lambda x: K.take_along_axis(
        tf.reshape(tf.range(16.0), [1, 4, 4]), K.argsort(x, axis=-1), axis=-1
    ),
    "taken": lambda x: K.take(x, [0, -1], axis=1),
    "where_the_largest_is": lambda x: K.one_hot(K.argmax(x, axis=-1), 4),
    "band": lambda x: tf.linalg.band_part(x, 1, 0),
    "bias": lambda x: tf.nn.bias_add(x, tf.ones([4])),
    "constants_from_outside": lambda x: x * tf.reduce_sum(OUTSIDE),
    "constants_met": lambda x: x * tf.reshape(tf.range(16.0), [1, 4, 4]),
    "cut_as_far_as_they_go": lambda x: tf.strided_slice(x, [0, 1, 0], tf.shape(x), [1, 2, 1]),
    "cut_for_all": lambda x: tf.strided_slice(x, [0, 1, 0], [tf.shape(x)[0], 3, 2]),
    "convolved": lambda x: tf.nn.conv2d(x[:, :, tf.newaxis], tf.ones([1, 1, 4, 2]), 1, "SAME"),
    "convolved_along_one_axis": lambda x: K.conv(x, tf.ones([2, 4, 3]), strides=2),
    "convolved_along_three_axes": lambda x: tf.nn.conv3d(
        x[:, :, tf.newaxis, tf.newaxis], tf.ones([2, 1, 1, 4, 1]), [1] * 5, "VALID"
    ),
    "counted_ones": lambda x: x + tf.fill([tf.shape(x)[0], 1, 4], 2.0),
    "cumulative": lambda x: tf.cumsum(x, -1),
    "dots": lambda x: x[..., 0] + x[..., tf.newaxis, 1:][..., 0, 0],
    "einsum": lambda x: tf.einsum("bij,bkj->bik", x, x),
    "einsum_with_constants": lambda x: tf.einsum("bij,jk->bki", x, tf.ones([4, 2])),
    "einsum_with_dots": lambda x: tf.einsum("...ij,kj->...ki", x, tf.ones([2, 4])),
    "gathered": lambda x: tf.gather(x, [2, 0], axis=1),
    "gathered_at_places_of_its_own": lambda x: tf.gather(x, tf.argsort(x, 1), axis=1, batch_dims=1),
    "gathered_at_the_last_places": lambda x: tf.gather(
        x, tf.math.top_k(x, 2)[1], axis=-1, batch_dims=-1
    ),
    "gathered_from_a_table": lambda x: tf.gather(tf.eye(4), tf.cast(x, tf.int32) % 4),
    "gathered_from_rows": lambda x: tf.reshape(
        tf.gather(
            tf.reshape(x, [-1, 4]),
            tf.argmax(tf.reshape(x, [-1, 4]), 1),
            batch_dims=1,
        ),
        [-1, 4],
    ),
    "hot": lambda x: tf.one_hot(tf.cast(x, tf.int32), 3),
    "positions_and_channels": lambda x: tf.nn.space_to_depth(
        tf.nn.depth_to_space(x[:, :, tf.newaxis], 2), 2
    ),
    "ensured": lambda x: tf.ensure_shape(x, [None, 4, 4]),
    "last_axis": lambda x: tf.reduce_sum(x, -1),
    "mask_for_each": lambda x: (
        x
        * tf.tile(
            tf.reshape(tf.range(16.0), [1, 4, 4]),
            tf.concat([tf.expand_dims(tf.shape(x)[0], -1), tf.constant([1, 1])], 0),
        )
    ),
    "merged_codes": lambda x: tf.reshape(
        tf.one_hot(tf.argmin(tf.reduce_sum(tf.reshape(x, [-1, 2, 2]) ** 2, 2), 1), 3),
        [tf.shape(x)[0], 4, 3],
    ),
    "token_for_each": lambda x: tf.concat(
        [tf.repeat(tf.reshape(tf.range(4.0), [1, 1, 4]), tf.shape(x)[0], axis=0), x], 1
    ),
    "kept_rows": lambda x: tf.reshape(x, [-1, 16]),
    "largest": lambda x: tf.math.top_k(x, 2)[0],
    "merged_and_back": lambda x: tf.reshape(
        tf.matmul(tf.reshape(x, [-1, 4]) + tf.ones([4]), tf.ones([4, 2])), [tf.shape(x)[0], 4, 2]
    ),
    "merged_by_length": lambda x: tf.reshape(tf.tanh(tf.reshape(x, [-1, 2])), [-1, 16]),
    "padded": lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 0]], mode="REFLECT"),
    "merged_and_back_by_both_shapes": lambda x: tf.reshape(
        tf.reshape(x, [-1, 4]), [tf.shape(x)[0], 4, tf.shape(tf.reshape(x, [-1, 4]))[1]]
    ),
    "part": lambda x: tf.slice(x, [0, 1, 0], [-1, 2, 4]),
    "part_of_all": lambda x: tf.slice(x, [0, 1, 0], [tf.shape(x)[0], 2, 4]),
    "pooled": lambda x: tf.nn.max_pool1d(
        tf.nn.avg_pool2d(x[..., tf.newaxis], 2, 1, "SAME")[..., 0], 2, 2, "VALID"
    ),
    "pooled_along_three_axes": lambda x: tf.nn.avg_pool3d(
        tf.nn.max_pool3d(x[:, tf.newaxis, ..., tf.newaxis], 2, 1, "SAME"), 1, 2, "VALID"
    ),
    "product": lambda x: tf.matmul(x, x),
    "product_of_constants": lambda x: tf.matmul(tf.ones([2, 4]), x),
    "repeated": lambda x: tf.repeat(x, 2, axis=1),
    "tensordot": lambda x: tf.tensordot(x, tf.ones([4, 4, 3]), [[1, 2], [1, 0]]),
    "tensordot_last": lambda x: tf.tensordot(x, tf.ones([4, 3]), 1),
    "reversed": lambda x: tf.reverse(x, [1]),
    "rolled": lambda x: tf.roll(x, [1, 2], [1, -1]),
    "shape_in_parts": lambda x: tf.reshape(
        x,
        tf.concat([tf.split(tf.shape(x), [1, 2])[0], [4 // tf.split(tf.shape(x), 3)[2][0], 16]], 0),
    ),
    "slice": lambda x: x[:, 1],
    "smooth_unit": lambda x: tf.nn.silu(x),
    "softmax": lambda x: tf.nn.softmax(x),
    "split": lambda x: tf.stack(tf.split(x, 2, axis=-1), axis=1),
    "split_unevenly": lambda x: tf.split(x, [1, 3], axis=1)[1],
    "swapped_positions": lambda x: tf.transpose(x, [0, 2, 1]),
    "stacked_and_brought_back": lambda x: tf.transpose(tf.stack([x[:, 0], x[:, 1]]), [1, 0, 2]),
    "rows_swapped": lambda x: tf.reshape(
        tf.transpose(tf.reshape(x, [-1, 2, 2]), [0, 2, 1])[:, :, None], [-1, 4, 4]
    ),
    "rows_and_back": lambda x: tf.reshape(
        tf.reshape(x, [4 * tf.shape(x)[0], 4]) + 1.0,
        [tf.shape(tf.reshape(x, [-1, 4]))[0] // 4, 4, 4],
    ),
    "table": lambda x: x + tf.tile(tf.ones([1, 1, 4]), [tf.shape(x)[0], 4, 1]),
    "tiled": lambda x: tf.tile(x, [1, 2, 1]),
    "unstacked": lambda x: tf.unstack(x, axis=2)[1],
    "unstacked_lengths": lambda x: tf.reshape(
        tf.reshape(x, [tf.unstack(tf.shape(x))[0], 16]), tf.unstack(tf.shape(x))
    ),
    "which": lambda x: tf.argmax(x, axis=1),
}


@tf.custom_gradient
def swish(x):
    """Has the name of a gradient that is known, and is another."""

    def grad(upstream):
        return upstream - tf.reduce_mean(upstream, 0, keepdims=True)

    grad.__module__ = "tensorflow.python.ops.nn_impl"
    grad.__qualname__ = "swish.<locals>.swish_impl.<locals>.grad"
    return x * tf.sigmoid(x), grad


def nobody_knows(number):
    """Returns a constant integer that is not known when a graph is built."""
    one = tf.raw_ops.PlaceholderWithDefault(input=1.0, shape=[])
    return tf.cast(one, tf.int32) * number


MIXED = {
    "bits_in_parts": lambda x: tf.bitcast(x[:, 0, 0], tf.uint8),
    "bits_put_together": lambda x: tf.bitcast(tf.cast(x[:, 0, :2], tf.int32), tf.int64),
    "all_axes": tf.reduce_sum,
    "along_what_nobody_knows": lambda x: tf.cumsum(x, nobody_knows(0)),
    "another_gradient": swish,
    "band_of_records": lambda x: tf.linalg.band_part(x[:, :, 0], 0, 0),
    "bias_of_records": lambda x: tf.raw_ops.BiasAdd(value=x[:, 0], bias=x[:, 0, 0]),
    "broadcast_to_their_number": lambda x: tf.broadcast_to(
        x[:, 0, :1], [tf.shape(x)[0], tf.shape(x)[0]]
    ),
    "condition": lambda x: tf.cond(tf.reduce_all(x[:, 0, 0] > 0), lambda: x, lambda: -x),
    "cut_along_positions_to_their_number": lambda x: tf.strided_slice(
        x, [0, 0, 0], [tf.shape(x)[0], tf.shape(x)[0], 4]
    ),
    "cut_at_what_is_shape_of_positions": lambda x: tf.strided_slice(
        x, [0, 0, 0], [4, tf.shape(x)[0], 4]
    ),
    "cut_backwards": lambda x: tf.strided_slice(x, [0, 0, 0], tf.shape(x), [-1, 1, 1]),
    "cut_every_second": lambda x: tf.strided_slice(x, [0, 0, 0], tf.shape(x), [2, 1, 1]),
    "cut_from_the_last": lambda x: tf.strided_slice(x, [-1, 0, 0], tf.shape(x)),
    "cut_from_the_second": lambda x: tf.strided_slice(x, [1, 0, 0], tf.shape(x)),
    "cut_to_one": lambda x: tf.strided_slice(x, [0, 0, 0], tf.shape(x), shrink_axis_mask=1),
    "cut_with_dots": lambda x: tf.strided_slice(x, [0, 0], tf.shape(x)[:2], ellipsis_mask=2),
    "cut_with_another_axis": lambda x: tf.strided_slice(
        x, [0, 0], tf.shape(x)[:2], new_axis_mask=1
    ),
    "cumulative": lambda x: tf.cumsum(x, 0),
    "cumulative_negative_axis": lambda x: tf.math.cumprod(x, -3),
    "dots_for_nothing": lambda x: x[:, 0, 0][..., 0],
    "dots_for_no_more": lambda x: x[:, 0][..., :2, 0],
    "diagonal_of_records": lambda x: tf.linalg.diag(x[:, 0, 0]),
    "diagonals_nobody_knows": lambda x: tf.linalg.diag(x[:, :2], k=nobody_knows(1)),
    "diagonal_in_records": lambda x: tf.linalg.diag_part(x[:, :, 0]),
    "diagonal_set_in_records": lambda x: tf.linalg.set_diag(x[:, :, 0], x[:, 0, 0]),
    "draws": lambda x: x * tf.random.uniform(tf.shape(x)),
    "draws_for_all": lambda x: x * tf.random.stateless_uniform([4, 4], [1, 2]),
    "draws_of_kinds_for_all": lambda x: (
        x * tf.cast(tf.random.stateless_categorical(tf.zeros([4, 4]), 4, [1, 2]), x.dtype)
    ),
    "draws_of_tensorflow_for_all": lambda x: x * tf.random.uniform([4, 4]),
    "einsum_over_records": lambda x: tf.einsum("bij,bkj->ik", x, x),
    "einsum_of_records": lambda x: tf.einsum("bij,cij->bc", x, x),
    "einsum_that_moves_them": lambda x: tf.einsum("bij->jib", x),
    "einsum_with_as_many": lambda x: tf.einsum("bij,b->bij", x, tf.ones([4])),
    "einsum_with_dots_for_them": lambda x: tf.einsum("...ij,jk->ik...", x, tf.ones([4, 2])),
    "einsum_with_other_dots": lambda x: tf.einsum("...i,...ij->...j", x[:, 0], x[:, tf.newaxis]),
    "filled_with_a_record": lambda x: tf.fill([tf.shape(x)[0]], tf.reduce_sum(x)),
    "filled_with_their_number": lambda x: (
        x[:, 0, 0] * tf.cast(tf.fill([4], tf.shape(x)[0]), x.dtype)
    ),
    "convolved_by_records": lambda x: tf.nn.conv2d(
        tf.ones([1, 4, 4, 1]), tf.reshape(x, [-1, 4, 1, 4])[:4], 1, "SAME"
    ),
    "convolved_by_themselves": lambda x: tf.nn.conv2d(
        x[..., tf.newaxis], x[:, :, tf.newaxis], 1, "SAME"
    ),
    "convolved_of_one_channel": lambda x: tf.nn.conv2d(
        x[..., tf.newaxis], tf.ones([1, 4, 1, 2]), [1, 1, 2, 1], "VALID"
    ),
    "first_length_by_itself": lambda x: tf.reshape(
        x, [tf.shape(x)[0] * tf.shape(x)[0] // tf.shape(x)[0], 4, 4]
    ),
    "first_length_by_less_than_one": lambda x: tf.reshape(x, [tf.shape(x)[0] * -1 // -1, 4, 4]),
    "first_length_halved": lambda x: tf.reshape(
        tf.reshape(x, [tf.shape(x)[0] // 2, 8, 4]), [-1, 4, 4]
    ),
    "first_length_of_nobody_knows_how_many": lambda x: tf.reshape(
        tf.reshape(x, [tf.shape(x)[0] * nobody_knows(4), 4]), [-1, 4, 4]
    ),
    "first_length_doubled": lambda x: tf.reshape(x, [2 * tf.shape(x)[0], 8]),
    "gathered": lambda x: tf.gather(x, [0]),
    "gathered_by_records": lambda x: tf.gather(x, tf.cast(x[:, 0, 0], tf.int32), axis=1),
    "gathered_for_each": lambda x: tf.gather(x, [[0], [1], [2], [3]], axis=1, batch_dims=1),
    "gathered_from_a_table": lambda x: tf.gather(tf.eye(4), tf.cast(x[:, 0, 0], tf.int32)),
    "gathered_from_a_short_table": lambda x: tf.gather(tf.eye(4), tf.cast(x, tf.int32) % 5),
    "gathered_from_a_table_of_unknown_length": lambda x: tf.gather(
        tf.boolean_mask(tf.eye(4), [True] * 4), tf.cast(x, tf.int32) % 4
    ),
    "gathered_from_others": lambda x: tf.gather(x, tf.cast(x[:, 0, 0], tf.int32) % 1),
    "gathered_from_others_behind": lambda x: tf.gather(
        x, tf.cast(x[:, 0, 0], tf.int32) % 4, axis=1
    ),
    "gathered_from_columns": lambda x: tf.gather(tf.eye(4), tf.argmax(x, 1), axis=1),
    "gathered_along_what_nobody_knows": lambda x: tf.gather(
        x, tf.argsort(x, 1), axis=nobody_knows(1), batch_dims=1
    ),
    "halves": lambda x: tf.split(x, 2, axis=0)[0],
    "hot_in_front": lambda x: tf.one_hot(tf.cast(x[:, 0, 0], tf.int32), 3, axis=0),
    "hot_in_front_of_unknown_depth": lambda x: tf.one_hot(
        tf.cast(x[:, 0, 0], tf.int32), nobody_knows(3), axis=0
    ),
    "largest_of_an_unknown_number": lambda x: tf.math.top_k(x[:, 0, 0], nobody_knows(1))[0],
    "largest_of_records": lambda x: tf.math.top_k(x[:, 0, 0], 1)[0],
    "moved_and_added": lambda x: tf.transpose(tf.transpose(x, [1, 0, 2]) + x, [1, 0, 2]),
    "moved_and_cut": lambda x: tf.transpose(tf.transpose(x, [1, 0, 2])[:, :3], [1, 0, 2]),
    "moved_and_made_smaller_where_it_is_one": lambda x: tf.squeeze(tf.transpose(x, [1, 0, 2])),
    "moved_and_one_taken": lambda x: tf.transpose(x, [1, 0, 2])[:, 0],
    "moved_and_reshaped": lambda x: tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, 4, 4]),
    "moved_and_reversed": lambda x: tf.transpose(tf.transpose(x, [1, 0, 2])[:, ::-1], [1, 0, 2]),
    "moved_and_shaped_like_records": lambda x: tf.reshape(
        tf.transpose(x, [1, 0, 2]), [tf.shape(x)[0], 4, 4]
    ),
    "moved_and_split_among_records": lambda x: tf.transpose(
        tf.split(tf.transpose(x, [1, 0, 2]), 2, 1)[0], [1, 0, 2]
    ),
    "moved_and_reshaped_over_records": lambda x: tf.transpose(
        tf.reshape(tf.transpose(x, [1, 0, 2]), [2, -1, 4]), [1, 0, 2]
    ),
    "moved_and_summed": lambda x: tf.reduce_sum(tf.transpose(x, [1, 0, 2]), 1),
    "moved_and_taken_apart": lambda x: tf.unstack(tf.transpose(x, [1, 0, 2]), 4, 1)[0],
    "moved_by_what_nobody_knows": lambda x: tf.transpose(x, [1 - nobody_knows(1), 1, 2]),
    "padded": lambda x: tf.pad(x, [[1, 0], [0, 0], [0, 0]]),
    "padded_with_a_record": lambda x: tf.raw_ops.PadV2(
        input=x, paddings=[[0, 0], [1, 0], [0, 0]], constant_values=tf.reduce_sum(x)
    ),
    "part": lambda x: tf.slice(x, [0, 0, 0], [1, 4, 4]),
    "part_from_the_second": lambda x: tf.slice(x, [1, 0, 0], [-1, 4, 4]),
    "pooled_by_twos": lambda x: tf.raw_ops.MaxPool(
        input=x[..., tf.newaxis], ksize=[2, 1, 1, 1], strides=[1, 1, 1, 1], padding="SAME"
    ),
    "pooled_every_second": lambda x: tf.raw_ops.AvgPool(
        value=x[..., tf.newaxis], ksize=[1, 1, 1, 1], strides=[2, 1, 1, 1], padding="SAME"
    ),
    "product_of_records": lambda x: tf.matmul(x[:, 0], x[:, 0]),
    "product_with_their_number": lambda x: (
        x[:, :1, :1]
        + tf.fill([tf.shape(x)[0], 1, tf.reduce_prod(tf.stack([3, tf.shape(x)[0]]))], 1.0)
    ),
    "power_of_a_record": lambda x: 2 ** tf.cast(x, tf.int32),
    "power_of_what_nobody_knows": lambda x: tf.cast(x, tf.int32) ** nobody_knows(3),
    "power_below_zero": lambda x: tf.cast(x, tf.int32) ** tf.constant([1, -1, 0, 2]),
    "power_of_tables": lambda x: x ** tf.ones([4, 1, 1]),
    "python": lambda x: tf.numpy_function(lambda y: y[::-1], [x], tf.float32),
    "remainder_of_zero": lambda x: tf.cast(x, tf.int32) % tf.constant([1, 0, 2, 3]),
    "remainder_of_what_nobody_knows": lambda x: tf.cast(x, tf.int32) // nobody_knows(3),
    "remainder_of_records": lambda x: 5 // tf.cast(x, tf.int32),
    "repeated": lambda x: tf.repeat(x, 2, axis=0),
    "rolled": lambda x: tf.roll(x, [1, 1], [1, -3]),
    "rolled_by_a_record": lambda x: tf.roll(x, tf.cast(x[:, 0, 0], tf.int32), [1]),
    "softmax": lambda x: tf.nn.softmax(x, 0),
    "softmax_of_records": lambda x: tf.nn.softmax(x[:, 0, 0]),
    "shape_in_parts": lambda x: tf.reshape(x, tf.concat(tf.split(tf.shape(x), [1, 2])[::-1], 0)),
    "split": lambda x: tf.split(x, [1, -1], axis=0)[0],
    "squeezed": lambda x: tf.squeeze(x[:, :1], [0, 1]),
    "spectrum_over_records": lambda x: tf.math.real(tf.signal.fft(tf.complex(x, x)[:, 0, 0])),
    "spectrum_over_records_and_two_axes": lambda x: tf.math.real(tf.signal.fft3d(tf.complex(x, x))),
    "spectrum_over_records_and_positions": lambda x: tf.math.real(
        tf.signal.fft2d(tf.complex(x, x)[:, 0])
    ),
    "spectrum_of_their_number": lambda x: tf.signal.rfft(x, [tf.shape(x)[0]]),
    "ensured_number": lambda x: tf.ensure_shape(x, [3, 4, 4]),
    "first_length_in_few_bits": lambda x: tf.reshape(
        x, [tf.cast(tf.cast(tf.shape(x)[0], tf.int8), tf.int32), -1]
    ),
    "merged_and_met_by_a_table": lambda x: tf.reshape(
        tf.reshape(x, [-1, 4]) * tf.reshape(tf.range(4.0), [4, 1]), [-1, 4, 4]
    ),
    "merged_softmax_of_numbers": lambda x: tf.reshape(
        tf.nn.softmax(tf.reshape(x, [-1])), [-1, 4, 4]
    ),
    "repeated_as_often_as_there_are": lambda x: tf.repeat(x, tf.shape(x)[0], axis=1),
    "several_constants_for_each": lambda x: tf.reshape(
        tf.repeat(tf.eye(2), tf.shape(x)[0], axis=0), [tf.shape(x)[0], 2, 2]
    ),
    "constants_at_positions": lambda x: x + tf.tile(tf.ones([1, 1, 4]), [1, tf.shape(x)[0], 1]),
    "stacked": lambda x: tf.stack([x, x], axis=0),
    "stacked_and_brought_to_another_place": lambda x: tf.transpose(tf.stack([x, x]), [0, 1, 3, 2]),
    "stacked_constants": lambda x: tf.transpose(tf.stack([x, tf.ones([4, 4, 4])]), [1, 0, 2, 3]),
    "stacked_negative_axis": lambda x: tf.stack([x, x], axis=-4),
    "table_of_several": lambda x: tf.tile(tf.eye(4)[:, :1], [tf.shape(x)[0], 1]),
    "tiled": lambda x: tf.tile(x, [2, 1, 1]),
    "tiled_as_nobody_knows": lambda x: tf.tile(x, [nobody_knows(2), 1, 1]),
    "transposed_product": lambda x: tf.raw_ops.BatchMatMulV2(
        x=x[:, 0], y=tf.ones([1, 2]), adj_x=True
    ),
    "unstacked": lambda x: tf.raw_ops.Unpack(value=x, num=4, axis=-3)[0],
    "unstacked_lengths": lambda x: tf.reshape(x, [*tf.unstack(tf.shape(x))[1:], -1]),
    "unstacked_lengths_used": lambda x: x * tf.cast(tf.unstack(tf.shape(x))[0], x.dtype),
    "chosen_numbers": lambda x: (
        x * tf.boolean_mask(tf.reshape(tf.range(4.0), [4, 1, 1]), [True] * 4)
    ),
    "chosen_tables": lambda x: tf.matmul(
        x, tf.gather(tf.ones([4, 4, 4]), tf.where(tf.eye(4) > 0)[:, 0])
    ),
    "chosen_tables_broadcast": lambda x: tf.broadcast_to(
        tf.boolean_mask(tf.reshape(tf.range(4.0), [4, 1]), [True] * 4), [tf.shape(x)[0], 4]
    ),
    "constants_as_records": lambda x: x * tf.reshape(tf.range(4.0), [tf.shape(x)[0], 1, 1]),
    "constant_of_records": lambda x: x * tf.reshape(tf.range(4.0), [4, 1, 1]),
    "first_axis": lambda x: tf.reduce_sum(x, -3),
    "first_alone": lambda x: tf.raw_ops.StridedSlice(
        input=x, begin=[0], end=[1], strides=[1], begin_mask=1, end_mask=1, shrink_axis_mask=1
    ),
    "first_record": lambda x: x + x[:1],
    "lined_up_with_positions": lambda x: x + x[:, 0],
    "length_of_their_number": lambda x: tf.reshape(x, [tf.shape(x)[0], 4, tf.shape(x)[0]]),
    "merged_and_not_back": lambda x: tf.reshape(tf.tanh(tf.reshape(x, [-1, 4])), [-1, 8]),
    "merged_gram": lambda x: tf.matmul(tf.reshape(x, [-1, 4]), tf.reshape(x, [-1, 4]), False, True),
    "merged_softmax": lambda x: tf.reshape(
        tf.nn.softmax(tf.transpose(tf.reshape(x, [-1, 4]))), [-1, 4, 4]
    ),
    "merged_sum": lambda x: x + tf.reduce_sum(tf.reshape(x, [-1, 4]), 0),
    "merged_with_others": lambda x: tf.reshape(
        tf.reshape(x, [-1, 4]) + tf.reshape(x[:, :1], [-1, 4]), [-1, 4, 4]
    ),
    "merged_part": lambda x: tf.reshape(tf.reshape(x, [-1, 4])[::2], [-1, 2, 4]),
    "moved_as_nobody_knows": lambda x: tf.reshape(x, [nobody_knows(-1), 4, 4]),
    "number_of_records_and_more": lambda x: tf.reshape(x, [tf.shape(x)[0] + 0, 4, 4]),
    "moved_rows": lambda x: tf.reshape(x, [-1, 4]),
    "rows_behind_an_axis": lambda x: tf.transpose(
        tf.transpose(tf.reshape(x, [-1, 2, 2]), [1, 0, 2]), [1, 0, 2]
    ),
    "rows_behind_a_new_axis": lambda x: tf.reshape(tf.reshape(x, [-1, 2, 2])[None], [-1, 4, 4]),
    "tensordot_of_records": lambda x: tf.tensordot(x, x, [[0], [0]]),
    "reversed": lambda x: tf.reverse(x, [0]),
    "swapped": lambda x: tf.transpose(x, [1, 0, 2]),
    "turned_around": lambda x: x[::-1],
    "turned_around_in_part": lambda x: x[::-1, 1:2],
    "where": lambda x: tf.where(x[:, 0, 0] > 0),
    "which": lambda x: tf.argmax(x, axis=0),
}


def look_at(function, dtype=tf.float32, shape=(4, 4)):
    """Returns a function of [n, *shape] if it is known to keep the records apart."""

    def run(x):
        graph = tf.compat.v1.get_default_graph()
        kinds, before = Kinds(), len(graph.get_operations())
        kinds.add_records(x)
        y = function(x)
        for op in graph.get_operations()[before:]:
            kinds.add(op)
        if not kinds.is_records(y):
            raise MixesError(f"{y.name} holds no records")
        return y

    run = tf.function(run, autograph=False)
    return run.get_concrete_function(tf.TensorSpec([None, *shape], dtype))


# TensorFlow's raw operations call some arguments otherwise than the operations' definitions do.
KNOWN = {
    "expanded": lambda: tf.expand_dims(tf.range(3), 1),
    "largest": lambda: tf.reduce_max(tf.range(3)),
    "part": lambda: tf.split(tf.range(6), 3)[1],
    "parts_of_some_lengths": lambda: tf.split(tf.range(6), [1, 5])[1],
    "smallest": lambda: tf.reduce_min(tf.range(1, 3), keepdims=True),
    "squeezed": lambda: tf.squeeze(tf.range(3)[tf.newaxis] * 2),
    "sum": lambda: tf.reduce_sum(tf.reshape(tf.range(6), [2, 3]), 0),
    "product": lambda: tf.reduce_prod(tf.range(1, 4)),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_numbers_computed_of_constants_are_known(name):
    found = []
    tf.function(lambda: found.append(static_value(KNOWN[name]())), autograph=False)()
    np.testing.assert_array_equal(found[0], KNOWN[name]())


@pytest.mark.parametrize("name", sorted(APART))
def test_knows_what_keeps_records_apart(name):
    look_at(APART[name])


def of_open_length(x, *lengths):
    return tf.reshape(x, [tf.shape(x)[0], *lengths])


# TensorFlow knows none of these lengths, since it does not know the number of records.
OPEN = {
    "brought_together": lambda x: of_open_length(x, -1),
    "cut": lambda x: tf.strided_slice(x, [0, 3, -3], [tf.shape(x)[0], -6, 9], [1, -2, 2]),
    "cut_along_one": lambda x: tf.strided_slice(x, [0, 1], [tf.shape(x)[0], 3]),
    "elementwise": lambda x: tf.tanh(of_open_length(x, 2, -1)) + 1.0,
    "einsum": lambda x: tf.einsum("bij,bkj->bik", *[of_open_length(x, -1, 2)] * 2),
    "joined": lambda x: tf.concat([x, of_open_length(x, -1, 4)], 1),
    "of_rows": lambda x: tf.reshape(tf.reshape(x, [tf.shape(x)[0] * 2, -1, 2]), [-1, 16]),
    "rows_put_back": lambda x: tf.reshape(
        tf.reshape(x, [tf.shape(x)[0] * 4, 4]), [tf.shape(x)[0], -1, 8]
    ),
    "split": lambda x: tf.split(of_open_length(x, 4, -1), 2, 2)[1],
    "transposed": lambda x: tf.transpose(tf.nn.softmax(of_open_length(x, -1, 8)), [0, 2, 1]),
}


@pytest.mark.parametrize("name", sorted(OPEN))
def test_lengths_that_are_left_open_are_known(name):
    traced = look_at(OPEN[name])
    x = tf.reshape(tf.range(48.0), [3, 4, 4])
    assert traced.outputs[0].shape[1:] == OPEN[name](x).shape[1:]
    np.testing.assert_array_equal(traced(x), OPEN[name](x))


# Where other lengths are unknown, too, none of them tells the axis of records from others.
# TensorFlow makes no product over the first axis of such.
REFUSED = [
    (name, shape)
    for name in sorted(MIXED)
    for shape in [(4, 4), (None, 4), (None, None)]
    if name != "tensordot_of_records" or None not in shape
]


@pytest.mark.parametrize(("name", "shape"), REFUSED)
def test_refuses_what_could_mix_records(name, shape):
    with pytest.raises(MixesError):
        look_at(MIXED[name], shape=shape)


def _programs(rng, count):
    """Yields functions of [n, 4, 4] that take random operations with random axes and shapes."""

    def axis(x):
        return int(rng.integers(-x.shape.rank, x.shape.rank))

    def order(x):
        rank = x.shape.rank
        kept = [0, *(1 + rng.permutation(rank - 1))]
        return [int(i) for i in (kept if rng.random() < 0.7 else rng.permutation(rank))]

    def shape(x):
        sizes = [4] * (x.shape.rank - 1)
        rows = tf.shape(x)[0]
        choices = [[rows, *sizes], [-1, *sizes], [rows, 4 ** len(sizes)], [-1, 4], [rows, rows]]
        return choices[rng.integers(len(choices))]

    def constant(x):
        sizes = [4] * int(rng.integers(0, x.shape.rank + 1))
        return tf.constant(rng.normal(size=sizes))

    def part(x):
        index = [slice(None)] * x.shape.rank
        index[axis(x)] = [0, slice(1), tf.newaxis, slice(None, None, -1)][rng.integers(4)]
        return x[tuple(index)]

    def piece(x):
        rank = x.shape.rank
        begin, size = [int(rng.random() < 0.2) for _ in range(rank)], [-1] * rank
        if rng.random() < 0.5:
            size = [tf.shape(x)[0] if rng.random() < 0.7 else 1, *[3] * (rank - 1)]
        return begin, size

    def equation(*tensors):
        letters = "bijkl"
        terms = []
        for i, t in enumerate(tensors):
            start = letters[0] if rng.random() < 0.8 and i == 0 or rng.random() < 0.5 else "c"
            rest = list(letters[1 : t.shape.rank]) if t.shape.rank else []
            terms.append("".join([start, *rest]) if t.shape.rank else "")
        used = sorted(set("".join(terms)) - {"b"})
        result = [c for c in used if rng.random() < 0.7]
        if rng.random() < 0.8:
            result.insert(0 if rng.random() < 0.8 else len(result), "b")
        return f"{','.join(terms)}->{''.join(result)}"

    def time_first(x):
        """Takes operations while records are along the second axis, and brings them back."""
        x = tf.transpose(x, [1, 0, *range(2, x.shape.rank)])
        choices = [
            lambda x: tf.matmul(x, x, transpose_b=bool(rng.integers(2))),
            lambda x: tf.matmul(x, tf.constant(rng.normal(size=(4, 4)))),
            lambda x: tf.matmul(tf.transpose(x, [0, 2, 1]), x),
            lambda x: tf.reshape(x, [[2, 2, -1, 4], [4, -1, 4], [-1, 4, 4]][rng.integers(3)]),
            lambda x: tf.einsum(f"tbd,{'tbe' if rng.random() < 0.5 else 'bde'}->tbe", x, x),
            lambda x: tf.einsum("tbd,sbd->" + ["tsb", "tbs", "bts"][rng.integers(3)], x, x),
            lambda x: tf.stack([x[i] + x[0] for i in range(3)] + [x[1]], axis(x)),
            lambda x: x[:, :, tf.newaxis] - x[:, tf.newaxis],
            lambda x: operations[rng.integers(len(operations))](x, x),
        ]
        for _ in range(rng.integers(1, 4)):
            x = choices[rng.integers(len(choices))](x)
        return tf.transpose(x, [1, 0, *range(2, x.shape.rank)])

    def dots(x):
        last = [0, slice(0, 2), tf.newaxis, slice(None, None, -1)]
        count = int(rng.integers(1, x.shape.rank + 1))
        return (..., *(last[rng.integers(4)] for _ in range(count)))

    def pooled(x):
        images = x if x.shape.rank == 4 else x[..., tf.newaxis]
        sizes = [[int(rng.random() < 0.2) + 1, 2, 2, 1], [int(rng.random() < 0.2) + 1, 1, 1, 1]]
        found = tf.raw_ops.MaxPool(input=images, ksize=sizes[0], strides=sizes[1], padding="SAME")
        return found if x.shape.rank == 4 else found[..., 0]

    operations = [
        lambda x, y: x + constant(x),
        lambda x, y: x * y,
        lambda x, y: x - tf.reduce_mean(x, axis(x), keepdims=True),
        lambda x, y: tf.reduce_max(x, axis(x)),
        lambda x, y: tf.nn.softmax(x, axis(x)),
        lambda x, y: tf.transpose(x, order(x)),
        lambda x, y: time_first(x),
        lambda x, y: tf.reshape(x, shape(x)),
        lambda x, y: tf.broadcast_to(x[..., :1], shape(x)),
        lambda x, y: tf.concat([x, x], axis(x)),
        lambda x, y: tf.matmul(x, y),
        lambda x, y: tf.matmul(x, x, transpose_a=True),
        lambda x, y: tf.matmul(x, constant(x)),
        lambda x, y: tf.matmul(constant(x), x),
        lambda x, y: tf.expand_dims(x, axis(x)),
        lambda x, y: part(x),
        lambda x, y: tf.reverse(x, [axis(x)]),
        lambda x, y: tf.tanh(x),
        lambda x, y: tf.cumsum(x, axis(x), reverse=bool(rng.integers(2))),
        lambda x, y: tf.gather(x, rng.integers(0, 4, size=2), axis=axis(x)),
        lambda x, y: tf.gather(x, tf.argsort(y, axis(y)), axis=axis(x), batch_dims=axis(y)),
        lambda x, y: K.take_along_axis(x, K.argsort(y, axis=axis(y)), axis=axis(x)),
        lambda x, y: tf.gather(constant(x), tf.argmax(x, axis(x)), axis=axis(x)),
        lambda x, y: tf.stack(tf.split(x, 2, axis=axis(x)), axis=axis(x)),
        lambda x, y: tf.unstack(x, 4, axis=axis(x))[0],
        lambda x, y: tf.pad(x, [[int(rng.random() < 0.3), 0] for _ in range(x.shape.rank)]),
        lambda x, y: tf.roll(x, 1, axis(x)),
        lambda x, y: tf.repeat(x, 2, axis=axis(x)),
        lambda x, y: tf.tile(x, rng.integers(1, 3, size=x.shape.rank)),
        lambda x, y: tf.slice(x, *piece(x)),
        lambda x, y: tf.einsum(equation(x, x), x, x),
        lambda x, y: tf.einsum(equation(x, one := constant(x)), x, one),
        lambda x, y: tf.one_hot(tf.argmax(x, axis(x)), 4, axis=axis(x), dtype=x.dtype),
        lambda x, y: tf.linalg.band_part(x, 1, 1),
        lambda x, y: tf.math.top_k(x, 4)[0],
        lambda x, y: tf.nn.silu(x),
        lambda x, y: tf.nn.bias_add(x, tf.range(4.0, dtype=x.dtype)),
        lambda x, y: x[dots(x)],
        lambda x, y: tf.tile(constant(x), shape(x)[: x.shape.rank]),
        lambda x, y: x + tf.fill(shape(x), tf.cast(1.5, x.dtype)),
        lambda x, y: pooled(x),
        lambda x, y: tf.sort(x, axis=axis(x)),
        lambda x, y: K.take(x, [0, -1], axis=axis(x)),
        lambda x, y: tf.math.floormod(x, y),
        lambda x, y: tf.bitcast(tf.bitcast(x, tf.int64), x.dtype),
        lambda x, y: K.one_hot(K.argmax(x, axis=axis(x)), 4, dtype="float64"),
        lambda x, y: tf.math.real(tf.signal.fft(tf.cast(x, tf.complex128))),
        lambda x, y: tf.math.imag(tf.signal.ifft2d(tf.cast(x, tf.complex128))),
        lambda x, y: tf.signal.irfft(tf.signal.rfft(x, [4]), [4]),
        lambda x, y: tf.cast(tf.image.resize(x, [4, 4]), x.dtype),
        lambda x, y: K.dot_product_attention(x[:, :, None], x[:, :, None], x[:, :, None])[:, :, 0],
    ]
    for _ in range(count):
        chosen = rng.integers(len(operations), size=rng.integers(1, 5))

        def program(x, chosen=chosen):
            start = x
            for i in chosen:
                x = operations[i](x, start)
            return x

        yield program


def test_programs_that_are_accepted_keep_records_apart():
    rng = np.random.default_rng(0)
    # As many records as any other axis is long, one, and more.
    rows = {n: rng.normal(size=(n, 4, 4)) for n in (1, 4, 6)}
    accepted = 0
    for program in _programs(rng, 1500):
        try:
            function = look_at(program, tf.float64)
        except (MixesError, ValueError, TypeError, tf.errors.InvalidArgumentError):
            continue
        for n, records in rows.items():
            try:
                found = function(tf.constant(records)).numpy()
            except tf.errors.InvalidArgumentError:  # For this number of records only.
                continue
            assert len(found) == n
            alone = [function(tf.constant(records[i : i + 1]))[0] for i in range(n)]
            np.testing.assert_allclose(
                found, np.stack(alone), rtol=1e-9, atol=1e-9 * np.max(np.abs(found), initial=0)
            )
            accepted += 1
    assert accepted > 1000


@pytest.mark.parametrize(
    "loop",
    [
        lambda x: tf.scan(lambda a, b: a + b, tf.transpose(x, [1, 0, 2])),
        lambda x: tf.while_loop(lambda y: True, lambda y: [tf.sin(y)], [x], maximum_iterations=2),
    ],
    ids=["scan", "while_loop"],
)
def test_loops_are_named_as_what_they_are(loop):
    with pytest.raises(MixesError, match="test.py, line .*belongs to a loop or array of Tensor"):
        look_at(loop)
