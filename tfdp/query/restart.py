"""New beginnings of noise that remembers, at public times."""

import abc
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.events import Event
from tfdp.events.arguments import positive_integer, real_number
from tfdp.query.dp_query import DPQuery, check_config
from tfdp.query.structure import Structure
from tfdp.query.wrapping import WrappingQuery, check_is_query


class RestartIndicator(abc.ABC):
    """Says after each step whether noise begins anew.

    Guarantees:
        It sees no data: neither results nor records.
    """

    @abc.abstractmethod
    def initialize(self) -> Structure:
        """Returns the state before the first step."""

    @abc.abstractmethod
    def next(self, state: Structure) -> tuple[tf.Tensor, Structure]:
        """Returns whether to begin anew, a bool scalar, and the next state."""

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, by name, for Keras' registry."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "RestartIndicator":
        """Returns the indicator that `get_config` described.

        Raises:
            TypeError: an argument is missing or unknown.
        """
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        check_config(cls.__name__, config, names)
        return cls(**config)


@dataclasses.dataclass(frozen=True)
class PeriodicRoundRestartIndicator(RestartIndicator):
    """Begins anew after every `period` steps.

    Args:
        period: Positive.
        warmup: If given, the steps before the first new beginning; from 1 to `period` - 1.

    Raises:
        TypeError: an argument is no integer.
        ValueError: it is out of range.
    """

    period: int
    warmup: int | None = None

    def __post_init__(self) -> None:
        if positive_integer("period", self.period) and self.warmup is None:
            return
        if positive_integer("warmup", self.warmup) >= self.period:
            raise ValueError(
                f"warmup must be from 1 to period - 1 = {self.period - 1}. Received: "
                f"warmup={self.warmup}."
            )

    def initialize(self) -> Structure:
        return tf.constant(0, tf.int64)

    def next(self, state: Structure) -> tuple[tf.Tensor, Structure]:
        state = state + 1
        # Kept below the period: it then never overflows.
        state = tf.where(state < self.period, state, tf.zeros_like(state))
        return tf.equal(state, self.warmup or 0), state


@dataclasses.dataclass(frozen=True)
class PeriodicTimeRestartIndicator(RestartIndicator):
    """Begins anew after the first step that ends more than `period_seconds` after the last time.

    Args:
        period_seconds: Positive.

    Raises:
        TypeError: it is no number.
        ValueError: it is not positive or not finite.
    """

    period_seconds: float

    def __post_init__(self) -> None:
        real_number("period_seconds", self.period_seconds, minimum=0, inclusive=False)

    def initialize(self) -> Structure:
        return tf.timestamp()

    def next(self, state: Structure) -> tuple[tf.Tensor, Structure]:
        now = tf.timestamp()
        due = now - state > self.period_seconds
        return due, tf.where(due, now, state)


class RestartGlobalState(NamedTuple):
    """The inner query's state, and the indicator's."""

    inner_query_state: Structure
    indicator_state: Structure


@dataclasses.dataclass(frozen=True)
class RestartQuery(WrappingQuery):
    """Lets the noise of `inner_query` begin anew when an indicator says so.

    Guarantees:
        Every beginning is a run of its own in the ledger, and costs as much as a whole one: choose
        `num_steps` of the inner query no larger than it has to be. `inner_query` alone begins anew
        after so many steps.

    Args:
        inner_query: A query with `reset_state`: `CorrelatedGaussianSumQuery`,
            `TreeResidualSumQuery`, `TreeCumulativeSumQuery`.
        restart_indicator: When.

    Raises:
        TypeError: an argument is of the wrong type, or the inner query has no `reset_state`.

    References:
        Kairouz et al. 2021, arXiv:2103.00039, section 4 (restarts of the tree).
    """

    inner_query: DPQuery
    restart_indicator: RestartIndicator

    def __post_init__(self) -> None:
        check_is_query("inner_query", self.inner_query)
        if not hasattr(self.inner_query, "reset_state"):
            raise TypeError(
                f"{type(self.inner_query).__name__} remembers no noise: it has no reset_state. "
                "Give a query of correlated noise."
            )
        if not isinstance(self.restart_indicator, RestartIndicator):
            raise TypeError(
                "restart_indicator must be a RestartIndicator. Received: "
                f"restart_indicator={self.restart_indicator!r}."
            )

    @property
    def _inner(self) -> DPQuery:
        return self.inner_query

    def _with_inner(self, inner):
        return RestartQuery(inner, self.restart_indicator)

    def _inner_state(self, global_state):
        return global_state.inner_query_state

    def initial_global_state(self) -> Structure:
        return RestartGlobalState(
            self.inner_query.initial_global_state(), self.restart_indicator.initialize()
        )

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        results, going_on, event = self.inner_query.get_noised_result(
            sample_state, global_state.inner_query_state
        )
        begins, indicator = self.restart_indicator.next(global_state.indicator_state)
        anew = self.inner_query.reset_state(results, going_on)
        inner = tf.nest.map_structure(lambda new, old: tf.where(begins, new, old), anew, going_on)
        return results, RestartGlobalState(inner, indicator), event
