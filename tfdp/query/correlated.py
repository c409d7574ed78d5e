"""Sum of clipped records whose noise remembers earlier steps."""

import collections
import dataclasses
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdp.events import CorrelatedGaussianSumEvent, Event, TreeGaussianSumEvent
from tfdp.events.arguments import positive_integer
from tfdp.factorizations import BinaryTree, ToeplitzFactorization
from tfdp.noise import RandomSource, staged
from tfdp.numerics import rounding
from tfdp.query import norm_factors
from tfdp.query.arguments import check_random_source, clip_norm, noise_stddev, source_of
from tfdp.query.dp_query import check_config
from tfdp.query.leaves import check_specs, spec_of, spec_of_words, words_of_spec
from tfdp.query.run_noise import Memory, filtered, memory_shapes
from tfdp.query.structure import Structure, check_same_structure, is_concrete

# Numbers of runs are below this, so that a run that follows another has a number, too.
_RUN_BITS = 62
_NAMES = (*("l2_norm_clip", "stddev", "factorization", "num_steps", "period", "record_specs"),)


class CorrelatedGlobalState(NamedTuple):
    """Which step of which run is next, and what its noise remembers.

    The memory is SECRET: whoever has it can take noise off what was released before.

    Attributes:
        run_id: int64 scalar.
        position: int64 scalar, from 0 to num_steps - 1.
        memory: For every leaf of a record what its noise remembers: tensors which together hold
            factorization.memory(num_steps) of its shape.
    """

    run_id: tf.Tensor
    position: tf.Tensor
    memory: tuple[Memory, ...]


@dataclasses.dataclass(frozen=True)
class CorrelatedGaussianSumQuery(norm_factors.OneGroupQuery):
    """A Gaussian sum whose noise y follows C y = stddev z over the steps of a run.

        result_t = sum_i r_i min(1, l2_norm_clip / |r_i|) + y_t,
        y_t = stddev z_t + sum_j (r_j stddev z_{t-j} - p_j y_{t-j})

    with z_t standard normal, drawn anew in every step, and C(x) = p(x) / r(x). A step takes back a
    part of the noise of steps before, so that sums over many steps have less of it. With
    `factorization=BinaryTree()` y_t is the difference of the noises that two running sums have by
    the nodes of a binary tree (`TreeResidualSumQuery`).

    Guarantees:
        Over a run of `num_steps` steps the results are a function of C g + stddev z, where one unit
        moves C g by at most l2_norm_clip factorization.sensitivity(num_steps, period). Every step's
        event names the run and its place in it (`CorrelatedGaussianSumEvent`, of a tree
        `TreeGaussianSumEvent`). After `num_steps`
        steps a new run begins, which remembers nothing and is charged again.

        Going on twice from one state repeats places of the run in the ledger, with fresh z; the
        ledger then costs as many runs. It never costs less.

    Edge cases:
        The state holds noise that was added to results: whoever reads it can take that off. So
        checkpoints in the middle of a run are as secret as the data.

    Args:
        l2_norm_clip: Bound on the l2 norm of a record; positive.
        stddev: Standard deviation of what is fresh in the noise of a step, on the sum.
        factorization: C; see `tfdp.factorizations`.
        num_steps: Of a run, which all must be planned: noise is best for that number.
        period: Steps between two in which one unit may be. The sampling must see to it:
            `tfdp.sampling.FixedOrder` with as many batches, or `CyclicPoisson` with as many
            groups; other samplings are refused. 1 is every step, which needs no order.
        record_specs: Structure of tensors, variables or `tf.TensorSpec` like a record: for
            gradients the list of trainable variables. Records of other shapes are refused, and of
            wider dtypes: noise of float32 would leave bits of float64 bare.
        random_source: Where z comes from; by default keyed by the operating system.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it is out of range, or the columns of C overflow.

    Example:
        >>> from tfdp.factorizations import banded_square_root
        >>> specs = [tf.TensorSpec([2], tf.float32)]
        >>> query = CorrelatedGaussianSumQuery(1.0, 2.0, banded_square_root(3), 100, 10, specs)
        >>> state = query.initial_global_state()
        >>> zeros = query.initial_sample_state(specs)
        >>> _, state, event = query.get_noised_result(zeros, state)
        >>> event.position, int(state.position), [noise.shape for noise in state.memory[0]]
        (0, 1, [TensorShape([2]), TensorShape([2])])

    References:
        Denisov et al. 2022, arXiv:2202.08312; Choquette-Choo et al. 2023, arXiv:2306.08153
        (banded); Kalinin et al. 2025, arXiv:2505.12128 (banded inverse).
    """

    l2_norm_clip: float
    stddev: float
    factorization: ToeplitzFactorization | BinaryTree
    num_steps: int
    period: int
    record_specs: Structure
    random_source: RandomSource | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2_norm_clip", clip_norm("l2_norm_clip", self.l2_norm_clip))
        object.__setattr__(self, "stddev", noise_stddev("stddev", self.stddev))
        if not isinstance(self.factorization, (BinaryTree, ToeplitzFactorization)):
            raise TypeError(
                "factorization must be one of tfdp.factorizations. Received: "
                f"{self.factorization!r}."
            )
        for name in ("num_steps", "period"):
            object.__setattr__(self, name, positive_integer(name, getattr(self, name)))
        self.factorization.sensitivity(self.num_steps, self.period)
        if isinstance(self.factorization, ToeplitzFactorization):
            self.factorization.inverse_column(self.num_steps)
        check_random_source(self.random_source)
        object.__setattr__(self, "record_specs", tf.nest.map_structure(spec_of, self.record_specs))
        if not tf.nest.flatten(self.record_specs):
            raise ValueError("record_specs must hold at least one leaf. Received: none.")

    def initial_global_state(self) -> Structure:
        memory = tuple(
            tuple(
                tf.zeros(shape, spec.dtype)
                for shape in memory_shapes(self.factorization, self.num_steps, [*spec.shape])
            )
            for spec in tf.nest.flatten(self.record_specs)
        )
        run_id = tf.constant(secrets.randbits(_RUN_BITS), tf.int64)
        return CorrelatedGlobalState(run_id, tf.constant(0, tf.int64), memory)

    def derive_sample_params(self, global_state: Structure) -> Structure:
        return self.l2_norm_clip

    def initial_sample_state(self, template: Structure) -> Structure:
        check_specs(self.record_specs, template)
        return super().initial_sample_state(template)

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        check_specs(self.record_specs, record)
        return super().preprocess_record(params, record)

    def scale_factors(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        return norm_factors.clip_factors(params, norms)

    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        check_same_structure(self.record_specs, sample_state)
        check_specs(self.record_specs, sample_state)
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(sample_state)]
        if self.stddev == 0:
            results, state = self._noised(leaves, global_state)
        else:
            results, state = staged(self._noised, leaves, global_state)
        event = self.derive_event(global_state) if is_concrete(global_state) else None
        return tf.nest.pack_sequence_as(sample_state, results), state, event

    def derive_event(self, global_state: Structure) -> Event:
        seeded, of = source_of(self).seeded, self.factorization
        place = (
            self.num_steps,
            self.period,
            int(np.asarray(global_state.position)),
            int(np.asarray(global_state.run_id)),
        )
        if isinstance(of, BinaryTree):
            return TreeGaussianSumEvent(
                self.l2_norm_clip, self.stddev, *place, of.efficient, seeded=seeded
            )
        return CorrelatedGaussianSumEvent(
            self.l2_norm_clip, self.stddev, of.numerator, of.denominator, *place, seeded=seeded
        )

    def derive_metrics(self, global_state: Structure) -> Mapping[str, Any]:
        return collections.OrderedDict(step_of_run=global_state.position)

    def _noised(
        self, leaves: list[tf.Tensor], state: CorrelatedGlobalState
    ) -> tuple[list[tf.Tensor], CorrelatedGlobalState]:
        source = source_of(self)
        fresh = []
        for leaf, spec in zip(leaves, tf.nest.flatten(self.record_specs), strict=True):
            if self.stddev == 0:
                fresh.append(tf.zeros(leaf.shape, spec.dtype))
            else:
                draws = source.normal(leaf.shape, spec.dtype)
                fresh.append(draws * rounding.up(self.stddev, spec.dtype))
        noises, memories = filtered(
            self.factorization, self.num_steps, state.position, fresh, state.memory
        )
        # In the dtype of the noise, which is no narrower: rounding to a sum's own comes after it.
        results = [
            tf.cast(tf.cast(leaf, noise.dtype) + noise, leaf.dtype)
            for leaf, noise in zip(leaves, noises, strict=True)
        ]
        ends = tf.equal(state.position, self.num_steps - 1)
        position = tf.where(ends, tf.zeros_like(state.position), state.position + 1)
        run_id = state.run_id + tf.cast(ends, tf.int64)
        return results, CorrelatedGlobalState(run_id, position, tuple(memories))

    def reset_state(
        self, noised_results: Structure, global_state: CorrelatedGlobalState
    ) -> CorrelatedGlobalState:
        """Returns the state before the first step of a new run, which remembers nothing.

        Args:
            noised_results: Of the step before; it has no part in this.
            global_state: After that step.
        """
        begun = tf.cast(global_state.position > 0, tf.int64)
        memory = tf.nest.map_structure(tf.zeros_like, global_state.memory)
        run_id = global_state.run_id + begun
        return CorrelatedGlobalState(run_id, tf.zeros_like(global_state.position), memory)

    def get_config(self) -> dict[str, Any]:
        if self.random_source is not None:
            return super().get_config()  # Which says why there is none.
        own: dict[str, Any] = {
            "factorization": _config_of(self.factorization),
            "record_specs": tf.nest.map_structure(words_of_spec, self.record_specs),
        }
        return {name: own[name] if name in own else getattr(self, name) for name in _NAMES}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "CorrelatedGaussianSumQuery":
        check_config(cls.__name__, config, _NAMES)
        found = keras.saving.deserialize_keras_object(config)
        factorization = _factorization_of(found.pop("factorization"))
        specs = tf.nest.map_structure(spec_of_words, found.pop("record_specs"))
        return cls(factorization=factorization, record_specs=specs, **found)


def _config_of(factorization: ToeplitzFactorization | BinaryTree) -> dict[str, Any]:
    if isinstance(factorization, BinaryTree):
        return {"efficient": factorization.efficient}
    return {
        "numerator": list(factorization.numerator),
        "denominator": list(factorization.denominator),
    }


def _factorization_of(config: dict[str, Any]) -> ToeplitzFactorization | BinaryTree:
    if "efficient" in config:
        check_config("BinaryTree", config, ["efficient"])
        return BinaryTree(**config)
    check_config("ToeplitzFactorization", config, ["numerator", "denominator"])
    return ToeplitzFactorization(**{name: tuple(values) for name, values in config.items()})
