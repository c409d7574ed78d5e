"""What tests of noise share."""

import pytest
import tensorflow as tf


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
