"""tfdp.accounting.renyi.moments: psi without cancellation, sums without overflow."""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.accounting.renyi.moments import log_sum_psi


def _slow(log_weights, losses, scale):
    with mpmath.workdps(60):
        total = mpmath.mpf(0)
        for log_weight, loss in zip(log_weights, losses, strict=True):
            y = mpmath.mpf(float(scale)) * mpmath.mpf(float(loss))
            total += mpmath.exp(mpmath.mpf(float(log_weight))) * (mpmath.exp(y) - 1 - y)
        return float(mpmath.log(total))


@given(
    st.lists(st.tuples(st.floats(-300, 50), st.floats(-5, 5)), min_size=1, max_size=5),
    st.sampled_from([1e-9, 1e-3, 0.3, 1.0, -1.0, 40.0, 900.0, -900.0]),
)
def test_equals_high_precision(terms, scale):
    log_weights, losses = np.array(terms).T
    losses = np.where(np.abs(losses) < 1e-6, 1e-6, losses)
    result = log_sum_psi(log_weights, losses, scale)
    assert np.exp(result - _slow(log_weights, losses, scale)) == pytest.approx(1, rel=2e-12)


@pytest.mark.parametrize("y", [1e-12, 1e-3, 0.0099, 0.0101, 0.99, 1.01, 599.0, 601.0])
def test_thresholds_do_not_show(y):
    for sign in (1, -1):
        value = float(log_sum_psi(np.zeros(1), np.array([sign * y]), 1.0))
        assert value == pytest.approx(_slow([0.0], [sign * y], 1), rel=1e-13, abs=1e-12)


def test_tiny_losses_keep_their_square():
    assert float(log_sum_psi(np.zeros(1), np.array([1e-150]), 1.0)) == pytest.approx(
        np.log(0.5) - 300 * np.log(10), rel=1e-14
    )


def test_no_loss_is_minus_infinity():
    assert log_sum_psi(np.zeros(3), np.zeros(3), 5.0) == -np.inf


def test_broadcasts_scales():
    losses = np.linspace(-1, 2, 7)
    scales = np.array([[0.5], [3.0], [2000.0]])
    together = log_sum_psi(-losses, losses, scales)
    assert together.shape == (3,)
    for value, scale in zip(together, scales[:, 0], strict=True):
        assert value == pytest.approx(float(log_sum_psi(-losses, losses, scale)), rel=1e-14)


def test_given_weights_change_nothing():
    losses = np.linspace(-1, 2, 7)
    assert log_sum_psi(losses, losses, 2.0) == log_sum_psi(losses, losses, 2.0, np.exp(losses))
