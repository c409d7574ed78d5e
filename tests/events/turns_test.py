"""tfdp.events.turns: parts of the data that take turns, and which releases can be about them."""

import dataclasses

import pytest

from tfdp.events import (
    BallsInBinsSampling,
    CorrelatedGaussianSumEvent,
    CyclicPoissonSampling,
    FixedOrderSampling,
    SampledEvent,
    TreeGaussianSumEvent,
)

TURNS = [
    FixedOrderSampling(2, 10, 3),
    CyclicPoissonSampling(0.5, 5, 3, 100),
    BallsInBinsSampling(5, 3, 2**62, 100),
]


@pytest.mark.parametrize("sampling", TURNS)
def test_turns_have_a_place_and_no_pass(sampling):
    assert sampling.place == (3, 5)
    assert sampling.at_first_place().place == (0, 5)
    assert sampling.pass_number == -1 and sampling.in_pass(4) == sampling


@pytest.mark.parametrize("index", [5, -1])
def test_there_is_no_other_turn(index):
    for sampling in TURNS[1:]:
        name = "bin_index" if isinstance(sampling, BallsInBinsSampling) else "group_index"
        with pytest.raises(ValueError, match=name):
            dataclasses.replace(sampling, **{name: index})


def test_a_draw_of_bins_has_a_number():
    assert BallsInBinsSampling(5, 0, 0).population_size is None
    for wrong in (-1, 2**63):
        with pytest.raises(ValueError, match="assignment"):
            BallsInBinsSampling(5, 0, wrong)
    with pytest.raises(ValueError, match="num_bins"):
        BallsInBinsSampling(0, 0, 0)


def test_bins_are_for_noise_that_remembers_more_than_a_turn():
    endless = CorrelatedGaussianSumEvent(1.0, 2.0, (1.0,), (1.0, -0.5), 20, 5, 3, 1)
    for event in (endless, TreeGaussianSumEvent(1.0, 2.0, 20, 5, 3, 1)):
        SampledEvent(TURNS[2], event)
        with pytest.raises(ValueError, match="BallsInBins, or FixedOrder"):
            SampledEvent(TURNS[1], event)
        with pytest.raises(ValueError, match="this is part 2 of 5"):
            SampledEvent(dataclasses.replace(TURNS[2], bin_index=2), event)
        with pytest.raises(ValueError, match="of 6"):
            SampledEvent(dataclasses.replace(TURNS[2], num_bins=6), event)
