"""Sums of vectors of integers, with integer noise."""

import dataclasses
import math
from fractions import Fraction

import tensorflow as tf

from tfdp.events import Event, IntegerGaussianSumEvent
from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource, staged
from tfdp.query.arguments import check_random_source, source_of
from tfdp.query.dp_query import SumAggregationDPQuery
from tfdp.query.grid import is_longer
from tfdp.query.leaves import numeric_zeros_like, whole
from tfdp.query.structure import Structure, tensor_of

# Norms and coordinates up to here have squares within 62 bits.
LARGEST_NORM = 2**31 - 1
# Less noise is none; more does not fit into 64 bits.
_LEAST_NOISE, _MOST_NOISE = 2.0**-10, 2.0**50


def norm_bound(name: str, value: float) -> float:
    """Returns a bound on the norm of integers as a float.

    Raises:
        TypeError: it is not a number.
        ValueError: it is not between 0 and 2^31 - 1.
    """
    return real_number(name, value, minimum=0, inclusive=True, maximum=LARGEST_NORM)


def integer_stddev(name: str, value: float, most: float = _MOST_NOISE) -> float:
    """Returns the size of integer noise as a float.

    Raises:
        TypeError: it is not a number.
        ValueError: it is neither zero nor between 2^-10 and `most`.
    """
    stddev = real_number(name, value, minimum=0, inclusive=True, maximum=most)
    if 0 < stddev < _LEAST_NOISE:
        raise ValueError(
            f"{name} must be zero or at least 2^-10: integers hardly have less noise. Received: "
            f"{name}={value!r}."
        )
    return stddev


def check_integers(leaf: tf.Tensor) -> None:
    """Raises a TypeError that says what was received, if a leaf holds no integers."""
    if leaf.dtype not in (tf.int32, tf.int64):
        raise TypeError(
            "Records must be int32 or int64: integer noise protects integers only. Received a leaf "
            f"of dtype {leaf.dtype.name}, of shape {leaf.shape}. tfdp.query.DiscretizedSumQuery "
            "rounds records of real numbers."
        )


def within_norm(record: Structure, l2_norm_bound: float) -> tf.Tensor:
    """Returns whether the l2 norm of a record of integers is within the bound, exactly.

    Raises:
        TypeError: a leaf does not hold integers.
    """
    leaves = [tf.cast(leaf, tf.int64) for leaf in tf.nest.flatten(record)]
    small = tf.reduce_all(
        [tf.reduce_all((leaf <= LARGEST_NORM) & (leaf >= -LARGEST_NORM)) for leaf in leaves]
    )
    leaves = [tf.where(small, leaf, tf.zeros_like(leaf)) for leaf in leaves]
    return small & ~is_longer(leaves, math.floor(Fraction(l2_norm_bound) ** 2))


def within_norms(record: Structure, l1_norm_bound: float, l2_norm_bound: float) -> tf.Tensor:
    """Returns whether the l1 and l2 norms of a record of integers are within bounds, exactly.

    Raises:
        TypeError: a leaf does not hold integers.
    """
    short = within_norm(record, l2_norm_bound)
    leaves = [tf.cast(leaf, tf.int64) for leaf in tf.nest.flatten(record)]
    # Of those that are short enough no sum overflows: it is below that of the squares.
    sums = [tf.reduce_sum(tf.where(short, tf.abs(leaf), 0)) for leaf in leaves]
    return short & (tf.add_n(sums) <= math.floor(l1_norm_bound))


def refuse_unless(holds: tf.Tensor, message: str, record: Structure) -> Structure:
    """Returns the integers, or zeros where something does not hold; outside of XLA an error.

    Raises:
        tf.errors.InvalidArgumentError: it does not hold.
    """
    # XLA drops assertions, so that what must not be seen must be nothing as well.
    with tf.control_dependencies([tf.debugging.Assert(holds, [message])]):
        return tf.nest.map_structure(
            lambda leaf: tf.where(holds, leaf, tf.zeros([], leaf.dtype)), record
        )


def integers_of(record: Structure) -> Structure:
    """Returns a record whose leaves are tensors of integers.

    Raises:
        TypeError: a leaf does not hold integers.
    """
    record = tf.nest.map_structure(tensor_of, record)
    for leaf in tf.nest.flatten(record):
        check_integers(leaf)
    return record


def integer_zeros(template: Structure) -> Structure:
    """Returns zeros of the shapes and dtypes of a record of integers.

    Raises:
        TypeError: a leaf does not hold integers.
    """
    zeros = tf.nest.map_structure(numeric_zeros_like, template)
    for leaf in tf.nest.flatten(zeros):
        check_integers(leaf)
    return zeros


@dataclasses.dataclass(frozen=True)
class DiscreteGaussianSumQuery(SumAggregationDPQuery):
    """Adds up vectors of integers, and adds discrete Gaussian noise to the sum.

        result = sum_i r_i + x,   P(x_j) proportional to exp(-x_j^2 / (2 stddev^2))

    Records are not clipped: one that is longer than `l2_norm_bound` is an error.

    Guarantees:
        Adding or removing one record moves the sum by at most `l2_norm_bound`, exactly: squares are
        added up as integers. The noise is exact. The event is an `IntegerGaussianSumEvent`, whose
        price is that of a Gaussian sum at every Renyi order, however small the noise is.

    Edge cases:
        A bound below one, within which only zeros are, is charged as one. Sums beyond the dtype of
        the records wrap around, which hurts nobody's privacy.

    Args:
        l2_norm_bound: S, of the records' norms over all leaves; at most 2^31 - 1.
        stddev: Parameter of the noise, and its standard deviation from 1 on; zero, or from 2^-10 to
            2^50. It need not be an integer.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is not a number.
        ValueError: it is out of range.

    Example:
        >>> query = DiscreteGaussianSumQuery(l2_norm_bound=5.0, stddev=0.0)
        >>> state = query.initial_sample_state(tf.zeros([2], tf.int32))
        >>> state = query.accumulate_record((), state, tf.constant([3, -4]))
        >>> print(query.get_noised_result(state, ())[0].numpy())
        [ 3 -4]

    References:
        Canonne, Kamath, Steinke 2020, arXiv:2004.00010, theorem 14.
    """

    l2_norm_bound: float
    stddev: float
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2_norm_bound", norm_bound("l2_norm_bound", self.l2_norm_bound))
        object.__setattr__(self, "stddev", integer_stddev("stddev", self.stddev))
        check_random_source(self.random_source)

    @property
    def needs_separate_records(self) -> bool:
        return True

    def initial_sample_state(self, template: Structure) -> Structure:
        return integer_zeros(template)

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        record = integers_of(record)
        return refuse_unless(*self.is_within(record), record)

    def is_within(self, record: Structure) -> tuple[tf.Tensor, str]:
        """Returns whether a record is within the bounds, and what to say where it is not."""
        message = f"The l2 norm of a record exceeds l2_norm_bound={self.l2_norm_bound}."
        return within_norm(record, self.l2_norm_bound), message

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        event = self.derive_event(global_state)
        sums = tf.nest.map_structure(whole, sample_state)
        if self.stddev == 0:
            return sums, global_state, event
        source, variance = source_of(self), Fraction(self.stddev) ** 2

        def noised(leaf):
            noise = source.discrete_gaussian(tf.shape(leaf), variance)
            return leaf + tf.cast(noise, leaf.dtype)

        return staged(tf.nest.map_structure, noised, sums), global_state, event

    def derive_event(self, global_state: Structure) -> Event:
        bound = max(1.0, self.l2_norm_bound)
        return IntegerGaussianSumEvent(bound, self.stddev, source_of(self).seeded)
