"""The choice of a way depends on shapes as measurements do."""

import pytest

from tfdp.gradients.forms.convolution_cost import (
    ONE_BY_ONE,
    PATCH_GRAM,
    PATCHES,
    PIXEL_GRAM,
    LongRuns,
    cheapest,
    costs,
    long_runs,
    long_runs_make_patches,
    number_of_parts,
    places_together,
)

ONE = (1, 1)


def test_many_positions_and_small_kernel_make_gradients():
    assert cheapest((3, 3), ONE, ONE, (16, 16), 32, 32) == PATCHES


def test_few_positions_and_large_kernel_use_gram_matrices():
    assert cheapest((3, 3), (2, 2), ONE, (4, 4), 256, 256) == PATCH_GRAM
    assert cheapest((3, 3), ONE, ONE, (7, 7), 512, 512) == PIXEL_GRAM


def test_unknown_sizes_make_gradients():
    # A Gram matrix of the positions of a large image would not fit into memory.
    assert cheapest((3, 3), ONE, ONE, (None, 4), 512, 512) == PATCHES


@pytest.mark.parametrize("strides, groups", [((2, 2), 1), (ONE, 2)], ids=["strided", "groups"])
def test_pixels_stand_for_patches_only_without_strides_and_groups(strides, groups):
    assert PIXEL_GRAM not in costs((3, 3), strides, ONE, (4, 4), 8, 8, groups)


def test_pixels_that_are_patches_are_not_copied():
    pixels, strided = (costs(ONE, strides, ONE, (8, 8), 16, 64) for strides in (ONE, (2, 2)))
    assert all(pixels[way] < strided[way] for way in (PATCHES, PATCH_GRAM))
    assert pixels[ONE_BY_ONE] == strided[ONE_BY_ONE]


def test_few_channels_are_copied_in_longer_runs():
    for columns in (14, None):
        assert long_runs_make_patches((8, 8), (2, 2), ONE, 1, columns)
        assert long_runs_make_patches((7, 7), (2, 2), ONE, 3, columns)
        assert not long_runs_make_patches((3, 3), ONE, ONE, 32, columns)
        assert not long_runs_make_patches((1, 1), ONE, ONE, 1, columns)


def test_places_that_are_in_windows_together_are_copied_together():
    assert places_together((256,), (128,), (1,)) == 128
    assert places_together((3, 8), (3, 6), ONE) == 2
    assert places_together((3, 8), (3, 6), (1, 2)) == places_together((3, 3), ONE, ONE) == 1
    assert not long_runs_make_patches((256,), (128,), (1,), 1, 60)
    assert long_runs_make_patches((256,), (127,), (1,), 1, 60)


def test_rows_that_are_in_windows_together_are_made_together_where_that_is_cheaper():
    assert long_runs((8, 8), (2, 2), ONE, 1, None).rows == 2
    assert long_runs((3, 6, 5), (1, 4, 5), (1, 1, 1), 1, None).rows == 2
    assert long_runs((8, 8), (2, 2), (2, 1), 1, None).rows == 1
    assert long_runs((7, 7), (2, 2), ONE, 1, None).rows == 1
    assert long_runs((4, 4), (2, 2), ONE, 16, None).rows == 1
    assert long_runs((256,), (128,), (1,), 1, 60) == LongRuns(1, False)


def test_short_rows_of_few_numbers_are_multiplied():
    # As `benchmarks/convolution.py --layers autoencoder cnn resnet --patches` says, in milliseconds
    # by matrix and by convolution: 0.19 and 0.29 of one channel (for 3, 2 at 32), 1.85 and 2.25.
    assert long_runs((3, 3), ONE, ONE, 1, 28) == LongRuns(1, True)
    assert long_runs((8, 8), (2, 2), ONE, 1, 14) == LongRuns(2, True)
    # 1.38 and 1.13 for the last of these.
    assert long_runs((3, 3), ONE, ONE, 1, 128) == LongRuns(1, False)
    assert long_runs((3, 3), ONE, ONE, 3, 32) == LongRuns(1, False)
    # A graph holds no large matrix.
    assert long_runs((3, 10), ONE, ONE, 1, 60) == LongRuns(1, True)
    assert long_runs((3, 40), ONE, ONE, 1, 60) == LongRuns(1, False)


def test_ordinary_gradients_are_for_records_of_many_and_known_sizes():
    assert cheapest((3, 3), ONE, ONE, (64, 64), 16, 16) == ONE_BY_ONE
    assert cheapest((1, 3, 3), (1,) * 3, (1,) * 3, (8, 32, 32), 16, 16) == ONE_BY_ONE
    assert cheapest((3, 3), ONE, ONE, (64, 64), 16, 16, ways=[PATCHES, PATCH_GRAM]) == PATCHES
    assert cheapest((3, 3), ONE, ONE, (16, 16), 16, 16) == PATCHES
    assert cheapest((3, 3), ONE, ONE, (None, 64), 16, 16) == PATCHES
    assert ONE_BY_ONE not in costs((3, 3), ONE, ONE, (64, 64), 16, 16, groups=2)


def test_every_cost_grows_with_everything():
    smaller = costs((3, 3), ONE, ONE, (8, 8), 16, 64)
    for larger in (
        costs((5, 3), ONE, ONE, (8, 8), 16, 64),
        costs((3, 3), ONE, ONE, (8, 9), 16, 64),
        costs((3, 3), ONE, ONE, (8, 8), 20, 64),
        costs((3, 3), ONE, ONE, (8, 8), 16, 80),
    ):
        assert all(larger[way] > smaller[way] for way in smaller)


def test_parts_are_as_many_as_large_layers_need():
    assert number_of_parts(64, 1000) == 1
    assert number_of_parts(64, 10**6) == 8
    assert number_of_parts(3, 10**9) == 3
    assert number_of_parts(0, 10**9) == 1
    assert number_of_parts(None, None) == 8
    assert 1 < number_of_parts(64, 36_000) < 8
