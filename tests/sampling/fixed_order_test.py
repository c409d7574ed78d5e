"""tfdp.sampling.fixed_order and cyclic_poisson: what is drawn is what is described."""

import dataclasses

import numpy as np
import pytest

from tests.sampling.draws import take
from tfdp.events import CyclicPoissonSampling, FixedOrderSampling, NeighboringRelation
from tfdp.ledger import PrivacyLedger
from tfdp.sampling import CyclicPoisson, FixedOrder
from tfdp.sampling.clock import PassClock


@pytest.mark.parametrize(("batch", "population"), [(3, 10), (5, 10), (10, 10), (1, 4)])
@pytest.mark.parametrize("start", [0, 1, 7])
def test_every_unit_comes_again_after_as_many_steps_as_a_pass_has(batch, population, start):
    policy = FixedOrder().resolve(population, batch).from_step(start)
    period = policy.steps_per_epoch
    seen = {}
    for step, units in enumerate(take(policy, 4 * period), start):
        index, number = policy.description(step - start).place
        assert (index, number) == (step % period, period)
        for unit in units:
            seen.setdefault(int(unit), []).append(step)
            assert unit // batch == index
    assert len(seen) == population
    assert {gap for steps in seen.values() for gap in np.diff(steps)} <= {period}


def test_groups_take_turns_and_samples_are_binomial():
    policy = CyclicPoisson(3).resolve(20, 5).from_step(4)
    assert policy.sampling_probability == 0.75
    sizes = {0: 0, 1: 0, 2: 0}
    for step, units in enumerate(take(policy, 600)):
        group = (4 + step) % 3
        assert policy.description(step).place == (group, 3)
        assert np.all(units % 3 == group) and len(np.unique(units)) == len(units)
        sizes[group] += len(units)
    # 200 samples of 7, 7 and 6 units; nine standard deviations.
    for group, members in enumerate((7, 7, 6)):
        expected = 200 * members * 0.75
        assert abs(sizes[group] - expected) < 9 * np.sqrt(expected * 0.25)


def test_the_clock_counts_steps_of_an_order():
    clock = PassClock(FixedOrder(3, 10).from_step(2), PrivacyLedger())
    places = []
    for _ in range(6):
        clock.begin_pass()  # An order goes on over epochs.
        places.append(clock.peek().place[0])
        clock.advance(clock.peek())
    assert places == [2, 3, 0, 1, 2, 3]


def test_descriptions():
    assert FixedOrder(3, 10, first_batch=3).description(2) == FixedOrderSampling(3, 10, 1)
    assert FixedOrder(3, 10).steps_per_epoch == 4
    turn = CyclicPoisson(4, 0.5, 80)
    assert turn.description(5) == CyclicPoissonSampling(0.5, 4, 1, 80)
    assert turn.expected_batch_size == 10 and turn.steps_per_epoch == 8
    assert CyclicPoisson(3, 0.5, 60).steps_per_epoch == 6
    assert turn.padded_size == 20
    with pytest.raises(ValueError, match="Declare the probability"):
        CyclicPoisson(2).description(0)
    with pytest.raises(ValueError, match="Declare the sizes"):
        FixedOrder(2).description(0)


@pytest.mark.parametrize("policy", [FixedOrder(), CyclicPoisson(2)])
def test_added_units_have_no_place(policy):
    add = NeighboringRelation.ADD_OR_REMOVE_ONE
    with pytest.raises(ValueError, match="not public"):
        dataclasses.replace(policy, neighboring_relation=add).resolve(10, 2)
    with pytest.raises(ValueError, match="at most the number of units"):
        policy.resolve(10, 11)
    assert policy.part(3) is None


def test_refuses_groups_smaller_than_a_batch():
    assert CyclicPoisson(2).resolve(10, 5).sampling_probability == 1.0
    with pytest.raises(ValueError, match="A group must hold at least batch_size"):
        CyclicPoisson(3).resolve(10, 5)
    with pytest.raises(ValueError, match="Leave sampling_probability out"):
        CyclicPoisson(2, 0.3).resolve(10, 2)
    with pytest.raises(ValueError, match="num_groups must be at least 1"):
        CyclicPoisson(0)


def test_sizes_that_cannot_be_contradict():
    from tfdp.sampling.sizes import Sizes

    sizes = Sizes()
    sizes.add(4)
    assert FixedOrder(4, 10).contradiction(sizes) is None
    assert FixedOrder(3, 10).contradiction(sizes) == "a batch of 4 units"
    assert CyclicPoisson(3, 0.5, 9).contradiction(sizes) == "a sample of 4 units"
    assert CyclicPoisson(2, 0.5, 9).contradiction(sizes) is None
