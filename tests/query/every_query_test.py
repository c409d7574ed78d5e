"""Every public query has what a mechanism needs: conformance, a mutant, a text and a price."""

import dataclasses
import inspect
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.mutation.mutant_table import MUTANTS
from tests.query import conforming, counting_conformance_test, sensitivity_test
from tfdp.accounting import ACCOUNTANTS, make_accountant
from tfdp.query import DPQuery, SumAggregationDPQuery

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
_SHARES = tfdp.query.DistributedDiscreteGaussianSumQuery(4.0, 8.0, min_contributors=4)

# Queries that hold to the same promises in tests of their own, because `conforming` takes records
# of real numbers, and states that are sums.
OF_THEIR_OWN = {
    "sparse_embedding_test.py": [
        tfdp.query.SparseEmbeddingSumQuery(1.0, 1.0, 1.0, 1.0, threshold=2.0)
    ],
    "integer_sums_test.py": [tfdp.query.DiscreteGaussianSumQuery(4.0, 8.0)],
    "distributed_test.py": [
        _SHARES,
        tfdp.query.DistributedSkellamSumQuery(4, 4.0, 8.0, min_contributors=4),
        tfdp.query.DistributedSkellamAverageQuery(4, 4.0, 8.0, 4.0, min_contributors=4),
    ],
    "discretized_test.py": [
        tfdp.query.DiscretizedSumQuery(
            tfdp.query.DiscreteGaussianSumQuery(2002.0, 2000.0), l2_norm_clip=1.0, scale=2000.0
        )
    ],
}
PUBLIC = {
    name: found
    for name in tfdp.query.__all__
    if inspect.isclass(found := getattr(tfdp.query, name)) and issubclass(found, DPQuery)
    if found not in (DPQuery, SumAggregationDPQuery)
}
each_query = pytest.mark.parametrize("name", PUBLIC)


def _conforming():
    """Returns all queries of the suites."""
    found = [
        build(1.5, conforming.PART_A, conforming.PART_B)[0]
        for build in conforming.ALL_QUERIES.values()
    ]
    found += [query for query, _ in counting_conformance_test.QUERIES.values()]
    return found + [query for queries in OF_THEIR_OWN.values() for query in queries]


def _with_parts(queries):
    """Yields queries, and those that they are made of."""
    pending = list(queries)
    while pending:
        query = pending.pop()
        yield query
        values = [v for v in vars(query).values() if not isinstance(v, str)]
        pending += [leaf for leaf in tf.nest.flatten(values) if isinstance(leaf, DPQuery)]


INSTANCES = {type(query): query for query in _with_parts(_conforming())}
# Tests that no record moves a release further than is charged, where that is no norm of a sum.
BOUND_BY = {
    "AboveThresholdQuery": "above_threshold_test.py::test_answers_of_neighbours_are_within_epsilon",
    "DistributedDiscreteGaussianSumQuery": "distributed_test.py::test_norm_is_checked_exactly",
    "DistributedSkellamAverageQuery": "distributed_test.py::test_both_norms_are_checked_exactly",
    "DistributedSkellamSumQuery": "distributed_test.py::test_both_norms_are_checked_exactly",
    "ExactGaussianSumQuery": "grid_test.py::test_norms_in_integers_are_within_the_bound",
    "ExponentialMechanismQuery": (
        "selection_test.py::test_probabilities_of_neighbours_are_within_epsilon"
    ),
    "GaussianHistogramQuery": (
        "partitions_test.py::test_audit_finds_no_more_than_the_claim_and_finds_a_variant_that_"
        "costs_more"
    ),
    "HistogramQuery": (
        "partitions_test.py::test_audit_finds_no_more_than_the_claim_and_finds_a_variant_that_"
        "costs_more"
    ),
    "PartitionSelectionQuery": (
        "partitions_test.py::test_probabilities_of_neighbours_satisfy_both_inequalities_and_no_"
        "larger_ones_would"
    ),
    "QuantileSelectionQuery": (
        "selection_test.py::test_a_record_moves_no_utility_by_more_than_the_sensitivity"
    ),
    "ReportNoisyMaxQuery": (
        "selection_test.py::test_probabilities_of_neighbours_are_within_epsilon"
    ),
    "SparseEmbeddingSumQuery": (
        "sparse_embedding_test.py::test_no_record_moves_sum_or_counts_by_more_than_their_bounds"
    ),
    "TreeRangeSumQuery": (
        "tree_range_test.py::test_a_record_moves_all_levels_together_by_at_most_the_bound"
    ),
}


@each_query
def test_query_is_in_a_suite_of_conformance(name):
    assert PUBLIC[name] in INSTANCES


@pytest.mark.parametrize("name", [name for name in PUBLIC if not name.startswith("NoPrivacy")])
def test_it_is_tested_how_far_a_record_moves_the_query(name):
    queries = _with_parts(query for query, _ in sensitivity_test.QUERIES.values())
    if PUBLIC[name] not in {type(query) for query in queries}:
        file, test = BOUND_BY[name].split("::")
        text = (ROOT / "tests" / "query" / file).read_text(encoding="utf-8")
        assert f"def {test}(" in text


@each_query
def test_query_is_in_the_text(name):
    assert f"`{name}" in TEXT


def _sections():
    """Yields, for each query, its row of the table and the section to which the row leads."""
    heads = {
        re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-"): text
        for head, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    }
    table = TEXT[TEXT.index("|---|---|---|---|") : TEXT.index("A choice among many runs")]
    section = ""
    for row in table.splitlines()[1:]:
        cells = [cell.strip() for cell in row.strip("| ").split(" | ")]
        found = re.match(r"\| \[.*?\]\(#(.*?)\)", row)
        if found:
            section = heads[found[1]]
        elif not row.startswith("| |"):
            section = ""
        for name in re.findall(r"`(\w+Query)", row):
            yield name, cells, section


SECTIONS = {name: (cells, section) for name, cells, section in _sections()}
# They protect nothing.
WITHOUT_A_SECTION = [name for name in PUBLIC if name.startswith("NoPrivacy")]
# What these do with another query is said in the first lines of the text.
WITHOUT_A_ROW = ["ArrangedQuery", "NormalizedQuery"]


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in WITHOUT_A_ROW])
def test_query_has_a_row_and_a_section_with_all_that_there_is_to_say(name):
    cells, section = SECTIONS[name]
    assert all(cells[-2:]), "The row names the event and the accountants."
    if name not in WITHOUT_A_SECTION:
        assert "Source" in section
        assert "Event" in section
        assert re.search(r"When to use|Use it|So a tree is for", section)


@each_query
def test_query_has_a_mutant(name):
    file = pathlib.Path(inspect.getsourcefile(PUBLIC[name])).relative_to(ROOT)
    assert str(file) in {mutant.file for mutant in MUTANTS}


@each_query
def test_event_of_the_query_has_a_price(name):
    query = INSTANCES[PUBLIC[name]]
    event = query.derive_event(query.initial_global_state())
    if not _has_price(event):  # Under add-or-remove-one, which is what a bare event is about.
        full, relation = tfdp.events.FullBatchSampling(), tfdp.NeighboringRelation.ZERO_OUT
        event = tfdp.SampledEvent(full, event, relation)
    assert _has_price(event)


@pytest.mark.parametrize("name", [n for n in PUBLIC if dataclasses.is_dataclass(PUBLIC[n])])
def test_a_source_of_noise_is_neither_shown_nor_compared(name):
    # Queries that do the same are equal, whoever draws; and they are shown as they are built.
    compares = PUBLIC[name].__eq__ is not object.__eq__
    for field in dataclasses.fields(PUBLIC[name]):
        if field.name == "random_source":
            assert not field.repr
            assert not (field.compare and compares)


def test_whatever_is_no_source_of_noise_is_refused():
    drawing = [q for q in INSTANCES.values() if hasattr(q, "random_source")]
    assert len(drawing) > 10
    for query in drawing:
        with pytest.raises(TypeError, match="random_source must be a tfdp.noise.RandomSource"):
            dataclasses.replace(query, random_source=7)


@pytest.mark.parametrize("name", [n for n in PUBLIC if "__dataclass_fields__" in vars(PUBLIC[n])])
def test_numbers_of_numpy_are_kept_as_pythons_own(name):
    query = INSTANCES[PUBLIC[name]]
    for field in dataclasses.fields(query):
        value = getattr(query, field.name)
        if type(value) in (int, float) and field.name != "rotation_seed":
            other = np.int64(value) if type(value) is int else np.float64(value)
            kept = getattr(dataclasses.replace(query, **{field.name: other}), field.name)
            assert kept == value
            assert type(kept) is type(value)


def _has_price(event):
    return any(make_accountant(accountant).supports(event) for accountant in ACCOUNTANTS)


def test_a_query_that_has_nothing_is_found():
    @dataclasses.dataclass(frozen=True)
    class Unknown(tfdp.GaussianSumQuery):
        pass

    assert Unknown not in INSTANCES
    assert "`Unknown" not in TEXT


def test_suites_of_their_own_exist():
    assert all((ROOT / "tests" / "query" / file).exists() for file in OF_THEIR_OWN)
