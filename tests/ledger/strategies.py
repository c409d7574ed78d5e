"""Hypothesis strategies for events."""

from hypothesis import strategies as st

from tfdp.ledger import (
    ComposedEvent,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    SampledEvent,
    ShuffledSampling,
    UnknownSampling,
)

_sizes = st.integers(1, 2**62)
_optional_sizes = st.none() | _sizes
_positive = st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)

samplings = st.one_of(
    st.builds(PoissonSampling, st.floats(0, 1, exclude_min=True), _optional_sizes),
    st.tuples(_sizes, _sizes).map(lambda sizes: FixedSizeSampling(min(sizes), max(sizes))),
    st.builds(ShuffledSampling, _sizes, _sizes, st.integers(0, 2**62)),
    st.builds(FullBatchSampling, _optional_sizes),
    st.just(UnknownSampling()),
)
gaussian_sums = st.builds(GaussianSumEvent, _positive, _positive | st.just(0.0), st.booleans())
sums = st.recursive(
    gaussian_sums | st.just(NonPrivateEvent()),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: ComposedEvent(tuple(parts))),
    max_leaves=5,
)
ledger_events = sums | st.builds(
    SampledEvent,
    samplings,
    sums,
    st.sampled_from(NeighboringRelation),
    st.sampled_from(["example", "microbatch", "user"]),
)
