"""Averages: a sum query over a fixed, public denominator."""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.events import Event
from tfdp.events.arguments import real_number, says_what_to_write
from tfdp.noise import RandomSource
from tfdp.query.dp_query import DPQuery
from tfdp.query.exact import ExactGaussianSumQuery
from tfdp.query.gaussian import GaussianSumQuery
from tfdp.query.sparse_rows import map_values
from tfdp.query.structure import Structure
from tfdp.query.wrapping import WrappingQuery, check_is_numeric


class NormalizedGlobalState(NamedTuple):
    """The numerator's state, and the denominator."""

    numerator_state: Structure
    denominator: float


@dataclasses.dataclass(frozen=True)
class NormalizedQuery(WrappingQuery):
    """Divides the result of `numerator_query` by a constant.

    Guarantees:
        The denominator is fixed and public, so dividing is post-processing: the event is the
        numerator's. The size of the sample is never used; an empty sample gives noise over the
        denominator.

    Args:
        numerator_query: Any query whose results are numbers, which a histogram's or a selection's
            are not.
        denominator: Expected number (or total weight) of records in a sample; from 1e-12 to 1e18.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: the denominator is out of range.
    """

    numerator_query: DPQuery
    denominator: float

    def __post_init__(self) -> None:
        check_is_numeric("numerator_query", self.numerator_query)
        real_number("denominator", self.denominator, minimum=0, inclusive=False)
        # float32 can divide by the denominator, and by numbers close to it.
        denominator = real_number(
            "denominator", self.denominator, minimum=1e-12, inclusive=True, maximum=1e18
        )
        object.__setattr__(self, "denominator", denominator)

    @property
    def _inner(self):
        return self.numerator_query

    def _with_inner(self, inner):
        return NormalizedQuery(inner, self.denominator)

    def _inner_state(self, global_state):
        return global_state.numerator_state

    def initial_global_state(self) -> Structure:
        return NormalizedGlobalState(self.numerator_query.initial_global_state(), self.denominator)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        noised, numerator_state, event = self.numerator_query.get_noised_result(
            sample_state, global_state.numerator_state
        )

        denominators: dict[tf.DType, tf.Tensor] = {}

        def divided(total):
            # Sums of integers become real numbers.
            total = tf.cast(total, tf.float32) if total.dtype.is_integer else total
            if total.dtype not in denominators:
                denominators[total.dtype] = tf.cast(global_state.denominator, total.dtype)
            return total / denominators[total.dtype]

        result = tf.nest.map_structure(lambda leaf: map_values(divided, leaf), noised)
        return result, NormalizedGlobalState(numerator_state, global_state.denominator), event


@says_what_to_write(
    "Write GaussianAverageQuery(l2_norm_clip, noise_multiplier=..., denominator=...), or "
    "stddev=... for the absolute noise on the sum, which TensorFlow Privacy calls sum_stddev."
)
class GaussianAverageQuery(NormalizedQuery):
    """Average of clipped records with Gaussian noise: `GaussianSumQuery` over a fixed denominator.

        result = (sum_i r_i * min(1, l2_norm_clip / |r_i|) + N(0, stddev^2 I)) / denominator

    All arguments but the first are given by name. In TensorFlow Privacy's class of this name the
    second one was the absolute noise. What is `GaussianAverageQuery(c, s, d)` there is
    `GaussianAverageQuery(c, stddev=s, denominator=d)` here.

    Args:
        l2_norm_clip: Bound on the l2 norm of a record; positive.
        *positional: None may be given.
        noise_multiplier: stddev / l2_norm_clip.
        denominator: The expected number of records in a sample: fixed, public, positive.
        stddev: Standard deviation of the noise on the sum, in place of `noise_multiplier`.
        random_source: Where the noise comes from; by default keyed by the operating system.
        precision: "float" (default) or "exact", as in `GaussianSumQuery`.

    Raises:
        TypeError: an argument is of the wrong type or has no name, or not exactly one of
            `noise_multiplier` and `stddev` is given, or the denominator is missing.
        ValueError: a number is out of range.

    Example:
        >>> query = GaussianAverageQuery(l2_norm_clip=2.0, noise_multiplier=1.5, denominator=256)
        >>> query.derive_event(query.initial_global_state())
        GaussianSumEvent(l2_norm_bound=2.0, noise_stddev=3.0, seeded=False)
    """

    def __init__(
        self,
        l2_norm_clip: float,
        *positional: Any,
        noise_multiplier: float | None = None,
        denominator: float | None = None,
        stddev: float | None = None,
        random_source: RandomSource | None = None,
        precision: str = "float",
    ):
        check_named("GaussianAverageQuery", positional)
        if denominator is None:
            raise TypeError(
                "GaussianAverageQuery needs a denominator: the expected number of records in a "
                "sample, which is public. The size of the sample itself is private."
            )
        stddev = resolve_stddev(l2_norm_clip, noise_multiplier, stddev)
        numerator = GaussianSumQuery(l2_norm_clip, stddev, random_source, precision)
        super().__init__(numerator, denominator)

    def get_config(self) -> dict[str, Any]:
        is_exact = isinstance(self.numerator_query, ExactGaussianSumQuery)
        return {
            **self.numerator_query.get_config(),
            "precision": "exact" if is_exact else "float",
            "denominator": self.denominator,
        }

    @classmethod
    def _config_names(cls):
        return ["l2_norm_clip", "stddev", "precision", "denominator"]


def check_named(query: str, positional: tuple[Any, ...]) -> None:
    """Refuses arguments behind the clip norm that were given without their names.

    Raises:
        TypeError: says what to write for either meaning of the second one.
    """
    if positional:
        raise TypeError(
            f"{query} takes its arguments behind l2_norm_clip by name. The second one is noise "
            "divided by l2_norm_clip, noise_multiplier=...; in TensorFlow Privacy it was "
            "the absolute noise on the sum, which is stddev=... here. Write for instance "
            f"{query}(l2_norm_clip=1.0, noise_multiplier=1.1, denominator=256). Received after "
            f"l2_norm_clip: {', '.join(map(repr, positional))}."
        )


def resolve_stddev(
    sensitivity: float, noise_multiplier: float | None, stddev: float | None
) -> float:
    """Returns the absolute noise from whichever of the two was given."""
    if (noise_multiplier is None) == (stddev is None):
        raise TypeError(
            "Give exactly one of noise_multiplier and stddev. Received: "
            f"noise_multiplier={noise_multiplier!r}, stddev={stddev!r}."
        )
    if stddev is not None:
        return stddev
    sensitivity = real_number("l2_norm_clip", sensitivity, minimum=0, inclusive=False)
    return (
        real_number("noise_multiplier", noise_multiplier, minimum=0, inclusive=True) * sensitivity
    )
