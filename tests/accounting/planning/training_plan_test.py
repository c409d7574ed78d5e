"""tfdp.accounting.planning.training_plan: the event and the numbers of a planned run."""

import pytest

from tfdp.accounting import (
    TrainingPlan,
)
from tfdp.accounting.planning.training_plan import SAMPLINGS, steps_of_epochs
from tfdp.events import (
    FixedSizeSampling,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    SampledEvent,
    ShuffledSampling,
)


@pytest.mark.parametrize(
    ("sampling", "expected", "relation"),
    [
        ("poisson", PoissonSampling(0.1, 1000), NeighboringRelation.ZERO_OUT),
        ("fixed_size", FixedSizeSampling(100, 1000), NeighboringRelation.REPLACE_ONE),
        ("shuffled", ShuffledSampling(100, 1000), NeighboringRelation.ZERO_OUT),
    ],
)
def test_event_of_a_plan(sampling, expected, relation):
    plan = TrainingPlan(1000, 100, 7, 1.5, sampling)
    assert plan.event() == SampledEvent(expected, GaussianSumEvent(1.0, 1.5), relation)


def test_samplings_are_those_of_training():
    from tfdp import sampling as policies

    classes = {
        "poisson": policies.Poisson,
        "fixed_size": policies.FixedSize,
        "shuffled": policies.Shuffled,
        "random_allocation": policies.RandomAllocation,
    }
    assert list(SAMPLINGS) == list(classes)
    for name, make in classes.items():
        for batch in (1, 64, 256, 999, 1000):
            policy = make().resolve(1000, batch)
            plan = TrainingPlan(1000, batch, 1, 1.0, name)
            assert plan.event().sampling == policy.description(0)
            assert plan.neighboring_relation is policy.neighboring_relation
            assert steps_of_epochs(3, batch, 1000, name) == 3 * policy.steps_per_epoch


def test_numbers_of_a_plan():
    plan = TrainingPlan(1000, 100, 25, 1.5)
    assert plan.sampling_probability == 0.1
    assert plan.epochs == 2.5
    assert plan.noise_batch_ratio == 0.015
    # Half an epoch of 10 steps, rounded up.
    assert steps_of_epochs(0.55, 100, 1000) == 6
