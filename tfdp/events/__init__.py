"""What was done to the data, as frozen values that an auditor can check.

A query emits an event, the ledger stores it, an accountant prices it. This package imports nothing
else of tfdp, and no TensorFlow.
"""

from tfdp.events.base import Event, NeighboringRelation, Sampling, UnsupportedEventError
from tfdp.events.correlated import CorrelatedGaussianSumEvent, TreeGaussianSumEvent
from tfdp.events.integer_sums import (
    GaussianSharesSumEvent,
    IntegerGaussianSumEvent,
    SkellamSharesSumEvent,
)
from tfdp.events.registry import register
from tfdp.events.releases import (
    DiscreteGaussianSumEvent,
    EpsilonDeltaEvent,
    ExponentialMechanismEvent,
    GaussianSumEvent,
    LaplaceSumEvent,
    NonPrivateEvent,
    PureEpsilonEvent,
    RandomizedResponseEvent,
)
from tfdp.events.runs import PoissonSelectedRunEvent, RunEvent, SelectedRunEvent
from tfdp.events.sampling import (
    FixedSizeSampling,
    FullBatchSampling,
    MinSeparationSampling,
    PoissonSampling,
    RandomAllocationSampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
    UnknownSampling,
)
from tfdp.events.step import (
    ComposedEvent,
    ParallelComposition,
    SampledEvent,
    scale_sensitivity,
)
from tfdp.events.turns import BallsInBinsSampling, CyclicPoissonSampling, FixedOrderSampling

__all__ = [
    "BallsInBinsSampling",
    "ComposedEvent",
    "CorrelatedGaussianSumEvent",
    "CyclicPoissonSampling",
    "DiscreteGaussianSumEvent",
    "EpsilonDeltaEvent",
    "Event",
    "ExponentialMechanismEvent",
    "FixedOrderSampling",
    "FixedSizeSampling",
    "FullBatchSampling",
    "GaussianSharesSumEvent",
    "GaussianSumEvent",
    "IntegerGaussianSumEvent",
    "LaplaceSumEvent",
    "MinSeparationSampling",
    "NeighboringRelation",
    "NonPrivateEvent",
    "ParallelComposition",
    "PoissonSampling",
    "PoissonSelectedRunEvent",
    "PureEpsilonEvent",
    "RandomizedResponseEvent",
    "RunEvent",
    "SampledEvent",
    "Sampling",
    "SelectedRunEvent",
    "RandomAllocationSampling",
    "ShuffledSampling",
    "SkellamSharesSumEvent",
    "TreeGaussianSumEvent",
    "TruncatedPoissonSampling",
    "UnknownSampling",
    "UnsupportedEventError",
    "register",
    "scale_sensitivity",
]
