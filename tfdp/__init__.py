"""Differential privacy for TensorFlow and Keras 3.

Names are imported on first use, so that `import tfdp.accounting` and the command line stay free of
TensorFlow. Where Keras is imported already, so is `tfdp.keras`: Keras asks it for the ledgers of
private models that it loads.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdp.accounting import noise_for_budget as noise_for_budget
    from tfdp.events import ComposedEvent as ComposedEvent
    from tfdp.events import GaussianSumEvent as GaussianSumEvent
    from tfdp.events import NeighboringRelation as NeighboringRelation
    from tfdp.events import NonPrivateEvent as NonPrivateEvent
    from tfdp.events import SampledEvent as SampledEvent
    from tfdp.events import UnsupportedEventError as UnsupportedEventError
    from tfdp.gradients import clipped_gradient_sum as clipped_gradient_sum
    from tfdp.ledger import PrivacyLedger as PrivacyLedger
    from tfdp.query import DiscreteGaussianSumQuery as DiscreteGaussianSumQuery
    from tfdp.query import (
        DistributedDiscreteGaussianSumQuery as DistributedDiscreteGaussianSumQuery,
    )
    from tfdp.query import DistributedSkellamSumQuery as DistributedSkellamSumQuery
    from tfdp.query import DPQuery as DPQuery
    from tfdp.query import GaussianAverageQuery as GaussianAverageQuery
    from tfdp.query import GaussianSumQuery as GaussianSumQuery
    from tfdp.query import JointClippingQuery as JointClippingQuery
    from tfdp.query import NestedQuery as NestedQuery
    from tfdp.query import NestedSumQuery as NestedSumQuery
    from tfdp.query import NoPrivacyAverageQuery as NoPrivacyAverageQuery
    from tfdp.query import NoPrivacySumQuery as NoPrivacySumQuery
    from tfdp.query import NormalizedQuery as NormalizedQuery
    from tfdp.query import QuantileAdaptiveClipSumQuery as QuantileAdaptiveClipSumQuery
    from tfdp.query import QuantileEstimatorQuery as QuantileEstimatorQuery
    from tfdp.query import SumAggregationDPQuery as SumAggregationDPQuery
    from tfdp.query import WeightedAverageQuery as WeightedAverageQuery

__version__ = "0.1.0"

_SUBMODULES = (
    "accounting",
    "audit",
    "events",
    "factorizations",
    "federated",
    "gradients",
    "keras",
    "ledger",
    "noise",
    "query",
    "report",
    "sampling",
    "statistics",
    "tuning",
)
_NAMES = {
    "ComposedEvent": "tfdp.events",
    "DPQuery": "tfdp.query",
    "DiscreteGaussianSumQuery": "tfdp.query",
    "DistributedDiscreteGaussianSumQuery": "tfdp.query",
    "DistributedSkellamSumQuery": "tfdp.query",
    "GaussianAverageQuery": "tfdp.query",
    "GaussianSumEvent": "tfdp.events",
    "GaussianSumQuery": "tfdp.query",
    "JointClippingQuery": "tfdp.query",
    "NeighboringRelation": "tfdp.events",
    "NestedQuery": "tfdp.query",
    "NestedSumQuery": "tfdp.query",
    "NoPrivacyAverageQuery": "tfdp.query",
    "NoPrivacySumQuery": "tfdp.query",
    "NonPrivateEvent": "tfdp.events",
    "NormalizedQuery": "tfdp.query",
    "PrivacyLedger": "tfdp.ledger",
    "QuantileAdaptiveClipSumQuery": "tfdp.query",
    "QuantileEstimatorQuery": "tfdp.query",
    "SampledEvent": "tfdp.events",
    "SumAggregationDPQuery": "tfdp.query",
    "UnsupportedEventError": "tfdp.events",
    "WeightedAverageQuery": "tfdp.query",
    "clipped_gradient_sum": "tfdp.gradients",
    "noise_for_budget": "tfdp.accounting",
}

# What an auditor may do without.
_FOR_TRAINING = {"cryptography", "keras", "tensorflow", "tensorflow_probability", "tf_keras"}

__all__ = ["__version__", *_SUBMODULES, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return _imported(f"tfdp.{name}")
    if name in _NAMES:
        return getattr(_imported(_NAMES[name]), name)
    from tfdp.migration import WRITE

    what_to_write = f". {WRITE[name]}" if name in WRITE else ""
    raise AttributeError(f"module 'tfdp' has no attribute {name!r}{what_to_write}")


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in _FOR_TRAINING:
            raise
        raise ModuleNotFoundError(
            f"{module} needs {error.name}, which is not installed: `pip install -e .` in a "
            "checkout of tfdp installs it. Without it ledgers can be read (tfdp.ledger), priced "
            "(tfdp.accounting) and audited.",
            name=error.name,
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)


def _follow_keras() -> None:
    # An older Keras has no such setting; nothing is trained with it.
    backend = getattr(getattr(sys.modules.get("keras"), "config", None), "backend", None)
    if backend is None or backend() != "tensorflow":
        return
    try:
        importlib.import_module("tfdp.keras")
    except ModuleNotFoundError as error:
        if error.name not in _FOR_TRAINING:
            raise  # Without these nothing is trained here, so no ledger is to be continued.


_follow_keras()
