"""How numbers are written. Costs are rounded up, so that no digit promises more than was shown."""

import decimal
import math
import re
from typing import Any

from tfdp.report.releases import Range


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
        return "infinite"
    # The decimal number that Python writes, not its binary neighbour, which may lie just above.
    exact = decimal.Decimal(repr(float(value)))
    unit = decimal.Decimal(1).scaleb(exact.adjusted() - digits + 1)
    rounded = exact.quantize(unit, rounding)
    return format(rounded, "f" if -5 < exact.adjusted() < 15 else "g")


def percent_up(value: float) -> str:
    r"""Returns a probability as a percentage of at least it.

    Example:
        >>> percent_up(0.02719), percent_up(1.0), percent_up(0.9999999), percent_up(0.001)
        ('2.72\xa0%', '100\xa0%', '100\xa0%', '0.10\xa0%')
    """
    # 0.001 is a little more than a thousandth in binary, which is no reason to show more.
    hundredths = math.ceil(round(value * 10_000, 9))
    return "100\xa0%" if hundredths >= 10_000 else f"{hundredths / 100:.2f}\xa0%"


def interval(estimate: Any) -> str:
    """Returns a measured number with its interval.

    Args:
        estimate: A `tfdp.audit.membership.Estimate`.
    """
    return f"{estimate.value:.4f} ({estimate.lower:.4f} to {estimate.upper:.4f})"


def percent(value: float) -> str:
    r"""Returns a probability that somebody chose as a percentage.

    Example:
        >>> percent(0.001), percent(0.05)
        ('0.1\xa0%', '5\xa0%')
    """
    return f"{100 * value:g}\xa0%"


def plain(value: float) -> str:
    """Returns a number to six significant digits, and whole numbers in full.

    Example:
        >>> plain(14040), plain(256 / 60000), plain(1e-5), plain(1.0)
        ('14,040', '0.00426667', '1e-5', '1')
    """
    if isinstance(value, int):
        return f"{value:,}"
    # Python writes 1e-05, and nobody else does.
    return re.sub(r"e([+-])0+", r"e\1", f"{value:.6g}")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number of things.

    Example:
        >>> counted(1, "step"), counted(14040, "step"), counted(2, "entry", "entries")
        ('1 step', '14,040 steps', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def span(values: Range | str | None) -> str:
    """Returns one number, or the ends of a range and how many numbers it holds."""
    if values is None:
        return "not recorded"
    if isinstance(values, str):
        return values
    if values.distinct == 1:
        return plain(values.low)
    return f"{plain(values.low)} to {plain(values.high)} ({values.distinct:,} values)"
