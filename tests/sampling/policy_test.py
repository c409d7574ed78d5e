import dataclasses
import functools
import math

import numpy as np
import pytest

from tests.sampling.draws import take
from tfdp.events import (
    FullBatchSampling,
    NeighboringRelation,
    PoissonSampling,
)
from tfdp.noise import host_generator
from tfdp.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedOrder,
    FixedSize,
    FullBatch,
    MinSeparationPoisson,
    Poisson,
    RandomAllocation,
    Shuffled,
    TruncatedPoisson,
    Unknown,
)

SIZED = [FixedSize, Shuffled]


DRAWN = [Poisson, FixedSize, Shuffled]


POLICIES = [
    BallsInBins,
    functools.partial(CyclicPoisson, 3),
    FixedOrder,
    FixedSize,
    FullBatch,
    functools.partial(MinSeparationPoisson, 3),
    Poisson,
    RandomAllocation,
    Shuffled,
    TruncatedPoisson,
    Unknown,
]


@pytest.mark.parametrize(
    "policy", [Poisson(0.5, 20), FixedSize(5, 20), Shuffled(6, 20), FullBatch(20)]
)
def test_units_of_a_sample_are_distinct_indices(policy):
    for units in take(policy, 30):
        assert units.dtype == np.int64
        assert len(np.unique(units)) == len(units)
        assert np.all((units >= 0) & (units < 20))


@pytest.mark.parametrize("policy", [Poisson(), Poisson(0.1), FullBatch(), Shuffled(), Unknown()])
def test_relation_is_zero_out_by_default(policy):
    # In each, a unit whose contribution is zero leaves the samples and their sizes as they are.
    assert policy.neighboring_relation is NeighboringRelation.ZERO_OUT


def test_under_add_or_remove_nothing_is_described_by_the_population():
    add = NeighboringRelation.ADD_OR_REMOVE_ONE
    described = []
    for population in (1000, 1001):
        poisson = Poisson(0.1, None, add).resolve(population, None)
        full = FullBatch(None, add).resolve(population, population)
        described.append((poisson.description(0), poisson.steps_per_epoch, full.description(0)))
        assert len(next(full.draw(host_generator()))) == population
    assert described[0] == described[1]
    assert described[0] == (PoissonSampling(0.1), 10, FullBatchSampling())


@pytest.mark.parametrize("policy", [Poisson(1.0, 1000), FullBatch(1000)])
def test_an_error_tells_the_number_of_units_where_it_is_public_alone(policy):
    with pytest.raises(ValueError, match="the data have population_size=1234"):
        policy.resolve(1234, 1234)
    add = NeighboringRelation.ADD_OR_REMOVE_ONE
    with pytest.raises(ValueError, match="population_size, which is not public") as error:
        dataclasses.replace(policy, neighboring_relation=add).resolve(1234, 1234)
    assert "1234" not in str(error.value)


@pytest.mark.parametrize("policy", DRAWN)
def test_what_follows_the_population_is_refused_under_add_or_remove(policy):
    policy = policy(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="number of units is not public.*ZERO_OUT"):
        policy.resolve(10, 2)


@pytest.mark.parametrize("policy", DRAWN)
def test_resolve_refuses_a_batch_larger_than_the_data(policy):
    with pytest.raises(ValueError, match="batch_size=11, number of units=10"):
        policy().resolve(10, 11)


@pytest.mark.parametrize("policy", DRAWN)
@pytest.mark.parametrize("batch", [2.0, 2.5, math.nan, True, "2", None])
def test_resolve_refuses_a_batch_size_that_is_not_an_integer(policy, batch):
    with pytest.raises(TypeError, match="batch_size must be an integer"):
        policy().resolve(10, batch)


@pytest.mark.parametrize("policy", DRAWN)
@pytest.mark.parametrize("batch", [0, -1])
def test_resolve_refuses_a_batch_size_below_one(policy, batch):
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        policy().resolve(10, batch)


@pytest.mark.parametrize("policy", SIZED)
def test_resolve_refuses_sizes_that_contradict(policy):
    assert policy(batch_size=2, population_size=10).resolve(10, 2) == policy(2, 10)
    with pytest.raises(ValueError, match="made for batch_size=3, but the data have batch_size=2"):
        policy(batch_size=3).resolve(10, 2)
    with pytest.raises(ValueError, match="made for population_size=11"):
        policy(population_size=11).resolve(10, 2)


@pytest.mark.parametrize("policy", SIZED)
@pytest.mark.parametrize("name", ["batch_size", "population_size"])
@pytest.mark.parametrize("value, error", [(0, ValueError), (2.0, TypeError), (True, TypeError)])
def test_refuses_bad_sizes(policy, name, value, error):
    with pytest.raises(error, match=f"{name} must be"):
        policy(**{name: value})


@pytest.mark.parametrize("policy", POLICIES)
def test_relation_and_population_are_checked_by_every_policy(policy):
    for relation in ("add_or_remove_one", None, NeighboringRelation):
        with pytest.raises(TypeError, match="neighboring_relation must be a tfdp.Neighboring"):
            policy(neighboring_relation=relation)
    if hasattr(policy(), "population_size"):
        for size, error in [(0, ValueError), (2.0, TypeError), (True, TypeError)]:
            with pytest.raises(error, match="population_size must be"):
                policy(population_size=size)
        assert type(policy(population_size=np.int64(7)).population_size) is int


@pytest.mark.parametrize("policy", [Poisson(), FixedSize(4), FixedSize(None, 10), Shuffled(4)])
def test_event_needs_the_sizes(policy):
    with pytest.raises(ValueError, match="Declare the"):
        policy.description(0)


@pytest.mark.parametrize("policy", [Poisson, FixedSize, Shuffled, FullBatch, Unknown])
def test_neighboring_relation_is_kept_or_refused(policy):
    relation = NeighboringRelation.REPLACE_ONE
    assert policy(neighboring_relation=relation).neighboring_relation == relation
    with pytest.raises(TypeError, match="must be a tfdp.NeighboringRelation"):
        policy(neighboring_relation="replace_one")


@pytest.mark.parametrize("policy", DRAWN)
def test_resolve_keeps_the_relation_and_leaves_the_policy_alone(policy):
    declared = policy(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    resolved = declared.resolve(10, 2)
    assert resolved.neighboring_relation == NeighboringRelation.REPLACE_ONE
    assert resolved.population_size == 10
    assert declared == policy(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    assert declared.population_size is None


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.int8])
@pytest.mark.parametrize(
    "policy",
    [
        Poisson(),
        FixedSize(),
        Shuffled(),
        FixedOrder(),
        BallsInBins(key=bytes(32)),
        RandomAllocation(),
        CyclicPoisson(num_groups=4),
        TruncatedPoisson(),
        MinSeparationPoisson(min_separation=3),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_sizes_of_numpy_do_not_wrap_around(policy, kind):
    """The number of batches is -(-N // n), of which unsigned integers make a large one."""
    plain, found = policy.resolve(120, 20), policy.resolve(kind(120), kind(20))
    assert found == plain
    assert found.description(0) == plain.description(0)
    assert (found.padded_size, found.steps_per_epoch) == (plain.padded_size, plain.steps_per_epoch)
