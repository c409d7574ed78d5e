"""What queries are made of."""

import tensorflow as tf

from tfdp.query.arranged import ArrangedQuery
from tfdp.query.dp_query import DPQuery, SumAggregationDPQuery
from tfdp.query.nested import NestedQuery
from tfdp.query.normalized import NormalizedQuery
from tfdp.query.sparse_embedding import SparseEmbeddingSumQuery


def parts_of(query: DPQuery) -> list[DPQuery]:
    """Returns the queries to which a query gives parts of its records; itself if to none."""
    if isinstance(query, ArrangedQuery):
        return parts_of(query.query)
    if isinstance(query, NestedQuery):
        return [part for one in tf.nest.flatten(query.queries) for part in parts_of(one)]
    return [query]


def undivided_sums(query: DPQuery) -> list[DPQuery]:
    """Returns the parts of a query whose results are sums that nothing divides."""
    sums = (SumAggregationDPQuery, SparseEmbeddingSumQuery)
    return [part for part in parts_of(query) if isinstance(part, sums)]


def denominators(query: DPQuery) -> list[float]:
    """Returns the numbers of records by which the parts of a query divide: no total weights."""
    return [
        part.denominator
        for part in parts_of(query)
        if isinstance(part, NormalizedQuery) and not part.takes_weights
    ]
