"""`fit` on a source trains, charges and refuses as on the same arrays."""

import contextlib

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp.keras import distributed_data
from tfdp.keras.errors import NotPrivateError
from tfdp.sampling import (
    FixedSize,
    FullBatch,
    Poisson,
    RandomAllocation,
    Shuffled,
    Source,
    TruncatedPoisson,
)

X, Y, N = toy.X, toy.Y, toy.N


def hdf5(folder):
    file = h5py.File(folder / "data.h5", "w")
    return file.create_dataset("x", data=X), file.create_dataset("y", data=Y)


@pytest.mark.parametrize(
    "policy",
    [
        None,
        Poisson(),
        TruncatedPoisson(),
        RandomAllocation(),
        Shuffled(),
        FixedSize(),
        FullBatch(),
    ],
    ids=lambda p: type(p).__name__,
)
def test_ledger_is_that_of_arrays(policy, tmp_path):
    ledgers = []
    for data in (
        (Source(hdf5(tmp_path), batch_size=4),),
        (X, Y, None if isinstance(policy, FullBatch) else 4),
    ):
        model = toy.private(toy.linear(), optimizer=toy.dp(stddev=1.0))
        if isinstance(policy, FullBatch) and isinstance(data[0], Source):
            data = (Source(hdf5_again(tmp_path)),)
        model.fit(*data, sampling=policy, epochs=2, verbose=0)
        ledgers.append(toy.events(model))
    assert ledgers[0] == ledgers[1] and ledgers[0]


def hdf5_again(folder):
    file = h5py.File(folder / "again.h5", "w")
    return file.create_dataset("x", data=X), file.create_dataset("y", data=Y)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("constant", [True, False])
def test_a_step_is_that_of_arrays(workers, constant):
    source = Source((X.astype(np.float64), Y), map=lambda e: e, workers=workers)
    found, wanted = (
        toy.fit_step(toy_model, *data, constant_batch_size=constant) and toy.weights(toy_model)
        for toy_model, data in (
            (toy.private(), (source, None)),
            (toy.private(), (X.astype(np.float64), Y)),
        )
    )
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_users_of_a_source():
    ids = np.arange(N) % 5
    models = []
    for data in ((Source((X, Y)), None), (X, Y)):
        model = toy.private(toy.linear(), optimizer=toy.dp(privacy_unit="user"))
        toy.fit_step(model, *data, privacy_unit=ids, max_examples_per_user=3)
        models.append(model)
    # Users of at most three rows: all of them take part.
    toy.assert_weights(models[0], toy.weights(models[1]))
    assert toy.events(models[0]) == toy.events(models[1])
    with pytest.raises(ValueError, match="one id for each row"):
        model.fit(Source((X, Y)), privacy_unit=ids[1:], max_examples_per_user=3, verbose=0)


def test_a_broken_example_ends_training_and_no_step_is_uncharged():
    examples = [(x, y) for x, y in zip(X, Y, strict=True)]
    examples[N - 1] = (X[0, :2], Y[0])
    source = Source(examples)
    steps = []

    class Counts(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps.append(batch)

    model = toy.private(toy.linear(), optimizer=toy.dp(stddev=1.0))
    with pytest.raises(tfdp.sampling.SourceError, match="differs in shape or dtype from the first"):
        model.fit(
            source, sampling=Shuffled(), batch_size=1, epochs=2, callbacks=[Counts()], verbose=0
        )
    assert len(steps) < N and model.ledger.total_count >= len(steps)
    with pytest.raises(tfdp.sampling.SourceError, match="Example 11"):
        source.check()


class Unreadable(Exception):
    """An error of a source of one's own."""


class OftenReadable:
    """Examples the last of which cannot be read from the third time on."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return N

    def __getitem__(self, row):
        self.reads += row == N - 1
        if row == N - 1 and self.reads > 2:
            raise Unreadable("lost")
        return X[row], Y[row]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("in_scope", [False, True])
def test_what_a_source_raises_is_raised_by_fit(workers, in_scope):
    mirrored = tf.distribute.MirroredStrategy(["CPU:0"]) if in_scope else None
    with mirrored.scope() if mirrored else contextlib.nullcontext():
        model = toy.private(toy.linear(), optimizer=toy.dp(stddev=1.0))
    source = Source(OftenReadable(), workers=workers)
    with pytest.raises(Unreadable, match="^lost$") as caught:
        model.fit(source, sampling=Shuffled(), batch_size=4, epochs=9, verbose=0)
    assert isinstance(caught.value.__cause__, tf.errors.OpError)
    before = model.ledger.total_count
    model.fit(X, Y, sampling=Shuffled(), batch_size=4, verbose=0)
    assert model.ledger.total_count > before


def test_an_error_of_the_step_is_no_error_of_the_source():
    raised = distributed_data.Raised()
    of_step = tf.errors.AbortedError(None, None, "of the step")
    with pytest.raises(tf.errors.AbortedError), raised.in_place_of(tf.errors.OpError):
        raise of_step
    with pytest.raises(KeyError), raised:
        raise KeyError("of a draw")
    with pytest.raises(OSError), raised.in_place_of(tf.errors.OpError):
        raise OSError("of neither")
    with pytest.raises(KeyError, match="of a draw"), raised.in_place_of(tf.errors.OpError):
        raise of_step
    with pytest.raises(tf.errors.AbortedError), raised.in_place_of(tf.errors.OpError):
        raise of_step


def test_training_goes_on_from_a_checkpoint(tmp_path):
    model = toy.private(toy.linear(), optimizer=toy.dp(stddev=1.0))
    model.fit(Source((X, Y)), batch_size=4, verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    other = toy.private(toy.linear(), optimizer=toy.dp(stddev=1.0))
    other.load_weights(tmp_path / "model.weights.h5")
    other.fit(Source((X, Y)), batch_size=4, verbose=0)
    assert other.ledger.total_count == 2 * model.ledger.total_count == 6


def test_replicas_share_a_sample():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = toy.private()
    toy.fit_step(model, Source((X, Y)), None)
    alone = toy.private()
    toy.fit_step(alone, X, Y)
    toy.assert_weights(model, toy.weights(alone))


def test_processes_read_their_own_parts():
    source = Source((X, Y), map=lambda example: example)
    policy = Poisson().resolve(N, 4)
    parts = [distributed_data._part((source, None, None), policy, i, 3) for i in range(3)]
    rows = [part[0].read(np.arange(len(part[0]))) for part, _ in parts]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in rows]), X)
    of_arrays = [distributed_data._part((X, Y, None), policy, i, 3)[1] for i in range(3)]
    assert [part for _, part in parts] == of_arrays
    with pytest.raises(NotPrivateError, match="one by one"):
        distributed_data._part((source, None, None), Shuffled().resolve(N, 4), 0, 3)
    # Whether processes were given the same data is seen as for arrays, and of the same rows.
    digest = distributed_data._digest((source, None, None))
    assert digest == distributed_data._digest((X, Y, None))
    assert digest != distributed_data._digest((Source((X[::-1], Y)), None, None))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"y": Y}, ValueError, "Received: y"),
        ({"sample_weight": np.ones(N)}, ValueError, "Received: sample_weight"),
        ({"class_weight": {0: 2.0}}, ValueError, "Received: class_weight"),
        ({"validation_split": 0.5}, ValueError, "Received: validation_split"),
        ({"validation_data": Source((X, Y))}, TypeError, "no Source"),
        ({"batch_size": 5}, ValueError, "different batch sizes"),
    ],
)
def test_what_does_not_go_with_a_source_is_refused(arguments, error, message):
    model = toy.private(toy.linear())
    with pytest.raises(error, match=message):
        model.fit(Source((X, Y), batch_size=4), verbose=0, **arguments)
    assert model.ledger.total_count == 0
