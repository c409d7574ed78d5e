"""Imports point one way, and the parts that need no TensorFlow do not load it."""

import ast
import pathlib
import subprocess
import sys

import pytest

import tfdp

ROOT = pathlib.Path(tfdp.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]

# What a folder may import of tfdp, besides itself.
ALLOWED = {
    "events": set(),
    "factorizations": set(),
    "numerics": set(),
    "noise": {"events", "numerics"},
    "ledger": {"events"},
    "accounting": {"events", "factorizations", "ledger"},
    "audit": {"events"},
    "query": {"events", "factorizations", "noise", "numerics"},
    "report": {"accounting", "events", "ledger"},
    "sampling": {"events", "ledger", "noise"},
    "gradients": {"events", "noise", "numerics", "query"},
    "keras": {"accounting", "events", "gradients", "ledger", "noise", "query", "sampling"},
    "statistics": {"accounting", "events", "ledger", "noise", "query"},
    "tuning": {"events", "ledger", "noise"},
    "federated": {
        *("accounting", "events", "gradients", "keras", "ledger"),
        *("noise", "numerics", "query", "sampling"),
    },
    "cli": {"accounting", "audit", "events", "ledger", "report"},
}

HEAVY = ("tensorflow", "keras", "tensorflow_probability", "tf_keras")


def _loaded_after(code, names=HEAVY):
    """Returns which of the modules are loaded once a new interpreter has run the code."""
    report = f"{code}\nimport sys\nprint(*(name for name in {names!r} if name in sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_accounting_audit_and_ledger_load_no_tensorflow():
    assert _loaded_after("import tfdp, tfdp.accounting, tfdp.audit, tfdp.ledger") == []


def test_ledger_loads_no_accounting():
    assert _loaded_after("import tfdp.ledger", ("tfdp.accounting", "dp_accounting")) == []


def test_import_leaves_the_devices_to_be_configured():
    # Which devices there are cannot be said any more once one has been used.
    report = "import tfdp.keras, tensorflow as tf\ncpus = tf.config.list_physical_devices('CPU')\n"
    two = "[tf.config.LogicalDeviceConfiguration()] * 2"
    report += f"tf.config.set_logical_device_configuration(cpus[0], {two})"
    run = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_who_has_keras_has_the_loader_of_private_models():
    ours = ("tfdp.keras",)
    assert _loaded_after("import keras, tfdp", ours) == ["tfdp.keras"]
    other = "import sys, types; keras = sys.modules['keras'] = types.ModuleType('keras')\n"
    other += "keras.config = types.SimpleNamespace(backend=lambda: 'jax')\nimport tfdp"
    assert _loaded_after(other, ours) == []
    old = "import sys, types; sys.modules['keras'] = types.ModuleType('keras')\nimport tfdp"
    assert _loaded_after(old, ours) == []


def test_federated_loads_no_flower():
    assert _loaded_after("import tfdp.federated", ("flwr", "ray", "grpc._cython")) == []


def test_keras_loads_no_tensorflow_probability():
    loaded = _loaded_after("import tfdp.keras")
    assert "tensorflow" in loaded  # The check sees what is loaded.
    assert "tensorflow_probability" not in loaded
    assert "tf_keras" not in loaded


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_nothing_is_pickled(path):
    """Whoever writes a pickle decides what its reader executes."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module.split(".")[0])
    assert not modules & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


def _imports(path):
    """Yields every folder or file of tfdp that is imported, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute."
            # `from tfdp import query` names its folder on the right.
            separate = node.module == "tfdp"
            modules = [f"tfdp.{a.name}" for a in node.names] if separate else [node.module]
        for module in modules:
            if module.split(".")[0] == "tfdp" and module != "tfdp.__version__":
                yield (module.split(".") + [""])[1]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_imports_point_one_way(path):
    relative = path.relative_to(ROOT)
    folder = relative.parts[0] if len(relative.parts) > 1 else None
    if folder is None:  # The public names and the command line.
        return
    assert folder in ALLOWED, f"Say in ALLOWED what {folder} may import."
    for imported in _imports(path):
        assert imported in ALLOWED[folder] | {folder}, f"{relative} imports tfdp.{imported}"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_nothing_imports_keras_audit_or_the_command_line(path):
    own = path.relative_to(ROOT).parts[0]
    if own in ("cli", "__main__.py"):
        return
    # A server of federated training updates a model of Keras as its optimizer does.
    others = {"keras", "audit", "cli"} - {own, "keras" if own == "federated" else own}
    assert not others & set(_imports(path))


def _problems(source):
    """Returns the lines with an assert, which -O strips, or an except that hides any error."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert):
            lines.append(node.lineno)
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(c is None or ast.unparse(c) in ("Exception", "BaseException") for c in caught):
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_assert_and_no_bare_except(path):
    assert _problems(path.read_text(encoding="utf-8")) == []


def test_checker_finds_assert_and_bare_except():
    attempt = "try:\n  pass\nexcept{}:\n  pass"
    assert _problems("assert True") == [1]
    for caught in ("", " Exception", " BaseException as e", " (ValueError, Exception)"):
        assert _problems(attempt.format(caught)) == [3]
    for caught in (" ValueError", " (ValueError, TypeError)", " (sqlite3.Error, OSError)"):
        assert _problems(attempt.format(caught)) == []


def test_checker_finds_a_wrong_import(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "from tfdp import keras\nimport tfdp.cli\ndef f():\n  from tfdp.noise import x\n"
    )
    assert list(_imports(path)) == ["keras", "cli", "noise"]
