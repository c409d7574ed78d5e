"""The windows of a convolution, as matrices.

A convolution multiplies windows of its input, the patches, with its kernel. Everything here takes
tensors with channels last, of any number of spatial axes, whose sizes need not be known when the
graph is built.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tfdp.gradients.forms.convolution_cost import (
    LongRuns,
    is_pointwise,
    long_runs,
    places_together,
)
from tfdp.gradients.onednn import (
    corrupts_filter_gradient,
    leaves_numbers_unwritten,
    of_two_channels,
)
from tfdp.numerics.shapes import reshape_records

Size: TypeAlias = int | tf.Tensor


def spatial_sizes(tensor: tf.Tensor) -> list[Size]:
    """Returns the sizes of the spatial axes of [n, *spatial, channels]: ints where known."""
    sizes = tensor.shape[1:-1].as_list()
    if None not in sizes:
        return sizes
    dynamic = tf.shape(tensor)
    return [dynamic[i] if size is None else size for i, size in enumerate(sizes, 1)]


def flat_strides(sizes: Sequence[Size]) -> list[Size]:
    """Returns how far neighbours along each axis are apart when the axes are flattened."""
    return list(itertools.accumulate([1, *reversed(sizes[1:])], lambda x, y: x * y))[::-1]


def flatten_positions(tensor: tf.Tensor) -> tf.Tensor:
    """Returns [n, positions, channels] from [n, *spatial, channels]."""
    return reshape_records(tensor, [math.prod(spatial_sizes(tensor)), tensor.shape[-1]])


def _planes(tensor: tf.Tensor) -> tf.Tensor:
    """Returns [n * depth, rows, columns, channels] from [n, depth, rows, columns, channels]."""
    return tf.reshape(tensor, [-1, *spatial_sizes(tensor)[1:], tensor.shape[-1]])


# An array is one operation in the graph, which takes less tracing than what computes it. But graphs
# that hold large arrays grow large.
_MOST_IN_GRAPH = 2**16


def _grid(counts: Sequence[Size], steps: Sequence[Size]) -> tf.Tensor | np.ndarray:
    """Returns the flat indices of the points of a grid, in row-major order; an array where all is
    known and not many.
    """
    known = all(isinstance(size, int) for size in (*counts, *steps))
    if known and math.prod(counts) <= _MOST_IN_GRAPH:
        axes = np.ix_(*(np.arange(c) * s for c, s in zip(counts, steps, strict=True)))
        return np.ravel(sum(axes)).astype(np.int32)
    index = tf.zeros([1], tf.int32)
    for count, step in zip(counts, steps, strict=True):
        index = tf.reshape(index[:, None] + tf.range(count) * step, [-1])
    return index


class Windows(NamedTuple):
    """Where the windows of a convolution lie.

    Attributes:
        kernel: Size of a window along each spatial axis.
        strides: Distances between neighbouring windows.
        dilations: Distances between neighbouring numbers in a window.
        padding: "VALID", or "SAME" as TensorFlow defines it.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: str

    @property
    def rank(self) -> int:
        return len(self.kernel)

    def extents(self) -> list[int]:
        """Returns how far a window reaches along each axis."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    def _along_last_axis(self, source: tf.Tensor) -> int | None:
        """Returns the number of windows along the last axis, where it is known."""
        size, stride = source.shape[-2], self.strides[-1]
        if size is None:
            return None
        if self.padding == "SAME":
            return -(-size // stride)
        return (size - self.extents()[-1]) // stride + 1

    def _needed(self, counts: Sequence[Size]) -> list[Size]:
        """Returns the sizes that so many windows cover."""
        return [
            (count - 1) * stride + extent
            for count, stride, extent in zip(counts, self.strides, self.extents(), strict=True)
        ]

    def padded(self, source: tf.Tensor, counts: Sequence[Size]) -> tf.Tensor:
        """Returns the source with the zeros around it that belong to it.

        Args:
            source: [n, *spatial, channels].
            counts: Number of windows along each axis.
        """
        if self.padding == "VALID":
            return source
        amounts = []
        for size, needed in zip(spatial_sizes(source), self._needed(counts), strict=True):
            known = isinstance(size, int) and isinstance(needed, int)
            missing = max(needed - size, 0) if known else tf.maximum(needed - size, 0)
            amounts.append([missing // 2, missing - missing // 2])
        if all(isinstance(after, int) and after == 0 for _, after in amounts):
            return source
        return tf.pad(source, [[0, 0], *amounts, [0, 0]])

    def covered(self, source: tf.Tensor, counts: Sequence[Size]) -> tf.Tensor:
        """Returns the padded source without what no window covers."""
        source = self.padded(source, counts)
        sizes, needed = spatial_sizes(source), self._needed(counts)
        if all(isinstance(size, int) for size in [*sizes, *needed]) and sizes == needed:
            return source
        first = (slice(None), *(slice(size) for size in needed))
        return source[first]

    def patches(self, source: tf.Tensor, counts: Sequence[Size], groups: int = 1) -> tf.Tensor:
        """Returns the windows, [n * groups, positions, prod(kernel) * channels / groups].

        One gather copies runs of channels, of several places where strides and windows along the
        last axis are multiples of so many. `tf.image.extract_patches` is 3 to 25 times slower on a
        CPU, and strided slices are 5 times slower where a stride is not 1.
        """
        together = places_together(self.kernel, self.strides, self.dilations)
        if groups == 1 and together > 1:
            source = self.covered(source, counts)
            *sizes, size = spatial_sizes(source)
            shape = [*sizes, size // together, together * source.shape[-1]]
            (*kernel, width), (*strides, stride) = self.kernel, self.strides
            folded = Windows(
                (*kernel, width // together),
                (*strides, stride // together),
                self.dilations,
                "VALID",
            )
            return folded.patches(reshape_records(source, shape), counts)
        source = self.padded(source, counts)
        if groups == 1 and is_pointwise(self.kernel, self.strides):
            return flatten_positions(source)
        channels = source.shape[-1] // groups
        sizes = spatial_sizes(source)
        apart = [stride * groups for stride in flat_strides(sizes)]
        starts = _grid(counts, [a * s for a, s in zip(apart, self.strides, strict=True)])
        offsets = _grid(self.kernel, [a * d for a, d in zip(apart, self.dilations, strict=True)])
        known = isinstance(starts, np.ndarray) and isinstance(offsets, np.ndarray)
        if known and groups * starts.size * offsets.size > _MOST_IN_GRAPH:
            offsets = tf.convert_to_tensor(offsets)
        index = (np.arange(groups, dtype=np.int32)[:, None] + starts)[:, :, None] + offsets
        index = np.ravel(index) if isinstance(index, np.ndarray) else tf.reshape(index, [-1])
        pixels = reshape_records(source, [math.prod(sizes) * groups, channels])
        windows = tf.gather(pixels, index, axis=1)
        positions, numbers = math.prod(counts), math.prod(self.kernel) * channels
        if groups == 1:
            return reshape_records(windows, [positions, numbers])
        n = tf.shape(source)[0] if source.shape[0] is None else source.shape[0]
        return tf.reshape(windows, [n * groups, positions, numbers])

    def patches_in_long_runs(
        self, source: tf.Tensor, counts: Sequence[Size], runs: LongRuns | None = None
    ) -> tf.Tensor:
        """Returns the same as `patches`, in longer runs.

        First windows along the last axis are made, of one row or of several that always come into
        windows together. That is more arithmetic and fewer small copies: better for few channels.

        Args:
            source: [n, *spatial, channels].
            counts: Number of windows along each axis.
            runs: How the windows along the last axis are made; by default as is cheapest.
        """
        if runs is None:
            known = isinstance(counts[-1], int) and source.shape[-2] is not None
            columns = counts[-1] if known else None
            runs = long_runs(self.kernel, self.strides, self.dilations, source.shape[-1], columns)
        steps = (*(1,) * (self.rank - 2), runs.rows)[: self.rank - 1]
        make = self._by_matrix if runs.by_matrix else self._by_convolution
        made = make(source, counts, steps)
        if self.rank == 1:
            return made
        kernel, strides = (
            tuple(size // step for size, step in zip(sizes[:-1], steps, strict=True))
            for sizes in (self.kernel, self.strides)
        )
        across = Windows((*kernel, 1), (*strides, 1), (*self.dilations[:-1], 1), "VALID")
        return across.patches(made, counts)

    def _by_convolution(
        self, source: tf.Tensor, counts: Sequence[Size], steps: tuple[int, ...]
    ) -> tf.Tensor:
        """Returns windows along the last axis, [n, *spatial / steps, columns, numbers]: by a
        convolution with an identity matrix.
        """
        source = self.covered(source, counts)
        channels = source.shape[-1]
        numbers = math.prod(steps) * self.kernel[-1] * channels
        identity = tf.eye(numbers, dtype=source.dtype)
        # The input is padded beforehand, because TensorFlow's 3-D convolution of float64 misplaces
        # windows under "SAME" if the stride is larger than the kernel.
        along = Windows(
            (*steps, self.kernel[-1]),
            (*steps, self.strides[-1]),
            (*(1,) * len(steps), self.dilations[-1]),
            "VALID",
        )
        return along.convolve(source, tf.reshape(identity, [*along.kernel, channels, numbers]))

    def _by_matrix(
        self, source: tf.Tensor, counts: Sequence[Size], steps: tuple[int, ...]
    ) -> tf.Tensor:
        """Returns the same by a product of whole rows with one matrix, which is faster for short
        rows of few channels. Nothing needs padding beside the rows.
        """
        *_, width, channels = source.shape
        columns, rows = counts[-1], math.prod(steps)
        missing = max(self._needed(counts)[-1] - width, 0) if self.padding == "SAME" else 0
        # From each place of such rows to all windows.
        matrix = np.zeros((rows, width, channels, columns, rows, self.kernel[-1], channels))
        for column, k in itertools.product(range(columns), range(self.kernel[-1])):
            place = column * self.strides[-1] + k * self.dilations[-1] - missing // 2
            if 0 <= place < width:
                for row, channel in itertools.product(range(rows), range(channels)):
                    matrix[row, place, channel, column, row, k, channel] = 1
        inner, numbers = rows * width * channels, rows * self.kernel[-1] * channels
        matrix = tf.constant(matrix.reshape(inner, columns * numbers), source.dtype)
        across = Windows(self.kernel[:-1], self.strides[:-1], self.dilations[:-1], self.padding)
        flat = reshape_records(source, [*spatial_sizes(source)[:-1], width * channels])
        flat = across.covered(flat, counts[:-1])
        sizes = [size // step for size, step in zip(spatial_sizes(flat), steps, strict=True)]
        product = tf.matmul(tf.reshape(flat, [-1, inner]), matrix)
        return tf.reshape(product, [-1, *sizes, columns, numbers])

    def convolve(self, source: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Returns the convolution with a kernel [*kernel, channels, filters]."""
        if leaves_numbers_unwritten(source.shape[-1], self.strides, self._along_last_axis(source)):
            source, kernel = of_two_channels(source, kernel)
        return tf.nn.convolution(
            source,
            kernel,
            self.strides,
            self.padding,
            # Otherwise the gradient of a 3-D convolution fails in eager mode.
            data_format=["NWC", "NHWC", "NDHWC"][self.rank - 1],
            dilations=self.dilations,
        )

    def filter_gradient(self, source: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        """Returns the gradient with respect to the kernel, summed over records.

        Args:
            source: [n, *spatial, channels].
            gradient: [n, *windows, filters]: of the output.
        """
        if self.rank == 3 and self.kernel[0] == self.strides[0] == 1:
            # Places along the first axis are records, in two dimensions, which is faster.
            plane = Windows(self.kernel[1:], self.strides[1:], self.dilations[1:], self.padding)
            return plane.filter_gradient(*map(_planes, (source, gradient)))[tf.newaxis]
        if corrupts_filter_gradient(self.kernel, self.strides):
            return self._filter_gradient_of_places(source, gradient)
        kernel = tf.zeros([*self.kernel, source.shape[-1], gradient.shape[-1]], source.dtype)
        # Only the gradient's operation stays in the graph; the convolution is not run.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(kernel)
            output = self.convolve(source, kernel)
        return tape.gradient(output, kernel, output_gradients=gradient)

    def _filter_gradient_of_places(self, source: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        """Returns `filter_gradient` where windows are single places."""
        strided = (slice(None), *(slice(None, None, stride) for stride in self.strides))
        places = source[strided]
        left, right = (tf.reshape(t, [-1, t.shape[-1]]) for t in (places, gradient))
        product = tf.matmul(left, right, transpose_a=True)
        return tf.reshape(product, [*self.kernel, source.shape[-1], gradient.shape[-1]])

    def gram_of_patches(
        self, source: tf.Tensor, positions: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns inner products of patches, and of positions, without making the patches.

        Two patches of neighbouring windows share pixels, so inner products of pixels do for all:

            patch_t . patch_s = sum over offsets o in a window of pixel_{t + o} . pixel_{s + o},

        sums along diagonals of the pixels' Gram matrix, taken one axis at a time. With positions
        numbered as the pixels are, each is a sum of shifted flat arrays. Numbers that are no
        positions lie in between; there the second result is zero.

        Args:
            source: [n, *spatial, channels].
            positions: [n, *windows, filters]. All strides must be 1.

        Returns:
            Two tensors [n, m, m], for some m.
        """
        counts = spatial_sizes(positions)
        source = self.covered(source, counts)
        sizes = spatial_sizes(source)
        n = tf.shape(source)[0] if source.shape[0] is None else source.shape[0]
        apart = flat_strides(sizes)
        pixels = flatten_positions(source)
        number = math.prod(sizes)
        numbered = sum((c - 1) * a for c, a in zip(counts, apart, strict=True)) + 1

        gram = tf.reshape(tf.matmul(pixels, pixels, transpose_b=True), [n, number * number])
        length = number * number
        for size, dilation, stride in zip(self.kernel, self.dilations, apart, strict=True):
            shift = dilation * stride * (number + 1)
            length -= (size - 1) * shift
            gram = tf.add_n([gram[:, i * shift : i * shift + length] for i in range(size)])
        # What is left ends at the last entry of the last row of interest.
        gram = tf.pad(gram, [[0, 0], [0, number - numbered]])
        gram = tf.reshape(gram, [n, numbered, number])[:, :, :numbered]

        gaps = [[0, s - c] for s, c in zip(sizes[1:], counts[1:], strict=True)]
        spread = flatten_positions(tf.pad(positions, [[0, 0], [0, 0], *gaps, [0, 0]]))[:, :numbered]
        return gram, tf.matmul(spread, spread, transpose_b=True)
