"""docs/accounting.md: what its table says is priced, and how, is what happens."""

import pathlib
import re

import pytest

from tfdp.accounting import make_accountant
from tfdp.accounting.mechanisms import (
    AllocatedGaussian,
    FixedSizeGaussian,
    PureEpsilon,
    RemoveThenAdd,
    SampledGaussian,
    SampledLaplace,
    TruncatedGaussian,
)
from tfdp.events import (
    BallsInBinsSampling,
    DiscreteGaussianSumEvent,
    EpsilonDeltaEvent,
    ExponentialMechanismEvent,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSharesSumEvent,
    GaussianSumEvent,
    IntegerGaussianSumEvent,
    LaplaceSumEvent,
    MinSeparationSampling,
    NeighboringRelation,
    PoissonSampling,
    PureEpsilonEvent,
    RandomAllocationSampling,
    RandomizedResponseEvent,
    SampledEvent,
    ShuffledSampling,
    SkellamSharesSumEvent,
    TruncatedPoissonSampling,
    UnknownSampling,
)

AMPLIFIABLE = (
    AllocatedGaussian,
    FixedSizeGaussian,
    RemoveThenAdd,
    SampledGaussian,
    TruncatedGaussian,
)
AMPLIFIED = ("Poisson", "truncated Poisson", "fixed size")
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "accounting.md"
RELATIONS = dict(zip("ARZ", NeighboringRelation, strict=True))
EVENTS = {
    "Gaussian sums": GaussianSumEvent(1.0, 2.0),
    "discrete Gaussian sums": DiscreteGaussianSumEvent(1.0, 2.0, 2.0**-30, 2**30),
    "sums of integers": IntegerGaussianSumEvent(1.0, 2.0),
    "sums of shares": GaussianSharesSumEvent(1.0, 2.0, 9, 100),
    "sums of Skellam shares": SkellamSharesSumEvent(2.0, 1.0, 2.0, 9),
    "Laplace sums": LaplaceSumEvent(1.0, 2.0),
    "exponential mechanism": ExponentialMechanismEvent(0.1),
    "pure epsilon": PureEpsilonEvent(0.1),
    "epsilon and delta": EpsilonDeltaEvent(0.1, 1e-6),
    "randomized response": RandomizedResponseEvent(0.5, 4),
}
SAMPLINGS = {
    "Poisson": PoissonSampling(0.01),
    "truncated Poisson": TruncatedPoissonSampling(0.01, 1000, 60),
    "fixed size": FixedSizeSampling(10, 1000),
    "random allocation": RandomAllocationSampling(100),
    "balls in bins": BallsInBinsSampling(100, 3, 5),
    "min-separation": MinSeparationSampling(0.1, 10, 100),
    "full batch": FullBatchSampling(),
    "shuffled": ShuffledSampling(10, 1000),
    "unknown": UnknownSampling(),
}


def _table():
    text = DOCS.read_text(encoding="utf-8").split("## What they price")[1]
    text = text.split("\n- A, R and Z")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]
    return rows[0], rows[1:]


def _cells():
    (_, _, *columns), rows = _table()
    for events, samplings, *cells in rows:
        for column, cell in zip(columns, cells, strict=True):
            for name in column.split(", "):
                for event in events.split(", "):
                    every = list(SAMPLINGS) if samplings == "any" else samplings.split(", ")
                    for sampling in every:
                        yield name, event, sampling, cell


def _relations(cell):
    """Returns {relation: mark}; marks are "", "*" and "P"."""
    if cell == "refused":
        return {}
    marks = cell.split()
    if "P" in marks:
        return {r: "P" if m == "P" else "" for r, m in zip("ARZ", marks, strict=True)}
    return {mark[0]: mark[1:] for mark in marks}


@pytest.mark.parametrize(
    ("name", "event", "sampling", "cell"),
    list(_cells()),
    ids=lambda value: re.sub(r"\W+", "_", value),
)
def test_table(name, event, sampling, cell):
    expected = _relations(cell)
    for letter, relation in RELATIONS.items():
        step = SampledEvent(SAMPLINGS[sampling], EVENTS[event], relation)
        accountant = make_accountant(name, relation)
        assert accountant.supports(step) == (letter in expected), letter
        if letter not in expected:
            continue
        mechanism = accountant.compose(step)._terms()[0][0]
        if expected[letter] == "P":
            assert isinstance(mechanism, PureEpsilon)
        elif event == "Laplace sums" and "Poisson" in sampling:
            assert isinstance(mechanism, (SampledLaplace, RemoveThenAdd))
        elif event.endswith("Gaussian sums") and sampling in (
            "Poisson",
            "truncated Poisson",
            "fixed size",
            "random allocation",
            "balls in bins",
            "min-separation",
        ):
            unsampled = isinstance(mechanism, SampledGaussian) and (
                mechanism.sampling_probability == 1
            )
            assert unsampled == (expected[letter] == "*")
            if not unsampled:
                assert isinstance(mechanism, AMPLIFIABLE)


def test_table_covers_everything():
    cells = list(_cells())
    assert {event for _, event, _, _ in cells} == set(EVENTS)
    assert {sampling for _, _, sampling, _ in cells} == set(SAMPLINGS)
    assert len({name for name, *_ in cells}) == 8
