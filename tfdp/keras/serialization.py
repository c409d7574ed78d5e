"""Configurations of optimizers and queries, by Keras' registry.

A configuration says how to go on, never what was done: no ledger, no sampling, no random source.
"""

from typing import Any

import keras

from tfdp import query as queries
from tfdp.query.dp_query import DPQuery, check_config

PACKAGE = "tfdp"
_SAME_NAME = (
    *("num_microbatches", "privacy_unit", "physical_batch_size", "engine", "name"),
    "batch_norm_noise_multiplier",
)
_NAMES = ("inner_optimizer", "query", "loss_scale_factor", "private_metrics", *_SAME_NAME)

for _class in (
    queries.AboveThresholdQuery,
    queries.ArrangedQuery,
    queries.AutomaticClippingSumQuery,
    queries.CorrelatedGaussianSumQuery,
    queries.DiscreteGaussianSumQuery,
    queries.DiscretizedSumQuery,
    queries.DistributedDiscreteGaussianSumQuery,
    queries.DistributedSkellamAverageQuery,
    queries.DistributedSkellamSumQuery,
    queries.ExactGaussianSumQuery,
    queries.ExponentialMechanismQuery,
    queries.GaussianHistogramQuery,
    queries.HistogramQuery,
    queries.PartitionSelectionQuery,
    queries.GaussianAverageQuery,
    queries.GaussianSumQuery,
    queries.JointClippingQuery,
    queries.LaplaceSumQuery,
    queries.NestedQuery,
    queries.NestedSumQuery,
    queries.NoPrivacyAverageQuery,
    queries.NoPrivacyQuantileEstimatorQuery,
    queries.NoPrivacySumQuery,
    queries.NormalizedQuery,
    queries.QuantileAdaptiveClipSumQuery,
    queries.QuantileEstimatorQuery,
    queries.QuantileSelectionQuery,
    queries.ReportNoisyMaxQuery,
    queries.PeriodicRoundRestartIndicator,
    queries.PeriodicTimeRestartIndicator,
    queries.RestartQuery,
    queries.ScaleThenPrivatizeQuery,
    queries.ScheduledGaussianSumQuery,
    queries.SparseEmbeddingSumQuery,
    queries.TreeCumulativeSumQuery,
    queries.TreeRangeSumQuery,
    queries.TreeResidualSumQuery,
    queries.WeightedAverageQuery,
    queries.WeightedSumQuery,
):
    keras.saving.register_keras_serializable(PACKAGE)(_class)


def optimizer_config(optimizer: Any) -> dict[str, Any]:
    """Returns the configuration of a `DPOptimizer`, which JSON can hold.

    Raises:
        TypeError: a query has a class that Keras' registry does not know, or a random source.
    """
    _check_registered(optimizer.query)
    config = {name: getattr(optimizer, name) for name in _SAME_NAME}
    config["inner_optimizer"] = keras.saving.serialize_keras_object(optimizer.inner_optimizer)
    config["query"] = keras.saving.serialize_keras_object(optimizer.query)
    config["private_metrics"] = [
        keras.saving.serialize_keras_object(metric) for metric in optimizer.private_metrics
    ]
    config["loss_scale_factor"] = optimizer.loss_scale_factor
    return config


def optimizer_arguments(config: dict[str, Any], custom_objects: Any = None) -> dict[str, Any]:
    """Returns the arguments of a `DPOptimizer` from its configuration.

    Guarantees:
        Every argument is in the configuration; none is filled in by a default.

    Raises:
        TypeError: a key is missing or unknown (a ledger is), or a query's class is.
        ValueError: a number is out of range.
    """
    check_config("DPOptimizer", config, _NAMES)
    parts = {
        name: keras.saving.deserialize_keras_object(config[name], custom_objects)
        for name in ("inner_optimizer", "query")
    }
    metrics = [
        keras.saving.deserialize_keras_object(metric, custom_objects)
        for metric in config["private_metrics"]
    ]
    return {**config, **parts, "private_metrics": metrics}


def _check_registered(query: DPQuery) -> None:
    """Refuses queries of classes that could not be found again."""
    name = keras.saving.get_registered_name(type(query))
    if keras.saving.get_registered_object(name) is not type(query):
        raise TypeError(
            f"Keras' registry does not know {type(query).__name__}, so a configuration could not "
            "be read again. Decorate the class: @keras.saving.register_keras_serializable('mine')."
        )
    for part in keras.tree.flatten(list(query.get_config().values())):
        if isinstance(part, DPQuery):
            _check_registered(part)
