"""PrivacyBudget spends no more than it may."""

import functools

import keras
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp.accounting import PRVAccountant, RDPAccountant
from tfdp.accounting.spent import Spent
from tfdp.keras import NotPrivateError, PrivacyBudget, PrivacyBudgetExceededError
from tfdp.sampling import Poisson, Shuffled

X, Y = toy.data(40)
DELTA = 1e-3
ORDERS = [1.5, 2, 3, 4, 6, 8, 16]
STDDEV = 2 * toy.CLIP

QuickAccountant = functools.partial(RDPAccountant, ORDERS)


def private(**kwargs):
    return toy.private(toy.linear(), toy.dp(stddev=STDDEV), **kwargs)


def epsilon(ledger, accountant=QuickAccountant, extra=None):
    accountant = ledger.replay(accountant())
    if extra is not None:
        accountant.compose(extra)
    return accountant.get_epsilon(DELTA)


def budget_of(steps, batch_size=8, accountant=QuickAccountant):
    """Returns an epsilon that covers `steps` Poisson steps and not one more."""
    step = tfdp.SampledEvent(
        tfdp.events.PoissonSampling(batch_size / 40, 40), tfdp.GaussianSumEvent(toy.CLIP, STDDEV)
    )
    few = accountant().compose(step, steps).get_epsilon(DELTA)
    more = accountant().compose(step, steps + 1).get_epsilon(DELTA)
    assert few < more
    return (few + more) / 2


def fit(model, callback, **kwargs):
    arguments = {"batch_size": 8, "epochs": 10, "verbose": 0, "callbacks": [callback], **kwargs}
    return model.fit(X, Y, **arguments)


def test_a_spent_budget_says_so_once(caplog):
    model, target = private(), budget_of(3)
    fit(model, PrivacyBudget(target, DELTA, QuickAccountant))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "tfdp"]
    assert f"epsilon={target:g} at delta=0.001 is spent after 3 steps" in line


def test_stops_in_the_middle_of_an_epoch_before_overspending():
    model, target = private(), budget_of(7)
    history = fit(model, PrivacyBudget(target, DELTA, QuickAccountant))
    assert (
        model.ledger.total_count == int(model.optimizer.iterations) == 7
    )  # One epoch of 5 steps, and 2 steps.
    spent = epsilon(model.ledger)
    (entry,) = model.ledger
    assert spent <= target < epsilon(model.ledger, extra=entry.event)
    assert len(history.history["epsilon"]) == 2
    assert history.history["epsilon"][-1] == spent


def test_epsilon_in_history_is_a_replay_of_the_ledger_at_every_epoch():
    model = private()
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(epsilon(model.ledger))
    )
    callback = PrivacyBudget(1e6, DELTA, QuickAccountant)
    history = fit(model, callback, epochs=3, callbacks=[note, callback])
    assert history.history["epsilon"] == seen
    assert seen == sorted(set(seen))


def coarse_pld_accountant():
    return tfdp.accounting.PLDAccountant(1e-2)


@pytest.mark.parametrize("accountant", [coarse_pld_accountant, RDPAccountant])
def test_any_accountant_decides(accountant):
    model, target = private(), budget_of(4, accountant=accountant)
    fit(model, PrivacyBudget(target, DELTA, accountant))
    assert model.ledger.total_count == 4
    assert epsilon(model.ledger, accountant) <= target


def test_default_accountant_is_that_of_calibration():
    model, target = private(), budget_of(2, accountant=PRVAccountant)
    fit(model, PrivacyBudget(target, DELTA))
    assert model.ledger.total_count == 2
    assert model.ledger.epsilon(DELTA) <= target


def test_run_calibrated_to_a_budget_runs_all_its_steps_within_it():
    optimizer = tfdp.keras.DPOptimizer.for_budget(
        keras.optimizers.SGD(0.1),
        toy.CLIP,
        target_epsilon=2.0,
        target_delta=DELTA,
        population_size=40,
        batch_size=8,
        epochs=4,
    )
    model = toy.private(toy.linear(), optimizer)
    logged = fit(model, PrivacyBudget(2.0, DELTA), epochs=4).history["epsilon"]
    assert model.ledger.total_count == 20
    assert 1.99 < logged[-1] == model.ledger.epsilon(DELTA) <= 2.0


@pytest.mark.parametrize("accountant", ["rdp", RDPAccountant, RDPAccountant()], ids=repr)
def test_accountant_is_a_name_a_class_or_an_instance(accountant):
    model = private()
    history = fit(model, PrivacyBudget(1e6, DELTA, accountant), epochs=1)
    assert history.history["epsilon"] == [model.ledger.epsilon(DELTA, accountant)]
    assert history.history["epsilon"] == [epsilon(model.ledger, RDPAccountant)]


def test_budget_is_planned_once_for_steps_of_one_kind(monkeypatch):
    # An adaptive clip makes every step another event; all of them cost the same.
    planned = []
    original = Spent.affordable_events

    def counted(*arguments):
        planned.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(Spent, "affordable_events", counted)
    ledger, budget = tfdp.PrivacyLedger(), PrivacyBudget(budget_of(30), DELTA, QuickAccountant)
    events = [
        tfdp.SampledEvent(
            tfdp.events.PoissonSampling(8 / 40, 40),
            tfdp.GaussianSumEvent(2.0**i, STDDEV / toy.CLIP * 2.0**i),
        )
        for i in range(31)
    ]
    for event in events[:30]:
        ledger.append(event, permit=budget._guard)
    assert len(planned) == 1
    with pytest.raises(PrivacyBudgetExceededError):
        ledger.append(events[30], permit=budget._guard)
    # What somebody else wrote is noticed.
    other, budget = tfdp.PrivacyLedger(), PrivacyBudget(budget_of(30), DELTA, QuickAccountant)
    other.append(events[0], permit=budget._guard)
    other.append(tfdp.GaussianSumEvent(1.0, 1e-3))
    with pytest.raises(PrivacyBudgetExceededError):
        other.append(events[1], permit=budget._guard)


def test_another_event_in_the_place_of_a_step_that_was_permitted_is_noticed():
    ledger, budget = tfdp.PrivacyLedger(), PrivacyBudget(budget_of(30), DELTA, QuickAccountant)
    step = tfdp.SampledEvent(
        tfdp.events.PoissonSampling(8 / 40, 40), tfdp.GaussianSumEvent(toy.CLIP, STDDEV)
    )

    def refused_later(ledger, event):
        assert budget._guard(ledger, event) > 1
        raise LookupError

    ledger.append(step, permit=budget._guard)
    with pytest.raises(LookupError):
        ledger.append(step, permit=refused_later)
    ledger.append(tfdp.GaussianSumEvent(1.0, 1e-3))  # Another run's, which costs more.
    with pytest.raises(PrivacyBudgetExceededError, match="2 steps are spent"):
        ledger.append(step, permit=budget._guard)


def test_steps_of_another_run_that_are_alike_count():
    ledger, budget = tfdp.PrivacyLedger(), PrivacyBudget(budget_of(5), DELTA, QuickAccountant)
    step = tfdp.SampledEvent(
        tfdp.events.PoissonSampling(8 / 40, 40), tfdp.GaussianSumEvent(toy.CLIP, STDDEV)
    )
    for _ in range(2):
        ledger.append(step, permit=budget._guard)
        ledger.append(step)  # The other run's.
    ledger.append(step, permit=budget._guard)
    with pytest.raises(PrivacyBudgetExceededError, match="5 steps are spent"):
        ledger.append(step, permit=budget._guard)


@pytest.mark.parametrize(("affordable", "run"), [(7, 6), (8, 6), (9, 9)])
def test_several_steps_an_execution_stop_before_the_execution_that_overspends(affordable, run):
    model = private(steps_per_execution=3)
    fit(model, PrivacyBudget(budget_of(affordable), DELTA, QuickAccountant), steps_per_epoch=6)
    assert model.ledger.total_count == int(model.optimizer.iterations) == run


@pytest.mark.parametrize(
    ("at_once", "affordable", "run"),
    [(5, 8, 8), (7, 8, 8), (10, 11, 8), (3, 8, 8), (3, 7, 7), (3, 6, 4), (3, 5, 4), (4, 7, 4)],
)
def test_an_execution_is_no_longer_than_its_epoch(caplog, at_once, affordable, run):
    """Of four steps: the last execution of an epoch takes what is left of it."""
    model = private(steps_per_execution=at_once)
    budget = PrivacyBudget(budget_of(affordable), DELTA, QuickAccountant)
    with caplog.at_level("WARNING", "tfdp"):
        fit(model, budget, steps_per_epoch=4, epochs=5)
    assert model.ledger.total_count == run
    (said,) = [r.getMessage() for r in caplog.records if "is spent after" in r.getMessage()]
    more = min(at_once, 4 - run % 4)
    words = "one more step" if more == 1 else f"{more} more steps, which run as one"
    assert f"is spent after {run} steps: it does not cover {words}." in said


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("affordable", [3, 4, 5, 6, 7, 8, 11, 23, 24, 25, 39])
def test_steps_that_are_taken_in_one_call_stop_where_single_ones_do(
    monkeypatch, affordable, at_once
):
    counts, model = toy.counts_of_calls(monkeypatch), private(steps_per_execution=at_once)
    budget = PrivacyBudget(budget_of(affordable), DELTA, QuickAccountant)
    fit(model, budget, steps_per_epoch=24, epochs=2)
    taken = model.ledger.total_count
    assert taken == sum(counts) == int(model.optimizer.iterations)
    assert taken == affordable // at_once * at_once
    # Never more than half of what the budget affords, where a single one would not do.
    for number, count in enumerate(counts):
        assert count <= max(at_once, (affordable - sum(counts[:number])) // 2)
    assert affordable < 20 or max(counts) > at_once


def test_a_budget_looks_at_every_step_where_steps_are_not_alike(monkeypatch):
    counts = toy.counts_of_calls(monkeypatch)
    query = tfdp.QuantileAdaptiveClipSumQuery(
        1.0,
        noise_multiplier=2.0,
        target_unclipped_quantile=0.5,
        learning_rate=0.2,
        clipped_count_stddev=2.0,
        expected_num_records=8,
    )
    query = tfdp.NormalizedQuery(query, denominator=8)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.5), query)
    fit(toy.private(toy.linear(), optimizer), PrivacyBudget(1e9, DELTA), epochs=2)
    assert counts == [1] * 10


def test_execution_that_is_not_affordable_is_refused_at_the_start():
    model = private(steps_per_execution=3)
    with pytest.raises(PrivacyBudgetExceededError):
        fit(model, PrivacyBudget(budget_of(2), DELTA, QuickAccountant), steps_per_epoch=6)
    assert model.ledger.total_count == 0


def test_two_fits_share_the_budget_of_one_ledger():
    model, target = private(), budget_of(7)
    fit(model, PrivacyBudget(target, DELTA, QuickAccountant), epochs=1)
    assert model.ledger.total_count == 5
    fit(model, PrivacyBudget(target, DELTA, QuickAccountant))
    assert model.ledger.total_count == 7
    with pytest.raises(PrivacyBudgetExceededError, match="does not cover one more step: 7 steps"):
        fit(model, PrivacyBudget(target, DELTA, QuickAccountant))
    assert model.ledger.total_count == 7
    fit(
        model, PrivacyBudget(budget_of(8), DELTA, QuickAccountant)
    )  # The refusal left nothing behind.
    assert model.ledger.total_count == 8


def test_shuffled_passes_are_spent_whole():
    # The steps of a pass are one release: the budget covers two passes of any number of steps.
    model = private()
    step = tfdp.SampledEvent(
        tfdp.events.ShuffledSampling(8, 40, 0),
        tfdp.GaussianSumEvent(toy.CLIP, STDDEV),
        tfdp.NeighboringRelation.ZERO_OUT,
    )
    two = QuickAccountant().compose(step, 10).get_epsilon(DELTA)
    three = QuickAccountant().compose(step, 15).get_epsilon(DELTA)
    target = (two + three) / 2
    fit(model, PrivacyBudget(target, DELTA, QuickAccountant), sampling=Shuffled())
    assert model.ledger.total_count == 10
    assert epsilon(model.ledger) == pytest.approx(two)


@pytest.mark.parametrize(("is_endless", "steps"), [(False, 2), (True, 5)])
def test_partial_passes_of_a_data_set_end_gracefully(is_endless, steps):
    # Where each epoch may be one step of a new pass, it costs as much as the whole pass. In endless
    # data Keras goes on, and all five are steps of one.
    model = private()
    step = tfdp.SampledEvent(
        tfdp.events.ShuffledSampling(8, 40, 0),
        tfdp.GaussianSumEvent(toy.CLIP, STDDEV),
        tfdp.NeighboringRelation.ZERO_OUT,
    )
    two = QuickAccountant().compose(step, 10).get_epsilon(DELTA)
    three = QuickAccountant().compose(step, 15).get_epsilon(DELTA)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    model.fit(
        data.repeat() if is_endless else data,
        steps_per_epoch=1,
        epochs=5,
        verbose=0,
        sampling=Shuffled(batch_size=8, population_size=40),
        callbacks=[PrivacyBudget((two + three) / 2, DELTA, QuickAccountant)],
    )
    assert model.ledger.total_count == steps
    assert epsilon(model.ledger) <= (two + three) / 2


def test_raises_at_the_start_when_not_one_step_is_affordable():
    model = private()
    start = toy.weights(model)
    with pytest.raises(PrivacyBudgetExceededError, match="0 steps are spent"):
        fit(model, PrivacyBudget(1e-6, DELTA, QuickAccountant))
    assert model.ledger.total_count == 0
    toy.assert_weights(model, start, 0)
    fit(model, keras.callbacks.History(), epochs=1)  # No guard is left behind.
    assert model.ledger.total_count == 5


def test_guard_is_removed_afterwards():
    model = private()
    fit(model, PrivacyBudget(budget_of(2), DELTA, QuickAccountant))
    fit(model, keras.callbacks.History(), epochs=1)
    assert model.ledger.total_count == 7


class Crash(Exception):
    pass


def test_guard_is_removed_after_a_fit_that_failed():
    def crash(batch, logs):
        raise Crash

    model = private()
    callbacks = [
        PrivacyBudget(budget_of(2), DELTA, QuickAccountant),
        keras.callbacks.LambdaCallback(on_train_batch_end=crash),
    ]
    with pytest.raises(Crash):
        fit(model, None, callbacks=callbacks)
    fit(model, PrivacyBudget(budget_of(4), DELTA, QuickAccountant))
    assert model.ledger.total_count == 4


def test_guard_refuses_the_step_even_if_the_stop_is_ignored():
    class Stubborn(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = False

    model = private()
    callback = PrivacyBudget(budget_of(3), DELTA, QuickAccountant)
    with pytest.raises(PrivacyBudgetExceededError, match="3 steps are spent"):
        fit(model, callback, callbacks=[callback, Stubborn()])
    assert model.ledger.total_count == int(model.optimizer.iterations) == 3


def test_callback_used_again_starts_from_the_ledger_it_finds():
    callback = PrivacyBudget(budget_of(7), DELTA, QuickAccountant)
    fit(private(), callback, epochs=1)  # Two further steps would be affordable here.
    spent = tfdp.PrivacyLedger()
    dear = tfdp.SampledEvent(
        tfdp.events.FullBatchSampling(40), tfdp.GaussianSumEvent(toy.CLIP, STDDEV)
    )
    spent.append(dear, 5)
    model = private()
    model.ledger = spent
    with pytest.raises(PrivacyBudgetExceededError):
        fit(model, callback)
    assert model.ledger.total_count == 5


def test_events_that_others_write_meanwhile_count():
    # Two models write to one ledger; the other one's steps are dear.
    ledger = tfdp.PrivacyLedger()
    model = toy.private(toy.linear(), toy.dp(stddev=STDDEV, ledger=ledger))
    dear = tfdp.SampledEvent(
        tfdp.events.FullBatchSampling(40), tfdp.GaussianSumEvent(toy.CLIP, STDDEV)
    )
    other = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: ledger.append(dear)
    )
    target = epsilon(tfdp.PrivacyLedger(), extra=dear)  # One such step, and nothing beside it.
    callback = PrivacyBudget(1.5 * target, DELTA, QuickAccountant)
    with pytest.raises(PrivacyBudgetExceededError):
        fit(model, callback, callbacks=[callback, other])
    own = [event for event in toy.events(model) if event != dear]
    replayed = QuickAccountant().compose(dear, len(own)).compose(own[0], len(own))
    assert replayed.get_epsilon(DELTA) <= 1.5 * target


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"target_epsilon": 0.0}, ValueError),
        ({"target_epsilon": -1.0}, ValueError),
        ({"target_epsilon": float("inf")}, ValueError),
        ({"target_epsilon": "1"}, TypeError),
        ({"target_delta": 0.0}, ValueError),
        ({"target_delta": 1}, ValueError),
        ({"target_delta": 1.5}, ValueError),
        ({"target_delta": None}, TypeError),
        ({"accountant": 3}, TypeError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(list(value)),
)
def test_bad_argument_is_named(arguments, error):
    (name,) = arguments
    with pytest.raises(error, match=name):
        PrivacyBudget(**{"target_epsilon": 1.0, "target_delta": DELTA, **arguments})


def test_model_that_is_not_private_is_an_error():
    model = toy.linear()
    model.compile("sgd", loss=toy.LOGITS_LOSS)
    with pytest.raises(NotPrivateError, match="DPOptimizer"):
        model.fit(X, Y, verbose=0, callbacks=[PrivacyBudget(1.0, DELTA)])


def test_no_noise_is_never_affordable():
    model = toy.private(toy.linear())
    with pytest.raises(PrivacyBudgetExceededError):
        fit(model, PrivacyBudget(1e9, DELTA, QuickAccountant), sampling=Poisson())
    assert model.ledger.total_count == 0
