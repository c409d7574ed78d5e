"""The parameter server: global parameters, and how much each of them was updated lately."""

import threading
from typing import Any

import numpy as np

from tfdp.events.arguments import real_number
from tfdp.federated.selective import state_file
from tfdp.federated.selective.sparse import (
    LONGEST,
    BadMessageError,
    SparseVector,
    check_fraction,
    decode,
    encode,
    largest,
    number_of,
)


class ParameterServer:
    """Holds global parameters to which participants add changes, and which they download.

        upload of changes d_S:  w_j += d_j and stat_j := beta stat_j + [j in S]
        download of theta_d n:  the parameters with the largest stat; of equal ones the first

    Participants are not trusted. An upload changes everything it says or nothing: one that is no
    message, has too many or too large numbers, NaN, or would make a parameter infinite is refused.
    What a participant says within the bounds is taken: whoever may upload can spoil a model.

    Args:
        parameters: float32 [n], those to begin with.
        beta: By what `stat` is multiplied at every upload; in [0, 1]. With 1 all updates count.
        largest_fraction: The fraction of parameters that one upload may change.
        largest_value: What a change may be at most, or None: any finite number. Participants'
            gamma, as a rule.

    Attributes:
        parameters: float32 [n].
        stat: float64 [n].
        version: How many uploads were accepted.
        bytes_received: Of accepted uploads.
        bytes_sent: Of downloads.

    References:
        Shokri and Shmatikov 2015, "Privacy-Preserving Deep Learning", figure 3.
    """

    def __init__(
        self,
        parameters: np.ndarray,
        *,
        beta: float = 1.0,
        largest_fraction: float = 1.0,
        largest_value: float | None = None,
    ):
        self.parameters = _checked(parameters)
        self.stat = np.zeros(len(self.parameters))
        self.version = self.bytes_received = self.bytes_sent = 0
        self.beta = check_fraction("beta", beta)
        self.largest_fraction = check_fraction("largest_fraction", largest_fraction)
        if largest_value is not None:
            largest_value = real_number("largest_value", largest_value, minimum=0, inclusive=False)
        self.largest_value = largest_value
        self._turn = threading.RLock()

    def download(self, theta_d: float = 1.0) -> bytes:
        """Returns a message with the fraction theta_d of parameters that were updated most."""
        theta_d = check_fraction("theta_d", theta_d)
        with self._turn:
            indices = largest(self.stat, number_of(theta_d, len(self.stat)))
            message = encode(SparseVector(len(self.stat), indices, self.parameters[indices]))
            self.bytes_sent += len(message)
        return message

    def upload(self, message: bytes) -> None:
        """Adds a participant's changes to the parameters.

        Raises:
            BadMessageError: the message is refused, and nothing has changed.
        """
        changes = decode(message, len(self.parameters))
        self._check(changes)
        with self._turn, np.errstate(over="ignore"):
            updated = self.parameters[changes.indices] + changes.values
            if not np.all(np.isfinite(updated)):
                raise BadMessageError("With these changes a parameter would be infinite.")
            self.parameters[changes.indices] = updated
            self.stat *= self.beta
            self.stat[changes.indices] += 1
            self.version += 1
            self.bytes_received += len(message)

    def _check(self, changes: SparseVector) -> None:
        most = number_of(self.largest_fraction, changes.size)
        if len(changes.values) > most:
            raise BadMessageError(
                f"An upload may change {most} parameters. Received: {len(changes.values)}."
            )
        bound, magnitudes = self.largest_value, np.abs(changes.values.astype(np.float64))
        if bound is not None and np.any(magnitudes > bound):
            raise BadMessageError(
                f"Changes must be in [-{bound:g}, {bound:g}]. Received: one of magnitude "
                f"{np.max(magnitudes):g}."
            )

    # What stands in the file; configuration included, so that a restart goes on as before.
    _ARRAYS = ("parameters", "stat")
    _NUMBERS = ("version", "bytes_received", "bytes_sent")
    _OPTIONS = ("beta", "largest_fraction", "largest_value")

    def save(self, path: Any) -> None:
        """Writes the whole state to a file, all or nothing, in place of what is there.

        When it returns, the state is on the disk. A crash before leaves the earlier state.
        """
        with self._turn:
            names = (*self._ARRAYS, *self._NUMBERS, *self._OPTIONS)
            arrays = {
                name: np.array(np.nan if value is None else value)
                for name, value in ((name, getattr(self, name)) for name in names)
            }
            state_file.write(path, arrays)

    @classmethod
    def load(cls, path: Any) -> "ParameterServer":
        """Returns the server whose state was saved.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is not what `save` writes.
        """
        shapes = dict.fromkeys((*cls._NUMBERS, *cls._OPTIONS), 0) | dict.fromkeys(cls._ARRAYS, 1)
        arrays = state_file.read(path, shapes)
        if any(arrays[name].dtype != np.float64 for name in cls._OPTIONS):
            raise ValueError(f"{path} holds options that no server has.")
        options = {name: float(arrays[name]) for name in cls._OPTIONS}
        if np.isnan(options["largest_value"]):
            del options["largest_value"]
        server = cls(arrays["parameters"], **options)
        stat = arrays["stat"]
        numbers = [arrays[name] for name in cls._NUMBERS]
        if (
            stat.dtype != np.float64
            or stat.shape != server.stat.shape
            or not np.all(np.isfinite(stat) & (stat >= 0))
            or any(number.dtype != np.int64 or number < 0 for number in numbers)
        ):
            raise ValueError(f"{path} holds counters that no server has.")
        server.stat = stat
        server.version, server.bytes_received, server.bytes_sent = map(int, numbers)
        return server


def _checked(parameters: np.ndarray) -> np.ndarray:
    parameters = np.array(parameters)
    if (
        parameters.ndim != 1
        or parameters.dtype != np.float32
        or not 0 < len(parameters) < LONGEST
        or not np.all(np.isfinite(parameters))
    ):
        raise ValueError(
            "parameters must be one vector of finite float32 numbers, fewer than 2^31. Received: "
            f"an array of shape {parameters.shape} and type {parameters.dtype}."
        )
    return parameters
