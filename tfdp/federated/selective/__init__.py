"""Distributed selective SGD (Shokri and Shmatikov 2015): participants keep their data, and share
some of the changes of their parameters through a server.
"""

from tfdp.federated.selective.exchange import (
    AsynchronousExchange,
    Turn,
    random_order,
    run_epoch,
)
from tfdp.federated.selective.local_sgd import LocalSGD
from tfdp.federated.selective.participant import Participant, Server
from tfdp.federated.selective.private_uploads import GaussianUpload, SparseVectorUpload
from tfdp.federated.selective.selection import LargestValues, RandomAboveThreshold
from tfdp.federated.selective.server import ParameterServer
from tfdp.federated.selective.sparse import BadMessageError, SparseVector

__all__ = [
    "AsynchronousExchange",
    "BadMessageError",
    "GaussianUpload",
    "LargestValues",
    "LocalSGD",
    "ParameterServer",
    "Participant",
    "RandomAboveThreshold",
    "Server",
    "SparseVector",
    "SparseVectorUpload",
    "Turn",
    "random_order",
    "run_epoch",
]
