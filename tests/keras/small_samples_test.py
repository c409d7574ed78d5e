"""Samples that are drawn between the steps of `fit`: they are those of a data set."""

import tempfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import L

from tfdp.events import PoissonSampling, UnknownSampling
from tfdp.keras import distributed_data, small_samples
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
    steps, take_step = [], small_samples.SmallSamples.take_step

    def noted(self, step, epoch):
        steps.append(step)
        return take_step(self, step, epoch)

    monkeypatch.setattr(small_samples.SmallSamples, "take_step", noted)
    return steps


def fitted(monkeypatch, most_bytes, data, fit, optimizer):
    """Returns (steps between which samples were drawn, weights, logs, events) of a `fit`."""
    # A data set draws ahead, so that its second epoch would begin with other draws.
    generators = map(np.random.default_rng, (5, 6))
    monkeypatch.setattr("tfdp.sampling.arrays.host_generator", lambda: next(generators))
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
        (lambda folder: small(compile={"steps_per_execution": 2}), False),
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


def test_a_strategy_gets_a_data_set(monkeypatch):
    steps = took_place(monkeypatch)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        model = toy.private(toy.linear())
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


def test_tensors_of_a_sample_keep_what_they_hold(monkeypatch):
    # Of 70 KB, so that the tensors take over memory that is used again.
    monkeypatch.setattr(small_samples, "_WORTH_SHARING_BYTES", 0)
    rng = np.random.default_rng(0)
    arrays = (rng.normal(size=(4000, 30)).astype("float32"), None, None)
    policy = FixedSize().resolve(4000, 600)
    drawn = distributed_data.samples_of(*arrays, policy)
    kept, copies = [], []

    class Step:
        def get_concrete_function(self, spec):
            return lambda batch: (kept.append(batch.x), copies.append(batch.x.numpy().copy()))

    samples, step, epoch = small_samples.SmallSamples(drawn), Step(), object()
    for _ in range(20):
        samples.take_step(step, epoch)
    assert len(kept) == 20 and not np.array_equal(copies[0], copies[1])
    for tensor, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(tensor, copy)


def test_another_epoch_draws_anew_and_the_same_goes_on():
    policy = Shuffled().resolve(40, 8)
    drawn = distributed_data.samples_of(np.arange(40), None, None, policy)

    class Step:
        def get_concrete_function(self, spec):
            return lambda batch: batch.x.numpy()

    samples, step = small_samples.SmallSamples(drawn), Step()
    first, second = object(), object()
    seen = np.concatenate([samples.take_step(step, first) for _ in range(5)])
    assert sorted(seen) == list(range(40))  # A pass.
    half = [samples.take_step(step, first) for _ in range(2)]
    seen = np.concatenate([samples.take_step(step, second) for _ in range(5)])
    assert sorted(seen) == list(range(40)) and len(half) == 2  # A pass from its beginning.
