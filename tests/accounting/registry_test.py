"""tfdp.accounting: names, and what importing them costs."""

import subprocess
import sys

import dp_accounting
import pytest

import tfdp.accounting
from tfdp.accounting import PLDAccountant, RDPAccountant, make_accountant
from tfdp.ledger import NeighboringRelation


def test_every_name_can_be_imported():
    for name in tfdp.accounting.__all__:
        assert getattr(tfdp.accounting, name) is not None
    assert dir(tfdp.accounting) == sorted(tfdp.accounting.__all__)
    with pytest.raises(AttributeError, match="no attribute 'MomentsAccountant'"):
        _ = tfdp.accounting.MomentsAccountant


def test_make_accountant():
    assert isinstance(make_accountant("rdp"), RDPAccountant)
    assert isinstance(make_accountant("pld"), PLDAccountant)
    theirs = make_accountant("dp_accounting.rdp", NeighboringRelation.ZERO_OUT)
    assert isinstance(theirs, dp_accounting.rdp.RdpAccountant)
    assert theirs.neighboring_relation is dp_accounting.NeighboringRelation.REPLACE_SPECIAL


def test_unknown_accountant_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'rdp', 'pld', 'dp_accounting.rdp'.*'gdp'"):
        make_accountant("gdp")


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import tfdp.accounting", ["numpy", "scipy", "dp_accounting", "tensorflow", "keras"]),
        ("import tfdp.ledger", ["numpy", "scipy", "dp_accounting", "tensorflow", "keras"]),
        ("import tfdp.cli", ["scipy", "dp_accounting", "tensorflow", "keras"]),
        (
            "from tfdp.accounting import RDPAccountant, PLDAccountant",
            ["scipy", "dp_accounting", "tensorflow", "keras"],
        ),
        ("import tfdp.ledger.dp_event", ["dp_accounting", "tensorflow", "keras"]),
    ],
)
def test_import_brings_nothing_heavy(statement, absent):
    program = f"{statement}; import sys; print([m for m in {absent} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
