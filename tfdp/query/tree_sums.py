"""Sums and running sums with noise of a binary tree over the steps, as in DP-FTRL."""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.events import Event
from tfdp.events.arguments import check_type, real_number, says_what_to_write
from tfdp.factorizations import BinaryTree
from tfdp.noise import SeededRandomSource
from tfdp.query.correlated import CorrelatedGaussianSumQuery
from tfdp.query.dp_query import DPQuery
from tfdp.query.leaves import zeros_like
from tfdp.query.structure import Structure
from tfdp.query.wrapping import WrappingQuery

_PRICED = (
    "A tree is priced by its num_steps and by the period, the steps between two in which a unit "
    "may be, and only with an l2 clip and Gaussian noise: give clip_norm, noise_multiplier and "
    "record_specs, num_steps=... and period=..."
)
_OF_A_TREE = "Write tfdp.query.{}.build_l2_gaussian_query. " + _PRICED


@says_what_to_write(_OF_A_TREE.format("TreeResidualSumQuery"))
class TreeResidualSumQuery(CorrelatedGaussianSumQuery):
    """The sum of each step, with noise of which running sums have only that of a few tree nodes.

    `CorrelatedGaussianSumQuery` with `factorization=BinaryTree()`: t results add up to the sum of t
    steps plus the noise of at most log2(t) + 1 nodes, each with deviation `stddev` (with estimates
    from below between 0.71 and 1 of it). It stands wherever a `GaussianSumQuery` can; with SGD it
    makes DP-FTRL. `tfdp.factorizations.optimal_buffered` has less noise for the same price, and
    keeps less of it.

    Arguments, guarantees and errors are those of `CorrelatedGaussianSumQuery`; `factorization` must
    be a `BinaryTree`, and `stddev` is that of the noise of a node.

    Raises:
        TypeError: `factorization` is another one.

    Example:
        >>> query = TreeResidualSumQuery.build_l2_gaussian_query(
        ...     clip_norm=1.0, noise_multiplier=2.0, record_specs=tf.TensorSpec([2], tf.float32),
        ...     num_steps=100, period=10,
        ... )
        >>> query.derive_event(query.initial_global_state()).noise_stddev
        2.0

    References:
        Kairouz, McMahan, Song, Thakkar, Thakurta, Xu 2021, arXiv:2103.00039, algorithm 1 and
        appendix B.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("factorization", self.factorization, BinaryTree)

    @classmethod
    @says_what_to_write(_PRICED)
    def build_l2_gaussian_query(
        cls,
        clip_norm: float,
        noise_multiplier: float,
        record_specs: Structure,
        noise_seed: int | None = None,
        use_efficient: bool = True,
        *,
        num_steps: int,
        period: int,
    ) -> "TreeResidualSumQuery":
        """Returns the query, by the arguments that TensorFlow Privacy has, and two by name.

        Args:
            clip_norm: Bound on the l2 norm of a record; positive.
            noise_multiplier: Standard deviation of the noise of a node, divided by `clip_norm`.
            record_specs: As in `CorrelatedGaussianSumQuery`.
            noise_seed: For repeatable noise, which is no privacy: events say so, and accountants
                answer infinity. None: from the operating system's randomness.
            use_efficient: Whether nodes below a node take part in its estimate (Honaker).
            num_steps: Of a tree. TensorFlow Privacy does not ask for it, because it does not price
                what is released. After so many steps a new tree begins.
            period: Steps between two in which one unit may be; 1 is every step.

        Raises:
            TypeError: an argument is of the wrong type, or missing.
            ValueError: it is out of range.
        """
        multiplier = real_number("noise_multiplier", noise_multiplier, minimum=0, inclusive=True)
        clip = real_number("clip_norm", clip_norm, minimum=0, inclusive=False)
        source = None if noise_seed is None else SeededRandomSource(noise_seed)
        tree = BinaryTree(use_efficient)
        return cls(clip, clip * multiplier, tree, num_steps, period, record_specs, source)


class CumulativeGlobalState(NamedTuple):
    """The state of the query of a step, and the sum of all that it has released."""

    inner_state: Structure
    released: Structure


@says_what_to_write(_OF_A_TREE.format("TreeCumulativeSumQuery"))
@dataclasses.dataclass(frozen=True)
class TreeCumulativeSumQuery(WrappingQuery):
    """The running sum over all steps, with the noise of at most log2(steps) + 1 tree nodes.

    What `TreeResidualSumQuery` releases, added up: adding up what was released costs nothing more.
    So the state holds noised sums only, beside the secret noise of the current tree. A new tree
    begins on what the last one released.

    Guarantees:
        Those of `residual_query`, whose events it has.

    Args:
        residual_query: What a step releases.

    Raises:
        TypeError: `residual_query` is another query.

    References:
        Dwork, Naor, Pitassi, Rothblum 2010, "Differential privacy under continual observation";
        Chan, Shi, Song 2011; Honaker 2015.
    """

    residual_query: TreeResidualSumQuery

    def __post_init__(self) -> None:
        check_type("residual_query", self.residual_query, TreeResidualSumQuery)

    @classmethod
    def build_l2_gaussian_query(cls, *args: Any, **kwargs: Any) -> "TreeCumulativeSumQuery":
        """Returns the query around `TreeResidualSumQuery.build_l2_gaussian_query` of the same
        arguments.

        Args:
            *args: For it.
            **kwargs: Likewise.
        """
        return cls(TreeResidualSumQuery.build_l2_gaussian_query(*args, **kwargs))

    @property
    def _inner(self) -> DPQuery:
        return self.residual_query

    def _with_inner(self, inner):
        return TreeCumulativeSumQuery(inner)

    def _inner_state(self, global_state):
        return global_state.inner_state

    def initial_global_state(self) -> Structure:
        zeros = tf.nest.map_structure(zeros_like, self.residual_query.record_specs)
        return CumulativeGlobalState(self.residual_query.initial_global_state(), zeros)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        residual, inner, event = self.residual_query.get_noised_result(
            sample_state, global_state.inner_state
        )
        released = tf.nest.map_structure(
            lambda old, new: old + tf.cast(new, old.dtype), global_state.released, residual
        )
        result = tf.nest.map_structure(lambda t, new: tf.cast(t, new.dtype), released, residual)
        return result, CumulativeGlobalState(inner, released), event

    def reset_state(
        self, noised_results: Structure, global_state: CumulativeGlobalState
    ) -> CumulativeGlobalState:
        """Returns the state in which a new tree begins on what was released.

        Args:
            noised_results: Of the step before.
            global_state: After it.
        """
        inner = self.residual_query.reset_state(noised_results, global_state.inner_state)
        return CumulativeGlobalState(inner, global_state.released)
