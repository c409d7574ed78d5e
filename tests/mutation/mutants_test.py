"""The table of mutants fits the source; `mutants.py` runs it, by hand."""

import pathlib

import pytest

import tfdp
from tests import named
from tests.mutation.mutant_table import MUTANTS
from tests.mutation.mutants import occurrences


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_text_of_a_mutant_is_in_the_source_exactly_once(mutant):
    assert occurrences(mutant) == 1, "the source has changed: edit tests/mutation/mutants_of_*.py"
    assert mutant.new != mutant.old


def test_mutants_are_many_and_their_tests_exist():
    assert len(MUTANTS) >= 30
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert named.missing({test for m in MUTANTS for test in m.tests}) == []


PACKAGE = pathlib.Path(tfdp.__file__).parent
MECHANISMS = ("query", "factorizations", "noise", "statistics", "tuning")
# Modules of mechanisms that are broken through others, and why.
WITHOUT_A_MUTANT = {
    "noise/attempts.py": "It tidies up what TensorFlow leaves, and draws nothing.",
    "noise/host_calls.py": "It calls the host, and draws nothing.",
    "noise/source.py": "It hands out what bits, staging and the draws make.",
    "query/parts.py": "It takes structures apart for the queries of parts.",
}


def test_every_module_of_a_mechanism_has_a_mutant():
    modules = {
        str(path.relative_to(PACKAGE))
        for folder in MECHANISMS
        for path in (PACKAGE / folder).glob("*.py")
        if path.name != "__init__.py"
    }
    modules |= {f"keras/{name}.py" for name in ("adam_bc", "batch_statistics", "private_metrics")}
    broken = {mutant.file.removeprefix("tfdp/") for mutant in MUTANTS}
    assert modules - broken == set(WITHOUT_A_MUTANT), "A mechanism needs mutants."


def test_text_that_is_missing_or_twice_is_found():
    assert occurrences(MUTANTS[0]._replace(old="no such text")) == 0
    assert occurrences(MUTANTS[0]._replace(old="import")) > 1
