"""Rounds whose records are clients: arithmetic, ledger, what bad updates do, and what ends one."""

import json
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

import tfdp
from tests.federated import rounds as making
from tfdp.cli import main
from tfdp.events import (
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
)
from tfdp.federated import Server
from tfdp.keras import (
    EpsilonLogger,
    LedgerMismatchError,
    NotPrivateError,
    PrivacyBudget,
    PrivacyBudgetExceededError,
)
from tfdp.query import WeightedAverageQuery
from tfdp.sampling import FixedSize, FullBatch, Poisson, Shuffled

NAMES = making.NAMES
ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


def test_round_is_the_clipped_average_over_the_fixed_denominator():
    model = making.model(stddev=0.0)
    server = Server(model, NAMES, sampling=FullBatch())
    before = making.weights(model)
    updates = {name: making.update(i, scale=0.4 * i) for i, name in enumerate(NAMES)}
    del updates[NAMES[-1]]  # Does not answer.

    def answer(current):
        for name, update in updates.items():
            current.receive(name, update, token=current.token_of(name))

    server.train(answer, 1)
    total = [np.zeros(w.shape) for w in before]
    for update in updates.values():
        norm = np.sqrt(sum(np.sum(np.float64(part) ** 2) for part in update))
        factor = min(1.0, making.CLIP / norm) if norm else 1.0
        total = [t + factor * part for t, part in zip(total, update, strict=True)]
    # Six clients are expected, five answered: the sum is divided by six.
    making.assert_weights(model, [w + t / 6 for w, t in zip(before, total, strict=True)])


def test_the_ledger_holds_the_event_before_anybody_is_asked():
    model = making.model(stddev=1.0)
    server = Server(model, NAMES, cohort_size=3)
    seen = []

    def answer(current):
        seen.append([entry for entry in model.ledger])
        making.answer_all(current)

    server.train(answer, 2)
    assert [entries[-1].count for entries in seen] == [1, 2]
    (entry,) = model.ledger
    assert entry.event.sampling == PoissonSampling(0.5, 6)
    assert entry.event.event == GaussianSumEvent(making.CLIP, 1.0)
    assert entry.event.privacy_unit == "user"


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e15])
def test_one_client_moves_the_weights_by_at_most_the_clip_over_the_denominator(scale):
    model = making.model(stddev=0.0)
    before = making.weights(model)
    server = Server(model, NAMES, sampling=FullBatch())
    server.train(lambda current: current.receive(NAMES[0], making.update(0, scale)), 1)
    moved = np.sqrt(
        sum(np.sum((a - b) ** 2) for a, b in zip(making.weights(model), before, strict=True))
    )
    assert moved <= making.CLIP / 6 * (1 + 1e-5)


def test_weights_of_clients_are_bounded():
    model = making.model(
        query=WeightedAverageQuery(making.CLIP, stddev=0.0, denominator=6, max_weight=2.0)
    )
    before = making.weights(model)
    unit = making.update(0)
    server = Server(model, NAMES, sampling=FullBatch())
    weights = [0.5, 3.0, np.nan, "many", None, -1.0]

    def answer(current):
        for name, weight in zip(NAMES, weights, strict=True):
            current.receive(name, unit, weight=weight)

    server.train(answer, 1)
    expected = [w + (0.5 + 2.0) * u / 6 for w, u in zip(before, unit, strict=True)]
    making.assert_weights(model, expected)


@pytest.mark.parametrize("weight", [1e39, 1.7e308, 10**300])
def test_a_weight_beyond_float32_is_as_large_as_is_allowed(weight):
    model = making.model(
        query=WeightedAverageQuery(making.CLIP, stddev=0.0, denominator=6, max_weight=2.0)
    )
    before, unit = making.weights(model), making.update(0)
    server = Server(model, NAMES, sampling=FullBatch())
    server.train(lambda current: current.receive(NAMES[0], unit, weight=weight), 1)
    making.assert_weights(model, [w + 2.0 * u / 6 for w, u in zip(before, unit, strict=True)])


def test_a_round_is_released_once():
    model = making.model(stddev=1.0)
    server = Server(model, NAMES, sampling=FullBatch())
    with pytest.raises(NotPrivateError, match="No step is charged"):
        server._step.apply()
    server.train(making.answer_all, 1)
    with pytest.raises(NotPrivateError, match="No step is charged"):
        server._step.apply()
    with pytest.raises(NotPrivateError, match="No step is charged"):
        server._add(making.stacked(), None, None)


def test_round_that_is_left_is_charged_and_not_released():
    model = making.model(stddev=1.0)
    server = Server(model, NAMES, sampling=FullBatch())
    before = making.weights(model)

    def fails(current):
        making.answer_all(current)
        raise OSError("The network is down.")

    with pytest.raises(OSError, match="network"):
        server.train(fails, 3)
    assert model.ledger.total_count == 1
    making.assert_weights(model, before, tolerance=0)
    server.train(making.answer_all, 1)
    assert model.ledger.total_count == 2


def test_another_step_during_a_round_ends_it():
    model = making.model(stddev=1.0)
    server = Server(model, NAMES, sampling=FullBatch())

    def trains(current):
        making.answer_all(current)
        model.train_on_batch(np.zeros([2, 3], "float32"), np.zeros([2, 2], "float32"))

    with pytest.raises(NotPrivateError, match="Another step"):
        server.train(trains, 1)
    assert model.ledger.total_count == 2


class Begins(keras.callbacks.Callback):
    """Calls a function where training begins."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def on_train_begin(self, logs=None):
        self._function()


def _fit(model, callback):
    """Trains with a sampling that is worth more than that of the rounds."""
    x, y = np.zeros([600, 3], "float32"), np.zeros([600, 2], "float32")
    units = {"privacy_unit": np.arange(600), "max_examples_per_user": 1}
    model.fit(x, y, batch_size=6, steps_per_epoch=1, verbose=0, callbacks=[callback], **units)


def _rounds(model, callback):
    Server(model, range(600), cohort_size=6).train(making.answer_all, 1, callbacks=[callback])


@pytest.mark.parametrize("train", [_fit, _rounds])
def test_a_loop_is_refused_while_one_that_began_later_goes_on(train):
    """The round would be charged as a sample of the other one."""
    model = making.model(stddev=1.0)
    rounds = Server(model, NAMES, cohort_size=3).rounds(3)
    next(rounds)
    with pytest.raises(NotPrivateError, match="goes on"):
        train(model, Begins(lambda: next(rounds)))
    (entry,) = model.ledger
    assert (entry.event.sampling, entry.count) == (PoissonSampling(0.5, 6), 1)
    with pytest.raises(StopIteration):
        next(rounds)


def test_fit_is_refused_while_a_loop_that_a_callback_began_goes_on():
    model = making.model(stddev=1.0)
    rounds = Server(model, NAMES, sampling=FullBatch()).rounds(2)
    with pytest.raises(NotPrivateError, match="goes on"):
        _fit(model, Begins(lambda: next(rounds)))
    (entry,) = model.ledger
    assert (entry.event.sampling, entry.count) == (FullBatchSampling(6), 1)
    rounds.close()
    _fit(model, Begins(lambda: None))
    assert model.ledger.total_count == 2


def test_loops_may_end_in_any_order():
    model = making.model(stddev=1.0)
    one = Server(model, NAMES, cohort_size=3).rounds(2)
    other = Server(model, NAMES, sampling=FullBatch()).rounds(2, callbacks=[PrivacyBudget(9, 0.1)])
    next(one)
    next(other)
    one.close()
    assert len(model.optimizer.charging.guards) == 1
    next(other)
    other.close()
    assert [(entry.event.sampling, entry.count) for entry in model.ledger] == [
        (PoissonSampling(0.5, 6), 1),
        (FullBatchSampling(6), 2),
    ]
    assert not model.optimizer.charging.guards


def test_a_loop_that_nobody_holds_may_end_while_an_operation_is_made(monkeypatch):
    model = making.model(stddev=1.0)
    rounds = Server(model, NAMES, sampling=FullBatch()).rounds(3)
    making.answer_all(next(rounds))
    next(rounds)
    made = ops.Operation.from_node_def

    def made_after_collection(*args, **kwargs):
        rounds.close()  # As the garbage collector does, which runs anywhere.
        return made(*args, **kwargs)

    monkeypatch.setattr(ops.Operation, "from_node_def", staticmethod(made_after_collection))
    tracing = threading.Thread(
        target=tf.function(lambda: tf.constant(1) + 1).get_concrete_function, daemon=True
    )
    tracing.start()
    tracing.join(60)
    monkeypatch.undo()
    assert not tracing.is_alive()
    assert not rounds.gi_frame
    _fit(model, Begins(lambda: None))
    assert model.ledger.total_count == 3


def test_a_loop_begins_in_its_turn():
    """Else it could begin while a round of another thread is charged."""
    model = making.model(stddev=1.0)
    server = Server(model, NAMES, sampling=FullBatch())
    began = threading.Event()
    run = lambda: server.train(making.answer_all, 1, callbacks=[Begins(began.set)])  # noqa: E731
    thread = threading.Thread(target=run)
    with model.optimizer.charging.turn:
        thread.start()
        assert not began.wait(0.5)
    thread.join()
    assert began.is_set() and model.ledger.total_count == 1


def test_budget_is_refused_before_the_round():
    model = making.model(stddev=16.0)
    server = Server(model, NAMES, sampling=FullBatch())
    asked = []
    budget = PrivacyBudget(1.0, 1e-5, "rdp")

    def answer(current):
        asked.append(current.number)
        making.answer_all(current)

    history = server.train(answer, 50, callbacks=[budget])
    assert 1 <= len(asked) < 50
    assert len(asked) == model.ledger.total_count == len(history.history["epsilon"])
    assert history.history["epsilon"][-1] <= 1.0
    with pytest.raises(PrivacyBudgetExceededError):
        server.train(answer, 1, callbacks=[PrivacyBudget(1.0, 1e-5, "rdp")])
    assert len(asked) == model.ledger.total_count


def test_logs_hold_what_is_public():
    model = making.model(query=making.QUERIES["adaptive"](1.0), metrics=["mse"])
    server = Server(model, NAMES, sampling=FullBatch())
    public = np.zeros([4, 3], "float32"), np.zeros([4, 2], "float32")
    logger = EpsilonLogger(1e-2, "rdp")
    history = server.train(making.answer_all, 2, callbacks=[logger], validation_data=public).history
    assert {"epsilon", "val_loss", "val_mse"} < set(history)
    released = set(history) - {"epsilon", "val_loss", "val_mse"}
    state = model.optimizer.query.initial_global_state()
    assert released == set(model.optimizer.query.derive_metrics(state))


class _Batches(keras.utils.PyDataset):
    """Batches of three of these arrays."""

    def __init__(self, *arrays):
        super().__init__()
        self._arrays = arrays

    def __len__(self):
        return -(-len(self._arrays[0]) // 3)

    def __getitem__(self, index):
        return tuple(a[3 * index : 3 * index + 3] for a in self._arrays)


def _dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", [lambda *a: a, lambda *a: list(a), _dataset, _Batches])
def test_validation_data_have_the_forms_of_keras(form, weighted):
    model = making.model(stddev=0.0, metrics=["mse"])
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=[8, 3]).astype("float32"), rng.normal(size=[8, 2]).astype("float32")
    weights = rng.uniform(size=8).astype("float32") if weighted else None
    found, expected = [], []

    class Sees(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found.append((logs["val_loss"], logs["val_mse"]))
            values = making.plain()
            values.compile(loss="mse", metrics=["mse"])
            values.set_weights(making.weights(model))
            expected.append(values.evaluate(x, y, sample_weight=weights, verbose=0))

    server = Server(model, NAMES, sampling=FullBatch())
    data = form(x, y, weights) if weighted else form(x, y)
    server.train(making.answer_all, 2, validation_data=data, callbacks=[Sees()])
    assert len(found) == 2 and found[0] != found[1]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("callback", "error"),
    [(keras.callbacks.EarlyStopping("loss"), NotPrivateError), (print, TypeError)],
    ids=["stops by a raw loss", "none"],
)
def test_callbacks_that_fit_refuses_are_refused_before_a_round(callback, error):
    server = Server(making.model(), NAMES, sampling=FullBatch())
    with pytest.raises(error, match="EarlyStopping|keras.callbacks.Callback"):
        server.train(making.answer_all, 1, callbacks=[callback])
    assert server.model.ledger.total_count == 0


def test_callbacks_see_rounds_as_epochs_of_one_batch(capfd):
    called = []

    class Sees(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            called.append(self.params)

        def on_epoch_begin(self, epoch, logs=None):
            called.append(epoch)

        def on_train_batch_end(self, batch, logs=None):
            called.append(("batch", batch))

    public = np.zeros([4, 3], "float32"), np.zeros([4, 2], "float32")
    server = Server(making.model(), NAMES, sampling=FullBatch())
    server.train(making.answer_all, 2, callbacks=[Sees()], validation_data=public)
    params = {"verbose": 0, "epochs": 2, "steps": 1}
    assert called == [params, 0, ("batch", 0), 1, ("batch", 0)]
    assert "val_loss" in server.model.history.history
    assert "step" not in capfd.readouterr().out  # Neither rounds nor validation show a bar.
    server.train(making.answer_all, 2, verbose=1)
    assert "Epoch 2/2" in capfd.readouterr().out


def test_a_denominator_that_is_far_off_is_logged_where_the_population_is_public(caplog):
    def begun(**arguments):
        caplog.clear()
        query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=60)
        Server(making.model(query=query), NAMES, **arguments)
        return any("divides by denominator=60" in message for message in caplog.messages)

    assert begun(sampling=FullBatch())
    # It says how many clients are expected, which here is as secret as their data.
    assert not begun(sampling=Poisson(0.5, neighboring_relation=ADD))


def test_what_a_durable_ledger_reserved_is_given_back_after_the_rounds(tmp_path):
    path = tmp_path / "ledger.db"
    with tfdp.PrivacyLedger.open(path, create=True, lease=50) as ledger:
        model = making.model(ledger=ledger)
        Server(model, NAMES, sampling=FullBatch()).train(making.answer_all, 2)
        assert tfdp.PrivacyLedger.load(path).total_count == 2


def test_validation_data_that_mean_nothing_are_refused_before_a_round():
    server = Server(making.model(), NAMES, sampling=FullBatch())
    with pytest.raises(ValueError, match="4 parts"):
        server.train(making.answer_all, 1, validation_data=(np.zeros([4, 3]),) * 4)
    assert server.model.ledger.total_count == 0


@pytest.mark.parametrize("form", ["generator", "iterator"])
def test_validation_data_that_end_once_and_for_all_are_refused_before_a_round(form):
    public = np.zeros([4, 3], "float32"), np.zeros([4, 2], "float32")
    data = (batch for batch in [public]) if form == "generator" else iter(_dataset(*public))
    server = Server(making.model(), NAMES, sampling=FullBatch())
    with pytest.raises(TypeError, match="after every round"):
        server.train(making.answer_all, 2, validation_data=data)
    assert server.model.ledger.total_count == 0


def test_rounds_are_replayed_and_reported_as_every_ledger(tmp_path, capsys):
    path = tmp_path / "rounds.ledger"
    model = making.model(stddev=3.0, ledger=tfdp.PrivacyLedger.open(path, create=True))
    Server(model, NAMES, cohort_size=3).train(making.answer_all, 2)
    epsilon = model.ledger.epsilon(1e-5, "rdp")
    model.ledger.close()
    arguments = [str(path), "--delta", "1e-5", "--accountant", "rdp"]
    assert main(["replay", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"]["rdp"] == pytest.approx(epsilon)
    assert main(["report", *arguments, "--out", str(tmp_path / "report.md")]) == 0
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "user" in report and f"{epsilon:.2f}" in report


def test_a_pass_that_was_left_is_not_gone_on_with(tmp_path):
    """Every loop over rounds draws a new permutation, in which earlier clients may come again."""
    model = making.model(stddev=3.0)
    passes = []
    for number in (1, 1, 2, 4):
        passes.append(set())
        server = Server(model, NAMES, cohort_size=2, sampling=Shuffled())
        for _ in server.rounds(number):
            passes[-1].add([entry for entry in model.ledger][-1].event.sampling.pass_index)
    assert passes == [{0}, {1}, {2}, {3, 4}]
    weights = tmp_path / "server.weights.h5"
    model.save_weights(weights)
    again = making.model(stddev=3.0)
    again.load_weights(weights)
    Server(again, NAMES, cohort_size=2, sampling=Shuffled()).train(making.answer_all, 1)
    assert [entry.event.sampling.pass_index for entry in again.ledger] == [0, 1, 2, 3, 4, 5]


def test_weights_that_rounds_trained_continue_their_ledger(tmp_path):
    model = making.model(stddev=1.0)
    Server(model, NAMES, sampling=FullBatch()).train(making.answer_all, 2)
    path = tmp_path / "server.weights.h5"
    model.save_weights(path)
    other = making.model(stddev=1.0)
    other.load_weights(path)
    assert other.ledger.total_count == 2
    Server(other, NAMES, sampling=FullBatch()).train(making.answer_all, 1)
    assert other.ledger.total_count == 3
    with pytest.raises(LedgerMismatchError):
        model.optimizer.ledger = tfdp.PrivacyLedger()
        Server(model, NAMES, sampling=FullBatch()).train(making.answer_all, 1)


def test_state_of_the_query_goes_on_from_round_to_round():
    model = making.model(query=making.QUERIES["correlated"](1.0))
    size = making.cohort_size_of("correlated")
    for _ in range(2):  # Two servers, as after a restart.
        server = Server(model, NAMES, sampling=making.sampling_of("correlated"), cohort_size=size)
        cohorts = []
        server.train(lambda current, met=cohorts: met.append(current.cohort), 3)
        assert len({frozenset(cohort) for cohort in cohorts}) == 3
    events = [entry.event for entry in model.ledger]
    assert [event.event.position for event in events] == list(range(6))
    assert [event.sampling.batch_index for event in events] == [0, 1, 2] * 2
    assert len({event.event.run_id for event in events}) == 1


def test_optimizers_at_the_server_get_minus_the_average():
    for inner in (keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.5, momentum=0.9)):
        model = making.model(stddev=0.0, inner=inner)
        twin = type(inner).from_config(inner.get_config())
        values = [tf.Variable(w) for w in making.weights(model)]
        unit = making.update(0)
        Server(model, NAMES, sampling=FullBatch()).train(
            lambda current, unit=unit: current.receive(NAMES[0], unit), 2
        )
        for _ in range(2):
            twin.apply([tf.constant(-u / 6) for u in unit], values)
        making.assert_weights(model, [value.numpy() for value in values])


def _with_private_normalization():
    layers = [keras.layers.BatchNormalization(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model = tfdp.keras.make_private(model, batch_norm="private")
    query = tfdp.GaussianAverageQuery(making.CLIP, stddev=1.0, denominator=6)
    optimizer = tfdp.keras.DPOptimizer(
        keras.optimizers.SGD(1.0), query, privacy_unit="user", batch_norm_noise_multiplier=5.0
    )
    model.compile(optimizer, loss="mse")
    return model


def test_private_batch_normalization_is_refused():
    """No client sends the moments that its steps would release."""
    with pytest.raises(ValueError, match="batch_norm_noise_multiplier=5.0"):
        Server(_with_private_normalization(), NAMES, sampling=FullBatch())


def _in_half_precision():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype="float16")])
    model = tfdp.keras.make_private(model)
    query = tfdp.GaussianAverageQuery(making.CLIP, stddev=1.0, denominator=6)
    model.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, privacy_unit="user"))
    return model


def test_a_layer_that_is_frozen_later_is_refused_before_the_next_round():
    """Updates of the weights that are sent would have another form than is taken."""
    model = making.model(stddev=0.0)
    server = Server(model, NAMES, sampling=FullBatch())

    def answer(current):
        making.answer_all(current)
        model.layers[0].trainable = False

    with pytest.raises(ValueError, match="make a new Server"):
        server.train(answer, 3)
    assert model.ledger.total_count == 1
    with pytest.raises(ValueError, match="make a new Server"):
        server.train(answer, 1)
    assert model.ledger.total_count == 1


REFUSED = {
    "half_precision": (
        lambda: Server(_in_half_precision(), NAMES, sampling=FullBatch()),
        TypeError,
    ),
    "not_private": (lambda: Server(making.plain(), NAMES, cohort_size=3), TypeError),
    "unit": (lambda: Server(making.model(unit="example"), NAMES, cohort_size=3), ValueError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    make, error = REFUSED[name]
    with pytest.raises(error):
        make()


@pytest.mark.parametrize("private", [False, True])
def test_a_model_that_is_not_private_or_not_compiled_is_refused(private):
    model = tfdp.keras.make_private(making.plain()) if private else making.plain()
    if not private:
        model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="model must be a private model that is compiled"):
        Server(model, NAMES, sampling=FullBatch())


def test_a_model_that_is_not_built_is_refused():
    model = tfdp.keras.make_private(keras.Sequential([keras.layers.Dense(2)]))
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=6)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, privacy_unit="user")
    model.compile(optimizer, loss="mse")
    with pytest.raises(ValueError, match="must be built: give it an Input"):
        Server(model, NAMES, sampling=FullBatch())


def test_round_that_a_kill_interrupts_is_charged_and_never_released(tmp_path):
    path = tmp_path / "ledger.sqlite"
    run = subprocess.run(
        [sys.executable, "-m", "tests.federated.rounds", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == -9, run.stderr
    assert "asked 2" in run.stdout
    assert "released 2" not in run.stdout
    ledger = tfdp.PrivacyLedger.load(path)
    assert ledger.total_count >= 2
    model = making.model(stddev=1.0, ledger=tfdp.PrivacyLedger.open(path))
    server = Server(model, NAMES, sampling=FullBatch())
    with pytest.raises(NotPrivateError, match="No step is charged"):
        server._step.apply()
    before = model.ledger.total_count
    server.train(making.answer_all, 1)
    assert model.ledger.total_count == before + 1
    model.ledger.close()


@pytest.mark.parametrize("size", [2, 3, 5, 43, 44, 1000, 1001])
def test_share_of_a_cohort_does_not_tell_how_many_clients_there_are(size):
    """0.1 * 3 / 3 is not 0.1."""
    policy = Poisson(0.1, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    server = Server(making.model(), range(size), sampling=policy, controls=True)
    assert server._share == 0.1
    assert len(server.clients) == server.policy.population_size == size


def test_control_variates_are_in_the_clipped_record():
    """SCAFFOLD: what is released of the controls is a part of the record, clipped with the rest."""
    model = making.model(stddev=0.0)
    server = Server(model, NAMES, cohort_size=3, sampling=FixedSize(), controls=True)
    before = making.weights(model)
    update, controls = making.update(0, 0.6), making.update(1, 2.0)
    length = np.sqrt(0.6**2 + 2.0**2)
    asked = []

    def answer(current):
        asked.append(current)
        for client in current.cohort:
            current.receive(client, [*update, *controls] if client == current.cohort[0] else update)

    server.train(answer, 1)
    factor = making.CLIP / length / 6
    making.assert_weights(model, [w + factor * u for w, u in zip(before, update, strict=True)])
    # Half of the clients are in a cohort, so controls of all move by half of the average.
    making.assert_close(server.controls, [0.5 * factor * c for c in controls])
    assert all(not np.any(control) for control in asked[0].controls)
