"""What Keras and TensorFlow do not promise to keep is used in one file, but for names listed."""

import ast
import functools
import importlib
import importlib.util
import inspect
import pathlib
import pkgutil
import re
import textwrap

import keras
import pytest

import tfdp

ROOT = pathlib.Path(tfdp.__file__).parent
ROOM = ROOT / "gradients" / "keras_internals.py"
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOM]
# Names with an underscore that are promised all the same: those of named tuples.
PROMISED = {"_asdict", "_fields", "_replace"}
# Texts that look like private names, and what they are.
TEXTS = {
    "_ledger_in_file": "an attribute of models of ours",
    "_tfdp_past": "what we attach to variables",
    "_dp_ledger": "where our ledger is in a file of weights",
    "_initializer": "the end of public names of layers",
    "_regularizer": "the end of public names of layers",
    "_constraint": "the end of public names of layers",
    "_noinline": "the name of a function's attribute; without an effect, calls are inlined",
    "_mask": "the end of TensorFlow's names of attributes of a slice",
}
# Where else private names of others are used, and which. There they are theirs, also where we have
# something of that name.
ELSEWHERE = {
    "federated/plain_connections.py": {"_insecure", "_addr"},  # Flower's.
    # TensorFlow's vectorization.
    "gradients/vectorizing.py": {
        *("pfor", "_add_conversion", "_convert_helper", "_is_stateful_pfor_op"),
        *("_parse_variant_shapes_and_types", "_pfor_converter_registry"),
    },
    "sampling/pipelines.py": {
        # Grain's; where they are missing it looks on.
        *("_parents", "_source"),
        # Of data sets of tf.data, of which nothing public says what they are made from. Sampling is
        # below the room. Where they are missing, data sets are refused with an AttributeError.
        *("_inputs", "_functions"),
    },
}
OF_OTHERS = ("tensorflow.python", "tensorflow.compiler", "tensorflow.core", "keras.src")


def _is_private(name):
    return re.fullmatch("_[a-z][A-Za-z0-9_]+", name) is not None


def _defined(tree):
    """Yields the names that a module gives to classes, functions and attributes of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr


@functools.cache
def _tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _own():
    return {name for path in FILES for name in _defined(_tree(path))}


def _foreign(tree, theirs=frozenset()):
    """Returns (line, text) of every use of a name that is neither public nor ours.

    Args:
        tree: Of a module.
        theirs: Attributes that are of others, whatever ours are called.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            if node.attr not in (_own() - theirs) | PROMISED:
                found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _is_private(node.value) and node.value not in PROMISED | TEXTS.keys():
                found.append((node.lineno, node.value))
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found += [(node.lineno, name) for name in names if name.startswith(OF_OTHERS)]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            ours = node.module.split(".")[0] == "tfdp"
            found += [
                (node.lineno, name)
                for name in names
                if name.startswith(OF_OTHERS)
                or (not ours and any(_is_private(part) for part in name.split(".")))
            ]
    return found


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_private_names_of_others_are_used_in_one_file(path):
    allowed = ELSEWHERE.get(str(path.relative_to(ROOT)), set())
    found = _foreign(_tree(path), frozenset(allowed))
    used = {name.rpartition(".")[2] for _, name in found}
    assert used == allowed, (found, f"Put it in {ROOM.relative_to(ROOT)}.")


@pytest.mark.parametrize(
    "use",
    [
        "layer._flatten_layers()",
        "getattr(layer, '_keras_mask')",
        "from tensorflow.python.framework import ops",
        "from keras.src import backend",
        "import keras.src.backend",
        "from numpy import _core",
        "graph.x._get_function",
    ],
)
def test_checker_finds_a_private_name(use):
    assert _foreign(ast.parse(use))


def test_every_exception_is_used():
    texts = {
        node.value
        for path in FILES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert TEXTS.keys() <= texts


def _classes():
    for info in pkgutil.walk_packages(tfdp.__path__, "tfdp."):
        needs_flower = info.name.endswith(".flower") and not importlib.util.find_spec("flwr")
        if info.name.endswith("__main__") or needs_flower:
            continue
        for _, owner in inspect.getmembers(importlib.import_module(info.name), inspect.isclass):
            if owner.__module__ == info.name:
                yield owner


def _names_of(owner):
    """Returns the private names that the code of a class gives to its objects or reads of them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    of_self = ("self", "cls", "super()")
    read = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in of_self
    ]
    return {name for name in (*read, *vars(owner)) if _is_private(name)}


def _clashes(owner, kind):
    """Returns the private names of Keras that a class derived from `kind`, or what is mixed into
    it, defines or reads.
    """
    example = keras.optimizers.SGD() if kind is keras.optimizers.Optimizer else kind()
    of_keras = {name for base in kind.__mro__ for name in vars(base)} | vars(example).keys()
    ours = [
        base
        for base in owner.__mro__
        if base.__module__.split(".")[0] not in ("keras", "tensorflow", "builtins")
        and inspect.getsourcefile(base) != str(ROOM)
    ]
    return set().union(*map(_names_of, ours)) & of_keras


@pytest.mark.parametrize(
    "kind",
    [
        keras.Model,
        keras.Sequential,
        keras.callbacks.Callback,
        keras.optimizers.Optimizer,
        keras.StatelessScope,
    ],
)
def test_classes_of_ours_use_no_private_name_of_keras(kind):
    derived = [owner for owner in _classes() if issubclass(owner, kind)]
    assert derived
    for owner in derived:
        assert _clashes(owner, kind) == set(), owner


class _OwnVariables(keras.optimizers.Optimizer):
    def count(self):
        return len(self._variables)


class _OwnBuild(keras.Model):
    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        raise NotImplementedError


def test_checker_finds_a_private_name_of_keras_in_a_class():
    assert _clashes(_OwnVariables, keras.optimizers.Optimizer) == {"_variables"}
    assert _clashes(_OwnBuild, keras.Model) == {"_maybe_symbolic_build"}


def test_make_canary_runs_the_tests_of_such_names():
    script = pathlib.Path(__file__).with_name("canary.sh").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"set -- (\S+)\n", script)
    assert ROOT.parent / "tests" / "gradients" in ROOT.parent.glob(pattern)
    assert (ROOT.parent / "tests" / "gradients" / "keras_internals_test.py").is_file()
