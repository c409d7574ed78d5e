"""What every package offers: `__all__` names it, and it is explained.

Packages import what they offer, and name it in `__all__`. Four must start without their heavy
parts: `tfdp`, `tfdp.accounting`, `tfdp.audit` and `tfdp.report`. These have a table of names and
modules instead, which `__getattr__` reads on first use, and the same imports once more for type
checkers.
"""

import ast
import importlib
import inspect
import pathlib
import pkgutil

import pytest

import tfdp

ROOT = pathlib.Path(tfdp.__file__).parent
PACKAGES = [
    "tfdp",
    *(info.name for info in pkgutil.walk_packages(tfdp.__path__, "tfdp.") if info.ispkg),
]
LAZY = ["tfdp", "tfdp.accounting", "tfdp.audit", "tfdp.report"]
FILES = sorted(ROOT.rglob("*.py"))
# From so many arguments on, a docstring says what each is.
MANY = 4


def _offered(package):
    """Returns the public things of ours in a package's namespace that are no modules."""
    return {
        name
        for name, value in vars(package).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and str(getattr(value, "__module__", "")).startswith("tfdp")
    }


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_what_a_package_offers(name):
    package = importlib.import_module(name)
    offered = _offered(package)
    assert offered <= set(getattr(package, "__all__", ())), f"Add them to {name}.__all__."
    for public in getattr(package, "__all__", ()):
        value = getattr(package, public)
        if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
            assert inspect.getdoc(value), f"{name}.{public} needs a docstring."


@pytest.mark.parametrize("name", [name for name in PACKAGES if name not in LAZY])
def test_what_is_offered_is_imported_plainly(name):
    package = importlib.import_module(name)
    assert "__getattr__" not in vars(package)
    assert len(set(getattr(package, "__all__", ()))) == len(getattr(package, "__all__", ()))


@pytest.mark.parametrize("name", LAZY)
def test_tables_of_names_and_imports_for_type_checkers_agree(name):
    package = importlib.import_module(name)
    tree = ast.parse(pathlib.Path(package.__file__).read_text(encoding="utf-8"))
    blocks = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) != "__main__"]
    imports = {
        alias.name: node.module
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert package._NAMES == imports
    assert set(dir(package)) == set(package.__all__)


def _undescribed(source):
    """Returns the public functions with many arguments whose docstring does not describe them."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        arguments = [argument.arg for argument in every if argument.arg not in ("self", "cls")]
        # What overrides a method has a docstring only where it promises more.
        words = ast.get_docstring(node)
        if len(arguments) >= MANY and words is not None:
            described = words.partition("Args:")[2]
            found += [f"{node.name}: {a}" for a in arguments if f"{a}:" not in described]
    return found


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_many_arguments_are_described(path):
    assert _undescribed(path.read_text(encoding="utf-8")) == []


def test_checker_finds_an_argument_that_is_not_described():
    source = 'def f(a, b, c, d):\n    """Does it.\n\n    Args:\n        {}\n    """'
    assert _undescribed(source.format("a, b: ...")) == ["f: a", "f: c", "f: d"]
    assert _undescribed(source.format("a: 1\n        b: 2\n        c: 3\n        d: 4")) == []
    assert _undescribed('def f(a, b, c):\n    """Does it."""') == []
