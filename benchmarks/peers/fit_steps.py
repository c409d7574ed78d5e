"""Epochs of `fit`, Keras' own and private ones."""

import fit_models
import keras
import numpy as np
import tensorflow as tf
from peers.keras_steps import LEARNING_RATE, private_optimizer, set_threads

import tfdp.keras

__all__ = ["make_step", "set_threads"]


def make_step(variant: str, options: dict):
    """Returns (function that trains an epoch, of one step when first called; facts)."""
    keras.utils.set_random_seed(0)
    chosen = fit_models.MODELS[options["model"]]
    batch_size, steps = options["batch_size"], options["steps"]
    x, y = chosen.rows(np.random.default_rng(0), batch_size * steps)
    model = chosen.build()
    facts = {"parameters": model.count_params(), "version": f"tensorflow {tf.__version__}"}
    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    if variant == "private":
        optimizer = private_optimizer(optimizer, batch_size, options)
        model = tfdp.keras.make_private(model)
        facts["version"] = f"tfdp {tfdp.__version__}"
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    epoch = [1, steps]  # Steps of the first call, and of later ones.

    def step():
        number = epoch.pop(0) if len(epoch) > 1 else steps
        model.fit(x, y, batch_size=batch_size, steps_per_epoch=number, verbose=0)

    return step, facts
