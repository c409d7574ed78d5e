"""A membership attack at the ends of epochs, while a Keras model is trained."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfdp.audit.membership import Attack, attack
from tfdp.audit.predictions import membership_scores, probabilities_of_logits
from tfdp.events.arguments import positive_integer


class MembershipAttack(keras.callbacks.Callback):
    """Attacks the model at the ends of epochs, by thresholds of its predictions.

    NOT private: the attack looks at training data as they are. So its numbers stay in `attacks`,
    and never come into the logs, which histories keep, loggers write to files, and other callbacks
    act on. They are for whoever trains. Whoever stops, or chooses a model, by them, uses private
    data beside the ledger.

    Where training begins, the model is attacked once more, and nothing of that is kept: what cannot
    be attacked is refused before anything is spent.

    Attributes:
        attacks: (epoch, attacks), one for every epoch with an attack; epochs count from zero.

    Example:
        monitor = MembershipAttack(x_train[:1000], y_train[:1000], x_test[:1000], y_test[:1000])
        model.fit(x_train, y_train, epochs=10, callbacks=[monitor])
        [(epoch, attacks[0].auc.value) for epoch, attacks in monitor.attacks]
    """

    def __init__(
        self,
        x_members: Any,
        y_members: Any,
        x_others: Any,
        y_others: Any,
        scores: Sequence[str] = ("loss", "entropy"),
        every: int = 1,
        from_logits: bool = False,
    ):
        """Stores the records.

        Args:
            x_members: [members, ...], of the training data: an array, or a dict, list or tuple of
                arrays, as `fit` takes them.
            y_members: [members] or [members, 1], integer labels.
            x_others: [others, ...], from the same population, and not trained on.
            y_others: [others] or [others, 1], integer labels.
            scores: Names of `membership_scores`.
            every: Attack after so many epochs.
            from_logits: Whether the model answers with logits. One number for each record is that
                of class 1 of two: its probability, or its logit where that of class 0 is zero.

        Raises:
            ValueError: labels and records differ in number, there are none of either kind, labels
                are of another shape, or members and others are of different structures.
            TypeError: `every` is no integer.
        """
        super().__init__()
        x_parts = [_arrays(x_members), _arrays(x_others)]
        y_parts = [_labels(y_members), _labels(y_others)]
        for x, y in zip(x_parts, y_parts, strict=True):
            _check_lengths(x, y)
        structures = [keras.tree.map_structure(lambda _: "array", x) for x in x_parts]
        if structures[0] != structures[1]:
            raise ValueError(
                "Members and others must be of the same structure of arrays. "
                f"Received: {structures[0]!r} and {structures[1]!r}."
            )
        self._x = keras.tree.map_structure(lambda *leaves: np.concatenate(leaves), *x_parts)
        self._y = np.concatenate(y_parts)
        self._members = np.arange(len(self._y)) < len(y_parts[0])
        self._scores = tuple(scores)
        self._every = positive_integer("every", every)
        self._from_logits = from_logits
        self.attacks: list[tuple[int, list[Attack]]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self._attack()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if (epoch + 1) % self._every:
            return
        self.attacks.append((epoch, self._attack()))

    def _attack(self) -> list[Attack]:
        p = _probabilities(self.model.predict(self._x, verbose=0), self._from_logits)
        return [
            attack(name, membership_scores(name, p, self._y), self._members)
            for name in self._scores
        ]


def _arrays(x: Any) -> Any:
    """Returns a structure of arrays, as Keras reads it; lists of numbers are one array."""
    if any(np.ndim(leaf) for leaf in keras.tree.flatten(x)):
        return keras.tree.map_structure(np.asarray, x)
    return np.asarray(x)


def _labels(y: Any) -> np.ndarray:
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:  # As Keras takes them, too.
        return y[:, 0]
    if y.ndim != 1:
        raise ValueError(
            "Labels must be integers of the shape [records] or [records, 1]; of one-hot labels, "
            f"take argmax(axis=1). Received: shape={y.shape}."
        )
    return y


def _check_lengths(x: Any, y: np.ndarray) -> None:
    for path, leaf in keras.tree.flatten_with_path(x):
        records = len(leaf) if leaf.ndim else 0
        if records != len(y) or records == 0:
            of = f" in the array {path}" if path else ""
            raise ValueError(
                "There must be one label for every record, and a record of each kind. "
                f"Received: {records} records{of}, {len(y)} labels."
            )


def _probabilities(told: Any, from_logits: bool) -> Any:
    """Returns [records, classes] of what the model answers with."""
    if not isinstance(told, np.ndarray):
        raise ValueError(
            "The model must have one output, of the shape [records, classes]. "
            f"Received: {len(told)} outputs."
        )
    if told.ndim == 1 or told.shape[1:] == (1,):  # Of class 1 of two.
        told = told.reshape(-1).astype(np.float64)
        if not from_logits and not np.all((told >= 0) & (told <= 1)):
            raise ValueError(
                "The one number that the model answers with for each record must be the "
                "probability of class 1, in [0, 1], and is not. Of logits, set from_logits=True."
            )
        told = np.stack([np.zeros_like(told) if from_logits else 1 - told, told], axis=1)
    return probabilities_of_logits(told) if from_logits else told
