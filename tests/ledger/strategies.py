"""Hypothesis strategies for events."""

from hypothesis import strategies as st

from tfdp.events import (
    BallsInBinsSampling,
    ComposedEvent,
    CorrelatedGaussianSumEvent,
    CyclicPoissonSampling,
    DiscreteGaussianSumEvent,
    EpsilonDeltaEvent,
    ExponentialMechanismEvent,
    FixedOrderSampling,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSharesSumEvent,
    GaussianSumEvent,
    IntegerGaussianSumEvent,
    LaplaceSumEvent,
    MinSeparationSampling,
    NeighboringRelation,
    NonPrivateEvent,
    ParallelComposition,
    PoissonSampling,
    PoissonSelectedRunEvent,
    PureEpsilonEvent,
    RandomAllocationSampling,
    RandomizedResponseEvent,
    RunEvent,
    SampledEvent,
    SelectedRunEvent,
    ShuffledSampling,
    SkellamSharesSumEvent,
    TreeGaussianSumEvent,
    TruncatedPoissonSampling,
    UnknownSampling,
)

_sizes = st.integers(1, 2**62)
_optional_sizes = st.none() | _sizes
_positive = st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)

samplings = st.one_of(
    st.builds(PoissonSampling, st.floats(0, 1, exclude_min=True), _optional_sizes),
    st.tuples(_sizes, _sizes).map(lambda sizes: FixedSizeSampling(min(sizes), max(sizes))),
    st.builds(ShuffledSampling, _sizes, _sizes, st.integers(0, 2**62)),
    st.tuples(_sizes, _sizes, _optional_sizes, st.integers(0, 2**62)).map(
        lambda n: RandomAllocationSampling(max(n[:2]), min(n[:2]), *n[2:])
    ),
    st.builds(TruncatedPoissonSampling, st.floats(0, 1, exclude_min=True), _sizes, _sizes),
    st.tuples(_sizes, _sizes).map(lambda sizes: FixedOrderSampling(*sizes)),
    st.integers(1, 2**62).map(lambda n: CyclicPoissonSampling(0.25, n, n - 1, None)),
    st.tuples(_sizes, st.integers(0, 2**62), _optional_sizes).map(
        lambda n: BallsInBinsSampling(n[0], n[0] - 1, *n[1:])
    ),
    st.builds(
        MinSeparationSampling,
        st.floats(0, 1, exclude_min=True),
        _sizes,
        _sizes,
        _optional_sizes,
        st.integers(0, 2**62),
    ),
    st.builds(FullBatchSampling, _optional_sizes),
    st.just(UnknownSampling()),
)
gaussian_sums = st.builds(GaussianSumEvent, _positive, _positive | st.just(0.0), st.booleans())
releases = st.one_of(
    gaussian_sums,
    st.builds(
        DiscreteGaussianSumEvent,
        _positive,
        _positive | st.just(0.0),
        _positive,
        _sizes,
        st.booleans(),
    ),
    st.builds(GaussianSharesSumEvent, _positive, _positive | st.just(0.0), _sizes, _sizes),
    st.builds(
        SkellamSharesSumEvent, _positive, _positive, _positive | st.just(0.0), _sizes, st.booleans()
    ),
    st.builds(IntegerGaussianSumEvent, _positive, _positive | st.just(0.0), st.booleans()),
    st.builds(LaplaceSumEvent, _positive, _positive | st.just(0.0), st.booleans()),
    st.builds(ExponentialMechanismEvent, _positive),
    st.builds(PureEpsilonEvent, _positive),
    st.builds(
        EpsilonDeltaEvent,
        _positive | st.just(0.0),
        st.floats(0, 1, exclude_min=True, exclude_max=True),
    ),
    st.builds(RandomizedResponseEvent, st.floats(0, 1), st.integers(2, 2**62)),
    st.just(NonPrivateEvent()),
)
_coefficients = st.lists(st.floats(0.125, 1), max_size=3).map(lambda rest: (1.0, *rest))
correlated_sums = st.builds(
    CorrelatedGaussianSumEvent,
    _positive,
    _positive | st.just(0.0),
    _coefficients,
    _coefficients,
    st.integers(8, 2**20),
    _sizes,
    st.integers(0, 7),
    st.integers(0, 2**62),
    st.booleans(),
)
_tree_sums = st.builds(
    TreeGaussianSumEvent,
    _positive,
    _positive | st.just(0.0),
    st.integers(8, 2**20),
    _sizes,
    st.integers(0, 7),
    st.integers(0, 2**62),
    st.booleans(),
    st.booleans(),
)
sums = st.recursive(
    releases,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: ComposedEvent(tuple(parts)))
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: ParallelComposition(tuple(parts))
        )
    ),
    max_leaves=5,
)
steps = sums | st.builds(
    SampledEvent,
    samplings,
    sums,
    st.sampled_from(NeighboringRelation),
    st.sampled_from(["example", "microbatch", "user"]),
)
runs = st.lists(st.tuples(steps, _sizes), min_size=1, max_size=3).map(
    lambda pairs: RunEvent(*map(tuple, zip(*pairs, strict=True)))
)
several_runs = st.lists(runs, min_size=1, max_size=3).map(tuple)
_between_zero_and_one = st.floats(0, 1, exclude_min=True, exclude_max=True)
ledger_events = st.one_of(
    steps,
    correlated_sums,
    _tree_sums,
    runs,
    st.builds(
        SelectedRunEvent,
        several_runs,
        st.floats(-1, 1000, exclude_min=True),
        _between_zero_and_one,
    ),
    st.builds(PoissonSelectedRunEvent, several_runs, st.floats(1, 1e9)),
)
