"""tfdp.events.correlated: which steps of runs there can be, and on which samples."""

import dataclasses

import pytest

from tfdp.events import (
    ComposedEvent,
    CorrelatedGaussianSumEvent,
    CyclicPoissonSampling,
    FixedOrderSampling,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    MinSeparationSampling,
    PoissonSampling,
    SampledEvent,
    ShuffledSampling,
    UnknownSampling,
)
from tfdp.ledger import PrivacyLedger

STEP = CorrelatedGaussianSumEvent(1.0, 2.0, (1.0, 0.5, 0.375), (1.0,), 20, 5, 7, 99)
OTHERS = [
    PoissonSampling(0.1),
    FixedSizeSampling(2, 10),
    FullBatchSampling(),
    UnknownSampling(),
    ShuffledSampling(2, 10),
]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_steps": 0}, ValueError, "num_steps must be at least 1"),
        ({"num_steps": 2**20 + 1}, ValueError, "num_steps must be at most"),
        ({"position": 20}, ValueError, "position must be at least 0 and below 20"),
        ({"position": -1}, ValueError, "position"),
        ({"position": 1.5}, TypeError, "position"),
        ({"run_id": -1}, ValueError, "run_id"),
        ({"period": 0}, ValueError, "period must be at least 1"),
        ({"numerator": ()}, ValueError, "1 to 1024 coefficients"),
        ({"numerator": (2.0,)}, ValueError, "the first is 1"),
        ({"denominator": (1.0, 0.0)}, ValueError, "last one of denominator must not be 0"),
        ({"denominator": (1.0, float("nan"))}, ValueError, "finite"),
        ({"noise_stddev": -1.0}, ValueError, "noise_stddev"),
    ],
)
def test_refuses_what_is_no_step_of_a_run(change, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(STEP, **change)


def test_period_must_be_that_of_the_sampling():
    assert SampledEvent(FixedOrderSampling(2, 10, 2), STEP).step_of_run() == 7
    for index in (0, 1, 3, 4):
        with pytest.raises(ValueError, match="supposes part 2 of 5 in step 7"):
            SampledEvent(FixedOrderSampling(2, 10, index), STEP)
    with pytest.raises(ValueError, match="part 2 of 6"):
        SampledEvent(FixedOrderSampling(2, 12, 2), STEP)
    for sampling in OTHERS:
        with pytest.raises(ValueError, match="FixedOrder"):
            SampledEvent(sampling, STEP)
        with pytest.raises(ValueError, match="FixedOrder"):
            SampledEvent(sampling, ComposedEvent((GaussianSumEvent(1.0, 1.0), STEP)))


def test_random_samples_need_bands_that_end_before_the_unit_comes_again():
    turn = CyclicPoissonSampling(0.5, 5, 2, 100)
    SampledEvent(turn, STEP)
    wide = dataclasses.replace(STEP, numerator=(1.0,) * 6)
    endless = dataclasses.replace(STEP, denominator=(1.0, -0.5))
    for event in (wide, endless):
        SampledEvent(FixedOrderSampling(2, 10, 2), event)
        with pytest.raises(ValueError, match="no more bands than there are steps"):
            SampledEvent(turn, event)


@pytest.mark.parametrize(
    "change", [{"numerator": (1.0,) * 6}, {"denominator": (1.0, -0.5)}, {"period": 6}], ids=str
)
def test_samples_that_are_apart_need_bands_and_a_period_that_end_before(change):
    SampledEvent(MinSeparationSampling(0.1, 5, 20), STEP)
    event = dataclasses.replace(STEP, **change)
    with pytest.raises(ValueError, match="where it is away for 5"):
        SampledEvent(MinSeparationSampling(0.1, 5, 20), event)
    if "denominator" not in change:
        SampledEvent(MinSeparationSampling(0.1, 6, 20), event)


def test_a_unit_in_every_step_needs_no_order():
    every = dataclasses.replace(STEP, period=1)
    for sampling in (FullBatchSampling(), UnknownSampling(), FixedOrderSampling(2, 10, 3)):
        SampledEvent(sampling, every)
    for sampling in (PoissonSampling(0.1), FixedSizeSampling(2, 10), ShuffledSampling(2, 10)):
        with pytest.raises(ValueError, match="take FixedOrder|FixedOrder"):
            SampledEvent(sampling, every)
    independent = dataclasses.replace(every, numerator=(1.0,))
    SampledEvent(PoissonSampling(0.1), independent)


def test_steps_of_one_run_have_their_start_in_common():
    def step(i, run=1, order=1):
        event = dataclasses.replace(STEP, position=i, run_id=run)
        both = ComposedEvent((event, GaussianSumEvent(1.0, 1.0))[::order])
        return SampledEvent(FixedOrderSampling(2, 10, i % 5), both)

    assert len({step(i).run_start() for i in range(20)}) == 1
    assert step(3).run_start() == step(0) != step(3, run=2).run_start()
    for either in (step(3), step(3, order=-1)):
        assert either.run_ids() == (1,) and either.step_of_run() == 3
    plain = SampledEvent(PoissonSampling(0.1), ComposedEvent((GaussianSumEvent(1.0, 1.0),)))
    assert plain.run_start() is None is plain.step_of_run() and plain.run_ids() == ()


def test_ledgers_keep_runs():
    ledger = PrivacyLedger()
    for i in range(3):
        step = dataclasses.replace(STEP, position=i, run_id=2**63 - 2)
        ledger.append(SampledEvent(FixedOrderSampling(2, 10, i), step))
    assert PrivacyLedger.from_json_lines(ledger.to_json_lines()) == ledger
    assert len(ledger) == 3


def test_a_larger_bound_scales_the_bound_alone():
    assert STEP.scaled(2.0) == dataclasses.replace(STEP, l2_norm_bound=2.0)
    assert STEP.why_not_private() is None
    assert "seeded" in dataclasses.replace(STEP, seeded=True).why_not_private()
