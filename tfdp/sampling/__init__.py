"""Which records a step sees, and what the ledger says about it."""

from tfdp.sampling.arrays import PaddedBatch as PaddedBatch
from tfdp.sampling.arrays import batches as batches
from tfdp.sampling.fixed_size import FixedSize as FixedSize
from tfdp.sampling.full_batch import FullBatch as FullBatch
from tfdp.sampling.poisson import Poisson as Poisson
from tfdp.sampling.policy import SamplingPolicy as SamplingPolicy
from tfdp.sampling.shuffled import Shuffled as Shuffled
from tfdp.sampling.unknown import Unknown as Unknown
