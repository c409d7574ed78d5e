"""What queries with Gaussian noise have in common: their state, and checks of their arguments."""

from typing import Any, NamedTuple

from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource, system_random_source

# Hardly any draw of it is below 1e-38, where float32 ends.
_LEAST_NOISE = 1e-30


class GaussianGlobalState(NamedTuple):
    """Clip norm and absolute noise of the next step: Python floats, or scalar tensors where they
    adapt.
    """

    l2_norm_clip: float
    stddev: float


def clip_norm(name: str, value: float) -> float:
    """Returns a bound on a norm as a float, if float32 can hold records to it.

    Squares of coordinates below 1e-19 underflow, and norms above 1.8e19 overflow, in float32.

    Raises:
        TypeError: it is not a number.
        ValueError: it is not between 1e-12 and 1e18.
    """
    real_number(name, value, minimum=0, inclusive=False)
    return real_number(name, value, minimum=1e-12, inclusive=True, maximum=1e18)


def noise_stddev(name: str, value: float) -> float:
    """Returns the standard deviation of noise as a float, if float32 can hold the noise.

    Raises:
        TypeError: it is not a number.
        ValueError: it is neither 0 nor between 1e-30 and 1e30.
    """
    stddev = real_number(name, value, minimum=0, inclusive=True, maximum=1e30)
    if 0 < stddev < _LEAST_NOISE:
        raise ValueError(
            f"{name} must be zero, or at least {_LEAST_NOISE}: processors round smaller float32 "
            f"noise to none, and the event would say there is some. Received: {name}={value!r}."
        )
    return stddev


def check_random_source(random_source: RandomSource | None) -> None:
    """Raises a TypeError that says what was received, if it is something else."""
    if not (random_source is None or isinstance(random_source, RandomSource)):
        raise TypeError(
            "random_source must be a tfdp.noise.RandomSource or None. Received: "
            f"random_source={random_source!r}."
        )


def source_of(query: Any) -> RandomSource:
    """Returns where the noise of a query comes from."""
    return query.random_source or system_random_source()
