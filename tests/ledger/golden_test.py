"""Ledgers on file, replayed through every accountant: their epsilons must never change.

The numbers were not computed by tfdp:

- poisson and nested_poisson (two groups of multiplier 4 sqrt(2) on one sample, together 4):
  dp-accounting 0.6.0 on the one collapsed Gaussian, with q = 256/60000, z = 1.1, 14040 steps, and
  q = 0.01, z = 4, 10000 steps.
- full_batch and shuffled are unsampled, so they are one Gaussian with mu^2 the sum of all
  (f S / sigma)^2: 20 (1/100 + 4/100) + 1/25 = 1.04; zero out in three passes, 3/64.
  For PLD the closed form of Balle and Wang 2018 (arXiv:1805.06530, theorem 8) solved for epsilon;
  for RDP the minimum over real a of a mu^2 / 2 + log(1 - 1/a) - log(1e-5 a) / (a - 1).
- replace_fixed_size: 50 steps of q = 0.1, z = 20, of which the worst pair has the positive losses
  of ((1 - q) Q + q P, Q), the negative ones of (P, (1 - q) P + q Q), and the rest at zero (Zhu,
  Dong and Wang 2022, theorem 11): 4 10^6 losses, put on a grid of 2e-6 and convolved 50 times by
  NumPy; for RDP the moments of the same losses, and the formula above.
- seeded: ten private steps and ten with a known seed.
"""

import contextlib
import math
import pathlib
import shutil
import sqlite3

import pytest

from tfdp.accounting import ACCOUNTANTS, make_accountant
from tfdp.events import (
    NeighboringRelation,
    UnsupportedEventError,
)
from tfdp.ledger import PrivacyLedger, json_lines, storage
from tfdp.ledger.entry import Evidence
from tfdp.ledger.storage import schema

ZERO, REPLACE = NeighboringRelation.ZERO_OUT, NeighboringRelation.REPLACE_ONE
GOLDEN = pathlib.Path(__file__).parent / "golden"
EPSILONS = {
    "poisson": {"rdp": 2.5943633557853634, "pld": 2.3796435199377064},
    "nested_poisson": {"rdp": 1.0354900660362436, "pld": 0.9469993068921693},
    "full_batch": {"rdp": 4.836189293011913, "pld": 4.477765196195863},
    "shuffled": {"rdp": 0.8657253856572137, "pld": 0.7912753789170076},
    "replace_fixed_size": {"rdp": 0.12476243691756014, "pld": 0.11197020880536608},
    "seeded": {"rdp": math.inf, "pld": math.inf},
}
# Which of these numbers an accountant has, and how nearly: rounded losses cost a little more, and
# RDP is converted a little better than by the formula.
SAME = {
    "rdp": ("rdp", 3e-4),
    "pld": ("pld", 5e-5),
    "prv": ("pld", 3e-4),
    "zcdp": ("rdp", 3e-4),
    "gdp": ("pld", 1e-6),
    "dp_accounting.rdp": ("rdp", 1e-4),
}
SAMPLED = ("poisson", "nested_poisson", "replace_fixed_size", "seeded")
# dp-accounting has another bound for samples of fixed size.
DIFFERENT = ("replace_fixed_size", "dp_accounting.rdp")


@pytest.mark.parametrize("accountant", sorted({*ACCOUNTANTS} - {"monte_carlo"}))
@pytest.mark.parametrize("name", EPSILONS)
def test_golden_ledger(name, accountant):
    ledger = PrivacyLedger.from_json_lines((GOLDEN / f"{name}.jsonl").read_text())
    made = make_accountant(accountant, ledger.neighboring_relation)
    if name in SAMPLED and accountant in ("zcdp", "gdp"):
        with pytest.raises(UnsupportedEventError, match="sample"):
            ledger.replay(made)
        return
    epsilon = ledger.replay(made).get_epsilon(1e-5)
    if accountant in SAME and (name, accountant) != DIFFERENT:
        number, tolerance = SAME[accountant]
        assert epsilon == pytest.approx(EPSILONS[name][number], rel=tolerance)
    else:  # Bounds that are known to be looser.
        assert epsilon >= EPSILONS[name]["rdp"]


def test_golden_ledgers_are_all_replayed():
    assert {path.stem for path in GOLDEN.glob("*.jsonl")} == set(EPSILONS)


@pytest.mark.parametrize("name", EPSILONS)
def test_golden_ledger_is_written_as_it_was(name):
    text = (GOLDEN / f"{name}.jsonl").read_text()
    written = PrivacyLedger.from_json_lines(text).to_json_lines()
    # The header also holds versions, and the golden ones are older than the line of digests.
    assert written.splitlines()[1:-1] == text.splitlines()[1:]


@pytest.mark.parametrize("name", EPSILONS)
def test_golden_ledger_says_that_it_carries_no_digest(name):
    with json_lines.open_entries(GOLDEN / f"{name}.jsonl") as stream:
        assert stream.evidence is Evidence.NONE
        assert "carries no digest" in stream.evidence.value


def test_golden_ledger_with_digests():
    path = GOLDEN / "with_digests" / "poisson.jsonl"
    with json_lines.open_entries(path, bytes(range(32))) as stream:
        assert stream.evidence is Evidence.KEY
        entries = list(stream.entries)
    assert entries == list(PrivacyLedger.from_json_lines((GOLDEN / "poisson.jsonl").read_text()))


# Files of each version of the tables, as the tfdp of then wrote them, and the head of each chain.
SQLITE = {
    2: "e0ea891c9971dc5b613886d9c27b4525da6ab6865dae8c773c18ef9a44412da1",
    3: "2a72cfae661d8960a4752076ef796ef43d1d850032d8a66f573b1c8fd341a5c3",
}


@pytest.mark.parametrize("version", SQLITE)
def test_golden_file_of_each_version_is_verified_and_priced(version, tmp_path):
    path = tmp_path / "run.ledger"
    shutil.copy(GOLDEN / "sqlite" / f"version{version}.sqlite", path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    verified = storage.verify(path, bytes(range(32)), SQLITE[version])
    assert verified.checked and verified.header.dataset_id == "golden"
    (entry,) = PrivacyLedger.load(path, key=bytes(range(32)))
    assert [entry] == list(PrivacyLedger.from_json_lines((GOLDEN / "poisson.jsonl").read_text()))


def test_every_version_that_is_read_has_golden_files():
    assert set(SQLITE) == set(schema.READABLE_VERSIONS)
    assert {f"version{v}.sqlite" for v in SQLITE} == {p.name for p in (GOLDEN / "sqlite").iterdir()}
