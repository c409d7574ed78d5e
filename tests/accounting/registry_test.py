"""tfdp.accounting: names, and what importing them costs."""

import subprocess
import sys

import dp_accounting
import pytest

import tfdp.accounting
from tfdp.accounting import PLDAccountant, RDPAccountant, make_accountant
from tfdp.events import GaussianSumEvent, NeighboringRelation, PoissonSampling, SampledEvent


def test_every_name_can_be_imported():
    for name in tfdp.accounting.__all__:
        assert getattr(tfdp.accounting, name) is not None
    assert dir(tfdp.accounting) == sorted(tfdp.accounting.__all__)
    with pytest.raises(AttributeError, match="no attribute 'OtherAccountant'"):
        _ = tfdp.accounting.OtherAccountant


def test_make_accountant():
    assert isinstance(make_accountant("rdp"), RDPAccountant)
    assert isinstance(make_accountant("pld"), PLDAccountant)
    theirs = make_accountant("dp_accounting.rdp", NeighboringRelation.ZERO_OUT)
    assert isinstance(theirs, dp_accounting.rdp.RdpAccountant)
    assert theirs.neighboring_relation is dp_accounting.NeighboringRelation.REPLACE_SPECIAL


def test_unknown_accountant_is_refused_with_the_known_ones():
    known = "'rdp', 'pld', 'prv', 'moments', 'zcdp', 'gdp', 'strong', 'basic', 'dp_accounting.rdp'"
    with pytest.raises(ValueError, match=f"{known}.*'fourier'"):
        make_accountant("fourier")


def test_no_name_gives_an_approximation_for_a_guarantee():
    step = SampledEvent(PoissonSampling(0.01), GaussianSumEvent(1.0, 4.0))
    assert not make_accountant("gdp").supports(step)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import tfdp.accounting", ["numpy", "scipy", "dp_accounting", "tensorflow", "keras"]),
        ("import tfdp.ledger", ["numpy", "scipy", "dp_accounting", "tensorflow", "keras"]),
        ("import tfdp.cli", ["scipy", "dp_accounting", "tensorflow", "keras"]),
        (
            "from tfdp.accounting import RDPAccountant, PLDAccountant, PRVAccountant",
            ["scipy", "dp_accounting", "tensorflow", "keras"],
        ),
        ("import tfdp.accounting.dp_events", ["dp_accounting", "tensorflow", "keras"]),
    ],
)
def test_import_brings_nothing_heavy(statement, absent):
    program = f"{statement}; import sys; print([m for m in {absent} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
