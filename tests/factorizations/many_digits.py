"""Series of rational functions from their recursion, in many digits."""

import decimal


def series(numerator, denominator, n, digits):
    """Returns the first n coefficients of numerator(x) / denominator(x), as decimals."""
    with decimal.localcontext(decimal.Context(prec=digits)):
        above, below = ([decimal.Decimal(v) for v in values] for values in (numerator, denominator))
        found = []
        for i in range(n):
            value = above[i] if i < len(above) else decimal.Decimal(0)
            known = range(1, min(i + 1, len(below)))
            found.append(value - sum(below[k] * found[i - k] for k in known))
        return found
