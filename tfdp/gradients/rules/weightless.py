"""Layers and operations without weights that treat every record separately."""

from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.keras_internals import calls_of, class_of_operation
from tfdp.gradients.mapping import holds_records, meets_records
from tfdp.gradients.rules.rule import RecordWise, has_known_activations, register_rule

_layers = keras.layers

_ALWAYS = (
    "ActivityRegularization",
    "Add",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "Cropping1D",
    "Cropping2D",
    "Cropping3D",
    "ELU",
    "Flatten",
    "GaussianDropout",
    "GaussianNoise",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GlobalMaxPooling3D",
    "Identity",
    "InputLayer",
    "LeakyReLU",
    "Masking",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "Maximum",
    "Minimum",
    "Multiply",
    "Permute",
    "ReLU",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "Subtract",
    "UpSampling1D",
    "UpSampling2D",
    "UpSampling3D",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "ZeroPadding3D",
)


def _not_across_records(layer: Any) -> bool:
    """Returns whether a layer with an `axis` or `axes` works on other axes than that of records."""
    axis = getattr(layer, "axis", None)
    axes = [axis] if isinstance(axis, int) else list(axis or ())
    if axis is None:
        axes = [layer.axes] if isinstance(layer.axes, int) else list(layer.axes)
    # What a negative axis means depends on the rank of the input. Axis -1 is that of records only
    # if a record is a single number, and then the layer runs record by record.
    return bool(axes) and all(a > 0 or a == -1 for a in axes)


def _mask_meets_inputs(softmax: Any, inputs: Any, mask: Any = None) -> bool:
    """Returns whether a softmax masks every record with its own mask."""
    return mask is None or (holds_records(inputs) and meets_records(mask, inputs.shape.rank))


def _mask_meets_steps(pooling: Any, inputs: Any, mask: Any = None) -> bool:
    """Returns whether a mean over steps masks every record with its own mask, [n, t]."""
    return mask is None or (holds_records(inputs) and meets_records(mask, 2))


def _draws_for_each_record(dropout: Any) -> bool:
    """Returns whether every record has a mask of its own, whatever `noise_shape` says."""
    return not dropout.noise_shape or dropout.noise_shape[0] is None


_ELEMENTWISE_OF_ONE = (
    *("abs", "cos", "elu", "exp", "gelu", "leaky_relu", "log", "log1p", "negative", "relu"),
    *("rsqrt", "sigmoid", "silu", "sin", "softplus", "sqrt", "square", "tanh"),
)
_ELEMENTWISE_OF_TWO = ("add", "divide", "maximum", "minimum", "multiply", "subtract")


def _along_records(operation: Any) -> bool:
    """Returns whether an elementwise operation lines up the records of its operands."""
    for tensors, args, kwargs in calls_of(operation):
        ranks = {len(tensor.shape) for tensor in tensors}
        if len(ranks) != 1:
            return False
        for operand in tf.nest.flatten((args, kwargs)):
            if keras.backend.is_keras_tensor(operand) or not hasattr(operand, "shape"):
                continue
            if len(operand.shape) >= max(ranks) and operand.shape[0] != 1:
                return False
    return True


def _class_of(function: Any, num_operands: int) -> type:
    # Keras does not export the classes of its operations.
    operand = keras.Input((2,))
    return class_of_operation(function(*[operand] * num_operands))


for _names, _number in ((_ELEMENTWISE_OF_ONE, 1), (_ELEMENTWISE_OF_TWO, 2)):
    for _name in _names:
        register_rule(
            _class_of(getattr(keras.ops, _name), _number), RecordWise(when=_along_records)
        )
for _name in _ALWAYS:
    register_rule(getattr(_layers, _name), RecordWise())
register_rule(_layers.Activation, RecordWise(when=has_known_activations))
for _name in ("Concatenate", "Dot", "UnitNormalization"):
    register_rule(getattr(_layers, _name), RecordWise(when=_not_across_records))
for _name in ("AlphaDropout", "Dropout"):
    register_rule(getattr(_layers, _name), RecordWise(when=_draws_for_each_record))
register_rule(_layers.GlobalAveragePooling1D, RecordWise(called_on=_mask_meets_steps))
register_rule(_layers.Softmax, RecordWise(when=_not_across_records, called_on=_mask_meets_inputs))
# A frozen layer uses its moving averages. Models in which it is not frozen are refused.
register_rule(_layers.BatchNormalization, RecordWise(when=lambda layer: not layer.trainable))
