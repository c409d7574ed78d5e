"""What tests of every folder share."""

import contextlib
import gc
import os
import pathlib
import runpy

import hypothesis
import numpy as np
import pytest
from scipy import stats

# What is imported and collected stays: looking through it for what could go is in vain, at first
# and with every test.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
    # Graphs are many objects, and most of them stay: with Python's own thresholds, looking through
    # all of them time and again takes a twentieth of the processor time.
    gc.set_threshold(700, 10, 1000)


# TensorFlow writes to stderr while it starts, before it can be told not to.
_ROOT = pathlib.Path(__file__).resolve().parents[1]
with runpy.run_path(str(_ROOT / "tutorials" / "quiet.py"))["starting"]():
    import keras
    import tensorflow as tf

    from tests.same_draws import KeysOfNames
    from tfdp.noise import bits

# The first call of a TensorFlow function traces it, which no deadline should count; and the same
# examples every time, so that a failure is somebody's change. (Nearly: Hypothesis also tries
# numbers that it reads in the modules of a process.) `--hypothesis-profile=explore` tries others.
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.register_profile("tfdp", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tfdp")

# Likewise noise, samples and Keras' seeds: the same in every run of a test, and others where other
# examples are asked for.
_KEYS = KeysOfNames()
bits.os = _KEYS  # type: ignore[attr-defined]


def _draws_of(name):
    repeat = hypothesis.settings().derandomize
    return _KEYS.under(name) if repeat else contextlib.nullcontext()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    with _draws_of(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    # What tests share does not follow from which of them comes first.
    shared = f"{fixturedef.baseid} {fixturedef.argname} {request.param_index}"
    is_shared = fixturedef.scope != "function"
    with _draws_of(shared) if is_shared else contextlib.nullcontext():
        return (yield)


@pytest.fixture(scope="session")
def onednn_has_begun():
    """For tests that change what oneDNN reads in its environment: it does so once, when a process
    first needs it, and all tests after would feel it.
    """
    ones = tf.ones([64, 64])
    tf.function(tf.matmul)(ones, ones)
    tf.function(tf.nn.conv2d)(ones[None, ..., None], ones[..., None, None], 1, "SAME")


@pytest.fixture
def collect():
    """Collects the garbage of this test. What the process had before it stays, and is not looked
    through: other tests leave a lot.
    """
    gc.freeze()
    return gc.collect


def _left_behind() -> dict[str, object]:
    """What one test of a process can change for all that follow."""
    return {
        "the variable scope's caching device": tf.compat.v1.get_variable_scope().caching_device,
        "the strategy": tf.distribute.get_strategy() if tf.distribute.has_strategy() else None,
        "functions run eagerly": tf.config.functions_run_eagerly(),
        "keras.config.floatx()": keras.config.floatx(),
        "keras.config.dtype_policy()": keras.config.dtype_policy().name,
        "keras.config.image_data_format()": keras.config.image_data_format(),
        "the open graph": None if tf.executing_eagerly() else tf.compat.v1.get_default_graph(),
    }


@pytest.fixture(autouse=True)
def leaves_the_process_as_it_was():
    """Fails a test after which another test of its process would see another world."""
    before = _left_behind()
    yield
    after = _left_behind()
    tf.compat.v1.get_variable_scope()._caching_device = before[
        "the variable scope's caching device"
    ]
    assert after == before


def _accepts_stddev(samples: np.ndarray, stddev: float) -> bool:
    samples = np.ravel(samples).astype(np.float64)
    low, high = stats.chi2.interval(1 - 1e-9, samples.size)
    return low < np.sum((samples / stddev) ** 2) < high


@pytest.fixture(scope="session")
def check_stddev():
    """Accepts N(0, stddev^2) samples, all but one time in 10^9, and rejects them if 1.5 times off.

    With 600 samples the interval for the variance ends well before 1.5^2 and 1.5^-2.
    """

    def check(samples, stddev):
        assert np.size(samples) >= 600
        assert _accepts_stddev(samples, stddev)
        assert not _accepts_stddev(samples, stddev * 3 / 2)
        assert not _accepts_stddev(samples, stddev * 2 / 3)

    return check


def _correlated(left: np.ndarray, right: np.ndarray) -> bool:
    # Correlations of n independent pairs have standard deviation n^-1/2; 6.2 of them: once in 10^9.
    left, right = np.ravel(left), np.ravel(right)
    return abs(np.corrcoef(left, right)[0, 1]) > 6.2 / np.sqrt(left.size)


@pytest.fixture(scope="session")
def check_independent():
    """Accepts two independent arrays of draws, and shows that equal ones are rejected."""

    def check(left, right):
        assert _correlated(left, left)
        assert not _correlated(left, right)

    return check


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
