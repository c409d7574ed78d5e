"""Private data as one would query a table, on one ledger and one budget."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.accounting import Budget
from tfdp.events.arguments import check_type, positive_integer
from tfdp.ledger import PrivacyLedger
from tfdp.noise import RandomSource
from tfdp.query import PartitionSelectionQuery
from tfdp.query.arguments import check_random_source
from tfdp.statistics import features, table
from tfdp.statistics.account import Account, Groups
from tfdp.statistics.column import PrivateColumn
from tfdp.statistics.table import quiet


class PrivateData:
    """Rows, each of which is to be protected, and the questions that may be asked about them.

    `data["age"]` is a column, `data[["age", "income"]]` some of them, `data.group_by("city", ...)`
    the groups of a column. Every question is charged to the ledger before it is answered. One that
    the budget does not cover is refused (`PrivacyBudgetExceededError`), and costs nothing. The
    ledger may be that of anything else that is done with the same rows, such as training.

    Guarantees:
        Answers are private with respect to one row that is added or removed, as the ledger says;
        with `person`, with respect to all rows of one person.
        Whether something is refused depends on types, shapes and arguments, never on a value. With
        Laplace noise epsilon is a sum, with Gaussian noise, and for groups, less.

    Edge cases:
        A row whose value is missing (None, NaN, NA) or of another type contributes to nothing that
        is asked about that column. Without `person`, who has several rows is not protected as a
        whole: events are about the unit "example", and with `person` about "user". A question on a
        ledger that is about another unit is refused (`UnsupportedEventError`).

    Args:
        data: An array [n] or [n, columns], a mapping of names to arrays or lists, or a pandas
            frame. It is read at once; later changes do not count.
        ledger: Of these rows; by default a new one in memory.
        budget: What the whole ledger may cost; None for no limit.
        random_source: Where random bits come from; by default keyed by the operating system.
        person: The column that says whose row it is: texts, numbers or bytes. A row of nobody
            (None, NaN, another type) is dropped; a dtype of dates is refused.
        max_contributions: How many rows of a person take part, the first ones; the others are
            dropped, whatever they hold. Noise is larger by this factor, so that a question costs
            what its arguments say.

    Raises:
        KeyError: there is no column `person`.
        TypeError: an argument is of the wrong type, or an array is a masked one.
        ValueError: there are no columns, they are not equally long, or only one of `person` and
            `max_contributions` is given.

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

    @quiet
    def __init__(
        self,
        data: Any,
        *,
        ledger: PrivacyLedger | None = None,
        budget: Budget | None = None,
        random_source: RandomSource | None = None,
        person: Hashable | None = None,
        max_contributions: int | None = None,
    ):
        for name, value, kind in (("ledger", ledger, PrivacyLedger), ("budget", budget, Budget)):
            if value is not None:
                check_type(name, value, kind)
        check_random_source(random_source)
        ledger = PrivacyLedger() if ledger is None else ledger
        table.check_name("person", person)
        if (person is None) != (max_contributions is None):
            raise ValueError(
                "Give person and max_contributions together, or neither. Received: "
                f"person={person!r}, max_contributions={max_contributions!r}."
            )
        columns = {name: np.array(c) for name, c in table.columns_of(data).items()}
        most, self._persons = 1, np.arange(len(next(iter(columns.values()))))
        if max_contributions is not None:
            most = positive_integer("max_contributions", max_contributions)
            if person not in columns:
                raise KeyError(f"There is no column {person!r}. There are: {list(columns)}.")
            table.check_keys(person, columns[person])
            ids = table.persons_of(columns[person])
            kept = table.first_of_each(ids, most)
            columns = {name: column[kept] for name, column in columns.items()}
            self._persons = ids[kept]
        self._account = Account(ledger, budget, random_source, person is not None, most)
        self._columns = columns

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

    @quiet
    def __getitem__(self, name: Any) -> Any:
        """Returns a `PrivateColumn`, or for a list of names `PrivateData` of these columns."""
        if isinstance(name, list):
            if not name:
                raise ValueError("Name at least one column. Received: [].")
            chosen = PrivateData.__new__(PrivateData)
            chosen._account = self._account
            chosen._columns = {each: self._column(each) for each in name}
            chosen._persons = self._persons
            return chosen
        return PrivateColumn(self._account, table.as_numbers(name, self._column(name)), None)

    @quiet
    def count(self, *, epsilon: float | None = None, noise_multiplier: float | None = None) -> Any:
        """Returns the noised number of rows.

        Args:
            epsilon: What it costs: Laplace noise of scale 1 / epsilon.
            noise_multiplier: Instead of `epsilon`: standard deviation of Gaussian noise.
        """
        rows = PrivateColumn(self._account, np.zeros(self._length), None)
        return rows.count(epsilon=epsilon, noise_multiplier=noise_multiplier)

    @quiet
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
        groups costs what it costs about one (`ParallelComposition`). So it is for persons of one
        row each. A person of k rows may be in k groups: together these rows cost what k rows of one
        group do.

        Args:
            name: Of the column; its values are texts, numbers or bytes. A dtype of dates is
                refused: make texts of them.
            keys: Public: what one knows without looking at the data.
            epsilon: Without `keys`: the keys are selected at this price, which is charged at once
                (`PartitionSelectionQuery`). Keys of few rows are not found.
            delta: With `epsilon`.
        """
        column = self._column(name)
        table.check_keys(name, column)
        if keys is not None:
            if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
                raise TypeError(
                    "keys must be a sequence of keys, such as ['Oslo', 'Rome']. Received: "
                    f"keys={keys!r}."
                )
            keys = tuple(keys)
        if (keys is None) == (epsilon is None) or (epsilon is None) != (delta is None):
            raise ValueError(
                "Give either keys, or epsilon and delta to select them privately. Received: "
                f"keys={keys!r}, epsilon={epsilon!r}, delta={delta!r}."
            )
        if keys is None:
            account = self._account
            most = account.contributions
            query = PartitionSelectionQuery(epsilon, delta, most, account.random_source)
            account.charge_units(query.derive_event(()))
            found = table.occurring_keys(column)
            rows = table.rows_of(column, found)
            # A person counts once in a group, and has no more groups than rows.
            counts = Groups(tuple(found), rows).sum(table.is_first_in_group(self._persons, rows))
            kept = query.get_noised_result(tf.constant(counts, tf.int64), ())[0].numpy()
            keys = [key for key, is_kept in zip(found, kept, strict=True) if is_kept]
        return GroupedData(self, Groups(tuple(keys), table.rows_of(column, keys)))

    @quiet
    def select_features(self, target: Hashable, number: int, *, epsilon: float) -> list[Hashable]:
        """Returns the columns whose products with the target have the largest absolute sums.

        Columns should be in [-1, 1], and centred: each is clipped to that.

        Args:
            target: The column that is to be explained; it is clipped to [-1, 1], too.
            number: How many columns.
            epsilon: What they cost together; each selection is a `ReportNoisyMaxQuery`.
        """
        wanted = table.as_numbers(target, self._column(target, "target"))
        others = {name: column for name, column in self._columns.items() if name != target}
        numbers = {name: table.as_numbers(name, column) for name, column in others.items()}
        return features.select(self._account, numbers, wanted, number, epsilon)

    @quiet
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

    def _column(self, name: Hashable, what: str = "name") -> np.ndarray:
        table.check_name(what, name)
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

    @quiet
    def __getitem__(self, name: Hashable) -> PrivateColumn:
        """Returns a column, whose answers are dicts from the key of each group."""
        values = table.as_numbers(name, self._data._column(name))
        return PrivateColumn(self._data._account, values, self._groups)

    @quiet
    def count(self, *, epsilon: float | None = None, noise_multiplier: float | None = None) -> Any:
        """Returns the noised number of rows of each group.

        Args:
            epsilon: What all groups cost together: Laplace noise of scale 1 / epsilon on each.
            noise_multiplier: Instead of `epsilon`: standard deviation of Gaussian noise.
        """
        rows = PrivateColumn(self._data._account, np.zeros(self._data._length), self._groups)
        return rows.count(epsilon=epsilon, noise_multiplier=noise_multiplier)
