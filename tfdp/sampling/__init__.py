"""Which records a step sees, and what the ledger says about it."""

from tfdp.sampling.arrays import PaddedBatch as PaddedBatch
from tfdp.sampling.arrays import batches as batches
from tfdp.sampling.policy import FixedSize as FixedSize
from tfdp.sampling.policy import FullBatch as FullBatch
from tfdp.sampling.policy import Poisson as Poisson
from tfdp.sampling.policy import SamplingPolicy as SamplingPolicy
from tfdp.sampling.policy import Shuffled as Shuffled
from tfdp.sampling.policy import Unknown as Unknown
