"""Samples that are drawn between the steps of `fit`: they are those of a data set."""

import contextlib
import tempfile
import weakref

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from keras.src.trainers import epoch_iterator
from toy import L

import tfdp
from tfdp.events import PoissonSampling, UnknownSampling
from tfdp.keras import EpsilonLogger, PrivacyBudget, distributed_data, small_samples
from tfdp.noise import SeededRandomSource
from tfdp.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedSize,
    FullBatch,
    Poisson,
    RandomAllocation,
    Shuffled,
    Source,
    TruncatedPoisson,
)

X, Y = toy.data(40)
IDS = np.arange(40) // 3
MAPPED = np.memmap(tempfile.TemporaryFile(), X.dtype, shape=X.shape)
MAPPED[:] = X
WEIGHTS = np.linspace(0.1, 2.0, 40).astype("float32")


def two_inputs(as_list=False):
    keras.utils.set_random_seed(3)
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    return keras.Model([a, b] if as_list else {"a": a, "b": b}, L.Dense(2)(L.Add()([a, b])))


def model_for(x):
    """Returns a model that takes such inputs."""
    return two_inputs(isinstance(x, list)) if isinstance(x, (dict, list)) else toy.linear()


def took_place(monkeypatch):
    """Returns a list that gets an item for each step on a sample that no data set held."""
    steps, run = [], small_samples.StepLoop.run

    def noted(self, traced, draw, count):
        steps.extend([self] * count)
        return run(self, traced, draw, count)

    monkeypatch.setattr(small_samples.StepLoop, "run", noted)
    return steps


def fitted(monkeypatch, most_bytes, data, fit, optimizer):
    """Returns (steps between which samples were drawn, weights, logs, events) of a `fit`."""
    # A data set draws ahead, so that its second epoch would begin with other draws.
    generators = map(np.random.default_rng, (5, 6))
    monkeypatch.setattr("tfdp.sampling.arrays.host_generator", lambda _: next(generators))
    monkeypatch.setattr(small_samples, "_MOST_BYTES", most_bytes)
    model = toy.private(model_for(data[0]), toy.dp(**optimizer), metrics=["accuracy"])
    with monkeypatch.context() as patch:
        steps = took_place(patch)
        logs = [model.fit(*data, verbose=0, **fit).history for _ in range(2)]
    return len(steps), toy.weights(model), logs, toy.events(model)


@pytest.mark.parametrize(
    ("data", "fit", "optimizer"),
    [
        ((X, Y), {}, {}),
        ((X, Y, 8), {"sample_weight": WEIGHTS}, {}),
        ((X, Y, 8), {"class_weight": {0: 0.5, 1: 2.0}}, {}),
        (({"a": X, "b": X[::-1]}, Y, 8), {}, {}),
        (([X, X[::-1].copy()], Y, 8), {}, {}),
        ((X, Y, 8), {"constant_batch_size": True}, {}),
        ((X, Y, 8), {"views": 2}, {}),
        ((X, Y, 8), {"validation_split": 0.2}, {}),
        ((X, Y, 8), {"steps_per_epoch": 3}, {}),
        ((X[::2], Y[::2], 8), {}, {}),
        ((X.astype(np.float64), Y.astype(np.uint8), 8), {}, {}),
        ((tf.constant(X), tf.constant(Y), 8), {}, {}),
        ((X, Y, 8), {}, {"num_microbatches": 4, "privacy_unit": "microbatch"}),
        ((X, Y, 8), {}, {"physical_batch_size": 3}),
        (
            (X, Y, 4),
            {"privacy_unit": IDS, "max_examples_per_user": 2},
            {"privacy_unit": "user"},
        ),
        *(
            ((X, Y, 8), {"sampling": policy}, {})
            for policy in (
                TruncatedPoisson(),
                RandomAllocation(),
                BallsInBins(),
                CyclicPoisson(num_groups=2),
                Shuffled(),
                FixedSize(),
            )
        ),
        ((X, Y), {"sampling": FullBatch()}, {}),
        *(
            (data, {"sampling": policy}, {})
            for data in ((MAPPED, Y, 8), (Source((MAPPED, Y)), None, 8))
            for policy in (Poisson(), BallsInBins(), CyclicPoisson(num_groups=2), Shuffled())
        ),
        ((Source((MAPPED, Y)), None, 8), {"epochs": 2}, {}),
        (
            (MAPPED, Y, 4),
            {"privacy_unit": IDS, "max_examples_per_user": 2},
            {"privacy_unit": "user"},
        ),
    ],
)
def test_steps_and_ledger_are_those_of_a_data_set(monkeypatch, data, fit, optimizer):
    drawn, *found = fitted(monkeypatch, 1 << 20, data, fit, optimizer)
    ahead, *expected = fitted(monkeypatch, 0, data, fit, optimizer)
    weights, logs, events = expected
    assert drawn == len(events) and ahead == 0
    for array, other in zip(found[0], weights, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-6)
    for of_epoch, of_other in zip(found[1], logs, strict=True):
        assert of_epoch.keys() == of_other.keys()
        for name, values in of_other.items():
            np.testing.assert_allclose(of_epoch[name], values, rtol=1e-5, atol=1e-6)
    # Every ledger has keys of its own for what is drawn from keys.
    assert [type(e.sampling) for e in found[2]] == [type(e.sampling) for e in events]


def small(**changes):
    options = {"compile": {}, "fit": {}, "x": X, "y": Y, "model": toy.linear}
    return {**options, **changes}


def mapped(folder):
    file = np.memmap(folder / "x", "float32", "w+", shape=X.shape)
    file[:] = X
    return file


def hdf5(folder, **options):
    with h5py.File(folder / "rows.h5", "w") as file:
        file.create_dataset("x", data=X, **options)
        file["y"] = Y
    file = h5py.File(folder / "rows.h5")
    return file["x"], file["y"]


@pytest.mark.parametrize(
    ("case", "is_drawn_between"),
    [
        (lambda folder: small(), True),
        (lambda folder: small(compile={"jit_compile": True}), True),
        (lambda folder: small(x=mapped(folder)), True),
        (lambda folder: small(x=np.asarray(mapped(folder))[:20], y=Y[:20]), True),
        (lambda folder: small(x=Source((X, Y)), y=None), True),
        (lambda folder: small(x=Source((mapped(folder), Y)), y=None), True),
        (lambda folder: small(x=Source(hdf5(folder, chunks=(7, 4))), y=None), True),
        (lambda folder: small(x=Source(hdf5(folder, compression="gzip")), y=None), False),
        (lambda folder: small(x=Source((X.tolist(), Y)), y=None), False),
        (lambda folder: small(x=Source((X, Y), map=lambda example: example), y=None), False),
        (lambda folder: small(compile={"run_eagerly": True}), False),
        (lambda folder: small(compile={"steps_per_execution": 2}), True),
    ],
    ids=[
        "arrays",
        "xla",
        "mapped",
        "part of mapped",
        "source",
        "mapped source",
        "hdf5 in pieces",
        "compressed hdf5",
        "list",
        "map",
        "eager",
        "several steps",
    ],
)
def test_only_small_samples_of_what_lies_in_memory_are_drawn_between_steps(
    monkeypatch, tmp_path, case, is_drawn_between
):
    steps, case = took_place(monkeypatch), case(tmp_path)
    model = toy.private(case["model"](), **case["compile"])
    model.fit(case["x"], case["y"], batch_size=8, verbose=0, **case["fit"])
    taken = model.ledger.total_count
    assert len(steps) == (taken if is_drawn_between else 0) and taken


def test_files_that_nobody_reads_ahead_get_a_data_set(monkeypatch, tmp_path):
    monkeypatch.setattr(small_samples, "can_ask", lambda: False)
    for x, is_drawn_between in ((X, True), (mapped(tmp_path), False)):
        with monkeypatch.context() as patch:
            steps = took_place(patch)
            toy.private(toy.linear()).fit(x, Y, batch_size=8, verbose=0)
        assert bool(steps) == is_drawn_between


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_strategy_gets_a_data_set(monkeypatch, at_once):
    steps = took_place(monkeypatch)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = toy.private(toy.linear(), steps_per_execution=at_once)
    model.fit(X, Y, batch_size=8, verbose=0)
    assert not steps and model.ledger.total_count == 5


def test_large_samples_are_drawn_ahead(monkeypatch):
    steps = took_place(monkeypatch)
    policy = Poisson().resolve(40, 8)
    bytes_of_row = X[:1].nbytes + Y[:1].nbytes
    monkeypatch.setattr(small_samples, "_MOST_BYTES", policy.padded_size * bytes_of_row - 1)
    model = toy.private(toy.linear())
    model.fit(X, Y, batch_size=8, verbose=0)
    assert not steps
    monkeypatch.setattr(small_samples, "_MOST_BYTES", policy.padded_size * bytes_of_row)
    model.fit(X, Y, batch_size=8, verbose=0)
    assert len(steps) == 5


def test_steps_are_traced_once(monkeypatch):
    traces = []

    def loss(y, y_pred):
        traces.append(y_pred)
        return keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)

    steps, model = took_place(monkeypatch), toy.private(toy.linear(), loss=loss)
    model.fit(X, Y, batch_size=8, verbose=0)
    first = len(traces)
    model.fit(X, Y, batch_size=8, epochs=3, verbose=0)
    assert len(traces) == first and len(set(steps)) == 1


class Own(keras.callbacks.Callback):
    """Trains on rows of its own before a step of `fit`."""

    def on_train_batch_begin(self, batch, logs=None):
        x = np.full([7, 4], 1000.0, "float32")
        self.model.train_function(iter([(tf.constant(x), tf.zeros([7], tf.int32))]))


def test_a_step_by_hand_during_fit_is_on_its_own_rows(monkeypatch):
    steps = took_place(monkeypatch)
    model, plain = toy.private(toy.linear()), toy.private(toy.linear())
    monkeypatch.setattr(Poisson, "draw", lambda *_: iter([np.array([], np.int64)] * 5))
    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Own()])
    assert [type(e.sampling) for e in toy.events(model)] == [UnknownSampling, PoissonSampling] * 5
    assert len(steps) == 5
    # The samples of fit are empty here, so that all weights are those of the steps by hand.
    for _ in range(5):
        plain.train_on_batch(np.full([7, 4], 1000.0, "float32"), np.zeros(7, "int32"))
    toy.assert_weights(model, toy.weights(plain))


def test_an_error_in_a_draw_is_raised_as_it_is_and_charges_nothing(monkeypatch):
    model = toy.private(toy.linear())
    before = toy.weights(model)

    def fails(*_):
        raise FloatingPointError("no draw")
        yield

    monkeypatch.setattr(Poisson, "draw", fails)
    with pytest.raises(FloatingPointError, match="no draw"):
        model.fit(X, Y, batch_size=8, verbose=0)
    assert model.ledger.total_count == 0
    toy.assert_weights(model, before)


def test_an_error_in_a_later_draw_leaves_the_steps_before_it(monkeypatch):
    def breaks_off(*_):
        yield from (np.arange(place, place + 3) for place in range(4))
        raise FloatingPointError("no draw")

    monkeypatch.setattr(small_samples, "_SECONDS_OF_CALL", 1e6)
    monkeypatch.setattr(Poisson, "draw", breaks_off)
    model, other = toy.private(toy.linear()), toy.private(toy.linear())
    with pytest.raises(FloatingPointError, match="no draw"):
        model.fit(X, Y, batch_size=8, verbose=0)
    other.fit(X, Y, batch_size=8, steps_per_epoch=4, verbose=0)
    assert model.ledger.total_count == 4
    toy.assert_weights(model, toy.weights(other))


def test_a_policy_that_ends_ends_the_epoch_as_a_data_set_does(monkeypatch):
    monkeypatch.setattr(small_samples, "_SECONDS_OF_CALL", 1e6)
    monkeypatch.setattr(Poisson, "draw", lambda *_: iter([np.arange(3)] * 4))
    model = toy.private(toy.linear())
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(X, Y, batch_size=8, verbose=0)
    assert model.ledger.total_count == 4


def samples_of(x, policy):
    return distributed_data.samples_of(x, None, None, policy)


def loop_of(step):
    return small_samples.StepLoop(tf.function(step), contextlib.nullcontext)


def test_tensors_of_a_sample_keep_what_they_hold():
    # Of 70 KB, so that the tensors take over memory that is used again.
    x = np.random.default_rng(0).normal(size=(4000, 30)).astype("float32")
    drawn = samples_of(x, FixedSize().resolve(4000, 600))
    loop, samples = loop_of(lambda batch: {"x": batch.x}), drawn.make()
    traced = loop.traced(drawn)
    kept = [loop.run(traced, samples.__next__, 1)["x"] for _ in range(20)]
    copies = [tensor.numpy().copy() for tensor in kept]
    assert not np.array_equal(copies[0], copies[1])
    for _ in range(20):
        loop.run(traced, samples.__next__, 1)
    for tensor, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(tensor, copy)


def test_another_epoch_draws_anew_and_the_same_goes_on():
    drawn = samples_of(np.arange(40), Shuffled().resolve(40, 8))
    samples = small_samples.SmallSamples(drawn, 7)
    loop = loop_of(lambda batch: tf.boolean_mask(batch.x, batch.mask))
    first, second = object(), object()
    seen = np.concatenate([samples.take_steps(loop, first) for _ in range(5)])
    assert sorted(seen) == list(range(40))  # A pass.
    half = [samples.take_steps(loop, first) for _ in range(2)]
    seen = np.concatenate([samples.take_steps(loop, second) for _ in range(5)])
    assert sorted(seen) == list(range(40)) and len(half) == 2  # A pass from its beginning.


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_loop_takes_its_steps_in_order_and_returns_what_the_last_one_does(count):
    drawn = samples_of(np.arange(8.0), FullBatch().resolve(8, 8))
    state, seen = tf.Variable(1.0), []

    def draw():
        seen.append(float(state))  # What the step before this one left.
        return (np.full(3, len(seen), "float64"), np.ones(3, bool))

    def step(batch):
        state.assign(2 * state + tf.cast(batch.x[0], tf.float32))
        return {
            "state": state.read_value(),
            "rows": batch.x,
            "none": None,
            "text": tf.strings.as_string(batch.x[0], precision=0),
            "ragged": tf.RaggedTensor.from_row_lengths(batch.x, [1, 2]),
        }

    loop = loop_of(step)
    found = loop.run(loop.traced(drawn), draw, count)
    states = [1.0]
    for number in range(1, count + 1):
        states.append(2 * states[-1] + number)
    assert seen == states[:-1] and float(found["state"]) == states[-1]
    np.testing.assert_array_equal(found["rows"], np.full(3, count))
    assert found["none"] is None and found["text"].numpy() == b"%d" % count
    assert found["ragged"].to_list() == [[count], [count, count]]


def test_a_loop_whose_model_is_gone_says_so(collect):
    drawn = samples_of(np.arange(8.0), FullBatch().resolve(8, 8))
    loop = loop_of(lambda batch: batch.x)
    traced = loop.traced(drawn)
    with pytest.raises(tf.errors.UnknownError, match="while `run` takes steps"):
        traced(tf.constant(1))
    del loop
    collect()
    with pytest.raises(tf.errors.UnknownError, match="The model of these steps is gone"):
        traced(tf.constant(1))


class Clock:
    """A clock, and steps that take so long each."""

    def __init__(self, seconds):
        self._seconds, self._now, self.counts = seconds, 0.0, []

    def perf_counter(self):
        return self._now

    def traced(self, samples):
        return None

    def run(self, traced, draw, count):
        self.counts.append(count)
        self._now += count * self._seconds
        return {"loss": tf.constant(float(sum(self.counts)))}


@pytest.mark.parametrize(
    ("seconds", "due", "most", "counts"),
    [
        (0.001, 1, 100, [1, 2, 4, 8, 16, 32, 37]),
        (0.0098, 1, 100, [1, 2, 4, *[5] * 18, 3]),
        (0.2, 1, 100, [1] * 100),
        (0.001, 1, 1, [1] * 100),
        (0.001, 3, 100, [3, 6, 12, 24, 48, 7]),
        (0.2, 3, 100, [3] * 33 + [1]),
        (0.001, 3, 3, [3] * 33 + [1]),
        (0.001, 200, 1, [100]),
    ],
)
def test_a_call_takes_steps_for_a_twentieth_of_a_second(monkeypatch, seconds, due, most, counts):
    clock = Clock(seconds)
    monkeypatch.setattr(small_samples, "time", clock)
    samples = small_samples.SmallSamples(
        samples_of(np.arange(40), Shuffled().resolve(40, 8)), steps=100
    )
    epoch, told = object(), 0
    while told < 100:
        logs = samples.take_steps(clock, epoch, due, min(most, 100 - told))
        told += min(due, 100 - told)
        assert sum(clock.counts) >= told and logs["loss"] == sum(clock.counts)
    assert clock.counts == counts


def test_steps_of_the_next_epoch_are_taken_when_it_begins():
    clock = Clock(1e-6)
    samples = small_samples.SmallSamples(
        samples_of(np.arange(40), Shuffled().resolve(40, 8)), steps=100
    )
    for number in range(1, 4):
        epoch = object()
        for _ in range(100):
            samples.take_steps(clock, epoch, 1, 10**6)
        assert sum(clock.counts) == 100 * number


class Looks(keras.callbacks.Callback):
    """Notes how many steps were charged when it is called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def look(self, *_, **__):
        self.seen.append(self.model.ledger.total_count)


def looks(hook):
    """Returns a callback that looks in one of the hooks of Keras."""
    return type("Hooked", (Looks,), {hook: Looks.look})()


def of_lambda():
    seen = Looks()
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=seen.look)
    callback.set_model = seen.set_model
    callback.seen = seen.seen
    return callback


class Bar(keras.callbacks.ProgbarLogger):
    """A progress bar of somebody's own."""

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)


class OwnBudget(PrivacyBudget):
    """A budget of somebody's own."""


class LooksLater(Looks):
    """Gets its hook when training begins."""

    def on_train_begin(self, logs=None):
        self.on_train_batch_end = self.look


BEFORE, AFTER = list(range(20)), list(range(1, 21))


@pytest.mark.parametrize(
    ("make", "seen"),
    [
        (lambda: looks("on_train_batch_begin"), BEFORE),
        (lambda: looks("on_batch_begin"), BEFORE),
        (lambda: looks("on_train_batch_end"), AFTER),
        (lambda: looks("on_batch_end"), AFTER),
        (of_lambda, AFTER),
        (LooksLater, AFTER),
    ],
    ids=["train_batch_begin", "batch_begin", "train_batch_end", "batch_end", "lambda", "later"],
)
@pytest.mark.parametrize("wrap", [lambda c: [c], lambda c: c, lambda c: [[c]]], ids="lon")
def test_who_looks_at_every_step_sees_every_step(monkeypatch, make, seen, wrap):
    monkeypatch.setattr(small_samples, "_SECONDS_OF_CALL", 1e6)
    callback, model = make(), toy.private(toy.linear())
    model.fit(X, Y, batch_size=8, steps_per_epoch=20, verbose=0, callbacks=wrap(callback))
    assert callback.seen == seen


ONE_BY_ONE, TOGETHER = [1] * 20, [1, 2, 4, 8, 5]


@pytest.mark.parametrize(
    ("make", "fit", "expected"),
    [
        (lambda folder: [], {}, TOGETHER),
        (lambda folder: None, {}, TOGETHER),
        (lambda folder: [], {"verbose": 1}, TOGETHER),
        (lambda folder: [], {"verbose": 2}, TOGETHER),
        (lambda folder: [EpsilonLogger(1e-5)], {}, TOGETHER),
        (lambda folder: [keras.callbacks.EarlyStopping("val_loss")], {}, TOGETHER),
        (lambda folder: [keras.callbacks.CSVLogger(folder / "logs")], {}, TOGETHER),
        (lambda folder: [keras.callbacks.BackupAndRestore(folder / "b")], {}, TOGETHER),
        (lambda folder: [keras.callbacks.ModelCheckpoint(folder / "a.keras")], {}, TOGETHER),
        (lambda folder: [looks("on_epoch_end")], {}, TOGETHER),
        (lambda folder: [looks("on_test_batch_end")], {}, TOGETHER),
        (lambda folder: [keras.callbacks.LambdaCallback()], {}, TOGETHER),
        (lambda folder: [Looks(), looks("on_train_batch_end")], {}, ONE_BY_ONE),
        (lambda folder: [Bar()], {}, ONE_BY_ONE),
        (lambda folder: [PrivacyBudget(1e9, 1e-5)], {}, TOGETHER),
        (lambda folder: [EpsilonLogger(1e-5, name="e"), PrivacyBudget(1e9, 1e-5)], {}, TOGETHER),
        (
            lambda folder: [PrivacyBudget(1e9, 1e-5)],
            {"sampling": Shuffled()},
            ONE_BY_ONE,
        ),
        (lambda folder: [OwnBudget(1e9, 1e-5)], {}, ONE_BY_ONE),
        (lambda folder: [keras.callbacks.TensorBoard(folder)], {}, ONE_BY_ONE),
        (
            lambda folder: [keras.callbacks.BackupAndRestore(folder / "b", save_freq=3)],
            {},
            ONE_BY_ONE,
        ),
        (
            lambda folder: [keras.callbacks.ModelCheckpoint(folder / "a.keras", save_freq=3)],
            {},
            ONE_BY_ONE,
        ),
        (
            lambda folder: keras.callbacks.CallbackList(
                [Looks()], add_history=True, steps=20, epochs=1
            ),
            {},
            ONE_BY_ONE,
        ),
    ],
)
def test_steps_that_nobody_looks_at_are_taken_together(monkeypatch, tmp_path, make, fit, expected):
    counts = toy.counts_of_calls(monkeypatch)
    model = toy.private(toy.linear(), toy.dp(stddev=1.0))
    callbacks = make(tmp_path)
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.set_model(model)
    fit = {"verbose": 0, "callbacks": callbacks, "validation_data": (X + 0, Y + 0), **fit}
    model.fit(X, Y, batch_size=8, steps_per_epoch=20, **fit)
    assert counts == expected and model.ledger.total_count == 20


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_epoch_end"])
def test_several_steps_of_an_execution_are_taken_in_one_call(monkeypatch, hook):
    counts, callback = toy.counts_of_calls(monkeypatch), looks(hook)
    model = toy.private(toy.linear(), steps_per_execution=3)
    model.fit(X, Y, batch_size=8, steps_per_epoch=20, verbose=0, callbacks=[callback])
    if hook == "on_epoch_end":
        assert counts == [3, 6, 11] and callback.seen == [20]
    else:
        assert counts == [3] * 6 + [2] and callback.seen == [3, 6, 9, 12, 15, 18, 20]


def test_epochs_end_where_keras_says_that_they_do(monkeypatch):
    counts, callback = toy.counts_of_calls(monkeypatch), looks("on_epoch_end")
    monkeypatch.setattr(epoch_iterator.config, "max_steps_per_epoch", lambda: 4)
    model = toy.private(toy.linear())
    with pytest.warns(UserWarning, match="steps_per_epoch"):
        model.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[callback])
    # Of 5 steps. Keras goes on in what it counts them by, and begins anew where that ends.
    assert counts == [1, 2, 1, 1, 2, 2] and callback.seen == [4, 5, 9]


def seeded():
    query = tfdp.GaussianAverageQuery(
        1.0, noise_multiplier=1.0, denominator=10, random_source=SeededRandomSource(3)
    )
    return tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.5), query)


class Counts(keras.callbacks.Callback):
    """Counts steps."""

    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end"])
def test_training_that_was_ended_takes_no_further_step(monkeypatch, hook):
    def end(self, epoch, logs=None):
        self.model.stop_training = epoch == 1

    counts = toy.counts_of_calls(monkeypatch)
    model, plain = toy.private(toy.linear()), toy.linear()
    plain.compile(keras.optimizers.SGD(0.5), toy.LOGITS_LOSS)
    fit = {"epochs": 3, "verbose": 0}
    stops = type("Stops", (keras.callbacks.Callback,), {hook: end})
    model.fit(X, Y, batch_size=8, callbacks=[stops()], **fit)
    plain.fit(X, Y, batch_size=8, callbacks=[stops(), counting := Counts()], **fit)
    # As many as Keras takes: one more where an epoch has begun.
    assert sum(counts) == model.ledger.total_count == counting.steps
    assert counting.steps == (6 if hook == "on_epoch_begin" else 10)


@pytest.mark.parametrize("epochs", [1, 3])
def test_steps_that_are_taken_together_are_those_that_are_taken_one_by_one(monkeypatch, epochs):
    found = []
    for seconds in (0, 1e6):
        monkeypatch.setattr(small_samples, "_SECONDS_OF_CALL", seconds)
        generator = np.random.default_rng(5)
        monkeypatch.setattr("tfdp.sampling.arrays.host_generator", lambda _, g=generator: g)
        model = toy.private(toy.linear(), seeded(), metrics=["accuracy"])
        logs = model.fit(X, Y, batch_size=8, epochs=epochs, steps_per_epoch=20, verbose=0).history
        found.append((toy.weights(model), logs, toy.events(model)))
    (weights, logs, events), (expected, other_logs, other_events) = found
    for array, other in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(array, other)
    assert logs == other_logs and events == other_events and len(events) == 20 * epochs


def test_a_guard_that_refuses_a_step_leaves_those_before_it(monkeypatch):
    class Refused(Exception):
        pass

    def guard(ledger, event):
        if ledger.total_count == 7:
            raise Refused("no more")

    monkeypatch.setattr(small_samples, "_SECONDS_OF_CALL", 1e6)
    monkeypatch.setattr(Poisson, "draw", lambda *_: (np.arange(n, n + 3) for n in range(30)))
    model, other = toy.private(toy.linear()), toy.private(toy.linear())
    model.optimizer.charging.add_guard(guard)
    with pytest.raises(Refused, match="no more"):
        model.fit(X, Y, batch_size=8, steps_per_epoch=20, verbose=0)
    other.fit(X, Y, batch_size=8, steps_per_epoch=7, verbose=0)
    assert model.ledger.total_count == 7
    toy.assert_weights(model, toy.weights(other))


def test_a_model_is_forgotten_with_its_loop(collect):
    model = toy.private(toy.linear())
    model.fit(X, Y, batch_size=8, steps_per_epoch=20, verbose=0)
    reference = weakref.ref(model)
    del model
    keras.backend.clear_session()
    collect()
    assert reference() is None


def test_a_model_holds_on_to_no_data_that_it_was_trained_on(collect):
    model = toy.private(toy.linear())
    for _ in range(2):
        x, y = X.copy(), Y.copy()
        references = [weakref.ref(x), weakref.ref(y)]
        model.fit(x, y, batch_size=8, verbose=0)
        del x, y
        collect()
        assert [reference() for reference in references] == [None, None]
