"""Seconds of rounds of pfl-research's simulation, with PyTorch and its Gaussian mechanism, as JSON.

In an environment of its own with `pfl[pytorch]`.
"""

import importlib.metadata
import json
import sys
import time

import federated_task as task
import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism


class Network(torch.nn.Module):
    """The multilayer perceptron, with the methods that pfl calls."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(task.FEATURES, task.HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(task.HIDDEN, task.CLASSES),
        )

    def loss(self, x, y, is_eval=False):
        return torch.nn.functional.cross_entropy(self.layers(x), y)

    def metrics(self, x, y):
        return {}


class Clock(TrainingProcessCallback):
    """Notes when rounds end."""

    def __init__(self):
        self.times = [time.perf_counter()]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.times.append(time.perf_counter())
        return False, Metrics()


def main(rounds: int) -> None:
    """Runs rounds; the first one is reported apart."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    x, y = task.data()
    x, y = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))
    users = list(range(task.CLIENTS))
    data = FederatedDataset(
        lambda user: Dataset([x[user], y[user]], user_id=str(user)),
        get_user_sampler("random", users),
    )
    network = Network()
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    model = PyTorchModel(network, local_optimizer_create=torch.optim.SGD, central_optimizer=central)
    mechanism = CentrallyAppliedPrivacyMechanism(
        GaussianMechanism(task.CLIP, task.NOISE_MULTIPLIER)
    )
    backend = SimulatedBackend(data, data, postprocessors=[mechanism])
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10 * rounds,
            train_cohort_size=task.COHORT,
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=task.EPOCHS,
            local_learning_rate=task.LEARNING_RATE,
            local_batch_size=task.BATCH,
        ),
        callbacks=[clock],
    )
    seconds = [b - a for a, b in zip(clock.times, clock.times[1:], strict=False)]
    version = f"pfl {importlib.metadata.version('pfl')}"
    print(json.dumps({"version": version, "first": seconds[0], "rounds": seconds[1:]}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
