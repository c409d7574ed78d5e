"""Whether updates travel without TLS to an address that others can reach."""

import ipaddress
import pathlib
import urllib.parse
from collections.abc import Iterable
from typing import Any

from tfdp.keras.errors import NotPrivateError

# Where Linux lists the sockets of this machine.
_TABLES = (pathlib.Path("/proc/net/tcp"), pathlib.Path("/proc/net/tcp6"))
_LISTENS = "0A"


def refuse_plain_connections(grid: Any) -> None:
    """Refuses a grid of Flower whose SuperLink takes connections without TLS beyond loopback.

    Nodes and ServerApps reach a SuperLink on one address, so that what holds for this connection
    holds for theirs. Flower's `--insecure` takes TLS away on any address.

    Whether a grid has TLS, and its address, are attributes without public names. A grid that does
    not have them, of another version of Flower or of one's own, is refused: nobody could see.

    Edge cases:
        What is in front of a SuperLink on loopback (a forwarded port, a proxy) is not seen. On
        systems without /proc, a SuperLink that listens on all addresses looks like one on loopback.
        The grid of Flower's simulation has no connection, and is not refused.

    Args:
        grid: Of Flower. One of one's own has `_insecure`, a bool, and where it is true `_addr`.

    Raises:
        NotPrivateError: the connection has no TLS, and the address is not loopback; or the grid
            does not say.
    """
    insecure = getattr(grid, "_insecure", None)
    if insecure is False or _is_in_memory(grid):
        return
    if insecure is not True:
        raise NotPrivateError(
            "It cannot be seen whether updates would travel with TLS. Take a version of Flower "
            "that tfdp knows (setup.py: federated); a grid of your own says it by "
            f"_insecure = True or False. Received: a {type(grid).__module__}."
            f"{type(grid).__qualname__} with _insecure={insecure!r}."
        )
    address = str(getattr(grid, "_addr", ""))
    parts = urllib.parse.urlsplit(address if "://" in address else f"//{address}")
    reached = (parts.hostname or "", *_listening(parts.port))
    beyond = [host for host in reached if not _is_loopback(host)]
    if beyond:
        raise NotPrivateError(
            "The SuperLink takes connections without TLS from other machines: whoever is on the "
            "network reads updates. Start it with --ssl-ca-certfile, --ssl-certfile and "
            "--ssl-keyfile, and without --insecure; or with --host=127.0.0.1 where all is on this "
            f"machine. Received: a connection to {address}, and listeners at {beyond}."
        )


def _is_in_memory(grid: Any) -> bool:
    kind = type(grid)
    return kind.__name__ == "InMemoryGrid" and kind.__module__.split(".")[0] == "flwr"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # A name, of whatever machine.
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _listening(port: int | None) -> list[str]:
    """Returns the addresses of this machine on which something listens at a port."""
    found = []
    for table in _TABLES:
        if table.exists():
            found += listeners(table.read_text(encoding="ascii").splitlines()[1:], port)
    return found


def listeners(rows: Iterable[str], port: int | None) -> list[str]:
    """Returns the addresses that listen at a port.

    Args:
        rows: Of Linux' tables of sockets: words 1 and 3 are the local address and the state, all
            hexadecimal, addresses as 32-bit words, the last byte first.
        port: Which one.
    """
    found = []
    for row in rows:
        words = row.split()
        address, _, number = words[1].partition(":")
        if words[3] == _LISTENS and int(number, 16) == port:
            raw = bytes.fromhex(address)
            packed = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
            found.append(str(ipaddress.ip_address(packed)))
    return found
