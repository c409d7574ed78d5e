"""EpsilonLogger puts the epsilon of the ledger where Keras shows its logs."""

import csv
import functools
import math
import re

import dp_accounting
import keras
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp.accounting import RDPAccountant
from tfdp.keras import EpsilonLogger, NotPrivateError, PrivacyBudget

X, Y = toy.data(40)
DELTA = 1e-3
ORDERS = [1.5, 2, 3, 4, 6, 8, 16]
STEPS = 5  # 40 examples, 8 a step.

QuickAccountant = functools.partial(RDPAccountant, ORDERS)


def private(stddev=2 * toy.CLIP, **kwargs):
    return toy.private(toy.linear(), toy.dp(stddev=stddev), **kwargs)


def logger(**kwargs):
    return EpsilonLogger(DELTA, QuickAccountant, **kwargs)


def fit(model, callbacks, epochs=3, **kwargs):
    arguments = {"batch_size": 8, "epochs": epochs, "verbose": 0, "callbacks": callbacks, **kwargs}
    return model.fit(X, Y, **arguments)


def epsilon_after(model, steps):
    """Returns the epsilon of so many steps like the one that the model's ledger holds."""
    (entry,) = model.ledger
    return QuickAccountant().compose(entry.event, steps).get_epsilon(DELTA)


def expected(model, epochs=3):
    return [epsilon_after(model, STEPS * epoch) for epoch in range(1, epochs + 1)]


def test_history_holds_the_epsilon_of_every_epoch():
    model = private()
    history = fit(model, [logger()])
    assert history.history["epsilon"] == expected(model)
    assert history.history["epsilon"] == sorted(set(history.history["epsilon"]))


def in_order(callback, writer, last):
    return [writer, callback] if last else [callback, [writer]]


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_csv_holds_it_wherever_the_logger_stands(tmp_path, last):
    model = private()
    fit(model, in_order(logger(), keras.callbacks.CSVLogger(tmp_path / "log.csv"), last))
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["epsilon"]) for row in rows] == expected(model)


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_tensorboard_holds_it_wherever_the_logger_stands(tmp_path, last):
    pytest.importorskip("tensorboard", reason="Keras' TensorBoard callback needs tensorboard.")
    model = private()
    fit(model, in_order(logger(), keras.callbacks.TensorBoard(tmp_path, write_graph=False), last))
    (path,) = (tmp_path / "train").glob("events*")
    found = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        for value in tf.compat.v1.Event.FromString(record).summary.value:
            if value.tag == "epoch_epsilon":
                found.append(float(tf.make_ndarray(value.tensor)))
    assert found == pytest.approx(expected(model), rel=1e-6)  # TensorBoard keeps float32.


def test_progress_bar_shows_it(capsys):
    model = private()
    fit(model, [logger()], verbose=2)
    shown = re.findall(r"epsilon: ([0-9.]+)", capsys.readouterr().out)
    assert [float(text) for text in shown] == pytest.approx(expected(model), abs=1e-3)


def test_list_of_callbacks_that_keras_made():
    model = private()
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs["epsilon"])
    )
    callbacks = keras.callbacks.CallbackList([note, logger()], add_history=True, model=model)
    callbacks.set_params({"verbose": 0, "epochs": 3, "steps": STEPS})
    fit(model, callbacks)
    assert seen == expected(model)


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self):
        self.now = 1000.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("tfdp.keras.callbacks.time", clock)
    return clock


def slow_accountant(clock, seconds):
    """Returns a class of accountants that take so long for each epsilon."""

    class Slow(RDPAccountant):
        total = 0.0

        def get_epsilon(self, target_delta):
            clock.now += seconds
            Slow.total += seconds
            return super().get_epsilon(target_delta)

    return Slow


@pytest.mark.parametrize("execution", [1, 2])
def test_within_an_epoch_steps_hold_the_epsilon_of_their_time(clock, execution):
    model, seen = private(steps_per_execution=execution), []

    def note(batch, logs):
        seen.append((logs.get("epsilon"), model.ledger.total_count))

    def pass_time(batch, logs=None):
        clock.now += 1.0

    others = [
        keras.callbacks.LambdaCallback(on_train_batch_begin=pass_time),
        keras.callbacks.LambdaCallback(on_train_batch_end=note),
    ]
    history = fit(model, [*others, logger()], epochs=2)
    # An epsilon takes no time here, so each step has one.
    assert len(seen) == 2 * -(-STEPS // execution)
    assert all(epsilon == epsilon_after(model, total) for epsilon, total in seen)
    assert history.history["epsilon"] == expected(model, 2)


@pytest.mark.parametrize("seconds", [0.001, 0.03, 1.0])
def test_within_an_epoch_it_takes_half_a_percent_of_the_time_at_most(clock, seconds):
    accountant = slow_accountant(clock, seconds)
    callback = EpsilonLogger(DELTA, accountant)
    callback.set_model(private())
    start, found = clock.now, 0
    callback.on_train_begin()
    for step in range(4000):
        clock.now += 0.1
        logs = {}
        callback.on_train_batch_end(step, logs)
        found += len(logs)
    # The first one comes after a second, whatever it takes.
    assert accountant.total - seconds <= 0.005 * (clock.now - start)
    # And it is not less often than that allows: every 200 times its own time, or every step.
    period = max(0.1, 200 * seconds)
    assert found >= 0.9 * (clock.now - start) / (period + 0.1)


def test_only_epochs_if_so_asked(clock):
    seen = []

    def note(batch, logs):
        clock.now += 1000.0
        seen.append(logs)

    others = [keras.callbacks.LambdaCallback(on_train_batch_end=note)]
    history = fit(private(), [*others, logger(within_epochs=False)])
    assert not any("epsilon" in logs for logs in seen)
    assert len(history.history["epsilon"]) == 3


def test_ledger_of_an_earlier_run_counts():
    model = private()
    fit(model, [logger()], epochs=1)
    callback = logger()
    assert fit(model, [callback], epochs=1).history["epsilon"] == [epsilon_after(model, 2 * STEPS)]
    other = private()  # The same callback, another ledger.
    assert fit(other, [callback], epochs=1).history["epsilon"] == expected(other, 1)


def test_no_noise_is_infinite():
    assert fit(private(stddev=0.0), [logger()], epochs=1).history["epsilon"] == [math.inf]


def test_beside_a_budget_it_needs_a_name_of_its_own():
    model = private()
    budget = PrivacyBudget(1e6, DELTA, QuickAccountant)
    with pytest.raises(ValueError, match="same key"):
        fit(model, [budget, logger()])
    assert model.ledger.total_count == 0
    history = fit(model, [budget, EpsilonLogger(1e-6, QuickAccountant, name="at 1e-6")])
    assert history.history["epsilon"] == expected(model)
    pairs = zip(history.history["epsilon"], history.history["at 1e-6"], strict=True)
    assert all(epsilon < larger for epsilon, larger in pairs)


def test_metric_of_the_same_name_is_refused_before_training():
    model = private(metrics=[keras.metrics.SparseCategoricalAccuracy(name="epsilon")])
    with pytest.raises(ValueError, match="metric 'epsilon'"):
        fit(model, [logger()])
    assert model.ledger.total_count == 0


def test_metrics_that_were_never_computed_are_not_asked_for():
    """In a loop of one's own training begins before the first step, and so before any metric."""
    callback, logs = logger(), {}
    callback.set_model(private(metrics=["accuracy"]))
    callback.on_train_begin()
    callback.on_epoch_end(0, logs)
    assert logs == {"epsilon": 0.0}


def test_key_that_another_callback_wrote_is_not_overwritten():
    callback = logger()
    callback.set_model(private())
    with pytest.raises(ValueError, match="Another callback wrote 'epsilon'"):
        callback.on_epoch_end(0, {"epsilon": 1.0})
    callback.on_epoch_end(0, None)


def test_refusal_comes_before_the_first_step():
    model = private()
    model.ledger = tfdp.PrivacyLedger()
    model.ledger.append(
        tfdp.SampledEvent(
            tfdp.events.FullBatchSampling(),
            tfdp.GaussianSumEvent(1.0, 1.0),
            privacy_unit="user",
        )
    )
    with pytest.raises(tfdp.UnsupportedEventError, match="no common epsilon"):
        fit(model, [logger()])
    assert model.ledger.total_count == 1


def test_accountant_of_dp_accounting():
    def theirs():
        return dp_accounting.rdp.RdpAccountant(ORDERS)

    model = private()
    history = fit(model, [EpsilonLogger(DELTA, theirs)])
    assert history.history["epsilon"][-1] == model.ledger.replay(theirs()).get_epsilon(DELTA)


def test_model_that_is_not_private_is_an_error():
    model = toy.linear()
    model.compile("sgd", loss=toy.LOGITS_LOSS)
    with pytest.raises(NotPrivateError, match="EpsilonLogger needs"):
        model.fit(X, Y, verbose=0, callbacks=[logger()])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"target_delta": 0.0}, ValueError),
        ({"target_delta": 1}, ValueError),
        ({"target_delta": "small"}, TypeError),
        ({"accountant": 3}, TypeError),
        ({"within_epochs": 1}, TypeError),
        ({"name": ""}, TypeError),
        ({"name": 3}, TypeError),
    ],
    ids=["zero", "one", "text", "instance", "count", "empty", "number"],
)
def test_bad_argument_is_named(arguments, error):
    (name,) = arguments
    with pytest.raises(error, match=name):
        EpsilonLogger(**{"target_delta": DELTA, **arguments})


@pytest.mark.parametrize("make", [logger, lambda: PrivacyBudget(1e6, DELTA, QuickAccountant)])
def test_callbacks_may_act_on_the_epsilon(make):
    model = private()
    # Epsilon never falls: training stops when it has not done so for two epochs.
    stops = keras.callbacks.EarlyStopping(monitor="epsilon", mode="min", patience=2)
    history = fit(model, [stops, make()], epochs=9)
    assert history.history["epsilon"] == expected(model)
    assert stops.stopped_epoch == 2


def test_callbacks_may_act_on_the_epsilon_under_its_own_name(tmp_path):
    model, path = private(), tmp_path / "{epoch}.weights.h5"
    saves = keras.callbacks.ModelCheckpoint(
        path, monitor="spent", mode="min", save_best_only=True, save_weights_only=True
    )
    fit(model, keras.callbacks.CallbackList([saves, logger(name="spent")], True, model=model))
    assert [file.name for file in tmp_path.iterdir()] == ["1.weights.h5"]


@pytest.mark.parametrize("name", ["epsilon", "loss"])
def test_what_no_callback_writes_of_the_ledger_stays_private(name):
    # Somebody's metric or loss, whatever it is called.
    model = private()
    stops = keras.callbacks.EarlyStopping(monitor=name, mode="min")
    with pytest.raises(NotPrivateError, match=f"EarlyStopping decides by '{name}'.*EpsilonLogger"):
        fit(model, [stops, logger(name="spent")])
    assert model.ledger.total_count == 0
