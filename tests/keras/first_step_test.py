"""What `fit` says while its first step is traced, to whom and when."""

import threading

import toy
from toy import X, Y

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
