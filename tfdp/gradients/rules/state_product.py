"""The state of a recurrent layer times the recurrent kernel: a matrix product, or a convolution."""

import abc

import keras
import tensorflow as tf


class StateProduct(abc.ABC):
    """The state times the recurrent kernel, or some of its columns.

    Attributes:
        width: Columns of the result.
    """

    width: int

    @abc.abstractmethod
    def of(self, state: tf.Tensor) -> tf.Tensor:
        """Returns the product, [n, ..., width], with a state, [n, ..., u]."""

    @abc.abstractmethod
    def back(self, gradient: tf.Tensor) -> tf.Tensor:
        """Returns the gradient at the state, given that at the product."""


class MatrixProduct(StateProduct):
    """With a matrix.

    Args:
        kernel: [u, parts * u].
        dropped: What the state is multiplied by before each part, [n, parts, u]; None: nothing.
    """

    def __init__(self, kernel: tf.Tensor, dropped: tf.Tensor | None = None):
        self.width = kernel.shape[1]
        self._kernel, self._dropped = kernel, dropped
        if dropped is not None:
            self._dropped = tf.transpose(dropped, [1, 0, 2])
            self._kernel = parts_first(kernel, dropped.shape[1])
        self._transposed = tf.linalg.matrix_transpose(self._kernel)

    def of(self, state: tf.Tensor) -> tf.Tensor:
        if self._dropped is None:
            return tf.matmul(state, self._kernel)
        parts = tf.matmul(state * self._dropped, self._kernel)
        return tf.reshape(tf.transpose(parts, [1, 0, 2]), [-1, self.width])

    def back(self, gradient: tf.Tensor) -> tf.Tensor:
        if self._dropped is None:
            return tf.matmul(gradient, self._transposed)
        parts = parts_first(gradient, self._dropped.shape[0])
        return tf.reduce_sum(tf.matmul(parts, self._transposed) * self._dropped, 0)


class Convolution(StateProduct):
    """With a kernel along spatial axes, whose sizes stay as they are.

    Args:
        kernel: [*size, u, parts * u].
        dropped: As for `MatrixProduct`, [n, parts, *spatial, u].
    """

    def __init__(self, kernel: tf.Tensor, dropped: tf.Tensor | None = None):
        self.width = kernel.shape[-1]
        self._kernels, self._drops = [kernel], [None]
        if dropped is not None:
            self._drops = tf.unstack(dropped, axis=1)
            self._kernels = tf.split(kernel, len(self._drops), -1)

    def of(self, state: tf.Tensor) -> tf.Tensor:
        pairs = zip(self._kernels, self._drops, strict=True)
        parts = [_convolved(state if drop is None else state * drop, k) for k, drop in pairs]
        return parts[0] if len(parts) == 1 else tf.concat(parts, -1)

    def back(self, gradient: tf.Tensor) -> tf.Tensor:
        gradients = tf.split(gradient, len(self._kernels), -1)
        back = [_convolved_back(g, k) for g, k in zip(gradients, self._kernels, strict=True)]
        if self._drops[0] is None:
            return back[0]
        return tf.add_n([b * drop for b, drop in zip(back, self._drops, strict=True)])


def _convolved(state: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    return keras.ops.conv(state, kernel, padding="same", data_format="channels_last")


def _convolved_back(gradient: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Returns the gradient at the state of a convolution."""
    shape = tf.concat([tf.shape(gradient)[:-1], [kernel.shape[-2]]], 0)
    state = tf.ensure_shape(
        tf.zeros(shape, gradient.dtype), [*gradient.shape[:-1], kernel.shape[-2]]
    )
    # Only the gradient's operation stays in the graph; the convolution is not run.
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(state)
        convolved = _convolved(state, kernel)
    return tape.gradient(convolved, state, output_gradients=gradient)


def state_product(kernel: tf.Tensor, dropped: tf.Tensor | None = None) -> StateProduct:
    """Returns the product with a recurrent kernel, [u, ...] or, of a convolution, [*size, u, ...].

    Args:
        kernel: The kernel.
        dropped: As for `MatrixProduct`, or `Convolution`.
    """
    kind = MatrixProduct if kernel.shape.rank == 2 else Convolution
    return kind(kernel, dropped)


def parts_first(matrix: tf.Tensor, parts: int) -> tf.Tensor:
    """Returns [parts, n, u] from [n, parts * u]."""
    width = matrix.shape[1] // parts
    return tf.transpose(tf.reshape(matrix, [-1, parts, width]), [1, 0, 2])
