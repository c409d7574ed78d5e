"""Threads that share an optimizer, a model or a ledger: every step is charged."""

import threading
import time
import traceback

import keras
import pytest
import tensorflow as tf
import toy

import tfdp
from tests.keras.trained import compiled, noisy
from tfdp.keras import NotPrivateError, step

X, Y = toy.X, toy.Y


def in_threads(function, times=5, threads=3):
    errors = []

    def work():
        try:
            for _ in range(times):
                function()
        except Exception as error:
            traceback.print_exception(error)
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return errors


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("in_one", [False, True])
def test_threads_on_one_optimizer_are_all_charged(in_one, in_graph, monkeypatch):
    variables = [tf.Variable(tf.ones([4, 1]))]
    optimizer = noisy()
    optimizer.build(variables)
    most, charging = [], optimizer.charging
    monkeypatch.setattr(charging, "_write", slowed(charging._write, most))

    def step():
        loss = lambda x: tf.reduce_sum(tf.matmul(x, variables[0]) ** 2)  # noqa: E731
        if in_one:
            optimizer.private_step(loss, variables, tf.constant(X))
        else:
            gradients = optimizer.private_gradients(loss, variables, tf.constant(X))
            optimizer.apply(gradients, variables)

    assert in_threads(tf.function(step) if in_graph else step) == []
    assert set(most) == {1} and len(most) == 15
    assert optimizer.ledger.total_count == 15
    if not in_graph:  # Steps in graphs take no turns, and Keras counts by reading and writing.
        assert int(optimizer.iterations) == 15


def slowed(function, most, seconds=0.02):
    """Returns a function that takes longer, and adds to `most` how many threads are in it."""
    inside = []

    def slow(*args, **kwargs):
        inside.append(None)
        most.append(len(inside))
        time.sleep(seconds)
        try:
            return function(*args, **kwargs)
        finally:
            inside.pop()

    return slow


def _all_before(op):
    """Returns the operations that an operation waits for."""
    found, pending = set(), [op]
    while pending:
        op = pending.pop()
        for other in [*(t.op for t in op.inputs), *op.control_inputs]:
            if other not in found:
                found.add(other)
                pending.append(other)
    return found


def test_a_graph_reads_the_place_before_its_ledger_and_writes_it_after():
    """Else the first steps of two threads could read a place in a ledger that is not there yet, and
    the second be refused.
    """
    variables = [tf.Variable(tf.ones([4, 1]))]
    optimizer = noisy()
    optimizer.build(variables)
    loss = lambda x: tf.reduce_sum(tf.matmul(x, variables[0]) ** 2)  # noqa: E731
    step = tf.function(lambda: optimizer.private_step(loss, variables, tf.constant(X)))
    graph = step.get_concrete_function().graph
    state = optimizer._step_variables()
    inside = {
        name: internal.name
        for external, internal in graph.captures
        for name in ("position", "fingerprint")
        if external is getattr(state, name).value.handle
    }

    def of(kind, name):
        ops = [op for op in graph.get_operations() if op.type == kind]
        return [op for op in ops if op.inputs[0].name == inside[name]]

    (place_written,), (ledger_written,) = (
        of("AssignVariableOp", name) for name in ("position", "fingerprint")
    )
    place_read, ledger_read = (
        [op for op in of("ReadVariableOp", name) if ledger_written not in _all_before(op)]
        for name in ("position", "fingerprint")
    )
    assert ledger_written in _all_before(place_written)
    assert place_read and ledger_read
    assert all(set(place_read) & _all_before(op) for op in ledger_read)


def test_threads_on_one_model_take_turns():
    model = compiled(toy.linear())
    assert in_threads(lambda: model.train_on_batch(X, Y), times=3) == []
    assert model.ledger.total_count == int(model.optimizer.iterations) == 9


def test_threads_train_models_that_share_layers(monkeypatch):
    shared = keras.layers.Dense(4)
    models = [
        compiled(keras.Sequential([keras.Input(X.shape[1:]), shared, keras.layers.Dense(1)]))
        for _ in range(2)
    ]
    most = []
    slow = slowed(step.clipped_gradient_sum, most, 0.3)
    monkeypatch.setattr(step, "clipped_gradient_sum", slow)
    remaining = iter(models)
    assert in_threads(lambda: next(remaining).train_on_batch(X, Y), times=1, threads=2) == []
    assert set(most) == {1}
    assert [int(model.optimizer.iterations) for model in models] == [1, 1]


def test_threads_append_to_one_ledger_in_turn(monkeypatch):
    ledger, most = tfdp.PrivacyLedger(), []
    monkeypatch.setattr(ledger, "_append", slowed(ledger._append, most))
    events = [tfdp.GaussianSumEvent(1.0, 1.0 + i) for i in range(12)]
    remaining = iter(events)
    assert in_threads(lambda: ledger.append(next(remaining)), times=4) == []
    assert set(most) == {1}
    assert {event: count for event, count in ledger} == dict.fromkeys(events, 1)


def test_threads_on_one_ledger_lose_no_event():
    ledger, event = tfdp.PrivacyLedger(), tfdp.GaussianSumEvent(1.0, 1.0)
    assert in_threads(lambda: ledger.append(event), times=2000, threads=4) == []
    assert ledger.total_count == sum(entry.count for entry in ledger) == 8000


def test_gradients_of_another_thread_are_refused():
    variables = [tf.Variable(tf.ones([4, 1]))]
    optimizer = noisy()
    loss = lambda x: tf.reduce_sum(tf.matmul(x, variables[0]) ** 2)  # noqa: E731
    gradients = optimizer.private_gradients(loss, variables, tf.constant(X))
    (error,) = in_threads(lambda: optimizer.apply(gradients, variables), times=1, threads=1)
    assert isinstance(error, NotPrivateError)
    assert "same thread" in str(error)
