"""Training a Keras model through a `DPOptimizer`."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.keras_internals import (
    BuiltBeforeTraining,
    layers_in,
    refuse_unknown_versions,
    without_jit_compile,
)
from tfdp.keras import (
    distributed_data,
    distribution,
    fit_data,
    inputs,
    metric_updates,
    validation,
    xla,
)
from tfdp.keras.batch_statistics import private_norms
from tfdp.keras.carrying import CarriesLedger
from tfdp.keras.data import (
    rows_of_batch,
    shares_memory,
    weighted_arrays,
    with_texts_as_tensors,
)
from tfdp.keras.errors import NotPrivateError
from tfdp.keras.first_step import said_where_slow
from tfdp.keras.fit_callbacks import with_callbacks_of_fit
from tfdp.keras.layer_checks import check_layers
from tfdp.keras.optimizer import DPOptimizer
from tfdp.keras.optimizer_checks import as_list, check_inner
from tfdp.keras.prepared import Prepared, check_reductions, prepare
from tfdp.keras.private_metrics import ShownMetrics
from tfdp.keras.records_of_fit import (
    Augment,
    RecordsOfFit,
    check_records,
    records_of_fit,
    rows_of_user,
)
from tfdp.keras.small_samples import SmallSamples, StepLoop
from tfdp.keras.step import StepArguments
from tfdp.sampling import PaddedBatch, SamplingPolicy


def _in_turn(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes other threads that train with the same optimizer wait, and leaves a `fit` that goes on
    its steps.
    """

    @functools.wraps(method)
    def taking_turns(self, *args, **kwargs):
        with self._dp_optimizer().charging.turn, self._steps_kept():
            return method(self, *args, **kwargs)

    return taking_turns


class PrivateTraining(CarriesLedger, BuiltBeforeTraining):
    """Mixin of `keras.Model` whose training step goes through the optimizer's query.

    After `compile` with a `tfdp.keras.DPOptimizer`, `fit`, callbacks and metrics are Keras' own.

    Guarantees:
        The weights depend on the training data only through what the optimizer's query released.
        Not covered: training metrics and losses in logs, which are raw statistics of the training
        data for the eyes of whoever trains; callbacks that would act on them are refused. With the
        optimizer's `private_metrics`, logs of training hold what was released and nothing else.
    """

    _prepared: Prepared | None = None
    _record_scope: keras.StatelessScope | None = None
    _activity: str | None = None
    _records = RecordsOfFit()
    # The samples of `fit`, where no data set holds them.
    _small_samples: SmallSamples | None = None
    # Whether somebody looks at the progress of a step that is yet to be traced.
    _is_watched = False

    @property
    def losses(self) -> list[Any]:
        """The losses that layers added. While the gradient of a record is taken, these are without
        the weight penalties.
        """
        if self._record_scope is not None:
            return list(self._record_scope.losses)
        return super().losses

    @contextlib.contextmanager
    def losses_of_record(self, scope: keras.StatelessScope) -> Iterator[None]:
        """Makes `losses` those that were added in `scope`."""
        self._record_scope = scope
        try:
            yield
        finally:
            self._record_scope = None

    def compile(self, optimizer: DPOptimizer, *args: Any, **kwargs: Any) -> None:
        """Configures training; as `keras.Model.compile`, with a `tfdp.keras.DPOptimizer`.

        Raises:
            NotPrivateError: the optimizer is another one, a layer mixes records, or the class has a
                training step of its own.
            UnknownVersionError: this version of Keras or TensorFlow could mix records unseen.
        """
        refuse_unknown_versions()
        if not isinstance(optimizer, DPOptimizer):
            raise NotPrivateError(
                "A private model needs a tfdp.keras.DPOptimizer. Wrap yours: "
                f"tfdp.keras.DPOptimizer(optimizer, query=...). Received: optimizer={optimizer!r}."
            )
        validation.check_steps(self)
        check_layers(self)
        optimizer.release_moments_of(private_norms(self))
        self._prepared = None  # Losses and metrics may be others than before.
        # With auto_scale_loss Keras would wrap the optimizer in a loss scale that follows the data.
        with xla.without_cudnn(self, optimizer.engine):
            super().compile(optimizer, *args, **{**kwargs, "auto_scale_loss": False})
            compiles = self.jit_compile
        if compiles and not xla.can_compile(self, optimizer.engine):
            self.jit_compile = False

    @_in_turn
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int = 1,
        sampling: SamplingPolicy | None = None,
        privacy_unit: Any = None,
        max_examples_per_user: int | None = None,
        user_gradient: str = "mean",
        views: int = 1,
        augment: Augment | None = None,
        constant_batch_size: bool | None = None,
    ) -> keras.callbacks.History:
        """Trains the model: `keras.Model.fit`, with a few more arguments.

        From arrays `x`, `y` tfdp draws the samples itself, by default Poisson samples of
        `batch_size` (32) expected examples: with probability batch_size / N each. Another policy
        from `tfdp.sampling` draws in another way. Of a data set or generator tfdp cannot see how it
        samples: there `sampling` declares it, and undeclared the ledger says unknown, and
        accountants grant no amplification.

        With `privacy_unit`, ids of users, a record is a user: users are sampled, the gradient of a
        user's rows is clipped once, and batch sizes, populations and denominators are numbers of
        users. The optimizer says so, too: `DPOptimizer(..., privacy_unit="user")`.

        Under a `tf.distribute` strategy samples and batches are those of all replicas together.
        Several processes are all given the same arrays.

        Args:
            x: As in Keras, as are all that are not described here.
            y: As in Keras.
            batch_size: (Expected) examples of a step; public.
            epochs: As in Keras.
            verbose: As in Keras.
            callbacks: As in Keras, but those of Keras that act on raw training metrics are refused.
            validation_split: As in Keras. The examples that are split off take no part in training.
            validation_data: As in Keras.
            shuffle: Must be true: `sampling` decides the order.
            class_weight: As in Keras.
            sample_weight: As in Keras; a part of the record, so that it does not raise its bound.
            initial_epoch: As in Keras.
            steps_per_epoch: As in Keras.
            validation_steps: As in Keras.
            validation_batch_size: As in Keras.
            validation_freq: As in Keras.
            sampling: A policy from `tfdp.sampling`: by which tfdp draws from arrays, or which is
                declared of a data set or generator.
            privacy_unit: [n], whose each row is, of any dtype (`tfdp.sampling.Users`); with arrays.
            max_examples_per_user: How many rows of a user take part in a step at most; of one who
                has more, some are drawn anew each time. A public number.
            user_gradient: What is clipped: the "mean" of the gradients of a user's rows, or their
                "sum".
            views: How often an example is seen in a step, each time with other random numbers of
                the model and of `augment`. The mean of the gradients is clipped once.
            augment: A function of the inputs of one example, without a batch axis, and a secret
                seed, int64 [2], as for `tf.image.stateless_random_crop`. It returns inputs of the
                same shapes and types, and must see no other example.
            constant_batch_size: Whether samples from arrays are padded to three standard deviations
                more than expected, so that time and memory say next to nothing about the size of a
                sample. By default only where XLA compiles the step, and with microbatches. False
                pads to half a standard deviation more at most, which takes less time.

        Raises:
            NotPrivateError: a callback would act on raw training metrics, or save weights without
                their ledger.
            ValueError: the data are empty or of different lengths, or the sizes do not fit the
                policy.
        """
        optimizer = self._dp_optimizer()
        self._check_strategy()
        public_validation = not validation_split and not shares_memory(x, validation_data)
        released = [key for metric in optimizer.private_metrics for key in metric.keys]
        validation.check_callbacks(callbacks, public_validation, released)
        validation.check_logs(released, public_validation)
        inputs.check_order(sampling, shuffle)
        inputs.check_counts(epochs, initial_epoch, steps_per_epoch, self.steps_per_execution)
        inputs.check_validation(
            validation_data, validation_steps, validation_batch_size, validation_freq
        )
        records = records_of_fit(max_examples_per_user, user_gradient, views, augment)
        check_inner(optimizer.inner_optimizer, DPOptimizer)  # It may have been changed since.
        arguments = {
            "x": x,
            "y": y,
            "sample_weight": sample_weight,
            "class_weight": class_weight,
            "batch_size": batch_size,
            "steps_per_epoch": steps_per_epoch,
            "validation_split": validation_split,
            "validation_data": with_texts_as_tensors(validation_data),
            "privacy_unit": privacy_unit,
            "max_examples_per_user": max_examples_per_user,
            "user_gradient": user_gradient,
            "constant_batch_size": constant_batch_size,
        }
        strategy = self.distribute_strategy
        data = fit_data.prepare(
            arguments,
            sampling,
            optimizer,
            strategy,
            is_compiled=bool(self.jit_compile),
            between_steps=distribution.is_none(strategy) and not self.run_eagerly,
        )
        check_records(records, optimizer.num_microbatches, optimizer.physical_batch_size)
        self._set_batch_size(data.batch_size)
        self._set_records(
            records._replace(examples_per_microbatch=optimizer.examples_per_microbatch)
        )
        self._build_for(*data.example)
        self._is_watched = verbose != 0 and self.train_function is None
        with (
            data.raised.in_place_of(tf.errors.OpError),
            self._during("fit", data.samples),
            optimizer.charging.samples.fitting(data.policy, data.drawn, data.goes_on) as fit,
            optimizer.charging.temporary_guards(),
            self._private_use(),
        ):
            history = super().fit(
                **data.arguments,
                callbacks=with_callbacks_of_fit(callbacks, optimizer, epochs - initial_epoch, fit),
                epochs=epochs,
                verbose=verbose,
                shuffle=False,
                initial_epoch=initial_epoch,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size,
                validation_freq=validation_freq,
            )
        optimizer.ledger.settle()
        return history

    def _check_strategy(self) -> None:
        distribution.check_strategy(self.distribute_strategy)
        if distribution.is_mirrored(self.distribute_strategy) and self.steps_per_execution != 1:
            raise ValueError(
                "Keras cannot run several steps at once under "
                f"{type(self.distribute_strategy).__name__}: compile with steps_per_execution=1."
            )

    @contextlib.contextmanager
    def _during(self, activity: str | None, samples: SmallSamples | None = None) -> Iterator[None]:
        """Says whose steps the model runs meanwhile: those of "fit", "evaluate" or others, and on
        which samples if no data set holds them.
        """
        before = self._activity, self._small_samples
        self._activity, self._small_samples = activity, samples
        try:
            yield
        finally:
            self._activity, self._small_samples = before

    @contextlib.contextmanager
    def _steps_kept(self) -> Iterator[None]:
        """Puts the steps of a `fit` that goes on back at the end: what a callback trains meanwhile
        may make records in another way.
        """
        optimizer = self._dp_optimizer()
        if not optimizer.charging.samples.fit_goes_on:
            yield
            return
        records, train_function = self._records, self.train_function
        try:
            with optimizer.with_microbatches_of(optimizer.examples_per_microbatch):
                yield
        finally:
            if self.optimizer is optimizer and self._records != records:
                self._records, self.train_function = records, train_function

    @_in_turn
    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """As in Keras. How the batch was drawn is what `optimizer.sampling` says: unknown, unless
        declared.

        Args:
            x: As in Keras.
            y: As in Keras.
            sample_weight: As in Keras; a part of the record.
            class_weight: As in Keras, in place of `sample_weight`.
            return_dict: As in Keras.

        Raises:
            NotPrivateError: under a strategy of several replicas, each of which Keras would give
                the whole batch, or while `fit` runs a step.
            ValueError: steps before this one were about users of several rows.
        """
        if self.distribute_strategy.num_replicas_in_sync > 1:
            raise NotPrivateError(
                "train_on_batch would give the whole batch to every replica, and count each record "
                "as often. Use fit()."
            )
        optimizer = self._dp_optimizer()
        optimizer.check_ids_given()
        x, y, sample_weight = weighted_arrays(x, y, sample_weight, class_weight)
        self._build_for(
            *tf.nest.map_structure(lambda a: None if a is None else a[:1], (x, y, sample_weight))
        )
        optimizer.notice_rows(rows_of_batch(x, y, sample_weight))
        self._set_records(RecordsOfFit(examples_per_microbatch=optimizer.examples_per_microbatch))
        x = with_texts_as_tensors(x)
        with self._during(None), self._private_use():
            return super().train_on_batch(x, y, sample_weight, None, return_dict)

    def _set_records(self, records: RecordsOfFit) -> None:
        if self._records != records:
            # A step is traced for records of one kind.
            self._records, self.train_function = records, None

    def _set_batch_size(self, batch_size: float | None) -> None:
        optimizer = self._dp_optimizer()
        optimizer.set_batch_size(batch_size)
        inputs.warn_of_denominator(optimizer.query, optimizer.num_microbatches or batch_size)

    def _build_for(self, x: Any, y: Any, sample_weight: Any) -> None:
        """Creates all variables outside of any graph, from the shapes of one example; values do not
        matter.
        """
        inputs.check_examples(self, x, y, sample_weight)
        check_reductions(self, sample_weight)
        if self._dp_optimizer().query.takes_weights:
            inputs.check_weights_of_records(sample_weight)
        optimizer, prepared = self._dp_optimizer(), self._prepared
        is_prepared = self.built and optimizer.built and prepared is not None
        # An optimizer that is built already may have other metrics than the one before it.
        if is_prepared and prepared.private_metrics == optimizer.private_metrics:
            check_layers(self)  # They may have been adapted or unfrozen since.
            inputs.check_weights(sample_weight, prepared.loss_axes)
        else:
            self._prepared = prepare(self, x, y, sample_weight)

    def _is_ready_to_train(self) -> bool:
        return self._prepared is not None

    def make_train_function(self, force: bool = False) -> Any:
        """Builds the step: the ledger runs on the host, gradients and noise under XLA where
        `jit_compile` asks.
        """
        validation.check_steps(self)
        if self._activity is None:  # Else it is known what the step is for.
            self._set_records(self._records_by_hand())
        if self.train_function is not None and not force:
            return self.train_function
        with without_jit_compile(self):
            super().make_train_function(force=True)
        loop = StepLoop(
            tf.function(self.train_step, autograph=False),
            self._dp_optimizer().charging.remembering,
        )
        self.train_function = functools.partial(
            self._run_steps, self.train_function, loop, self._records
        )
        return self.train_function

    def _records_by_hand(self) -> RecordsOfFit:
        """How steps make records that `fit` does not run: the optimizer knows the microbatches."""
        size = self._dp_optimizer().examples_per_microbatch
        return self._records._replace(examples_per_microbatch=size)

    def _check_made_for(self, records: RecordsOfFit, is_of_fit: bool) -> None:
        """Refuses a step that would make other records than is supposed now."""
        if records.max_examples_per_user is None:
            self._dp_optimizer().check_ids_given()
        if records != (self._records if is_of_fit else self._records_by_hand()):
            raise NotPrivateError(
                "This training function was made for records of another kind: other views, users "
                "or sizes of microbatches. Call make_train_function(force=True) again, after "
                "set_batch_size, and use what it returns."
            )

    def _run_steps(
        self, train_function: Any, loop: StepLoop, records: RecordsOfFit, iterator: Any
    ) -> Any:
        """Runs steps on what an iterator yields; in `fit`, where no data set holds its samples, on
        the next of them. If the ledger, a guard or a draw raised an error inside the graph, that
        error itself is raised here.

        Args:
            train_function: Of Keras.
            loop: Of one step.
            records: For which both were made.
            iterator: Of batches.
        """
        optimizer = self._dp_optimizer()
        charging = optimizer.charging
        charging.samples.check_no_step_of_fit()
        is_fitting = self._activity == "fit"
        of_fit = charging.samples.step_of_fit() if is_fitting else contextlib.nullcontext()
        charging.take_error()
        is_watched, self._is_watched = self._is_watched, False
        first = said_where_slow() if is_watched else contextlib.nullcontext()
        try:
            with of_fit, first, contextlib.ExitStack() as stack:
                self._check_made_for(records, charging.samples.fit_runs_step)
                if charging.samples.fit_runs_step:
                    charging.samples.check_run_is_as_it_was(optimizer.position_of_run)
                    if charging.samples.fit_begins:
                        distributed_data.check_same_start(
                            self.distribute_strategy, self, optimizer, records
                        )
                    # Whatever a callback told the optimizer of batches of its own.
                    size = records.examples_per_microbatch
                    stack.enter_context(optimizer.with_microbatches_of(size))
                if self._small_samples is not None and charging.samples.fit_runs_step:
                    return self._small_samples.take_steps(
                        loop, iterator, self.steps_per_execution, charging.samples.steps_unseen
                    )
                return train_function(iterator)
        except tf.errors.OpError as error:
            host_error = charging.take_error()
            if host_error is None:
                raise
            raise host_error from error

    def train_step(self, data: Any) -> dict[str, Any]:
        """One private step; `data` is a `PaddedBatch` or what Keras' own train_step takes."""
        if isinstance(data, PaddedBatch):
            data = distributed_data.as_drawn(data)
        else:
            data = PaddedBatch(*keras.utils.unpack_x_y_sample_weight(data), None)
        if self._prepared is None:
            raise NotPrivateError(
                "The model must be built before its first step. Give it an Input, or call it once "
                "on a batch, and use fit() or train_on_batch()."
            )
        optimizer = self._dp_optimizer()
        if rows_of_user(data.mask) is None:
            optimizer.check_ids_given()
        data, examples_per_record = self._records.of_batch(data)
        check_reductions(self, data.sample_weight)
        record_loss, shown = self._prepared.record_loss, self._prepared.shown
        jit_compile = bool(self.jit_compile) and not self.run_eagerly
        weights = inputs.weights_of_records(data.sample_weight) if record_loss.is_weighed else None
        # The loss of these weights, which the step will change.
        penalty = record_loss.penalty() if record_loss.has_penalty else 0.0
        norms = private_norms(self)
        # Another model may have been compiled with this optimizer since.
        optimizer.release_moments_of(norms)
        of_metrics = metric_updates.variables_of_metrics(self)
        with metric_updates.unread(of_metrics):
            step_arguments = StepArguments(
                record_loss,
                as_list(self.trainable_variables),
                (data.x, data.y, data.sample_weight),
                mask=data.mask,
                weights=weights,
                data_independent_loss=record_loss.penalty if record_loss.has_penalty else None,
                has_aux=True,
                loss_scale=_loss_scale(self, optimizer),
                jit_compile=jit_compile,
                of_fit=True,
                has_statistics=True,
                examples_per_record=examples_per_record,
                record_gradient="mean"
                if examples_per_record is None
                else self._records.user_gradient,
            )
            aux, released = optimizer._step_of_fit(step_arguments)
        count = len(optimizer.private_metrics)
        optimizer.move_statistics(norms, released[count:])
        if shown is not None:
            shown.update(released[:count], penalty)
            return distribution.for_keras(shown.result())
        losses, y_pred = aux
        if weights is not None:  # As Keras shows losses.
            losses *= tf.cast(weights, losses.dtype)
        logs = metric_updates.update(self, record_loss, data, (losses, y_pred), of_metrics)
        validation.check_names(logs)
        return distribution.for_keras(logs)

    def test_step(self, data: Any) -> dict[str, Any]:
        """As in Keras."""
        with self._during("evaluate"):
            return distribution.for_keras(super().test_step(data))

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras: raw values of the data that it is given."""
        run = super().evaluate
        callbacks = _callbacks(run, args, kwargs)
        left_alone = self._left_alone(self._activity == "fit", callbacks)
        with left_alone, self._during("evaluate"), self._averages_used(callbacks):
            return run(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """As in Keras."""
        run = super().predict
        callbacks = _callbacks(run, args, kwargs)
        left_alone = self._left_alone(self._activity == "fit", callbacks)
        with left_alone, self._averages_used(callbacks):
            return run(*args, **kwargs)

    @property
    def _shown(self) -> ShownMetrics | None:
        """What logs of training show in place of Keras' metrics."""
        return None if self._prepared is None else self._prepared.shown

    def get_metrics_result(self) -> dict[str, Any]:
        """As in Keras; while `fit` trains with private metrics, these. Metrics that layers keep are
        not among those of training: they are given no records.
        """
        if self._activity == "fit" and self._shown is not None:
            return self._shown.result()
        if self._activity != "fit":
            return super().get_metrics_result()
        layers = [one for one in layers_in(self, deep=True) if not isinstance(one, keras.Model)]
        kept = {id(metric) for layer in layers for metric in layer.metrics}
        shown: dict[str, Any] = {}
        for metric in self.metrics:
            if id(metric) not in kept:
                value = metric.result()
                shown.update(value if isinstance(value, dict) else {metric.name: value})
        return shown

    def reset_metrics(self) -> None:
        """As in Keras."""
        super().reset_metrics()
        # What is shown of training stays where a callback evaluates in the middle of an epoch.
        if self._shown is not None and self._activity != "evaluate":
            self._shown.reset_state()


def _loss_scale(model: keras.Model, optimizer: DPOptimizer) -> float | None:
    if optimizer.loss_scale_factor is None and model.compute_dtype == "float16":
        return 1024.0
    return None


def _callbacks(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the callbacks among the arguments of a method of Keras."""
    return inspect.signature(method).bind(*args, **kwargs).arguments.get("callbacks")
