"""What is added touches few files: so many know each event, sampling policy and accountant."""

import ast
import functools
import pathlib

import pytest

import tfdp
from tfdp import events
from tfdp.accounting.registry import _OURS
from tfdp.events import registry

ROOT = pathlib.Path(tfdp.__file__).parent
# These only say which names are public.
EXPORTS = {"__init__.py", "events/__init__.py", "accounting/__init__.py", "sampling/__init__.py"}
# What holds the others is the frame in which they are described, and everything knows the frame.
FRAME = {"ComposedEvent", "RunEvent", "SampledEvent"}
RELEASES = sorted(set(registry.registered_names(events.Event)) - FRAME)


def _docstrings(tree):
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, owners))
    return {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}


def _names(source):
    """Returns what code names: as a name, an attribute or a text, other than to call it.

    Who calls a class makes an event. Making one is what a mechanism is there for; everything else
    that code does with the name would have to be done for a new event as well.
    """
    tree = ast.parse(source)
    passed_over = _docstrings(tree)
    passed_over |= {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif id(node) in passed_over:
            continue
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def _texts(source):
    return {
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@functools.cache
def _found_in_files(find):
    """Returns what a function finds in the source of every file."""
    return {
        path.relative_to(ROOT).as_posix(): find(path.read_text(encoding="utf-8"))
        for path in ROOT.rglob("*.py")
    }


def _files_that_name(*names):
    return {
        file
        for file, found in _found_in_files(_names).items()
        if found.intersection(names) and file not in EXPORTS
    }


@pytest.mark.parametrize("name", RELEASES)
def test_an_event_is_known_where_it_is_described_and_where_it_is_priced(name):
    # With the query that makes it these are three.
    folders = sorted(file.split("/")[0] for file in _files_that_name(name))
    assert folders == ["accounting", "events"]


# Each description of a sampling, and the policy whose steps it describes.
SAMPLINGS = {
    "BallsInBinsSampling": "BallsInBins",
    "CyclicPoissonSampling": "CyclicPoisson",
    "FixedOrderSampling": "FixedOrder",
    "FixedSizeSampling": "FixedSize",
    "FullBatchSampling": "FullBatch",
    "MinSeparationSampling": "MinSeparationPoisson",
    "PoissonSampling": "Poisson",
    "RandomAllocationSampling": "RandomAllocation",
    "ShuffledSampling": "Shuffled",
    "TruncatedPoissonSampling": "TruncatedPoisson",
    "UnknownSampling": "Unknown",
}


@pytest.mark.parametrize("name", registry.registered_names(events.Sampling))
def test_a_sampling_policy_is_known_by_four_files(name):
    known = _files_that_name(name, SAMPLINGS[name])
    described = known & {"events/sampling.py", "events/turns.py"}
    assert len(described) == 1 and "accounting/sampling_rules.py" in known
    # The third is the policy's own, the fourth what plans are made of.
    others = known - {
        *described,
        "accounting/sampling_rules.py",
        "accounting/planning/training_plan.py",
    }
    assert len(others) == (SAMPLINGS[name] is not None)
    assert all(file.startswith("sampling/") for file in others)


# Files that use an accountant as a tool, and need not know of any other.
TOOLS = {
    "accounting/moments.py": {"RDPAccountant"},
    "accounting/planning/calibration.py": {"PRVAccountant", "rdp"},
    "cli/audit.py": {"PRVAccountant"},  # It knows lower bounds.
    "report/costs.py": {"rdp"},
    "report/groups.py": {"PRVAccountant", "RDPAccountant", "prv", "rdp"},  # They know groups.
}


@pytest.mark.parametrize("name", _OURS)
def test_an_accountant_is_known_by_its_own_file_and_the_registry(name):
    module, cls = _OURS[name]
    own = module.removeprefix("tfdp.").replace(".", "/") + ".py"
    texts_of = _found_in_files(_texts)
    named = _files_that_name(cls) | {f for f, texts in texts_of.items() if name in texts}
    tools = {file for file, used in TOOLS.items() if used & {name, cls}}
    assert named - tools == {own, "accounting/registry.py"}


def test_names_are_found_other_than_where_they_are_called():
    source = '"""A."""\nclass B: "C"\nx.D(1, e.F)\ng: H = "I"\nfrom J import K\n'
    assert _names(source) == {"B", "x", "e", "F", "g", "H", "I"}
