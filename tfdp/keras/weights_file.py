"""The ledger in the files that hold a private model's weights."""

import contextlib
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import keras
import numpy as np

from tfdp.keras import charges
from tfdp.keras.charges import Charge
from tfdp.ledger import PrivacyLedger
from tfdp.ledger.errors import LedgerFormatError

# The attribute under which a model has its `LedgerInFile`; a group of this name is in the file.
ATTRIBUTE = "_dp_ledger"
# Of what is in the group. Files of all versions up to it are read.
_VERSION = 1


class LedgerInFile(keras.losses.Loss):
    """What Keras saves and loads beside a model's layers: what was paid for its weights.

    Keras saves the state of every attribute of a model that is one of its own objects. It passes
    over anything else that it finds in a file. So a plain model loads the file, too. This is a
    loss, because of the objects that Keras saves a loss has the fewest other duties.

    Guarantees:
        The ledgers in a file hold everything that was paid for the weights in it.

    Attributes:
        found: What was in the file that is being read; None if it has no place for a ledger. What
            functions of Keras read is noted for the model's weights at once, and what
            `load_weights` of a private model reads is left to it.
        error: Why that could not be read; where mismatches are skipped Keras would only warn.
    """

    def __init__(self, model: keras.Model):
        super().__init__(name=ATTRIBUTE)
        # Keras searches all attributes for objects to save, and must not find the model here.
        self._reference = weakref.ref(model)
        self.found: list[Charge] | None = None
        self.error: Exception | None = None
        self._is_listening = False
        self._unread: dict[int, charges.Digest] = {}

    def begin(self) -> None:
        """Says that nothing of a file has been read yet."""
        if not self._is_listening:
            self.found, self.error = None, None
            self._unread = charges.digests(self._carriers())

    def _carriers(self) -> list[Any]:
        """Returns the variables that carry what was paid."""
        model = self._reference()
        return [*model.weights, *slots_of(model)]

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Collects what a file holds in `found` and `error`, so that it is not at once noted for
        the weights.
        """
        self.found, self.error, self._is_listening = None, None, True
        try:
            yield
        finally:
            self.found, self.error, self._is_listening = None, None, False

    def call(self, y_true: Any, y_pred: Any) -> Any:
        raise NotImplementedError("This is no loss.")

    def save_own_variables(self, store: Any) -> None:
        """Writes the ledgers.

        Raises:
            LedgerMismatchError: something that no ledger knows of has changed the weights.
        """
        model = self._reference()
        # Functions of Keras that save a model get here, too.
        charges.look(model.weights)
        for index, (ledger, *place) in enumerate(_to_save(model)):
            text = ledger.to_json_lines().encode()
            store[f"ledger_{index}"] = np.frombuffer(text, np.uint8)
            store[f"place_{index}"] = np.array(place, np.int64)
        store["version"] = np.int64(_VERSION)

    def load_own_variables(self, store: Any) -> None:
        try:
            if len(store.keys()):
                self.found = _from_store(store)
        except (KeyError, LedgerFormatError, OSError, RuntimeError) as error:  # Also those of h5py.
            self.error = error
        if self._is_listening:
            return
        # Keras has read layers and optimizer: it reads attributes last whose names begin with an
        # underscore.
        if self.error is not None:
            # Whoever catches the error, or lets Keras skip what does not fit, has the weights. And
            # Keras looks once more, by another name of this attribute, and finds nothing there.
            charges.add(self._carriers(), [charges.lost()])
            raise self.error
        charges.take(self._carriers(), self.found or [], self._unread)


class LedgerOfPlainModel(LedgerInFile):
    """What was paid for a private model that Keras loads as a plain one.

    It is an attribute of the plain model until it has been loaded.
    """

    def load_own_variables(self, store: Any) -> None:
        """Notes what was paid for the weights that were loaded, and leaves the model.

        Raises:
            LedgerFormatError: the file does not say it, or cannot be read.
        """
        if "version" not in store.keys():
            raise LedgerFormatError(
                "The file holds a private model, but not its ledger. It was cut. Restore the file "
                "from a copy."
            )
        model = self._reference()
        restored = _from_store(store)
        # A ledger that this process is writing goes before a copy of what it was.
        present = [charge.ledger for charge in charges.known(model.weights)]
        is_present = all(any(map(charge.is_held_by, present)) for charge in restored)
        for weight in model.weights:
            charges.take([weight], () if is_present and charges.known([weight]) else restored)
        charges.know(model.weights)
        delattr(model, ATTRIBUTE)


def slots_of(model: keras.Model) -> list[Any]:
    """Returns what the optimizer of a private model keeps of gradients; none without one."""
    return getattr(getattr(model, "optimizer", None), "slots", [])


def _to_save(model: keras.Model) -> list[Charge]:
    """Returns, for each ledger, the last place from which any of the weights comes."""
    last: dict[int, Charge] = {}
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.ledger.total_count:
        # Anything else that the ledger of the file holds stays with the weights.
        last[id(optimizer.ledger)] = Charge(optimizer.ledger, 0, 0)
    for charge in charges.charges_of(model.weights):
        before = last.get(id(charge.ledger))
        if before is None or charge.position > before.position:
            last[id(charge.ledger)] = charge
    return list(last.values())


def _from_store(store: Mapping[str, Any]) -> list[Charge]:
    _check_version(store)
    found = []
    names = set(store.keys())
    indices = range(len(names) // 2)
    members = {f"{kind}_{index}" for kind in ("ledger", "place") for index in indices}
    try:
        if names and names != {"version", *members}:
            raise ValueError(f"it has the members {sorted(names)}.")
        for index in indices:
            text = bytes(np.asarray(store[f"ledger_{index}"], np.uint8)).decode()
            position, fingerprint = np.asarray(store[f"place_{index}"], np.int64).tolist()
            found.append(Charge(PrivacyLedger.from_json_lines(text), position, fingerprint))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise LedgerFormatError(
            f"The ledger in this file of weights is damaged: {error} Restore the file from a copy."
        ) from error
    return found


def _check_version(store: Mapping[str, Any]) -> None:
    # A plain model's file has none, and no ledgers either.
    version = np.asarray(store["version"]) if "version" in store.keys() else np.int64(_VERSION)
    if version.shape or version.dtype.kind != "i" or not 1 <= version <= _VERSION:
        raise LedgerFormatError(
            f"The ledger in this file of weights has format version {version}; this tfdp reads "
            f"versions up to {_VERSION}. Use the tfdp that wrote it, or a newer one."
        )


def holds_ledger(filepath: Any) -> bool:
    """Whether a file of weights is that of a private model's `save_weights`."""
    path = os.fspath(filepath)
    if path.endswith("weights.json"):
        with open(path, encoding="utf-8") as file:
            return f'"/{ATTRIBUTE}/' in file.read()
    if path.endswith("weights.h5"):
        with h5py.File(path, "r") as file:
            return ATTRIBUTE in file
    return False
