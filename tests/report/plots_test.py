"""Plots are elements of their own: none where there is nothing, no ids of another one's."""

import re
from xml.etree import ElementTree

import numpy as np

from tfdp.audit import attack, attack_slices
from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.ledger import PrivacyLedger
from tfdp.report import attempts, costs, plots


def test_nothing_to_plot_gives_no_plot():
    nothing = costs.compute(PrivacyLedger(), 1e-5, ["rdp"])
    assert [cost.curve for cost in nothing.costs] == [None]
    assert plots.epsilon_over_steps(nothing) is None
    assert plots.trade_off({}) is None


def test_curve_is_one_element_with_ids_of_its_own():
    ledger = PrivacyLedger()
    ledger.append(SampledEvent(PoissonSampling(0.01, 1000), GaussianSumEvent(1.0, 2.0)), 10)
    found = costs.compute(ledger, 1e-5, ["rdp"])
    text = plots.epsilon_over_steps(found)
    assert text.startswith('<svg role="img" aria-label="Line plot')
    assert text.endswith("</svg>")
    assert "<style" not in text
    assert all(name.startswith("steps-") for name in re.findall(r'\bid="([^"]+)"', text))
    # The same ledger gives the same text, so that reports can be compared.
    assert plots.epsilon_over_steps(found) == text


def test_attacks_are_drawn_under_the_bound_whatever_they_are_called():
    evil = '<script>"&$x$ </text>'
    scores, members = np.arange(40.0), np.arange(40) % 2 == 0
    attacks = [
        attack(evil, scores, members),
        *attack_slices("s", scores, members, {"half": members}),
    ]
    found = attempts.attempts_at(attacks, costs.compute(PrivacyLedger(), 1e-5, ["rdp"]))
    text = plots.trade_off({}, found)
    ElementTree.fromstring(text)
    assert "<script" not in text and "&lt;script&gt;" in text and text.count("attack: ") == 1
