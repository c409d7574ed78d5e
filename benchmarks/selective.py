"""Seconds of an epoch of distributed selective SGD, and what they are spent on.

    python benchmarks/selective.py --participants 150

The MLP 784-128-64-10, 600 random images for each participant, batches of 32. Everything is in one
process. Printed are, of several epochs after the first, the median of wall time and of processor
time, and what each part of a turn takes.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import step_time  # noqa: F401  (it makes tfdp importable)

from tfdp.federated import selective
from tfdp.federated.selective.sparse import decode
from tfdp.ledger import PrivacyLedger


def make_sgd() -> selective.LocalSGD:
    """Returns the local training that all participants share."""
    dense = keras.layers.Dense
    hidden = [dense(128, activation="relu"), dense(64, activation="relu")]
    model = keras.Sequential([keras.Input((784,)), *hidden, dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    return selective.LocalSGD(model, loss, 0.1, 32)


def milliseconds(function, repetitions: int = 15) -> float:
    """Returns the median wall time."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--participants", type=int, default=150)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--theta-u", type=float, default=0.1)
    options = parser.parse_args()
    sgd, rng = make_sgd(), np.random.default_rng(0)
    start = sgd.parameters()

    def train():
        x = rng.uniform(size=(600, 784)).astype(np.float32)
        return sgd.on(x, rng.integers(0, 10, 600).astype(np.int32))

    server = selective.ParameterServer(start)
    upload = selective.LargestValues(options.theta_u, 10.0)
    participants = {i: selective.Participant(train(), upload) for i in range(options.participants)}
    walls, processors = [], []
    for _ in range(options.epochs + 1):
        wall, processor = time.perf_counter(), time.process_time()
        if selective.run_epoch(server, participants):
            raise RuntimeError("A turn failed.")
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    print(
        f"{options.participants} participants, theta_u {options.theta_u:g}: an epoch takes "
        f"{statistics.median(walls[1:]):.2f} s, {statistics.median(processors[1:]):.2f} s of "
        f"processor time; uploads {server.bytes_received / server.version:,.0f} bytes each"
    )
    epoch = train()
    changes = epoch(start) - start
    noise = {
        "sparse vector": selective.SparseVectorUpload(
            options.theta_u, 0.01, 0.0001, 1000.0, PrivacyLedger()
        ),
        "Gaussian": selective.GaussianUpload(options.theta_u, 0.3, 1.0, 10.0, PrivacyLedger()),
    }
    everything = server.download(1.0)
    parts = {
        "an epoch on 600 images": lambda: epoch(start),
        "largest values": lambda: upload(changes),
        "download of everything": lambda: server.download(1.0),
        "reading it": lambda: decode(everything, len(start)),
        **{name: (lambda select=select: select(changes)) for name, select in noise.items()},
    }
    for name, function in parts.items():
        print(f"  {name:24} {milliseconds(function):7.2f} ms")


if __name__ == "__main__":
    main()
