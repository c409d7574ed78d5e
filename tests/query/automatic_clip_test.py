"""Records that are normalised: the factor by hand, its bound, and what it refuses."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tfdp.events import GaussianSumEvent
from tfdp.query import AutomaticClippingSumQuery


def _norms(query, records):
    return [np.linalg.norm(np.float64(query.preprocess_record((), r))) for r in records]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_norm_is_that_of_the_paper(dtype):
    query = AutomaticClippingSumQuery(2.0, 1.0, stability=0.01)
    sizes = [1e-12, 1e-3, 0.01, 1.0, 1e6]
    records = [tf.constant([0.6 * size, 0.8 * size], dtype) for size in sizes]
    wanted = [2.0 * size / (size + 0.01) for size in sizes]
    np.testing.assert_allclose(_norms(query, records), wanted, rtol=3e-6)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_no_norm_exceeds_the_bound_of_the_event(dtype):
    rng = np.random.default_rng(0)
    for clip in (1e-12, 0.1, 7.0, 1e18):
        # The smallest stability leaves all of the bound to rounding.
        query = AutomaticClippingSumQuery(clip, 0.0, stability=1e-12)
        scales = 10.0 ** rng.uniform(-15, 18, 200)
        records = [tf.constant(rng.normal(size=30) * scale, dtype) for scale in scales]
        assert max(_norms(query, records)) <= clip


def test_event_and_bounds():
    query = AutomaticClippingSumQuery(2.0, 3.0)
    assert query.derive_event(()) == GaussianSumEvent(2.0, 3.0)
    for bad in (0.0, -1.0, math.nan, math.inf, 1e19, "1", None):
        for name in ("l2_norm_clip", "stability"):
            with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
                AutomaticClippingSumQuery(**{"l2_norm_clip": 1.0, "stddev": 1.0, name: bad})
    with pytest.raises(ValueError, match="stddev must be"):
        AutomaticClippingSumQuery(1.0, -1.0)
