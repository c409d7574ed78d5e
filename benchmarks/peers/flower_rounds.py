"""Seconds of rounds of Flower's simulation engine with its own differential privacy, as JSON.

In an environment with `flwr[simulation]`, TensorFlow and Keras. A worker process builds the model
once and keeps it; rounds are timed at the server, between two evaluations that do nothing.
"""

import functools
import json
import logging
import os
import sys
import time

import federated_task as task

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import flwr
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

app = ClientApp()


@functools.cache
def _kept():
    """Returns data and model of a worker process."""
    return task.data(), task.keras_model()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains on the data of one client."""
    (x, y), model = _kept()
    client = int(context.node_config["partition-id"])
    model.set_weights(message.content["arrays"].to_numpy_ndarrays())
    order = np.random.default_rng().permutation(task.EXAMPLES)
    for start in range(0, task.EXAMPLES, task.BATCH):
        rows = order[start : start + task.BATCH]
        model.train_on_batch(x[client][rows], y[client][rows])
    found = RecordDict(
        {
            "arrays": ArrayRecord(model.get_weights()),
            "metrics": MetricRecord({"num-examples": task.EXAMPLES}),
        }
    )
    return Message(content=found, reply_to=message)


def main(rounds: int) -> None:
    """Runs rounds; the first one, in which workers start, is reported apart."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    times: list[float] = []
    server = ServerApp()

    @server.main()
    def _(grid: Grid, context: Context) -> None:
        averaging = FedAvg(
            fraction_train=task.COHORT / task.CLIENTS,
            fraction_evaluate=0.0,
            min_available_nodes=task.CLIENTS,
        )
        strategy = DifferentialPrivacyServerSideFixedClipping(
            averaging, task.NOISE_MULTIPLIER, task.CLIP, task.COHORT
        )

        def evaluate(number, arrays):
            times.append(time.perf_counter())

        start = ArrayRecord(task.keras_model().get_weights())
        strategy.start(grid, start, num_rounds=rounds, evaluate_fn=evaluate)

    backend = {"client_resources": {"num_cpus": 1}, "init_args": {"log_to_driver": False}}
    run_simulation(server, app, num_supernodes=task.CLIENTS, backend_config=backend)
    seconds = [b - a for a, b in zip(times, times[1:], strict=False)]
    if len(seconds) != rounds:
        raise SystemExit(f"{len(seconds)} of {rounds} rounds ended.")
    version = f"flwr {flwr.__version__}"
    print(json.dumps({"version": version, "first": seconds[0], "rounds": seconds[1:]}))


if __name__ == "__main__":
    # Workers unpickle the app by the name of its module, which must not be __main__.
    import flower_rounds

    flower_rounds.main(int(sys.argv[1]))
