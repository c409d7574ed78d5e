"""Runs an app in Flower's own simulation, and prints its weights beside those of a loop.

python -m tests.federated.simulated
"""

import json

import numpy as np
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from tests.federated import rounds
from tfdp.federated import Clients, LocalSGD, LocalTraining, Server, flower
from tfdp.query import GaussianAverageQuery
from tfdp.sampling import FullBatch

CLIENTS, ROUNDS = 3, 2
SGD = LocalSGD(epochs=1, batch_size=8, learning_rate=0.1)
server_app = ServerApp()


def _model():
    query = GaussianAverageQuery(rounds.CLIP, stddev=0.0, denominator=CLIENTS)
    return rounds.model(query=query)


def _data(number):
    rng = np.random.default_rng(number)
    return rng.normal(size=(8, 3)).astype("float32"), rng.normal(size=(8, 2)).astype("float32")


def _compiled(context):
    model = rounds.plain()
    model.compile(loss="mse")
    return model


def _loop():
    """Returns the weights after the same rounds without Flower."""
    model, training = _model(), LocalTraining(_compiled(None), SGD)
    server = Server(model, range(CLIENTS), sampling=FullBatch())

    def answer(current):
        for number in current.cohort:
            x, y = _data(number)
            clients = Clients(x[None], y[None], np.arange(8)[None, None])
            update = training.updates(current.weights, clients)
            current.receive(number, [part[0] for part in update])

    server.train(answer, ROUNDS)
    return rounds.weights(model)


@server_app.main()
def main(grid, context):
    """Runs the rounds on the simulated nodes."""
    model = _model()
    server = Server(model, flower.nodes(grid, CLIENTS), sampling=FullBatch())
    flower.RoundStrategy(server).start(grid, num_rounds=ROUNDS, timeout=200)
    found = {"simulated": rounds.weights(model), "loop": _loop()}
    lists = {name: [part.tolist() for part in parts] for name, parts in found.items()}
    print("FOUND", json.dumps({**lists, "charged": model.ledger.total_count}), flush=True)


if __name__ == "__main__":
    client_app = flower.client(
        _compiled, lambda context: _data(context.node_config["partition-id"]), SGD
    )
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=resources)
