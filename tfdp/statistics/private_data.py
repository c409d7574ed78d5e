"""Private data as one would query a table, on one ledger and one budget."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.accounting import Budget
from tfdp.events.arguments import check_type
from tfdp.ledger import PrivacyLedger
from tfdp.noise import RandomSource
from tfdp.query import PartitionSelectionQuery
from tfdp.statistics import features, table
from tfdp.statistics.account import Account, Groups
from tfdp.statistics.column import PrivateColumn


class PrivateData:
    """Rows, each of which is to be protected, and the questions that may be asked about them.

    `data["age"]` is a column, `data[["age", "income"]]` some of them, `data.group_by("city", ...)`
    the groups of a column. Every question is charged to the ledger before it is answered. One that
    the budget does not cover is refused (`PrivacyBudgetExceededError`), and costs nothing. The
    ledger may be that of anything else that is done with the same rows, such as training.

    Guarantees:
        Answers are private with respect to one row that is added or removed, as the ledger says.
        Whether something is refused depends on types, shapes and arguments, never on a value. With
        Laplace noise epsilon is a sum, with Gaussian noise, and for groups, less.

    Edge cases:
        A row whose value is missing (None, NaN, NA) or of another type contributes to nothing that
        is asked about that column. Who has several rows is not protected as a whole.

    Args:
        data: An array [n] or [n, columns], a mapping of names to arrays, or a pandas frame. It is
            read at once; later changes do not count.
        ledger: Of these rows; by default a new one in memory.
        budget: What the whole ledger may cost; None for no limit.
        random_source: Where random bits come from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: columns are not equally long.

    Example:
        >>> ages = np.array([31.0, 45.0, np.nan, 62.0, 38.0])
        >>> cities = np.array(["Rome", "Oslo", "Oslo", "Rome", "Bonn"])
        >>> budget = Budget(epsilon=1000.0, delta=1e-6)
        >>> data = PrivateData({"age": ages, "city": cities}, budget=budget)
        >>> round(data["age"].clip(0, 120).mean(epsilon=500.0))
        44
        >>> groups = data.group_by("city", keys=["Oslo", "Rome"])
        >>> {city: round(n) for city, n in groups.count(epsilon=400.0).items()}
        {'Oslo': 2, 'Rome': 2}
        >>> round(data.left, 2)
        100.0
        >>> data.count(epsilon=200.0)
        Traceback (most recent call last):
        ...
        tfdp...PrivacyBudgetExceededError: ... What is left is epsilon 100. ...
    """

    def __init__(
        self,
        data: Any,
        *,
        ledger: PrivacyLedger | None = None,
        budget: Budget | None = None,
        random_source: RandomSource | None = None,
    ):
        for name, value, kind in (("ledger", ledger, PrivacyLedger), ("budget", budget, Budget)):
            if value is not None:
                check_type(name, value, kind)
        ledger = PrivacyLedger() if ledger is None else ledger
        self._account = Account(ledger, budget, random_source)
        self._columns = {name: np.array(c) for name, c in table.columns_of(data).items()}

    def __repr__(self) -> str:
        return f"PrivateData(columns={list(self._columns)}, ledger={self.ledger!r})"

    @property
    def ledger(self) -> PrivacyLedger:
        """What was asked so far, and whatever else its owner wrote."""
        return self._account.ledger

    @property
    def left(self) -> float | None:
        """The epsilon that is left of the budget; None where there is no budget."""
        budget = self._account.budget
        return None if budget is None else budget.left(self.ledger)

    def __getitem__(self, name: Any) -> Any:
        """Returns a `PrivateColumn`, or for a list of names `PrivateData` of these columns."""
        if isinstance(name, list):
            chosen = PrivateData.__new__(PrivateData)
            chosen._account = self._account
            chosen._columns = {each: self._column(each) for each in name}
            return chosen
        return PrivateColumn(self._account, table.as_numbers(name, self._column(name)), None)

    def count(self, *, epsilon: float | None = None, noise_multiplier: float | None = None) -> Any:
        """Returns the noised number of rows.

        Args:
            epsilon: What it costs: Laplace noise of scale 1 / epsilon.
            noise_multiplier: Instead of `epsilon`: standard deviation of Gaussian noise.
        """
        rows = PrivateColumn(self._account, np.zeros(self._length), None)
        return rows.count(epsilon=epsilon, noise_multiplier=noise_multiplier)

    def group_by(
        self,
        name: Hashable,
        *,
        keys: Sequence[Hashable] | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> "GroupedData":
        """Returns the groups of rows by a column: of public keys, or of keys that are selected.

        Rows of other groups are dropped. A row is in one group, so that a question about all
        groups costs what it costs about one (`ParallelComposition`).

        Args:
            name: Of the column; its values are texts, numbers or bytes.
            keys: Public: what one knows without looking at the data.
            epsilon: Without `keys`: the keys are selected at this price, which is charged at once
                (`PartitionSelectionQuery`). Keys of few rows are not found.
            delta: With `epsilon`.
        """
        column = self._column(name)
        if (keys is None) == (epsilon is None) or (epsilon is None) != (delta is None):
            raise ValueError(
                "Give either keys, or epsilon and delta to select them privately. Received: "
                f"keys={keys!r}, epsilon={epsilon!r}, delta={delta!r}."
            )
        if keys is None:
            query = PartitionSelectionQuery(epsilon, delta, 1, self._account.random_source)
            self._account.charge(query.derive_event(()), None)
            found = table.occurring_keys(column)
            counts = Groups(tuple(found), table.rows_of(column, found)).sum(
                np.ones(self._length, np.int64)
            )
            kept = query.get_noised_result(tf.constant(counts, tf.int64), ())[0].numpy()
            keys = [key for key, is_kept in zip(found, kept, strict=True) if is_kept]
        return GroupedData(self, Groups(tuple(keys), table.rows_of(column, keys)))

    def select_features(self, target: Hashable, number: int, *, epsilon: float) -> list[Hashable]:
        """Returns the columns whose products with the target have the largest absolute sums.

        Columns should be in [-1, 1], and centred: each is clipped to that.

        Args:
            target: The column that is to be explained; it is clipped to [-1, 1], too.
            number: How many columns.
            epsilon: What they cost together; each selection is a `ReportNoisyMaxQuery`.
        """
        others = {name: column for name, column in self._columns.items() if name != target}
        numbers = {name: table.as_numbers(name, column) for name, column in others.items()}
        wanted = table.as_numbers(target, self._column(target))
        return features.select(self._account, numbers, wanted, number, epsilon)

    def principal_components(
        self,
        number: int,
        *,
        l2_norm_clip: float,
        noise_multiplier: float,
        center: Sequence[float] | None = None,
    ) -> "features.Components":
        """Returns the directions in which the rows vary most.

        Of all columns of this object; choose some by `data[["a", "b"]]`.

        Args:
            number: How many directions.
            l2_norm_clip: C: rows, less `center`, are clipped to this norm.
            noise_multiplier: Gaussian noise of so many times C^2 on every entry of the scatter
                matrix, on and above the diagonal.
            center: Public; by default zero.
        """
        rows = np.stack([table.as_numbers(n, c) for n, c in self._columns.items()], axis=1)
        scatter = features.Scatter(l2_norm_clip, noise_multiplier, center)
        return features.principal_components(self._account, rows, number, scatter)

    @property
    def _length(self) -> int:
        return len(next(iter(self._columns.values())))

    def _column(self, name: Hashable) -> np.ndarray:
        if name not in self._columns:
            raise KeyError(f"There is no column {name!r}. There are: {list(self._columns)}.")
        return self._columns[name]


class GroupedData:
    """Disjoint groups of the rows; made by `PrivateData.group_by`."""

    def __init__(self, data: PrivateData, groups: Groups):
        self._data, self._groups = data, groups

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The keys of the groups: given, or selected."""
        return self._groups.keys

    def __getitem__(self, name: Hashable) -> PrivateColumn:
        """Returns a column, whose answers are dicts from the key of each group."""
        values = table.as_numbers(name, self._data._column(name))
        return PrivateColumn(self._data._account, values, self._groups)

    def count(self, *, epsilon: float | None = None, noise_multiplier: float | None = None) -> Any:
        """Returns the noised number of rows of each group.

        Args:
            epsilon: What all groups cost together: Laplace noise of scale 1 / epsilon on each.
            noise_multiplier: Instead of `epsilon`: standard deviation of Gaussian noise.
        """
        rows = PrivateColumn(self._data._account, np.zeros(self._data._length), self._groups)
        return rows.count(epsilon=epsilon, noise_multiplier=noise_multiplier)
