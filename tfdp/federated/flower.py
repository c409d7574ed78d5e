"""Rounds over Flower: a strategy whose aggregation is a query, and Keras models as clients.

This module needs Flower: `pip install -e ".[federated]"`, Python 3.11 or newer.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from google.protobuf.message import DecodeError

from tfdp.federated.local import Clients, LocalSGD, LocalTraining
from tfdp.federated.plain_connections import refuse_plain_connections
from tfdp.federated.server import Round, Server
from tfdp.federated.simulation import control_changes
from tfdp.federated.updates import Form, InvalidUpdateError
from tfdp.noise import host_generator

# What stands where in messages. To a client: "arrays", "controls" with SCAFFOLD, and "config" with
# the token and what the ServerApp adds. From a client: "update" and "answer".
_ARRAYS, _CONTROLS, _CONFIG, _UPDATE, _ANSWER = "arrays", "controls", "config", "update", "answer"
_TOKEN, _WEIGHT = "token", "weight"
# What Flower raises where a node's bytes are no message: its own and protobuf's errors.
_UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    DecodeError,
    # Of records within records: Flower reads them by recursion.
    RecursionError,
)
_logger = logging.getLogger("tfdp")


class NodeError(RuntimeError):
    """A node could not train. Why is in its own log only."""


class FixedErrors:
    """What runs inside on a node raises a `NodeError` of one fixed text, in place of any error.

    Flower sends the text of an error to the SuperLink. That of TensorFlow's may hold every label of
    a batch. The error itself is logged by `tfdp`'s logger, on the node.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            _logger.error("Training on this node failed.", exc_info=error)
            raise NodeError(
                "Training on this node failed. Why is in its own log: the text of an error may "
                "hold data."
            ) from None


class RoundStrategy(Strategy):
    """Runs the rounds of a `tfdp.federated.Server` on the nodes of a Flower grid.

    The names of the server's clients are ids of nodes. The cohort is drawn by the server among all
    registered nodes, connected or not. A node that is not there, is too slow, or sends something
    else than an update, counts as zero.

    Guarantees:
        Those of `Server`. Bytes that nodes send are compared with what the model's shapes and
        dtypes need, and not parsed. Errors of nodes are not logged.

    Args:
        server: Whose rounds.
        callbacks: As in `Server.rounds`.
        validation_data: Public data, as there.
    """

    def __init__(self, server: Server, *, callbacks: Any = None, validation_data: Any = None):
        self.server = server
        self._callbacks, self._validation_data = callbacks, validation_data
        self._round: Round | None = None
        self._timeout: float | None = None

    def summary(self) -> None:
        """Logs nothing: what is configured stands in the ledger."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns what is sent to those nodes of the cohort that are connected.

        Args:
            server_round: Number of the round.
            arrays: The weights.
            config: What clients are told beside them.
            grid: Of Flower.
        """
        current = self._open_round()
        shared = {_ARRAYS: arrays}
        if current.controls:
            shared[_CONTROLS] = ArrayRecord(current.controls)
        connected = set(grid.get_node_ids())

        def message(node: int) -> Message:
            # A node may write another id into its answer, but knows no other token than its own.
            own = ConfigRecord({**config, _TOKEN: current.token_of(node)})
            content = RecordDict({**shared, _CONFIG: own})
            return Message(content, node, "train", group_id=str(server_round), ttl=self._timeout)

        return [message(node) for node in current.cohort if node in connected]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Takes the answers to the open round, whose release follows when all of them are in."""
        current = self._open_round()
        for reply in replies:
            try:
                token, weight, update = answer_of(reply, self.server.form)
            except InvalidUpdateError:
                continue
            current.receive(reply.metadata.src_node_id, update, token=token, weight=weight)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns nothing: metrics of clients would be raw statistics of their data.

        Args:
            server_round: Number of the round.
            arrays: The weights.
            config: Of Flower.
            grid: Likewise.
        """
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Returns None: clients are not asked for metrics."""
        return None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs rounds; as in Flower, where it is not said otherwise.

        Args:
            grid: Of Flower.
            initial_arrays: Must be left out: training goes on from the weights of the server's
                model, which have a ledger.
            num_rounds: At most so many; a callback may end it earlier.
            timeout: Seconds after which a round does not wait for more answers (but see
                `replies_to`).
            train_config: What clients are told.
            evaluate_config: Must be left out: clients are not asked for metrics.
            evaluate_fn: Called with the number of the round and the weights, on public data.

        Returns:
            The weights, and what `evaluate_fn` returned.

        Raises:
            ValueError: an argument was given that must be left out.
            NotPrivateError: the SuperLink takes connections without TLS from other machines.
            PrivacyBudgetExceededError: the budget of a callback covers no round.
            RuntimeError: Flower can read none of the answers to a round.
        """
        if initial_arrays is not None or evaluate_config is not None:
            raise ValueError(
                "initial_arrays and evaluate_config must be left out: the weights are those of the "
                "server's model, and metrics of clients are not private. Validate on public data."
            )
        refuse_plain_connections(grid)
        result, self._timeout = Result(arrays=self._arrays()), timeout
        config = ConfigRecord() if train_config is None else train_config

        def evaluate(number: int) -> None:
            result.arrays = self._arrays()
            found = None if evaluate_fn is None else evaluate_fn(number, result.arrays)
            if found is not None:
                result.evaluate_metrics_serverapp[number] = found

        def answer(current: Round) -> None:
            if current.number == 1:
                evaluate(0)
            self._round = current
            messages = self.configure_train(current.number, self._arrays(), config, grid)
            self.aggregate_train(current.number, replies_to(grid, messages, timeout))

        after = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, _: evaluate(epoch + 1))
        callbacks = [*keras.tree.flatten(self._callbacks or []), after]
        try:
            self.server.train(
                answer, num_rounds, callbacks=callbacks, validation_data=self._validation_data
            )
        finally:
            self._round = None
        return result

    def _arrays(self) -> ArrayRecord:
        return ArrayRecord([np.array(v) for v in self.server.model.trainable_variables])

    def _open_round(self) -> Round:
        if self._round is None:
            raise RuntimeError("No round is open: RoundStrategy.start runs them.")
        return self._round


def nodes(grid: Grid, number: int, *, timeout: float = 60.0) -> list[int]:
    """Waits until so many nodes are connected, and returns the ids of all that are, in order.

    They are the population of a `Server`: whoever connects later is not in it.

    Args:
        grid: Of Flower.
        number: At least so many.
        timeout: Seconds.

    Raises:
        TimeoutError: there are fewer.
        NotPrivateError: the SuperLink takes connections without TLS from other machines.
    """
    refuse_plain_connections(grid)
    until = time.monotonic() + timeout
    while True:
        found = sorted(grid.get_node_ids())
        if len(found) >= number:
            return found
        if time.monotonic() > until:
            raise TimeoutError(
                f"{number} nodes were expected within {timeout} seconds. Connected: {len(found)}."
            )
        time.sleep(0.1)


def replies_to(
    grid: Grid, messages: Iterable[Message], timeout: float, pause: float = 0.2
) -> Iterator[Message]:
    """Yields answers as they come, until all are there or the time is over.

    Each is fetched by itself. Flower makes objects of what a node sent, and bytes that are none
    would else end the round for everybody. For an answer that a node announces and does not send,
    Flower waits by itself, 180 seconds in version 1.41. Those of others are then fetched after it.

    Args:
        grid: Of Flower.
        messages: To one node each.
        timeout: Seconds.
        pause: Seconds between looks for answers, where there are none.

    Raises:
        RuntimeError: answers came, and none could be read. Then the fault is not a node's.
    """
    waiting = [number for number in grid.push_messages(messages) if number is not None]
    end, is_any_read, unreadable = time.monotonic() + timeout, False, None
    is_over = False
    while waiting and not is_over:
        # The last look is after the end: one answer may have taken all the time.
        is_over = time.monotonic() >= end
        silent = []
        for number in waiting:
            try:
                found = pulled(grid, number)
            except InvalidUpdateError as error:
                unreadable = error
                continue
            if not found:
                silent.append(number)
            is_any_read |= bool(found)
            yield from found
        if len(silent) == len(waiting) and not is_over:
            time.sleep(pause)
        waiting = silent
    if unreadable is not None and not is_any_read:
        raise RuntimeError(
            "Flower could read none of the answers. The round is charged and not released. Do "
            "nodes and server have the same version of Flower?"
        ) from unreadable


def pulled(grid: Grid, number: str) -> list[Message]:
    """Returns what has come in answer to one message.

    Args:
        grid: Of Flower.
        number: Of the message, as `push_messages` returned it.

    Raises:
        InvalidUpdateError: Flower can make no message of what the node sent.
    """
    try:
        return list(grid.pull_messages([number]))
    except _UNREADABLE as error:
        raise InvalidUpdateError("Flower cannot read what the node sent.") from error


def answer_of(reply: Message, form: Form) -> tuple[str, Any, list[np.ndarray] | None]:
    """Returns (token, weight, arrays) of a reply; None for arrays that are not of the form.

    Args:
        reply: From a node, which may have put anything into it.
        form: What updates look like.

    Raises:
        InvalidUpdateError: it is an error, or no answer to a round.
    """
    if reply.has_error() or not reply.has_content():
        raise InvalidUpdateError("The reply is an error.")
    content = reply.content
    if set(content) != {_UPDATE, _ANSWER}:
        raise InvalidUpdateError("The reply has other records than an answer.")
    update, answer = content[_UPDATE], content[_ANSWER]
    if not isinstance(update, ArrayRecord) or not isinstance(answer, ConfigRecord):
        raise InvalidUpdateError(
            "The records of the reply have other types than those of an answer."
        )
    if not {_TOKEN} <= set(answer) <= {_TOKEN, _WEIGHT} or not isinstance(answer[_TOKEN], str):
        raise InvalidUpdateError("The reply has no token, or more than a token and a weight.")
    return answer[_TOKEN], answer.get(_WEIGHT), _arrays_of(update, form)


def _arrays_of(update: ArrayRecord, form: Form) -> list[np.ndarray] | None:
    """Returns the arrays in the order in which the client gave them, that of its model.

    Others are None: what they count as is the round's to say, since who answers may bring a share
    of the noise.
    """
    if len(update) != len(form.shapes):
        return None
    forms = zip(update.values(), form.shapes, form.dtypes, strict=True)
    try:
        return [decoded(array.data, shape, dtype) for array, shape, dtype in forms]
    except InvalidUpdateError:
        return None


def decoded(data: bytes, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Returns the array that bytes in NumPy's format (1.0) hold, if it is of this shape and dtype.

    The header is compared with those of such an array, and not parsed.

    Args:
        data: Bytes from somebody else.
        shape: What is expected.
        dtype: Likewise.

    Raises:
        InvalidUpdateError: it is of another one, or these are other bytes.
    """
    end = 10 + int.from_bytes(data[8:10], "little")
    header, values = data[10:end].rstrip(), data[end:]
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    orders = {
        f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}".encode(): order
        for fortran, order in ((False, "C"), (True, "F"))
    }
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if data[:8] != b"\x93NUMPY\x01\x00" or header not in orders or len(values) != expected:
        raise InvalidUpdateError(
            f"An array of an update must be {dtype}{shape}, in NumPy's format, and nothing else."
        )
    return np.frombuffer(values, dtype).reshape(shape, order=orders[header])


def client(
    model: Callable[[Context], keras.Model],
    data: Callable[[Context], tuple[Any, Any]],
    sgd: LocalSGD,
    *,
    weighted: bool = False,
) -> ClientApp:
    """Returns the ClientApp that trains a Keras model on a node's own data.

    Guarantees:
        Of an error on the node the server learns that there was one, and no more.

    Args:
        model: Returns the model, built and compiled with a loss; it is called once in a process.
            Its architecture is the server's; its own weights do not matter.
        data: Returns (x, y) of this node, called in every round.
        sgd: What the node does in a round.
        weighted: Whether to send the number of examples as weight, which tells it to the server; as
            the server's query takes weights.

    Returns:
        The app. With SCAFFOLD the node's control variate is in the state of its context, which does
        not leave it.
    """
    app, trainings = ClientApp(), {}

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with FixedErrors():
            if context.run_id not in trainings:
                trainings[context.run_id] = LocalTraining(model(context), sgd)
            x, y = map(np.asarray, data(context))
            content = message.content
            weights = content[_ARRAYS].to_numpy_ndarrays()
            controls = content[_CONTROLS].to_numpy_ndarrays() if _CONTROLS in content else []
            update = _update(trainings[context.run_id], weights, controls, (x, y), context)
            answer = {_TOKEN: content[_CONFIG][_TOKEN]}
            if weighted:
                answer[_WEIGHT] = float(len(x))
            records = RecordDict({_UPDATE: ArrayRecord(update), _ANSWER: ConfigRecord(answer)})
            return Message(records, reply_to=message)

    return app


def _update(
    training: LocalTraining,
    weights: Sequence[np.ndarray],
    controls: Sequence[np.ndarray],
    data: tuple[np.ndarray, np.ndarray],
    context: Context,
) -> list[np.ndarray]:
    x, y = data
    order = training.sgd.batches(len(x), host_generator())
    clients = Clients(x[None], y[None], order[None])
    if not len(x):
        return [np.zeros_like(part) for part in (*weights, *controls)]
    if not controls:
        return [part[0] for part in training.updates(weights, clients)]
    own = [np.zeros_like(c) for c in controls]
    if _CONTROLS in context.state:
        own = context.state[_CONTROLS].to_numpy_ndarrays()
    corrections = [(c - c_i)[None] for c, c_i in zip(controls, own, strict=True)]
    update = training.updates(weights, clients, corrections)
    steps = np.array([len(order)])
    changes = control_changes(update, controls, steps, training.sgd.learning_rate)
    context.state[_CONTROLS] = ArrayRecord([a + b[0] for a, b in zip(own, changes, strict=True)])
    return [part[0] for part in (*update, *changes)]
