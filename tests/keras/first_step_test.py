"""What `fit` says while its first step is traced, to whom and when."""

import threading

import keras
import numpy as np
import pytest
import toy
from toy import X, Y

import tfdp
from tfdp.keras import first_step


def test_first_step_that_takes_long_says_so_where_somebody_looks(monkeypatch, caplog):
    monkeypatch.setattr(first_step, "_PATIENCE_S", 0.0)
    model = toy.private(toy.linear())

    def said(verbose):
        caplog.clear()
        model.fit(X, Y, batch_size=4, verbose=verbose)
        return "Tracing the first private step" in caplog.text

    assert said(verbose=2)
    assert not said(verbose=2)  # It is traced.
    model.train_function = None
    assert not said(verbose=0)
    monkeypatch.setattr(first_step, "_PATIENCE_S", 3600.0)
    model.train_function = None
    assert not said(verbose=2)
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())


def mixing():
    lines = [keras.Input((4,)), keras.layers.Lambda(lambda t: t - keras.ops.mean(t, 0), name="mix")]
    return toy.private(keras.Sequential([*lines, keras.layers.Dense(2)]))


def messages(caplog, part):
    return [r.getMessage() for r in caplog.records if r.name == "tfdp" and part in r.getMessage()]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_first_fit_names_layers_that_may_mix_records_whatever_the_data(jit_compile, caplog):
    for data in (X, np.zeros_like(X), np.full_like(X, np.nan)):
        caplog.clear()
        model = mixing()
        model.jit_compile = jit_compile
        for _ in range(2):
            model.fit(data, Y, batch_size=4, verbose=0)
        (message,) = messages(caplog, "may mix the records")
        assert "mix (Mean (first_step_test.py, line" in message
    caplog.clear()
    toy.private().fit(X, Y, batch_size=4, verbose=0)
    assert messages(caplog, "may mix the records") == []


NOT_PRIVATE = {
    "zero": (toy.query(0.0), "the noise was zero"),
    "none": (tfdp.NoPrivacyAverageQuery(), ""),
    "seeded": (
        tfdp.GaussianAverageQuery(
            1.0,
            noise_multiplier=1.0,
            denominator=4,
            random_source=tfdp.noise.SeededRandomSource(1),
        ),
        "seeded",
    ),
    "one part": (
        tfdp.NestedQuery([toy.query(1.0), toy.query(0.0), toy.query(1.0), toy.query(1.0)]),
        "the noise was zero",
    ),
}


@pytest.mark.parametrize("name", NOT_PRIVATE)
def test_first_fit_says_that_there_is_no_privacy(name, caplog):
    query, reason = NOT_PRIVATE[name]
    model = toy.private(optimizer=tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query))
    for _ in range(2):
        model.fit(X, Y, batch_size=4, verbose=0)
    (message,) = messages(caplog, "is not private, and epsilon is infinite")
    assert reason in message
    assert model.ledger.epsilon(1e-4) == float("inf")


def test_fit_with_noise_says_nothing_of_it(caplog):
    toy.private(optimizer=toy.dp(stddev=0.1)).fit(X, Y, batch_size=4, verbose=0)
    assert messages(caplog, "not private") == []
