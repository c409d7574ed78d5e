"""Lower triangular Toeplitz factors of the matrix of running sums.

A run of n steps releases x_t = g_t + y_t, with g the sums of the steps and C y = sigma z, z
independent standard normal. All of it is a function of C g + sigma z: one Gaussian mechanism. With
A the lower triangle of ones and B = A C^-1, the running sums of x have the error sigma B z.
"""

import dataclasses
import decimal
import functools
import math
from collections.abc import Iterable

import numpy as np

from tfdp.factorizations.participations import squares_of_columns

# More steps, or coefficients, than this are refused: columns are computed as a whole.
MAX_STEPS, MAX_COEFFICIENTS = 2**20, 1024
# Digits of exact recursions, and how many operations one of them may take: some seconds.
_DIGITS, _MOST_EXACT = 100, 2**23


@dataclasses.dataclass(frozen=True)
class ToeplitzFactorization:
    """C(x) = p(x) / r(x): the series whose coefficients are the first column of C.

    Noise follows p(S) y = r(S) z, where S delays by one step: y_t = z_t + sum_j (r_j z_{t-j} - p_j
    y_{t-j}). So `memory()` numbers for every coordinate are all that has to be kept.

    Attributes:
        numerator: p_0 = 1, p_1, ...: the bands of C where `denominator` is (1,).
        denominator: r_0 = 1, r_1, ...: the bands of C^-1 where `numerator` is (1,).

    Raises:
        ValueError: a coefficient is not finite, the first one is not 1, the last one is 0 (but for
            the first), or there are more than 1024.
    """

    numerator: tuple[float, ...] = (1.0,)
    denominator: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        for name in ("numerator", "denominator"):
            values = check_coefficients(name, getattr(self, name))
            object.__setattr__(self, name, values)

    @property
    def bands(self) -> int | None:
        """Bands of C, the diagonal included; None where its columns do not end."""
        return len(self.numerator) if len(self.denominator) == 1 else None

    def memory(self, num_steps: int) -> int:
        """Returns how many numbers the noise of a coordinate remembers, in runs of any length."""
        return max(len(self.numerator), len(self.denominator)) - 1

    def column(self, num_steps: int) -> np.ndarray:
        """Returns the first column of C, [num_steps].

        Raises:
            ValueError: it overflows, or it is too long for exact operations and others would lose
                digits.
        """
        return _series(self.numerator, self.denominator, check_steps("num_steps", num_steps))

    def inverse_column(self, num_steps: int) -> np.ndarray:
        """Returns the first column of C^-1, [num_steps]."""
        # Errors follow from it, and no sensitivity: where it is long, some digits may be lost.
        n = check_steps("num_steps", num_steps)
        return _series(self.denominator, self.numerator, n, exact=False)

    def sensitivity(self, num_steps: int, period: int | None = None) -> float:
        """Returns how far C g moves, in l2 norm, when one unit's sums of norm 1 are taken away.

        The unit is in steps i, i + period, i + 2 period, ... for some i < period.

        Guarantees:
            Exact where C has no negative coefficient, because the unit's vectors then count most
            where all are equal; else an upper bound, that of the matrix of absolute values. Never
            less than that by rounding; it is larger by 2^-52 for an operation. For other i the
            moved column is the same one, cut off earlier, so that i = 0 is the worst.

        Args:
            num_steps: n.
            period: Steps between two participations; 1 is every step. None: the unit is in one
                step.
        """
        n = check_steps("num_steps", num_steps)
        column = np.abs(self.column(n))
        with np.errstate(over="ignore"):  # Then it is refused.
            total = periodic_sum(column, n if period is None else check_steps("period", period))
        return math.sqrt(self._weighted_squares(total, 1.0, n)) * self._slack(n)

    def sensitivity_to_participations(
        self, num_steps: int, min_separation: int, max_participations: int | None = None
    ) -> float:
        """Returns how far C g moves, in l2 norm, when one unit's sums of norm 1 are taken away.

        The unit is in at most `max_participations` steps, any two at least `min_separation` apart.

        Guarantees:
            Exact where the column of C has no negative number and does not rise, as of the square
            root and its inverse, of buffers and one step back; else an upper bound. The proof is in
            `tfdp.factorizations.participations`.

        Args:
            num_steps: n.
            min_separation: Steps between two participations, at least; 1: they may be neighbours.
            max_participations: None: as many as there can be.
        """
        n, separation, most = check_participations(num_steps, min_separation, max_participations)
        squares = squares_of_columns(self.column(n), separation, most)
        return math.sqrt(squares) * self._slack(n)

    def products_of_turns(self, num_steps: int, period: int) -> np.ndarray:
        """Returns <|C| s_i, |C| s_j> for all i, j < period, where s_i is 1 in the steps i, i +
        period, i + 2 period, ... and 0 in others; [period, period].

        Args:
            num_steps: n.
            period: Steps between two participations.
        """
        num_steps, period = check_steps("num_steps", num_steps), check_steps("period", period)
        moved = periodic_sum(np.abs(self.column(num_steps)), period)
        found = np.zeros((period, period))
        # Column i is the first one, moved down by i and cut off after n rows. So a product grows
        # along its diagonal, from the last column on, by a term for each row that is not cut off.
        rows = max(0, num_steps - period + 1)
        ends = np.zeros(period)
        ends[:num_steps] = moved[::-1][:period]
        with np.errstate(over="ignore"):
            for away in range(period if rows else 0):
                found[-1 - away, -1] = found[-1, -1 - away] = (
                    moved[:rows] @ moved[away : away + rows]
                )
            for i in range(period - 2, -1, -1):
                found[i, :-1] = found[i + 1, 1:] + ends[i] * ends[:-1]
            if not np.isfinite(found).all():
                raise ValueError(_overflow(self.numerator, self.denominator, num_steps))
        return found

    def column_norm(self, num_steps: int) -> float:
        """Returns the largest l2 norm of a column of C: the sensitivity to one participation."""
        return self.sensitivity(num_steps)

    def max_error(self, num_steps: int, period: int | None = None) -> float:
        """Returns the standard deviation of the error of the last running sum, which is the worst.

        In units of what noise of standard deviation `sensitivity` makes: for one Gaussian mechanism
        with noise multiplier 1, whatever the factorization.
        """
        num_steps = check_steps("num_steps", num_steps)
        return self.sensitivity(num_steps, period) * math.sqrt(self._error(num_steps, 1.0))

    def root_mean_squared_error(self, num_steps: int, period: int | None = None) -> float:
        """Returns the same, of all running sums on average."""
        num_steps = check_steps("num_steps", num_steps)
        weights = np.arange(num_steps, 0, -1) / num_steps
        return self.sensitivity(num_steps, period) * math.sqrt(self._error(num_steps, weights))

    def _error(self, num_steps: int, weights: np.ndarray | float) -> float:
        """Returns the sum of weights times squares of the running sums of C^-1's first column."""
        with np.errstate(over="ignore"):
            sums = np.cumsum(self.inverse_column(num_steps))
        return self._weighted_squares(sums, weights, num_steps)

    def _slack(self, num_steps: int) -> float:
        """Returns a factor above what rounding can take off a sensitivity.

        No term is negative. So every addition and product takes off 2^-53 of a number at most.
        Behind a number of the column there are num_steps (d + 1) of them, with r_0 to r_d in
        `denominator`. Its sum over participations takes num_steps more, the square and the root
        three. The factor allows for twice as many.
        """
        operations = num_steps * (len(self.denominator) + 2) + 8
        return 1 + operations * 2.0**-52

    def _weighted_squares(
        self, values: np.ndarray, weights: np.ndarray | float, num_steps: int
    ) -> float:
        with np.errstate(over="ignore"):
            squares = values * values * weights
            if not np.isfinite(np.sum(squares)):
                raise ValueError(_overflow(self.numerator, self.denominator, num_steps))
        return math.fsum(squares)


def check_coefficients(name: str, values: Iterable[float]) -> tuple[float, ...]:
    """Returns the coefficients as floats, or says what is wrong with them."""
    found = tuple(float(value) for value in values)
    if not 1 <= len(found) <= MAX_COEFFICIENTS:
        raise ValueError(
            f"{name} must hold 1 to {MAX_COEFFICIENTS} coefficients. Received: {len(found)}."
        )
    if not all(map(math.isfinite, found)) or found[0] != 1 or (len(found) > 1 and not found[-1]):
        raise ValueError(
            f"{name} must hold finite numbers, of which the first is 1 and the last is not 0. "
            f"Received: {name}={found!r:.200}."
        )
    return found


def check_steps(name: str, value: int) -> int:
    """Returns a number of steps, or says what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer. Received: {name}={value!r}.")
    if not 1 <= value <= MAX_STEPS:
        raise ValueError(f"{name} must be from 1 to {MAX_STEPS}. Received: {name}={value}.")
    return int(value)


def check_participations(
    num_steps: int, min_separation: int, max_participations: int | None
) -> tuple[int, int, int | None]:
    """Returns the arguments of `sensitivity_to_participations`, or says what is wrong with them."""
    n, separation = (
        check_steps("num_steps", num_steps),
        check_steps("min_separation", min_separation),
    )
    if max_participations is None:
        return n, separation, None
    return n, separation, check_steps("max_participations", max_participations)


def periodic_sum(column: np.ndarray, period: int) -> np.ndarray:
    """Returns column + the column moved down by period, by 2 period, ..., cut off at its end."""
    n = len(column)
    rows = -(-n // period)
    table = np.zeros(rows * period)
    table[:n] = column
    return np.cumsum(table.reshape(rows, period), axis=0).reshape(-1)[:n]


@functools.lru_cache(maxsize=64)
def _series(
    numerator: tuple[float, ...], denominator: tuple[float, ...], n: int, exact: bool = True
) -> np.ndarray:
    from scipy import signal

    impulse = np.zeros(n)
    impulse[0] = 1
    if _cancels(numerator, denominator) and (exact or n * len(denominator) <= _MOST_EXACT):
        found = _in_many_digits(numerator, denominator, n)
    else:
        found = signal.lfilter(numerator, denominator, impulse)
    if not np.all(np.isfinite(found)):
        raise ValueError(_overflow(numerator, denominator, n))
    found.setflags(write=False)
    return found


def _cancels(numerator: tuple[float, ...], denominator: tuple[float, ...]) -> bool:
    """Returns whether digits may be lost: a recursion has terms of both signs."""
    return len(denominator) > 1 and (min(numerator) < 0 or max(denominator[1:]) > 0)


def _in_many_digits(
    numerator: tuple[float, ...], denominator: tuple[float, ...], n: int
) -> np.ndarray:
    """Returns the series of the given coefficients, rounded only at the end.

    Where several roots are close to 1, as with buffers, the recursion in float64 loses all digits
    within thousands of steps, and a sensitivity that is made of it may be too small.
    """
    if n * len(denominator) > _MOST_EXACT:
        raise ValueError(
            f"The column of this factorization cannot be computed safely for {n} steps: that would "
            f"take {n * len(denominator)} exact operations, and at most {_MOST_EXACT} are made. "
            "Use fewer steps or fewer coefficients."
        )
    first = [decimal.Decimal(value) for value in numerator]
    terms = [(k, decimal.Decimal(-v)) for k, v in enumerate(denominator) if k and v]
    found: list[decimal.Decimal] = []
    with decimal.localcontext(decimal.Context(prec=_DIGITS, traps=[])):
        for i in range(n):
            value = first[i] if i < len(first) else decimal.Decimal(0)
            for k, coefficient in terms:
                if k > i:
                    break
                value += coefficient * found[i - k]
            found.append(value)
        return np.array([float(value) for value in found])


def _overflow(numerator: tuple[float, ...], denominator: tuple[float, ...], n: int) -> str:
    return (
        f"This factorization overflows within {n} steps: numerator={numerator!r:.200}, "
        f"denominator={denominator!r:.200}. The roots must lie outside the unit circle."
    )


def independent() -> ToeplitzFactorization:
    """Returns C = I: independent noise in every step."""
    return ToeplitzFactorization()


def _binomial_series(bands: int, sign: int) -> tuple[float, ...]:
    """Returns the first coefficients of (1 - x)^(-1/2), for sign 1, or of (1 - x)^(1/2)."""
    coefficients = [1.0]
    for k in range(1, check_steps("bands", bands)):
        coefficients.append(coefficients[-1] * (k - (0.5 if sign > 0 else 1.5)) / k)
    return tuple(coefficients)


def banded_square_root(bands: int) -> ToeplitzFactorization:
    """Returns the first bands of the square root of A (Kalinin and Lampert 2024, arXiv:2405.13763).

    Example:
        >>> banded_square_root(3)
        ToeplitzFactorization(numerator=(1.0, 0.5, 0.375), denominator=(1.0,))
    """
    return ToeplitzFactorization(numerator=_binomial_series(bands, 1))


def banded_inverse_square_root(bands: int) -> ToeplitzFactorization:
    """Returns the C whose inverse is the first bands of A^(-1/2) (BISR, Kalinin et al. 2025,
    arXiv:2505.12128).

    Example:
        >>> banded_inverse_square_root(3)
        ToeplitzFactorization(numerator=(1.0,), denominator=(1.0, -0.5, -0.125))
    """
    return ToeplitzFactorization(denominator=_binomial_series(bands, -1))


def one_step_back(correlation: float) -> ToeplitzFactorization:
    """Returns noise z_t - lambda z_{t-1}: every step takes back a part of the noise before it.

    Args:
        correlation: lambda, in [0, 1).

    Raises:
        ValueError: it is outside.
    """
    if not 0 <= correlation < 1:
        raise ValueError(f"correlation must be in [0, 1). Received: correlation={correlation!r}.")
    return ToeplitzFactorization(denominator=(1.0, -float(correlation)) if correlation else (1.0,))
