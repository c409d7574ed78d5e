"""How numbers are written. Costs are rounded up, so that no digit promises more than was shown."""

import decimal
import math
import re
from collections.abc import Callable
from typing import Any

from tfdp.events.shown import shown_down
from tfdp.report.releases import Range

_INFINITE = "infinite"


def round_up(value: float, digits: int = 4) -> str:
    """Returns a number of at least `value`, with so many significant digits.

    Example:
        >>> round_up(2.37961), round_up(0.0), round_up(math.inf), round_up(12345.6)
        ('2.380', '0', 'infinite', '12350')
    """
    return _rounded(value, digits, decimal.ROUND_CEILING)


def round_down(value: float, digits: int = 4) -> str:
    """Returns a number of at most `value`, with so many significant digits.

    Example:
        >>> round_down(2.37969), round_down(0.0), round_down(math.inf)
        ('2.379', '0', 'infinite')
    """
    return _rounded(value, digits, decimal.ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if value == 0:
        return "0"
    if math.isinf(value):
        return _INFINITE
    # The decimal number that Python writes, not its binary neighbour, which may lie just above.
    exact = decimal.Decimal(repr(float(value)))
    unit = decimal.Decimal(1).scaleb(exact.adjusted() - digits + 1)
    rounded = exact.quantize(unit, rounding)
    return format(rounded, "f" if -5 < exact.adjusted() < 15 else "g")


def at_most(value: float, digits: int = 6) -> str:
    """Returns a number of at most `value`, in so many significant digits at most.

    Example:
        >>> at_most(1.0999996), at_most(2.5), at_most(1 - 1e-12, 9)
        ('1.09999', '2.5', '0.999999999')
    """
    return _INFINITE if math.isinf(value) else _without_zeros(shown_down(value, digits))


def _without_zeros(text: str) -> str:
    # Python writes 1e-05, and nobody else does.
    return re.sub(r"e([+-])0+", r"e\1", text)


def exact(value: float) -> str:
    """Returns the shortest text that is read as this number, and of whole numbers all digits.

    Example:
        >>> exact(14040), exact(1e-5), exact(1.23456789e-5), exact(1.0)
        ('14,040', '1e-5', '1.23456789e-5', '1')
    """
    if isinstance(value, int):
        return f"{value:,}"
    return _without_zeros(repr(float(value)).removesuffix(".0"))


def rest_of(probability: float) -> str:
    """Returns what a probability that somebody chose leaves to one.

    Example:
        >>> rest_of(0.95), rest_of(1 - 1e-12)
        ('0.05', '1e-12')
    """
    return exact(float(1 - decimal.Decimal(repr(float(probability)))))


def percent_up(value: float) -> str:
    r"""Returns a probability as a percentage of at least it.

    Example:
        >>> percent_up(0.02719), percent_up(1.0), percent_up(0.9999999), percent_up(0.001)
        ('2.72\xa0%', '100\xa0%', '100\xa0%', '0.10\xa0%')
    """
    # 0.001 is a little more than a thousandth in binary, which is no reason to show more.
    hundredths = math.ceil(decimal.Decimal(repr(float(value))) * 10_000)
    return "100\xa0%" if hundredths >= 10_000 else f"{hundredths / 100:.2f}\xa0%"


def interval(estimate: Any) -> str:
    """Returns a measured number with its interval.

    Args:
        estimate: A `tfdp.audit.membership.Estimate`.
    """
    lower, upper = (
        decimal.Decimal(repr(float(bound))).quantize(decimal.Decimal("0.0001"), rounding)
        for bound, rounding in (
            (estimate.lower, decimal.ROUND_FLOOR),
            (estimate.upper, decimal.ROUND_CEILING),
        )
    )
    return f"{estimate.value:.4f} ({lower} to {upper})"


def percent(value: float) -> str:
    r"""Returns a probability that somebody chose as a percentage.

    Example:
        >>> percent(0.001), percent(0.05)
        ('0.1\xa0%', '5\xa0%')
    """
    hundredths = (decimal.Decimal(repr(float(value))) * 100).normalize()
    return f"{hundredths:f}\xa0%"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number of things.

    Example:
        >>> counted(1, "step"), counted(14040, "step"), counted(2, "entry", "entries")
        ('1 step', '14,040 steps', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def span(values: Range | str | None, shown: Callable[[float], str] = exact) -> str:
    """Returns one number, or the ends of a range and how many numbers it holds.

    Args:
        values: Text stays as it is.
        shown: How a number is written.
    """
    if values is None:
        return "not recorded"
    if isinstance(values, str):
        return values
    if values.distinct == 1:
        return shown(values.low)
    return f"{shown(values.low)} to {shown(values.high)} ({values.distinct:,} values)"


def span_down(values: Range) -> str:
    """Returns what `span` does, of noise that was computed: of at most so much.

    Example:
        >>> span_down(Range(1.0999996, 1.0999996, 1))
        '1.09999'
    """
    return span(values, at_most)
