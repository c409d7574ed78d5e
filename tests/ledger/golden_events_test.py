"""Every event and every sampling, as they were first written: no file of them is written anew.

A kind that is not in one of the files fails a test. Write a new file for new kinds and new fields.
"""

import dataclasses
import inspect
import pathlib

import pytest

from tfdp import events
from tfdp.events import (
    BallsInBinsSampling,
    ComposedEvent,
    CorrelatedGaussianSumEvent,
    CyclicPoissonSampling,
    DiscreteGaussianSumEvent,
    EpsilonDeltaEvent,
    ExponentialMechanismEvent,
    FixedOrderSampling,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSharesSumEvent,
    GaussianSumEvent,
    IntegerGaussianSumEvent,
    LaplaceSumEvent,
    MinSeparationSampling,
    NeighboringRelation,
    NonPrivateEvent,
    ParallelComposition,
    PoissonSampling,
    PoissonSelectedRunEvent,
    PureEpsilonEvent,
    RandomAllocationSampling,
    RandomizedResponseEvent,
    RunEvent,
    SampledEvent,
    SelectedRunEvent,
    ShuffledSampling,
    SkellamSharesSumEvent,
    TreeGaussianSumEvent,
    TruncatedPoissonSampling,
    UnknownSampling,
)
from tfdp.ledger import PrivacyLedger

ZERO, REPLACE = NeighboringRelation.ZERO_OUT, NeighboringRelation.REPLACE_ONE
FILES = pathlib.Path(__file__).parent / "golden" / "every_event"

G = GaussianSumEvent(1.0, 1.1)
FIRST = [
    (SampledEvent(PoissonSampling(0.01, 60000), G, ZERO), 100),
    (
        SampledEvent(
            PoissonSampling(0.25), ComposedEvent((G, GaussianSumEvent(0.5, 2.0, seeded=True)))
        ),
        3,
    ),
    (SampledEvent(TruncatedPoissonSampling(0.1, 1000, 150), G, REPLACE, "user"), 2),
    (
        SampledEvent(
            FixedSizeSampling(10, 1000),
            DiscreteGaussianSumEvent(1.0, 2.0, 2.0**-30, 1000),
            REPLACE,
            "microbatch",
        ),
        7,
    ),
    (SampledEvent(ShuffledSampling(10, 100, 0), G), 10),
    (SampledEvent(ShuffledSampling(10, 100, 1), G), 10),
    (SampledEvent(FullBatchSampling(), LaplaceSumEvent(1.0, 3.0)), 1),
    (SampledEvent(FullBatchSampling(50), LaplaceSumEvent(1.0, 0.0, seeded=True)), 1),
    (SampledEvent(UnknownSampling(), ExponentialMechanismEvent(0.1)), 4),
    (PureEpsilonEvent(0.5), 1),
    (SampledEvent(FullBatchSampling(), RandomizedResponseEvent(0.5, 4), REPLACE), 1),
    (ComposedEvent(()), 1),
    (NonPrivateEvent(), 2**53 - 1),
]


RUN = 2**62 + 12345
MECHANISMS = [
    (
        SampledEvent(
            FixedOrderSampling(10, 100, 3),
            CorrelatedGaussianSumEvent(1.0, 2.0, (1.0, -0.5), (1.0, 0.25), 40, 10, 13, RUN),
            ZERO,
        ),
        1,
    ),
    (
        SampledEvent(
            CyclicPoissonSampling(0.05, 10, 7, 5000),
            CorrelatedGaussianSumEvent(
                1.0, 2.0, (1.0, 0.5, 0.375), (1.0,), 100, 10, 7, RUN, seeded=True
            ),
            ZERO,
            "user",
        ),
        1,
    ),
    (
        SampledEvent(
            FixedOrderSampling(10, 100, 9), TreeGaussianSumEvent(0.5, 4.0, 20, 10, 19, 2), REPLACE
        ),
        1,
    ),
    (TreeGaussianSumEvent(0.5, 4.0, 20, 10, 0, 1, efficient=False, seeded=True), 1),
    (EpsilonDeltaEvent(0.25, 1e-6), 2),
    (DiscreteGaussianSumEvent(1.0, 2.0, 2.0**-30, 1000, seeded=True), 1),
    (SampledEvent(FixedOrderSampling(7, 49, 6), NonPrivateEvent()), 1),
    (ParallelComposition((G, LaplaceSumEvent(1.0, 4.0))), 5),
    (
        SampledEvent(
            RandomAllocationSampling(100, 2, 60000, 4),
            ComposedEvent((G, LaplaceSumEvent(2.0, 3.0), IntegerGaussianSumEvent(3.0, 5.0))),
        ),
        100,
    ),
    (GaussianSharesSumEvent(12.0, 3.5, 90, 1000), 6),
    (GaussianSharesSumEvent(12.0, 3.5, 90, 1000, seeded=True), 6),
    (SkellamSharesSumEvent(40.0, 12.0, 3.5, 90), 6),
    (SkellamSharesSumEvent(40.0, 12.0, 3.5, 90, seeded=True), 6),
    (IntegerGaussianSumEvent(1.0, 0.0, seeded=True), 1),
    (SelectedRunEvent((RunEvent((SampledEvent(PoissonSampling(0.01), G),), (100,)),), 0.0, 0.1), 1),
    (
        PoissonSelectedRunEvent(
            (RunEvent((G, PureEpsilonEvent(0.5)), (3, 1)), RunEvent((G,), (4,))), 10.0
        ),
        1,
    ),
]
SEPARATED = [
    (SampledEvent(MinSeparationSampling(0.05, 10, 100, 60000, 3), G, ZERO), 100),
    (
        SampledEvent(
            MinSeparationSampling(0.25, 4, 100),
            CorrelatedGaussianSumEvent(1.0, 2.0, (1.0, 0.5, 0.375), (1.0,), 100, 4, 7, RUN),
            ZERO,
        ),
        1,
    ),
]
BINS = [
    (SampledEvent(BallsInBinsSampling(100, 7, RUN, 60000), G, ZERO), 3),
    (
        SampledEvent(
            BallsInBinsSampling(10, 3, 2**63 - 2),
            CorrelatedGaussianSumEvent(1.0, 2.0, (1.0,), (1.0, -0.5), 40, 10, 13, RUN),
            REPLACE,
            "user",
        ),
        1,
    ),
]
GOLDEN = {
    "every_event": FIRST,
    "mechanisms": MECHANISMS,
    "separated": SEPARATED,
    "bins": BINS,
}


@pytest.mark.parametrize("name", GOLDEN)
def test_every_event_is_read_and_written_as_it_was(name):
    text = (FILES / f"{name}.jsonl").read_text()
    ledger = PrivacyLedger.from_json_lines(text)
    assert list(ledger) == GOLDEN[name]
    assert ledger.to_json_lines().splitlines()[1:] == text.splitlines()[1:]


def _parts(value):
    """Yields a value of a ledger and everything that it holds."""
    if isinstance(value, tuple):
        for part in value:
            yield from _parts(part)
    elif dataclasses.is_dataclass(value):
        yield value
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))


def test_every_kind_and_every_field_is_in_a_file():
    written = [
        part for entries in GOLDEN.values() for event, _ in entries for part in _parts(event)
    ]
    kinds = {
        kind
        for kind in vars(events).values()
        if inspect.isclass(kind) and issubclass(kind, (events.Event, events.Sampling))
    } - {events.Event, events.Sampling}
    assert {type(part) for part in written} == kinds
    for kind in kinds:
        for field in dataclasses.fields(kind):
            values = {getattr(part, field.name) for part in written if type(part) is kind}
            # What has a default was also written with another value.
            if field.default is not dataclasses.MISSING:
                assert values - {field.default}, f"{kind.__name__}.{field.name}"
