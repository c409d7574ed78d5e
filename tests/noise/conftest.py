"""What tests of noise share."""

import os

import pytest
import tensorflow as tf


@pytest.fixture
def in_child():
    """Runs a function in a forked process and returns the bytes that it returned."""
    return _in_child


def _in_child(function):
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.write(write, function())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        result = pipe.read()
    os.waitpid(process, 0)
    return result


@pytest.fixture
def host_calls(monkeypatch):
    """A list that grows by one with every call from a graph to the host."""
    calls = []
    real = tf.numpy_function

    def numpy_function(function, *arguments, **keywords):
        def counted(*values):
            calls.append(function)
            return function(*values)

        return real(counted, *arguments, **keywords)

    monkeypatch.setattr(tf, "numpy_function", numpy_function)
    return calls
