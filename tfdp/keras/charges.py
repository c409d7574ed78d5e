"""What was paid for a weight. The weight itself carries the ledger, whoever trains it next.

Every variable that a private step has trained carries its charges: the ledgers, and the places in
them, that its value comes from. They are attributes of the variable itself, so models that share
layers share them. A value that comes another way (copied arrays, a file that somebody else loaded)
is known again by its digest, within the process.
"""

import contextlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdp.keras.errors import LedgerMismatchError
from tfdp.ledger import PrivacyLedger

# The attribute under which a variable carries what was paid for it. It is ours: variables of Keras
# and of TensorFlow accept new attributes.
_ATTRIBUTE = "_tfdp_past"

# The position of a charge that no ledger holds.
_LOST = 2**62

# How many values are remembered. The oldest are forgotten first.
_MOST_KNOWN = 100_000


class Charge(NamedTuple):
    """A place in a ledger that a weight's value comes from; see `PrivacyLedger.watermark`."""

    ledger: PrivacyLedger
    position: int
    fingerprint: int

    def is_held_by(self, ledger: PrivacyLedger) -> bool:
        """Whether the ledger holds all events up to this place."""
        return ledger.holds_steps_of(*self)


class Digest(NamedTuple):
    """96 bits of a digest of an array's bytes, and the number of bytes. It is compared only with
    values that the same process made, so it need not withstand an attacker.
    """

    crc32: int
    xor64: int
    num_bytes: int


class Past(NamedTuple):
    """What is known of a variable.

    Attributes:
        charges: What was paid for its value.
        digest: Of the value when it was last seen; None where private steps have changed it since.
        start: Of the last value for which nothing had been paid.
    """

    charges: tuple[Charge, ...] = ()
    digest: Digest | None = None
    start: Digest | None = None


_UNKNOWN = Past()

# Digests of values that private training made, and what was paid for these values.
_known: dict[Digest, tuple[Charge, ...]] = {}


def holder(variable: Any) -> Any:
    """Returns the object that stands for the variable wherever it is used."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def past(variable: Any) -> Past:
    """Returns what is known of the variable."""
    return getattr(holder(variable), _ATTRIBUTE, _UNKNOWN)


def _set(variable: Any, new: Past) -> None:
    setattr(holder(variable), _ATTRIBUTE, new)


def _digest(variable: Any) -> Digest:
    array = np.ascontiguousarray(tf.convert_to_tensor(holder(variable))).reshape(-1)
    data = array.view(np.uint8)
    words = data[: data.size // 8 * 8].view(np.uint64)
    return Digest(zlib.crc32(data), int(np.bitwise_xor.reduce(words)), data.size)


def charges_of(variables: Sequence[Any]) -> list[Charge]:
    """Returns what was paid for any of the variables, each charge once."""
    tuples = {id(p.charges): p.charges for v in variables if (p := past(v)).charges}
    return list(
        {(id(c.ledger), *c[1:]): c for charges in tuples.values() for c in charges}.values()
    )


def known(variables: Sequence[Any]) -> list[Charge]:
    """Returns what was paid for those present values that private training in this process made."""
    return [charge for variable in variables for charge in _known.get(_digest(variable), ())]


def paid(variables: Sequence[Any], charge: Charge) -> None:
    """Notes that a step was charged, whose gradients are about to change these variables.

    What its ledger does not hold stays with them: another thread may have paid since the ledger was
    looked at.
    """
    # Many variables have the same tuple. Those of before stay alive, so that no other is at `id`.
    found: dict[int, tuple[tuple[Charge, ...], tuple[Charge, ...]]] = {}
    for variable in variables:
        before = past(variable)
        key = id(before.charges)
        if key not in found:
            others = (c for c in before.charges if c.ledger is not charge.ledger)
            after = (*(c for c in others if not c.is_held_by(charge.ledger)), charge)
            found[key] = before.charges, after
        _set(variable, Past(found[key][1], None, before.start))


def lost() -> Charge:
    """Returns a charge that no ledger holds, for values whose ledger cannot be read."""
    return Charge(PrivacyLedger(), _LOST, 0)


def add(variables: Sequence[Any], more: Sequence[Charge]) -> None:
    """Notes that more was paid for the values of the variables."""
    for variable in variables:
        before = past(variable)
        _set(variable, before._replace(charges=(*before.charges, *more)))


def digests(variables: Sequence[Any]) -> dict[int, Digest]:
    """Returns digests of the present values, by the id of what stands for the variable."""
    return {id(holder(variable)): _digest(variable) for variable in variables}


def take(
    variables: Sequence[Any],
    restored: Sequence[Charge],
    unread: Mapping[int, Digest] = MappingProxyType({}),
) -> None:
    """Notes values that were read from a file, and what was paid for them. If the file does not say
    what was paid, the values may be known to this process.

    Args:
        variables: Into which they were read.
        restored: What was paid.
        unread: `digests` of before. A value that is still the same may not have been read, so that
            what it was last seen as still stands, where something was paid for it.
    """
    for variable in variables:
        before, digest = past(variable), _digest(variable)
        paid_before = (*before.charges, *(restored or _known.get(digest, ())))
        seen = digest
        if before.charges and unread.get(id(holder(variable))) == digest:
            seen = before.digest or digest
        _set(variable, Past(paid_before, seen, before.start if paid_before else digest))


def look(variables: Sequence[Any]) -> None:
    """Compares the variables with what they were when they were last seen.

    Values that private training in this process made bring their charges along, however they were
    copied.
    Where nothing was paid for any of the variables, any value is a starting value.

    Raises:
        LedgerMismatchError: weights that were privately trained have been changed by something
            else.
    """
    found, changed = [], []
    charged = bool(charges_of(variables))
    for variable in variables:
        before, digest = past(variable), _digest(variable)
        if digest == before.digest or (before.digest is None and before.charges):
            new = before
        elif digest in _known:
            new = Past((*before.charges, *_known[digest]), digest, before.start)
        else:
            if charged and digest != before.start and before.digest is not None:
                changed.append(getattr(variable, "path", getattr(variable, "name", "?")))
            new = Past(before.charges, digest, before.start if before.charges else digest)
        found.append((variable, new))
    if changed:
        raise LedgerMismatchError(_changed(changed))
    for variable, new in found:
        _set(variable, new)


def note(variables: Sequence[Any]) -> None:
    """Notes the values of the variables. The next `look` expects these values. If something was
    paid for them, it also recognizes them in other variables.
    """
    for variable in variables:
        _know(variable, past(variable), see(variable))


def note_followers(variables: Sequence[Any]) -> None:
    """As `note`, of what follows gradients beside weights. Counters, and what no gradient has moved
    yet, are the same in every run, and are not recognized in other variables.
    """
    for variable in variables:
        before, digest = past(variable), see(variable)
        if not _is_constant(variable):
            _know(variable, before, digest)


def see(variable: Any) -> Digest:
    """Makes the next `look` expect the present value, and returns its digest."""
    before, digest = past(variable), _digest(variable)
    _set(variable, Past(before.charges, digest, before.start if before.charges else digest))
    return digest


def moved(variables: Sequence[Any]) -> list[Any]:
    """Returns those that private steps have moved since they were last seen, or nothing has."""
    return [v for v in variables if past(v).digest in (None, _digest(v))]


def expect(variables: Sequence[Any], values: Mapping[int, Digest]) -> list[Any]:
    """Makes the next `look` expect earlier values of some variables, and returns those that have
    others now.

    Args:
        variables: Which may have been changed.
        values: Their `digests` of before.
    """
    changed = [v for v in variables if values[id(holder(v))] != _digest(v)]
    for variable in changed:
        _set(variable, past(variable)._replace(digest=values[id(holder(variable))]))
    return changed


def know(variables: Sequence[Any]) -> None:
    """Notes that copies of the variables' present values may be used from here. A value that
    something else made since it was last seen is not noted: nobody knows what it cost.
    """
    for variable in variables:
        before = past(variable)
        if before.charges and before.digest in (None, digest := _digest(variable)):
            _know(variable, before, digest)


def _know(variable: Any, before: Past, digest: Digest) -> None:
    # A value that no private step has changed proves nothing: new biases, for example, are all
    # zeros, also where a file does not say with what they began.
    if not before.charges or digest == before.start or _is_usual_start(variable):
        return
    _known.pop(digest, None)
    _known[digest] = before.charges
    if len(_known) > _MOST_KNOWN:
        _known.pop(next(iter(_known)))


def _is_usual_start(variable: Any) -> bool:
    """Returns whether all numbers are zero, or all one: what new weights begin with."""
    array = np.asarray(tf.convert_to_tensor(holder(variable)))
    return bool(np.all(array == 0) or np.all(array == 1))


def _is_constant(variable: Any) -> bool:
    """Returns whether all numbers are the same."""
    array = np.asarray(tf.convert_to_tensor(holder(variable)))
    return bool(np.all(array == array.flat[:1]))


def forget(variables: Sequence[Any]) -> None:
    """Makes the present values starting values, for which nothing was paid."""
    for variable in variables:
        digest = _digest(variable)
        _set(variable, Past((), digest, digest))


@contextlib.contextmanager
def kept_unless_done(variables: Sequence[Any]) -> Iterator[None]:
    """Puts values and pasts of the variables back where the body raises."""
    with contextlib.ExitStack() as undo:
        for variable in variables:
            value = np.array(tf.convert_to_tensor(holder(variable)))
            undo.callback(variable.assign, value)
            undo.callback(_set, variable, past(variable))
        yield
        undo.pop_all()


def common_ledger(charges: Sequence[Charge]) -> PrivacyLedger | None:
    """Returns the ledger among the charges' own that holds all of them, or None."""
    for candidate in {id(c.ledger): c.ledger for c in charges}.values():
        if all(charge.is_held_by(candidate) for charge in charges):
            return candidate
    return None


def _changed(names: Sequence[str]) -> str:
    return (
        "These weights were privately trained, and something else has changed them since: "
        f"{', '.join(names)}. Training a plain model that shares them would do so, or set_weights, "
        "or assign. No ledger knows what the new values cost. Say what they are: "
        "tfdp.keras.declare_weights(model, origin), with origin 'post_processed' (computed from "
        "the private weights and public data: averages, pruning), 'fresh_start' (they do not "
        "depend on the data that the ledger is about) or 'not_private' (trained on private data by "
        "something else: the ledger will say so)."
    )


def mismatch(charges: Sequence[Charge], ledger: PrivacyLedger) -> str:
    """Returns the words for charges that the ledger does not hold."""
    missing = [c for c in charges if not c.is_held_by(ledger)]
    position = max(c.position for c in missing)
    if position == _LOST:
        return (
            "The weights were read from a file whose ledger is damaged or of a newer version, so "
            "that nobody knows what was paid for them. Restore the file from a copy, and load it "
            "into a new model."
        )
    # A file of weights has a copy of a ledger that was opened, which nobody may go on with.
    is_there = all(c.is_held_by(c.ledger) for c in missing)
    way = (
        "or leave `ledger` out, and a new optimizer continues it"
        if is_there
        else "or give it to a new optimizer: DPOptimizer(..., ledger=ledger). It is not beside the "
        "weights, or only a copy of it is"
    )
    return (
        f"The weights come from a run that had written {position} events to its ledger, steps "
        f"reserved ahead included, which is not this one (of {ledger.total_count} events). Set "
        "`model.ledger` to the ledger of that run: tfdp.PrivacyLedger.load(path) if it was saved, "
        f"tfdp.PrivacyLedger.open(path) if it was opened; {way}. If the weights do not depend on "
        "the data that this ledger is about: tfdp.keras.declare_weights(model, 'fresh_start'), and "
        "compile again with a new DPOptimizer around a new optimizer of Keras."
    )
