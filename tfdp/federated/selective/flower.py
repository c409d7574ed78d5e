"""Distributed selective SGD over Flower: the server asks nodes, and nodes are participants.

This module needs Flower: `pip install -e ".[federated]"`, Python 3.11 or newer.
"""

import time
from collections.abc import Callable, Iterable

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from tfdp.federated.flower import FixedErrors, pulled
from tfdp.federated.plain_connections import refuse_plain_connections
from tfdp.federated.selective.exchange import Failure
from tfdp.federated.selective.participant import Participant
from tfdp.federated.selective.server import ParameterServer
from tfdp.federated.selective.sparse import BadMessageError
from tfdp.federated.updates import InvalidUpdateError

# Both directions have one record with one text: parameters, or changes. A node without parameters
# answers a part of them with no text at all, and is sent all of them.
_RECORD, _TEXT, _NEEDS_ALL = "selective", "message", b""
# Where a node keeps its own parameters. Flower keeps this state on the node.
_STATE, _PARAMETERS = "tfdp.selective", "parameters"
# Seconds between looks for answers.
_PAUSE = 0.05


class _Given:
    """A server whose next download has arrived already."""

    def __init__(self, text: bytes):
        self._text = text

    def download(self, theta_d: float = 1.0) -> bytes:
        return self._text

    def upload(self, message: bytes) -> None:
        raise NotImplementedError("A node answers; it does not call.")


def participant_app(make_participant: Callable[[Context], Participant]) -> ClientApp:
    """Returns the app of a node.

    The server says which fraction of parameters is downloaded, and not the participant. Its
    parameters are kept in the state that Flower holds for the node. What protects them, if
    anything, is what its `select` does, with a ledger that must outlive the process:
    `PrivacyLedger.open(path, create=True, lease=1)`.

    Guarantees:
        Of an error on the node the server learns that there was one, and no more. An epoch of
        `LocalSGD` has none, whatever the numbers of its examples are.

    Args:
        make_participant: From the node's context to its participant. It is called for every
            message, because Flower may run each in a process of its own.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        with FixedErrors():
            participant = make_participant(context)
            if _STATE in context.state:
                participant.parameters = context.state[_STATE][_PARAMETERS].numpy().copy()
            text = _NEEDS_ALL
            if participant.parameters is not None or _is_whole(participant, message):
                participant.download(_Given(text_of(message)))
                text = participant.epoch()
                held = {_PARAMETERS: Array(participant.parameters)}
                context.state[_STATE] = ArrayRecord(held)
            return Message(_content(text), reply_to=message)

    return app


def _is_whole(participant: Participant, message: Message) -> bool:
    """Whether a participant without parameters can begin with what the message holds."""
    try:
        participant.download(_Given(text_of(message)))
    except BadMessageError:
        return False
    return True


def run_epoch(
    grid: Grid,
    server: ParameterServer,
    nodes: Iterable[int],
    *,
    theta_d: float = 1.0,
    timeout: float = 3600.0,
) -> dict[int, Failure]:
    """Gives every node one turn, one after the other; as `tfdp.federated.selective.run_epoch`.

    Args:
        grid: Of Flower.
        server: Where parameters come from and changes go to.
        nodes: Their ids, in the order of their turns.
        theta_d: The fraction of parameters that is sent.
        timeout: Seconds after which a node counts as away.

    Returns:
        Errors of those that were away or whose answer was refused.

    Raises:
        NotPrivateError: the SuperLink takes connections without TLS from other machines.
    """
    refuse_plain_connections(grid)
    failed: dict[int, Failure] = {}
    for node in nodes:
        try:
            text = _asked(grid, node, server.download(theta_d), timeout)
            if text == _NEEDS_ALL:
                text = _asked(grid, node, server.download(1.0), timeout)
            server.upload(text)
        except (ConnectionError, BadMessageError) as error:
            failed[node] = error
    return failed


def run_asynchronous(
    grid: Grid,
    server: ParameterServer,
    nodes: Iterable[int],
    uploads: int,
    *,
    theta_d: float = 1.0,
    timeout: float = 3600.0,
    pause: float = _PAUSE,
) -> list[tuple[int, Failure]]:
    """Lets all nodes train at the same time, on parameters that become stale meanwhile.

    Who has answered is sent new parameters at once. Answers after the last upload are not taken.

    Args:
        grid: Of Flower.
        server: Where parameters come from and changes go to.
        nodes: Their ids.
        uploads: It ends after so many accepted uploads.
        theta_d: The fraction of parameters that is sent.
        timeout: It also ends after so many seconds.
        pause: Seconds between looks for answers, where there are none.

    Returns:
        (node, error) for every answer that was an error or refused. Such a node is not asked again.

    Raises:
        NotPrivateError: the SuperLink takes connections without TLS from other machines.
    """
    refuse_plain_connections(grid)
    end, failed = time.monotonic() + timeout, []
    last = server.version + uploads

    def send(node: int, fraction: float) -> tuple[str, tuple[int, float]]:
        message = Message(_content(server.download(fraction)), node, "train", ttl=timeout)
        (number,) = grid.push_messages([message])
        return number, (node, fraction)

    waiting = dict(send(node, theta_d) for node in nodes)
    while waiting and server.version < last and time.monotonic() < end:
        is_any = False
        for number, (node, fraction) in list(waiting.items()):
            try:
                reply = _pulled(grid, number)
                if reply is None:
                    continue
                text = text_of(reply)
                # Who has just been sent everything and needs it again is refused, as no upload.
                needs_all = text == _NEEDS_ALL and fraction < 1
                if not needs_all:
                    server.upload(text)
            except (ConnectionError, BadMessageError) as error:
                failed.append((node, error))
                del waiting[number]
                continue
            is_any = True
            del waiting[number]
            if server.version >= last:
                break
            waiting.update([send(node, 1.0 if needs_all else theta_d)])
        if not is_any:
            time.sleep(pause)
    return failed


def text_of(message: Message) -> bytes:
    """Returns the text of a message from the other side, who may have put anything into it.

    Raises:
        ConnectionError: Flower says that something went wrong there.
        BadMessageError: it holds something else than one text.
    """
    if message.has_error():
        raise ConnectionError(f"The node failed. Flower's code: {message.error.code}.")
    content = message.content
    if set(content) != {_RECORD} or not isinstance(content[_RECORD], ConfigRecord):
        raise BadMessageError("The message has other records than one text.")
    record = content[_RECORD]
    if set(record) != {_TEXT} or not isinstance(record[_TEXT], bytes):
        raise BadMessageError("The record of the message is not one text.")
    return record[_TEXT]


def _content(text: bytes) -> RecordDict:
    return RecordDict({_RECORD: ConfigRecord({_TEXT: text})})


def _asked(grid: Grid, node: int, text: bytes, timeout: float) -> bytes:
    """Returns the text with which a node answers."""
    (number,) = grid.push_messages([Message(_content(text), node, "train", ttl=timeout)])
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        reply = _pulled(grid, number)
        if reply is not None:
            return text_of(reply)
        time.sleep(_PAUSE)
    raise ConnectionError(f"Node {node} has not answered within {timeout:g} seconds.")


def _pulled(grid: Grid, number: str) -> Message | None:
    """Returns what has come in answer to a message, which Flower keeps apart for each.

    What an answer says of itself is what its node wrote there.
    """
    try:
        replies = pulled(grid, number)
    except InvalidUpdateError as error:
        raise BadMessageError(str(error)) from error
    return replies[0] if replies else None
