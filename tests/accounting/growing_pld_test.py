"""A run that grows costs what the same run costs when it is composed at once."""

import pytest

from tfdp.accounting import PLDAccountant, growing_pld
from tfdp.accounting.growing_pld import GrowingPLDAccountant
from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent

STEPS = [SampledEvent(PoissonSampling(0.1), GaussianSumEvent(1.0, 2.0 + i)) for i in range(4)]


def test_asked_after_every_kind_it_says_what_a_whole_composition_says():
    growing = GrowingPLDAccountant(1e-3)
    for i, step in enumerate(STEPS):
        growing.compose(step, 5)
        whole = PLDAccountant(1e-3)
        for earlier in STEPS[: i + 1]:
            whole.compose(earlier, 5)
        assert growing.get_epsilon(1e-5) == pytest.approx(whole.get_epsilon(1e-5), rel=1e-6)


def test_more_of_a_kind_is_composed_with_what_there_was(monkeypatch):
    counts = []
    composed = growing_pld.composed

    def counted(step, count):
        counts.append(count)
        return composed(step, count)

    monkeypatch.setattr(growing_pld, "composed", counted)
    growing = GrowingPLDAccountant(1e-3)
    for step in STEPS:
        growing.compose(step, 5)
    growing.get_epsilon(1e-5)
    growing.compose(STEPS[0], 2)
    growing.get_epsilon(1e-5)
    assert sorted(counts[:4]) == [5] * 4
    assert counts[4:] == [2]
