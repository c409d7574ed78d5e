"""The optimizer that drives a query."""

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.events import SampledEvent
from tfdp.events.arguments import positive_integer, says_what_to_write
from tfdp.gradients import ModelLoss
from tfdp.keras import distribution
from tfdp.keras.adam_bc import AdamBC
from tfdp.keras.batch_statistics import BatchMoments
from tfdp.keras.charging import Charging
from tfdp.keras.errors import NotPrivateError
from tfdp.keras.for_budget import for_budget
from tfdp.keras.issued import Issued
from tfdp.keras.layer_checks import check_layers
from tfdp.keras.microbatching import Microbatching
from tfdp.keras.optimizer_checks import (
    as_list,
    check_arguments,
    check_engine,
    check_inner,
    check_ledger,
    check_query,
    positive_or_none,
)
from tfdp.keras.private_metrics import PrivateMetric, check_metrics
from tfdp.keras.released import Released
from tfdp.keras.serialization import PACKAGE, optimizer_arguments, optimizer_config
from tfdp.keras.step import PrivateStep, StepArguments, StepVariables, Use, compiled
from tfdp.keras.target import Target
from tfdp.keras.wrapping import WrappingOptimizer, is_of_wrapping, parts
from tfdp.ledger import PrivacyLedger
from tfdp.query.dp_query import DPQuery
from tfdp.sampling import SamplingPolicy


@keras.saving.register_keras_serializable(PACKAGE)
@says_what_to_write(
    "Write DPOptimizer(keras.optimizers.SGD(learning_rate=0.1), query=tfdp.GaussianAverageQuery("
    "l2_norm_clip=..., noise_multiplier=..., denominator=...)): the query has the clip and the "
    "noise, and the Keras optimizer inside has its own arguments."
)
class DPOptimizer(WrappingOptimizer):
    """Wraps a Keras optimizer so that it sees only what a `DPQuery` releases.

    In `fit` of a private model (`tfdp.keras.make_private`) everything happens by itself. A custom
    loop calls `private_step`; or `private_gradients`, and gives the result to `apply`. Gradients
    that did not come from there are refused.

    Guarantees:
        The event of a step is in `ledger` before the step's noised gradients exist. Every step is
        charged, an empty sample included. Under a `tf.distribute` strategy of several replicas the
        same is true of the sum over all of them: one noise draw, and one event, in the ledger of
        each process.

    Args:
        inner_optimizer: Any Keras optimizer; it post-processes private gradients. An `AdamBC` is
            told the query's noise.
        query: The mechanism, over the model's list of trainable variables. Its result is the
            gradient as it is: a warning says so where that is a sum which nothing divides.
        num_microbatches: None: each example is a record. M: each example joins one of M
            microbatches at random, and a record is a microbatch's mean gradient. Where batches hold
            M examples (as `fit` knows), each example is a record too.
        privacy_unit: What one addition or removal is. "example" (default): in microbatches of
            several examples the event's bound is twice the query's. "microbatch": examples come and
            go in groups of batch_size / M consecutive ones, and the bound is the query's. "user":
            each record is all that one user gives, as in `tfdp.federated`; `fit` is told whose each
            example is (its `privacy_unit`), or each example is a user's only one.
        physical_batch_size: Most examples whose gradients are in memory at once; no effect on the
            result.
        engine: How gradients are computed: "auto" (default), "bookkeeping", "vectorized" or "loop";
            see `tfdp.clipped_gradient_sum`.
        loss_scale_factor: Constant by which the loss is multiplied for the backward pass; gradients
            are divided by it before they are clipped. By default 1, and 1024 in a mixed_float16
            model.
        private_metrics: Metrics of training that each step releases beside its gradients, a list of
            `tfdp.keras.PrivateMetric`. `fit` shows them and no others.
        batch_norm_noise_multiplier: For a model with private batch normalization
            (`make_private(model, batch_norm="private")`), which estimates the moving statistics of
            all its layers with noise that costs what one release of this noise multiplier does.
        ledger: Where events go; by default a new `tfdp.PrivacyLedger`, or that of the weights where
            they were privately trained before.
        name: Name of the optimizer.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range, or the inner optimizer does what would void the
            accounting.
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        query: DPQuery,
        num_microbatches: int | None = None,
        *,
        privacy_unit: str = "example",
        physical_batch_size: int | None = None,
        engine: str = "auto",
        loss_scale_factor: float | None = None,
        private_metrics: Sequence[PrivateMetric] = (),
        batch_norm_noise_multiplier: float | None = None,
        ledger: PrivacyLedger | None = None,
        name: str | None = None,
    ):
        check_inner(inner_optimizer, DPOptimizer)
        check_query(query)
        check_engine(engine)
        check_ledger(ledger)
        if physical_batch_size is not None:
            physical_batch_size = positive_integer("physical_batch_size", physical_batch_size)
        loss_scale_factor = positive_or_none("loss_scale_factor", loss_scale_factor)
        for part in parts(inner_optimizer):
            if isinstance(part, AdamBC):
                part.take_noise_of(query)
        super().__init__(inner_optimizer, loss_scale_factor=loss_scale_factor, name=name)
        self._released = Released(
            query,
            check_metrics(private_metrics),
            positive_or_none("batch_norm_noise_multiplier", batch_norm_noise_multiplier),
        )
        self._microbatching = Microbatching(num_microbatches, privacy_unit)
        self.physical_batch_size = physical_batch_size
        self.engine = engine
        self.charging = Charging(ledger)
        self.target: Target | None = None
        self._issued = Issued()
        # Whether `fit` was told which rows are whose.
        self.knows_ids = False
        self._moving_statistics: list[Any] = []

    for_budget = classmethod(for_budget)

    # Traced steps are built with these, and events are derived from them, so they cannot change.

    @property
    def query(self) -> DPQuery:
        """The mechanism of the gradients."""
        return self._released.query

    @property
    def private_metrics(self) -> tuple[PrivateMetric, ...]:
        """What each step releases beside the gradients."""
        return self._released.private_metrics

    @property
    def batch_norm_noise_multiplier(self) -> float | None:
        """Noise of the moments of all layers of private batch normalization together."""
        return self._released.batch_norm_noise_multiplier

    @property
    def batch_moments(self) -> tuple[BatchMoments, ...]:
        """What each step releases about the inputs of layers of private batch normalization."""
        return self._released.batch_moments

    def release_moments_of(self, layers: Sequence[Any]) -> None:
        """Makes steps release the moments of these layers' inputs, and pay for their moving
        statistics; `compile` and the step of a model call it.

        Args:
            layers: All layers of private batch normalization that the model has.

        Raises:
            NotPrivateError: noise is missing for them, or is given and there are none; or steps of
                a model with other layers were taken.
        """
        released = self._released.with_moments_of(layers)
        if released is not self._released and self.built:
            raise NotPrivateError(
                "This optimizer was built for a model with other layers of private batch "
                "normalization. Make a new optimizer."
            )
        self._released = released
        self._moving_statistics = [
            v for layer in layers for v in (layer.moving_mean, layer.moving_variance)
        ]

    def move_statistics(self, layers: Sequence[Any], released: Sequence[tf.Tensor]) -> None:
        """Updates the moving statistics of layers by what a step released about them.

        Args:
            layers: As `release_moments_of` was given them.
            released: By layer.
        """
        self._released.move_statistics(layers, released)

    @property
    def num_microbatches(self) -> int | None:
        """Records of a sample, or None where each example is one."""
        return self._microbatching.num_microbatches

    @property
    def privacy_unit(self) -> str:
        """What one addition or removal is."""
        return self._microbatching.privacy_unit

    @property
    def examples_per_microbatch(self) -> float | None:
        """Examples that a microbatch is expected to hold; None where that is not known."""
        return self._microbatching.examples_each

    def with_microbatches_of(
        self, examples: float | None
    ) -> contextlib.AbstractContextManager[None]:
        """Makes microbatches hold so many examples meanwhile, and what they did before at the end.

        Args:
            examples: From `examples_per_microbatch`.
        """
        return self._microbatching.of_size(examples)

    def check_ids_given(self) -> None:
        """Refuses steps without ids of users after steps with them.

        Raises:
            ValueError: the optimizer has seen that users have several rows.
        """
        if self.knows_ids:
            raise ValueError(
                "Steps of this optimizer were about users of several rows, and without ids each "
                "row would be a user of its own, who has as many parts in a step as rows. Give "
                "fit(..., privacy_unit=ids), or examples_per_record in a loop of your own. For "
                "data in which every user has one row make a new optimizer."
            )

    # The ledger and the sampling of steps.

    @property
    def ledger(self) -> PrivacyLedger:
        """The ledger that the next step is written to."""
        return self.charging.ledger

    @ledger.setter
    def ledger(self, ledger: PrivacyLedger) -> None:
        self.charging.ledger = ledger

    @property
    def sampling(self) -> SamplingPolicy:
        """How samples are drawn that `fit` does not draw: a custom loop declares it here.

        It holds for `private_step`, `private_gradients` and `train_on_batch`, also if a callback
        calls them while `fit` runs. For the batches of `fit`, `fit` itself says how they were
        drawn.
        """
        return self.charging.samples.policy

    @sampling.setter
    def sampling(self, policy: SamplingPolicy) -> None:
        self.charging.samples.policy = policy

    def notice_rows(self, rows: int) -> bool:
        """Makes each example a record, if batches of unknown size turn out to hold as many as there
        are microbatches.

        Returns:
            As `set_batch_size`.
        """
        return self._microbatching.notice_rows(rows)

    def begin_pass(self) -> None:
        """Says that a new pass over the data begins, for policies that have passes (`Shuffled`)."""
        self.charging.samples.begin_pass()

    def set_batch_size(self, batch_size: float | None) -> bool:
        """Tells how many examples a batch is expected to hold; None where that is not known.

        Returns:
            Whether the way examples become records changed, so that a traced step is out of date.

        Raises:
            ValueError: batches of this size cannot be cut into `num_microbatches` units.
        """
        return self._microbatching.set_batch_size(batch_size)

    def next_event(self) -> SampledEvent:
        """Returns the event that the next step will write to the ledger."""
        state = [np.asarray(v) for v in self._step_variables().state] if self.built else None
        return self._step().event(state, self._microbatching.sensitivity_factor)

    @property
    def steps_are_alike(self) -> bool:
        """Whether all further steps, of `fit` if it runs, have the same event as the next."""
        # What follows from the query's state may change with it.
        return self.charging.samples.are_independent and not self._step_variables().state

    def step_of_run(self) -> int:
        """Returns which step of a run of correlated noise is next; 0 where there are no runs."""
        return self.position_of_run() or 0

    def position_of_run(self) -> int | None:
        """Returns which step of a run of correlated noise is next; None where there are no runs."""
        state = [np.asarray(v) for v in self._step_variables().state] if self.built else None
        return self._step().event_of_state(state).step_of_run()

    # Variables: the state of the query, and the place of these weights in their ledger.

    def build(self, variables: list[Any]) -> None:
        """Creates the slots of the inner optimizer and the variables of the query's state.

        Raises:
            TypeError, ValueError: the inner optimizer does by now what the constructor refuses.
        """
        if self.built:
            return
        # All replicas assign the same values, so that of the first is taken.
        same = {"aggregation": "only_first_replica"}
        self._ledger_position = self.add_variable((), dtype="int64", name="ledger_position", **same)
        self._ledger_fingerprint = self.add_variable(
            (), dtype="int64", name="ledger_fingerprint", **same
        )
        for leaf in tf.nest.flatten(self._released.mechanism.initial_global_state()):
            if tf.is_tensor(leaf):
                self.add_variable(
                    leaf.shape,
                    lambda *_, value=leaf, **__: value,
                    leaf.dtype.name,
                    name="query_state",
                    **same,
                )
        self.inner_optimizer.build(variables)
        # It may have been changed, and one of several may be known only now.
        check_inner(self.inner_optimizer, DPOptimizer)
        super().build(variables)

    @property
    def query_state(self) -> list[keras.Variable]:
        """The tensors in the query's state, in order, as variables."""
        return [v for v in self.own_variables if v.name == "query_state"]

    def _step_variables(self) -> StepVariables:
        return StepVariables(self._ledger_position, self._ledger_fingerprint, self.query_state)

    # The step. A `tf.function` around it does not rewrite it, which would take several times as
    # long as to trace it.

    @tf.autograph.experimental.do_not_convert
    def private_gradients(
        self,
        loss_fn: Callable[[Any], Any],
        variables: list[Any],
        examples: Any,
        *,
        mask: tf.Tensor | None = None,
        microbatch_ids: tf.Tensor | None = None,
        examples_per_record: int | None = None,
        record_gradient: str = "mean",
        weights: tf.Tensor | None = None,
        data_independent_loss: Callable[[], tf.Tensor] | None = None,
        has_aux: bool = False,
        loss_scale: float | None = None,
        jit_compile: bool = False,
    ) -> Any:
        """Charges one step to the ledger and returns its noised gradients, which `apply` accepts.

        Works eagerly and in `tf.function`. A function that contains it cannot itself be compiled by
        XLA, because the ledger is on the host; `jit_compile=True` here compiles the part after the
        ledger.

        Args:
            loss_fn: As in `tfdp.clipped_gradient_sum`.
            variables: List of trainable variables.
            examples: Structure of tensors with a common leading axis: the sample, as `sampling`
                describes it.
            mask: bool [n]; false marks padding.
            microbatch_ids: The microbatch of every example; drawn independently by default.
            examples_per_record: K: so many consecutive examples are one record, which is one unit:
                all of a user's (`privacy_unit="user"`), or views of one example. As in
                `tfdp.clipped_gradient_sum`.
            record_gradient: Likewise: "mean" or "sum".
            weights: The weight of every record, for a query that takes weights; 1 by default.
            data_independent_loss: A penalty on the variables, such as weight decay; its gradient is
                added after the noise.
            has_aux: Whether `loss_fn` returns `(loss, aux)`.
            loss_scale: In place of `loss_scale_factor`, for this call.
            jit_compile: Whether to compile gradients and clipping with XLA; noise always is.

        Under a strategy of several replicas it is called in the function that goes to
        `strategy.run`, on every replica, with the replica's own part of the sample, which may be
        empty. No record may be in two parts. The optimizer's variables and the model's are created
        under `strategy.scope()`.

        Returns:
            List of gradients; with `has_aux` a pair of it and aux stacked over the examples, which
            is NOT private. Of several replicas the first has the gradients and all others have
            zeros: optimizers of Keras add up what replicas give them.

        Raises:
            LedgerMismatchError, PrivacyBudgetExceededError: the step may not run. In a graph they
                come as a `tf.errors.OpError` with the same text.
            NotPrivateError: what is asked for is not exact on several replicas: a query that is not
                a sum, or microbatches of several examples. Or `loss_fn` is a `ModelLoss` of a model
                that mixes records, or has layers that were adapted to data.
        """
        step_arguments = StepArguments(
            loss_fn,
            as_list(variables),
            examples,
            mask=mask,
            microbatch_ids=microbatch_ids,
            examples_per_record=examples_per_record,
            record_gradient=record_gradient,
            weights=weights,
            data_independent_loss=data_independent_loss,
            has_aux=has_aux,
            loss_scale=loss_scale,
            jit_compile=jit_compile,
        )
        gradients, aux, _ = self._take(step_arguments, lambda gradients: gradients)
        # The tape of whoever calls this would find derivatives of the sum, without its noise.
        gradients = [tf.stop_gradient(gradient) for gradient in gradients]
        self._issued.add(gradients, step_arguments.variables)
        return (gradients, aux) if has_aux else gradients

    @tf.autograph.experimental.do_not_convert
    def private_step(
        self,
        loss_fn: Callable[[Any], Any],
        variables: list[Any],
        examples: Any,
        *,
        jit_compile: bool = False,
        **arguments: Any,
    ) -> Any:
        """Charges one step to the ledger and updates the variables with its noised gradients.

        That is `private_gradients` and `apply` in one. With `jit_compile` XLA draws noise, adds it
        and updates in one pass over the variables.

        Args:
            loss_fn: As in `private_gradients`, which has all other arguments, too.
            variables: List of trainable variables.
            examples: The sample.
            jit_compile: Whether to compile gradients, clipping and update with XLA; noise always
                is.
            **arguments: Others of `private_gradients`.

        Returns:
            None; with `has_aux` aux stacked over the examples, which is NOT private.

        Raises:
            LedgerMismatchError, PrivacyBudgetExceededError, NotPrivateError: as
                `private_gradients`.
            TypeError: there is no such argument.
        """
        known = inspect.signature(DPOptimizer.private_gradients).parameters
        if unknown := sorted(set(arguments) - set(known)):
            raise TypeError(
                "private_step takes the arguments of private_gradients. Received also: "
                f"{', '.join(unknown)}."
            )
        step_arguments = StepArguments(
            loss_fn, as_list(variables), examples, jit_compile=jit_compile, **arguments
        )
        aux, _ = self._step_of_fit(step_arguments)
        return aux if step_arguments.has_aux else None

    def _step_of_fit(self, arguments: StepArguments) -> tuple[Any, list[tf.Tensor]]:
        """As `private_step`, also with what only a model's own training step may say of its batch.

        Returns:
            Aux, and what was released beside the gradients.
        """

        def update(gradients):
            self._update(gradients, arguments.variables, arguments.jit_compile)

        _, aux, statistics = self._take(arguments, update)
        return aux, statistics

    def _step(self) -> PrivateStep:
        return PrivateStep(
            self._released.mechanism,
            self._microbatching,
            self.charging,
            self.engine,
            self.physical_batch_size,
            self._released.templates,
            (*self.slots, *self._moving_statistics),
        )

    def _take(self, arguments: StepArguments, use: Use) -> tuple[Any, Any, list[tf.Tensor]]:
        """Returns (what `use` makes of a step's noised gradients, aux, noised statistics)."""
        self._released.check_step(arguments.has_statistics)
        if arguments.examples_per_record is None:
            self.check_ids_given()
            # A graph that is traced now may run when there are ids.
            arguments = arguments._replace(check=self.check_ids_given)
        # Arguments are checked first, so that nothing is charged for a step that cannot run.
        check_arguments(self.query, self._microbatching, arguments)
        if isinstance(arguments.loss_fn, ModelLoss):
            _check_layers(arguments.loss_fn)
        step = self._step()
        distribution.check_optimizer(self, arguments.variables)
        distribution.check_divided(arguments.examples)
        # The batches of fit give every replica whole users.
        step.check_replicas(None if arguments.of_fit else arguments.examples_per_record)
        # Eager steps of several threads take turns. Steps in graphs do not, but every one of them
        # is charged for what it does.
        alone = tf.executing_eagerly() and not tf.distribute.has_strategy()
        with self.charging.turn if alone else contextlib.nullcontext():
            if not self.built:
                with tf.init_scope():
                    self.build(arguments.variables)
                step = self._step()  # There are slots now, which the step pays for, too.
            scale = arguments.loss_scale or self.loss_scale_factor
            return step.take(arguments._replace(loss_scale=scale), self._step_variables(), use)

    @tf.autograph.experimental.do_not_convert
    def apply(
        self,
        grads: list[Any],
        trainable_variables: list[Any] | None = None,
        *,
        jit_compile: bool = False,
    ) -> None:
        """Updates variables with gradients from `private_gradients`, by default those that these
        were taken for.

        `jit_compile` compiles the update with XLA: one pass over the variables, where Adam takes
        several. Under a strategy it is not compiled, because optimizers of Keras leave the replica
        for it.

        Raises:
            NotPrivateError: a gradient did not come from there, or is of another variable.
        """
        grads = list(grads)
        self._update(grads, self._issued.take(grads, trainable_variables), jit_compile)

    def _update(self, grads: list[Any], variables: list[Any] | None, jit_compile: bool) -> None:
        def update():
            self.inner_optimizer.apply(grads, variables)

        # Without a charge nothing may change, not even counters or weights that decay. So the whole
        # update waits for the gradients, which exist only after the charge.
        with tf.control_dependencies(grads):
            compiled(update, jit_compile and not tf.distribute.has_strategy())()

    # Configuration and files.

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor without the ledger: a configuration says how to
        go on, not what was done.

        Raises:
            TypeError: a query has a class that Keras' registry does not know, or a random source.
        """
        return optimizer_config(self)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> "DPOptimizer":
        """Returns an optimizer of this configuration, with a ledger of its own and no steps.

        Raises:
            TypeError: a key is missing or unknown.
            ValueError: a number is out of range.
        """
        return cls(**optimizer_arguments(config, custom_objects))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles an optimizer that is new, as its configuration.

        Raises:
            TypeError: it has variables, charges, guards, a ledger or a sampling, which a
                configuration does not hold; or see `get_config`.
        """
        is_new = not (self.built or self.inner_optimizer.built) and self.charging.is_unused
        if not is_new:
            raise TypeError(
                "A DPOptimizer can be copied and pickled while it is new. This one has variables, "
                "or charges, or a ledger, a guard or a sampling that was chosen, and a copy would "
                "lose them. Copy the model, which takes the ledger along (copy.deepcopy(model)), "
                "or make a new optimizer of the same configuration: "
                "DPOptimizer.from_config(optimizer.get_config())."
            )
        return type(self).from_config, (self.get_config(),)

    def load_own_variables(self, store: Any) -> None:
        """Restores slots, the query's state, and the place in the ledger, from a private model's
        checkpoint. A plain model's file has none of them: there all stays as it is.
        """
        self.charging.was_restored = is_of_wrapping(store)
        super().load_own_variables(store)


def _check_layers(loss: ModelLoss) -> None:
    with tf.init_scope():  # Values of variables are read.
        check_layers(loss.model)
