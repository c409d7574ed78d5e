"""What somebody who edits a ledger file, and knows its format, does next."""

import sqlite3

from tfdp.ledger.chain import Chain, Row


def reseal(path, counts=False, key=None):
    """Computes the digests of an edited file anew, and its counts if `counts`."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")
    with connection:
        (ledger_id,) = connection.execute(
            "SELECT value FROM meta WHERE key = 'ledger_id'"
        ).fetchone()
        chain = Chain(ledger_id, None, key)
        digest, total = chain.first, 0
        rows = connection.execute(
            "SELECT position, session, target, count, event FROM entries ORDER BY position"
        ).fetchall()
        for fields in rows:
            row = Row(*fields)
            digest = chain.next(digest, row)
            if isinstance(row.count, int):
                total += row.count if row.target is None else -row.count
            connection.execute(
                "UPDATE entries SET digest = ? WHERE position = ?", (digest, row.position)
            )
        values = {"head": chain.head(digest, len(rows), total)}
        if counts:
            values |= {"entry_count": len(rows), "total_count": total}
        for name, value in values.items():
            connection.execute("UPDATE meta SET value = ? WHERE key = ?", (str(value), name))
    connection.close()
