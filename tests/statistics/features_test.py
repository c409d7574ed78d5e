"""Selected features, principal components, and all that is done with one data set on one ledger."""

import keras
import numpy as np
import pytest

import tfdp.keras
from tfdp.accounting import Budget, PrivacyBudgetExceededError, RDPAccountant
from tfdp.events import ComposedEvent, DiscreteGaussianSumEvent, PureEpsilonEvent
from tfdp.ledger import PrivacyLedger
from tfdp.statistics import PrivateData
from tfdp.statistics.features import _products, _scores
from tfdp.statistics.noise import STEPS


def _rows(number=500, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, [number, 5])
    return np.column_stack([rows, np.clip(rows[:, 2] - 0.7 * rows[:, 4], -1, 1)])


def test_features_that_explain_the_target_are_selected():
    data = PrivateData(_rows())
    assert set(data.select_features(5, 2, epsilon=20.0)) == {2, 4}
    (entry,) = data.ledger
    assert entry.event.event == ComposedEvent((PureEpsilonEvent(10.0),) * 2)
    # With little noise the best one comes first, whatever its sign.
    assert data.select_features(5, 5, epsilon=1e4)[:2] == [2, 4]


def test_a_row_moves_scores_by_at_most_one_and_not_finite_ones_are_zero():
    values = np.array([5.0, -1e300, np.nan, np.inf, 0.5])
    assert _scores(values, values).tolist() == [2**20, 2**20, 0, 0, 2**18]


def test_directions_are_those_of_the_scatter_matrix():
    rng = np.random.default_rng(1)
    axes = np.linalg.qr(rng.normal(size=[3, 3]))[0]  # Columns depend on each other.
    rows = rng.normal(size=[2000, 3]) * [0.02, 2.0, 0.7] @ axes
    data = PrivateData(rows + 1)
    found = data.principal_components(
        2, l2_norm_clip=10.0, noise_multiplier=0.01, center=[1.0, 1.0, 1.0]
    )
    # Rounding of rows to a part of 2^-13 of the clip takes 4 of the largest, and noise has a
    # standard deviation of 1: the bounds are 8 of them for values, and 10 for directions, as the
    # values are at least 1000 apart.
    values, vectors = np.linalg.eigh(rows.T @ rows)
    assert found.scatter == pytest.approx(values[:0:-1], abs=12)
    assert np.abs(found.directions) == pytest.approx(np.abs(vectors[:, :0:-1].T), abs=0.01)
    (entry,) = data.ledger
    assert entry.event.event == DiscreteGaussianSumEvent(1, 0.01, 1 / STEPS, 6)


@pytest.mark.parametrize("seed", range(5))
def test_a_row_moves_the_scatter_matrix_by_at_most_one(seed):
    rng = np.random.default_rng(seed)
    upper = np.triu_indices(4)
    rows = rng.normal(size=[50, 4]) * 10.0 ** rng.integers(-3, 90, size=[50, 1])
    rows[0], rows[1], rows[2] = np.nan, np.inf, [1e200, 0, 0, 0]
    for row in rows:
        moved = [int(x) for x in _products(row[None], 2.0)[upper]]
        assert sum(x * x for x in moved) <= STEPS**2
    assert sum(x * x for x in moved) > 0.3 * STEPS**2  # A long row nearly reaches the bound.
    assert not _products(rows[:3], 2.0).any()  # What is no number contributes nothing.


def test_products_are_exact_sums_of_integers():
    rows = np.random.default_rng(3).uniform(-1, 1, [100, 7])
    rows[0] *= 1e5
    norms = np.linalg.norm(rows, axis=1)
    clipped = rows / np.maximum(norms / 2, 1)[:, None]
    whole = [[int(x / 2 * (1 - 1e-12) * 2**13) for x in row] for row in clipped]
    expected = [[sum(row[i] * row[j] for row in whole) for j in range(7)] for i in range(7)]
    assert _products(rows, 2.0).tolist() == expected
    # Rows are told apart to a part of 2^-13 of the clip.
    assert _products(rows, 2.0) / STEPS * 4 == pytest.approx(clipped.T @ clipped, abs=0.05)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda d: d.select_features(5, 6, epsilon=1.0), "5 columns to select from"),
        (lambda d: d.principal_components(7, l2_norm_clip=1.0, noise_multiplier=1.0), "6 columns"),
        (
            lambda d: d.principal_components(
                1, l2_norm_clip=1.0, noise_multiplier=1.0, center=[0.0]
            ),
            "center must be 6 numbers",
        ),
    ],
)
def test_what_cannot_be_answered_costs_nothing(ask, message):
    data = PrivateData(_rows(5))
    with pytest.raises(ValueError, match=message):
        ask(data)
    assert data.ledger.total_count == 0


def test_statistics_features_components_and_training_are_one_ledger(tmp_path):
    rows, budget = _rows(256), Budget(8.0, 1e-5)
    with PrivacyLedger.open(tmp_path / "ledger.sqlite", create=True) as ledger:
        data = PrivateData(rows, ledger=ledger, budget=budget)
        means = [data[name].clip(-1, 1).mean(noise_multiplier=10.0) for name in range(2)]
        assert len(means) == 2
        chosen = data.select_features(5, 2, epsilon=1.0)
        components = data[[0, 1, 2, 3, 4]].principal_components(
            1, l2_norm_clip=1.0, noise_multiplier=8.0
        )
        left = data.left
        model = tfdp.keras.DPSequential([keras.layers.Dense(1)])
        query = tfdp.GaussianSumQuery(1.0, 2.0)
        optimizer = tfdp.keras.DPOptimizer(
            keras.optimizers.SGD(0.1), tfdp.NormalizedQuery(query, 32.0), ledger=ledger
        )
        model.compile(optimizer, loss="mse")
        x = np.column_stack([rows[:, chosen], rows[:, :5] @ components.directions[0]])
        model.fit(x, rows[:, 5:], batch_size=32, epochs=1, verbose=0)
        assert data.left < left
        with pytest.raises(PrivacyBudgetExceededError):
            data.count(epsilon=7.9)
        spent = ledger.epsilon(1e-5, "rdp")
    again = PrivacyLedger.load(tmp_path / "ledger.sqlite")
    assert again.replay(RDPAccountant()).get_epsilon(1e-5) == spent
    assert {event.privacy_unit for event, _ in again} == {"example"}
    assert len({type(event.event).__name__ for event, _ in again}) == 3


def test_no_row_of_principal_components_warns(recwarn):
    data = PrivateData(np.array([[1.0, 0.0], [-1.7e308, 0.0]]))
    data.principal_components(1, l2_norm_clip=1.0, noise_multiplier=1.0, center=[1e308, 0.0])
    assert not recwarn.list
