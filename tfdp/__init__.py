"""Differential privacy for TensorFlow and Keras 3.

Names are imported on first use, so that `import tfdp.accounting` and the command line stay free of
TensorFlow.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_SUBMODULES = (
    "accounting",
    "audit",
    "events",
    "gradients",
    "keras",
    "ledger",
    "noise",
    "query",
    "report",
    "sampling",
)
_NAMES = {
    "ComposedEvent": "events",
    "DPQuery": "query",
    "GaussianAverageQuery": "query",
    "GaussianSumEvent": "events",
    "GaussianSumQuery": "query",
    "JointClippingQuery": "query",
    "NeighboringRelation": "events",
    "NestedQuery": "query",
    "NestedSumQuery": "query",
    "NoPrivacyAverageQuery": "query",
    "NoPrivacySumQuery": "query",
    "NonPrivateEvent": "events",
    "NormalizedQuery": "query",
    "PrivacyLedger": "ledger",
    "SampledEvent": "events",
    "SumAggregationDPQuery": "query",
    "UnsupportedEventError": "events",
    "WeightedAverageQuery": "query",
    "clipped_gradient_sum": "gradients",
    "noise_for_budget": "accounting",
}

__all__ = ["__version__", *_SUBMODULES, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"tfdp.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"tfdp.{_NAMES[name]}"), name)
    from tfdp.migration import WRITE

    what_to_write = f". {WRITE[name]}" if name in WRITE else ""
    raise AttributeError(f"module 'tfdp' has no attribute {name!r}{what_to_write}")


def __dir__() -> list[str]:
    return sorted(__all__)
