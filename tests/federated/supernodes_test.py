"""Rounds on real SuperNodes: one is killed, one is slow, one is malicious, two have no key.

`python -m pytest tests/federated/supernodes_test.py -n 0` in an environment with Flower.
"""

import contextlib
import datetime
import ipaddress
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import uuid

import numpy as np
import pytest

pytest.importorskip(
    "flwr", reason="Flower is not installed: the extra 'federated', in an environment of its own."
)

from cryptography import x509  # noqa: E402
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

import tfdp  # noqa: E402
from tests.federated import rounds, supernodes  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROLES = (*supernodes.HONEST, "killed", "slow", "malicious")
ROUND_SECONDS, START_SECONDS = 15.0, 240.0
PROJECT = """
[project]
name = "rounds"
version = "1.0.0"
description = "Rounds of a test."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "tfdp"

[tool.flwr.app.components]
serverapp = "rounds_app:server_app"
clientapp = "rounds_app:client_app"
"""
REGISTER = """
import sys
from flwr.cli.app import app
for arguments in sys.argv[1:]:
    app(arguments.split(), standalone_mode=False)
"""


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _write_key(folder, name):
    """Writes a key pair of the curve that Flower takes, and returns the private key."""
    key = ec.generate_private_key(ec.SECP384R1())
    (folder / name).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    (folder / f"{name}.pub").write_bytes(public)
    return key


def _write_certificates(folder):
    """Writes an authority, and a certificate of 127.0.0.1 with its key."""
    now = datetime.datetime.now(datetime.timezone.utc)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
        for text in ("authority", "superlink")
    ]
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    extensions = [
        [x509.BasicConstraints(ca=True, path_length=None)],
        [x509.BasicConstraints(ca=False, path_length=None), address],
    ]
    for name, key, subject, extras in zip(("ca", "server"), keys, names, extensions, strict=True):
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(names[0])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        for extra in extras:
            builder = builder.add_extension(extra, critical=True)
        certificate = builder.sign(keys[0], hashes.SHA256())
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


class Processes:
    """Processes of Flower, and whatever they start: found by a mark in their environment."""

    def __init__(self, folder):
        self.folder = folder
        self._mark = f"TFDP_TEST_MARK={uuid.uuid4().hex}"
        name, value = self._mark.split("=")
        self.environment = {
            **os.environ,
            name: value,
            "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TFDP_TEST_FOLDER": str(folder),
            "TFDP_TEST_TIMEOUT": str(ROUND_SECONDS),
        }

    def start(self, name, *command, **environment):
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                env={**self.environment, **environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, more=""):
        """Kills all that have the mark, and `more` in their environment."""
        while found := [
            entry
            for entry in pathlib.Path("/proc").iterdir()
            if entry.name.isdigit() and self._has(entry, self._mark) and self._has(entry, more)
        ]:
            for entry in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(int(entry.name), 0)

    @staticmethod
    def _has(entry, text):
        try:
            return text.encode() in (entry / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False

    def logs(self):
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )


def _wait(condition, processes, seconds=START_SECONDS):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, processes.logs()
        time.sleep(0.1)


@pytest.fixture
def processes(tmp_path):
    """Yields what starts processes; none of them is there afterwards."""
    if not pathlib.Path("/proc/self/environ").exists():
        pytest.skip("Processes are found by /proc, which this system does not have.")
    made = Processes(tmp_path)
    try:
        yield made
    finally:
        made.kill()


def _write_app(folder, port, security):
    """Writes the app, and where `flwr run` finds the SuperLink."""
    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        f"{security}\n"
    )
    (folder / "rounds").mkdir()
    (folder / "rounds" / "pyproject.toml").write_text(PROJECT)
    (folder / "rounds" / "rounds_app.py").write_text(
        "from tests.federated import supernodes\n"
        "client_app = supernodes.client_app\n"
        "server_app = supernodes.server_app\n"
    )


def _link(folder, port, *more):
    return (
        "flower-superlink",
        f"--ssl-ca-certfile={folder / 'ca.pem'}",
        f"--ssl-certfile={folder / 'server.pem'}",
        f"--ssl-keyfile={folder / 'server.key'}",
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        f"--port={port}",
        f"--fleet-api-address=127.0.0.1:{_free_port()}",
        *more,
    )


def _node(folder, port, role, *more):
    return (
        "flower-supernode",
        f"--superlink=127.0.0.1:{port}",
        f"--port={_free_port()}",
        f'--node-config=role="{role}"',
        *more,
    )


def _listens(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _check_movements(moved):
    """Checks that every round moved the weights by the sum of what could be in it, over six.

    An honest node can be late on a busy machine, so any set of the two is right.
    """
    directions = [supernodes.honest_update(name)[0] for name in supernodes.HONEST]
    counted = 0
    for number, (first, second) in enumerate(moved, 1):
        total = 6 * np.array(first)
        parts = [float(np.sum(total * direction)) for direction in directions]
        if number == 2:
            # The huge update is clipped to a constant matrix, and may be late as well.
            constant = float(total[2, 1])
            norm = float(np.linalg.norm(np.full((3, 2), constant)))
            assert norm < 1e-6 or abs(norm / rounds.CLIP - 1) < 1e-3
            parts = [part - constant for part in parts]
            total = total - constant
        rest = total - sum(part * d for part, d in zip(parts, directions, strict=True))
        np.testing.assert_allclose(rest, 0, atol=1e-4)
        np.testing.assert_allclose(second, 0, atol=1e-6)
        for part in parts:
            np.testing.assert_allclose(part, round(part), atol=1e-4)
            assert round(part) in (0, 1)
            counted += round(part)
    assert counted > 0


def test_rounds_end_with_the_bound_kept_whatever_nodes_do(processes):
    folder, port = processes.folder, _free_port()
    _write_certificates(folder)
    for name in (*ROLES, "stranger"):
        _write_key(folder, name)
    _write_app(folder, port, f'root-certificates = "{folder / "ca.pem"}"')
    processes.start("superlink", *_link(folder, port))
    _wait(lambda: _listens(port), processes)
    register = [f"supernode register {folder / role}.pub here" for role in ROLES]
    registering = processes.start("register", sys.executable, "-c", REGISTER, *register)
    _wait(lambda: registering.poll() is not None, processes)
    running = processes.start("run", "flwr", "run", str(folder / "rounds"), "here")
    secure = f"--root-certificates={folder / 'ca.pem'}"
    nodes = {
        role: processes.start(
            role,
            *_node(folder, port, role, secure, f"--auth-supernode-private-key={folder / role}"),
            TFDP_TEST_ROLE=f"={role}=",
        )
        for role in (*ROLES, "stranger")
    }
    nodes["keyless"] = processes.start("keyless", *_node(folder, port, "keyless", secure))
    nodes["plain"] = processes.start("plain", *_node(folder, port, "plain", "--insecure"))
    _wait(lambda: running.poll() is not None, processes)
    assert running.returncode == 0, processes.logs()
    _wait((folder / "asked-killed-1").exists, processes)
    processes.kill("TFDP_TEST_ROLE==killed=")
    _wait((folder / "found.json").exists, processes)
    found = json.loads((folder / "found.json").read_text())
    assert len(found["nodes"]) == len(ROLES)
    assert found["charged"] == [1, 2, 3]
    assert tfdp.PrivacyLedger.load(folder / "rounds.ledger").total_count == 3
    logs = {name: (folder / f"{name}.log").read_text(errors="replace") for name in nodes}
    assert {name for name in nodes if "SuperNode ID" in logs[name]} == set(ROLES), logs
    for name in ("stranger", "keyless"):
        assert "Exit Code: 305" in logs[name], logs[name]
    bad = {path.name for path in folder.glob("asked-malicious-*")}
    assert len(found["moved"]) == supernodes.ROUNDS == len(bad), bad
    _check_movements(found["moved"])


@pytest.mark.parametrize("more", [(), ("--insecure", "--enable-supernode-auth")])
def test_without_certificates_nothing_starts(more, processes):
    port = _free_port()
    command = ("flower-superlink", "--host=0.0.0.0", f"--port={port}")
    link = processes.start("superlink", *command, *more)
    _wait(lambda: link.poll() is not None, processes)
    assert link.returncode != 0
    log = (processes.folder / "superlink.log").read_text()
    assert "ertificates" in log
    assert not _listens(port)


def test_rounds_without_certificates_on_all_addresses_are_refused(processes):
    """Flower starts so; the ServerApp reaches the SuperLink by loopback."""
    folder, port = processes.folder, _free_port()
    _write_app(folder, port, "insecure = true")
    options = ("--insecure", "--disable-runtime-dependency-installation")
    processes.start("superlink", "flower-superlink", "--host=0.0.0.0", f"--port={port}", *options)
    _wait(lambda: _listens(port), processes)
    running = processes.start("run", "flwr", "run", str(folder / "rounds"), "here")
    _wait(lambda: running.poll() is not None, processes)
    assert running.returncode == 0, processes.logs()
    _wait((folder / "refused").exists, processes)
    assert "listeners at ['0.0.0.0']" in (folder / "refused").read_text()
    assert tfdp.PrivacyLedger.load(folder / "rounds.ledger").total_count == 0


def test_an_app_in_the_simulation_of_flower_is_the_loop(processes):
    pytest.importorskip("ray", reason="Flower simulates by Ray: pip install flwr[simulation].")
    command = sys.executable, "-m", "tests.federated.simulated"
    running = processes.start("simulation", *command)
    _wait(lambda: running.poll() is not None, processes, seconds=300.0)
    log = (processes.folder / "simulation.log").read_text(errors="replace")
    (line,) = [line for line in log.splitlines() if line.startswith("FOUND")]
    found = json.loads(line.removeprefix("FOUND"))
    assert found["charged"] == 2
    for one, other in zip(found["simulated"], found["loop"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
