"""Mechanisms: which vectors are clipped how, and which noise is added."""

from tfdp.query.above_threshold import AboveThresholdQuery, AboveThresholdResult
from tfdp.query.adaptive_clip import (
    QuantileAdaptiveClipSumQuery,
    adaptive_clip_noise_multiplier,
)
from tfdp.query.allocation import (
    clips_from_public_gradients,
    dimension_adjusted_noise,
    proportional_noise,
)
from tfdp.query.arranged import ArrangedQuery
from tfdp.query.automatic_clip import AutomaticClippingSumQuery
from tfdp.query.correlated import CorrelatedGaussianSumQuery
from tfdp.query.discretized import DiscretizedSumQuery
from tfdp.query.distributed import (
    DistributedDiscreteGaussianSumQuery,
    DistributedSkellamAverageQuery,
    DistributedSkellamSumQuery,
)
from tfdp.query.dp_query import DPQuery, SumAggregationDPQuery
from tfdp.query.encoding import rounded_norm_bound
from tfdp.query.exact import ExactGaussianSumQuery
from tfdp.query.gaussian import GaussianSumQuery
from tfdp.query.integer_sums import DiscreteGaussianSumQuery
from tfdp.query.joint_clipping import JointClippingQuery
from tfdp.query.laplace import LaplaceSumQuery
from tfdp.query.layers import by_layer, per_layer
from tfdp.query.nested import NestedQuery, NestedSumQuery
from tfdp.query.no_privacy import NoPrivacyAverageQuery, NoPrivacySumQuery
from tfdp.query.normalized import GaussianAverageQuery, NormalizedQuery
from tfdp.query.partitions import (
    GaussianHistogramQuery,
    HistogramQuery,
    HistogramResult,
    PartitionSelectionQuery,
)
from tfdp.query.quantile_estimator import (
    NoPrivacyQuantileEstimatorQuery,
    QuantileEstimatorQuery,
)
from tfdp.query.restart import (
    PeriodicRoundRestartIndicator,
    PeriodicTimeRestartIndicator,
    RestartIndicator,
    RestartQuery,
)
from tfdp.query.scaled import ScaleThenPrivatizeQuery
from tfdp.query.scheduled import ScheduledGaussianSumQuery
from tfdp.query.secure_sum import secure_sum_query
from tfdp.query.selection import (
    ExponentialMechanismQuery,
    QuantileSelectionQuery,
    ReportNoisyMaxQuery,
)
from tfdp.query.sparse_embedding import SparseEmbeddingSumQuery
from tfdp.query.tree_range import TreeRangeSumQuery
from tfdp.query.tree_sums import TreeCumulativeSumQuery, TreeResidualSumQuery
from tfdp.query.weighted import WeightedAverageQuery, WeightedRecord, WeightedSumQuery

__all__ = [
    "AboveThresholdQuery",
    "AboveThresholdResult",
    "ArrangedQuery",
    "AutomaticClippingSumQuery",
    "CorrelatedGaussianSumQuery",
    "DPQuery",
    "DiscreteGaussianSumQuery",
    "DiscretizedSumQuery",
    "DistributedDiscreteGaussianSumQuery",
    "DistributedSkellamAverageQuery",
    "DistributedSkellamSumQuery",
    "ExactGaussianSumQuery",
    "ExponentialMechanismQuery",
    "GaussianAverageQuery",
    "GaussianHistogramQuery",
    "GaussianSumQuery",
    "HistogramQuery",
    "HistogramResult",
    "JointClippingQuery",
    "LaplaceSumQuery",
    "NestedQuery",
    "NestedSumQuery",
    "NoPrivacyAverageQuery",
    "NoPrivacyQuantileEstimatorQuery",
    "NoPrivacySumQuery",
    "NormalizedQuery",
    "PartitionSelectionQuery",
    "PeriodicRoundRestartIndicator",
    "PeriodicTimeRestartIndicator",
    "QuantileAdaptiveClipSumQuery",
    "QuantileEstimatorQuery",
    "QuantileSelectionQuery",
    "ReportNoisyMaxQuery",
    "RestartIndicator",
    "RestartQuery",
    "ScaleThenPrivatizeQuery",
    "ScheduledGaussianSumQuery",
    "SparseEmbeddingSumQuery",
    "SumAggregationDPQuery",
    "TreeCumulativeSumQuery",
    "TreeRangeSumQuery",
    "TreeResidualSumQuery",
    "WeightedAverageQuery",
    "WeightedRecord",
    "WeightedSumQuery",
    "adaptive_clip_noise_multiplier",
    "by_layer",
    "clips_from_public_gradients",
    "dimension_adjusted_noise",
    "per_layer",
    "proportional_noise",
    "rounded_norm_bound",
    "secure_sum_query",
]
