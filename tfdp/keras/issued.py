"""The gradients that may be applied."""

import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.keras import charges, distribution
from tfdp.keras.errors import NotPrivateError


class Issued:
    """Noised gradients that were charged, and not applied yet.

    For each replica, or without a strategy for each thread, they are those of the last step. What
    one thread took is not applied by another one, and nothing is applied twice.
    """

    def __init__(self) -> None:
        # By their identity: gradients, and with respect to which variables they were taken.
        self._issued: dict[tuple[int, int], dict[int, tuple[Any, Any]]] = {}

    @staticmethod
    def _taker() -> tuple[int, int]:
        # Under a strategy, every call of a replica's function may run in another thread, so the
        # thread says nothing there.
        thread = 0 if tf.distribute.has_strategy() else threading.get_ident()
        return distribution.replica_index(), thread

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Notes the gradients of a step, in place of those before.

        Args:
            gradients: The gradients.
            variables: With respect to which they were taken.
        """
        pairs = zip(gradients, variables, strict=True)
        self._issued[self._taker()] = {id(g): (g, variable) for g, variable in pairs}

    def take(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        """Takes the gradients that are about to be applied.

        Args:
            gradients: The gradients.
            variables: Which they are to change; by default those that they were taken for.

        Returns:
            The variables.

        Raises:
            NotPrivateError: one of them is not of the last step, or of another variable.
        """
        taker = self._taker()
        issued = self._issued.get(taker, {})
        found = [issued.get(id(g), (None, None)) for g in gradients]
        if not gradients or any(
            known is not g for (known, _), g in zip(found, gradients, strict=True)
        ):
            raise NotPrivateError(
                "DPOptimizer received gradients that did not come through its private step. In "
                "`fit`, wrap the model: model = tfdp.keras.make_private(model). In a custom loop, "
                "take them from optimizer.private_gradients(...) and pass them on unchanged, in "
                "the same thread. Private gradients that you have processed further may go to "
                "optimizer.inner_optimizer.apply."
            )
        paid = [variable for _, variable in found]
        given = paid if variables is None else list(variables)
        if len(paid) != len(given) or any(
            charges.holder(own) is not charges.holder(v) for own, v in zip(paid, given, strict=True)
        ):
            raise NotPrivateError(
                "Private gradients are to be applied to other variables than those that they were "
                "taken for, which are the ones that were paid for. Pass the same list to "
                "private_gradients and to apply, or none to apply."
            )
        self._issued[taker] = {}
        return given
