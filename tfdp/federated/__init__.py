"""Training on data that stays with its owners: a record is what a client sends, or a participant.

What is here needs no Flower: it is imported where apps of Flower are made, and by nothing else
(`pip install -e ".[federated]"`).
"""

from tfdp.federated.adaptive import FedAdagrad, FedAdam, FedYogi
from tfdp.federated.local import Clients, LocalSGD, LocalTraining
from tfdp.federated.secure_sum import encoded
from tfdp.federated.server import Round, Server
from tfdp.federated.simulation import Simulation
from tfdp.federated.updates import InvalidUpdateError

__all__ = [
    "Clients",
    "FedAdagrad",
    "FedAdam",
    "FedYogi",
    "InvalidUpdateError",
    "LocalSGD",
    "LocalTraining",
    "Round",
    "Server",
    "Simulation",
    "encoded",
]
