"""Models, updates and queries that tests of rounds share; run as a script, it kills itself."""

import os
import signal
import sys

import keras
import numpy as np

import tfdp
from tfdp.factorizations import banded_square_root
from tfdp.federated import Server
from tfdp.query import (
    CorrelatedGaussianSumQuery,
    GaussianAverageQuery,
    JointClippingQuery,
    NormalizedQuery,
    QuantileAdaptiveClipSumQuery,
    TreeCumulativeSumQuery,
    TreeResidualSumQuery,
    WeightedAverageQuery,
    per_layer,
    secure_sum_query,
)
from tfdp.sampling import FixedOrder, FullBatch

CLIP = 1.5
NAMES = tuple(f"client-{i}" for i in range(6))
SHAPES = ((3, 2), (2,))


def plain():
    """Returns one dense layer, the same weights each time."""
    keras.utils.set_random_seed(5)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def _specs():
    return [np.zeros(shape, "float32") for shape in SHAPES]


def _tree(noise_multiplier):
    return TreeResidualSumQuery.build_l2_gaussian_query(
        CLIP, noise_multiplier, _specs(), num_steps=6, period=3
    )


def _shares(noise_multiplier, noise):
    # Two of the six may stay away. There is no such query without noise.
    query = secure_sum_query(
        l2_norm_clip=CLIP,
        noise_multiplier=max(noise_multiplier, 1e-5),
        num_coordinates=8,
        num_records=6,
        noise=noise,
        min_contributors=4,
        modulus_bits=24,
    )
    return NormalizedQuery(query, 6)


# Noise multiplier -> query of six expected clients.
QUERIES = {
    "gaussian": lambda z: GaussianAverageQuery(CLIP, noise_multiplier=z, denominator=6),
    "exact": lambda z: GaussianAverageQuery(
        CLIP, noise_multiplier=z, denominator=6, precision="exact"
    ),
    "weighted": lambda z: WeightedAverageQuery(
        CLIP, noise_multiplier=z, denominator=6, max_weight=2.0
    ),
    "per_layer": lambda z: per_layer(_specs(), CLIP, z, 6),
    "joint": lambda z: NormalizedQuery(JointClippingQuery([0.25, 4.0], CLIP, z * CLIP), 6),
    "adaptive": lambda z: NormalizedQuery(
        QuantileAdaptiveClipSumQuery(CLIP, z, 0.5, 0.2, max(z, 1e-9) * 0.3, 6.0), 6
    ),
    "correlated": lambda z: NormalizedQuery(
        CorrelatedGaussianSumQuery(CLIP, z * CLIP, banded_square_root(2), 6, 3, _specs()), 6
    ),
    "tree": lambda z: NormalizedQuery(_tree(z), 6),
    "running_sums": lambda z: NormalizedQuery(TreeCumulativeSumQuery(_tree(z)), 6),
    "discrete_shares": lambda z: _shares(z, "discrete_gaussian"),
    "skellam_shares": lambda z: _shares(z, "skellam"),
}
_REMEMBER = ("correlated", "tree", "running_sums")
# Records are rounded to a grid at random.
ROUNDED = ("discrete_shares", "skellam_shares")


def sampling_of(kind):
    return FixedOrder() if kind in _REMEMBER else FullBatch()


def cohort_size_of(kind):
    return 2 if kind in _REMEMBER else None


def bound_of(kind):
    """Returns by how much one client moves the sum, in the norm of the weights."""
    # Joint clipping bounds the norm of the parts times their scales.
    return {"weighted": 2.0 * CLIP, "joint": CLIP / 0.25}.get(kind, CLIP)


def model(stddev=1.0, query=None, inner=None, unit="user", ledger=None, metrics=None):
    """Returns a private model whose optimizer is SGD(1) over the average of six clients."""
    query = GaussianAverageQuery(CLIP, stddev=stddev, denominator=6) if query is None else query
    inner = keras.optimizers.SGD(1.0) if inner is None else inner
    made = tfdp.keras.make_private(plain())
    optimizer = tfdp.keras.DPOptimizer(inner, query, privacy_unit=unit, ledger=ledger)
    made.compile(optimizer, loss="mse", metrics=metrics)
    return made


def weights(made):
    return [v.numpy().copy() for v in made.trainable_variables]


def assert_close(actual, expected, tolerance=1e-6):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def assert_weights(made, expected, tolerance=1e-6):
    assert_close(weights(made), expected, tolerance)


def update(seed, scale=1.0):
    """Returns an update of norm `scale`."""
    rng = np.random.default_rng(seed)
    parts = [rng.normal(size=shape) for shape in SHAPES]
    norm = np.sqrt(sum(np.sum(part**2) for part in parts))
    return [np.float32(scale * part / norm) for part in parts]


def stacked():
    """Returns an update of every client, with an axis of clients in front."""
    updates = [update(seed) for seed in range(len(NAMES))]
    return [np.stack(parts) for parts in zip(*updates, strict=True)]


def answer_all(current, weight=None):
    """Answers for every client of the cohort."""
    for client in current.cohort:
        token = current.token_of(client)
        current.receive(client, update(NAMES.index(client)), token=token, weight=weight)


def _dies_in_the_second_round(path):
    made = model(ledger=tfdp.PrivacyLedger.open(path, create=True))
    server = Server(made, NAMES, sampling=FullBatch())
    for current in server.rounds(3):
        print("asked", current.number, flush=True)
        answer_all(current)
        if current.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        print("released", current.number, flush=True)


if __name__ == "__main__":
    _dies_in_the_second_round(sys.argv[1])
