"""Events of runs and of the best of them."""

import pytest

from tfdp.events import (
    ComposedEvent,
    CorrelatedGaussianSumEvent,
    GaussianSumEvent,
    PoissonSelectedRunEvent,
    PureEpsilonEvent,
    RunEvent,
    SelectedRunEvent,
)

STEP = GaussianSumEvent(1.0, 2.0)
RUN = RunEvent((STEP,), (10,))
OF_RUN = CorrelatedGaussianSumEvent(1.0, 2.0, (1.0,), (1.0,), 20, 1, 0, 1)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: RunEvent((), ()), ValueError),
        (lambda: RunEvent((STEP,), (1, 2)), ValueError),
        (lambda: RunEvent((STEP,), (0,)), ValueError),
        (lambda: RunEvent((RUN,), (1,)), TypeError),
        (lambda: RunEvent((SelectedRunEvent((RUN,), 1.0, 0.5),), (1,)), TypeError),
        (lambda: RunEvent((OF_RUN,), (1,)), TypeError),
        (lambda: RunEvent((ComposedEvent((STEP, OF_RUN)),), (1,)), TypeError),
        (lambda: SelectedRunEvent((), 1.0, 0.5), ValueError),
        (lambda: SelectedRunEvent((STEP,), 1.0, 0.5), TypeError),
        (lambda: SelectedRunEvent((RUN,), -1.0, 0.5), ValueError),
        (lambda: SelectedRunEvent((RUN,), 1.0, 1.0), ValueError),
        (lambda: SelectedRunEvent((RUN,), 1.0, 0.0), ValueError),
        (lambda: PoissonSelectedRunEvent((), 2.0), ValueError),
        (lambda: PoissonSelectedRunEvent((STEP,), 2.0), TypeError),
        (lambda: PoissonSelectedRunEvent((RUN,), 0.5), ValueError),
    ],
)
def test_bad_arguments(make, error):
    with pytest.raises(error):
        make()


def test_equal_runs_stand_once_and_are_named():
    other = RunEvent((PureEpsilonEvent(1.0),), (1,))
    event = SelectedRunEvent((RUN, other, RUN), 1.0, 0.5)
    assert event.runs == (RUN, other)
    assert event.line().startswith("the best of a random number of private runs, each (10 x ")
    assert " or (1 x " in event.line()
