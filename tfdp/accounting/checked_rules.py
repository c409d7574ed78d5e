"""Whether what a rule says of a sampling makes sense, and what its table makes of a mechanism."""

import math
import numbers
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tfdp.accounting.amplification import (
    ALLOCATION,
    ALLOCATION_REPLACE,
    FIXED_SIZE_REPLACE,
    POISSON,
    POISSON_REPLACE,
    SEPARATED,
    TRUNCATED,
)
from tfdp.accounting.mechanisms import Mechanism
from tfdp.accounting.ranges import within_range
from tfdp.events import UnsupportedEventError

if TYPE_CHECKING:
    from tfdp.accounting.sampling_rules import SamplingRule


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 < value <= 1


def _is_probability(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _is_fixed_size(q: Any, n: Any, population: Any) -> bool:
    return _is_count(n) and _is_count(population) and n <= population and q == n / population


_SHARE = "parameters (q,) with q above 0 and at most 1"
_STEPS = "parameters (number of steps,), at least 1"
# Of the tables of tfdp what parameters they take, and whether these are such.
_PARAMETERS: tuple[tuple[Any, str, Callable[..., bool]], ...] = (
    (ALLOCATION, _STEPS, _is_count),
    (ALLOCATION_REPLACE, _STEPS, _is_count),
    (FIXED_SIZE_REPLACE, "parameters (n / N, n, N) with 1 <= n <= N", _is_fixed_size),
    (POISSON, _SHARE, _is_share),
    (POISSON_REPLACE, _SHARE, _is_share),
    (
        SEPARATED,
        "parameters (p, separation, number of steps) with p above 0 and at most 1",
        lambda p, separation, steps: _is_share(p) and _is_count(separation) and _is_count(steps),
    ),
    (
        TRUNCATED,
        "parameters (q, probability that a sample is full, whether places are kept)",
        lambda q, full, keeps: _is_share(q) and _is_probability(full) and isinstance(keeps, bool),
    ),
)


def wrong_with(rule: "SamplingRule") -> str | None:
    """Returns what the rule must have and has not; None where all is well."""
    factors = rule.factors
    if not isinstance(factors, tuple) or not factors:
        return "at least one factor, in a tuple"
    if not all(_is_number(factor) and 0 < factor < math.inf for factor in factors):
        return "positive factors"
    for name in ("events_per_mechanism", "repetitions"):
        if not _is_count(getattr(rule, name)):
            return f"{name} that is an integer of at least 1"
    if not _is_probability(rule.failure_probability):
        return "failure_probability between 0 and 1"
    if not isinstance(rule.parameters, tuple):
        return "parameters in a tuple"
    if rule.amplification is not None and not isinstance(rule.amplification, Mapping):
        return "amplification that is None or a table of functions"
    for table, words, fits in _PARAMETERS:
        if rule.amplification is table:
            try:
                good = fits(*rule.parameters)
            except TypeError:  # So many parameters are not theirs.
                good = False
            if not good:
                return words
    if rule.otherwise is not None:
        if not isinstance(rule.otherwise, type(rule)):
            return "otherwise that is None or another SamplingRule"
        return wrong_with(rule.otherwise)
    return None


def amplify(rule: "SamplingRule", mechanism: Mechanism, event: Any) -> Mechanism:
    """Returns what the rule's table makes of a mechanism.

    Args:
        rule: One with amplification.
        mechanism: One that sees everything.
        event: Named where there is no price.

    Raises:
        UnsupportedEventError: the table has no such mechanism, or makes none of it.
    """
    table: Any = rule.amplification
    function = table.get(type(mechanism))
    if function is None:
        raise UnsupportedEventError(
            f"The amplification of a {type(event.sampling).__name__} does not say what becomes of "
            f"a {type(mechanism).__name__}: {event!r:.500}. It needs an entry for it."
        )
    found = function(mechanism, *rule.parameters)
    values = vars(found) if isinstance(found, Mechanism) else {"mechanism": math.nan}
    q = values.get("sampling_probability", 1)
    good = all(value >= 0 for value in values.values() if _is_number(value)) and _is_share(q)
    if not good:
        raise UnsupportedEventError(
            f"The amplification of a {type(event.sampling).__name__} must return a mechanism with "
            "positive numbers and a sampling probability of at most 1. "
            f"Received: {found!r}, for {mechanism!r}."
        )
    return within_range(found)
