import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from tfdp.events import GaussianSumEvent, NeighboringRelation, SampledEvent, ShuffledSampling
from tfdp.ledger import PrivacyLedger
from tfdp.sampling import FixedSize, FullBatch, Poisson, Shuffled, Unknown
from tfdp.sampling.clock import PassClock

POLICY = Shuffled(4, 10)  # Three steps a pass.


def _ledger(*samplings):
    ledger = PrivacyLedger()
    for sampling in samplings:
        event = GaussianSumEvent(1.0, 1.0)
        ledger.append(SampledEvent(sampling, event, NeighboringRelation.ZERO_OUT))
    return ledger


def _step(clock, size=None):
    sampling = clock.peek(size)
    event = SampledEvent(sampling, GaussianSumEvent(1.0, 1.0), NeighboringRelation.ZERO_OUT)
    clock.ledger.append(event)
    clock.advance(sampling, size)
    return sampling


def _passes(clock, steps):
    return [_step(clock).pass_index for _ in range(steps)]


def test_pass_ends_after_steps_per_pass():
    assert _passes(PassClock(POLICY, _ledger()), 7) == [0, 0, 0, 1, 1, 1, 2]


def test_describes_steps_by_the_policy():
    assert _step(PassClock(POLICY, _ledger())) == ShuffledSampling(4, 10, 0)


def test_begin_pass_ends_a_pass_early():
    clock = PassClock(POLICY, _ledger())
    assert _passes(clock, 2) == [0, 0]
    clock.begin_pass()
    assert _passes(clock, 4) == [1, 1, 1, 2]


def test_begin_pass_before_a_step_changes_nothing():
    clock = PassClock(POLICY, _ledger())
    clock.begin_pass()
    clock.begin_pass()
    assert _passes(clock, 3) == [0, 0, 0]
    clock.begin_pass()
    clock.begin_pass()
    assert _passes(clock, 1) == [1]


def test_begin_pass_at_the_end_of_a_pass_does_not_skip_a_number():
    clock = PassClock(POLICY, _ledger())
    _passes(clock, 3)
    clock.begin_pass()
    assert _passes(clock, 1) == [1]


def test_peek_counts_nothing():
    clock = PassClock(POLICY, _ledger())
    _passes(clock, 3)
    assert {clock.peek().pass_index for _ in range(5)} == {1}
    assert _passes(clock, 3) == [1, 1, 1]


@pytest.mark.parametrize(
    "samplings, first",
    [
        ([], 0),
        ([ShuffledSampling(4, 10, 0)], 1),
        ([ShuffledSampling(4, 10, 5), ShuffledSampling(4, 10, 2)], 6),
        # A pass of another batch size, or over another data set, keeps its number too.
        ([ShuffledSampling(2, 99, 3)], 4),
        ([Poisson(0.1).description(0)], 0),
        ([ShuffledSampling(4, 10, 1), Poisson(0.1).description(0)], 2),
    ],
)
def test_passes_start_after_those_of_the_ledger(samplings, first):
    # A run that was interrupted in mid-pass starts a new pass: its data are shuffled anew.
    assert _passes(PassClock(POLICY, _ledger(*samplings)), 1) == [first]


def test_events_without_sampling_have_no_pass():
    ledger = PrivacyLedger()
    ledger.append(GaussianSumEvent(1.0, 1.0))
    assert _passes(PassClock(POLICY, ledger), 1) == [0]


@pytest.mark.parametrize("policy", [Poisson(0.1, 10), FixedSize(2, 10), FullBatch(10), Unknown()])
def test_policies_without_passes_describe_every_step_alike(policy):
    clock = PassClock(policy, _ledger(ShuffledSampling(4, 10, 5)))
    clock.begin_pass()
    steps = [_step(clock) for _ in range(20)]
    clock.begin_pass()
    assert set(steps) | {_step(clock)} == {policy.description(0)}


@pytest.mark.parametrize("policy", [Poisson(), Shuffled(), FixedSize(3)])
def test_policy_that_cannot_describe_its_steps_is_refused_at_once(policy):
    with pytest.raises(ValueError, match="Declare the"):
        PassClock(policy, _ledger())


@hypothesis.given(st.lists(st.sampled_from(["step", "begin"]), max_size=30), st.integers(1, 12))
def test_never_counts_fewer_passes_than_there_were(calls, batch_size):
    # A unit that was seen may be seen again after `begin`, or after steps_per_pass steps: so a
    # number may not be shared across `begin`, nor by more than steps_per_pass steps.
    policy = Shuffled(min(batch_size, 10), 10)
    clock = PassClock(policy, _ledger(ShuffledSampling(4, 10, 2)))
    numbers, real_pass, real_passes = [], 0, []
    for call in calls:
        if call == "begin":
            clock.begin_pass()
            real_pass += 1
        else:
            numbers.append(_step(clock).pass_index)
            real_passes.append(real_pass)
    assert numbers == sorted(numbers)
    assert all(number > 2 for number in numbers)
    for number, group in itertools.groupby(zip(numbers, real_passes, strict=True), lambda p: p[0]):
        group = list(group)
        assert len(group) <= policy.steps_per_pass, number
        assert len({real for _, real in group}) == 1, number


def test_clocks_on_one_ledger_share_no_pass():
    ledger = _ledger()
    first, second = PassClock(POLICY, ledger), PassClock(POLICY, ledger)
    assert _passes(first, 2) == [0, 0]
    assert _passes(second, 2) == [1, 1]
    assert _passes(first, 2) == [0, 2]
    assert _passes(second, 2) == [1, 3]


# Declared passes: what a data set does is not known.


def _sizes(population, batch, drop_remainder, passes):
    whole, rest = divmod(population, batch)
    one = [batch] * whole + ([rest] if rest and not drop_remainder else [])
    return [(number, size) for number in range(passes) for size in one]


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("sizes_are_known", [False, True])
def test_declared_passes_are_never_fewer_than_there_were(drop_remainder, sizes_are_known):
    # All data sets of up to 12 units, all batches, all numbers of steps of up to 5 passes, without
    # an end between them.
    for population, batch in itertools.product(range(1, 13), repeat=2):
        if batch > population:
            continue
        policy = Shuffled(batch, population)
        steps = _sizes(population, batch, drop_remainder, 5)
        clock = PassClock(policy, _ledger(), drawn=False)
        counted = {}
        for taken, (real, size) in enumerate(steps):
            number = _step(clock, size if sizes_are_known else None).pass_index
            counted.setdefault(number, set()).add(real)
            assert len(counted) >= real + 1, (population, batch, taken)
            if sizes_are_known:
                assert len(counted) == real + 1, (population, batch, taken)
        # No number stands for steps of two passes, and so for two steps with one unit.
        assert all(len(real) == 1 for real in counted.values())


@pytest.mark.parametrize("before", range(5))
@pytest.mark.parametrize("moves", [False, True])
def test_no_number_is_of_two_draws_where_a_drawn_pass_gets_another(before, moves):
    """A unit may be in any step of each draw: in two steps of one number, if that is of two."""
    clock = PassClock(POLICY, _ledger())
    numbers = [("before", number) for number in _passes(clock, before)]
    if moves:
        clock = clock.moved_to(_ledger())
    else:
        clock.renumber()
    ledger = "after" if moves else "before"
    numbers += [(ledger, number) for number in _passes(clock, 8)]
    draws_of = {}
    for step, number in enumerate(numbers):
        draws_of.setdefault(number, set()).add(step // 3)
    assert all(len(draws) == 1 for draws in draws_of.values())


def test_declared_passes_may_begin_or_go_on_where_they_are_renumbered():
    clock = PassClock(POLICY, _ledger(), drawn=False)
    assert [_step(clock, 4).pass_index for _ in range(2)] == [0, 0]
    clock.renumber()
    # The last step of the pass, and two of the next; or three of the next.
    assert [_step(clock).pass_index for _ in range(3)] == [1, 2, 3]
    clock.begin_pass()
    assert [_step(clock, size).pass_index for size in (4, 4, 2, 4)] == [4, 4, 4, 5]


def test_declared_passes_that_go_on_for_certain_are_not_cut_by_epochs():
    clock = PassClock(POLICY, _ledger(), drawn=False, goes_on=True)
    numbers = []
    for size in (4, 4, 2) * 3:
        numbers.append(_step(clock, size).pass_index)
        clock.end_epoch()
    assert numbers == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert _step(clock, 4).pass_index == 3
    clock.renumber()  # Whatever asks for another number gets one, for what is left of the pass.
    assert [_step(clock, size).pass_index for size in (4, 2, 4)] == [4, 4, 5]
    moved = clock.moved_to(_ledger())
    assert [_step(moved, size).pass_index for size in (4, 2, 4)] == [0, 0, 1]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("sizes_are_known", [False, True])
@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("population", [8, 10, 12])
def test_no_number_is_of_two_declared_passes(population, is_told, moves, sizes_are_known, restarts):
    """Wherever an epoch ends, in a data set that goes on or begins again there."""
    policy = Shuffled(4, population)
    for drops, epoch in itertools.product((False, True), range(1, 8)):
        one = [size for _, size in _sizes(population, 4, drops, 1)]
        goes_on = not restarts if is_told else None
        clock, real, place = PassClock(policy, _ledger(), False, goes_on), 0, 0
        passes_of = {}
        for step in range(20):
            if step and step % epoch == 0:
                clock = clock.moved_to(_ledger()) if moves else clock
                clock.end_epoch()
                if restarts:
                    real, place = real + bool(place), 0
            number = _step(clock, one[place] if sizes_are_known else None).pass_index
            passes_of.setdefault((clock.ledger.ledger_id, number), set()).add(real)
            place = (place + 1) % len(one)
            real += not place
        assert all(len(found) == 1 for found in passes_of.values()), (drops, epoch)
