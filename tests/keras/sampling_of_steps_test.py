"""A sampling policy holds for the batches that it drew, or was declared for, and for no others."""

import contextlib
import itertools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp.events import (
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    SampledEvent,
    UnknownSampling,
)
from tfdp.keras import NotPrivateError
from tfdp.keras.sampling_of_steps import Batch, SamplingOfSteps
from tfdp.ledger import PrivacyLedger
from tfdp.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedOrder,
    FixedSize,
    FullBatch,
    Poisson,
    RandomAllocation,
    Shuffled,
)

X, Y = toy.data()
N = len(X)


def private(**kwargs):
    return toy.private(toy.linear(), toy.dp(**kwargs))


def samplings(model):
    return [type(event.sampling) for event in toy.events(model)]


class Meanwhile(keras.callbacks.Callback):
    """Calls a function of the model after every batch."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def on_train_batch_end(self, batch, logs=None):
        self._function(self.model)


def own_step(model):
    loss = tfdp.gradients.ModelLoss(model, toy.LOGITS_LOSS)
    model.optimizer.private_step(loss, model.trainable_variables, (X[:2], Y[:2]))


def own_gradients(model):
    loss = tfdp.gradients.ModelLoss(model, toy.LOGITS_LOSS)
    gradients = model.optimizer.private_gradients(loss, model.trainable_variables, (X, Y))
    model.optimizer.apply(gradients, model.trainable_variables)


def train_function(model):
    model.train_function(iter([(tf.constant(X), tf.constant(Y))]))


class Before(keras.callbacks.Callback):
    """Runs the model's own training function in a callback that comes before a step of `fit`."""

    def on_epoch_begin(self, epoch, logs=None):
        train_function(self.model)

    def on_train_batch_begin(self, batch, logs=None):
        train_function(self.model)


def train_step(model):
    model.train_step((tf.constant(X), tf.constant(Y)))


def nested_fit(model):
    model.fit(X, Y, sampling=FullBatch(), verbose=0)


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (lambda model: model.train_on_batch(X, Y), UnknownSampling),
        (own_step, UnknownSampling),
        (own_gradients, UnknownSampling),
        (train_step, UnknownSampling),
        (train_function, UnknownSampling),
        (nested_fit, FullBatchSampling),
    ],
    ids=[
        "train_on_batch",
        "own_step",
        "own_gradients",
        "train_step",
        "train_function",
        "nested_fit",
    ],
)
@pytest.mark.parametrize("as_dataset", [False, True])
def test_steps_during_fit_are_charged_as_what_they_are(step, kind, as_dataset):
    model = private()
    data = (X, Y)
    sampling = Poisson(0.5, N)
    if as_dataset:
        data = (tf.data.Dataset.from_tensor_slices(data).batch(6),)
    model.fit(
        *data,
        sampling=sampling,
        batch_size=None if as_dataset else 6,
        verbose=0,
        callbacks=[Meanwhile(step)],
    )
    assert samplings(model) == [PoissonSampling, kind] * 2


def test_training_function_called_before_a_step_of_fit_is_not_of_fit():
    model = private()
    model.fit(X, Y, batch_size=6, verbose=0, callbacks=[Before()])
    own = UnknownSampling
    assert samplings(model) == [own, own, PoissonSampling, own, PoissonSampling]


def test_declaration_of_a_custom_loop_holds_during_fit():
    model = private()
    model.optimizer.sampling = Poisson(0.25)
    model.fit(X, Y, sampling=FullBatch(), verbose=0, callbacks=[Meanwhile(own_step)])
    assert samplings(model) == [FullBatchSampling, PoissonSampling]
    assert model.optimizer.sampling == Poisson(0.25)


def test_model_step_within_a_step_of_fit_is_refused():
    model = private()
    charging = model.optimizer.charging
    with (
        charging.samples.fitting(FullBatch(N), drawn=True) as fit,
        contextlib.ExitStack() as stack,
    ):
        charging.samples.expect_step_of_fit(fit)
        stack.enter_context(charging.samples.step_of_fit())
        with pytest.raises(NotPrivateError, match="while fit"):
            model.train_on_batch(X, Y)
        own_step(model)
    assert samplings(model) == [UnknownSampling]


# What arrives is held against what was declared.


def batches(*sizes):
    def generate():
        for size in sizes:
            yield X[np.arange(size) % N], Y[np.arange(size) % N]

    return generate()


@pytest.mark.parametrize(
    ("policy", "sizes", "found"),
    [
        (Poisson(0.01, 640), [64] * 20, "64 units"),
        (Poisson(0.5, 10_000), [50] * 2, "50 units on average, where 5000"),
        (Poisson(0.5, 4), [5], "a sample of 5 units"),
        (Poisson(0.01), [64] * 20, "where sizes are random"),
        (FixedSize(3, 12), [3, 2], "a sample of 2 units"),
        (Shuffled(3, 12), [3, 4], "a batch of 4 units"),
        (FullBatch(12), [12, 11], "a batch of 11 units"),
    ],
    ids=str,
)
def test_batches_that_cannot_be_samples_as_declared_are_refused(policy, sizes, found):
    model = private()
    with pytest.raises(NotPrivateError, match=found):
        model.fit(batches(*sizes), sampling=policy, verbose=0)
    assert model.ledger.total_count < len(sizes)


# As many microbatches as examples.


def test_as_many_microbatches_as_examples_make_each_a_record_also_undeclared():
    reference = private()
    reference.fit(X, Y, sampling=FullBatch(), verbose=0)

    def undeclared(model):
        with pytest.warns(UserWarning, match="no amplification"):
            model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(N), verbose=0)

    for train in (undeclared, lambda model: model.train_on_batch(X, Y), own_gradients):
        model = private(num_microbatches=N)
        train(model)
        (event,) = toy.events(model)
        assert event.event.l2_norm_bound == toy.CLIP
        toy.assert_weights(model, toy.weights(reference))


def test_graph_that_does_not_know_the_size_of_a_batch_says_so():
    model = private(num_microbatches=4)
    loss = tfdp.gradients.ModelLoss(model, toy.LOGITS_LOSS)

    @tf.function(input_signature=[tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int32)])
    def step(x, y):
        model.optimizer.private_step(loss, model.trainable_variables, (x, y))

    model.optimizer.build(model.trainable_variables)
    with pytest.warns(UserWarning, match="leave num_microbatches out"):
        step(X, Y)
    (event,) = toy.events(model)
    assert event.event.l2_norm_bound == 2 * toy.CLIP


def test_steps_that_are_alike_are_one_event_and_no_others():
    samples = SamplingOfSteps(tfdp.PrivacyLedger())
    policies = [
        Poisson(sampling_probability=0.1),
        Poisson(sampling_probability=0.2),
        Poisson(
            sampling_probability=0.2, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE
        ),
    ]
    releases = [GaussianSumEvent(1.0, stddev) for stddev in (2.0, 4.0)]
    steps = list(itertools.product(policies, releases, ["example", "user"]))
    for pair in itertools.product(steps, steps):
        for policy, release, unit in pair:
            samples.policy = policy
            found = samples.sampled(release, unit, Batch())
            sampling = PoissonSampling(policy.sampling_probability)
            assert found == SampledEvent(sampling, release, policy.neighboring_relation, unit)
            assert samples.sampled(release, unit, Batch()) is found


class CutsEpochs(keras.callbacks.Callback):
    """Ends every epoch after some steps, and lets the next one begin."""

    def __init__(self, steps):
        super().__init__()
        self._steps = steps

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 >= self._steps:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = False


ORDERED = [FixedOrder(), CyclicPoisson(3), BallsInBins()]


@pytest.mark.parametrize("policy", ORDERED, ids=lambda p: type(p).__name__)
def test_data_that_begin_again_out_of_turn_are_refused(policy):
    model = private(stddev=1.0)
    fit = {"batch_size": 4, "sampling": policy, "epochs": 3, "verbose": 0}
    with pytest.raises(NotPrivateError, match="begins with the first again, out of turn"):
        model.fit(X, Y, **fit, callbacks=[CutsEpochs(2)])
    assert model.ledger.total_count == 2
    places = [event.sampling.place for event in toy.events(model)]
    parts = places[0][1]
    model.fit(X, Y, **fit)  # Whose first step is about the first part, which the ledger says.
    expected = [0, 1, *(step % parts for step in range(3 * parts))]
    assert [event.sampling.place[0] for event in toy.events(model)] == expected


@pytest.mark.parametrize(
    "policy", [*ORDERED, Shuffled(), Poisson()], ids=lambda p: type(p).__name__
)
def test_a_fit_may_end_in_its_last_epoch_and_others_have_no_turns(policy):
    model = private(stddev=1.0)
    independent = not any(policy is one for one in ORDERED)
    budget = tfdp.keras.EpsilonLogger(1e-5, "rdp")
    model.fit(
        X,
        Y,
        **{"batch_size": 4, "sampling": policy, "epochs": 3 if independent else 1, "verbose": 0},
        callbacks=[CutsEpochs(2), budget],
    )
    assert model.ledger.total_count == (6 if independent else 2)


def test_turns_go_on_where_another_ledger_is_put_in_the_middle():
    model = private(stddev=1.0)

    class Swaps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 0:
                self.model.ledger = tfdp.PrivacyLedger.from_json_lines(
                    self.model.ledger.to_json_lines()
                )

    model.fit(X, Y, batch_size=4, sampling=FixedOrder(), verbose=0, callbacks=[Swaps()])
    places = [event.sampling.place[0] for event in toy.events(model)]
    assert places == list(range(len(places))) and len(places) > 2


def test_two_optimizers_on_one_ledger_share_no_pass():
    """One of two threads waits between the number of its pass and the event that has it."""
    ledger = tfdp.PrivacyLedger()
    models = [private(stddev=1.0, ledger=ledger) for _ in range(2)]
    chargings = [model.optimizer.charging for model in models]
    waiting, other_done = threading.Event(), threading.Event()

    def slow(ledger, event):
        waiting.set()
        other_done.wait(0.5)  # Seconds in which the other would take the same number.

    def commit(charging):
        with charging.samples.fitting(Shuffled(4, N), True) as fit:
            charging.samples.expect_step_of_fit(fit)
            with charging.samples.step_of_fit():
                event = GaussianSumEvent(1.0, 1.0)
                batch = Batch(of_fit=True, size=4)
                charging.commit(
                    lambda: charging.samples.sampled(event, "example", batch),
                    [],
                    *ledger.watermark(),
                    batch,
                )

    chargings[0].add_guard(slow)
    first = threading.Thread(target=commit, args=(chargings[0],))
    first.start()
    assert waiting.wait(10)
    second = threading.Thread(target=commit, args=(chargings[1],))
    second.start()
    second.join(0.2)
    other_done.set()
    first.join()
    second.join()
    passes = [entry.event.sampling.pass_number for entry in ledger for _ in range(entry.count)]
    assert sorted(passes) == [0, 1]


@pytest.mark.parametrize("n", [16, 17])
def test_microbatches_of_a_hidden_population_do_not_follow_its_size(n, caplog):
    x, y = np.ones((n, 4), "float32"), np.zeros(n, "int32")
    hidden = NeighboringRelation.ADD_OR_REMOVE_ONE
    events, said = [], []
    for policy in (
        Poisson(0.5, neighboring_relation=hidden),
        FullBatch(neighboring_relation=hidden),
    ):
        for batch_size in (None, 8):
            caplog.clear()
            model = private(stddev=1.0, num_microbatches=8)
            model.fit(x, y, sampling=policy, batch_size=batch_size, verbose=0, steps_per_epoch=1)
            events.append(next(iter(model.ledger)).event)
            said.append(caplog.text)
    factors = [event.event.l2_norm_bound for event in events]
    assert factors == [2 * toy.CLIP, toy.CLIP] * 2
    assert not any(number in text for text in said for number in ("8.5", "16", "17"))


def test_a_new_pass_that_is_declared_within_a_drawn_one_gets_a_number_beside_its_own():
    """A drawn pass of three steps ends where it did: no number is of steps of two draws."""
    samples = SamplingOfSteps(PrivacyLedger())
    with samples.fitting(Shuffled(4, 10), drawn=True) as fit:
        numbers = []
        for step in range(9):
            if step in (1, 5, 6):
                samples.begin_pass()
            sampling = fit.clock.peek()
            samples._clock.ledger.append(
                SampledEvent(sampling, GaussianSumEvent(1.0, 1.0), NeighboringRelation.ZERO_OUT)
            )
            fit.clock.advance(sampling)
            numbers.append(sampling.pass_index)
    assert numbers == [0, 1, 1, 2, 2, 3, 4, 4, 4]


def test_declared_samples_go_on_in_another_ledger():
    """The rest of a pass shares no number there with the pass that follows it."""
    samples = SamplingOfSteps(PrivacyLedger())
    samples.policy = Shuffled(4, 12)
    numbers = []
    for step in range(7):
        if step == 2:
            samples.continue_in(PrivacyLedger())
        event = samples.sampled(GaussianSumEvent(1.0, 1.0), "example", Batch(size=4))
        samples._clock.ledger.append(event)
        samples.advance(Batch(size=4), event.sampling)
        numbers.append((samples._clock.ledger.ledger_id, event.sampling.pass_index))
    real_of = {}
    for step, number in enumerate(numbers):
        real_of.setdefault(number, set()).add(step // 3)
    assert all(len(real) == 1 for real in real_of.values())


def test_declared_samples_may_begin_anew_at_the_end_of_an_epoch():
    """As where a callback goes through its own data at the end of each."""
    samples = SamplingOfSteps(PrivacyLedger())
    samples.policy = Shuffled(4, 12)
    numbers = []
    with samples.fitting(Poisson(0.25, 12), drawn=True) as fit:
        for _ in range(3):
            numbers.append(set())
            for _ in range(2):
                event = samples.sampled(GaussianSumEvent(1.0, 1.0), "example", Batch(size=4))
                samples._clock.ledger.append(event)
                samples.advance(Batch(size=4), event.sampling)
                numbers[-1].add(event.sampling.pass_index)
            samples.end_epoch(fit)
    assert not any(a & b for a, b in itertools.combinations(numbers, 2))


def test_batches_of_unknown_size_and_samples_that_are_drawn_contradict_nothing():
    samples = SamplingOfSteps(PrivacyLedger())
    samples.policy = FullBatch(12)
    samples.check_size(Batch())
    with pytest.raises(NotPrivateError, match="a batch of 11 units"):
        samples.check_size(Batch(size=11))
    with samples.fitting(FullBatch(12), drawn=True) as fit:
        samples.expect_step_of_fit(fit)
        with samples.step_of_fit():
            samples.check_size(Batch(of_fit=True, size=11))


@pytest.mark.parametrize(
    ("policy", "independent"),
    [
        *((policy, True) for policy in (Poisson(), FixedSize(), FullBatch())),
        *((policy, False) for policy in (Shuffled(), RandomAllocation(), *ORDERED)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_steps_of_a_pass_and_steps_in_an_order_are_not_independent(policy, independent):
    samples = SamplingOfSteps(PrivacyLedger())
    resolved = policy.resolve(12, 12 if isinstance(policy, FullBatch) else 4)
    samples.policy = resolved
    assert samples.are_independent == independent
    samples.policy = Poisson(0.25, 12) if not independent else Shuffled(4, 12)
    with samples.fitting(resolved, drawn=True):
        assert samples.are_independent == independent


def taken(samples, size=4):
    """Takes a step of fit, as far as the ledger is concerned, and returns its sampling."""
    batch = Batch(of_fit=True, size=size)
    with samples.step_of_fit():
        event = samples.sampled(GaussianSumEvent(1.0, 1.0), "example", batch)
        samples._clock.ledger.append(event)
        samples.advance(batch, event.sampling)
    return event.sampling


def test_samples_of_fit_go_on_in_another_ledger():
    """The rest of a pass shares no number there with a pass of somebody else."""
    ledger = PrivacyLedger()
    numbers = []
    for samples in (SamplingOfSteps(ledger), SamplingOfSteps(PrivacyLedger())):
        with samples.fitting(Shuffled(4, 12), drawn=True) as fit:
            for number in range(2):
                if number == 1:
                    samples.continue_in(ledger)
                samples.expect_step_of_fit(fit)
                numbers.append((samples._clock.ledger, taken(samples).pass_index))
    (_, first), (_, rest), _, (now, other) = numbers
    assert now is ledger and other not in (first, rest)


def test_of_two_fits_the_one_that_began_first_may_end_first():
    samples = SamplingOfSteps(PrivacyLedger())
    first = samples.fitting(Shuffled(4, 12), drawn=True)
    second = samples.fitting(Poisson(0.25, 12), drawn=True)
    first.__enter__()
    fit = second.__enter__()
    first.__exit__(None, None, None)
    samples.expect_step_of_fit(fit)
    assert isinstance(taken(samples), PoissonSampling)
    second.__exit__(None, None, None)
    assert not samples.fit_goes_on


def test_a_fit_takes_no_step_while_a_later_one_goes_on():
    """Its step would be charged as a sample of the later one."""
    samples = SamplingOfSteps(PrivacyLedger())
    with samples.fitting(FullBatch(12), drawn=True) as fit:
        with samples.fitting(Poisson(0.25, 12), drawn=True) as later:
            with pytest.raises(NotPrivateError, match="the one that began last"):
                samples.expect_step_of_fit(fit)
            assert not fit.step_is_due
            samples.expect_step_of_fit(later)
            assert isinstance(taken(samples), PoissonSampling)
        samples.expect_step_of_fit(fit)
        assert isinstance(taken(samples), FullBatchSampling)


def test_a_fit_begins_once():
    samples = SamplingOfSteps(PrivacyLedger())
    begins = []
    with samples.fitting(Shuffled(4, 12), drawn=True) as fit:
        for _ in range(2):
            samples.expect_step_of_fit(fit)
            with samples.step_of_fit():
                begins.append(samples.fit_begins)
            samples.expect_step_of_fit(fit)
            taken(samples)
    assert begins == [True, False]


def test_declared_samples_are_taken_in_turn_by_whoever_declared_them():
    samples = SamplingOfSteps(PrivacyLedger())
    with samples.fitting(FixedOrder(4, 12), drawn=False) as fit:
        samples.expect_step_of_fit(fit)
        first = taken(samples)
        samples.end_epoch(fit)
        samples.expect_step_of_fit(fit)
        assert (first.place, taken(samples).place) == ((0, 3), (1, 3))
