"""Numbers in words, rounded to one side only: what is said is never better than what is so."""

import decimal


def shown_up(value: float, digits: int = 6) -> str:
    """Returns a number of at least `value`, in so many significant digits at most.

    Example:
        >>> shown_up(1.0000041), shown_up(2.5), shown_up(1.2e-7), shown_up(float("inf"))
        ('1.00001', '2.5', '1.2e-07', 'inf')
    """
    return _shown(value, digits, decimal.ROUND_CEILING)


def shown_down(value: float, digits: int = 6) -> str:
    """Returns a number of at most `value`, in so many significant digits at most.

    Example:
        >>> shown_down(1.0999996), shown_down(2.5), shown_down(0.123456, 4)
        ('1.09999', '2.5', '0.1234')
    """
    return _shown(value, digits, decimal.ROUND_FLOOR)


def _shown(value: float, digits: int, rounding: str) -> str:
    rounded = decimal.Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    return f"{float(rounded):.{digits}g}"
