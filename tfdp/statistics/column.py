"""Questions about one column of private data."""

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.events import ComposedEvent, Event
from tfdp.events.arguments import positive_integer, real_number
from tfdp.query import QuantileSelectionQuery
from tfdp.query.scores import STEPS as SCORE_STEPS
from tfdp.statistics.account import Account, Groups
from tfdp.statistics.noise import STEPS, Noise, in_steps
from tfdp.statistics.table import quiet

_LARGEST = 1e30


@dataclasses.dataclass(frozen=True, eq=False)
class PrivateColumn:
    """A column of `PrivateData`, or of its groups, and the range to which values are clipped.

    Every method is one question: it is charged, then answered, or refused. In groups the answer is
    a dict from the key of each group. A row whose value is missing or no finite number contributes
    to no answer. Noise is drawn by integers, so that rounding has no part in the guarantee.

    Attributes:
        bounds: (low, high), or None before `clip`.
    """

    _account: Account = dataclasses.field(repr=False)
    _values: np.ndarray = dataclasses.field(repr=False)
    _groups: Groups | None = dataclasses.field(repr=False)
    bounds: tuple[float, float] | None = None

    def clip(self, low: float, high: float) -> "PrivateColumn":
        """Returns the column with values below `low` or above `high` set to these.

        Args:
            low: Public: what one expects, never what the data say.
            high: Above `low`; public.

        Raises:
            TypeError: a bound is not a number.
            ValueError: it is out of range, or `high` is not above `low`.
        """
        limits = {"minimum": -_LARGEST, "inclusive": True, "maximum": _LARGEST}
        low, high = real_number("low", low, **limits), real_number("high", high, **limits)
        if high - low < 1e-9 * max(abs(low), abs(high), 1e-18):
            raise ValueError(f"high must be above low. Received: low={low!r}, high={high!r}.")
        return dataclasses.replace(self, bounds=(low, high))

    @quiet
    def count(self, *, epsilon: float | None = None, noise_multiplier: float | None = None) -> Any:
        """Returns the noised number of rows with a finite number.

        Args:
            epsilon: What it costs: Laplace noise of scale 1 / epsilon.
            noise_multiplier: Instead of `epsilon`: standard deviation of Gaussian noise.
        """
        noise = self._account.noise(epsilon, noise_multiplier)
        self._account.charge(self._event(noise), self._groups)
        return self._answer(self._noised(noise, self._present() * STEPS))

    @quiet
    def sum(self, *, epsilon: float | None = None, noise_multiplier: float | None = None) -> Any:
        """Returns the noised sum of the clipped values.

        A row moves it by at most S = max(|low|, |high|).

        Args:
            epsilon: What it costs: Laplace noise of scale S / epsilon.
            noise_multiplier: Instead of `epsilon`: Gaussian noise of so many times S.
        """
        noise = self._account.noise(epsilon, noise_multiplier)
        low, high = self._range()
        bound = max(abs(low), abs(high))
        steps = in_steps(np.clip(self._values, low, high), bound)
        self._account.charge(self._event(noise), self._groups)
        return self._answer(self._noised(noise, steps) * bound)

    @quiet
    def mean(self, *, epsilon: float | None = None, noise_multiplier: float | None = None) -> Any:
        """Returns the mean of the clipped values.

        With m = (low + high) / 2 a row moves the sum of x - m by (high - low) / 2 and the count by
        1. Each of the two takes half of epsilon. The answer is m + noised sum / noised count, and
        between the bounds.

        Args:
            epsilon: What it costs.
            noise_multiplier: Instead of `epsilon`: what one Gaussian release would have that costs
                the same.
        """
        each = self._account.noise(epsilon, noise_multiplier).shared(2)
        low, high = self._range()
        middle, half = low / 2 + high / 2, high / 2 - low / 2
        steps = in_steps(np.clip(self._values, low, high) - middle, half)
        self._account.charge(ComposedEvent((self._event(each), self._event(each))), self._groups)
        sums = self._noised(each, steps)
        counts = self._noised(each, self._present() * STEPS)
        return self._answer(np.clip(middle + half * sums / np.maximum(counts, 1.0), low, high))

    @quiet
    def quantile(
        self, quantile: float, *, epsilon: float, candidates: int | Sequence[float] = 100
    ) -> Any:
        """Returns one of the candidates, by the exponential mechanism (`QuantileSelectionQuery`).

        Args:
            quantile: In [0, 1]; 0.5 is the median.
            epsilon: What it costs; positive.
            candidates: Public, increasing numbers; or how many, evenly between the bounds.
        """
        if isinstance(candidates, (int, np.integer)):
            number = positive_integer("candidates", candidates)
            candidates = np.linspace(*self._range(), num=max(number, 2)).tolist()
        elif not isinstance(candidates, Iterable):
            raise TypeError(
                "candidates must be increasing numbers, or an integer: how many. Received: "
                f"candidates={candidates!r}."
            )
        query = QuantileSelectionQuery(
            tuple(candidates),
            quantile,
            real_number("epsilon", epsilon, minimum=0, inclusive=False, maximum=1e6)
            / self._account.contributions,
            self._account.random_source,
        )
        share = round(query.quantile * SCORE_STEPS)
        found = []
        is_in = np.isfinite(self._values)
        rows = np.where(is_in, 0, -1) if self._groups is None else self._groups.rows
        number = 1 if self._groups is None else len(self._groups.keys)
        self._account.charge(query.derive_event(()), self._groups)
        for group in range(number):
            values = np.sort(self._values[is_in & (rows == group)])
            below = np.searchsorted(values, query.candidates, side="right")
            state = tf.constant(below.astype(np.int64) * SCORE_STEPS - len(values) * share)
            found.append(float(query.get_noised_result(state, ())[0]))
        return self._answer(np.array(found))

    @quiet
    def histogram(
        self,
        edges: Sequence[float],
        *,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
    ) -> Any:
        """Returns noised counts of the bins, float64 [len(edges) - 1]; a row is in one of them.

        Args:
            edges: Public, increasing numbers; of each bin the lower edge is in it, and of the last
                the upper edge, too. Rows outside are in no bin.
            epsilon: What all bins cost together: Laplace noise of scale 1 / epsilon on each.
            noise_multiplier: Instead of `epsilon`: standard deviation of Gaussian noise.
        """
        if not isinstance(edges, Iterable):
            raise TypeError(
                "edges must be increasing numbers that you know without looking at the data, such "
                "as [0, 18, 65, 120]: a number of bins would take the range from the data. "
                f"Received: edges={edges!r}."
            )
        noise = self._account.noise(epsilon, noise_multiplier)
        limits = {"minimum": -_LARGEST, "inclusive": True, "maximum": _LARGEST}
        bounds = np.array([real_number("edges", edge, **limits) for edge in edges])
        if len(bounds) < 2 or np.any(np.diff(bounds) <= 0):
            raise ValueError(f"edges must be at least two and increase. Received: {edges!r}.")
        bins = np.searchsorted(bounds, self._values, side="right") - 1
        bins[self._values == bounds[-1]] = len(bounds) - 2
        self._account.charge(self._event(noise, len(bounds) - 1), self._groups)
        counts = [
            self._noised(noise, ((bins == place) & (self._present() > 0)).astype(np.int64) * STEPS)
            for place in range(len(bounds) - 1)
        ]
        return self._answer(np.stack(counts, axis=-1))

    def _event(self, noise: Noise, coordinates: int = 1) -> Event:
        return noise.event(self._account.coordinates(coordinates, self._groups))

    def _present(self) -> np.ndarray:
        return np.isfinite(self._values).astype(np.int64)

    def _range(self) -> tuple[float, float]:
        if self.bounds is None:
            raise ValueError(
                "The column must be clipped first, to a range that you know without looking at the "
                "data: data['age'].clip(0, 120)."
            )
        return self.bounds

    def _noised(self, noise: Noise, steps: np.ndarray) -> np.ndarray:
        """Returns the noised sum of each group, or of all rows, in units of the bound."""
        sums = steps.sum(keepdims=True) if self._groups is None else self._groups.sum(steps)
        return noise.add(sums, self._account.random_source)

    def _answer(self, values: np.ndarray) -> Any:
        """Returns what is released: of every group, by its key, or of everything."""
        found = [float(v) if values.ndim == 1 else v for v in values]
        return found[0] if self._groups is None else dict(zip(self._keys, found, strict=True))

    @property
    def _keys(self) -> tuple[Hashable, ...]:
        return () if self._groups is None else self._groups.keys
