"""Private training of Keras 3 models on the TensorFlow backend."""

from tfdp.keras.adam_bc import AdamBC
from tfdp.keras.callbacks import EpsilonLogger, PrivacyBudget
from tfdp.keras.carrying import declare_weights
from tfdp.keras.constructors import (
    DPFTRLTreeAggregationOptimizer,
    DPKerasAdagradOptimizer,
    DPKerasAdamOptimizer,
    DPKerasSGDOptimizer,
)
from tfdp.keras.errors import LedgerMismatchError, NotPrivateError, PrivacyBudgetExceededError
from tfdp.keras.models import DPModel, DPSequential, make_private
from tfdp.keras.normalization import convert_norm
from tfdp.keras.optimizer import DPOptimizer
from tfdp.keras.private_metrics import (
    PrivateAccuracy,
    PrivateClassCounts,
    PrivateLoss,
    PrivateMean,
    PrivateMetric,
)
from tfdp.keras.public_clips import clips_from_public_data

__all__ = [
    "AdamBC",
    "DPFTRLTreeAggregationOptimizer",
    "DPKerasAdagradOptimizer",
    "DPKerasAdamOptimizer",
    "DPKerasSGDOptimizer",
    "DPModel",
    "DPOptimizer",
    "DPSequential",
    "EpsilonLogger",
    "LedgerMismatchError",
    "NotPrivateError",
    "PrivacyBudget",
    "PrivacyBudgetExceededError",
    "PrivateAccuracy",
    "PrivateClassCounts",
    "PrivateLoss",
    "PrivateMean",
    "PrivateMetric",
    "clips_from_public_data",
    "convert_norm",
    "declare_weights",
    "make_private",
]
