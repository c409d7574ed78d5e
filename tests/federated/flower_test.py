"""Rounds over Flower's messages, with nodes in this process, honest and not."""

import hashlib
import importlib
import io
import time
from contextlib import nullcontext

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies as st

import tfdp
from tests.federated import rounds as making
from tfdp.federated import Clients, InvalidUpdateError, LocalSGD, LocalTraining, Server
from tfdp.federated.updates import form_of
from tfdp.keras import NotPrivateError, PrivacyBudget
from tfdp.query import WeightedAverageQuery
from tfdp.sampling import FullBatch

pytest.importorskip(
    "flwr", reason="Flower is not installed: the extra 'federated', in an environment of its own."
)

from flwr.app import (  # noqa: E402
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.common.secure_aggregation.secaggplus_constants import Key  # noqa: E402
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.inflatable.inflatable_utils import (  # noqa: E402
    inflate_object_from_contents,
)
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402
from flwr.superlink.grid import HttpGrid, InMemoryGrid  # noqa: E402

from tfdp.federated import flower  # noqa: E402
from tfdp.federated.plain_connections import refuse_plain_connections  # noqa: E402

NODES = tuple(range(101, 107))
SGD = LocalSGD(epochs=2, batch_size=16, learning_rate=0.1)


@pytest.fixture(scope="module", autouse=True)
def _server_app():
    """Makes this process that of a ServerApp, which alone may make messages."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class Nodes(Grid):
    """A grid of functions in this process: node id -> function of (message, context)."""

    _insecure = False

    def __init__(self, apps):
        self._apps = apps
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in apps}
        self.asked = []

    def get_node_ids(self):
        return list(self._apps)

    def push_messages(self, messages):
        self._replies = {}
        for message in messages:
            node = message.metadata.dst_node_id
            self.asked.append(node)
            # As it arrives: nodes do not share objects with the server.
            message.metadata._message_id = f"{node}"
            self._replies[f"{node}"] = self._apps[node](message, self.contexts[node])
        return list(self._replies)

    def pull_messages(self, message_ids):
        (number,) = message_ids
        reply = self._replies[number]
        if isinstance(reply, Exception):  # Of Flower, which reads what the node sent.
            raise reply
        return reply if isinstance(reply, list) else [reply] if reply is not None else []

    run = property(lambda self: None)

    def set_run(self, run):
        raise NotImplementedError

    def create_message(self, *arguments, **others):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError


def _data(node):
    rng = np.random.default_rng(node)
    n = 4 + node % 2  # Of which each needs a graph.
    return rng.normal(size=[n, 3]).astype("float32"), rng.normal(size=[n, 2]).astype("float32")


def _compiled(context):
    model = making.plain()
    model.compile(loss="mse")
    return model


def _keras_client(**arguments):
    return flower.client(_compiled, lambda context: _data(context.node_id), SGD, **arguments)


def _answer(message, arrays, **answer):
    token = message.content["config"]["token"]
    record = ConfigRecord({"token": token, **answer})
    update = arrays if isinstance(arrays, ArrayRecord) else ArrayRecord(arrays)
    return Message(RecordDict({"update": update, "answer": record}), reply_to=message)


def _server(query=None, stddev=0.0, **arguments):
    model = making.model(stddev=stddev, query=query)
    return Server(model, NODES, sampling=FullBatch(), **arguments)


@pytest.mark.parametrize("weighted", [False, True])
def test_keras_clients_on_a_grid_are_the_loop_over_them(weighted):
    query = WeightedAverageQuery(making.CLIP, stddev=0.0, denominator=6, max_weight=4.0)
    server, twin = (_server(query if weighted else None) for _ in range(2))
    grid = Nodes(dict.fromkeys(NODES, _keras_client(weighted=weighted)))
    result = flower.RoundStrategy(server).start(grid, num_rounds=2)
    training = LocalTraining(_compiled(None), SGD)

    def answer(current):
        for node in NODES:
            x, y = _data(node)
            order = np.full([1, 2, 16], -1)
            order[0, :, : len(x)] = np.arange(len(x))
            update = training.updates(current.weights, Clients(x[None], y[None], order))
            weight = float(len(x)) if weighted else None
            current.receive(node, [part[0] for part in update], weight=weight)

    twin.train(answer, 2)
    making.assert_close(making.weights(server.model), making.weights(twin.model), 3e-6)
    making.assert_close(result.arrays.to_numpy_ndarrays(), making.weights(server.model), 0)
    assert server.model.ledger.total_count == 2


@pytest.mark.parametrize("kind", making.QUERIES)
def test_every_query_aggregates_what_nodes_send(kind):
    """Without noise, against the same rounds without messages; one node does not answer."""
    size, weight = making.cohort_size_of(kind), {"weight": 0.7} if kind == "weighted" else {}
    server, twin = (
        Server(
            making.model(query=making.QUERIES[kind](0.0)),
            NODES,
            cohort_size=size,
            sampling=making.sampling_of(kind),
        )
        for _ in range(2)
    )
    present = NODES[:-1]
    grid = Nodes(
        {n: lambda m, c: _answer(m, making.update(c.node_id, 2.0), **weight) for n in present}
    )
    flower.RoundStrategy(server).start(grid, num_rounds=2)

    def answer(current):
        for node in set(current.cohort) & set(present):
            current.receive(node, making.update(node, 2.0), **weight)

    before = making.weights(twin.model)
    twin.train(answer, 2)
    tolerance = 1e-4 if kind in making.ROUNDED else 1e-6
    making.assert_close(making.weights(server.model), making.weights(twin.model), tolerance)
    moved = [a - b for a, b in zip(making.weights(twin.model), before, strict=True)]
    assert max(np.abs(part).max() for part in moved) > 0.05


def test_controls_of_nodes_stay_in_their_contexts():
    server = _server(controls=True)
    grid = Nodes(dict.fromkeys(NODES, _keras_client()))
    flower.RoundStrategy(server).start(grid, num_rounds=2)
    owned = [grid.contexts[node].state["controls"].to_numpy_ndarrays() for node in NODES]
    assert len({own[0].tobytes() for own in owned}) == 6
    assert max(np.abs(control).max() for control in server.controls) > 1e-3


def _npy(array, **changes):
    """Returns NumPy's bytes of an array, with another header where changes say so."""
    header = {"descr": "<f4", "fortran_order": False, "shape": array.shape, **changes}
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + array.tobytes()


def _raw(data):
    return Array(dtype="float32", shape=making.SHAPES[0], stype="numpy.ndarray", data=data)


def _with_raw(message, data):
    second = Array(making.update(0)[1])
    return _answer(message, ArrayRecord({"0": _raw(data), "1": second}))


GOOD = making.update(0)
FIRST = GOOD[0]


def _unreadable(content):
    """Returns what Flower raises when it makes a message of these bytes of a node."""
    name = hashlib.sha256(content).hexdigest()
    try:
        return inflate_object_from_contents(name, {name: content})
    except Exception as error:  # noqa: BLE001
        return error


BAD = {
    "unreadable_header": lambda m: _unreadable(b"bytes"),
    "unreadable_metadata": lambda m: _unreadable(b"Message  3\x00\xff\xff\xff"),
    "unreadable_record": lambda m: _unreadable(b"RecordDict  0\x00"),
    "unknown_record": lambda m: _unreadable(b"Nothing  0\x00"),
    "records_within_records": lambda m: RecursionError("maximum recursion depth exceeded"),
    "error": lambda m: Message(Error(1, "secret"), reply_to=m),
    "nothing": lambda m: None,
    "empty": lambda m: Message(RecordDict(), reply_to=m),
    "nan": lambda m: _answer(m, [FIRST * np.nan, GOOD[1]]),
    "shape": lambda m: _answer(m, [FIRST.T.copy(), GOOD[1]]),
    "dtype": lambda m: _answer(m, [np.float64(FIRST), GOOD[1]]),
    "missing": lambda m: _answer(m, GOOD[:1]),
    "extra": lambda m: _answer(m, [*GOOD, FIRST]),
    "weight": lambda m: _answer(m, GOOD, weight=1.0),
    "more_words": lambda m: _answer(m, GOOD, more="words"),
    "stale": lambda m: _answer(m, GOOD, token="0" * 32),
    "no_text": lambda m: _answer(m, GOOD, token=3),
    "other_types": lambda m: Message(
        RecordDict({"update": MetricRecord({"a": 1.0}), "answer": ConfigRecord()}), reply_to=m
    ),
    "no_token": lambda m: Message(
        RecordDict({"update": ArrayRecord(GOOD), "answer": ConfigRecord()}), reply_to=m
    ),
    "more_records": lambda m: Message(
        RecordDict(
            {
                "update": ArrayRecord(GOOD),
                "answer": ConfigRecord({"token": m.content["config"]["token"]}),
                "metrics": MetricRecord({"loss": 0.1}),
            }
        ),
        reply_to=m,
    ),
    "garbage": lambda m: _with_raw(m, b"garbage"),
    "no_bytes": lambda m: _with_raw(m, b""),
    "pickled": lambda m: _with_raw(m, _npy(FIRST, descr="|O")),
    "huge_header": lambda m: _with_raw(m, _npy(FIRST, shape=(10**6, 10**6))),
    "negative_shape": lambda m: _with_raw(m, _npy(FIRST, shape=(-3, -2))),
    "zip": lambda m: _with_raw(m, b"PK\x03\x04" + bytes(100)),
    "too_long": lambda m: _with_raw(m, _npy(FIRST) + b"x"),
    "too_short": lambda m: _with_raw(m, _npy(FIRST)[:-1]),
    "other_endian": lambda m: _with_raw(m, _npy(FIRST, descr=">f4")),
}


@pytest.fixture(scope="module")
def noiseless():
    return _server()


def _moved(server, first):
    before = making.weights(server.model)
    apps = {
        node: lambda message, context: _answer(message, making.update(context.node_id))
        for node in NODES
    }
    if first is None:
        del apps[NODES[0]]  # It is not connected.
    else:
        apps[NODES[0]] = lambda message, context: first(message)
    flower.RoundStrategy(server).start(Nodes(apps), num_rounds=1, timeout=0.3)
    return [a - b for a, b in zip(making.weights(server.model), before, strict=True)]


@pytest.mark.parametrize("name", BAD)
def test_node_that_misbehaves_is_one_that_is_not_there(name, noiseless, caplog, capfd):
    charged = noiseless.model.ledger.total_count
    with caplog.at_level("DEBUG"):
        bad = _moved(noiseless, BAD[name])
    assert not [record for record in caplog.records if record.name != "tensorflow"]
    assert capfd.readouterr() == ("", "")
    assert noiseless.model.ledger.total_count == charged + 1
    making.assert_close(bad, _moved(noiseless, None))


@pytest.mark.parametrize("name", ["garbage", "pickled", "too_short", "no_arrays"])
def test_a_node_that_shows_its_token_brings_its_share_of_the_noise(name):
    """Whatever else it sends: four shares are charged for, and four nodes answer."""
    empty = {"no_arrays": lambda m: _answer(m, [])}
    bad = {**BAD, **empty}[name]
    apps = {node: lambda message, context: _answer(message, GOOD) for node in NODES[1:4]}
    apps[NODES[0]] = lambda message, context: bad(message)
    server = Server(
        making.model(query=making.QUERIES["skellam_shares"](1.0)), NODES, sampling=FullBatch()
    )
    before = making.weights(server.model)
    flower.RoundStrategy(server).start(Nodes(apps), num_rounds=1, timeout=0.3)
    assert not np.array_equal(making.weights(server.model)[0], before[0])


def test_answers_of_which_none_can_be_read_are_an_error():
    server = _server(stddev=1.0)
    before = making.weights(server.model)
    grid = Nodes(dict.fromkeys(NODES, lambda m, c: _unreadable(b"bytes")))
    with pytest.raises(RuntimeError, match="none of the answers"):
        flower.RoundStrategy(server).start(grid, num_rounds=3)
    making.assert_weights(server.model, before, 0)
    assert server.model.ledger.total_count == 1


def test_answers_are_waited_for_until_the_time_is_over():
    slow = Nodes(dict.fromkeys(NODES, lambda m, c: None))
    messages = [Message(RecordDict(), node, "train") for node in NODES]
    assert list(flower.replies_to(slow, messages, timeout=0.05, pause=0.01)) == []


def test_who_has_answered_is_heard_though_another_took_all_the_time():
    """Flower itself waits for an answer that is announced and not sent."""

    class Stalled(Nodes):
        looks = 0

        def pull_messages(self, message_ids):
            self.looks += 1
            if message_ids == [f"{NODES[1]}"]:
                time.sleep(0.2)  # Longer than the round.
                raise KeyError("Not found.")
            # The first node answers after the first look.
            return super().pull_messages(message_ids) if self.looks > 1 else []

    grid = Stalled({node: lambda m, c: _answer(m, GOOD) for node in NODES[:2]})
    config = ConfigRecord({"token": "0" * 32})
    messages = [Message(RecordDict({"config": config}), node, "train") for node in NODES[:2]]
    (reply,) = flower.replies_to(grid, messages, timeout=0.1, pause=0.01)
    assert flower.answer_of(reply, form_of(making.plain().trainable_variables, False))[1] is None


def test_a_node_that_writes_another_id_into_its_answer_is_not_that_node(noiseless):
    """Of an answer the SuperLink checks an envelope, and hands on the one that is inside."""
    honest = _moved(noiseless, lambda m: _answer(m, GOOD))

    def forged(message):
        own = _answer(message, GOOD)
        other = _answer(message, [10 * part for part in GOOD])
        other.metadata.__dict__["_src_node_id"] = NODES[1]
        assert other.metadata.src_node_id == NODES[1]
        return [other, own]

    making.assert_close(_moved(noiseless, forged), honest)


def test_a_good_answer_counts_once(noiseless):
    without = _moved(noiseless, None)
    once = _moved(noiseless, lambda m: _answer(m, GOOD))
    thrice = _moved(noiseless, lambda m: [_answer(m, GOOD)] * 3)
    making.assert_close(once, thrice)
    making.assert_close([a - b for a, b in zip(once, without, strict=True)], [g / 6 for g in GOOD])


def test_arrays_of_numpy_are_read():
    array = np.asfortranarray(np.arange(6, dtype="float32").reshape(3, 2))
    stream = io.BytesIO()
    np.save(stream, array)
    np.testing.assert_array_equal(flower.decoded(stream.getvalue(), (3, 2), "float32"), array)
    for shape in [(3, 2), (7,), (), (2, 1, 3)]:
        for dtype in ("float32", "float64"):
            stream = io.BytesIO()
            np.save(stream, np.ones(shape, dtype))
            np.testing.assert_array_equal(
                flower.decoded(stream.getvalue(), shape, dtype), np.ones(shape, dtype)
            )


def test_random_bytes_are_refused_or_read():
    form = form_of(making.plain().trainable_variables, False)
    rng = np.random.default_rng(0)
    good = _npy(FIRST)
    refused = 0
    for _ in range(2000):
        data = bytearray(good)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            data[place] = rng.integers(256)
        try:
            found = flower.decoded(bytes(data), form.shapes[0], form.dtypes[0])
        except InvalidUpdateError:
            refused += 1
        else:
            assert (found.shape, found.dtype) == ((3, 2), np.float32)
    assert 0 < refused < 2000


_VALUES = st.sampled_from(
    ["0" * 32, "", 1, -(2**63), 1.5, float("nan"), float("inf"), True, b"x", [1], [], ["a"], [b""]]
)
_ARRAYS = st.one_of(
    st.just(Array(FIRST)),
    st.just(Array(GOOD[1])),
    st.builds(_raw, st.binary(max_size=200)),
    st.builds(lambda tail: _raw(_npy(FIRST)[:60] + tail), st.binary(max_size=120)),
    st.builds(
        lambda shape, dtype: Array(dtype, shape, "numpy.ndarray", _npy(FIRST)),
        st.lists(st.integers(-1, 2**40), max_size=4).map(tuple),
        st.text(max_size=9),
    ),
)
_RECORDS = st.one_of(
    st.lists(_ARRAYS, max_size=3).map(lambda a: ArrayRecord(dict(zip("012", a, strict=False)))),
    st.just(ArrayRecord(GOOD)),
    st.dictionaries(st.sampled_from(["token", "weight", "x"]), _VALUES).map(ConfigRecord),
    st.just(MetricRecord({"loss": 0.5, "examples": [1, 2]})),
)


def test_whatever_a_node_sends_is_an_answer_of_the_form_or_refused():
    taken = []

    @hypothesis.settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @hypothesis.given(
        content=st.just({})
        | st.dictionaries(st.sampled_from(["update", "answer", "metrics", ""]), _RECORDS),
        usual=st.fixed_dictionaries(
            {"token": st.just("0" * 32) | _VALUES}, optional={"weight": st.just(1.5) | _VALUES}
        ),
        is_usual=st.booleans(),
    )
    @hypothesis.example(content={}, usual={"token": "0" * 32}, is_usual=True)
    @hypothesis.example(content={}, usual={"token": "0" * 32, "weight": 1.5}, is_usual=True)
    def check(content, usual, is_usual):
        if is_usual:
            content = {"update": ArrayRecord(GOOD), "answer": ConfigRecord(usual)} | content
        reply = Message(RecordDict(content), reply_to=Message(RecordDict(), 1, "train"))
        for is_weighted in (False, True):
            form = form_of(making.plain().trainable_variables, is_weighted)
            try:
                token, weight, arrays = flower.answer_of(reply, form)
                found, number = form.check(arrays, weight)
            except InvalidUpdateError:
                continue
            assert isinstance(token, str) and np.isfinite(number)
            assert [part.shape for part in found] == list(making.SHAPES)
            assert all(np.isfinite(part).all() for part in found)
            taken.append(is_weighted)

    check()
    assert set(taken) == {False, True}


def test_cohort_is_drawn_among_all_that_are_registered():
    model = making.model(stddev=1.0)
    server = Server(model, NODES, cohort_size=3)
    connected = NODES[:4]
    grid = Nodes({node: lambda message, context: None for node in (*connected, 999)})
    flower.RoundStrategy(server).start(grid, num_rounds=6, timeout=0.01)
    assert set(grid.asked) <= set(connected)
    assert model.ledger.total_count == 6


def test_budget_ends_the_rounds_and_evaluation_is_on_public_data():
    server = _server(stddev=16.0)
    grid = Nodes({node: lambda m, c: _answer(m, making.update(c.node_id)) for node in NODES})
    strategy = flower.RoundStrategy(server, callbacks=[PrivacyBudget(1.0, 1e-5, "rdp")])
    seen = []

    def evaluate(number, arrays):
        seen.append(arrays.to_numpy_ndarrays()[0])
        return MetricRecord({"round": float(number)})

    result = strategy.start(grid, num_rounds=50, evaluate_fn=evaluate)
    rounds = server.model.ledger.total_count
    assert 1 <= rounds < 50
    assert list(result.evaluate_metrics_serverapp) == list(range(rounds + 1))
    assert len({array.tobytes() for array in seen}) == rounds + 1


def test_what_would_be_ignored_is_refused():
    strategy = flower.RoundStrategy(_server())
    with pytest.raises(ValueError, match="left out"):
        strategy.start(Nodes({}), ArrayRecord(GOOD))
    with pytest.raises(ValueError, match="left out"):
        strategy.start(Nodes({}), evaluate_config=ConfigRecord())
    with pytest.raises(RuntimeError, match="No round is open"):
        strategy.aggregate_train(1, [])
    assert strategy.configure_evaluate(1, ArrayRecord(), ConfigRecord(), Nodes({})) == []


def test_rounds_over_plain_connections_from_other_machines_are_refused():
    server, grid = _server(), Nodes(dict.fromkeys(NODES, _keras_client()))
    grid._insecure, grid._addr = True, "192.0.2.1:9091"
    with pytest.raises(NotPrivateError, match="without TLS"):
        flower.nodes(grid, 1)
    with pytest.raises(NotPrivateError, match="without TLS"):
        flower.RoundStrategy(server).start(grid, num_rounds=1)
    assert server.model.ledger.total_count == 0
    assert grid.asked == []


@pytest.mark.parametrize("insecure", [False, True])
def test_grids_of_flower_say_whether_they_have_tls(insecure):
    """Their attributes have no public names, so that another version may have others."""
    grid = HttpGrid("192.0.2.1:9091", insecure, token="token")
    refused = pytest.raises(NotPrivateError, match="192.0.2.1") if insecure else nullcontext()
    with refused:
        refuse_plain_connections(grid)
    assert (InMemoryGrid.__name__, InMemoryGrid.__module__[:5]) == ("InMemoryGrid", "flwr.")


def test_masks_of_a_secure_sum_of_flower_are_no_secret():
    """They come from 32 bits, by a Mersenne Twister: docs/federated.md says not to take it."""
    seeds = [bytes(32), b"same" * 8]
    masks = [pseudo_rand_gen(seed, 2**32, [(1000,)])[0] for seed in seeds]
    np.testing.assert_array_equal(*masks)
    np.testing.assert_array_equal(
        masks[0], np.random.RandomState(0).randint(0, 2**32 - 1, 1000, dtype=np.int64)
    )


def test_a_client_of_a_secure_sum_of_flower_gives_away_both_secrets_of_another():
    """docs/federated.md says so: a server that asks for both takes the masks off one client."""
    # The package has a function of the same name.
    secaggplus_mod = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    state = secaggplus_mod.SecAggPlusState(
        threshold=1, rd_seed_share_dict={7: b"seed"}, sk1_share_dict={7: b"key"}
    )
    asked = ConfigRecord({Key.ACTIVE_NODE_ID_LIST: [7], Key.DEAD_NODE_ID_LIST: [7]})
    given = secaggplus_mod._unmask(state, asked)
    assert given == {Key.NODE_ID_LIST: [7, 7], Key.SHARE_LIST: [b"seed", b"key"]}


def test_nodes_waits():
    assert flower.nodes(Nodes(dict.fromkeys((3, 1, 2))), 2) == [1, 2, 3]
    with pytest.raises(TimeoutError, match="Connected: 1"):
        flower.nodes(Nodes({1: None}), 2, timeout=0.0)


def _convolution():
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Conv2D(2, 3), keras.layers.Flatten(), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((5, 5, 1)), *layers])


def _convolution_client(data):
    def compiled(context):
        model = _convolution()
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return flower.client(compiled, data, LocalSGD(1, 4, 0.1))


def test_nodes_train_a_convolution():
    def data(context):
        rng = np.random.default_rng(context.node_id)
        return rng.normal(size=(6, 5, 5, 1)).astype("float32"), rng.integers(0, 3, 6)

    model = tfdp.keras.make_private(_convolution())
    query = tfdp.GaussianAverageQuery(making.CLIP, stddev=0.0, denominator=6)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, privacy_unit="user")
    model.compile(optimizer, loss="mse")
    before = making.weights(model)
    nodes = Nodes(dict.fromkeys(NODES, _convolution_client(data)))
    server = Server(model, NODES, sampling=FullBatch())
    flower.RoundStrategy(server).start(nodes, num_rounds=1)
    moved = [np.abs(a - b).max() for a, b in zip(making.weights(model), before, strict=True)]
    assert min(moved) > 1e-3


def _asked_once(app, weights):
    content = {"arrays": ArrayRecord(weights), "config": ConfigRecord({"token": "0" * 32})}
    message = Message(RecordDict(content), NODES[0], "train")
    message.metadata._message_id = "1"
    return app(message, Context(1, NODES[0], {}, RecordDict(), {}))


@pytest.mark.parametrize(
    "error", [ValueError("labels 1 2 7"), OSError("labels 1 2 7"), KeyError("labels 1 2 7")]
)
def test_an_error_on_a_node_tells_nothing_but_that_there_was_one(error, caplog):
    def data(context):
        raise error

    with pytest.raises(flower.NodeError, match="own log") as raised:
        _asked_once(_convolution_client(data), making.weights(_convolution()))
    assert "labels" not in str(raised.value) and raised.value.__suppress_context__
    # Whoever runs the node can read why.
    assert "labels 1 2 7" in caplog.text


def test_a_label_that_does_not_exist_is_no_error_on_a_node():
    data = np.ones((4, 5, 5, 1), "float32"), np.array([0, 1, 2, 7])
    app = _convolution_client(lambda context: data)
    reply = _asked_once(app, making.weights(_convolution()))
    assert np.isnan(reply.content["update"].to_numpy_ndarrays()[-1]).any()


def test_an_empty_client_sends_nothing_but_zeros():
    empty = np.zeros([0, 3], "float32"), np.zeros([0, 2], "float32")
    app = flower.client(_compiled, lambda context: empty, SGD)
    server = _server()
    before = making.weights(server.model)
    flower.RoundStrategy(server).start(Nodes(dict.fromkeys(NODES, app)), num_rounds=1)
    making.assert_weights(server.model, before, 0)
    assert keras.backend.backend() == "tensorflow"
