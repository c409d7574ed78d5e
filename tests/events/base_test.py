"""tfdp.events: what all events and samplings have in common."""

import dataclasses
import inspect

import numpy as np
import pytest

from tfdp import events

KINDS = [
    kind
    for kind in vars(events).values()
    if inspect.isclass(kind)
    and issubclass(kind, (events.Event, events.Sampling))
    and kind not in (events.Event, events.Sampling)
]
EXAMPLES = {
    "sampling_probability": 0.5,
    "population_size": 10,
    "max_sample_size": 8,
    "min_separation": 3,
    "sample_size": 2,
    "batch_size": 2,
    "l2_norm_bound": 1.0,
    "l1_norm_bound": 1.0,
    "noise_stddev": 2.0,
    "share_stddev": 2.0,
    "min_shares": 1,
    "noise_scale": 2.0,
    "granularity": 0.25,
    "max_coordinates": 4,
    "epsilon": 0.5,
    "delta": 0.25,
    "noise_parameter": 0.5,
    "num_buckets": 3,
    "numerator": (1.0, 0.5),
    "denominator": (1.0,),
    "num_steps": 8,
    "period": 4,
    "position": 0,
    "run_id": 5,
    "num_groups": 4,
    "num_bins": 4,
    "bin_index": 1,
    "assignment": 6,
    "counts": (2,),
    "shape": 1.0,
    "success_probability": 0.5,
    "mean_runs": 2.0,
    "runs": (events.RunEvent((events.GaussianSumEvent(1.0, 1.0),), (2,)),),
    "events": (events.GaussianSumEvent(1.0, 1.0),),
    "event": events.GaussianSumEvent(1.0, 1.0),
    "sampling": events.PoissonSampling(0.5),
}


def required(kind):
    """Returns arguments for the fields of `kind` that have no default."""
    return {
        field.name: EXAMPLES[field.name]
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING
    }


def numbers(kind):
    """Returns the names of the fields that hold a number and are required."""
    return [name for name, value in required(kind).items() if isinstance(value, (int, float))]


NUMBERS = [(kind, name) for kind in KINDS for name in numbers(kind)]


def test_every_kind_is_public_frozen_and_compared_by_value():
    assert len(KINDS) >= 15
    for kind in KINDS:
        assert kind.__name__ in events.__all__
        assert kind(**required(kind)) == kind(**required(kind))
        assert len({kind(**required(kind)), kind(**required(kind))}) == 1
        for field in dataclasses.fields(kind):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(kind(**required(kind)), field.name, None)


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1, True, "1", None, 1j])
def test_no_number_of_an_event_can_be_what_it_is_not(kind, name, bad):
    with pytest.raises((ValueError, TypeError), match=f"{name} must|must be at most {name}"):
        kind(**{**required(kind), name: bad})


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_numbers_of_numpy_become_those_of_python(kind, name):
    """What a ledger stores, and digests, does not follow from who computed it."""
    given = required(kind)
    numpys = (np.int64 if isinstance(given[name], int) else np.float32)(given[name])
    event = kind(**{**given, name: numpys})
    assert type(getattr(event, name)) is type(given[name])
    assert event == kind(**given)


@pytest.mark.parametrize(
    ("kind", "name", "bad"),
    [
        (kind, name, bad)
        for name, bads in (
            ("population_size", [0, -1, 10.0, True]),
            ("pass_index", [-1, 1.0, True]),
        )
        for kind in KINDS
        if name in kind.__dataclass_fields__
        for bad in bads
    ],
)
def test_no_size_and_no_pass_of_a_sampling_can_be_what_it_is_not(kind, name, bad):
    with pytest.raises((ValueError, TypeError), match=f"{name} must"):
        kind(**{**required(kind), name: bad})


@pytest.mark.parametrize("kind", [k for k in KINDS if "seeded" in k.__dataclass_fields__])
def test_seeded_noise_is_no_noise(kind):
    assert kind(**required(kind)).noise_multiplier == 2.0
    assert kind(**required(kind), seeded=True).noise_multiplier == 0.0
    with pytest.raises(TypeError, match="seeded must be a bool"):
        kind(**required(kind), seeded=1)


def test_relations_have_the_names_that_ledgers_hold():
    assert [relation.value for relation in events.NeighboringRelation] == [
        "add_or_remove_one",
        "replace_one",
        "zero_out",
    ]
