"""Search for hyper-parameters on private data, charged as one release: that of the winner."""

from tfdp.tuning.drawing import keras_tuner_values, optuna_trials
from tfdp.tuning.search import BestRun, private_search
from tfdp.tuning.stopping import NumberOfRuns, PoissonRuns, TruncatedNegativeBinomialRuns

__all__ = [
    "BestRun",
    "NumberOfRuns",
    "PoissonRuns",
    "TruncatedNegativeBinomialRuns",
    "keras_tuner_values",
    "optuna_trials",
    "private_search",
]
