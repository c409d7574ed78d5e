"""Which records a step sees, and what the ledger says about it."""

from tfdp.sampling.arrays import PaddedBatch, batches
from tfdp.sampling.balls_in_bins import BallsInBins
from tfdp.sampling.cyclic_poisson import CyclicPoisson
from tfdp.sampling.files import TFRecords, memory_map
from tfdp.sampling.fixed_order import FixedOrder
from tfdp.sampling.fixed_size import FixedSize
from tfdp.sampling.full_batch import FullBatch
from tfdp.sampling.min_separation import MinSeparationPoisson
from tfdp.sampling.owners import bound_contributions
from tfdp.sampling.poisson import Poisson
from tfdp.sampling.policy import SamplingPolicy
from tfdp.sampling.random_allocation import RandomAllocation
from tfdp.sampling.shuffled import Shuffled
from tfdp.sampling.source import Source, SourceError
from tfdp.sampling.truncated_poisson import TruncatedPoisson
from tfdp.sampling.unknown import Unknown
from tfdp.sampling.users import Users

__all__ = [
    "BallsInBins",
    "CyclicPoisson",
    "FixedOrder",
    "FixedSize",
    "FullBatch",
    "MinSeparationPoisson",
    "PaddedBatch",
    "Poisson",
    "RandomAllocation",
    "SamplingPolicy",
    "Shuffled",
    "Source",
    "SourceError",
    "TFRecords",
    "TruncatedPoisson",
    "Unknown",
    "Users",
    "batches",
    "bound_contributions",
    "memory_map",
]
