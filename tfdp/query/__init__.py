"""Mechanisms: which vectors are clipped how, and which noise is added."""

from tfdp.query.allocation import clips_from_public_gradients as clips_from_public_gradients
from tfdp.query.allocation import dimension_adjusted_noise as dimension_adjusted_noise
from tfdp.query.allocation import proportional_noise as proportional_noise
from tfdp.query.arranged import ArrangedQuery as ArrangedQuery
from tfdp.query.dp_query import DPQuery as DPQuery
from tfdp.query.dp_query import SumAggregationDPQuery as SumAggregationDPQuery
from tfdp.query.exact import ExactGaussianSumQuery as ExactGaussianSumQuery
from tfdp.query.gaussian import GaussianSumQuery as GaussianSumQuery
from tfdp.query.joint_clipping import JointClippingQuery as JointClippingQuery
from tfdp.query.layers import by_layer as by_layer
from tfdp.query.layers import per_layer as per_layer
from tfdp.query.nested import NestedQuery as NestedQuery
from tfdp.query.nested import NestedSumQuery as NestedSumQuery
from tfdp.query.no_privacy import NoPrivacyAverageQuery as NoPrivacyAverageQuery
from tfdp.query.no_privacy import NoPrivacySumQuery as NoPrivacySumQuery
from tfdp.query.normalized import GaussianAverageQuery as GaussianAverageQuery
from tfdp.query.normalized import NormalizedQuery as NormalizedQuery
from tfdp.query.weighted import WeightedAverageQuery as WeightedAverageQuery
from tfdp.query.weighted import WeightedRecord as WeightedRecord
from tfdp.query.weighted import WeightedSumQuery as WeightedSumQuery
