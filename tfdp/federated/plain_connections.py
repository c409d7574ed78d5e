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

    Edge cases:
        What is in front of a SuperLink on loopback (a forwarded port, a proxy) is not seen. On
        systems without /proc, a SuperLink that listens on all addresses looks like one on loopback.
        A grid without a connection, as in Flower's simulation, is not refused.

    Args:
        grid: Of Flower.

    Raises:
        NotPrivateError: the connection has no TLS, and the address is not loopback.
    """
    # Flower 1.41 has no public name for either.
    if not getattr(grid, "_insecure", False):
        return
    address = str(grid._addr)
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
