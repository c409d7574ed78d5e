"""Which classes of events and samplings there are, so that ledgers can store and read them."""

import dataclasses
import types
import typing
from typing import Any, TypeVar

from tfdp.events.base import Event, NeighboringRelation, Sampling

# What the field of a class may be annotated with: the ledger has a way to write and to read each
# (`tfdp.ledger.codec`).
FIELD_TYPES: tuple[Any, ...] = (
    bool,
    int,
    int | None,
    float,
    str,
    NeighboringRelation,
    Event,
    Sampling,
    tuple[Event, ...],
    tuple[float, ...],
    tuple[int, ...],
)
_REGISTERED: dict[str, type] = {}
_Class = TypeVar("_Class", bound=type)


def _name_of(annotation: Any) -> str:
    is_class = isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias)
    return annotation.__name__ if is_class else str(annotation)


def field_types(cls: type) -> dict[str, Any]:
    """Returns what the fields of a dataclass are annotated with, by name, in their order."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _check_fields(cls: type) -> None:
    for field in dataclasses.fields(cls):
        if field.name == "type" or not field.init:
            reason = "may not be named type" if field.init else "must be an argument"
            raise TypeError(
                f"{cls.__name__}.{field.name} {reason}: a ledger stores the name of the class as "
                "type, and makes an event from all its fields."
            )
    for name, annotation in field_types(cls).items():
        if annotation not in FIELD_TYPES:
            raise TypeError(
                f"{cls.__name__}.{name} is a {_name_of(annotation)}, which no ledger can store. "
                f"A field may be one of: {', '.join(map(_name_of, FIELD_TYPES))}."
            )


def _check_comparison(cls: type) -> None:
    """Equal events are stored once, and priced alike: all fields must be compared."""
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    plain = dataclasses.make_dataclass(
        "Plain", [(name, Any) for name in names], init=False, repr=False, unsafe_hash=True
    )
    as_made = [_instructions(plain, name) for name in ("__eq__", "__hash__")]
    if (
        len(names) < len(dataclasses.fields(cls))
        or [_instructions(cls, name) for name in ("__eq__", "__hash__")] != as_made
        or cls.__ne__ is not object.__ne__
    ):
        raise TypeError(
            f"{cls.__name__} must be compared by all its fields, as dataclasses do by themselves: "
            "a ledger stores equal events as one, with a count. Leave out compare=False, "
            "hash=False and eq=False, and define no __eq__, __ne__ or __hash__."
        )


def _instructions(cls: type, name: str) -> tuple[Any, ...] | None:
    code = getattr(getattr(cls, name), "__code__", None)
    return None if code is None else (code.co_code, code.co_names, code.co_consts)


def register(cls: _Class) -> _Class:
    """Lets ledgers store and read events, or descriptions of samplings, of this class.

    It is written above `dataclasses.dataclass(frozen=True)`. A class that is defined anew in the
    same module, as where a cell of a notebook runs again, takes the place of the one before.

    A ledger that holds such events can be read where the class is registered. Elsewhere it is
    refused by the name of the class. An accountant refuses the event until it has a price.

    Raises:
        TypeError: the class is no frozen dataclass that is derived from `Event` or `Sampling`, it
            has no `words`, a field is of a type that no ledger can store, or equal events of the
            class need not have equal fields.
        ValueError: there is another class of this name.

    Example:
        >>> import dataclasses
        >>> @register
        ... @dataclasses.dataclass(frozen=True)
        ... class Published(Event):
        ...     words = "list of records"
        ...     how_many: list
        Traceback (most recent call last):
        ...
        TypeError: Published.how_many is a list, which no ledger can store. ...
    """
    frozen = dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if (
        not issubclass(cls, (Event, Sampling))
        or "__dataclass_params__" not in vars(cls)
        or not frozen
    ):
        raise TypeError(
            "Only a frozen dataclass that is derived from tfdp.events.Event or Sampling can be "
            f"registered. Received: {cls!r}."
        )
    if not isinstance(getattr(cls, "words", None), str):
        raise TypeError(f"{cls.__name__}.words must say what a report calls it.")
    _check_fields(cls)
    _check_comparison(cls)
    before = _REGISTERED.get(cls.__name__)
    if before is not None and not is_defined_anew(before, cls):
        raise ValueError(
            f"There is a class {cls.__name__} in {before.__module__} already. "
            f"Choose another name for the one in {cls.__module__}."
        )
    _REGISTERED[cls.__name__] = cls
    return cls


def registered(name: str) -> type | None:
    """Returns the registered class of this name, or None."""
    return _REGISTERED.get(name)


def registered_names(base: type) -> list[str]:
    """Returns the names of the registered classes that are derived from `base`, sorted."""
    return sorted(name for name, cls in _REGISTERED.items() if issubclass(cls, base))


def is_ours(thing: Any) -> bool:
    """Whether a class or a function is of tfdp itself, not of a package that extends it."""
    return str(thing.__module__).partition(".")[0] == "tfdp"


def is_defined_anew(before: Any, now: Any) -> bool:
    """Whether a class or a function, not of tfdp, comes from where the one before came from."""
    one, other = (
        (str(thing.__module__), getattr(thing, "__qualname__", None)) for thing in (before, now)
    )
    return one == other and one[1] is not None and not is_ours(now)
