"""Sums of clipped per-record gradients."""

from tfdp.gradients.clipped_sum import ENGINES, ClippedSum, clipped_gradient_sum
from tfdp.gradients.effects import refuse_other_writes, refuse_reads
from tfdp.gradients.explaining import explain
from tfdp.gradients.forms.per_record import Explicit, PerRecordGradient
from tfdp.gradients.forms.products import Product, matrix_gradient
from tfdp.gradients.forms.rows import Rows
from tfdp.gradients.indices import RecordDependentShapeError
from tfdp.gradients.kernels import RefusedKernelError
from tfdp.gradients.layered_loss import LayeredLoss, ModelLoss, UnsupportedModelError
from tfdp.gradients.microbatches import assign_microbatches
from tfdp.gradients.record_scope import MetricScope, SideEffectError, draw_seeds
from tfdp.gradients.rewriting import safe_update
from tfdp.gradients.rules.rule import LayerRule, RecordWise, register_rule

__all__ = [
    "ClippedSum",
    "ENGINES",
    "Explicit",
    "LayerRule",
    "LayeredLoss",
    "MetricScope",
    "ModelLoss",
    "PerRecordGradient",
    "Product",
    "RecordDependentShapeError",
    "RecordWise",
    "RefusedKernelError",
    "Rows",
    "SideEffectError",
    "UnsupportedModelError",
    "assign_microbatches",
    "clipped_gradient_sum",
    "draw_seeds",
    "explain",
    "matrix_gradient",
    "refuse_other_writes",
    "refuse_reads",
    "register_rule",
    "safe_update",
]
