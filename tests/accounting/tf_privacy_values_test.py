"""Epsilons that TensorFlow Privacy publishes in its tests: the same by the same accountant.

Ours are never larger, and near.
"""

import math

import pytest

import tfdp
from tfdp.accounting import PRVAccountant, RDPAccountant
from tfdp.events import (
    FixedOrderSampling,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    SampledEvent,
    TreeGaussianSumEvent,
)


def _ledger(noise_multiplier, steps, probability=None, bound=1.0):
    """Returns steps of Poisson samples; without a probability, passes in which each is once."""
    event = GaussianSumEvent(bound, noise_multiplier)
    if probability is not None:
        relation = NeighboringRelation.ADD_OR_REMOVE_ONE
        event = SampledEvent(PoissonSampling(probability), event, relation)
    ledger = tfdp.PrivacyLedger()
    ledger.append(event, steps)
    return ledger


@pytest.mark.parametrize(
    ("n", "batch_size", "noise_multiplier", "epochs", "delta", "published"),
    [
        (60_000, 150, 1.3, 15, 1e-5, 0.7242234026109595),
        (100_000, 100, 1.0, 30, 1e-7, 1.4154988495444842),
    ],
)
def test_compute_dp_sgd_privacy(n, batch_size, noise_multiplier, epochs, delta, published):
    ledger = _ledger(noise_multiplier, math.ceil(epochs * n / batch_size), batch_size / n)
    assert ledger.epsilon(delta, "dp_accounting.rdp") == pytest.approx(published, rel=1e-9)
    # All orders are searched here, and some are tried there.
    assert 0.99 * published < ledger.epsilon(delta, "rdp") <= published


def test_noise_of_a_tenth_on_tiny_samples():
    # Published is 5907982.3: of that, any bound is far below.
    ledger = _ledger(0.1, math.ceil(10 * 1e8 / 1024), 1024 / 1e8)
    assert 1000 < ledger.epsilon(1e-7, "rdp") < 5907982.3113984


@pytest.mark.parametrize(
    ("bound", "probability", "rdp", "pld"),
    [
        (1.0, None, 10.8602036, 10.1224946),
        (2.0, None, 26.2880374, 24.7160779),
        (1.0, 1e-2, 3.2392676, 2.4612381),
        (2.0, 1e-2, 22.6248601, 18.6977407),
    ],
)
def test_example_privacy(bound, probability, rdp, pld):
    # 1.2 epochs are two passes, or 120 steps. A microbatch of several examples moves by two clips.
    ledger = _ledger(0.7, 2 if probability is None else 120, probability, bound)
    assert ledger.epsilon(1e-5, "dp_accounting.rdp") == pytest.approx(rdp, abs=1e-6)
    assert ledger.epsilon(1e-5, "pld") == pytest.approx(pld, rel=1e-6)
    assert 0.97 * rdp < ledger.epsilon(1e-5, "rdp") <= rdp


@pytest.mark.parametrize(
    ("probability", "rdp", "pld", "three_by_rdp", "two_by_pld"),
    [(None, 13.376, 12.595, 56.224, 30.579), (64 / 10_000, 1.616, 1.199, 6.425, 2.532)],
)
def test_statement(probability, rdp, pld, three_by_rdp, two_by_pld):
    # 5 epochs of batches of 64 from 10,000 examples; noise 2 over microbatches that move by 2.
    ledger = _ledger(2.0, 5 if probability is None else 782, probability, 2.0)
    assert ledger.epsilon(1e-6, "dp_accounting.rdp") == pytest.approx(rdp, abs=5e-4)
    assert ledger.epsilon(1e-6, "pld") == pytest.approx(pld, abs=5e-4)
    # Groups of three by RDP; of two by distributions, whose epsilon they round down.
    assert ledger.epsilon(1e-6, RDPAccountant(group_size=3)) <= three_by_rdp
    assert ledger.epsilon(1e-6, PRVAccountant(group_size=2)) == pytest.approx(two_by_pld, abs=1e-3)


@pytest.mark.parametrize(
    ("n", "batch_size", "epsilon", "epochs", "delta", "published"),
    [
        (60_000, 150, 0.941870567, 15, 1e-5, 1.3),
        (100_000, 100, 1.70928734, 30, 1e-7, 1.0),
    ],
)
def test_compute_noise(n, batch_size, epsilon, epochs, delta, published):
    arguments = {"population_size": n, "batch_size": batch_size, "epochs": epochs}
    found = tfdp.noise_for_budget(epsilon, delta, accountant="rdp", **arguments)
    assert 0.8 * published < found <= published


@pytest.mark.parametrize(("noise_multiplier", "published"), [(1.13, 19.74), (8.83, 2.04)])
def test_tree_of_1600_steps(noise_multiplier, published):
    ledger = tfdp.PrivacyLedger()
    for step in range(1600):
        event = TreeGaussianSumEvent(1.0, noise_multiplier, 1600, 1600, position=step, run_id=1)
        sampling = FixedOrderSampling(100, 160_000, step)
        ledger.append(SampledEvent(sampling, event, NeighboringRelation.ZERO_OUT))
    assert 0.8 * published < ledger.epsilon(1e-6, "rdp") < published


def test_zcdp_of_a_published_model():
    # rho = 0.81 is a Gaussian with noise 1 / sqrt(2 rho).
    ledger = _ledger(1 / math.sqrt(2 * 0.81), 1)
    assert ledger.epsilon(1e-10, "rdp") == pytest.approx(8.92, abs=0.01)
