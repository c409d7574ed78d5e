"""Layers that prepare images, whose code treats every image separately."""

from typing import Any

import keras

from tfdp.gradients.mapping import holds_records
from tfdp.gradients.rules.rule import RecordWise, register_rule, rule_for

_layers = keras.layers

# These draw a place, or widths, for all images that they are called on: anew at every call, and
# whatever the images are.
DRAW_ONCE = (_layers.RandomCrop, _layers.RandomGaussianBlur)
_DRAW_FOR_EACH = (
    _layers.RandomBrightness,
    _layers.RandomColorDegeneration,
    _layers.RandomContrast,
    _layers.RandomErasing,
    _layers.RandomFlip,
    _layers.RandomGrayscale,
    _layers.RandomHue,
    _layers.RandomInvert,
    _layers.RandomPerspective,
    _layers.RandomRotation,
    _layers.RandomSaturation,
    _layers.RandomSharpness,
    _layers.RandomShear,
    _layers.RandomTranslation,
    _layers.RandomZoom,
)
_DRAW_NOTHING = (_layers.CenterCrop, _layers.Resizing)
# What a `RandomColorJitter` is made of.
_OF_JITTER = {
    "random_brightness": _layers.RandomBrightness,
    "random_contrast": _layers.RandomContrast,
    "random_hue": _layers.RandomHue,
    "random_saturation": _layers.RandomSaturation,
}


def _gets_images(layer: Any, data: Any, training: Any = True) -> bool:
    """Returns whether a layer is called on images, [n, height, width, channels]. It takes
    [n, height, width] for one image, whose height is the axis of records.
    """
    return holds_records(data) and data.shape.rank == 4


def _jitters_by_known_layers(jitter: Any) -> bool:
    """Returns whether the layers in a `RandomColorJitter` are such as Keras makes for it. It calls
    methods of theirs, not the layers, so nothing else looks at them.
    """
    parts = [(getattr(jitter, name), known) for name, known in _OF_JITTER.items()]
    return all(
        part is None or (type(part) is known and rule_for(part) is not None)
        for part, known in parts
    )


for _layer in (*DRAW_ONCE, *_DRAW_FOR_EACH, *_DRAW_NOTHING):
    register_rule(_layer, RecordWise(called_on=_gets_images))
register_rule(
    _layers.RandomColorJitter, RecordWise(when=_jitters_by_known_layers, called_on=_gets_images)
)
