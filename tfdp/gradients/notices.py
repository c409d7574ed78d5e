"""What is said of layers and models that may mix the records of a batch."""

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
    if found:
        _say(model, "These layers", "them", "; ".join(dict.fromkeys(found)))


def say_that_it_may_mix(model: keras.Layer, reason: str) -> None:
    """Logs, once for a model, that all of it runs record by record, if that is because its code may
    mix the records of a batch.

    Args:
        model: The model.
        reason: Why its layers cannot be watched.
    """
    if any(words in reason for words in _MAY_MIX):
        _say(model, "The layers of this model", "all of it", reason)


def _say(model: keras.Layer, which: str, through: str, reason: str) -> None:
    if model in _SAID:
        return
    _SAID.add(model)
    _logger.warning(
        f"{which} may mix the records of a batch, so each record goes through {through} alone, as "
        "in a batch of one: %s. Where a layer does mix records, it learns something else than in "
        "Keras, or nothing. tfdp.gradients.explain(model) lists all layers.",
        reason.removesuffix("."),
    )
