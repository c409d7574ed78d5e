"""Every sentence of the first page is what the ledger implies."""

import dataclasses
import math
import re

import pytest
from scipy import stats

from tfdp.events import (
    EpsilonDeltaEvent,
    FixedSizeSampling,
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    NonPrivateEvent,
    PoissonSampling,
    SampledEvent,
    UnknownSampling,
)
from tfdp.ledger import PrivacyLedger
from tfdp.report import gather, to_html, to_markdown

STEP = SampledEvent(PoissonSampling(0.01, 10_000), GaussianSumEvent(1.0, 2.0))


def facts_of(*pairs, delta=None, accountants=("rdp",)):
    ledger = PrivacyLedger()
    for event, count in pairs:
        ledger.append(event, count)
    return gather(ledger, delta, accountants)


def text_of(facts):
    return " ".join([facts.summary.verdict, *facts.summary.sentences]).replace("\xa0", " ")


def numbers(pattern, text):
    return [float(found) for found in re.findall(pattern, text)]


def test_numbers_are_those_of_the_smallest_bound_rounded_up():
    facts = facts_of((STEP, 1000), accountants=("rdp", "pld", "dp_accounting.rdp"))
    text, epsilon = text_of(facts), facts.costs.epsilon
    assert facts.summary.holds
    assert "1,000 steps" in text and "accountant “pld”" in text and "δ = 1e-5" in text
    shown = numbers(r"(?<!\^)ε [≤=] ([0-9.]+)", text)
    assert len(shown) == 2
    assert all(epsilon <= number < epsilon * 1.001 for number in shown)
    (factor,) = numbers(r"e\^ε = ([0-9.]+)", text)
    assert math.exp(epsilon) <= factor < math.exp(epsilon) * 1.001


def test_attacker_of_one_gaussian():
    # 100 full batches with z = 20 are one Gaussian with mu = 1/2. The best test at FPR 1 % has TPR
    # Phi(Phi^-1(0.01) + mu), and an advantage of 2 Phi(mu / 2) - 1.
    step = SampledEvent(FullBatchSampling(10_000), GaussianSumEvent(1.0, 20.0))
    text = text_of(facts_of((step, 100), accountants=("pld",)))
    (found,) = numbers(r"rightly in at most ([0-9.]+) %", text)
    exact = 100 * stats.norm.cdf(stats.norm.ppf(0.01) + 0.5)
    assert exact <= found < exact + 0.02
    (right,) = numbers(r"probability above ([0-9.]+) %", text)
    exact = 100 * stats.norm.cdf(0.25)
    assert exact <= right < exact + 0.02


@pytest.mark.parametrize(
    ("event", "phrases"),
    [
        (STEP, ["one example: a record", "one has one example more", "whether a given example"]),
        (
            dataclasses.replace(
                STEP, privacy_unit="user", neighboring_relation=NeighboringRelation.ZERO_OUT
            ),
            ["one user", "one user is blanked out", "given user was in the data or had been blank"],
        ),
        (
            SampledEvent(
                FixedSizeSampling(1, 10_000),
                GaussianSumEvent(1.0, 9.0),
                NeighboringRelation.REPLACE_ONE,
                "microbatch",
            ),
            ["differ in the value of one microbatch", "which of two given values a given micro"],
        ),
    ],
    ids=["add", "zero", "replace"],
)
def test_unit_and_neighbours_are_the_ledgers(event, phrases):
    text = text_of(facts_of((event, 3)))
    assert all(phrase in text for phrase in phrases)


def test_bare_events_do_not_say_what_a_unit_is():
    text = text_of(facts_of((GaussianSumEvent(1.0, 9.0), 3)))
    assert "the ledger does not say what a unit is" in text and "example" not in text


VOID = {
    "seeded": [(STEP, 5), (GaussianSumEvent(1.0, 1.0, seeded=True), 2)],
    "unprotected": [(NonPrivateEvent(), 1)],
    "silent": [(GaussianSumEvent(1.0, 0.0), 1)],
    "mixed": [(STEP, 5), (dataclasses.replace(STEP, privacy_unit="user"), 2)],
}


@pytest.mark.parametrize("name", VOID)
def test_no_guarantee_no_number(name):
    facts = facts_of(*VOID[name])
    text = text_of(facts)
    assert not facts.summary.holds
    assert facts.summary.verdict.startswith("No privacy guarantee")
    assert not re.search(r"ε [≤=] [0-9]|private with|at most [0-9]", text)


def test_reasons_are_counted():
    assert "seeded noise in 2 of 7 steps" in text_of(facts_of(*VOID["seeded"]))


def test_only_unreliable_accountants_no_guarantee():
    facts = facts_of((STEP, 5), accountants=["dp_accounting.rdp"])
    assert not facts.summary.holds and "No accountant" in text_of(facts)


def test_no_finite_epsilon_no_guarantee():
    facts = facts_of((STEP, 5), delta=1e-300, accountants=["pld"])
    assert not facts.summary.holds and "1e-300" in text_of(facts)


def test_findings_are_counted():
    assert "nothing unusual" in text_of(facts_of((STEP, 5)))
    undeclared = dataclasses.replace(STEP, sampling=UnknownSampling())
    # The sampling, the population and an epsilon that rules out little.
    assert "3 findings that need attention" in text_of(facts_of((undeclared, 5)))
    louder = dataclasses.replace(undeclared, event=GaussianSumEvent(1.0, 50.0))
    assert "2 findings that need attention" in text_of(facts_of((louder, 5)))


def test_empty_ledger():
    text = text_of(facts_of())
    assert "records no release" in text


@pytest.mark.parametrize(
    ("population", "delta"), [(999, 1e-3), (1000, 1e-4), (60_000, 1e-5), (10**15, 1e-16)]
)
def test_default_delta_is_below_one_in_the_population(population, delta):
    step = dataclasses.replace(STEP, sampling=PoissonSampling(0.01, population))
    facts = facts_of((step, 1))
    assert facts.costs.target_delta == delta
    assert delta * population < 1 <= 10 * delta * population
    assert f"{population:,}" in facts.delta_reason


def test_default_delta_without_a_population():
    step = dataclasses.replace(STEP, sampling=PoissonSampling(0.01))
    assert facts_of((step, 1)).costs.target_delta == 1e-5


@pytest.mark.parametrize("delta", [0, 1, 1.5, -1, math.nan])
def test_bad_delta(delta):
    with pytest.raises(ValueError, match="target_delta"):
        facts_of((STEP, 1), delta=delta)


def test_delta_is_shown_as_it_is():
    ledger = PrivacyLedger()
    ledger.append(EpsilonDeltaEvent(1.0, 1.0000004e-5))
    facts = gather(ledger, 1.0000004e-5)
    assert math.isinf(ledger.epsilon(1e-5))
    assert "at δ = 1.0000004e-5, for" in facts.summary.verdict
    texts = [*facts.summary.sentences, *(caveat.text for caveat in facts.caveats)]
    for text in [*texts, to_markdown(facts), to_html(facts)]:
        shown = re.findall("δ = (?:<[^>]*>)?([0-9.e-]*[0-9])", text)
        assert {float(number) for number in shown} <= set(facts.costs.deltas)
