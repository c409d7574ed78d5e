"""The gradients that may be applied."""

import threading
from typing import Any

import tensorflow as tf

from tfdp.keras import distribution
from tfdp.keras.errors import NotPrivateError


class Issued:
    """Noised gradients that were charged, and not applied yet.

    For each replica, or without a strategy for each thread, they are those of the last step. What
    one thread took is not applied by another one, and nothing is applied twice.
    """

    def __init__(self) -> None:
        self._tensors: dict[tuple[int, int], dict[int, Any]] = {}

    @staticmethod
    def _taker() -> tuple[int, int]:
        # Under a strategy, every call of a replica's function may run in another thread, so the
        # thread says nothing there.
        thread = 0 if tf.distribute.has_strategy() else threading.get_ident()
        return distribution.replica_index(), thread

    def add(self, gradients: list[Any]) -> None:
        """Notes the gradients of a step, in place of those before."""
        self._tensors[self._taker()] = {id(g): g for g in gradients}

    def take(self, gradients: list[Any]) -> None:
        """Takes the gradients that are about to be applied.

        Raises:
            NotPrivateError: one of them is not of the last step.
        """
        taker = self._taker()
        issued = self._tensors.get(taker, {})
        if not gradients or any(issued.get(id(g)) is not g for g in gradients):
            raise NotPrivateError(
                "DPOptimizer received gradients that did not come through its private step. In "
                "`fit`, wrap the model: model = tfdp.keras.make_private(model). In a custom loop, "
                "take them from optimizer.private_gradients(...) and pass them on unchanged, in "
                "the same thread. Private gradients that you have processed further may go to "
                "optimizer.inner_optimizer.apply."
            )
        self._tensors[taker] = {}
