"""Clients of a cohort in one process, many at a time."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfdp.events.arguments import check_type, positive_integer
from tfdp.federated.local import Clients, LocalSGD, LocalTraining
from tfdp.federated.server import Round, Server
from tfdp.keras.inputs import as_array
from tfdp.noise import host_generator


class Simulation:
    """Answers rounds for clients whose data are all here: `server.train(simulation, 100)`.

    For a query that takes weights, a client's weight is its number of examples.

    Guarantees:
        How the data of a client are held follows from no other client's: the examples of all must
        have one form, or the simulation is not made.

    Args:
        server: Whose rounds, and whose model's loss.
        data: For every registered client its (x, y); a client without examples answers that nothing
            changed. Numbers or truth values, of one shape an example and one dtype. Floating-point
            numbers are cast to `keras.config.floatx()`, as in `fit`.
        sgd: What each client does.
        clients_at_once: Whose weights are in memory at the same time.
        generator: Draws the orders of examples; by default from secret bits. No event counts on
            them.

    Raises:
        KeyError: a registered client has no data.
        TypeError: `data` is no mapping, or holds something else than a pair of numbers for a
            client.
        ValueError: x and y of a client differ in length, examples of two clients differ in shape or
            dtype, or `clients_at_once` is out of range.
    """

    def __init__(
        self,
        server: Server,
        data: Mapping[Hashable, tuple[Any, Any]],
        sgd: LocalSGD,
        *,
        clients_at_once: int = 50,
        generator: Any = None,
    ):
        check_type("server", server, Server)
        check_type("sgd", sgd, LocalSGD)
        if not isinstance(data, Mapping):
            raise TypeError(
                "data must map the name of every client to its (x, y). Received: "
                f"{type(data).__name__}."
            )
        self._server = server
        self._data = {name: _arrays(name, data[name]) for name in server.clients}
        for name, (x, y) in self._data.items():
            if len(x) != len(y):
                raise ValueError(
                    f"x and y of a client must have one length. Received: {len(x)} and {len(y)}, "
                    f"of client {name!r}."
                )
        self._forms = _forms(self._data)
        self._training = LocalTraining(server.model, sgd)
        self._sgd = sgd
        self._at_once = positive_integer("clients_at_once", clients_at_once)
        self._rows = max(1, max(len(x) for x, _ in self._data.values()))
        self._generator = host_generator(generator)
        # c_i of SCAFFOLD, of those clients that were asked.
        self._controls: dict[Hashable, list[np.ndarray]] = {}

    def __call__(self, current: Round) -> None:
        """Answers a round for its whole cohort."""
        # Clients of like size are together, so that none waits long for another.
        cohort = sorted(current.cohort, key=lambda name: len(self._data[name][0]))
        for start in range(0, len(cohort), self._at_once):
            names = cohort[start : start + self._at_once]
            updates = self._updates(current, names)
            weights = None
            if self._server.form.is_weighted:
                sizes = [float(len(self._data[name][0])) for name in names]
                weights = np.array(sizes + [0.0] * (self._at_once - len(names)))
            current.receive_all(names, updates, weights)

    def _updates(self, current: Round, names: Sequence[Hashable]) -> list[np.ndarray]:
        if not self._forms:  # No client has an example.
            return [np.stack([part] * self._at_once) for part in self._server.form.zeros()]
        clients = self._stacked(names)
        if not current.controls:
            return self._training.updates(current.weights, clients)
        zeros = [np.zeros_like(c) for c in current.controls]
        own = [self._controls.get(name, zeros) for name in names]
        own += [zeros] * (self._at_once - len(names))
        stacked = [np.stack(parts) for parts in zip(*own, strict=True)]
        corrections = [c - c_i for c, c_i in zip(current.controls, stacked, strict=True)]
        updates = self._training.updates(current.weights, clients, corrections)
        steps = np.sum(np.any(clients.order >= 0, axis=2), axis=1)
        changes = control_changes(updates, current.controls, steps, self._sgd.learning_rate)
        for i, name in enumerate(names):
            self._controls[name] = [a + b[i] for a, b in zip(own[i], changes, strict=True)]
        return [*updates, *changes]

    def _stacked(self, names: Sequence[Hashable]) -> Clients:
        number, rows = self._at_once, self._rows
        x, y = (np.zeros([number, rows, *shape], dtype) for shape, dtype in self._forms)
        order = np.full([number, self._sgd.steps(rows), self._sgd.batch_size], -1, np.int32)
        for i, name in enumerate(names):
            own_x, own_y = self._data[name]
            x[i, : len(own_x)], y[i, : len(own_y)] = own_x, own_y
            batches = self._sgd.batches(len(own_x), self._generator)
            order[i, : len(batches)] = batches
        return Clients(x, y, order)


def _arrays(client: Hashable, pair: Any) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(
            "data must hold a pair (x, y) for every client. Received, of client "
            f"{client!r}: {type(pair).__name__}."
        )
    arrays = [
        as_array(f"{part} of client {client!r}", a) for part, a in zip("xy", pair, strict=True)
    ]
    x, y = (a.astype(_dtype_of(a.dtype), copy=False) for a in arrays)
    return x, y


def _dtype_of(dtype: np.dtype) -> Any:
    # Integers stay as wide as they are, in the order of bytes of this machine.
    return keras.config.floatx() if dtype.kind == "f" else dtype.newbyteorder("=")


def _forms(data: Mapping[Hashable, tuple[np.ndarray, ...]]) -> list[tuple[tuple[int, ...], Any]]:
    """Returns shape and dtype of an example's x and y, which are those of every client.

    Raises:
        ValueError: two clients differ, of those that have examples.
    """
    forms = {
        name: [(part.shape[1:], part.dtype) for part in parts]
        for name, parts in data.items()
        if len(parts[0])
    }
    first = next(iter(forms), None)
    for name, form in forms.items():
        if form != forms[first]:
            raise ValueError(
                "Examples of all clients must have one shape and one dtype, x as well as y: else "
                "the data of one client would decide how those of others are held. Reshape them, "
                f"or convert them with astype. Received: {_words(forms[first])} of client "
                f"{first!r}, and {_words(form)} of client {name!r}."
            )
    return forms.get(first, [])


def _words(form: Sequence[tuple[tuple[int, ...], Any]]) -> str:
    return " and ".join(
        f"{part} {dtype}{shape}" for part, (shape, dtype) in zip("xy", form, strict=True)
    )


def control_changes(
    updates: Sequence[np.ndarray],
    controls: Sequence[np.ndarray],
    steps: np.ndarray,
    learning_rate: float,
) -> list[np.ndarray]:
    """Returns by how much clients' control variates change: -c - update / (steps learning_rate).

    Edge cases:
        A client with a change that is not finite keeps its control variate as it is; its update
        counts as nothing at the server. Otherwise it would count as nothing ever after.

    Args:
        updates: Of the weights, [clients, ...].
        controls: c, of the server.
        steps: [clients]; where there are none, nothing changes.
        learning_rate: Of the clients.

    References:
        Karimireddy et al. 2020, arXiv:1910.06378, algorithm 1, option II.
    """
    changes = []
    for update, control in zip(updates, controls, strict=True):
        shape = [-1] + [1] * (update.ndim - 1)
        scale = (np.maximum(steps, 1) * learning_rate).reshape(shape)
        with np.errstate(all="ignore"):  # A warning would say that some client diverged.
            changes.append((-control - update / scale).astype(update.dtype))
    finite = [np.isfinite(change).reshape(len(steps), -1).all(1) for change in changes]
    takes = (steps > 0) & np.all(finite, axis=0)
    return [np.where(takes.reshape([-1] + [1] * (c.ndim - 1)), c, 0) for c in changes]
