"""Sums over ranges of a histogram, by a tree of sums."""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.events import Event
from tfdp.events.arguments import positive_integer, real_number
from tfdp.noise import RandomSource
from tfdp.query.distributed import DistributedDiscreteGaussianSumQuery
from tfdp.query.dp_query import DPQuery, SumAggregationDPQuery
from tfdp.query.gaussian import GaussianSumQuery
from tfdp.query.scores import vector_of_any
from tfdp.query.structure import Structure, tensor_of
from tfdp.query.wrapping import check_goes_inside


class TreeRangeSumGlobalState(NamedTuple):
    """The arity, and the state of the inner query."""

    arity: Any
    inner_query_state: Any


@dataclasses.dataclass(frozen=True)
class TreeRangeSumQuery(SumAggregationDPQuery):
    """Releases every node of a tree whose leaves are the sums of vectors, and whose other nodes
    are the sums of their children.

    A sum over any range of leaves adds up 2 (arity - 1) log_arity(leaves) nodes at most
    (`range_sum`), and not all leaves of the range. So its noise grows with the logarithm of the
    range. Leaves are padded with zeros to a power of the arity.

    Guarantees:
        The inner query clips and noises the whole tree of a record as one vector, so that its event
        covers every level. A record that is one in one leaf is one in one node of each level: its
        tree has an l2 norm of sqrt(levels), and an l1 norm of as many levels as there are.

    Edge cases:
        Those of the inner query.

    Args:
        inner_query: A `DPQuery` for vectors that is a sum; it adds the noise.
        arity: Children of each node; at least 2.

    Raises:
        TypeError: `inner_query` is no query, or has results that are not like records, or records
            with weights, or `arity` is no integer.
        ValueError: `arity` is below 2, or `inner_query` is no sum.

    Example:
        >>> query = TreeRangeSumQuery.build_central_gaussian_query(2.0, stddev=0.0)
        >>> global_state = query.initial_global_state()
        >>> state = query.initial_sample_state(tf.zeros([4]))
        >>> for leaf in ([1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]):
        ...     params = query.derive_sample_params(global_state)
        ...     state = query.accumulate_record(params, state, tf.constant(leaf))
        >>> tree = query.get_noised_result(state, global_state)[0]
        >>> print(tree.to_list())
        [[3.0], [1.0, 2.0], [1.0, 0.0, 2.0, 0.0]]
        >>> float(query.range_sum(tree, 1, 4))
        2.0

    References:
        Hay, Rastogi, Miklau, Suciu 2010, arXiv:0904.0942, section 4; Smith, Thakurta, Upadhyay
        2017, "Is interaction necessary for distributed private learning?".
    """

    inner_query: DPQuery
    arity: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.inner_query, DPQuery):
            raise TypeError(f"inner_query must be a DPQuery. Received: {self.inner_query!r}.")
        if not self.inner_query.is_sum:
            raise ValueError(f"inner_query must be a sum. Received: {self.inner_query!r}.")
        check_goes_inside("inner_query", self.inner_query, "TreeRangeSumQuery")
        object.__setattr__(self, "arity", positive_integer("arity", self.arity))
        if self.arity < 2:
            raise ValueError(f"arity must be at least 2. Received: arity={self.arity}.")

    @classmethod
    def build_central_gaussian_query(
        cls,
        l2_norm_clip: float,
        stddev: float,
        arity: int = 2,
        random_source: RandomSource | None = None,
    ) -> "TreeRangeSumQuery":
        """Returns the query with Gaussian noise on every node.

        Args:
            l2_norm_clip: Bound on the l2 norm of a record's whole tree.
            stddev: Of the noise on every node.
            arity: Children of each node.
            random_source: Where the noise comes from; by default keyed by the operating system.
        """
        return cls(GaussianSumQuery(l2_norm_clip, stddev, random_source), arity)

    @classmethod
    def build_distributed_discrete_gaussian_query(
        cls,
        l2_norm_bound: float,
        local_stddev: float,
        arity: int = 2,
        *,
        min_contributors: int = 1,
        max_leaves: int = 2**20,
        random_source: RandomSource | None = None,
    ) -> "TreeRangeSumQuery":
        """Returns the query for a secure sum of integers: each record brings noise on every node.

        Args:
            l2_norm_bound: Of the l2 norm of a record's whole tree; a longer one is an error.
            local_stddev: Parameter of a record's discrete Gaussian noise on every node.
            arity: Children of each node.
            min_contributors: How many records bring their noise at least; so much is charged.
            max_leaves: Of a record at most.
            random_source: Where the noise comes from; by default keyed by the operating system.
        """
        real_number("l2_norm_bound", l2_norm_bound, minimum=0, inclusive=False)
        positive_integer("max_leaves", max_leaves)
        empty = cls(GaussianSumQuery(1.0, 0.0), arity)
        inner = DistributedDiscreteGaussianSumQuery(
            l2_norm_bound,
            local_stddev,
            min_contributors,
            sum(empty._levels(max_leaves)),
            random_source,
        )
        return cls(inner, arity)

    def initial_global_state(self) -> Structure:
        return TreeRangeSumGlobalState(self.arity, self.inner_query.initial_global_state())

    def derive_sample_params(self, global_state: Structure) -> Structure:
        inner = self.inner_query.derive_sample_params(global_state.inner_query_state)
        return self.arity, inner

    def initial_sample_state(self, template: Structure) -> Structure:
        dtype = tf.as_dtype(vector_of_any(template).dtype)  # The inner query says which it takes.
        nodes = sum(self._levels(template.shape[0]))
        return self.inner_query.initial_sample_state(tf.zeros([nodes], dtype))

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        leaves = tensor_of(vector_of_any(record))
        *_, width = self._levels(leaves.shape[0])
        levels = [tf.pad(leaves, [[0, width - leaves.shape[0]]])]
        while levels[0].shape[0] > 1:
            children = tf.reshape(levels[0], [-1, self.arity])
            levels.insert(0, tf.reduce_sum(children, axis=1))
        return self.inner_query.preprocess_record(params[1], tf.concat(levels, axis=0))

    def accumulate_preprocessed_record(
        self, sample_state: Structure, preprocessed_record: Structure
    ) -> Structure:
        return self.inner_query.accumulate_preprocessed_record(sample_state, preprocessed_record)

    def merge_sample_states(
        self, sample_state_1: Structure, sample_state_2: Structure
    ) -> Structure:
        return self.inner_query.merge_sample_states(sample_state_1, sample_state_2)

    @property
    def has_results_like_records(self) -> bool:
        return False

    @property
    def needs_separate_records(self) -> bool:
        return self.inner_query.needs_separate_records

    @property
    def draws_for_records(self) -> bool:
        return self.inner_query.draws_for_records

    @property
    def min_contributors(self) -> int:
        return self.inner_query.min_contributors

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        nodes, inner_state, event = self.inner_query.get_noised_result(
            sample_state, global_state.inner_query_state
        )
        lengths, total = [1], 1
        while total < nodes.shape[0]:
            lengths.append(lengths[-1] * self.arity)
            total += lengths[-1]
        tree = tf.RaggedTensor.from_row_lengths(nodes, lengths)
        return tree, TreeRangeSumGlobalState(self.arity, inner_state), event

    def derive_event(self, global_state: Structure) -> Event:
        return self.inner_query.derive_event(global_state.inner_query_state)

    def range_sum(self, tree: tf.RaggedTensor, start: int, stop: int) -> tf.Tensor:
        """Returns the sum of the leaves start .. stop - 1, from as few nodes as there can be.

        Args:
            tree: What `get_noised_result` returned.
            start: In 0 .. stop.
            stop: At most the number of leaves.
        """
        levels = [tree[level] for level in range(tree.shape[0])]
        if not 0 <= start <= stop <= levels[-1].shape[0]:
            raise ValueError(
                f"A range must be within the {levels[-1].shape[0]} leaves. Received: {start=}, "
                f"{stop=}."
            )
        nodes = []
        for level in reversed(levels):
            # Up to whole families from both ends; the parents of those between take over.
            first, last = -(-start // self.arity) * self.arity, stop // self.arity * self.arity
            if first > last or level.shape[0] == 1:
                nodes.append(level[start:stop])
                break
            nodes += [level[start:first], level[last:stop]]
            start, stop = first // self.arity, last // self.arity
        return tf.reduce_sum(tf.concat(nodes, axis=0))

    def _levels(self, leaves: int) -> list[int]:
        """Returns the number of nodes of each level, from the root to the padded leaves."""
        lengths = [1]
        while lengths[-1] < leaves:
            lengths.append(lengths[-1] * self.arity)
        return lengths
