"""The delta that is taken where nobody chose one, and what a report is told."""

import pytest

from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.ledger import PrivacyLedger
from tfdp.report.facts import default_delta, gather
from tfdp.report.releases import alike_steps


def ledger_of(*populations):
    ledger = PrivacyLedger()
    for size in populations:
        ledger.append(SampledEvent(PoissonSampling(0.01, size), GaussianSumEvent(1.0, 2.0)), 3)
    return ledger


@pytest.mark.parametrize(
    ("populations", "delta"),
    [
        ((1000,), 1e-4),  # 1e-3 is one divided by the population, and not below.
        ((999,), 1e-3),
        ((60_000,), 1e-5),
        ((1000, 60_000), 1e-5),  # The largest population counts.
        ((None,), 1e-5),  # What is customary.
        ((), 1e-5),
    ],
)
def test_default_delta_is_the_largest_power_of_ten_below_one_in_the_population(populations, delta):
    found, reason = default_delta(alike_steps(ledger_of(*populations)))
    assert found == delta
    assert reason.startswith("δ was not chosen")


def test_facts_are_those_of_the_ledger():
    ledger = ledger_of(1000)
    facts = gather(ledger, 1e-6, ["rdp"], source="run.ledger")
    assert (facts.ledger_id, facts.steps, facts.entries) == (ledger.ledger_id, 3, 1)
    assert facts.source == "run.ledger"
    assert facts.delta_reason == "δ was chosen by whoever made the report."
    assert facts.costs.target_delta == 1e-6


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, 2.0])
def test_delta_out_of_range_is_refused(delta):
    with pytest.raises(ValueError, match="target_delta"):
        gather(ledger_of(1000), delta, ["rdp"])
