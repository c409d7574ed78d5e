"""Attempts to trace a function, which may end in the middle of it."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def attempt() -> Iterator[None]:
    """Puts back what `tf.map_fn`, `tf.scan` and `tf.foldl` leave if what they map is refused.

    They set the caching device of the process' variable scope while they trace, and do not unset it
    where an exception passes: after that, no strategy's scope can be entered.
    """
    scope = tf.compat.v1.get_variable_scope()
    before = scope.caching_device
    try:
        yield
    finally:
        if scope.caching_device is not before:
            # TensorFlow lets it be set in graphs only; the scope is that of the whole process.
            tf.function(lambda: scope.set_caching_device(before), autograph=False)()
