"""What the steps of an optimizer release: gradients, and what stands beside them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp.keras.batch_statistics import (
    BatchMoments,
    check_moments,
    check_replicas,
    moments,
    update_moving,
)
from tfdp.keras.errors import NotPrivateError
from tfdp.keras.private_metrics import PrivateMetric
from tfdp.query import GaussianAverageQuery, NestedQuery
from tfdp.query.dp_query import DPQuery
from tfdp.query.parts import denominators


@dataclasses.dataclass(frozen=True, eq=False)
class Released:
    """What a step releases.

    Attributes:
        query: The mechanism of the gradients.
        private_metrics: Metrics of training beside them.
        batch_norm_noise_multiplier: Noise of the moments of all layers together; None without them.
        batch_moments: What is released about the inputs of layers of private batch normalization.
        mechanism: The query of records [gradients, value of each metric, moments of each layer];
            that of the gradients alone where nothing stands beside them.

    Raises:
        TypeError: a metric has no denominator, and the gradients have none, or several.
    """

    query: DPQuery
    private_metrics: tuple[PrivateMetric, ...]
    batch_norm_noise_multiplier: float | None
    batch_moments: tuple[BatchMoments, ...] = ()
    mechanism: DPQuery = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanism", _joined(self.query, self._besides))

    @property
    def _besides(self) -> tuple[PrivateMetric, ...]:
        return (*self.private_metrics, *self.batch_moments)

    @property
    def templates(self) -> list[tf.TensorSpec]:
        """The forms of what a record has beside its gradient."""
        return [tf.TensorSpec(metric.shape, tf.float32) for metric in self._besides]

    def with_moments_of(self, layers: Sequence[Any]) -> "Released":
        """Returns the same with the moments of these layers; itself where it has them.

        Args:
            layers: All layers of private batch normalization that a model has.

        Raises:
            NotPrivateError: noise is missing for them, or is given and there are none.
        """
        multiplier = self.batch_norm_noise_multiplier
        check_moments(layers, multiplier)
        found = moments(layers, multiplier) if multiplier is not None else ()
        return (
            self if found == self.batch_moments else dataclasses.replace(self, batch_moments=found)
        )

    def move_statistics(self, layers: Sequence[Any], released: Sequence[tf.Tensor]) -> None:
        """Updates the moving statistics of layers by what a step released about them.

        Args:
            layers: As `with_moments_of` was given them.
            released: By layer.
        """
        for layer, one, value in zip(layers, self.batch_moments, released, strict=True):
            denominator = denominators(self.query)[0]
            stddev = one.noise_multiplier * one.l2_norm_clip / denominator
            update_moving(layer, value, stddev)

    def check_step(self, has_statistics: bool) -> None:
        """Refuses a step in which nothing computes what is released beside the gradients.

        Args:
            has_statistics: Whether the loss returns it.

        Raises:
            NotPrivateError: says where it is computed.
        """
        if self._besides and not has_statistics:
            raise NotPrivateError(
                "private_metrics are computed in fit and train_on_batch of a private model. In a "
                "loop of your own leave them out, and release what else you need by "
                "tfdp.clipped_gradient_sum(statistics=...) and a tfdp.NestedQuery."
            )
        if self.batch_norm_noise_multiplier is not None:
            check_moments(self.batch_moments, self.batch_norm_noise_multiplier)
            check_replicas()


def _joined(query: DPQuery, metrics: Sequence[PrivateMetric]) -> DPQuery:
    """Returns the query of records [gradients, value of each metric]; `query` without metrics."""
    if not metrics:
        return query
    # What needs exact arithmetic for the gradients needs it for everything that is released.
    precision = "exact" if query.needs_separate_records else "float"
    numbers = set(denominators(query))
    leaves = []
    for metric in metrics:
        if metric.denominator is None and len(numbers) != 1:
            if isinstance(metric, BatchMoments):
                raise TypeError(
                    "Private batch normalization divides by the expected number of records in a "
                    "step. The query of the gradients has several such numbers, or none, as where "
                    "records have weights. Use a GaussianAverageQuery, or NormalizedQuery around a "
                    f"sum of records without weights. Received: query={query!r}."
                )
            raise TypeError(
                f"The private metric {metric.name!r} needs denominator=<the expected number of "
                "records in a step>: the query of the gradients has no number that it could take. "
                f"Received: query={query!r}."
            )
        leaves.append(
            GaussianAverageQuery(
                metric.l2_norm_clip,
                noise_multiplier=metric.noise_multiplier,
                denominator=metric.denominator or next(iter(numbers)),
                precision=precision,
            )
        )
    return NestedQuery([query, *leaves])
