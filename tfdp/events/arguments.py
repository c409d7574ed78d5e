"""Checks of arguments that every part of the package shares."""

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

# Ledgers and accountants count up to this.
MAX_INTEGER = 2**63 - 1

_Called = TypeVar("_Called", bound=Callable[..., Any])


def real_number(
    name: str, value: Any, *, minimum: float, inclusive: bool, maximum: float = math.inf
) -> float:
    """Returns `value` as a Python float, or says what is wrong with it.

    Args:
        name: What messages call it.
        value: Anything.
        minimum: The lower bound.
        inclusive: Whether the lower bound itself is allowed.
        maximum: The upper bound, which is allowed.

    Raises:
        TypeError: `value` is not a real number (a bool, a string, a symbolic tensor).
        ValueError: it is not finite, or outside the bounds.
    """
    # Most are floats, which need not be asked of the abstract class.
    is_real = type(value) is float or isinstance(value, numbers.Real)
    if isinstance(value, bool) or not is_real:
        raise TypeError(f"{name} must be a real number. Received: {name}={value!r}.")
    try:
        number = float(value)
    except OverflowError:  # An integer or a fraction that no float can hold.
        number = math.inf
    low = number >= minimum if inclusive else number > minimum
    if not (math.isfinite(number) and low and number <= maximum):
        bound = f"{'at least' if inclusive else 'greater than'} {minimum:g}"
        if maximum != math.inf:
            bound += f" and at most {maximum:g}"
        raise ValueError(f"{name} must be finite, {bound}. Received: {name}={_shown(value)}.")
    return number


def positive_integer(name: str, value: Any) -> int:
    """Returns `value` as a Python int of at least one, or says what is wrong with it.

    Raises:
        TypeError: `value` is not an integer; floats are refused even where they hold a whole
            number.
        ValueError: it is smaller than one, or above 2^63 - 1.
    """
    if type(value) is not int:  # Most are; the rest is asked more slowly.
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} must be an integer. Received: {name}={value!r}.")
    number = int(value)
    if not 1 <= number <= MAX_INTEGER:
        bound = "at least 1" if number < 1 else "at most 2^63 - 1"
        raise ValueError(f"{name} must be {bound}. Received: {name}={_shown(value)}.")
    return number


def integer_below(name: str, value: Any, end: int) -> int:
    """Returns `value` as a Python int from 0 to end - 1, or says what is wrong with it.

    Raises:
        TypeError: `value` is not an integer.
        ValueError: it is outside.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer. Received: {name}={value!r}.")
    number = int(value)
    if not 0 <= number < end:
        raise ValueError(
            f"{name} must be at least 0 and below {end}. Received: {name}={_shown(value)}."
        )
    return number


def several(name: str, values: Any) -> tuple[Any, ...]:
    """Returns values as a tuple, or says that they must be several; they are not looked at.

    Raises:
        TypeError: `values` is one number, or a text.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of numbers. Received: {name}={values!r}.")
    return tuple(values)


def _shown(value: Any) -> str:
    # Python refuses to print integers of thousands of digits.
    is_long = isinstance(value, int) and abs(value) >= 10**30
    return "an integer of more than 30 digits" if is_long else repr(value)


def check_type(name: str, value: Any, expected: type) -> None:
    """Raises TypeError if `value` is not an instance of `expected`."""
    if not isinstance(value, expected):
        raise TypeError(f"{name} must be a {expected.__name__}. Received: {name}={value!r}.")


def set_field(instance: Any, name: str, value: Any) -> None:
    """Assigns a field of a frozen dataclass while it is being made."""
    object.__setattr__(instance, name, value)


def says_what_to_write(hint: str) -> Callable[[_Called], _Called]:
    """Returns a decorator of a function or a class that another library calls otherwise.

    Where the arguments of a call do not fit its signature, Python's own TypeError says which do
    not. This one says what to write, too.

    Args:
        hint: One or more sentences.

    Raises:
        TypeError: when what is decorated is called with other arguments.
    """

    def decorate(called: Any) -> Any:
        function = called.__init__ if isinstance(called, type) else called  # type: ignore[misc]
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{called.__qualname__}: {error}. {hint}") from None
            return function(*args, **kwargs)

        if not isinstance(called, type):
            return checked
        called.__init__ = checked  # type: ignore[misc]
        return called

    return decorate
