"""Sums of clipped per-record gradients."""

from tfdp.gradients.clipped_sum import ENGINES as ENGINES
from tfdp.gradients.clipped_sum import ClippedSum as ClippedSum
from tfdp.gradients.clipped_sum import clipped_gradient_sum as clipped_gradient_sum
from tfdp.gradients.effects import refuse_other_writes as refuse_other_writes
from tfdp.gradients.forms.per_record import Explicit as Explicit
from tfdp.gradients.forms.per_record import PerRecordGradient as PerRecordGradient
from tfdp.gradients.forms.products import Product as Product
from tfdp.gradients.forms.products import matrix_gradient as matrix_gradient
from tfdp.gradients.forms.rows import Rows as Rows
from tfdp.gradients.layered_loss import LayeredLoss as LayeredLoss
from tfdp.gradients.layered_loss import ModelLoss as ModelLoss
from tfdp.gradients.layered_loss import UnsupportedModelError as UnsupportedModelError
from tfdp.gradients.microbatches import assign_microbatches as assign_microbatches
from tfdp.gradients.plan import explain as explain
from tfdp.gradients.record_scope import MetricScope as MetricScope
from tfdp.gradients.record_scope import SideEffectError as SideEffectError
from tfdp.gradients.record_scope import draw_seeds as draw_seeds
from tfdp.gradients.rules.rule import LayerRule as LayerRule
from tfdp.gradients.rules.rule import RecordWise as RecordWise
from tfdp.gradients.rules.rule import register_rule as register_rule
