"""What is said of layers that may mix the records of a batch."""

import logging
import weakref
from collections.abc import Iterable

import keras

from tfdp.gradients.recording import Treatment
from tfdp.gradients.watching import BY_RECORD

_logger = logging.getLogger("tfdp")

# Ends of the reasons that an operation, or code, may give to look at several records.
_MAY_MIX = (
    "is not known to keep records apart",
    "moves the axis of records",
    "uses the number of records",
    "it does something else with a batch of one",
)

_SAID: "weakref.WeakSet[keras.Layer]" = weakref.WeakSet()


def say_what_may_mix(model: keras.Layer, treatments: Iterable[Treatment]) -> None:
    """Logs, once for a model, which of its layers run record by record because they may mix the
    records of a batch. It depends on the model's code and on shapes, not on data.

    Args:
        model: The model.
        treatments: What was done with the calls of its layers.
    """
    found = [
        f"{'/'.join(one.path)} ({one.words.removeprefix(BY_RECORD + ': ')})"
        for one in treatments
        if one.words.startswith(BY_RECORD) and one.words.endswith(_MAY_MIX)
    ]
    if not found or model in _SAID:
        return
    _SAID.add(model)
    _logger.warning(
        "These layers may mix the records of a batch, so each record goes through them alone, as "
        "in a batch of one: %s. Where a layer does mix records, it learns something else than in "
        "Keras, or nothing. tfdp.gradients.explain(model) lists all layers.",
        "; ".join(dict.fromkeys(found)),
    )
