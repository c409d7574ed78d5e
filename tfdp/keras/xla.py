"""Whether XLA compiles the steps of a model, where Keras or the user asks for it."""

import contextlib
import logging
from collections.abc import Iterator

import keras
import tensorflow as tf

from tfdp.gradients.explaining import all_run_by_rules
from tfdp.gradients.keras_internals import layers_in, loops_in, replaced

_logger = logging.getLogger("tfdp")


def can_compile(model: keras.Model, engine: str) -> bool:
    """Returns whether XLA can compile a model's steps. The log says where it cannot, and where it
    makes them slower.

    Args:
        model: The model.
        engine: That of its optimizer.
    """
    loops = loops_in(model)
    if loops and not _on_batch(model, engine, loops):
        _logger.warning(
            "XLA cannot compile the loop of a recurrent layer where it runs record by record, or "
            "may do so because the model is not built yet: proceeding with jit_compile=False. "
            "tfdp.gradients.explain(model) says which layer does, and why. With unroll=True it has "
            "no loop."
        )
        return False
    if _is_slow(model):
        _logger.warning(
            "XLA's convolutions on a CPU are several times slower than TensorFlow's own. Leave "
            "jit_compile out: Keras then chooses by device."
        )
    return True


def _is_slow(model: keras.Model) -> bool:
    """Returns whether XLA is known to make this model's steps slower here."""
    if tf.config.list_physical_devices("GPU"):
        return False
    # Keras does not export the base class of its convolutions.
    return any(hasattr(layer, "dilation_rate") for layer in layers_in(model, deep=True))


@contextlib.contextmanager
def without_cudnn(model: keras.Model, engine: str) -> Iterator[None]:
    """Lets Keras have XLA compile a model whose recurrent layers could use cuDNN on a GPU. XLA
    cannot compile that, but the loops of the book-keeping engine, which take its place.

    Args:
        model: The model.
        engine: That of its optimizer.
    """
    loops = loops_in(model)
    layers = [layer for layer in loops if not layer.supports_jit]
    with contextlib.ExitStack() as stack:
        if layers and _on_batch(model, engine, loops):
            for layer in layers:
                stack.enter_context(replaced(layer, "supports_jit", True))
        yield


def _on_batch(model: keras.Model, engine: str, loops: list[keras.Layer]) -> bool:
    """Returns whether loops run on the batch, each by a rule."""
    return engine in ("auto", "bookkeeping") and all_run_by_rules(model, loops)
