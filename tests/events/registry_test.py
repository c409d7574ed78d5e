"""tfdp.events.registry: what can be stored is registered, and what cannot is refused by name."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import pytest

from tfdp import events
from tfdp.events import registry
from tfdp.ledger import codec


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))


def _public(base):
    found = [getattr(events, name) for name in events.__all__]
    return {c.__name__ for c in found if isinstance(c, type) and issubclass(c, base)} - {
        base.__name__
    }


@pytest.mark.parametrize("base", [events.Event, events.Sampling])
def test_every_public_class_is_registered(base):
    assert set(registry.registered_names(base)) == _public(base)


@pytest.mark.parametrize("name", registry.registered_names(object))
def test_every_class_says_itself_what_a_report_calls_it(name):
    cls = registry.registered(name)
    assert "words" in vars(cls)
    assert set(cls.field_words) <= {field.name for field in dataclasses.fields(cls)}


def test_there_is_a_decoder_of_every_type_that_a_field_may_have():
    assert set(codec._DECODERS) == set(registry.FIELD_TYPES)


def _event(name="Counted", base=events.Event, frozen=True, words="a count", **annotations):
    namespace = {
        "__annotations__": {"words": ClassVar[str], **annotations},
        "__module__": __name__,
        "words": words,
    }
    return dataclasses.dataclass(frozen=frozen)(type(name, (base,), namespace))


def test_a_registered_event_is_stored_and_read():
    event = registry.register(_event(a=int, b=float, c=str, d=bool, e=int | None, f=events.Event))(
        1, 0.5, "x", True, None, events.NonPrivateEvent()
    )
    assert codec.decode(codec.parse_json(codec.to_text(event), "event")) == event
    assert codec.encode(event)["type"] == "Counted"


def test_annotations_may_be_texts():
    event = registry.register(_event(a="int"))(1)
    assert codec.decode(codec.encode(event)) == event


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (list, "list"),
        (dict[str, float], r"dict\[str, float\]"),
        (tuple[str, ...], r"tuple\[str, \.\.\.\]"),
        (events.GaussianSumEvent, "GaussianSumEvent"),
        (float | None, r"float \| None"),
        (Mapping, "Mapping"),
    ],
)
def test_a_field_that_no_ledger_can_store_is_refused_by_name(annotation, name):
    with pytest.raises(TypeError, match=rf"Counted\.size is a .*{name}, which no ledger can store"):
        registry.register(_event(size=annotation))
    assert registry.registered("Counted") is None


def test_a_field_named_as_the_class_in_the_ledger_is_refused():
    with pytest.raises(TypeError, match=r"Counted\.type may not be named type"):
        registry.register(_event(type=str))


def test_a_field_that_is_no_argument_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Derived(events.Event):
        words = "a release"
        made: int = dataclasses.field(init=False, default=1)

    with pytest.raises(TypeError, match=r"Derived\.made must be an argument"):
        registry.register(Derived)


def _compared(namespace=(), **options):
    namespace = {"__annotations__": {"cost": float}, "words": "a release", **dict(namespace)}
    return dataclasses.dataclass(frozen=True, **options)(type("Own", (events.Event,), namespace))


@pytest.mark.parametrize(
    ("namespace", "options"),
    [
        ({"cost": dataclasses.field(compare=False)}, {}),
        ({"cost": dataclasses.field(hash=False)}, {}),
        ({}, {"eq": False}),
        ({"__eq__": lambda self, other: True}, {}),
        ({"__eq__": lambda self, other: True, "__hash__": lambda self: 1}, {}),
        ({"__ne__": lambda self, other: False}, {}),
        ({"__hash__": lambda self: 1}, {}),
    ],
)
def test_events_that_may_be_equal_and_cost_something_else_are_refused(namespace, options):
    with pytest.raises(TypeError, match="Own must be compared by all its fields"):
        registry.register(_compared(namespace, **options))
    assert registry.registered("Own") is None


@pytest.mark.parametrize("options", [{}, {"order": True}, {"slots": True}, {"kw_only": True}])
def test_events_that_dataclasses_compare_are_accepted(options):
    cls = registry.register(_compared(**options))
    assert cls(cost=1.0) != cls(cost=2.0)


class _Plain(events.Event):
    words = "a release"


@dataclasses.dataclass(frozen=True)
class _Other:
    words = "no event"


@pytest.mark.parametrize(
    "cls", [_Plain, _Other, _event(frozen=False), type("Sub", (_event(),), {})]
)
def test_what_is_no_frozen_dataclass_of_an_event_is_refused(cls):
    with pytest.raises(TypeError, match="Only a frozen dataclass"):
        registry.register(cls)


@pytest.mark.parametrize("words", [None, 3])
def test_an_event_without_words_is_refused(words):
    with pytest.raises(TypeError, match=r"Counted\.words must say"):
        registry.register(_event(words=words))


def test_a_name_is_given_once():
    registry.register(_event())
    elsewhere = _event()
    elsewhere.__module__ = "another_package"
    for cls in (elsewhere, _event("GaussianSumEvent")):
        with pytest.raises(ValueError, match=f"There is a class {cls.__name__} in"):
            registry.register(cls)


def test_a_class_that_is_defined_anew_takes_the_place_of_the_one_before():
    old, new = registry.register(_event()), registry.register(_event(a=int))
    assert codec.decode(codec.encode(new(1))) == new(1)
    with pytest.raises(events.UnsupportedEventError, match="cannot store a Counted"):
        codec.encode(old())


def test_a_class_of_the_name_of_a_registered_one_is_not_stored():
    impostor = _event("NonPrivateEvent")()
    with pytest.raises(events.UnsupportedEventError, match="cannot store a NonPrivateEvent"):
        codec.encode(impostor)
