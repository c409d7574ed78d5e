"""A participant: its own parameters, its own data, and what it shares."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from tfdp.federated.selective.sparse import SparseVector, check_fraction, decode, encode


class Server(Protocol):
    """What a participant asks of the parameter server, wherever it is."""

    def download(self, theta_d: float = ...) -> bytes:
        """Returns a message with parameters."""

    def upload(self, message: bytes) -> None:
        """Takes a message with changes."""


class Participant:
    """Trains on data of its own, and shares some of the changes of its parameters.

        1. download theta_d n parameters, which take the place of its own
        2. one epoch of SGD on its own data
        3. d = parameters after it - parameters before it
        4. upload what `select` takes of d

    What it did not download stays what its own training made of it. All parameters are downloaded
    the first time, and after a crash, which loses its own.

    Args:
        train: From parameters, float32 [n], to those after an epoch on the participant's data. What
            is not finite afterwards is put back.
        select: From changes, float32 [n], to what is shared of them: `LargestValues`,
            `RandomAboveThreshold`, or one that protects the data: `SparseVectorUpload`,
            `GaussianUpload`.
        theta_d: The fraction of parameters that it downloads; in [0, 1].

    Attributes:
        parameters: float32 [n], its own; None before it joins and after a crash.

    References:
        Shokri and Shmatikov 2015, "Privacy-Preserving Deep Learning", figure 2.
    """

    def __init__(
        self,
        train: Callable[[np.ndarray], np.ndarray],
        select: Callable[[np.ndarray], SparseVector],
        theta_d: float = 1.0,
    ):
        self._train, self._select = train, select
        self._theta_d = check_fraction("theta_d", theta_d)
        self.parameters: np.ndarray | None = None

    def download(self, server: Server) -> None:
        """Takes parameters from the server: all, if it has none."""
        if self.parameters is None:
            self.parameters = decode(server.download(1.0), None).values
            return
        taken = decode(server.download(self._theta_d), len(self.parameters))
        self.parameters[taken.indices] = taken.values

    def epoch(self) -> bytes:
        """Trains for one epoch, and returns the message with what is shared of the changes."""
        if self.parameters is None:
            raise ValueError("A participant must download before it trains: call `download`.")
        before = self.parameters
        after = np.asarray(self._train(before.copy()), np.float32)
        if after.shape != before.shape:
            raise ValueError(
                f"train must return as many parameters as it is given, {before.shape}. "
                f"Received: {after.shape}."
            )
        after = np.where(np.isfinite(after), after, before)
        shared = self._select(after - before)
        if not isinstance(shared, SparseVector):
            raise TypeError(
                "select must return a tfdp.federated.selective.SparseVector(size, indices, values)."
                f" Received: {type(shared).__name__}."
            )
        message = encode(shared)
        self.parameters = after
        return message

    def turn(self, server: Server) -> None:
        """Downloads, trains and uploads, while nobody else does."""
        self.download(server)
        server.upload(self.epoch())

    def crash(self) -> None:
        """Forgets its parameters, as a process that ends does. What it shared stays shared."""
        self.parameters = None
