"""Updates in a secure sum: what a client puts into it, and what a server makes of the sum."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.events.arguments import check_type
from tfdp.query.discretized import DiscretizedGlobalState, DiscretizedSampleState
from tfdp.query.distributed import SharesSampleState
from tfdp.query.dp_query import DPQuery
from tfdp.query.structure import Structure


def encoded(query: DPQuery, step: int, update: Sequence[np.ndarray]) -> np.ndarray:
    """Returns what a client puts into a secure sum: its update, clipped, in integers with its share
    of the noise.

        integers = round(scale * H D r * min(1, l2_norm_clip / |r|)) + share, modulo 2^modulus_bits

    Guarantees:
        The update moves the integers by at most the bound of the query's event before the share is
        added. One that is not finite counts as zero, with a share all the same.

    Args:
        query: The server's: a `DiscretizedSumQuery` whose noise comes in shares
            (`tfdp.query.secure_sum_query`), or one that wraps it, such as an average.
        step: `Round.step`; the server says it.
        update: What training added to the weights, and to the controls: as for `Round.receive`.

    Returns:
        int64 [d], from -2^(modulus_bits - 1) to 2^(modulus_bits - 1) - 1. d is the number of
        coordinates, filled up to a power of two. Only their sum modulo 2^modulus_bits may be seen
        by others: alone, this has one share of noise.

    Raises:
        TypeError: the query has no such noise, or `step` is no int.

    References:
        Kairouz, Liu, Steinke 2021, arXiv:2102.06387, algorithm 1.
    """
    check_is_secure(query)
    check_type("step", step, int)
    params = query.derive_sample_params(query.initial_global_state())
    params = params._replace(step=tf.constant(step, tf.int64))
    # The server's optimizer subtracts what it is given.
    state = query.preprocess_record(params, [-tf.convert_to_tensor(part) for part in update])
    return state.integers.sum.numpy()


def is_secure(query: DPQuery) -> bool:
    """Whether the noise of a query comes with its records, and these are sums of integers."""
    return query.min_contributors > 0 and isinstance(
        query.derive_sample_params(query.initial_global_state()), DiscretizedGlobalState
    )


def check_is_secure(query: DPQuery) -> None:
    """Raises a TypeError where the records of a query cannot go through a secure sum."""
    if not is_secure(query):
        raise TypeError(
            "A secure sum needs a query of integers whose records bring the noise: "
            "tfdp.query.secure_sum_query(...), or a tfdp.NormalizedQuery of it. Received: "
            f"{query!r}."
        )


def sample_state_of(
    query: DPQuery, template: Structure, total: Any, contributors: int
) -> DiscretizedSampleState:
    """Returns the state of the sample whose encoded records add up to this.

    Args:
        query: As in `encoded`.
        template: Of the records.
        total: int64 [d]: the sum, modulo 2^modulus_bits.
        contributors: Of how many records.

    Raises:
        TypeError: the query has no such noise.
        ValueError: the sum has another shape or dtype.
    """
    check_is_secure(query)
    empty = query.initial_sample_state(template)
    expected = tuple(empty.integers.sum.shape)
    if not isinstance(total, np.ndarray) or (total.shape, total.dtype) != (expected, np.int64):
        received = (total.dtype, total.shape) if isinstance(total, np.ndarray) else type(total)
        raise ValueError(f"A secure sum of these records is int64{expected}. Received: {received}.")
    count = tf.constant(contributors, tf.int64)
    return empty._replace(integers=SharesSampleState(tf.constant(total), count))
