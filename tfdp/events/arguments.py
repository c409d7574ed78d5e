"""Checks of numbers and types that every part of the package shares."""

import math
import numbers
from typing import Any


def real_number(
    name: str, value: Any, *, minimum: float, inclusive: bool, maximum: float = math.inf
) -> float:
    """Returns `value` as a Python float, or says what is wrong with it.

    Raises:
        TypeError: `value` is not a real number (a bool, a string, a symbolic tensor).
        ValueError: it is not finite, or outside the bounds.
    """
    # Most are floats, which need not be asked of the abstract class.
    is_real = type(value) is float or isinstance(value, numbers.Real)
    if isinstance(value, bool) or not is_real:
        raise TypeError(f"{name} must be a real number. Received: {name}={value!r}.")
    number = float(value)
    low = number >= minimum if inclusive else number > minimum
    if not (math.isfinite(number) and low and number <= maximum):
        bound = f"{'at least' if inclusive else 'greater than'} {minimum:g}"
        if maximum != math.inf:
            bound += f" and at most {maximum:g}"
        raise ValueError(f"{name} must be finite, {bound}. Received: {name}={value!r}.")
    return number


def positive_integer(name: str, value: Any) -> int:
    """Returns `value` as a Python int of at least one, or says what is wrong with it.

    Raises:
        TypeError: `value` is not an integer; floats are refused even where they hold a whole
            number.
        ValueError: it is smaller than one.
    """
    if type(value) is not int:  # Most are; the rest is asked more slowly.
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} must be an integer. Received: {name}={value!r}.")
    if value < 1:
        raise ValueError(f"{name} must be at least 1. Received: {name}={value!r}.")
    return int(value)


def check_type(name: str, value: Any, expected: type) -> None:
    """Raises TypeError if `value` is not an instance of `expected`."""
    if not isinstance(value, expected):
        raise TypeError(f"{name} must be a {expected.__name__}. Received: {name}={value!r}.")


def set_field(instance: Any, name: str, value: Any) -> None:
    """Assigns a field of a frozen dataclass while it is being made."""
    object.__setattr__(instance, name, value)
