"""What `for_budget` plans is what a whole fit then costs."""

import keras
import numpy as np
import pytest
import toy

from tfdp.accounting import calibrate
from tfdp.keras import DPOptimizer

DELTA = 1e-4


@pytest.mark.parametrize(("population", "epochs"), [(130, 2), (39, 3)])
@pytest.mark.parametrize("unit", ["example", "microbatch"])
def test_microbatches_end_within_the_budget(population, epochs, unit):
    """130 examples are 33 units of 4: 7 steps an epoch, where 130 / 20 are 6."""
    batch_size, microbatches = 20, 5
    optimizer = DPOptimizer.for_budget(
        keras.optimizers.SGD(0.1),
        1.0,
        batch_size=batch_size,
        num_microbatches=microbatches,
        privacy_unit=unit,
        target_epsilon=3.0,
        target_delta=DELTA,
        population_size=population,
        epochs=epochs,
    )
    model = toy.private(toy.linear(), optimizer)
    x = np.random.default_rng(0).normal(size=(population, 4)).astype("float32")
    y = np.arange(population) % 2
    model.fit(x, y, batch_size=batch_size, epochs=epochs, verbose=0)
    size = batch_size // microbatches if unit == "microbatch" else 1
    planned = calibrate(
        target_epsilon=3.0,
        target_delta=DELTA,
        population_size=-(-population // size),
        batch_size=batch_size // size,
        epochs=epochs,
    )
    assert model.ledger.total_count == planned.steps
    assert 2.9 < model.ledger.epsilon(DELTA) <= 3.0


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"batch_size": 18}, ValueError, "num_microbatches divides"),
        ({"batch_size": 20.0}, TypeError, "batch_size"),
        ({"population_size": "many"}, TypeError, "population_size"),
        ({"num_microbatches": None}, ValueError, "needs num_microbatches"),
    ],
)
def test_units_that_cannot_be_made_are_refused(changes, error, message):
    arguments = {"batch_size": 20, "num_microbatches": 5, "population_size": 130, **changes}
    with pytest.raises(error, match=message):
        DPOptimizer.for_budget(
            keras.optimizers.SGD(0.1),
            1.0,
            privacy_unit="microbatch",
            target_epsilon=3.0,
            target_delta=DELTA,
            epochs=2,
            **arguments,
        )
