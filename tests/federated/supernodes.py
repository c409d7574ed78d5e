"""The apps of `supernodes_test.py`: a server and five clients, of which two are honest.

Clients import NumPy only, so that their processes begin quickly.
"""

import json
import os
import pathlib
import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

ROUNDS, CLIENTS = 3, 5
HONEST = ("honest-0", "honest-1")
client_app, server_app = ClientApp(), ServerApp()


def _folder():
    return pathlib.Path(os.environ["TFDP_TEST_FOLDER"])


def honest_update(name):
    """Returns an update of norm 1, another one for each name."""
    first, second = np.zeros((3, 2), "float32"), np.zeros(2, "float32")
    first[HONEST.index(name), 0] = 1.0
    return [first, second]


def malicious_update(number):
    """Returns what the malicious client sends in a round: NaN, a huge norm, a wrong shape."""
    huge = np.full((3, 2), 1e10, "float32")
    return [
        [huge * np.nan, np.zeros(2, "float32")],
        [huge, np.zeros(2, "float32")],
        [huge.T.copy(), np.zeros(2, "float32")],
    ][number - 1]


@client_app.train()
def train(message, context):
    """Answers as the role of the node says."""
    role = context.node_config["role"]
    number = int(message.metadata.group_id)
    (_folder() / f"asked-{role}-{number}").touch()
    if role in ("killed", "slow"):
        time.sleep(3600)
    update = malicious_update(number) if role == "malicious" else honest_update(role)
    answer = ConfigRecord({"token": message.content["config"]["token"]})
    return Message(RecordDict({"update": ArrayRecord(update), "answer": answer}), reply_to=message)


@server_app.main()
def main(grid, context):
    """Runs the rounds, without noise, and writes down what the ledger said when nodes were asked.

    The ledger is read from the disk, as somebody else would.
    """
    import tfdp
    from tests.federated import rounds
    from tfdp.federated import Server, flower
    from tfdp.keras import NotPrivateError
    from tfdp.sampling import FullBatch

    path = _folder() / "rounds.ledger"
    model = rounds.model(stddev=0.0, ledger=tfdp.PrivacyLedger.open(path, create=True, lease=1))
    charged, weights = [], []

    class Watched(flower.RoundStrategy):
        def configure_train(self, *arguments):
            charged.append(tfdp.PrivacyLedger.load(path).total_count)
            return super().configure_train(*arguments)

    try:
        names = flower.nodes(grid, CLIENTS, timeout=240.0)
    except NotPrivateError as error:
        part = _folder() / "refused.part"
        part.write_text(str(error))
        part.rename(_folder() / "refused")
        raise
    Watched(Server(model, names, sampling=FullBatch())).start(
        grid,
        num_rounds=ROUNDS,
        timeout=float(os.environ["TFDP_TEST_TIMEOUT"]),
        evaluate_fn=lambda number, arrays: weights.append(arrays.to_numpy_ndarrays()),
    )
    moved = [
        [(b - a).tolist() for a, b in zip(before, after, strict=True)]
        for before, after in zip(weights, weights[1:], strict=False)
    ]
    found = {"nodes": names, "charged": charged, "moved": moved}
    part = _folder() / "found.part"
    part.write_text(json.dumps(found))
    part.rename(_folder() / "found.json")
