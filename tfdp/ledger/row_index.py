"""Where in a ledger file an event stands, for weights that must find it again."""

from bisect import bisect_left

from tfdp.ledger.chain import Row


class RowIndex:
    """Rows by the number of events up to them, whether or not those were given back later.

    Positions only grow, so that what `watermark` returned once is found for good. A row is known
    again by 60 bits of its digest, which no row of another history has.
    """

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._marks: list[int] = []
        self._saved_count = 0  # Events that `PrivacyLedger.save` wrote.

    def add(self, row: Row, digest: bytes) -> None:
        """Adds the next row."""
        count = row.count if row.target is None else 0
        # In this order: another thread may look for a place meanwhile.
        self._marks.append(int(digest.hex()[:15], 16))
        self._ends.append(self.end + count)
        if not row.session:
            self._saved_count = self.end

    @property
    def end(self) -> int:
        """Number of events up to the last row."""
        return self._ends[-1] if self._ends else 0

    def end_of(self, row: int) -> int:
        """Returns the number of events up to the row at a position."""
        return self._ends[row]

    def watermark(self, position: int) -> tuple[int, int]:
        """Returns two numbers that say where the event is up to which there are `position`."""
        if not position:
            return 0, 0
        return position, self._marks[bisect_left(self._ends, position)]

    def was_saved(self, position: int) -> bool:
        """Whether the event is in a row that `PrivacyLedger.save` wrote."""
        return position <= self._saved_count

    def holds(self, position: int, mark: int) -> bool:
        """Whether `watermark` returned these numbers, in this file or in one that it continues."""
        row = bisect_left(self._ends, position)
        return row < len(self._ends) and self._marks[row] == mark
