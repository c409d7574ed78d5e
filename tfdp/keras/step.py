"""One private step: it is charged, clipped gradients are added up, and noise is added."""

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.events import Event, SampledEvent, scale_sensitivity
from tfdp.gradients import ClippedSum, SideEffectError, clipped_gradient_sum, draw_seeds
from tfdp.gradients.layered_loss import LayeredLoss, LoopsByRecordError
from tfdp.gradients.microbatches import records_present
from tfdp.keras import charges, distribution
from tfdp.keras.charging import Charging
from tfdp.keras.errors import NotPrivateError
from tfdp.keras.microbatching import Microbatching
from tfdp.keras.sampling_of_steps import Batch
from tfdp.noise import staged
from tfdp.noise.attempts import attempt
from tfdp.query.dp_query import DPQuery
from tfdp.query.structure import is_concrete

_logger = logging.getLogger(__name__)

# Stands for a tensor of a query's state.
_TENSOR = object()

# Layers are watched while gradients of their records are taken, and two models may share some.
_watching = threading.RLock()

Use = Callable[[list[tf.Tensor]], Any]  # What is done with noised gradients.


class StepArguments(NamedTuple):
    """What a step is taken on; the arguments of `DPOptimizer.private_gradients`."""

    loss_fn: Callable[[Any], Any]
    variables: list[Any]
    examples: Any
    mask: tf.Tensor | None = None
    microbatch_ids: tf.Tensor | None = None
    weights: tf.Tensor | None = None
    data_independent_loss: Callable[[], tf.Tensor] | None = None
    has_aux: bool = False
    loss_scale: float | None = None
    jit_compile: bool = False
    of_fit: bool = False  # As in `Batch`.
    has_statistics: bool = False  # Whether aux is (aux, statistics).
    examples_per_record: int | None = None  # As in `clipped_gradient_sum`.
    record_gradient: str = "mean"  # Likewise.
    check: Callable[[], None] | None = None  # Asked at every run, also of a graph.


class StepVariables(NamedTuple):
    """What a step reads and writes, besides the model.

    Attributes:
        position: How many events the ledger held after the last step.
        fingerprint: Which ledger that was.
        state: The tensors in the query's state, in order.
    """

    position: keras.Variable
    fingerprint: keras.Variable
    state: list[keras.Variable]


@dataclasses.dataclass(frozen=True)
class PrivateStep:
    """The step of a `DPOptimizer`.

    Guarantees:
        Nothing that depends on the sample comes out of it before its event is in the ledger. The
        event is that of the release.

    Attributes:
        query: The mechanism, of gradients and, where there are any, statistics.
        microbatching: How examples become records.
        charging: Writes events to the ledger.
        engine: As in `tfdp.clipped_gradient_sum`.
        physical_batch_size: Likewise.
        statistics: Forms of what a record has beside its gradient, as there.
        followers: Variables that what is released changes beside the weights: slots of the inner
            optimizer, moving statistics.
    """

    query: DPQuery
    microbatching: Microbatching
    charging: Charging
    engine: str
    physical_batch_size: int | None
    statistics: Sequence[tf.TensorSpec] = ()
    followers: Sequence[Any] = ()

    def take(
        self, arguments: StepArguments, variables: StepVariables, use: Use
    ) -> tuple[Any, Any, list[tf.Tensor]]:
        """Returns (what `use` makes of the step's noised gradients, aux, noised statistics)."""
        first = _first_tensor(arguments.examples)
        if arguments.microbatch_ids is None and not arguments.of_fit:
            self.microbatching.notice_rows(first.shape[0])
        # If the data have ended, computing `first` fails, and nothing is charged.
        with tf.control_dependencies([first]):
            mask = (
                tf.ones(tf.shape(first)[:1], tf.bool) if arguments.mask is None else arguments.mask
            )
            # The state is read once, so that the event is that of this step, whatever other threads
            # do meanwhile.
            state = [tf.identity(v.value) for v in variables.state]
            paid = self._charge(variables, state, arguments, mask)
        # On one replica the sum of gradients may be computed while the host writes to the ledger,
        # and nothing comes out of the step before the host is done. Several replicas first agree on
        # what they charged.
        with tf.control_dependencies([] if distribution.num_replicas() == 1 else paid):
            clipped = self._clipped_sum(arguments, mask, state)

        def release(sample_state, state):
            gradients, statistics, state = self._release(sample_state, state, arguments.variables)
            if distribution.is_first_replica():
                gradients = _add_penalty(gradients, arguments)
            return (use(gradients), statistics), state

        if arguments.jit_compile and not tf.distribute.has_strategy():
            # Noise is drawn, added and used in one pass over the sums.
            used, state = staged(release, clipped.sample_state, state, jit_compile=True, after=paid)
        else:
            with tf.control_dependencies(paid):
                used, state = release(_after_charge(clipped.sample_state), state)
        with tf.control_dependencies(paid):
            aux = tf.nest.map_structure(tf.identity, clipped.aux)
        position, fingerprint = paid
        # The place is read before the ledger that it is in, and written after it: a step of another
        # thread that reads meanwhile finds no place in a ledger that is not there yet.
        variables.fingerprint.assign(fingerprint)
        with tf.control_dependencies([tf.convert_to_tensor(variables.fingerprint.value)]):
            variables.position.assign(position)
        with tf.control_dependencies(paid):
            # What is next may follow from the state alone, which is there before the charge.
            for variable, value in zip(variables.state, state, strict=True):
                variable.assign(value)
        used, statistics = used
        return used, aux, statistics

    def check_replicas(self, examples_per_record: int | None = None) -> None:
        """Refuses what several replicas cannot do exactly.

        Args:
            examples_per_record: Of the step that is to be taken.

        Raises:
            NotPrivateError: there are several, and the query is not a sum or a record is spread
                over them.
        """
        if distribution.num_replicas() == 1:
            return
        if not self.query.is_sum:
            raise NotPrivateError(
                f"{type(self.query).__name__} is not a sum (is_sum is False), so the states of the "
                "replicas' samples cannot be added up. Train it on one device."
            )
        if examples_per_record not in (None, 1):
            raise NotPrivateError(
                "A record of several examples would be spread over replicas, and its gradient is "
                "known to none of them. Leave examples_per_record out under a strategy of several "
                "replicas."
            )
        if self.microbatching.holds_several:
            raise NotPrivateError(
                "A microbatch of several examples would be spread over replicas, and its mean is "
                "known to none of them. Under a strategy of several replicas leave "
                "num_microbatches out, or give every example a microbatch of its own "
                "(num_microbatches = batch_size)."
            )

    def holders(self, variables: Sequence[Any]) -> list[Any]:
        """Returns what carries the charge of a step that changes these variables."""
        return [charges.holder(v) for v in (*variables, *self.followers)]

    def event(self, state: list[Any] | None, factor: int) -> SampledEvent:
        """Returns the event of the next step.

        Args:
            state: Values of the tensors in the query's state; None: as at the start.
            factor: How often the query's bound one privacy unit can move the sum.
        """
        release = self._release_event(state, factor)
        return self.charging.samples.next_sampled(release, self.microbatching.privacy_unit)

    def event_of_state(self, state: Sequence[Any] | None) -> Event:
        """Returns what the next step releases, without its sample; `state` as in `event`."""
        return self._release_event(state, 1)

    def _release_event(self, state: Sequence[Any] | None, factor: int) -> Event:
        event = self.query.derive_event(self._global_state(state))
        if not isinstance(event, Event):
            raise TypeError(
                f"{type(self.query).__name__}.derive_event must return a tfdp event, such as "
                f"tfdp.GaussianSumEvent. Received: {event!r}."
            )
        return event if factor == 1 else scale_sensitivity(event, factor)

    @functools.cached_property
    def _state_form(self) -> Any:
        """The query's state with `_TENSOR` in place of each tensor.

        It is kept because the host needs it in every step, and a state may be many times as large
        as the model.
        """
        # Outside of the graph, which XLA may not compile with the operations that a state begins by
        # (such as the time of day).
        with tf.init_scope():
            state = self.query.initial_global_state()
        return tf.nest.map_structure(lambda leaf: _TENSOR if tf.is_tensor(leaf) else leaf, state)

    def _global_state(self, values: Sequence[Any] | None) -> Any:
        """Returns the query's state, with its tensors taken from `values`. Without values it is the
        state at the start.
        """
        if not values:
            return self.query.initial_global_state()
        remaining = iter(values)
        leaves = [
            next(remaining) if leaf is _TENSOR else leaf
            for leaf in tf.nest.flatten(self._state_form)
        ]
        return tf.nest.pack_sequence_as(self._state_form, leaves)

    # The three parts of a step. Each of them handles replicas and processes by itself.

    def _charge(
        self,
        variables: StepVariables,
        state: list[tf.Tensor],
        arguments: StepArguments,
        mask: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Writes the event of this step to the ledger, once in each process.

        Returns:
            Position and fingerprint of the ledger; whatever depends on them is paid for.
        """
        factor = self.microbatching.sensitivity_factor
        weights = self.holders(arguments.variables)
        others = _other_weights(arguments)
        # If the query has no state that changes, all steps of this graph have the same event.
        constant = None if variables.state else self._release_event(None, factor)
        unit = self.microbatching.privacy_unit
        # What this graph makes records of, whatever the optimizer is told before it runs.
        examples_each = self.microbatching.examples_each
        # A batch is what all replicas have together; groups of examples have other sizes.
        records = records_present(mask, arguments.examples_per_record or 1)
        sizes = [tf.reduce_sum(tf.cast(records, tf.int64))] if unit != "microbatch" else []
        sizes = distribution.add_up(sizes)
        called = self.charging.called_by_graphs

        def write(commit, count):
            def on_host(position, fingerprint, *values):
                size, values = (values[0], values[1:]) if sizes else (None, values)
                batch = Batch(arguments.of_fit, None if size is None else int(size))

                def event():
                    self.microbatching.check_units_of(examples_each)
                    if arguments.check is not None:
                        arguments.check()
                    release = self._release_event(values, factor) if values else constant
                    return self.charging.samples.sampled(release, unit, batch)

                return commit(event, weights, position, fingerprint, batch, others)

            values = [v.value for v in variables.state] if tf.distribute.has_strategy() else state
            position = tf.convert_to_tensor(variables.position.value)
            with tf.control_dependencies([position]):
                fingerprint = tf.convert_to_tensor(variables.fingerprint.value)
            inputs = [position, fingerprint, *sizes, *values]
            return distribution.on_host(on_host, inputs, count, called)

        if not distribution.is_multi_worker():
            return distribution.once(write, self.charging.commit, 2)
        position, fingerprint, code = distribution.once(write, self.charging.try_commit, 3)
        codes = distribution.add_up([code * distribution.one_hot_of_replica()])
        agreed = distribution.once(distribution.on_host, self.charging.agree, codes, 1, called)
        with tf.control_dependencies(agreed):
            return [tf.identity(position), tf.identity(fingerprint)]

    def _clipped_sum(
        self, arguments: StepArguments, mask: tf.Tensor, state: list[tf.Tensor]
    ) -> ClippedSum:
        """Returns the sum over this replica's records, with the sample state of all replicas'."""
        # Microbatches are drawn here, because what XLA compiles cannot call the host.
        ids, number = self.microbatching.assign(tf.size(mask), arguments.microbatch_ids)

        # For the same reason seeds are drawn here if XLA is used. Otherwise `clipped_gradient_sum`
        # draws them if it needs any.
        jit_compile = arguments.jit_compile
        if jit_compile and self.query.draws_for_records:
            _logger.info(
                "The sum is computed without XLA, which cannot call the host: the query draws for "
                "every record."
            )
            jit_compile = False
        released = [arguments.variables, *self.statistics]
        clips = self.query.contribution_clips(released if self.statistics else released[0])
        if jit_compile and any(clip is not None for clip in clips):
            _logger.info(
                "The sum is computed without XLA, which needs shapes that no draw decides: rows of "
                "a table are selected (SparseEmbeddingSumQuery)."
            )
            jit_compile = False
        seeds = draw_seeds(tf.size(mask)) if jit_compile else None

        def total(examples, mask, ids, weights, state, seeds):
            return clipped_gradient_sum(
                arguments.loss_fn,
                arguments.variables,
                examples,
                self.query,
                self.query.derive_sample_params(self._global_state(state)),
                mask=mask,
                num_microbatches=number,
                microbatch_ids=ids,
                examples_per_record=arguments.examples_per_record,
                record_gradient=arguments.record_gradient,
                weights=weights,
                physical_batch_size=self.physical_batch_size,
                engine=self.engine,
                has_aux=arguments.has_aux,
                loss_scale=1.0 if arguments.loss_scale is None else arguments.loss_scale,
                seeds=seeds,
                statistics=self.statistics,
            )

        with _watching, distribution.alone():
            inputs = arguments.examples, mask, ids, arguments.weights, state, seeds
            try:
                with attempt():
                    clipped = compiled(total, jit_compile)(*inputs)
            except LoopsByRecordError as error:
                _logger.warning("The sum is computed without XLA. %s", error)
                clipped = total(*inputs)
            except SideEffectError as error:
                raise NotPrivateError(str(error)) from error
        sums = distribution.add_up(tf.nest.flatten(clipped.sample_state))
        return clipped._replace(sample_state=tf.nest.pack_sequence_as(clipped.sample_state, sums))

    def _release(
        self, sample_state: Any, state: list[tf.Tensor], variables: list[Any]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        """Returns (noised gradients, noised statistics, next values of the query's state).

        One replica draws the noise. The gradients of the others are zero; all else is everybody's.
        """

        def noised(sample_state, state):
            global_state = self._global_state(state)
            result, new_state, event = self.query.get_noised_result(sample_state, global_state)
            self._check_event(event, global_state)
            gradients, *statistics = result if self.statistics else [result]
            return tf.nest.flatten(gradients), statistics, self._changing(new_state)

        if distribution.is_first_replica():
            gradients, statistics, state = staged(noised, sample_state, state)
        else:
            gradients = [tf.zeros(v.shape, v.dtype) for v in variables]
            statistics = [tf.zeros(one.shape, one.dtype) for one in self.statistics]
            state = [tf.zeros_like(value) for value in state]
        return gradients, distribution.add_up(statistics), distribution.add_up(state)

    def _check_event(self, event: Event | None, global_state: Any) -> None:
        if event is None and not is_concrete(global_state):
            return
        if event is None or event != self.query.derive_event(global_state):
            raise NotPrivateError(
                f"{type(self.query).__name__}.get_noised_result describes another release than its "
                "derive_event, which is what the ledger was told.\n"
                f"  get_noised_result: {event!r}\n"
                f"  derive_event: {self.query.derive_event(global_state)!r}"
            )

    def _changing(self, state: Any) -> list[Any]:
        pairs = zip(tf.nest.flatten(self._state_form), tf.nest.flatten(state), strict=True)
        return [new for old, new in pairs if old is _TENSOR]


def compiled(function: Callable[..., Any], jit_compile: bool) -> Callable[..., Any]:
    """Returns the function, compiled by XLA if that is asked for."""
    return tf.function(function, jit_compile=True, autograph=False) if jit_compile else function


def _other_weights(arguments: StepArguments) -> list[Any]:
    """Returns the weights of the model that the loss is of, but those that the step trains. Whoever
    releases gradients of a model releases what the model knows.
    """
    if not isinstance(arguments.loss_fn, LayeredLoss):
        return []
    trained = {id(charges.holder(v)) for v in arguments.variables}
    holders = map(charges.holder, arguments.loss_fn.model.weights)
    return [weight for weight in holders if id(weight) not in trained]


def _after_charge(sums: Any) -> Any:
    """Returns the same tensors, by one operation, which waits for the control dependencies."""
    tensors = tf.nest.flatten(sums, expand_composites=True)
    copies = tf.identity_n(tensors) if tensors else []
    return tf.nest.pack_sequence_as(sums, copies, expand_composites=True)


def _first_tensor(examples: Any) -> tf.Tensor:
    return next(
        tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(examples) if leaf is not None
    )


def _add_penalty(gradients: list[tf.Tensor], arguments: StepArguments) -> list[tf.Tensor]:
    if arguments.data_independent_loss is None:
        return gradients
    sources = [v if isinstance(v, tf.Variable) else v.value for v in arguments.variables]
    with tf.GradientTape() as tape:
        loss = arguments.data_independent_loss()
    extra = tape.gradient(loss, sources)
    return [
        g if e is None else tf.convert_to_tensor(g) + tf.convert_to_tensor(e)
        for g, e in zip(gradients, extra, strict=True)
    ]
