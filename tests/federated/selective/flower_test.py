"""Selective SGD over Flower's messages, with nodes in this process, honest and not."""

import numpy as np
import pytest

from tfdp.federated.selective import (
    AsynchronousExchange,
    BadMessageError,
    GaussianUpload,
    LargestValues,
    ParameterServer,
    Participant,
)
from tfdp.federated.selective import run_epoch as run_here
from tfdp.keras import NotPrivateError
from tfdp.ledger import PrivacyLedger

pytest.importorskip(
    "flwr", reason="Flower is not installed: the extra 'federated', in an environment of its own."
)

from flwr.app import (  # noqa: E402
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from tfdp.federated.flower import NodeError  # noqa: E402
from tfdp.federated.selective import flower  # noqa: E402

GOALS = {101: [4, 0, 1], 102: [-2, 3, 0], 103: [0, -1, 8]}


@pytest.fixture(scope="module", autouse=True)
def _server_app():
    """Makes this process that of a ServerApp, which alone may make messages."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class Nodes(Grid):
    """A grid of functions in this process: node id -> function of (message, context)."""

    _insecure = False

    def __init__(self, apps):
        self._apps, self._answers, self._sent = apps, {}, 0
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in apps}
        self.delays = dict.fromkeys(apps, 0)

    def _reply(self, message):
        node = message.metadata.dst_node_id
        self._sent += 1
        message.metadata._message_id = str(self._sent)
        reply = self._apps[node](message, self.contexts[node])
        if isinstance(reply, Message):
            reply.metadata._src_node_id = node
        return reply

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            reply = self._reply(message)
            numbers.append(message.metadata.message_id)
            self._answers[numbers[-1]] = reply, self.delays[message.metadata.dst_node_id]
        return numbers

    def pull_messages(self, message_ids):
        replies = []
        for number in message_ids:
            reply, delay = self._answers[number]
            self._answers[number] = reply, max(0, delay - 1)
            if isinstance(reply, Exception):  # Of Flower, which reads what the node sent.
                raise reply
            if not delay and reply is not None:
                replies.append(reply)
        return replies

    run = property(lambda self: None)

    def get_node_ids(self):
        return list(self._apps)

    def set_run(self, run):
        raise NotImplementedError

    def create_message(self, *arguments, **others):
        raise NotImplementedError


def toward(goal):
    return lambda w: w + np.float32(0.5) * (np.array(goal, np.float32) - w)


def participant(goal, theta_d=0.34):
    return Participant(toward(goal), LargestValues(0.67, 1.5), theta_d)


def app(goal):
    return flower.participant_app(lambda context: participant(goal))


def make_server():
    return ParameterServer(np.zeros(3, np.float32), largest_fraction=0.67, largest_value=1.5)


def test_turns_over_flower_are_those_without_it():
    grid = Nodes({node: app(goal) for node, goal in GOALS.items()})
    server, here = make_server(), make_server()
    participants = {node: participant(goal) for node, goal in GOALS.items()}
    for _ in range(4):
        assert flower.run_epoch(grid, server, GOALS, theta_d=0.34) == {}
        assert run_here(here, participants) == {}
    assert np.array_equal(server.parameters, here.parameters)
    assert np.array_equal(server.stat, here.stat)
    assert (server.version, server.bytes_received) == (here.version, here.bytes_received)


def test_a_node_that_lost_its_state_is_sent_everything():
    grid = Nodes({101: app(GOALS[101])})
    server = make_server()
    for _ in range(2):
        assert flower.run_epoch(grid, server, [101], theta_d=0.34) == {}
    # The first turn took a part in vain (14 bytes) and everything (24 bytes).
    assert server.bytes_sent == 14 + 24 + 14
    grid.contexts[101].state.clear()
    assert flower.run_epoch(grid, server, [101], theta_d=0.34) == {}
    assert server.version == 3 and server.bytes_sent == 14 + 24 + 14 + 14 + 24


def answer(content):
    return lambda message, context: Message(content, reply_to=message)


BAD = {
    "nothing": lambda message, context: None,
    "unreadable": lambda message, context: KeyError("Nothing"),
    "records within records": lambda message, context: RecursionError("maximum depth exceeded"),
    "an error": lambda message, context: Message(Error(0, "bad"), reply_to=message),
    "no text twice": answer(RecordDict({"selective": ConfigRecord({"message": b""})})),
    "no upload": answer(RecordDict({"selective": ConfigRecord({"message": b"\0" * 99})})),
    "a string": answer(RecordDict({"selective": ConfigRecord({"message": "text"})})),
    "a number": answer(RecordDict({"selective": MetricRecord({"message": 1.0})})),
    "more": answer(RecordDict({"selective": ConfigRecord({"message": b"", "more": 1})})),
    "other records": answer(RecordDict({"arrays": ConfigRecord({"message": b""})})),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_the_others_go_on_beside_a_bad_node(bad):
    grid = Nodes({101: app(GOALS[101]), 102: bad, 103: app(GOALS[103])})
    server = make_server()
    failed = flower.run_epoch(grid, server, GOALS, timeout=0.3)
    assert set(failed) == {102} and server.version == 2
    assert isinstance(failed[102], (ConnectionError, BadMessageError))


def test_asynchronous_nodes_do_not_wait_for_each_other():
    grid = Nodes({node: app(goal) for node, goal in GOALS.items()})
    grid.delays[103] = 3
    server = make_server()
    assert flower.run_asynchronous(grid, server, GOALS, 9, pause=0.0) == []
    # A look for answers is a unit of time. The third node answers at the fourth look.
    here = make_server()
    exchange = AsynchronousExchange(here)
    for node, goal in GOALS.items():
        exchange.add(node, participant(goal, 1.0), 4.0 if node == 103 else 1.0)
    turns = list(exchange.run(until=4.0))
    assert len(turns) == 9 and max(turn.staleness for turn in turns) == 6
    assert np.array_equal(server.parameters, here.parameters)
    assert np.array_equal(server.stat, here.stat)


@pytest.mark.parametrize(
    "name",
    ["an error", "unreadable", "records within records", "no upload", "no text twice", "a number"],
)
def test_a_bad_node_is_not_asked_again_in_asynchronous_exchange(name):
    grid = Nodes({101: app(GOALS[101]), 102: BAD[name]})
    server = make_server()
    failed = flower.run_asynchronous(grid, server, [101, 102], 4, pause=0.0)
    assert [node for node, _ in failed] == [102] and server.version == 4


def _answers_as_to_another(message, context):
    reply = app(GOALS[101])(message, context)
    for name, value in (("_reply_to_message_id", "another"), ("_src_node_id", 103)):
        reply.metadata.__dict__[name] = value
    return reply


def test_a_node_that_names_another_message_has_answered_its_own():
    """What an answer says of itself is what its node wrote there."""
    servers = []
    for second in (_answers_as_to_another, app(GOALS[101])):
        servers.append(make_server())
        grid = Nodes({101: app(GOALS[101]), 102: second})
        assert flower.run_asynchronous(grid, servers[-1], [101, 102], 6, pause=0.0) == []
    assert np.array_equal(servers[0].parameters, servers[1].parameters)


def test_asynchronous_exchange_ends_when_nobody_answers():
    grid = Nodes({102: BAD["nothing"]})
    assert flower.run_asynchronous(grid, make_server(), [102], 1, timeout=0.01, pause=0.0) == []


def test_a_private_node_charges_its_ledger_on_the_disk(tmp_path):
    def make(context):
        ledger = PrivacyLedger.open(tmp_path / "node.ledger", create=True, lease=1)
        return Participant(toward(GOALS[101]), GaussianUpload(0.67, 1.0, 1.0, 1.5, ledger))

    grid, server = Nodes({101: flower.participant_app(make)}), make_server()
    for _ in range(3):
        assert flower.run_epoch(grid, server, [101]) == {}
    assert PrivacyLedger.load(tmp_path / "node.ledger").total_count == 3


def test_an_error_on_a_node_tells_nothing_but_that_there_was_one(caplog):
    def fails(parameters):
        raise ValueError("labels 1 2 7")

    make = lambda context: Participant(fails, LargestValues(0.67, 1.5))  # noqa: E731
    grid = Nodes({101: flower.participant_app(make)})
    with pytest.raises(NodeError, match="own log") as raised:
        flower.run_epoch(grid, make_server(), [101])
    assert "labels" not in str(raised.value) and raised.value.__suppress_context__
    assert "labels 1 2 7" in caplog.text


def test_exchange_over_plain_connections_from_other_machines_is_refused():
    server, grid = ParameterServer(np.zeros(3, np.float32)), Nodes({})
    grid._insecure, grid._addr = True, "192.0.2.1:9091"
    with pytest.raises(NotPrivateError, match="without TLS"):
        flower.run_epoch(grid, server, [101])
    with pytest.raises(NotPrivateError, match="without TLS"):
        flower.run_asynchronous(grid, server, [101], 1)
    assert server.bytes_sent == 0
