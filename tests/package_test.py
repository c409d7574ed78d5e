"""What is installed: every file, its types, its version, and commands without TensorFlow."""

import ast
import json
import pathlib
import re
import runpy
import subprocess
import sys

import pytest
import setuptools

import tfdp
from tfdp.cli import _COMMANDS as _ALL_COMMANDS
from tfdp.federated.selective import state_file
from tfdp.keras import weights_file
from tfdp.ledger import entry
from tfdp.ledger.storage import schema

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tfdp"


@pytest.fixture(scope="module")
def setup():
    """What setup.py says."""
    said = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", said.update)
        patch.chdir(ROOT)
        runpy.run_path(str(ROOT / "setup.py"))
    return said


def test_every_file_is_packed(setup):
    packed = {PACKAGE / "py.typed"}
    for package in setup["packages"]:
        folder = ROOT.joinpath(*package.split("."))
        packed |= set(folder.glob("*.py"))
        for pattern in setup["package_data"].get(package, ()):
            packed |= set(folder.glob(pattern))
    files = {p for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert files - packed == set()
    assert "py.typed" in setup["package_data"]["tfdp"]


def test_changelog_begins_with_this_version(setup):
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (version, *_) = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert version == setup["version"] == tfdp.__version__


def test_every_requirement_has_a_lower_bound(setup):
    extras = [r for group in setup["extras_require"].values() for r in group]
    unbounded = [r for r in [*setup["install_requires"], *extras] if not re.search("[>=]=", r)]
    assert unbounded == []


def _bounds(setup, name):
    """Returns the least version of a requirement, and the least that is too new, or None."""
    (found,) = (r for r in setup["install_requires"] if re.match(rf"{name}[<>=]", r))
    at_least = re.search(r">=([\d.]+)", found)
    below = re.search(r"<([\d.]+)", found)
    return _numbers(at_least[1]), below and _numbers(below[1])


def _numbers(version):
    return tuple(map(int, version.split(".")))


@pytest.mark.parametrize("name", ["TensorFlow", "Keras", "NumPy", "SciPy"])
def test_both_ends_of_the_bounds_were_run(setup, name):
    text = (ROOT / "docs" / "working_on_tfdp.md").read_text(encoding="utf-8")
    least, too_new = _bounds(setup, name.lower())
    ((oldest,), (newest,)) = (
        re.findall(rf"^\| `make .* \| {which}: .*\b{name} ([\d.]+)[ ,].* \|$", text, re.MULTILINE)
        for which in ("oldest", "newest")
    )
    oldest, newest = _numbers(oldest), _numbers(newest)
    assert oldest[: len(least)] == least
    if too_new is not None:  # The version before the bound was run, and so the bound is no guess.
        assert newest < too_new and newest[:-1] == (*too_new[:-1], too_new[-1] - 1)


def test_documents_say_the_version_of_each_format():
    text = (ROOT / "docs" / "working_on_tfdp.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| (.*?) \| (\d[^|]*) \| `tests/", text, re.MULTILINE))
    lines = (entry.SCHEMA_VERSION, entry.READABLE_VERSIONS)
    tables = (schema.SCHEMA_VERSION, schema.READABLE_VERSIONS)
    others = [(v, (v,)) for v in (weights_file._VERSION, state_file.VERSION)]
    found = [[int(v) for v in re.findall(r"\d+", versions)] for versions in said.values()]
    assert len(found) == 4
    for (version, *earlier), (written, readable) in zip(
        found, [tables, lines, *others], strict=True
    ):
        assert version == written
        assert sorted([version, *earlier]) == sorted(readable)


def test_scripts_install_the_lowest_versions(setup):
    # What the scripts read out of setup.py: an empty version would install any.
    for script, names in (
        ("canary.sh", [re.split("[<>]", each)[0] for each in setup["install_requires"]]),
        ("package.sh", ["numpy", "scipy"]),
    ):
        text = (ROOT / "tests" / script).read_text(encoding="utf-8")
        (function,) = re.findall(r"^lowest\(\) .*?^}", text, re.DOTALL | re.MULTILINE)
        for name in names:
            assert f"$(lowest {name})" in text
            result = subprocess.run(
                ["bash", "-c", f"{function}\nlowest {name}"],
                capture_output=True,
                text=True,
                cwd=ROOT,
            )
            source = (ROOT / "setup.py").read_text(encoding="utf-8")
            assert f'"{name}>={result.stdout.strip()}' in source
            assert re.fullmatch(r"\d+(\.\d+)*\n", result.stdout)


# Each command, in one interpreter that has NumPy, SciPy and, for reports, Jinja2.
_COMMANDS = """
import json, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        first = name.split(".")[0]
        if first in {"tensorflow", "keras", "tf_keras", "tensorflow_probability", "dp_accounting",
                     "cryptography", "matplotlib", "sklearn", "pandas", "mpmath"}:
            raise ModuleNotFoundError(f"No module named {first!r}", name=first)
sys.meta_path.insert(0, Blocked())
import io, contextlib
from tfdp.cli import main
from tfdp.ledger import PrivacyLedger
from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
ledger = PrivacyLedger()
ledger.append(SampledEvent(PoissonSampling(0.1, 100), GaussianSumEvent(1.0, 2.0)), 10)
ledger.save("run.ledger")
import numpy as np
coins = np.arange(100) % 2 == 0
np.savez("canaries.npz", scores=coins * 1.0, inserted=coins)
np.savez("predictions.npz", probabilities=np.full((100, 2), 0.5), members=coins)
said = []
for command in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(command)
    said.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(said))
"""

BUDGET = ["--delta", "1e-5", "--population", "100", "--batch-size", "10", "--steps", "10"]
# Commands, and what each prints.
WITHOUT_TENSORFLOW = [
    (["replay", "run.ledger", "--delta", "1e-5"], "epsilon = "),
    (["replay", "run.ledger", "--delta", "1e-5", "--accountant", "rdp", "--json"], '"rdp": '),
    (["verify", "run.ledger"], "10 steps"),
    (["export", "run.ledger"], "PoissonSampling"),
    (["report", "run.ledger", "--out", "report.md"], "wrote report.md"),
    (["calibrate", "--epsilon", "2", *BUDGET], "noise multiplier"),
    (["plan", "--epsilon", "2", *BUDGET], "noise batch ratio"),
    (["audit", "epsilon", "canaries.npz", "--delta", "1e-5"], "canaries"),
    (["audit", "membership", "predictions.npz"], "AUC"),
    (["doctor", "--no-training"], "training: not tried"),
    (["completion", "fish"], "complete -c tfdp"),
]


def test_every_command_is_run_without_tensorflow():
    assert {command[0] for command, _ in WITHOUT_TENSORFLOW} == set(_ALL_COMMANDS)


def test_commands_for_ledgers_need_numpy_and_scipy_only(tmp_path):
    pld = ["replay", "run.ledger", "--delta", "1e-5", "--accountant", "pld"]
    commands = [*(command for command, _ in WITHOUT_TENSORFLOW), pld]
    result = subprocess.run(
        [sys.executable, "-c", _COMMANDS, json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (result.returncode, result.stderr) == (0, "")
    said = json.loads(result.stdout)
    for (command, shown), (status, out, err) in zip(WITHOUT_TENSORFLOW, said, strict=False):
        assert (status, shown in out) == (0, True), (command, out, err)
        # An export is the lines alone; what speaks for it is said beside them.
        assert err == "" or command[0] == "export" and err.startswith("tfdp: not authenticated")
    status, out, err = said[-1]
    assert (status, out) == (2, "")
    assert "pip install dp-accounting" in err


@pytest.mark.parametrize("name", ["keras", "query", "DPQuery"])
def test_what_needs_tensorflow_says_so_without_it(name):
    block = _COMMANDS.partition("import io,")[0]
    result = subprocess.run(
        [sys.executable, "-c", f"{block}\nimport tfdp\ntfdp.{name}"], capture_output=True, text=True
    )
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert re.match(r"ModuleNotFoundError: tfdp\.\S+ needs (keras|tensorflow), which", last), last
    assert "pip install -e ." in last


def _public(body, within=""):
    """Yields the public functions and methods in a list of statements, with their names."""
    for node in body:
        name = getattr(node, "name", "_")
        if isinstance(node, ast.ClassDef) and not name.startswith("_"):
            yield from _public(node.body, f"{within}{name}.")
        elif isinstance(node, ast.FunctionDef) and (name[0] != "_" or name.endswith("__")):
            yield f"{within}{name}", node


def _untyped(source):
    """Returns the public functions and methods of which an argument or the result has no type."""
    found = []
    for name, function in _public(ast.parse(source).body):
        given = function.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        decorators = [ast.unparse(d) for d in function.decorator_list]
        if "." in name and "staticmethod" not in decorators:
            del arguments[0]
        is_typed = all(a.annotation for a in arguments if a is not None)
        if not is_typed or not (function.returns or name.endswith("__init__")):
            found.append(name)
    return found


def test_what_users_call_has_types():
    untyped = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        for name in _untyped(path.read_text(encoding="utf-8"))
    }
    assert untyped == set()


@pytest.mark.parametrize(
    "source",
    [
        "def f(a: int, *, b) -> int: ...",
        "def f(a: int, *b) -> int: ...",
        "def f(a: int): ...",
        "class A:\n  def f(self, a) -> int: ...",
        "class A:\n  class B:\n    @staticmethod\n    def f(a) -> int: ...",
        "class A:\n  @property\n  def f(self): ...",
        "class A:\n  def __init__(self, a): ...",
        "class A:\n  def __exit__(self, *f: int): ...",
    ],
)
def test_what_has_no_type_would_be_found(source):
    (name,) = _untyped(source)
    assert name in ("f", "A.f", "A.B.f", "A.__init__", "A.__exit__")


def test_what_has_types_is_not_found():
    typed = "def f(a: int, *b: int) -> None: ...\nclass A:\n  def __init__(self, a: int): ..."
    private = "def _g(a): ...\nclass _B:\n  def f(a): ...\nclass C:\n  def _f(a): ..."
    assert _untyped(f"{typed}\n{private}") == []
