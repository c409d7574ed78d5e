"""Events to plain JSON values, and strictly back.

An event is an object. Its "type" is the name of its class, and its other members are all the fields
of that class, by name. A member that is missing, unknown or of another type is an error that names
its place. Floats survive exactly, because JSON text carries Python's shortest round-trip
representation.
"""

import json
import math
from collections.abc import Callable
from typing import Any

from tfdp import events
from tfdp.events import registry
from tfdp.ledger.errors import LedgerFormatError

# Events and samplings nested deeper than this are refused on both ways, far below Python's
# recursion limit.
MAX_DEPTH = 32
# Integers beyond this are refused on both ways: nothing is counted so far, and arithmetic on longer
# ones can take any time.
LARGEST_INTEGER = 2**63 - 1
# Of the text of an event, which is ASCII: some 10,000 groups of one sample.
MAX_EVENT_CHARACTERS = 2**20

_Decoder = Callable[[Any, str, int], Any]


def _show(value: Any) -> str:
    """Returns a short text for a JSON value, without descending into it."""
    if isinstance(value, (dict, list)):
        return f"{type(value).__name__} of {len(value)} members"
    return f"{value!r:.200}"


def _float(value: Any, where: str, depth: int) -> float:
    is_number = isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool))
    if not is_number:
        raise LedgerFormatError(f"{where} must be a number. Received: {_show(value)}.")
    try:
        number = float(value)
    except OverflowError as error:
        raise LedgerFormatError(
            f"{where} is too large for a 64-bit float. Received: {_show(value)}."
        ) from error
    if number != value or not math.isfinite(number):
        raise LedgerFormatError(
            f"{where} must be finite and a 64-bit float. Received: {_show(value)}."
        )
    return number


def _integer(value: Any, where: str, depth: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise LedgerFormatError(f"{where} must be an integer. Received: {_show(value)}.")
    if abs(value) > LARGEST_INTEGER:
        raise LedgerFormatError(
            f"{where} must be at most {LARGEST_INTEGER}. Received: {_show(value)}."
        )
    return value


def _optional_integer(value: Any, where: str, depth: int) -> int | None:
    return None if value is None else _integer(value, where, depth)


def _boolean(value: Any, where: str, depth: int) -> bool:
    if not isinstance(value, bool):
        raise LedgerFormatError(f"{where} must be true or false. Received: {_show(value)}.")
    return value


def _string(value: Any, where: str, depth: int) -> str:
    if not isinstance(value, str):
        raise LedgerFormatError(f"{where} must be a string. Received: {_show(value)}.")
    return value


_RELATIONS = {relation.value: relation for relation in events.NeighboringRelation}


def _relation(value: Any, where: str, depth: int) -> events.NeighboringRelation:
    if not isinstance(value, str) or value not in _RELATIONS:
        names = list(_RELATIONS)
        raise LedgerFormatError(f"{where} must be one of {names}. Received: {_show(value)}.")
    return _RELATIONS[value]


def _event(value: Any, where: str, depth: int) -> events.Event:
    return _instance(value, where, depth, events.Event)


# Ledgers of many different events have few ways of sampling: each is decoded, and kept, once. The
# representation of a JSON value tells 1, 1.0 and true apart.
_samplings: dict[str, events.Sampling] = {}
_MOST_SAMPLINGS = 1024


def _sampling(value: Any, where: str, depth: int) -> events.Sampling:
    flat = isinstance(value, dict) and not any(isinstance(v, (dict, list)) for v in value.values())
    if not flat:
        return _instance(value, where, depth, events.Sampling)
    key = repr(value)
    sampling = _samplings.get(key)
    if sampling is None:
        sampling = _instance(value, where, depth, events.Sampling)
        if len(_samplings) >= _MOST_SAMPLINGS:
            _samplings.clear()
        _samplings[key] = sampling
    return sampling


def _events(value: Any, where: str, depth: int) -> tuple[events.Event, ...]:
    if not isinstance(value, list):
        raise LedgerFormatError(f"{where} must be a list. Received: {_show(value)}.")
    return tuple(_event(item, f"{where}[{i}]", depth) for i, item in enumerate(value))


def _floats(value: Any, where: str, depth: int) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise LedgerFormatError(f"{where} must be a list. Received: {_show(value)}.")
    return tuple(_float(item, f"{where}[{i}]", depth) for i, item in enumerate(value))


def _integers(value: Any, where: str, depth: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise LedgerFormatError(f"{where} must be a list. Received: {_show(value)}.")
    return tuple(_integer(item, f"{where}[{i}]", depth) for i, item in enumerate(value))


# How a field is read, by what it is annotated with.
_DECODERS: dict[Any, _Decoder] = {
    bool: _boolean,
    int: _integer,
    int | None: _optional_integer,
    float: _float,
    str: _string,
    events.NeighboringRelation: _relation,
    events.Event: _event,
    events.Sampling: _sampling,
    tuple[events.Event, ...]: _events,
    tuple[float, ...]: _floats,
    tuple[int, ...]: _integers,
}


_fields: dict[type, dict[str, _Decoder]] = {}


def decoders(cls: type) -> dict[str, _Decoder]:
    """Returns how the fields of a registered class are read, in the order in which they stand."""
    known = _fields.get(cls)
    if known is None:
        kinds = registry.field_types(cls)
        known = _fields[cls] = {name: _DECODERS[kind] for name, kind in kinds.items()}
    return known


def _instance(value: Any, where: str, depth: int, base: type) -> Any:
    if depth >= MAX_DEPTH:
        raise LedgerFormatError(f"{where} is nested deeper than {MAX_DEPTH} levels.")
    if not isinstance(value, dict):
        raise LedgerFormatError(f"{where} must be an object with a type. Received: {_show(value)}.")
    name = value.get("type")
    cls = registry.registered(name) if isinstance(name, str) else None
    if cls is None or not issubclass(cls, base):
        raise LedgerFormatError(
            f"{where}.type must be one of {registry.registered_names(base)}. "
            f"Received: {_show(name)}. A ledger written by a newer tfdp needs that version to be "
            "read, and one that holds events of another package needs that package: import it "
            "first."
        )
    fields = decoders(cls)
    if value.keys() != {"type", *fields}:
        raise LedgerFormatError(
            f"{where} must have exactly the members {['type', *fields]} of a {name}. "
            f"Received: {sorted(map(str, value))}."
        )
    arguments = {
        field: decoder(value[field], f"{where}.{field}", depth + 1)
        for field, decoder in fields.items()
    }
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise LedgerFormatError(f"{where} is not a valid {name}: {error}") from error


def _encode(value: Any, depth: int) -> Any:
    if registry.registered(type(value).__name__) is type(value):
        if depth >= MAX_DEPTH:
            raise events.UnsupportedEventError(
                f"A ledger stores at most {MAX_DEPTH} nested levels. Flatten the ComposedEvent."
            )
        encoded = {"type": type(value).__name__}
        encoded.update((f, _encode(getattr(value, f), depth + 1)) for f in decoders(type(value)))
        if not registry.is_ours(type(value)):
            _check_comes_back(value, encoded, depth)
        return encoded
    if isinstance(value, tuple):
        return [_encode(item, depth) for item in value]
    if isinstance(value, events.NeighboringRelation):
        return value.value
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise events.UnsupportedEventError(
            f"A ledger stores integers of at most {LARGEST_INTEGER}. "
            f"Received one of {value.bit_length()} bits."
        )
    if value is None or isinstance(value, (bool, str, int, float)):
        return value
    raise events.UnsupportedEventError(
        f"A ledger cannot store a {type(value).__name__}: {value!r}. "
        f"Known: {registry.registered_names(object)}."
    )


def _check_comes_back(value: Any, encoded: Any, depth: int) -> None:
    """Raises unless the encoded value is read as what it was; ours are, which is tested."""
    try:
        found = _instance(encoded, "event", depth, object)
    except LedgerFormatError as error:
        found = error
    if found != value:
        raise events.UnsupportedEventError(
            f"A ledger would not give back {value!r} as it is, but: {found}. The fields must be of "
            f"the types that {type(value).__name__} says, and finite; see to it in __post_init__."
        )


def encode(event: events.Event) -> dict[str, Any]:
    """Returns `event` as a JSON value: dicts, lists, strings, numbers, booleans and None.

    Raises:
        UnsupportedEventError: the event, or one inside it, is of a type that a ledger cannot store,
            it is nested deeper than `MAX_DEPTH`, or holds an integer above `LARGEST_INTEGER`.
    """
    if not isinstance(event, events.Event):
        raise TypeError(f"event must be an Event. Received: event={event!r}.")
    return _encode(event, 0)


def to_text(event: events.Event) -> str:
    """Returns `event` as JSON text.

    Raises:
        UnsupportedEventError: as `encode`, or the text is longer than `MAX_EVENT_CHARACTERS`.
    """
    text = json.dumps(encode(event), allow_nan=False)
    if len(text) > MAX_EVENT_CHARACTERS:
        raise events.UnsupportedEventError(
            f"A ledger stores events of at most {MAX_EVENT_CHARACTERS} characters. Received one of "
            f"{len(text)}. Append its parts one by one."
        )
    return text


def decode(value: Any, where: str = "event") -> events.Event:
    """Returns the event that `encode` made `value` from.

    Args:
        value: A JSON value.
        where: What error messages call the place of `value`.

    Raises:
        LedgerFormatError: `value` is not exactly what `encode` writes.
    """
    return _event(value, where, 0)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError(f"a member is given twice: {[name for name, _ in pairs]}")
    return members


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique_members)


def parse_json(text: str, where: str) -> Any:
    """Parses JSON as the standard has it: no NaN, no Infinity, no member given twice.

    Raises:
        LedgerFormatError: `text` is not such JSON; a syntax error is named with its offset in the
            text, in characters.
    """
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise LedgerFormatError(
            f"{where} is not valid JSON: {error.msg} at offset {error.pos}. "
            f"Received: {text!r:.200}."
        ) from error
    except (ValueError, RecursionError) as error:
        raise LedgerFormatError(
            f"{where} is not valid JSON: {error}. Received: {text!r:.200}."
        ) from error
