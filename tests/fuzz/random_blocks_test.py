"""A few random blocks with weights of their own; `fuzz_graphs.py --blocks` has more."""

import keras
import pytest

from tests.fuzz import random_blocks, random_graphs
from tfdp.gradients import own_weights
from tfdp.gradients.mapping import map_records

K = keras.ops

pytestmark = pytest.mark.filterwarnings("ignore:Gradients are computed one example at a time")


def _verdicts(numbers):
    outcomes = [random_graphs.compare(seed, random_blocks.random_model) for seed in numbers]
    return {seed: random_graphs.verdict(o) for seed, o in zip(numbers, outcomes, strict=True)}


@pytest.mark.parametrize("first", range(0, 8, 2))
def test_engines_agree(first):
    verdicts = _verdicts(range(first, first + 2))
    assert "differ" not in verdicts.values()
    assert "agree" in verdicts.values()


def test_gradients_of_the_first_record_for_all_would_be_found(monkeypatch):
    """Power: the test above fails where all records get the gradients of one."""

    def mapped(one, leaves):
        function, *rest = map_records(one, leaves)
        return (lambda *xs: [K.repeat(g[:1], K.shape(g)[0], 0) for g in function(*xs)], *rest)

    monkeypatch.setattr(own_weights, "map_records", mapped)
    assert any("differ" in _verdicts((seed,)).values() for seed in range(40))
