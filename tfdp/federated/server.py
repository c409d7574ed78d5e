"""The server of user-level training: in a round a query is released whose records are clients."""

import contextlib
import dataclasses
import logging
import secrets
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.events.arguments import positive_integer
from tfdp.federated.cohorts import policy_of, registered
from tfdp.federated.secure_sum import is_secure, sample_state_of
from tfdp.federated.updates import InvalidUpdateError, form_of
from tfdp.keras import inputs, validation
from tfdp.keras.callbacks import epsilon_first
from tfdp.keras.errors import NotPrivateError
from tfdp.keras.layer_checks import check_layers
from tfdp.keras.sampling_of_steps import Fitting
from tfdp.keras.summed_step import SummedStep
from tfdp.keras.training import PrivateTraining
from tfdp.noise import HostGenerator, host_generator
from tfdp.query.leaves import record_dtype
from tfdp.sampling import SamplingPolicy, Unknown

_logger = logging.getLogger("tfdp")


class Round:
    """One round: who is asked, and what they answer.

    Attributes:
        number: From 1 on, in this call of `Server.rounds`.
        cohort: The clients that were drawn, in no order. It is as secret as the data where the
            accounting counts on the sampling (Poisson, fixed size).
        weights: What is sent to them: the weights of the model.
        controls: Likewise, with SCAFFOLD: the control variates; else none.
        step: What clients of a secure sum need to encode (`tfdp.federated.encoded`); None where the
            query has no such sum.
    """

    def __init__(self, number: int, cohort: Sequence[Hashable], server: "Server"):
        self.number = number
        self.cohort = tuple(cohort)
        self.weights = [np.array(v) for v in server.model.trainable_variables]
        self.controls = [np.array(v) for v in server.controls]
        self.step = server._encoding_step()
        self._missing = set(self.cohort)
        self._tokens = {client: secrets.token_hex(16) for client in self.cohort}
        self._server = server

    def token_of(self, client: Hashable) -> str:
        """Returns 32 hexadecimal digits that nobody can guess, for this client in this round.

        A client that is told them, and nobody else, shows by them that an answer is its own, and of
        this round, where the transport does not.

        Raises:
            KeyError: the client was not drawn.
        """
        return self._tokens[client]

    def receive(
        self, client: Hashable, update: Any, *, token: str | None = None, weight: Any = None
    ) -> None:
        """Takes a client's answer: what its training added to the weights, and to the controls.

        The first answer of each client of the cohort counts, while the round is open. Every other
        one is dropped without a word. One that cannot be used counts as zero, as if the client did
        not answer; where clients bring shares of the noise, with its share all the same. The
        server's logs tell nothing of either.

        Args:
            client: Who it is from, as the transport knows and not as the answer says.
            update: The arrays: NumPy's own, of no subclass, in the order, shapes and dtypes of
                `weights`, followed by those of `controls`.
            token: What the client was told (`token_of`); needed where an answer can be of another
                round, or of another client.
            weight: Of the client, for a query that takes weights.
        """
        with self._server._turn:
            if token not in (None, self._tokens.get(client)) or not self._is_missing(client):
                return
            try:
                arrays, weight = self._server.form.check(update, weight)
            except InvalidUpdateError:
                if not self._server.model.optimizer.query.draws_for_records:
                    return
                # How much noise there is must not follow from what was sent.
                arrays, weight = self._server.form.zeros(), 0.0
            self._server._add([array[None] for array in arrays], None, [weight])

    def receive_all(
        self, clients: Sequence[Hashable], updates: Sequence[Any], weights: Any = None
    ) -> None:
        """Takes answers of many clients at once, from a simulation; for each of them as `receive`.

        Args:
            clients: Whose, [n] names.
            updates: As in `receive`, every array with an axis of clients in front, [n] or longer:
                rows behind those of the clients are nobody's.
            weights: As many as rows, for a query that takes weights.

        Raises:
            ValueError: there are fewer rows than clients, arrays of another form, or weights where
                none are taken, or none where they are.
        """
        rows = self._server.form.check_all(updates, weights)
        if len(clients) > rows:
            raise ValueError(
                f"Every client has a row. Received: {len(clients)} clients, {rows} rows."
            )
        with self._server._turn:
            mask = np.zeros(rows, bool)
            mask[: len(clients)] = [self._is_missing(client) for client in clients]
            if mask.any():
                self._server._add(updates, mask, weights)

    def receive_sum(self, clients: Sequence[Hashable], total: np.ndarray) -> None:
        """Takes the sum of what several clients encoded (`tfdp.federated.encoded`), from a protocol
        that shows nobody the parts.

        It counts as a whole or not at all. If one of the clients has answered already or was not
        drawn, or if the round is over, the sum is dropped without a word, as in `receive`.

        Guarantees:
            That a part is clipped and has its share of the noise is what its client did. Nobody can
            see it: a client that does something else can make any sum of it. The event holds for
            the honest ones, if there are `min_contributors` of them.

        Args:
            clients: Whose parts are in the sum, each once, as the protocol knows.
            total: int64 [d], the sum modulo 2^modulus_bits.

        Raises:
            TypeError: the query has no such sum.
            ValueError: the sum has another form, or no client, or a client is named twice.
        """
        names = list(clients)
        if not names or len(set(names)) != len(names):
            raise ValueError(
                "A sum has a client at least, and each of them once. Received: "
                f"{len(names)} names, {len(set(names))} different."
            )
        with self._server._turn:
            state = self._server._state_of_sum(total, len(names))
            if set(names) <= self._missing:
                self._missing -= set(names)
                self._server._step.add_sum(state, len(names))

    def close(self) -> None:
        """Drops every answer from here on; `Server.rounds` does it."""
        with self._server._turn:
            self._missing.clear()

    def _is_missing(self, client: Hashable) -> bool:
        """Returns whether this client has not answered; from here on it has."""
        found = client in self._missing
        self._missing.discard(client)
        return found

    @property
    def is_complete(self) -> bool:
        """Whether every client of the cohort has answered, with something useful or not."""
        return not self._missing


class Server:
    """Trains a private model by rounds in which clients train on data that stay with them.

    A round begins with a draw of the cohort, and the event is charged. The clients that were drawn
    train on their own data, and send what that added to the weights. Each such update is a record
    of the optimizer's query, which clips it. The sum gets noise and is divided by the query's
    denominator. Minus the result goes to the inner optimizer as a gradient. `SGD(1.0)` then is
    federated averaging; `tfdp.federated` has `FedAdagrad`, `FedAdam` and `FedYogi`.

    Guarantees:
        The event of a round is in the ledger before anybody is asked. A client moves the sum by
        at most the bound of the event, whatever it sends, and whether it answers or not: the
        denominator is the query's, fixed and public. A round is released once, or not at all.
        Where clients bring shares of the noise (`tfdp.query.secure_sum_query`), who answers is
        public: whoever does not brings none.

    Args:
        model: A private model (`tfdp.keras.make_private`) that is built and compiled with
            `tfdp.keras.DPOptimizer(inner, query, privacy_unit="user")`. The denominator of the
            query is the expected size of a cohort (or total weight).
        clients: Names of the registered clients, all different. A client that is registered later
            takes part from another `Server` on.
        cohort_size: Expected number of clients in a round. It may be left out where the policy has
            a `batch_size` or takes everybody, and must be under ADD_OR_REMOVE_ONE.
        sampling: How cohorts are drawn; by default `tfdp.sampling.Poisson()`.
        controls: With SCAFFOLD: control variates are part of every record, and of the result.
        generator: Draws the cohorts; by default from secret bits. Whoever knows the seed of another
            one knows who was asked, so that rounds are then charged as `tfdp.sampling.Unknown`,
            without amplification, and a warning says so.

    Raises:
        TypeError: an argument is of the wrong type, or a variable neither float32 nor float64.
        ValueError: names are not unique, or sizes contradict the policy.
        NotPrivateError: the model mixes records, or is not compiled as it must be.

    References:
        McMahan et al. 2018, arXiv:1710.06963, algorithm 1 (DP-FedAvg with a fixed denominator);
        Reddi et al. 2021, arXiv:2003.00295 (server optimizers); Karimireddy et al. 2020,
        arXiv:1910.06378 (SCAFFOLD).
    """

    def __init__(
        self,
        model: keras.Model,
        clients: Sequence[Hashable],
        *,
        cohort_size: int | None = None,
        sampling: SamplingPolicy | None = None,
        controls: bool = False,
        generator: Any = None,
    ):
        if not isinstance(model, PrivateTraining) or getattr(model, "optimizer", None) is None:
            raise TypeError(
                "model must be a private model that is compiled: "
                "model = tfdp.keras.make_private(model); model.compile(tfdp.keras.DPOptimizer("
                f'optimizer, query, privacy_unit="user")). Received: {type(model).__name__}.'
            )
        if not model.built:
            raise ValueError("The model must be built: give it an Input, or call it once.")
        check_layers(model)
        self.model = model
        self.clients = registered(clients)
        self.policy = policy_of(sampling, len(self.clients), cohort_size)
        optimizer = model.optimizer
        if not self.policy.hides_population:
            inputs.warn_of_denominator(optimizer.query, self.policy.expected_batch_size)
        variables = list(model.trainable_variables)
        for variable in variables:
            record_dtype(variable)
        self._variables = variables
        self.controls = [_control(v) for v in variables] if controls else []
        self._share = _share_of(self.policy, len(self.clients))
        self._step = SummedStep(optimizer, variables, self.controls, self._update_controls)
        self.form = form_of([*variables, *self.controls], optimizer.query.takes_weights)
        self._generator = host_generator(generator)
        if self._charged(self.policy) is not self.policy:
            _logger.warning(
                "Cohorts are drawn by a generator whose draws can be repeated (%s). Rounds are "
                "charged without amplification by sampling. Leave generator out to draw from "
                "secret bits.",
                type(generator).__name__,
            )
        self._open: Round | None = None
        # Answers may come from many threads, and each of them counts once.
        self._turn = threading.RLock()

    def rounds(
        self,
        number: int,
        *,
        callbacks: Any = None,
        validation_data: Any = None,
        verbose: Any = 0,
    ) -> Iterator[Round]:
        """Yields one charged round after another, whose answers the caller takes to `receive`.

        A round is released when the caller asks for the next one. If the caller raises or leaves
        the loop instead, the round that is open is charged and not released. One round of a server
        is open at a time: another call that begins one gives it up. Of several loops over rounds of
        one model, and `fit`, that which began last goes on. `model.history` is that of Keras, with
        what is public: values of the query's state, an epsilon, and metrics of validation.

        Args:
            number: How many; a callback may end it earlier.
            callbacks: As in `fit`; a round is an epoch of one batch.
            validation_data: Public data, as in Keras: (x, y), (x, y, sample_weight), or a data set
                of batches; metrics are in the logs as `val_...`. They are gone through after every
                round.
            verbose: As in Keras.

        Raises:
            TypeError: `validation_data` are an iterator, which ends once and for all.
            PrivacyBudgetExceededError: the budget of a `PrivacyBudget` covers no round.
            NotPrivateError: a callback is refused as by `fit`, or another loop or `fit` of
                this model was begun and goes on, or another round was begun while this one was
                open, or fewer clients answered than bring the noise that is charged
                (`min_contributors`). A round that is open then is charged and not released.
            ValueError: a layer was frozen or unfrozen after the server was made. No further round
                is charged.
        """
        number, optimizer = positive_integer("number", number), self.model.optimizer
        validation.check_callbacks(callbacks, True, ())
        inputs.check_validation(validation_data, None, None, 1)
        if isinstance(validation_data, Iterator):
            raise TypeError(
                "validation_data are gone through after every round, and a generator or iterator "
                "is at its end after the first. Pass arrays, or a data set. Received: "
                f"validation_data of type {type(validation_data).__name__}."
            )
        history = keras.callbacks.History()
        callbacks = keras.callbacks.CallbackList(
            [*epsilon_first(keras.tree.flatten(callbacks or [])), history],
            add_progbar=bool(verbose),
            model=self.model,
            epochs=number,
            steps=1,
            verbose=verbose,
        )
        self.model.stop_training = False
        with contextlib.ExitStack() as stack:
            # No other thread begins to train between what is begun here.
            with optimizer.charging.turn:
                policy = self.policy.from_step(optimizer.step_of_run())
                draws, samples = policy.draw(self._generator), optimizer.charging.samples
                fit = stack.enter_context(samples.fitting(self._charged(policy), drawn=True))
                stack.enter_context(optimizer.charging.temporary_guards())
                stack.enter_context(self.model._private_use())
                callbacks.on_train_begin()
            logs: dict[str, Any] = {}
            for index in range(number):
                callbacks.on_epoch_begin(index)
                callbacks.on_train_batch_begin(0)
                current = self._begin(index + 1, next(draws), fit)
                try:
                    yield current
                finally:
                    current.close()
                self._release(current)
                logs = self._logs()
                callbacks.on_train_batch_end(0, logs)
                logs.update(self._validated(validation_data))
                callbacks.on_epoch_end(index, logs)
                if self.model.stop_training:
                    break
            callbacks.on_train_end(logs)
        self.model.history = history
        optimizer.ledger.settle()

    def train(
        self, answer: Callable[[Round], None], number: int, **arguments: Any
    ) -> keras.callbacks.History:
        """Runs rounds whose answers a function takes to `Round.receive`.

        Args:
            answer: Called with each round, for instance a `Simulation`.
            number: How many rounds.
            **arguments: Others of `rounds`.

        Returns:
            Keras' history.
        """
        with contextlib.closing(self.rounds(number, **arguments)) as rounds:
            for current in rounds:
                answer(current)
        return self.model.history

    def _add(self, updates: Sequence[Any], mask: Any, weights: Any) -> None:
        # To the open round: arrays with an axis of clients in front, bool [n] or None, [n]. The
        # optimizer subtracts what it is given.
        records = [-tf.convert_to_tensor(update) for update in updates]
        count = len(self.model.trainable_variables)
        structure = [records[:count], records[count:]] if self.controls else records
        takes = self.model.optimizer.query.takes_weights
        # Python's floats would be float32 first, which some weights exceed.
        self._step.add(structure, mask, np.asarray(weights, np.float64) if takes else ())

    def _charged(self, policy: SamplingPolicy) -> SamplingPolicy:
        """Returns what cohorts that the policy draws are charged as: nobody may know them."""
        generator = self._generator
        if isinstance(generator, HostGenerator) and generator.is_secret:
            return policy
        return Unknown(policy.neighboring_relation) if policy.uses_generator else policy

    def _begin(self, number: int, units: np.ndarray, fit: Fitting) -> Round:
        # In the order in which a callback of `fit` takes the two.
        with self.model.optimizer.charging.turn, self._turn:
            if self._open is not None:
                # Its answers would be added to the sum of the round that begins.
                self._open.close()
            if list(map(id, self.model.trainable_variables)) != list(map(id, self._variables)):
                raise ValueError(
                    "The model has other trainable variables than when the server was made: a "
                    "layer was frozen or unfrozen. Compile the model and make a new Server."
                )
            self._step.charge(len(units), fit)
            self._open = Round(number, [self.clients[unit] for unit in units], self)
            return self._open

    def _release(self, current: Round) -> None:
        with self.model.optimizer.charging.turn, self._turn:
            if self._open is not current:
                raise NotPrivateError(
                    f"Round {current.number} is not released: another round of this server was "
                    "begun while it was open. Finish one loop over rounds before the next."
                )
            self._open = None
            self._step.apply()

    def _encoding_step(self) -> int | None:
        if not is_secure(self.model.optimizer.query):
            return None
        return int(self._step.params().step)

    def _state_of_sum(self, total: np.ndarray, contributors: int) -> Any:
        query = self.model.optimizer.query
        return sample_state_of(query, self._step.template, total, contributors)

    def _update_controls(self, noised: list[tf.Tensor]) -> None:
        # Of all clients, those of the cohort have new controls; what is noised is minus their mean.
        for control, part in zip(self.controls, noised, strict=True):
            control.assign_sub(tf.cast(self._share, part.dtype) * part)

    def _logs(self) -> dict[str, Any]:
        optimizer = self.model.optimizer
        state = [v.value for v in optimizer._step_variables().state]
        metrics = optimizer.query.derive_metrics(optimizer._step()._global_state(state))
        return {name: float(np.asarray(value)) for name, value in metrics.items()}

    def _validated(self, data: Any) -> dict[str, Any]:
        if data is None:
            return {}
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        logs = self.model.evaluate(x, y, sample_weight=sample_weight, verbose=0, return_dict=True)
        return {f"val_{name}": value for name, value in logs.items()}


def _share_of(policy: SamplingPolicy, population: int) -> float:
    """Returns the expected share of a cohort among all clients, 0 where nobody knows."""
    if policy.hides_population:
        # The share is the same for any number of clients, and with a power of two none of its bits
        # follows from theirs.
        population = 2**20
        policy = dataclasses.replace(policy, population_size=population)  # type: ignore[type-var]
    return (policy.expected_batch_size or 0) / population


def _control(variable: Any) -> keras.Variable:
    return keras.Variable(
        np.zeros(variable.shape, variable.dtype), dtype=variable.dtype, trainable=False
    )
