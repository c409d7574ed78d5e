"""Private models that were trained, of every form, and what a refused load must not change."""

import keras
import numpy as np
import toy

import tfdp
from tfdp.keras import (
    charges,
)

L = keras.layers


def noisy(*args, **kwargs):
    # The engine that takes the least time to begin with: it traces one record, without vectorizing.
    return toy.dp(*args, stddev=1.0, engine="loop", **kwargs)


def functional():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    return keras.Model(inputs, L.Dense(2, name="only")(inputs))


@keras.saving.register_keras_serializable("tests")
class Subclass(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.only = L.Dense(2)

    def call(self, x):
        return self.only(x)


@keras.saving.register_keras_serializable("tests")
class PrivateSubclass(tfdp.keras.DPModel):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.only = L.Dense(2)

    def call(self, x):
        return self.only(x)


def built(kind):
    model = kind()
    model(toy.X)
    return model


FORMS = {
    "sequential": toy.linear,
    "functional": functional,
    "subclass": lambda: built(Subclass),
    "DPModel": lambda: built(PrivateSubclass),
}


def compiled(model, optimizer=None):
    optimizer = noisy() if optimizer is None else optimizer
    return toy.private(model, optimizer, run_eagerly=True)


def train(model, steps=1):
    model.fit(toy.X, toy.Y, batch_size=4, steps_per_epoch=steps, verbose=0)
    return model


def trained(make=toy.linear, steps=1, optimizer=None):
    return train(compiled(make(), optimizer), steps)


def everything(model):
    """Returns what a refused load must not change."""
    variables = [*model.variables, *model.optimizer.variables]
    return (
        [v.numpy() for v in variables],
        model.ledger,
        list(model.ledger),
        charges.charges_of(model.weights),
    )


def assert_unchanged(model, before):
    after = everything(model)
    for a, b in zip(before[0], after[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert after[1] is before[1]
    assert after[2:] == before[2:]
