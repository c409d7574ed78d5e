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
            x_members: [members, ...], of the training data.
            y_members: [members], integer labels.
            x_others: [others, ...], from the same population, and not trained on.
            y_others: [others], integer labels.
            scores: Names of `membership_scores`.
            every: Attack after so many epochs.
            from_logits: Whether the model answers with logits.

        Raises:
            ValueError: labels and records differ in number, or there are none of either kind.
            TypeError: `every` is no integer.
        """
        super().__init__()
        parts = [(np.asarray(x_members), np.asarray(y_members))]
        parts.append((np.asarray(x_others), np.asarray(y_others)))
        for x, y in parts:
            if len(x) != len(y) or len(x) == 0:
                raise ValueError(
                    "There must be one label for every record, and a record of each kind. "
                    f"Received: {len(x)} records, {len(y)} labels."
                )
        self._x = np.concatenate([x for x, _ in parts])
        self._y = np.concatenate([y for _, y in parts])
        self._members = np.arange(len(self._x)) < len(parts[0][0])
        self._scores = tuple(scores)
        self._every = positive_integer("every", every)
        self._from_logits = from_logits
        self.attacks: list[tuple[int, list[Attack]]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if (epoch + 1) % self._every:
            return
        told = self.model.predict(self._x, verbose=0)
        p = probabilities_of_logits(told) if self._from_logits else told
        found = [
            attack(name, membership_scores(name, p, self._y), self._members)
            for name in self._scores
        ]
        self.attacks.append((epoch, found))
