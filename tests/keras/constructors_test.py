"""tfdp.keras.DPOptimizer.for_budget: a run as planned ends just within the budget."""

import keras
import numpy as np
import pytest

import tfdp
from tfdp.accounting import RDPAccountant, UnreachableBudgetError
from tfdp.keras import DPOptimizer

X = np.random.default_rng(0).normal(size=(120, 4)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")

BUDGET = {"target_epsilon": 2.0, "target_delta": 1e-4, "population_size": 120}


def _for_budget(**changes):
    arguments = {**BUDGET, "batch_size": 30, "epochs": 3, "accountant": "rdp"}
    return DPOptimizer.for_budget(keras.optimizers.SGD(0.1), 0.5, **{**arguments, **changes})


def _fit(optimizer, **arguments):
    model = tfdp.keras.make_private(
        keras.Sequential([keras.Input([4]), keras.layers.Dense(1, activation="sigmoid")])
    )
    model.compile(optimizer=optimizer, loss="binary_crossentropy")
    model.fit(X, Y, verbose=0, **{"batch_size": 30, "epochs": 3, **arguments})
    return model.ledger.replay(RDPAccountant()).get_epsilon(1e-4)


@pytest.mark.parametrize(
    ("plan", "sampling"),
    [
        ({}, {}),
        ({"sampling": "shuffled"}, {"sampling": tfdp.sampling.Shuffled()}),
        ({"sampling": "fixed_size"}, {"sampling": tfdp.sampling.FixedSize()}),
        ({"num_microbatches": 30}, {}),
        ({"num_microbatches": 10}, {}),
        ({"num_microbatches": 10, "privacy_unit": "microbatch"}, {}),
    ],
    ids=["poisson", "shuffled", "fixed size", "records", "microbatches", "units"],
)
def test_a_run_as_planned_ends_just_within_the_budget(plan, sampling):
    epsilon = _fit(_for_budget(**plan), **sampling)
    assert 2.0 * (1 - 5e-3) < epsilon <= 2.0


def test_what_was_done_before_is_in_the_budget():
    def begun():
        ledger = tfdp.PrivacyLedger()
        ledger.append(tfdp.events.GaussianSumEvent(1.0, 3.0))
        return ledger

    assert 1.0 < begun().epsilon(1e-4, "rdp") < 1.5
    epsilon = _fit(_for_budget(ledger=begun()))
    assert 2.0 * (1 - 5e-3) < epsilon <= 2.0
    # With the noise of a run that knows nothing of it the budget is exceeded.
    query = _for_budget().query
    assert _fit(DPOptimizer(keras.optimizers.SGD(0.1), query, ledger=begun())) > 2.05


def test_steps_in_place_of_epochs():
    assert _for_budget(epochs=None, steps=12).query == _for_budget().query


def test_one_epoch_more_exceeds_it():
    # So that the tests above can tell.
    assert _fit(_for_budget(), epochs=4) > 2.0


@pytest.mark.parametrize(
    ("changes", "factor", "denominator"),
    [
        ({}, 1, 30),
        ({"num_microbatches": 30}, 1, 30),
        ({"num_microbatches": 10}, 2, 10),
        ({"num_microbatches": 10, "privacy_unit": "microbatch"}, 1, 10),
    ],
    ids=["examples", "records", "microbatches", "units"],
)
def test_query_of_the_budget(changes, factor, denominator):
    noise = tfdp.noise_for_budget(
        2.0, 1e-4, population_size=120, batch_size=30, epochs=3, accountant="rdp"
    )
    expected = tfdp.GaussianAverageQuery(
        0.5, noise_multiplier=noise * factor, denominator=denominator
    )
    assert _for_budget(**changes).query == expected


def test_other_arguments_reach_the_optimizer():
    ledger = tfdp.PrivacyLedger()
    optimizer = _for_budget(physical_batch_size=7, ledger=ledger, name="private")
    assert (optimizer.physical_batch_size, optimizer.name) == (7, "private")
    assert optimizer.ledger is ledger


class _Dear:
    def compose(self, event, count):
        pass

    def get_epsilon(self, target_delta):
        return 3.0


def test_errors_are_those_of_calibration():
    with pytest.raises(ValueError, match="batch_size must be at most"):
        _for_budget(batch_size=121)
    with pytest.raises(UnreachableBudgetError, match="it is still 3"):
        _for_budget(accountant=_Dear)
    with pytest.raises(TypeError, match="magic"):
        _for_budget(magic=1)
