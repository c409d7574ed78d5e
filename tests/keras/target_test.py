"""An optimizer that was made for a budget says where `fit` goes beyond it."""

import logging

import keras
import numpy as np
import pytest
import toy

import tfdp
from tfdp.events import GaussianSumEvent, RandomAllocationSampling, SampledEvent
from tfdp.events.shown import shown_up
from tfdp.keras import DPOptimizer
from tfdp.keras.target import Target
from tfdp.ledger import PrivacyLedger
from tfdp.sampling import Poisson, RandomAllocation, Shuffled

N = 64
X = np.random.default_rng(0).normal(size=(N, 4)).astype("float32")
Y = np.arange(N) % 2
DELTA = 1e-4


def made(target_epsilon=3.0, **kwargs):
    arguments = {"population_size": N, "batch_size": 16, "epochs": 2, **kwargs}
    return DPOptimizer.for_budget(
        keras.optimizers.SGD(0.1),
        1.0,
        target_epsilon=target_epsilon,
        target_delta=DELTA,
        **arguments,
    )


def fitted(caplog, optimizer, model=None, **kwargs):
    """Returns (private model after a fit, what was said of the target)."""
    model = toy.private(toy.linear() if model is None else model, optimizer)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "tfdp"):
        model.fit(X, Y, **{"batch_size": 16, "epochs": 2, "verbose": 0, **kwargs})
    return model, [r.getMessage() for r in caplog.records if "was made for" in r.getMessage()]


@pytest.mark.parametrize("sampling", ["poisson", "shuffled", "random_allocation"])
def test_a_fit_as_it_was_planned_says_nothing(sampling, caplog):
    policy = {"poisson": Poisson(), "shuffled": Shuffled(), "random_allocation": None}[sampling]
    if policy is None:
        policy = RandomAllocation()
    model, said = fitted(caplog, made(sampling=sampling), sampling=policy)
    assert model.ledger.epsilon(DELTA) <= 3.0
    assert said == []


@pytest.mark.parametrize(
    "other", [{"epochs": 4}, {"batch_size": 32}, {"validation_split": 0.5}], ids=str
)
def test_more_or_other_steps_are_named_before_they_are_taken(other, caplog):
    model, said = fitted(caplog, made(), **other)
    epsilon = model.ledger.epsilon(DELTA)
    assert epsilon > 3.0
    assert len(said) == 1 and f"would end at epsilon={shown_up(epsilon)} " in said[0]


def test_another_fit_counts_on_with_a_new_optimizer_too(caplog):
    model, said = fitted(caplog, made())
    assert said == []
    for optimizer in (None, made()):
        if optimizer is not None:
            model.compile(optimizer, loss=toy.LOGITS_LOSS)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tfdp"):
            model.fit(X, Y, batch_size=16, epochs=2, verbose=0)
        assert f"would end at epsilon={shown_up(model.ledger.epsilon(DELTA))} " in caplog.text


@pytest.mark.parametrize("policy", [Shuffled(), RandomAllocation()], ids=repr)
def test_passes_are_named_afterwards(policy, caplog):
    model, said = fitted(caplog, made(epochs=1), sampling=policy, epochs=4)
    assert model.ledger.epsilon(DELTA) > 3.0
    assert len(said) == 1 and "ended at" in said[0]


def test_a_budget_among_the_callbacks_says_it_itself(caplog):
    budget = tfdp.keras.PrivacyBudget(3.0, DELTA)
    model, said = fitted(caplog, made(), epochs=20, callbacks=[budget])
    assert said == [] and model.ledger.epsilon(DELTA) <= 3.0


def test_optimizers_without_a_target_are_not_priced(caplog):
    optimizer = toy.dp(stddev=1.0)
    assert optimizer.target is None
    _, said = fitted(caplog, optimizer)
    assert said == []


def test_a_delta_as_large_as_a_record_is_named(caplog):
    with caplog.at_level(logging.WARNING, "tfdp"):
        DPOptimizer.for_budget(
            keras.optimizers.SGD(0.1),
            1.0,
            **{"population_size": N, "batch_size": 16, "epochs": 2},
            target_epsilon=3.0,
            target_delta=1 / N,
        )
    assert "is not below 1 / population (64)" in caplog.text
    for callback in (tfdp.keras.PrivacyBudget(30.0, 0.5), tfdp.keras.EpsilonLogger(0.5)):
        fitted(caplog, toy.dp(stddev=5.0), callbacks=[callback], epochs=1)
        assert "delta = 0.5 is not below 1 / population (64)" in caplog.text
    fitted(caplog, toy.dp(stddev=5.0), callbacks=[tfdp.keras.EpsilonLogger(1e-3)], epochs=1)
    assert "is not below" not in caplog.text


@pytest.mark.parametrize("initial_epoch", [2, 3])
def test_a_finished_run_that_is_started_again_does_nothing_and_says_nothing(initial_epoch, caplog):
    model, said = fitted(caplog, made(), initial_epoch=initial_epoch)
    assert said == [] and model.ledger.total_count == 0
    model, said = fitted(caplog, made(), epochs=4)  # Beyond the budget, and says so.
    assert len(said) == 1
    caplog.clear()
    model.fit(X, Y, batch_size=16, epochs=2, initial_epoch=initial_epoch, verbose=0)
    assert "was made for" not in caplog.text


def test_steps_of_a_begun_pass_are_counted_with_it():
    allocated = RandomAllocationSampling(5, 1, 1000)
    ledger = PrivacyLedger()
    ledger.append(SampledEvent(allocated, GaussianSumEvent(1.0, 8.0)), 5)
    more = SampledEvent(allocated, GaussianSumEvent(1.0, 1.0))
    asked = Target(1e-3, DELTA, "rdp").exceeded_by(ledger, more, 1)
    ledger.append(more)
    assert asked == ledger.epsilon(DELTA, "rdp")
