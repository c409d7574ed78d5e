"""What was done to the data, as frozen values that an auditor can check.

A query emits an event, the ledger stores it, an accountant prices it. This package imports nothing
else of tfdp, and no TensorFlow.
"""

from tfdp.events.base import Event as Event
from tfdp.events.base import NeighboringRelation as NeighboringRelation
from tfdp.events.base import Sampling as Sampling
from tfdp.events.base import UnsupportedEventError as UnsupportedEventError
from tfdp.events.registry import register as register
from tfdp.events.releases import DiscreteGaussianSumEvent as DiscreteGaussianSumEvent
from tfdp.events.releases import ExponentialMechanismEvent as ExponentialMechanismEvent
from tfdp.events.releases import GaussianSumEvent as GaussianSumEvent
from tfdp.events.releases import LaplaceSumEvent as LaplaceSumEvent
from tfdp.events.releases import NonPrivateEvent as NonPrivateEvent
from tfdp.events.releases import PureEpsilonEvent as PureEpsilonEvent
from tfdp.events.releases import RandomizedResponseEvent as RandomizedResponseEvent
from tfdp.events.sampling import FixedSizeSampling as FixedSizeSampling
from tfdp.events.sampling import FullBatchSampling as FullBatchSampling
from tfdp.events.sampling import PoissonSampling as PoissonSampling
from tfdp.events.sampling import ShuffledSampling as ShuffledSampling
from tfdp.events.sampling import TruncatedPoissonSampling as TruncatedPoissonSampling
from tfdp.events.sampling import UnknownSampling as UnknownSampling
from tfdp.events.step import ComposedEvent as ComposedEvent
from tfdp.events.step import SampledEvent as SampledEvent
from tfdp.events.step import scale_sensitivity as scale_sensitivity

__all__ = [
    "ComposedEvent",
    "DiscreteGaussianSumEvent",
    "Event",
    "ExponentialMechanismEvent",
    "FixedSizeSampling",
    "FullBatchSampling",
    "GaussianSumEvent",
    "LaplaceSumEvent",
    "NeighboringRelation",
    "NonPrivateEvent",
    "PoissonSampling",
    "PureEpsilonEvent",
    "RandomizedResponseEvent",
    "SampledEvent",
    "Sampling",
    "ShuffledSampling",
    "TruncatedPoissonSampling",
    "UnknownSampling",
    "UnsupportedEventError",
    "register",
    "scale_sensitivity",
]
