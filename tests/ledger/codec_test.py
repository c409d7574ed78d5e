"""tfdp.ledger.codec: events survive exactly, everything else is refused by place."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledger.strategies import ledger_events
from tfdp.events import (
    ComposedEvent,
    Event,
    GaussianSumEvent,
    NonPrivateEvent,
    PoissonSampling,
    SampledEvent,
    UnsupportedEventError,
    registry,
)
from tfdp.ledger import LedgerFormatError, codec

STEP = SampledEvent(
    PoissonSampling(0.1, 50), ComposedEvent((GaussianSumEvent(1.0, 0.1), NonPrivateEvent()))
)


@given(ledger_events)
def test_round_trip_through_json_text_is_exact(event):
    text = json.dumps(codec.encode(event), allow_nan=False)
    assert codec.decode(codec.parse_json(text, "event")) == event


@pytest.mark.parametrize("name", registry.registered_names(object))
def test_every_field_of_every_event_and_sampling_is_read(name):
    cls = registry.registered(name)
    assert list(codec.decoders(cls)) == [field.name for field in dataclasses.fields(cls)]


def test_encoded_form_is_stable():
    assert codec.encode(STEP) == {
        "type": "SampledEvent",
        "sampling": {
            "type": "PoissonSampling",
            "sampling_probability": 0.1,
            "population_size": 50,
        },
        "event": {
            "type": "ComposedEvent",
            "events": [
                {
                    "type": "GaussianSumEvent",
                    "l2_norm_bound": 1.0,
                    "noise_stddev": 0.1,
                    "seeded": False,
                },
                {"type": "NonPrivateEvent"},
            ],
        },
        "neighboring_relation": "add_or_remove_one",
        "privacy_unit": "example",
    }


GAUSSIAN = {"type": "GaussianSumEvent", "l2_norm_bound": 1.0, "noise_stddev": 2.0, "seeded": False}
SAMPLED = {
    "type": "SampledEvent",
    "sampling": {"type": "UnknownSampling"},
    "event": GAUSSIAN,
    "neighboring_relation": "zero_out",
    "privacy_unit": "user",
}


def _without(value, key):
    return {k: v for k, v in value.items() if k != key}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "event must be an object"),
        ([], "event must be an object"),
        ({}, "event.type must be one of"),
        ({"type": "PoissonEvent"}, "Received: 'PoissonEvent'"),
        ({"type": ["GaussianSumEvent"]}, "event.type must be one of"),
        ({"type": "PoissonSampling"}, "event.type must be one of"),
        (_without(GAUSSIAN, "seeded"), "must have exactly the members"),
        ({**GAUSSIAN, "extra": 1}, "must have exactly the members"),
        ({**GAUSSIAN, "noise_stddev": "2"}, "event.noise_stddev must be a number"),
        ({**GAUSSIAN, "noise_stddev": True}, "event.noise_stddev must be a number"),
        ({**GAUSSIAN, "noise_stddev": float("nan")}, "event.noise_stddev must be finite"),
        ({**GAUSSIAN, "noise_stddev": float("inf")}, "noise_stddev must be finite"),
        ({**GAUSSIAN, "noise_stddev": 10**400}, "too large"),
        ({**GAUSSIAN, "noise_stddev": 2**53 + 1}, "64-bit"),
        ({**GAUSSIAN, "noise_stddev": -1.0}, "not a valid GaussianSumEvent"),
        ({**GAUSSIAN, "seeded": 0}, "event.seeded must be true or false"),
        ({"type": "ComposedEvent", "events": GAUSSIAN}, "event.events must be a list"),
        ({"type": "ComposedEvent", "events": [GAUSSIAN, 3]}, r"event.events\[1\] must be"),
        ({"type": "ComposedEvent", "events": [SAMPLED]}, "not a valid ComposedEvent"),
        ({**SAMPLED, "sampling": GAUSSIAN}, "event.sampling.type must be one of"),
        ({**SAMPLED, "event": SAMPLED}, "not a valid SampledEvent"),
        ({**SAMPLED, "neighboring_relation": "other"}, "event.neighboring_relation"),
        ({**SAMPLED, "neighboring_relation": {}}, "event.neighboring_relation"),
        ({**SAMPLED, "privacy_unit": 3}, "event.privacy_unit must be a string"),
        ({**SAMPLED, "privacy_unit": "house"}, "not a valid SampledEvent"),
        (
            {**SAMPLED, "sampling": {"type": "FullBatchSampling", "population_size": 2.0}},
            "event.sampling.population_size must be an integer",
        ),
    ],
)
def test_refuses_what_encode_never_writes(value, message):
    with pytest.raises(LedgerFormatError, match=message):
        codec.decode(value)


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1, "a": 1}', "{", "", "[" * 100_000]
)
def test_parse_json_refuses_what_is_not_standard(text):
    with pytest.raises(LedgerFormatError, match="line 7 is not valid JSON"):
        codec.parse_json(text, "line 7")


def test_refuses_integer_too_long_to_convert():
    with pytest.raises(LedgerFormatError, match="not valid JSON"):
        codec.parse_json("1" * 10_000, "x")


@pytest.mark.parametrize("depth", [32, 400])
def test_nesting_is_bounded_on_both_ways(depth):
    value, event = GAUSSIAN, GaussianSumEvent(1.0, 2.0)
    for _ in range(depth):
        value = {"type": "ComposedEvent", "events": [value]}
        event = ComposedEvent((event,))
    with pytest.raises(LedgerFormatError, match="deeper than 32"):
        codec.decode(value)
    with pytest.raises(UnsupportedEventError, match="at most 32 nested"):
        codec.encode(event)


def test_nesting_up_to_the_bound_is_kept():
    event = GaussianSumEvent(1.0, 2.0)
    for _ in range(31):
        event = ComposedEvent((event,))
    assert codec.decode(codec.encode(event)) == event


@dataclasses.dataclass(frozen=True)
class _OtherEvent(Event):
    pass


@pytest.mark.parametrize("event", [_OtherEvent(), ComposedEvent((_OtherEvent(),))])
def test_encode_refuses_unknown_event_by_name(event):
    with pytest.raises(UnsupportedEventError, match="_OtherEvent"):
        codec.encode(event)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists))
def test_decode_of_arbitrary_json_only_raises_format_errors(value):
    with pytest.raises(LedgerFormatError):
        codec.decode({**SAMPLED, "event": value})


@pytest.mark.parametrize("wrong", [True, 1.0, "1", None, [1], {"type": "x"}], ids=repr)
def test_sampling_that_was_met_before_is_not_mistaken_for_another(wrong):
    def step(sample_size):
        sampling = {"type": "FixedSizeSampling", "sample_size": sample_size, "population_size": 9}
        return {**codec.encode(STEP), "sampling": sampling}

    # Equal numbers of other types, which the same key would find, are no integers.
    assert codec.decode(step(1)) == codec.decode(step(1))
    with pytest.raises(LedgerFormatError, match=r"event\.sampling\.sample_size must be an integer"):
        codec.decode(step(wrong))


def test_samplings_that_are_remembered_are_few():
    for size in range(1, 3000):
        sampling = {"type": "FixedSizeSampling", "sample_size": 1, "population_size": size}
        codec.decode({**codec.encode(STEP), "sampling": sampling})
    assert len(codec._samplings) <= codec._MOST_SAMPLINGS


@dataclasses.dataclass(frozen=True)
class _Foreign(Event):
    words = "of another package"
    size: float
    number: int = 1
    inner: Event = NonPrivateEvent()


@pytest.fixture
def foreign(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    return registry.register(_Foreign)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": float("nan")},
        {"size": float("inf")},
        {"size": "1.0"},
        {"size": 2**60 + 1},
        {"size": True},
        {"size": 1.0, "number": 1.5},
        {"size": 1.0, "number": True},
        {"size": 1.0, "inner": "NonPrivateEvent"},
        {"size": 1.0, "inner": None},
    ],
    ids=repr,
)
def test_what_another_package_puts_into_a_field_is_stored_as_it_is_or_refused(foreign, wrong):
    # Such a ledger could be written and never be read.
    with pytest.raises(UnsupportedEventError, match=r"would not give back _Foreign"):
        codec.to_text(ComposedEvent((GaussianSumEvent(1.0, 1.0), foreign(**wrong))))
    assert codec.decode(codec.encode(foreign(1, 2, STEP.event))) == foreign(1.0, 2, STEP.event)


def test_an_event_of_a_package_that_is_not_imported_is_named(foreign):
    value = codec.encode(foreign(1.0))
    del registry._REGISTERED["_Foreign"]
    with pytest.raises(LedgerFormatError, match=r"'_Foreign'.*needs that package: import it first"):
        codec.decode(value)
