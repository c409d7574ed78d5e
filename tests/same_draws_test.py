"""Draws repeat in another run of a test, and nowhere else."""

import os
import random

import hypothesis
import keras
import pytest

from tests.same_draws import KeysOfNames
from tfdp.noise import SystemRandomSource, bits


@pytest.fixture
def keys(monkeypatch):
    keys = KeysOfNames()
    monkeypatch.setattr(bits, "os", keys)
    return keys


def _draws():
    noise = [SystemRandomSource().normal([3], "float32").numpy().tobytes() for _ in range(2)]
    weights = keras.layers.Dense(2)
    weights.build((None, 3))
    return [*noise, weights.kernel.numpy().tobytes()]


def _draws_under(keys, name):
    with keys.under(name):
        return _draws()


def test_draws_follow_from_a_name(keys):
    first, again, other = (_draws_under(keys, name) for name in ("a", "a", "b"))
    assert first == again
    assert len({*first, *other}) == 6


def test_draws_of_a_name_within_another_leave_it_as_it_was(keys):
    with keys.under("a"):
        expected = [keys.urandom(32), keys.urandom(32), random.random()]
    with keys.under("a"):
        first = keys.urandom(32)
        _draws_under(keys, "b")
        assert [first, keys.urandom(32), random.random()] == expected


def test_without_a_name_keys_are_the_operating_systems(keys, monkeypatch):
    given = iter([b"1" * 32, b"2" * 32])
    monkeypatch.setattr(os, "urandom", lambda size: next(given))
    assert keys.urandom(32) == b"1" * 32
    with keys.under("a"):
        assert keys.urandom(32) == b"2" * 32
    monkeypatch.undo()
    assert keys.urandom(32) != keys.urandom(32)


def test_a_forked_process_repeats_nothing(keys, in_child):
    with keys.under("a"):
        expected = keys.urandom(32)
    with keys.under("a"):
        children = [in_child(lambda: keys.urandom(32)) for _ in range(2)]
        assert keys.urandom(32) == expected
    assert len({expected, *children}) == 3


def test_the_draws_of_a_test_follow_from_its_own_name(request):
    if not hypothesis.settings().derandomize:
        pytest.skip("This run draws what no other run does.")
    found = _draws()
    assert found == _draws_under(bits.os, request.node.nodeid)
