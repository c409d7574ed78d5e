"""tfdp.accounting.planning.training_plan: the event and the numbers of a planned run."""

import numpy as np
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


UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", [*UNSIGNED, np.int8])
def test_integers_of_numpy_do_not_wrap_around(sampling, kind):
    """-120 of NumPy's unsigned integers is a large number, and so was the number of batches."""
    numbers = {"population_size": 120, "batch_size": 20, "steps": 12}
    plain = TrainingPlan(**numbers, noise_multiplier=1.0, sampling=sampling)
    given = {name: kind(number) for name, number in numbers.items()}
    plan = TrainingPlan(**given, noise_multiplier=np.float32(1.0), sampling=sampling)
    assert plan == plain and plan.event() == plain.event()
    assert {type(getattr(plan, name)) for name in numbers} == {int}
    assert plan.epsilon(1e-5, "rdp") == plain.epsilon(1e-5, "rdp")
    assert steps_of_epochs(1.5, kind(20), kind(120), sampling) == 9


@pytest.mark.parametrize("epochs", [1e18, 1e300, 1e308])
def test_epochs_of_too_many_steps_are_refused(epochs):
    with pytest.raises(ValueError, match="at most 2"):
        steps_of_epochs(epochs, 1, 1000)
