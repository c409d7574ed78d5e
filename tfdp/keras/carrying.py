"""A model whose weights carry their ledger: through compile, save, load and copy."""

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdp.events import NonPrivateEvent
from tfdp.gradients.keras_internals import may_overwrite
from tfdp.keras import charges
from tfdp.keras.errors import LedgerMismatchError, NotPrivateError
from tfdp.keras.optimizer import DPOptimizer
from tfdp.keras.optimizer_checks import check_private_steps
from tfdp.keras.saved_form import with_ledger_found
from tfdp.keras.weights_file import ATTRIBUTE, LedgerInFile, slots_of
from tfdp.keras.whole_files import check_whole, written_whole
from tfdp.ledger import PrivacyLedger

_logger = logging.getLogger("tfdp")

_ORIGINS = ("post_processed", "fresh_start", "not_private")


class CarriesLedger:
    """Mixin of `keras.Model`: what was paid for its weights stays with them.

    Guarantees:
        A private step is taken only with a ledger that holds everything that was paid for the
        weights, as far as this process or the files that it read can know. docs/ledger.md has the
        table of all ways in which weights and ledgers meet.
    """

    _ledger_in_file: LedgerInFile | None = None

    @property
    def ledger(self) -> PrivacyLedger:
        """The ledger of the optimizer; of a model that is not compiled, that of its weights."""
        if getattr(self, "optimizer", None) is None:
            ledger = charges.common_ledger(charges.charges_of(self.weights))
            if ledger is not None:
                return ledger
        return self._dp_optimizer().ledger

    @ledger.setter
    def ledger(self, ledger: PrivacyLedger) -> None:
        self._dp_optimizer().ledger = ledger

    def _dp_optimizer(self) -> DPOptimizer:
        return _checked(getattr(self, "optimizer", None))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "optimizer" and value is not None:
            # This is needed also without `compile`, because a step that was traced with the old
            # optimizer would go on using it.
            _checked(value)
            self._join(value)
            for weight in self.weights:  # A loop of one's own that trained them is over.
                charges.see(weight)
            self.train_function = None
        super().__setattr__(name, value)

    def _join(self, optimizer: DPOptimizer) -> None:
        """Makes sure that the optimizer's ledger holds what was paid for the weights.

        Raises:
            LedgerMismatchError: it does not; or something else changed the weights.
        """
        charges.look([*self.weights, *optimizer.slots])
        optimizer.charging.join(self.weights)

    @contextlib.contextmanager
    def _private_use(self) -> Iterator[None]:
        """Checks the weights before they are trained, and notes them afterwards."""
        optimizer = self._dp_optimizer()
        self._join(optimizer)
        is_done = False
        try:
            yield
            is_done = True
        finally:
            # A loop over rounds that nobody holds any more ends where the garbage collector runs.
            # That may be while TensorFlow adds an operation to a graph, and has it locked.
            with tf.init_scope():
                # What ended it may be that something else changed the weights.
                weights, slots = (
                    each if is_done else charges.moved(each)
                    for each in (self.weights, optimizer.slots)
                )
                charges.note(weights)
                charges.note_followers(slots)

    @contextlib.contextmanager
    def _left_alone(self, while_fitting: bool, callbacks: Any) -> Iterator[None]:
        """Refuses a pass over data that changes weights while `fit` goes on, at whose end they
        would be taken for what private steps made.

        Args:
            while_fitting: Whether `fit` goes on.
            callbacks: Of the pass.

        Raises:
            NotPrivateError: weights have changed.
        """
        if not while_fitting:
            yield  # The next private step looks at the weights.
            return
        # Averages that are swapped come back a little different, in what private steps have moved.
        swaps = _swaps_averages(callbacks)
        weights = [w for w in self.weights if not swaps or charges.past(w).digest is not None]
        before = charges.digests(weights)
        changed: list[Any] = []
        try:
            yield
        finally:
            changed = charges.expect(weights, before)
        if changed:
            names = ", ".join(getattr(w, "path", w.name) for w in changed)
            raise NotPrivateError(
                f"evaluate or predict changed weights while fit trains: {names}. A layer that "
                "assigns where training is false leaves something of raw data behind, which no "
                "noise covers: take the assignment out. A callback that takes steps meanwhile "
                "changes them, too: take these in on_epoch_end. Then set the weights back to "
                "earlier values of this run, or say what they are: tfdp.keras.declare_weights."
            )

    @contextlib.contextmanager
    def _averages_used(self, callbacks: Any) -> Iterator[None]:
        """Notes the weights after callbacks put averages in their place and back again.

        `SwapEMAWeights` swaps by sums and differences, which are rounded, so that weights come back
        a little different. They are a function of private weights all the same.
        """
        if not _swaps_averages(callbacks):
            yield
            return
        slots = slots_of(self)
        charges.look([*self.weights, *slots])
        try:
            yield
        finally:
            charges.note(self.weights)
            charges.note_followers(slots)

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras. The quantized weights are new variables, and carry what was paid for the old
        ones.
        """
        charges.look(self.weights)
        paid = charges.charges_of(self.weights)
        super().quantize(*args, **kwargs)  # type: ignore[misc]
        charges.add(self.weights, paid)
        charges.note(self.weights)

    def get_weights(self) -> list[Any]:
        """As in Keras; a model that is given copies of these arrays has their ledger, too."""
        charges.know(self.weights)
        return super().get_weights()

    # Files. A saved model is not compiled: a query has no serialized form, and a model that is
    # loaded and trained by mistake should not find an optimizer.

    @property
    def _dp_ledger(self) -> LedgerInFile:
        if self._ledger_in_file is None:
            # Keras must not see this assignment: it would save the object under this name, too.
            object.__setattr__(self, "_ledger_in_file", LedgerInFile(self))
        return self._ledger_in_file

    def load_own_variables(self, store: Any) -> None:
        """As in Keras, which calls it before it reads anything else of a file."""
        self._dp_ledger.begin()
        super().load_own_variables(store)

    def get_compile_config(self) -> dict[str, Any]:
        return {}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        del config  # There is none.

    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Writes the model, not compiled, with the ledger of its weights."""
        self._check_before_saving(filepath)
        _save_whole(super().save, filepath, overwrite, **kwargs)

    def _check_before_saving(self, filepath: Any) -> None:
        charges.look(self.weights)
        if str(filepath).endswith((".h5", ".hdf5")) and charges.charges_of(self.weights):
            raise ValueError(
                "Keras' old HDF5 format has no place for the ledger of these weights. Save to a "
                f"file that ends in .keras. Received: filepath={filepath}."
            )
        charges.know(self.weights)

    def _save_plain(self, plain: keras.Model, filepath: Any, **kwargs: Any) -> None:
        """Writes a plain model of the same weights, with their ledger."""
        self._check_before_saving(filepath)
        plain = with_ledger_found(plain)
        with self._lend_ledger(plain):
            _save_whole(plain.save, filepath, **kwargs)

    @contextlib.contextmanager
    def _lend_ledger(self, plain: keras.Model) -> Iterator[None]:
        """Lets a plain model save or load the ledger in this model's place."""
        setattr(plain, ATTRIBUTE, self._dp_ledger)
        try:
            yield
        finally:
            delattr(plain, ATTRIBUTE)

    def save_weights(
        self, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        """As in Keras: weights, the optimizer's state, and the ledger, all or nothing."""
        charges.look([*self.weights, *slots_of(self)])
        charges.know(self.weights)
        if not overwrite and os.path.exists(filepath) and not may_overwrite(filepath):
            return
        with written_whole(filepath) as path:
            super().save_weights(path, True, *args, **kwargs)

    def export(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras; an exported model has no place for the ledger."""
        charges.look(self.weights)
        self._export(*args, **kwargs)

    def _export(self, *args: Any, **kwargs: Any) -> None:
        super().export(*args, **kwargs)

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, **kwargs: Any) -> None:
        """Restores weights; of a private model's file, the ledger and the optimizer's state, too.

        A plain model's weights are starting values: the ledger counts from here. A load that raises
        changes nothing.

        Args:
            filepath: A file of `save_weights` or `save`, of a private or a plain model.
            skip_mismatch: As in Keras. What the file's ledger holds is never skipped.
            **kwargs: As in Keras.

        Raises:
            LedgerMismatchError: the run's ledger does not continue that of the file.
            LedgerFormatError: the file was damaged, or several are not those of one save.
            ValueError: the file does not fit the model or its optimizer.
        """
        check_whole(filepath)
        optimizer = getattr(self, "optimizer", None)
        if optimizer is not None and self.built and not optimizer.built:
            with self.distribute_strategy.scope():
                optimizer.build(self.trainable_variables)
        unread = charges.digests([*self.weights, *slots_of(self)])
        with contextlib.ExitStack() as stack:
            stack.enter_context(charges.kept_unless_done(self.variables))
            if optimizer is not None:
                stack.enter_context(charges.kept_unless_done(optimizer.variables))
                stack.enter_context(optimizer.charging.kept_unless_done())
                optimizer.charging.was_restored = False
            stack.enter_context(self._dp_ledger.listening())
            self._load_values(filepath, skip_mismatch=skip_mismatch, **kwargs)
            self._take_ledger(optimizer, filepath, unread)

    def _load_values(self, filepath: Any, **kwargs: Any) -> None:
        with warnings.catch_warnings():
            # A plain file holds no state of the optimizer. Where Keras needs one, it says so
            # itself.
            warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
            super().load_weights(filepath, **kwargs)

    def _take_ledger(
        self, optimizer: DPOptimizer | None, filepath: Any, unread: Mapping[int, charges.Digest]
    ) -> None:
        """Makes what the file says about its weights theirs; `unread` as for `charges.take`."""
        in_file = self._dp_ledger
        if in_file.error is not None:
            raise in_file.error
        restored = in_file.found or []
        if optimizer is not None:
            if optimizer.charging.was_restored and in_file.found is None:
                raise LedgerMismatchError(
                    f"{filepath} holds the state of a private optimizer, but not its ledger. It "
                    "was cut, or written by an earlier version of tfdp. Load a whole one."
                )
            restored = optimizer.charging.take_over(restored, self.weights)
        elif restored and (before := charges.charges_of(self.weights)):
            both = [*restored, *before]
            if charges.common_ledger(both) is None:
                raise LedgerMismatchError(charges.mismatch(both, restored[0].ledger))
        if not restored:
            _logger.warning(
                "%s holds no ledger: its weights are taken for starting values that do not depend "
                "on the private data, and the ledger counts from here.",
                filepath,
            )
        charges.take(self.weights, restored, unread)
        if optimizer is not None:
            charges.take(optimizer.slots, restored, unread)
            optimizer.charging.join(self.weights)


def _save_whole(
    save: Callable[..., None], filepath: Any, overwrite: bool = True, **kwargs: Any
) -> None:
    """Has Keras write a model; one file is whole at its place, or as it was before."""
    if not str(filepath).endswith(".keras") or kwargs.get("zipped") is False:
        save(filepath, overwrite=overwrite, **kwargs)
    elif overwrite or not os.path.exists(filepath) or may_overwrite(filepath):
        with written_whole(filepath, sealed=False) as path:
            save(path, overwrite=True, **kwargs)


def _swaps_averages(callbacks: Any) -> bool:
    found = keras.tree.flatten(getattr(callbacks, "callbacks", callbacks))
    return any(isinstance(each, keras.callbacks.SwapEMAWeights) for each in found)


def _checked(optimizer: Any) -> DPOptimizer:
    if not isinstance(optimizer, DPOptimizer):
        raise NotPrivateError(
            "A private model is compiled with a tfdp.keras.DPOptimizer: "
            "model.compile(optimizer=tfdp.keras.DPOptimizer(inner_optimizer, query), ...). "
            f"Received: optimizer={optimizer!r}."
        )
    check_private_steps(optimizer)
    return optimizer


def declare_weights(model: keras.Model, origin: str) -> None:
    """Says where the present weights of a model come from, where tfdp cannot know it.

    Args:
        model: A private model, or a plain one.
        origin: "fresh_start": they do not depend on the data that their ledger is about (they were
            set to public values, or other data are used from here). What was paid for them is
            forgotten; compile again, with a new `DPOptimizer` around a new optimizer of Keras, for
            a new ledger: averages and momenta of an old one follow the old weights.
            "post_processed": they were computed from the private weights and public data (an
            average, pruning). What was paid for them stays.
            "not_private": they were trained on private data by something else. The ledger gets a
            `tfdp.NonPrivateEvent`, and every report says so.

    Raises:
        ValueError: `origin` is anything else.
        NotPrivateError: "not_private" or "post_processed", and the model has no ledger, or one
            without an event that the weights could come from.
    """
    if origin not in _ORIGINS:
        raise ValueError(f"origin must be one of {_ORIGINS}. Received: origin={origin!r}.")
    if origin == "fresh_start":
        charges.forget(model.weights)
        return
    ledgers = {id(c.ledger): c.ledger for c in charges.charges_of(model.weights)}
    if isinstance(model, CarriesLedger) and (ledgers or getattr(model, "optimizer", None)):
        ledgers[id(model.ledger)] = model.ledger
    steps = sum(ledger.total_count for ledger in ledgers.values())
    if not ledgers or (origin == "post_processed" and not steps):
        raise NotPrivateError(
            "Nothing was paid for these weights, so there is no ledger to say it in. Compile a "
            "private model of them first, with the ledger of the run that they come from "
            "(DPOptimizer(..., ledger=ledger)), and declare its weights."
        )
    if origin == "not_private":
        for ledger in ledgers.values():
            ledger.append(NonPrivateEvent())
    charges.note(model.weights)
    charges.note_followers(slots_of(model))
