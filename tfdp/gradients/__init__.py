"""Sums of clipped per-record gradients."""

from tfdp.gradients.clipped_sum import ClippedSum as ClippedSum
from tfdp.gradients.clipped_sum import clipped_gradient_sum as clipped_gradient_sum
from tfdp.gradients.microbatches import assign_microbatches as assign_microbatches
