"""The server against figure 3 of the paper written out; bad uploads; its file."""

import os
import signal

import numpy as np
import pytest

from tfdp.federated.selective import BadMessageError, ParameterServer, SparseVector
from tfdp.federated.selective.sparse import decode, encode


def message(size, changes):
    indices = np.array(sorted(changes), np.int64)
    return encode(SparseVector(size, indices, np.array([changes[i] for i in indices], np.float32)))


class SlowServer:
    """Figure 3, one number after another."""

    def __init__(self, parameters, beta):
        self.parameters, self.beta = list(parameters), beta
        self.stat = [0.0] * len(self.parameters)

    def upload(self, changes):
        for j in range(len(self.stat)):
            self.stat[j] *= self.beta
        for j, change in changes.items():
            self.parameters[j] = np.float32(self.parameters[j] + np.float32(change))
            self.stat[j] += 1

    def download(self, theta_d):
        order = sorted(range(len(self.stat)), key=lambda j: (-self.stat[j], j))
        return sorted(order[: int(theta_d * len(order))])


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 1.0])
def test_parameters_and_counters_are_those_of_the_definition(beta):
    rng = np.random.default_rng(0)
    start = rng.normal(size=8).astype(np.float32)
    server, slow = ParameterServer(start, beta=beta), SlowServer(start, beta)
    received = sent = 0
    for _ in range(60):
        chosen = rng.choice(8, rng.integers(0, 5), replace=False)
        changes = {int(j): float(rng.normal()) for j in chosen}
        text = message(8, changes)
        server.upload(text)
        slow.upload(changes)
        received += len(text)
        for theta_d in (0.0, 0.25, 0.5, 1.0):
            text = server.download(theta_d)
            sent += len(text)
            vector = decode(text, 8)
            assert vector.indices.tolist() == slow.download(theta_d)
            assert vector.values.tolist() == [slow.parameters[j] for j in vector.indices]
    assert server.stat.tolist() == slow.stat
    assert server.parameters.tolist() == slow.parameters
    assert (server.version, server.bytes_received, server.bytes_sent) == (60, received, sent)


def test_traffic_is_that_of_the_arithmetic():
    """90 participants, a tenth of the MLP of 140,106 parameters (32 x 32 images)."""
    size, count = 140_106, 14_010
    rng = np.random.default_rng(0)
    indices = np.sort(rng.choice(size, count, replace=False))
    length = len(encode(SparseVector(size, indices, np.ones(count, np.float32))))
    # Four bytes for the number and one for most gaps, of nine on average.
    assert 9 + 5 * count <= length < 9 + 5 * count + 10
    # The paper's 38.5 MB are 32 bytes for each of these numbers, a MB being 2^20 bytes.
    assert 90 * count * 32 / 2**20 == pytest.approx(38.5, abs=0.05)
    assert 90 * length / 2**20 == pytest.approx(6.0, abs=0.05)


BAD = {
    "NaN": message(4, {0: 0.1, 1: np.nan}),
    "infinity": message(4, {0: 0.1, 1: -np.inf}),
    "out of bounds": message(4, {0: 0.1, 1: 1.5}),
    "too many": message(4, {0: 0.1, 1: 0.1, 2: 0.1}),
    "another size": message(5, {0: 0.1}),
    "index out of range": message(4, {0: 0.1, 3: 0.1})[:-1] + b"\3",
    "no message": b"\0" * 100,
    "empty": b"",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_bad_upload_changes_nothing(text):
    server = ParameterServer(np.zeros(4, np.float32), largest_fraction=0.5, largest_value=1.0)
    server.upload(message(4, {1: 1.0, 2: -1.0}))
    before = server.parameters.copy(), server.stat.copy(), server.version, server.bytes_received
    with pytest.raises(BadMessageError):
        server.upload(text)
    assert np.array_equal(server.parameters, before[0]) and np.array_equal(server.stat, before[1])
    assert (server.version, server.bytes_received) == before[2:]


def test_many_large_uploads_make_no_parameter_infinite():
    server = ParameterServer(np.zeros(2, np.float32))
    server.upload(message(2, {0: 3e38}))
    with pytest.raises(BadMessageError, match="infinite"):
        server.upload(message(2, {0: 3e38, 1: 1.0}))
    assert server.parameters.tolist() == [np.float32(3e38), 0.0] and server.version == 1


def test_the_callers_array_is_not_the_servers():
    start = np.zeros(2, np.float32)
    ParameterServer(start).upload(message(2, {0: 1.0}))
    assert start.tolist() == [0, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ParameterServer(np.zeros(3)),
        lambda: ParameterServer(np.zeros((1, 3), np.float32)),
        lambda: ParameterServer(np.zeros(0, np.float32)),
        lambda: ParameterServer(np.array([np.nan], np.float32)),
        lambda: ParameterServer(np.zeros(3, np.float32), beta=1.1),
        lambda: ParameterServer(np.zeros(3, np.float32), largest_value=0.0),
        lambda: ParameterServer(np.zeros(3, np.float32)).download(-0.1),
    ],
)
def test_refuses_bad_arguments(make):
    with pytest.raises(ValueError, match="Received"):
        make()


@pytest.mark.parametrize("options", [{}, {"beta": 0.5, "largest_value": 2.0}])
def test_a_restarted_server_goes_on_as_before(tmp_path, options):
    servers = [ParameterServer(np.arange(6, dtype=np.float32), **options)]
    servers[0].upload(message(6, {1: 1.0, 4: -1.0}))
    servers[0].download(0.5)
    servers[0].save(tmp_path / "state")
    servers.append(ParameterServer.load(tmp_path / "state"))
    for server in servers:
        server.upload(message(6, {4: 0.5}))
    texts = [server.download(0.5) for server in servers]
    assert texts[0] == texts[1]
    assert vars(servers[0]).keys() == vars(servers[1]).keys()
    for name, value in vars(servers[0]).items():
        if not name.startswith("_"):
            assert np.array_equal(value, getattr(servers[1], name)), name
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def _save_for_ever(path, out):
    server = ParameterServer(np.zeros(50_000, np.float32))
    one = encode(SparseVector(50_000, np.arange(50_000), np.ones(50_000, np.float32)))
    while True:
        server.upload(one)
        server.save(path)
        os.write(out, bytes([server.version % 256]))


def test_a_killed_server_leaves_a_whole_state(tmp_path):
    path = tmp_path / "state"
    for _ in range(5):
        said, out = os.pipe()
        child = os.fork()
        if not child:
            try:
                _save_for_ever(path, out)
            finally:
                os._exit(1)
        os.close(out)
        with open(said, "rb", buffering=0) as pipe:
            first = pipe.read(3)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            rest = pipe.read()
        assert len(first) <= 3 and set(first) <= {1, 2, 3}
        server = ParameterServer.load(path)
        # What it had said was saved, and perhaps one more.
        assert server.version - len(first + rest) in (0, 1)
        assert np.all(server.parameters == server.version)
        assert np.all(server.stat == server.version)


def test_no_state_is_read_as_one(tmp_path):
    path = tmp_path / "state"
    server = ParameterServer(np.zeros(3, np.float32))
    with pytest.raises(FileNotFoundError):
        ParameterServer.load(path)
    server.stat = np.zeros(4)
    server.save(path)
    with pytest.raises(ValueError, match="counters"):
        ParameterServer.load(path)
    server.stat = np.array([0.0, np.nan, 0.0])
    server.save(path)
    with pytest.raises(ValueError, match="counters"):
        ParameterServer.load(path)
    server.parameters = np.array([np.inf], np.float32)
    server.save(path)
    with pytest.raises(ValueError, match="finite"):
        ParameterServer.load(path)
