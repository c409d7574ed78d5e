"""The interface of a mechanism (McMahan et al. 2018, arXiv:1812.06210, section 3)."""

import abc
import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdp.events import Event
from tfdp.events.registry import is_ours
from tfdp.query.leaves import zeros_like
from tfdp.query.structure import Structure, add

# By the names of methods what a query with another one of these does not inherit: engines that work
# from norms call none of them, and those that add up batches only the first one.
_NOT_INHERITED: dict[str, dict[str, Any]] = {
    "preprocess_record": {"num_norm_groups": None},
    "accumulate_preprocessed_record": {"num_norm_groups": None, "is_sum": False},
    "merge_sample_states": {"num_norm_groups": None, "is_sum": False},
}


class DPQuery(abc.ABC):
    """What is computed about a sample of records, and the noise that protects it.

    One step is

        params = query.derive_sample_params(global_state)
        state = query.initial_sample_state(template)
        for record in sample:
            state = query.accumulate_record(params, state, record)
        result, global_state, event = query.get_noised_result(state, global_state)

    A query is configuration and never changes; what changes from step to step is in `global_state`.
    Method names are those of TensorFlow Privacy, so queries written for it carry over. Two things
    are new: `derive_event`, and the norm-factor protocol (`norm_groups`, `scale_factors`).

    Guarantees:
        The event depends on the global state alone, never on a record, so that a trainer can write
        it to the ledger before the result exists.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Takes from a class what it inherits and need not be any more.

        If a class that is not tfdp's has a method of its own that takes records, and does not say
        anew that engines may do without it (`num_norm_groups`, `is_sum`), then they may not: else
        its event would describe what the method does, and an engine would do something else.

        Raises:
            TypeError: the class has an `accumulate_record` of its own.
        """
        super().__init_subclass__(**kwargs)

        def place(name: str) -> int:
            return next(i for i, each in enumerate(cls.__mro__) if name in vars(each))

        if not is_ours(cls.__mro__[place("accumulate_record")]):
            raise TypeError(
                f"{cls.__name__} must not have an accumulate_record of its own: engines, and "
                "queries around it, call preprocess_record and accumulate_preprocessed_record. Put "
                "what it does there."
            )
        for name, instead in _NOT_INHERITED.items():
            place_of_method = place(name)
            if is_ours(cls.__mro__[place_of_method]):
                continue
            for said, value in instead.items():
                if place_of_method < place(said):
                    setattr(cls, said, value)

    def initial_global_state(self) -> Structure:
        """Returns the state before the first step. Python numbers in it never change."""
        return ()

    def derive_sample_params(self, global_state: Structure) -> Structure:
        """Returns what `preprocess_record` needs to know of the global state."""
        return ()

    @abc.abstractmethod
    def initial_sample_state(self, template: Structure) -> Structure:
        """Returns the state of an empty sample, for records with the structure, shapes and dtypes
        of `template`.
        """

    def preprocess_record(self, params: Structure, record: Structure) -> Structure:
        """Returns what one record contributes. It may depend on this record and `params` only."""
        return record

    @abc.abstractmethod
    def accumulate_preprocessed_record(
        self, sample_state: Structure, preprocessed_record: Structure
    ) -> Structure:
        """Returns the sample state with one more preprocessed record in it."""

    def accumulate_record(
        self, params: Structure, sample_state: Structure, record: Structure
    ) -> Structure:
        """Returns the sample state with one more record in it. It is not to be overridden."""
        return self.accumulate_preprocessed_record(
            sample_state, self.preprocess_record(params, record)
        )

    @abc.abstractmethod
    def merge_sample_states(
        self, sample_state_1: Structure, sample_state_2: Structure
    ) -> Structure:
        """Returns the state of the union of two disjoint samples."""

    @abc.abstractmethod
    def get_noised_result(
        self, sample_state: Structure, global_state: Structure
    ) -> tuple[Structure, Structure, Event | None]:
        """Returns the protected result, the next global state, and the event that describes the
        release.

        The event is that of `derive_event(global_state)`. It is None only inside a graph whose
        global state is symbolic. Code that builds such a graph must take the event from
        `derive_event`, with the state's values, before the result can be seen. tfdp's optimizer
        does.
        """

    @abc.abstractmethod
    def derive_event(self, global_state: Structure) -> Event:
        """Returns the event of releasing a result from this global state, whose values must be
        known.
        """

    def derive_metrics(self, global_state: Structure) -> Mapping[str, Any]:
        """Returns values of the global state that are worth showing. They are public: the state
        is.
        """
        return collections.OrderedDict()

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, by name, for Keras' registry.

        Raises:
            TypeError: the query is not a dataclass and has no `get_config` of its own, or it has a
                random source, which is no configuration.
        """
        if getattr(self, "random_source", None) is not None:
            raise TypeError(
                f"A random source is not written into a configuration. Received: {self!r} with "
                f"random_source={self.random_source!r}. Make the query without one."
            )
        return {name: getattr(self, name) for name in self._config_names()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "DPQuery":
        """Returns the query that `get_config` described.

        Guarantees:
            Every argument is in the configuration: none is filled in by a default, which might be
            another clip, less noise or another precision than it was.

        Raises:
            TypeError: an argument is missing or unknown, or of the wrong type.
            ValueError: an argument is out of range.
        """
        check_config(cls.__name__, config, cls._config_names())
        return cls(**keras.saving.deserialize_keras_object(config))

    @classmethod
    def _config_names(cls) -> list[str]:
        """Returns the names of the constructor's arguments that are configuration."""
        if "__init__" in vars(cls) and not dataclasses.is_dataclass(cls):
            raise TypeError(f"{cls.__name__} needs get_config and from_config of its own.")
        fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        return [field.name for field in fields if field.name != "random_source"]

    @property
    def is_sum(self) -> bool:
        """True where a sample state is the sum of the preprocessed records, structure for
        structure.
        """
        return False

    @property
    def has_numeric_result(self) -> bool:
        """False where a result says which of several things were chosen, beside numbers or without:
        it cannot be divided, and records, which count in whole, cannot be weighted.
        """
        return True

    @property
    def has_results_like_records(self) -> bool:
        """False where the coordinates of a result are not those of a record, so that nothing which
        was done to these can be undone in it.
        """
        return self.has_numeric_result

    @property
    def needs_separate_records(self) -> bool:
        """True where what a record contributes must be a function of that record alone, in every
        bit.

        Operations on a batch may round a record's gradient in another way when other records are in
        the batch. An engine must compute the records of such a query one by one.
        """
        return False

    @property
    def draws_for_records(self) -> bool:
        """True where something is drawn for every record: its share of the noise, its rounding.

        An engine must hand it records that are not finite, too: they count as zeros, with their
        share. The host draws, so that XLA cannot compile `preprocess_record`.
        """
        return False

    @property
    def min_contributors(self) -> int:
        """How many records a result needs, because their shares of the noise are charged for; 0
        where the noise does not come with records.
        """
        return 0

    @property
    def takes_weights(self) -> bool:
        """True where records, or parts of them, are given with a weight each (`WeightedRecord`)."""
        return False

    def weighed(self, weights: float | tf.Tensor) -> "DPQuery":
        """Returns the query of the same samples whose records come without their weights.

        Engines use it, to which records are gradients alone. All its states are those of this
        query.

        Args:
            weights: Of the records that it is used on: a scalar for one, [n] where norms are
                [n, G].
        """
        return self

    @property
    def num_norm_groups(self) -> int | None:
        """G of the norm-factor protocol, or None where the query does not follow it.

        In some queries `preprocess_record` multiplies each of G groups of leaves by a factor that
        depends only on the groups' l2 norms (of scaled leaves, with `coordinate_scales`). Such a
        query says so here, names the groups in `norm_groups`, and gives the factors in
        `scale_factors`. An engine can then work from norms alone and never needs a record's
        gradient. Such a query is a sum (`is_sum`), but for leaves with `contribution_clips`, and
        one definition of its mathematics serves every engine.
        """
        return None

    def norm_groups(self, template: Structure) -> list[int]:
        """Returns the group, 0 to G - 1, of every leaf of `template`, in `tf.nest.flatten`
        order.
        """
        raise TypeError(
            f"{type(self).__name__} is not a norm-factor query: its num_norm_groups is None."
        )

    def scale_factors(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        """Returns the factors of the norm-factor protocol.

        Args:
            params: From `derive_sample_params`.
            norms: float32 or float64, [..., G]: l2 norms of the groups of each record.

        Returns:
            [..., G], the dtype of `norms`; exactly zero where a norm on which it depends is not
            finite.
        """
        raise TypeError(
            f"{type(self).__name__} is not a norm-factor query: its num_norm_groups is None."
        )

    def coordinate_scales(self, params: Structure, template: Structure) -> list[tf.Tensor | None]:
        """Returns for every leaf, in `tf.nest.flatten` order, numbers of its shape by which records
        are multiplied before their norms are taken; None where they are taken as they are.

        Norms and factors of the norm-factor protocol are then those of the scaled leaves.

        Args:
            params: From `derive_sample_params`.
            template: As in `norm_groups`.
        """
        return [None for _ in tf.nest.flatten(template)]

    def contribution_clips(self, template: Structure) -> list[float | None]:
        """Returns for every leaf, in `tf.nest.flatten` order, the bound on the l2 norm of what a
        record adds to the counts of its rows; None where rows are not counted.

        Of a leaf that has one an engine adds up rows with counts (`tfdp.query.sparse_rows`), and
        gives `pack_scaled` these in place of the leaf.
        """
        return [None for _ in tf.nest.flatten(template)]

    @property
    def num_norm_statistics(self) -> int:
        """K: how many numbers a record of a norm-factor query adds to the sum beside its leaves."""
        return 0

    def norm_statistics(self, params: Structure, norms: tf.Tensor) -> tf.Tensor:
        """Returns what a record adds beside its scaled leaves: functions of its norms alone.

        Args:
            params: From `derive_sample_params`.
            norms: As in `scale_factors`.

        Returns:
            float64 [..., K], which counts any number of records exactly; bounded whatever the norms
            are; exactly zero where a norm on which it depends is not finite.
        """
        return tf.cast(norms[..., :0], tf.float64)

    def pack_scaled(self, scaled: Structure, statistics: tf.Tensor) -> Structure:
        """Returns the preprocessed record with these parts; of sums of them, the sample state.

        Args:
            scaled: Scaled leaves, in the structure of the records.
            statistics: From `norm_statistics`, [K].
        """
        return scaled


class SumAggregationDPQuery(DPQuery):
    """A query whose sample state is the sum of its preprocessed records."""

    @property
    def is_sum(self) -> bool:
        return True

    def initial_sample_state(self, template: Structure) -> Structure:
        return tf.nest.map_structure(zeros_like, template)

    def accumulate_preprocessed_record(
        self, sample_state: Structure, preprocessed_record: Structure
    ) -> Structure:
        return add(sample_state, preprocessed_record)

    def merge_sample_states(
        self, sample_state_1: Structure, sample_state_2: Structure
    ) -> Structure:
        return add(sample_state_1, sample_state_2)


def check_config(name: str, config: dict[str, Any], expected: Iterable[str]) -> None:
    """Refuses a configuration that does not have exactly the keys it should have.

    Raises:
        TypeError: names what is missing and what is too much.
    """
    missing, unknown = sorted(set(expected) - set(config)), sorted(set(config) - set(expected))
    if missing or unknown:
        raise TypeError(
            f"This is not a configuration of a {name}. Missing: {', '.join(missing) or 'nothing'}. "
            f"Unknown: {', '.join(unknown) or 'nothing'}."
        )
