"""A delta of one in the population or more is named, wherever the population is known."""

import pytest

from tfdp.accounting.planning.target_delta import (
    careful_lines,
    delta_warning,
    largest_population,
)
from tfdp.events import (
    ComposedEvent,
    GaussianSumEvent,
    PoissonSampling,
    RunEvent,
    SampledEvent,
    ShuffledSampling,
)

SUM = GaussianSumEvent(1.0, 2.0)


@pytest.mark.parametrize(
    ("delta", "population", "large"),
    [
        (1e-3, 1000, True),
        (9.99e-4, 1000, False),
        (1e-6, 1_000_000, True),
        (1e-7, 1_000_000, False),
        (0.99, 1, False),
        (0.5, None, False),
    ],
)
def test_delta_has_to_be_below_one_in_the_population(delta, population, large):
    said = delta_warning(delta, population)
    assert (said is not None) == large
    assert careful_lines(delta, population) == ([f"careful: {said}"] if large else [])
    if large:
        assert f"{delta:g}" in said and str(population) in said


def test_population_is_the_largest_that_is_recorded_anywhere_in_the_events():
    small, large = (SampledEvent(PoissonSampling(0.01, size), SUM) for size in (1000, 5000))
    passes = SampledEvent(ShuffledSampling(10, 3000), SUM)
    assert largest_population([small, SUM, passes]) == 3000
    assert largest_population([RunEvent((small, large), (3, 2)), passes]) == 5000
    unknown = SampledEvent(PoissonSampling(0.01), ComposedEvent((SUM, SUM)))
    assert largest_population([SUM, unknown]) is None and largest_population([]) is None
    assert largest_population([unknown, small]) == 1000
