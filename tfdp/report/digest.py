"""A fingerprint of a ledger, the same for every copy of it and for every version of tfdp."""

import hashlib
import json

from tfdp.ledger import PrivacyLedger


def canonical_json_lines(ledger: PrivacyLedger) -> str:
    """Returns `ledger.to_json_lines()` without what is not the ledger's.

    That is the version of tfdp, and the line of digests, which covers it.
    """
    header, *entries, _ = ledger.to_json_lines().splitlines(keepends=True)
    members = json.loads(header)
    del members["tfdp_version"]
    return "".join([f"{json.dumps(members)}\n", *entries])


def fingerprint(ledger: PrivacyLedger) -> str:
    """Returns the SHA-256 of `canonical_json_lines(ledger)`, as 64 hexadecimal digits.

    Guarantees:
        Ledgers with another id, another event, another count or another order have another
        fingerprint. It names a ledger and does not authenticate it: whoever changes a ledger can
        compute the new one.

    Example:
        >>> ledger = PrivacyLedger.from_json_lines(
        ...     '{"format": "tfdp.ledger", "version": 1, "ledger_id": "' + 32 * "0" + '", '
        ...     '"tfdp_version": "0.1.0", "entry_count": 0, "total_count": 0}'
        ... )
        >>> fingerprint(ledger)[:16]
        'cd5cb719fae9859c'
    """
    return hashlib.sha256(canonical_json_lines(ledger).encode("utf-8")).hexdigest()
