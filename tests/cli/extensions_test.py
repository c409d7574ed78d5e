"""tfdp.cli.extensions: what installed packages name is imported, or the command stops."""

import sys

import pytest

from tests.cli.running import run
from tfdp.accounting import registry
from tfdp.cli.extensions import GROUP
from tfdp.ledger import PrivacyLedger

MODULE = """
import tfdp

tfdp.accounting.register_accountant("mine", lambda relation: tfdp.accounting.ZCDPAccountant())
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Returns a function that makes a package on the path name a module as an extension."""
    (tmp_path / "my_extension.py").write_text(MODULE)
    info = tmp_path / "my_extension-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-extension\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda module: (info / "entry_points.txt").write_text(f"[{GROUP}]\nmine = {module}\n")
    sys.modules.pop("my_extension", None)
    registry.ACCOUNTANTS.pop("mine", None)


@pytest.fixture
def ledger(tmp_path):
    PrivacyLedger().save(tmp_path / "run.ledger")
    return str(tmp_path / "run.ledger")


def test_the_command_line_imports_what_packages_name(install, ledger, capsys):
    install("my_extension")
    for _ in range(2):  # A module is imported once.
        status, out, err = run(capsys, "replay", ledger, "--delta", "1e-5", "--accountant", "mine")
        assert (status, err) == (0, "")
        assert "epsilon = 0 at delta = 1e-05 (mine)" in out


@pytest.mark.parametrize("module", ["my_lost_extension", "tfdp:lost"])
def test_an_extension_that_cannot_be_imported_is_named(install, ledger, capsys, module):
    install(module)
    status, out, err = run(capsys, "replay", ledger, "--delta", "1e-5")
    assert (status, out) == (2, "")
    assert f"extension mine ({module}) cannot be imported" in err
    assert "Repair it, or uninstall" in err
