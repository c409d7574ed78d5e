"""The chain of digests that ties the rows of a ledger file to each other and to their order."""

import hashlib
import hmac
import json
from typing import NamedTuple

# Names of the two kinds of chains, as they are written to the file.
PLAIN, KEYED = "sha256", "hmac-sha256"

_SHORTEST_KEY = 16


class Row(NamedTuple):
    """One row of a ledger file.

    Attributes:
        position: 0, 1, 2, ...
        session: Who wrote it: a name that every opening of the file has for itself, or "" for what
            `PrivacyLedger.save` wrote.
        target: None where `count` events happened; else the position of an earlier row of the same
            session, of whose events `count` did not happen after all.
        count: At least one.
        event: JSON text; None where there is a target.
    """

    position: int
    session: str
    target: int | None
    count: int  # type: ignore[assignment]  # Not tuple.count.
    event: str | None

    def encoded(self) -> bytes:
        """Returns bytes that no other row has: the first four fields hold no space."""
        return (
            f"{self.position} {self.session} {self.target} {self.count} {self.event or ''}".encode()
        )


def check_key(key: object) -> None:
    """Raises unless `key` is None or can be a key.

    Raises:
        TypeError: the key is not bytes.
        ValueError: it is too short.
    """
    if not (key is None or isinstance(key, bytes)):
        raise TypeError(f"key must be bytes or None. Received: {type(key).__name__}.")
    if key is not None and len(key) < _SHORTEST_KEY:
        raise ValueError(
            f"key must hold at least {_SHORTEST_KEY} bytes, such as os.urandom(32). Received: "
            f"{len(key)} bytes."
        )


class Chain:
    """Digests of rows, each over the digest of the row before.

    Guarantees:
        Without a key: whoever changes, drops, reorders or inserts rows must compute all later
        digests anew, so that the head differs from one that was noted elsewhere. With a key nobody
        can compute them who does not have it (HMAC, RFC 2104).

    Args:
        ledger_id: Of the ledger: rows of another one do not fit in.
        dataset_id: Of the ledger, or None.
        key: At least 16 secret bytes, or None.

    Raises:
        TypeError: the key is not bytes.
        ValueError: it is shorter.
    """

    def __init__(self, ledger_id: str, dataset_id: str | None, key: bytes | None):
        check_key(key)
        self._key = key
        self.name = PLAIN if key is None else KEYED
        identity = json.dumps([ledger_id, dataset_id])
        self.first = self._digest(f"tfdp ledger\n{identity}".encode())

    def _digest(self, message: bytes) -> bytes:
        if self._key is None:
            return hashlib.sha256(message).digest()
        return hmac.digest(self._key, message, "sha256")

    def next(self, digest: bytes, row: Row) -> bytes:
        """Returns the digest of `row`, before which the last digest is `digest`."""
        return self._digest(digest + row.encoded())

    def head(self, digest: bytes, num_rows: int, total_count: int) -> str:
        """Returns what stands for the whole ledger, as 64 hexadecimal digits: no shorter chain has
        it.
        """
        return self._digest(b"head %d %d " % (num_rows, total_count) + digest).hex()
