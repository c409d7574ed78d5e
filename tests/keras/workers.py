"""What one of several processes does that train together.

python workers.py OUTPUT INDEX PORT...    writes {case: outcome}, pickled
"""

import json
import os
import pathlib
import pickle
import sys

import keras
import numpy as np
import replicas
import tensorflow as tf
import toy
from replicas import SAMPLE_WEIGHT, X, Y

import tfdp
from tfdp.keras import DPOptimizer
from tfdp.sampling import FixedSize, FullBatch

STEPS = 60


def fit(strategy):
    private = replicas.model(strategy)
    data = (X, Y, SAMPLE_WEIGHT)
    history = private.fit(
        *data[:2],
        sample_weight=SAMPLE_WEIGHT,
        sampling=FullBatch(),
        epochs=2,
        validation_data=data,
        verbose=0,
    ).history
    return {
        "weights": toy.weights(private),
        "history": history,
        "events": toy.events(private),
        "key": private.ledger.ledger_id,
    }


def sampled(strategy):
    """Which examples are in every step: the gradient of example i is 1 at weight i, 0 elsewhere."""
    with replicas.scope(strategy):
        plain = keras.Sequential([keras.Input((7,)), keras.layers.Dense(1, use_bias=False)])
        query = tfdp.GaussianSumQuery(2.0, 0.0)
        optimizer = DPOptimizer(keras.optimizers.SGD(1.0), query)
        private = toy.private(plain, optimizer, loss=lambda y, p: p[:, 0])
    kernels = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: kernels.append(toy.weights(private)[0][:, 0])
    )
    private.fit(
        np.eye(7, dtype="float32"),
        Y,
        batch_size=3,
        steps_per_epoch=STEPS // 2,
        epochs=2,
        verbose=0,
        callbacks=[note],
    )
    return {"kernels": np.stack(kernels), "events": toy.events(private)}


def trained(strategy, prepare=lambda private: None, inner=None, callback=None, **kwargs):
    """Returns (what became of a `fit`, how many steps were charged)."""
    private = replicas.model(strategy, inner)
    with replicas.scope(strategy):
        private.optimizer.build(private.trainable_variables)
    prepare(private)
    begin = keras.callbacks.LambdaCallback(on_train_begin=lambda _: callback(private))
    kwargs["callbacks"] = [] if callback is None else [begin]
    found = replicas.outcome(lambda: private.fit(X, Y, batch_size=2, verbose=0, **kwargs))
    return found, private.ledger.total_count


def starts(strategy, index, folder):
    """What becomes of a `fit` that the two processes do not begin alike."""

    def move(variables):
        for variable in variables if index else []:
            variable.assign(variable + 1)

    def other_weights(private):
        move(private.trainable_variables)

    def other_slots(private):
        move([v for v in private.optimizer.slots if "momentum" in v.path])

    def other_rate(private):
        private.optimizer.learning_rate = 0.1 + index

    def other_layers(private):
        private.layers[-1].trainable = index == 0

    def decay(steps):
        return lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, steps, 0.5)
        )

    def opened(name):
        def prepare(private):
            private.ledger = tfdp.PrivacyLedger.open(folder / name, create=True)

        return prepare

    found = {
        "weights": trained(strategy, other_weights),
        "slots": trained(strategy, other_slots),
        "weights, from a callback": trained(strategy, callback=other_weights),
        "momentum": trained(strategy, inner=lambda: keras.optimizers.SGD(0.1, 0.5 + index / 4)),
        "learning rate": trained(strategy, other_rate),
        "schedule": trained(strategy, inner=decay(1 + index)),
        "trained layers": trained(strategy, other_layers),
        "views": trained(strategy, views=2 + index),
    }
    if index == 0:
        tfdp.PrivacyLedger.open(folder / "one.ledger", create=True).close()
    found["files of their own"] = trained(strategy, opened(f"{index}.ledger"))
    found["one file"] = trained(strategy, opened("one.ledger"))
    return found


def refusals(strategy, index):
    private = replicas.model(strategy)

    def fit(x=X, y=Y, **kwargs):
        return replicas.outcome(lambda: private.fit(x, y, batch_size=2, verbose=0, **kwargs))

    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    return {
        "other data": fit(X + index),
        "order of other data": fit(X[:: 1 - 2 * index], Y),
        "fixed size": fit(sampling=FixedSize()),
        "data set": replicas.outcome(lambda: private.fit(batches, verbose=0)),
        "count": private.ledger.total_count,
    }


def error_of_one(strategy, index):
    """The last case: after it, TensorFlow's collectives are at an end in both processes."""
    private = replicas.model(strategy)
    if index == 1:
        private.optimizer.charging.add_guard(replicas.refuse_after(2))
    result = replicas.outcome(lambda: private.fit(X, Y, batch_size=1, verbose=0))
    return {"error": result, "count": private.ledger.total_count}


def main(output, index, *ports):
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    workers = [f"127.0.0.1:{port}" for port in ports]
    task = {"type": "worker", "index": int(index)}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    results = {
        "fit": fit(strategy),
        "private metrics": replicas.fit_with_private_metrics(strategy),
        "noise": replicas.noise(strategy),
        "sampled": sampled(strategy),
        "refusals": refusals(strategy, int(index)),
        "starts": starts(strategy, int(index), pathlib.Path(output).parent),
        "error_of_one": error_of_one(strategy, int(index)),
    }
    with open(output, "wb") as file:
        pickle.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
