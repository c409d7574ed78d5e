"""Private training that is killed again and again, and what its ledger then holds.

`python tests/keras/killing.py --kills 200` kills so many runs of `fit` at random moments. Each run
goes on from the checkpoint of an earlier one, if there is one, and counts its updates just before
they reach a weight, in a file that outlives it.
"""

import argparse
import multiprocessing
import os
import pathlib
import random
import sys
import tempfile
import time

import numpy as np

LEASE = 4


def _count_updates(path):
    """Returns the number of updates so far, in memory that is shared with the file."""
    if not path.exists():
        np.zeros(1, np.int64).tofile(path)
    return np.memmap(path, np.int64, mode="r+", shape=(1,))


def train(folder):
    """Trains until it is killed."""
    import keras
    import tensorflow as tf

    import tfdp

    folder = pathlib.Path(folder)
    updates = _count_updates(folder / "updates")

    class Counting(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            def count():
                updates[0] += 1
                return np.int64(0)

            with tf.control_dependencies([gradient]):
                counted = tf.numpy_function(count, [], tf.int64)
            with tf.control_dependencies([counted]):
                super().update_step(gradient, variable, learning_rate)

    class Saving(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.save_weights(folder / "next.weights.h5")
            os.replace(folder / "next.weights.h5", folder / "run.weights.h5")

    ledger = tfdp.PrivacyLedger.open(folder / "run.ledger", create=True, lease=LEASE)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    model = tfdp.keras.make_private(model)
    query = tfdp.GaussianAverageQuery(1.0, stddev=1.0, denominator=4)
    model.compile(tfdp.keras.DPOptimizer(Counting(0.1), query, ledger=ledger), loss="mse")
    model.optimizer.build(model.trainable_variables)
    if (folder / "run.weights.h5").exists():
        model.load_weights(folder / "run.weights.h5")
    x = np.ones((16, 3), np.float32)
    y = np.ones((16, 1), np.float32)
    model.fit(x, y, batch_size=4, epochs=10**6, verbose=0, callbacks=[Saving()])


def _wait_for_update(updates, before, child):
    deadline = time.monotonic() + 120
    while int(updates[0]) == before:
        if time.monotonic() > deadline or not child.is_alive():
            raise RuntimeError(f"A run did not train. Exit code: {child.exitcode}.")
        time.sleep(0.001)


def kill(folder, kills, longest, seed=0):
    """Kills `kills` runs, each after up to `longest` seconds of training, and checks the ledger.

    Returns:
        (updates, steps in the ledger): of all runs together.

    Raises:
        RuntimeError: the ledger holds too few steps, or many more than leases explain.
    """
    from tfdp.ledger import PrivacyLedger, storage

    folder, chance = pathlib.Path(folder), random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tensorflow", "keras", "tfdp.keras"])
    updates = _count_updates(folder / "updates")
    for number in range(1, kills + 1):
        before = int(updates[0])
        child = context.Process(target=train, args=(str(folder),))
        child.start()
        # Some die while they build, restore or trace.
        if chance.random() < 0.9:
            _wait_for_update(updates, before, child)
        time.sleep(chance.uniform(0, longest))
        if not child.is_alive():
            raise RuntimeError(f"Run {number} ended by itself, with exit code {child.exitcode}.")
        child.kill()
        child.join()
        if (folder / "run.ledger").exists():
            storage.verify(folder / "run.ledger")
            steps = PrivacyLedger.load(folder / "run.ledger").total_count
        else:
            steps = 0
        done = int(updates[0])
        if not done <= steps <= done + number * LEASE:
            raise RuntimeError(f"After {number} kills: {done} updates, {steps} steps.")
    return done, steps


def main():
    """Prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--longest", type=float, default=0.5, help="seconds of training")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        updates, steps = kill(folder, arguments.kills, arguments.longest, arguments.seed)
    print(f"{arguments.kills} kills: {updates} updates, {steps} steps in the ledger")


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
    main()
