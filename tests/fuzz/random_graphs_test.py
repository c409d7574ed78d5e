"""A few random models; `fuzz_graphs.py` has more."""

import pytest

from tests.fuzz import random_graphs
from tfdp.gradients import watching

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*with a mask attached to it"),
    pytest.mark.filterwarnings("ignore:Gradients are computed one example at a time"),
    pytest.mark.filterwarnings("ignore:You are using a softmax over axis"),
]


@pytest.mark.parametrize("first", range(0, 24, 3))
def test_engines_agree(first):
    outcomes = [random_graphs.compare(first + i, random_graphs.random_model) for i in range(3)]
    assert not [o.parts for o in outcomes if random_graphs.verdict(o) == "differ"]
    assert "agree" in map(random_graphs.verdict, outcomes)


def test_layers_that_mix_records_would_be_found(monkeypatch):
    """Power: the test above fails where what the engine does not know runs on the batch."""
    monkeypatch.setattr(
        watching,
        "_record_by_record",
        lambda recording, operation, call, args, kwargs: call(*args, **kwargs),
    )
    outcomes = (random_graphs.compare(seed, random_graphs.random_model) for seed in range(60))
    assert any(random_graphs.verdict(outcome) == "differ" for outcome in outcomes)
