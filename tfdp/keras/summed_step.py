"""Steps whose records somebody else makes: a server that adds up what clients send."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.events import SampledEvent
from tfdp.gradients.engines.batched import Clipping, Weights, sum_records
from tfdp.gradients.engines.loop import is_finite
from tfdp.gradients.forms.per_record import Explicit
from tfdp.keras import distribution
from tfdp.keras.errors import NotPrivateError
from tfdp.keras.optimizer import DPOptimizer
from tfdp.keras.sampling_of_steps import Batch, Fitting
from tfdp.query.structure import Structure


class SummedStep:
    """Steps of a `DPOptimizer` on records that come from outside, one after another: `charge`, then
    `add` as often as there are records, then `apply`.

    Guarantees:
        Nothing can be added before the event of the step is in the ledger, and nothing is released
        twice: `apply` takes the sum away before it draws noise. Every record is clipped here,
        whatever was done to it before. One that is not finite contributes zero.

    Args:
        optimizer: Whose query, ledger and state it is; `privacy_unit="user"`.
        variables: What its inner optimizer updates.
        others: Further variables that the noised result has a part for. A record is then the pair
            of lists [gradient, other part], and so is the result.
        update_others: Is called with the noised part of `others`.

    Raises:
        ValueError: the optimizer has another privacy unit, private metrics, or noise for private
            batch normalization.
        NotPrivateError: it is used under a strategy of several replicas.
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        variables: list[Any],
        others: list[Any] | None = None,
        update_others: Callable[[list[tf.Tensor]], None] | None = None,
    ):
        if optimizer.privacy_unit != "user" or optimizer.private_metrics:
            raise ValueError(
                "A record that a client sends is all that it gives: make the DPOptimizer with "
                'privacy_unit="user" and without private_metrics. Received: '
                f"privacy_unit={optimizer.privacy_unit!r}, "
                f"private_metrics={list(optimizer.private_metrics)}."
            )
        if optimizer.batch_norm_noise_multiplier is not None:
            raise ValueError(
                "Clients send no moments of the inputs of private batch normalization, so that its "
                "moving statistics would stay as they are. Make the model without it, for instance "
                'with make_private(model, batch_norm="group"), and the DPOptimizer without '
                "batch_norm_noise_multiplier. Received: "
                f"batch_norm_noise_multiplier={optimizer.batch_norm_noise_multiplier!r}."
            )
        if distribution.num_replicas() > 1:
            raise NotPrivateError(
                "The sum of clients' records is added up, and its noise drawn, by one process on "
                "one device. Leave tf.distribute out at the server."
            )
        optimizer.build(variables)
        self._optimizer = optimizer
        self._variables, self._others = variables, others or []
        self._update_others = update_others
        self.template: Structure = [variables, others] if others else variables
        self._sum: Structure | None = None
        self._contributors = 0
        self._state: list[tf.Tensor] = []
        self._place: tuple[int, int] | None = None
        self._add = tf.function(self._added, autograph=False)
        self._apply = tf.function(self._applied, autograph=False)

    def charge(self, size: int | None, fit: Fitting) -> SampledEvent:
        """Writes the event of the next step to the ledger, or raises; a step that was begun and not
        applied is given up.

        Args:
            size: Units in the sample, as they were drawn.
            fit: Says how; from `SamplingOfSteps.fitting`.

        Returns:
            The event.

        Raises:
            NotPrivateError: something else trains with the optimizer, and has begun since.
        """
        charging, step = self._optimizer.charging, self._optimizer._step()
        variables = self._optimizer._step_variables()
        self._sum = None
        with charging.turn:
            state = [tf.identity(v.value) for v in variables.state]
            values = [value.numpy() for value in state]
            batch = Batch(of_fit=True, size=size)
            events = []

            def event() -> SampledEvent:
                events.append(charging.samples.sampled(step.event_of_state(values), "user", batch))
                return events[-1]

            # Inside the turn, in which nothing else begins.
            charging.samples.expect_step_of_fit(fit)
            with charging.samples.step_of_fit():
                place = charging.commit(
                    event,
                    step.holders([*self._variables, *self._others]),
                    int(variables.position.numpy()),
                    int(variables.fingerprint.numpy()),
                    batch,
                )
            variables.fingerprint.assign(place[1])
            variables.position.assign(place[0])
        self._place, self._state = (int(place[0]), int(place[1])), state
        self._sum = self._optimizer.query.weighed(1.0).initial_sample_state(self.template)
        self._contributors = 0
        return events[-1]

    def add(self, records: Structure, mask: tf.Tensor | None = None, weights: Weights = ()) -> None:
        """Adds records, which are clipped here; one that is not finite counts as zero.

        Args:
            records: In the structure of the variables, every leaf [n, ...] and of its dtype.
            mask: bool [n]; false leaves a record out. By default all are taken.
            weights: [n], for a query that takes weights.
        """
        self._check_begun()
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(records)]
        shapes = [tuple(v.shape) for v in tf.nest.flatten(self.template)]
        if [tuple(leaf.shape[1:]) for leaf in leaves] != shapes:
            raise ValueError(
                "Records must have the shapes of the variables, behind an axis of records. "
                f"Received: {[tuple(leaf.shape) for leaf in leaves]}, expected: {shapes}."
            )
        mask = tf.ones([leaves[0].shape[0]], tf.bool) if mask is None else mask
        self._sum, added = self._add(self._sum, self._state, leaves, mask, weights)
        self._contributors += int(added)

    def add_sum(self, sample_state: Structure, contributors: int) -> None:
        """Adds the state of a sample that was summed up elsewhere.

        Args:
            sample_state: Of the query, for the template, without a record that was added already.
            contributors: Of how many records.
        """
        self._check_begun()
        self._sum = self._optimizer.query.merge_sample_states(self._sum, sample_state)
        self._contributors += contributors

    def params(self) -> Structure:
        """Returns what the query's `preprocess_record` needs to know in the step that is charged.

        It is as public as the state from which it is derived.
        """
        self._check_begun()
        step = self._optimizer._step()
        return self._optimizer.query.derive_sample_params(step._global_state(self._state))

    def apply(self) -> None:
        """Adds noise to the sum, updates the variables with the result, and forgets the sum.

        Raises:
            NotPrivateError: no step is charged, or another one was taken since with the same
                optimizer, or fewer records were added than bring the noise that is charged.
        """
        self._check_begun()
        variables = self._optimizer._step_variables()
        with self._optimizer.charging.turn:
            sample_state, self._sum = self._sum, None
            place = int(variables.position.numpy()), int(variables.fingerprint.numpy())
            if place != self._place:
                raise NotPrivateError(
                    "Another step was taken with this optimizer since this one was charged, so the "
                    "sum is not released. Finish a round before anything else trains the model."
                )
            least = self._optimizer.query.min_contributors
            if self._contributors < least:
                raise NotPrivateError(
                    f"Fewer records were added than min_contributors={least}, which bring the "
                    "noise that is charged. The step is charged, and its sum is not released. Go "
                    "on with the next step; ask more units at a time, or make the query with "
                    "fewer min_contributors, each with a larger share of the noise."
                )
            self._apply(sample_state, self._state)

    def _check_begun(self) -> None:
        if self._sum is None:
            raise NotPrivateError(
                "No step is charged whose sum could be added to or released: it was released "
                "already, or given up. A sum is released once."
            )

    def _added(self, sample_state, state, leaves, mask, weights):
        query, step = self._optimizer.query, self._optimizer._step()
        params = query.derive_sample_params(step._global_state(state))
        clipping = Clipping(query, params, self.template)
        if query.needs_separate_records or not query.is_sum:
            return self._added_one_by_one(clipping, sample_state, leaves, mask, weights)
        records = [Explicit(leaf) for leaf in leaves]
        total = query.merge_sample_states(
            sample_state, sum_records(clipping, records, mask, weights)
        )
        # Nothing is drawn for such records, so that nobody counts them.
        return total, tf.constant(0)

    def _added_one_by_one(self, clipping, sample_state, leaves, mask, weights):
        """Returns the sum with the records, and how many of them are in it.

        Where something is drawn for every record, those that are not finite are the query's to make
        zeros of.
        """
        draws = clipping.query.draws_for_records

        def body(i, sample_state, count):
            record = [leaf[i] for leaf in leaves]
            one = clipping.weighed(tf.nest.map_structure(lambda w: w[i], weights))
            counts = mask[i] if draws else mask[i] & is_finite(record)
            sample_state = tf.cond(
                counts,
                lambda: one.query.accumulate_record(
                    one.params, sample_state, tf.nest.pack_sequence_as(self.template, record)
                ),
                lambda: tf.nest.map_structure(tf.identity, sample_state),
            )
            return i + 1, sample_state, count + tf.cast(counts, tf.int32)

        size, zero = tf.shape(mask)[0], tf.constant(0)
        return tf.while_loop(lambda i, *_: i < size, body, (zero, sample_state, zero))[1:]

    def _applied(self, sample_state, state):
        step, own = self._optimizer._step(), self._optimizer._step_variables()
        noised, _, new_state = step._release(sample_state, state, self._variables)
        count = len(self._variables)
        self._optimizer._update(noised[:count], self._variables, False)
        if self._update_others is not None:
            self._update_others(noised[count:])
        for variable, value in zip(own.state, new_state, strict=True):
            variable.assign(value)
