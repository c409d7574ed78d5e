"""Grids without TLS; supernodes_test.py has a SuperLink of Flower."""

import pathlib
import socket
import types

import pytest

from tfdp.federated.plain_connections import listeners, refuse_plain_connections
from tfdp.keras import NotPrivateError


def _grid(address, insecure=True):
    return types.SimpleNamespace(_addr=address, _insecure=insecure)


REFUSED = [
    "10.1.2.3:9091",
    "superlink:9091",
    "http://10.1.2.3:9091",
    "[2001:db8::1]:9091",
    "",
    ":1",
]
TAKEN = ["127.0.0.1:1", "localhost:1", "[::1]:1", "http://127.0.0.9:1", "[::ffff:127.0.0.1]:1"]


@pytest.mark.parametrize("address", REFUSED)
def test_addresses_of_other_machines_need_tls(address):
    with pytest.raises(NotPrivateError, match="without TLS"):
        refuse_plain_connections(_grid(address))
    refuse_plain_connections(_grid(address, insecure=False))


@pytest.mark.parametrize("address", TAKEN)
def test_loopback_needs_none(address):
    refuse_plain_connections(_grid(address))


def _of_flower(name, **attributes):
    return type(name, (), {"__module__": "flwr.somewhere", **attributes})()


def test_the_grid_of_the_simulation_has_no_connection():
    refuse_plain_connections(_of_flower("InMemoryGrid"))


@pytest.mark.parametrize(
    "grid",
    [
        object(),
        _of_flower("HttpGrid"),
        _of_flower("HttpGrid", insecure=True, addr="10.1.2.3:1"),
        _of_flower("HttpGrid", _insecure=None, _addr="127.0.0.1:1"),
        _of_flower("HttpGrid", _insecure=0, _addr="127.0.0.1:1"),
        _of_flower("HttpGrid", _insecure=True),
        type("InMemoryGrid", (), {})(),
    ],
)
def test_a_grid_that_does_not_say_is_refused(grid):
    """As one of a version of Flower that has other names for it would be."""
    with pytest.raises(NotPrivateError, match="TLS"):
        refuse_plain_connections(grid)


@pytest.mark.parametrize(("host", "is_refused"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_what_listens_on_all_addresses_is_not_on_loopback(host, is_refused):
    """A ServerApp on the same machine reaches it by loopback."""
    if not pathlib.Path("/proc/net/tcp").exists():
        pytest.skip("Listeners are found by /proc, which this system does not have.")
    with socket.socket() as listening:
        listening.bind((host, 0))
        listening.listen()
        grid = _grid(f"127.0.0.1:{listening.getsockname()[1]}")
        if is_refused:
            with pytest.raises(NotPrivateError, match=r"listeners at \['0.0.0.0'\]"):
                refuse_plain_connections(grid)
        else:
            refuse_plain_connections(grid)


def test_rows_of_linux_are_read():
    rows = [
        "0: 0100007F:1F90 00000000:0000 0A 0:0",
        "1: 00000000:1F91 00000000:0000 0A 0:0",
        "2: 0301A8C0:1F91 0100007F:A000 01 0:0",  # A connection.
        "3: 00000000000000000000000001000000:1F91 0:0 0A 0:0",
        "4: B80D0120000000000000000001000000:1F91 0:0 0A 0:0",
    ]
    assert listeners(rows, 0x1F90) == ["127.0.0.1"]
    assert listeners(rows, 0x1F91) == ["0.0.0.0", "::1", "2001:db8::1"]
    assert listeners(rows, None) == []
