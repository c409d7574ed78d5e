"""A step charges first, then releases, and its event is that of the release."""

import dataclasses
import traceback
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import N, X, Y, matrix, squared_error

import tfdp
from tfdp.keras import (
    DPOptimizer,
    NotPrivateError,
    PrivacyBudgetExceededError,
)
from tfdp.noise import SeededRandomSource
from tfdp.sampling import FullBatch, Poisson

EXAMPLES = toy.examples()


# Custom loops.


@pytest.mark.parametrize("engine", ["loop", "vectorized", "auto"])
def test_no_tape_finds_what_is_under_the_noise(engine):
    model = toy.linear()
    variables, (x, y) = model.trainable_variables, map(tf.constant, (X, Y))
    optimizer = toy.dp(stddev=1.0, engine=engine)
    optimizer.build(variables)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tfdp.gradients.ModelLoss(model, toy.LOGITS_LOSS)
        (gradient,) = optimizer.private_gradients(loss, variables, (x, y))
        number = tf.reduce_sum(gradient**2)
    assert tape.gradient(number, [x, variables[0].value]) == [None, None]
    optimizer.apply([gradient], variables)


def test_a_function_of_tensorflow_around_a_step_rewrites_nothing_in_it():
    optimizer, variable = toy.dp(), matrix()
    optimizer.build([variable])
    rewritten = []

    def loss(example):
        frames = traceback.extract_stack()
        rewritten.append([f.name for f in frames if f.name.startswith("tf__")])
        return squared_error(variable)(example)

    @tf.function
    def by_hand(examples):
        optimizer.apply(optimizer.private_gradients(loss, [variable], examples))

    @tf.function
    def in_one(examples):
        optimizer.private_step(loss, [variable], examples)

    @tf.function
    def clipped(examples):
        return tfdp.clipped_gradient_sum(loss, [variable], examples, optimizer.query)

    for step in (by_hand, in_one, clipped):
        step(EXAMPLES)
    assert set(map(tuple, rewritten)) == {("tf__by_hand",), ("tf__in_one",), ("tf__clipped",)}


@pytest.mark.parametrize("in_graph", [False, True])
def test_custom_loop_charges_every_call(in_graph):
    optimizer, variable = toy.dp(), matrix()
    optimizer.sampling = Poisson(0.25, 48)
    traces = []

    def step(examples):
        traces.append(1)
        gradients = optimizer.private_gradients(squared_error(variable), [variable], examples)
        optimizer.apply(gradients, [variable])

    if in_graph:
        step = tf.function(step, autograph=False)
    for count in (1, 2, 3):
        step(EXAMPLES)
        assert optimizer.ledger.total_count == int(optimizer.iterations) == count
    assert not in_graph or len(traces) <= 2  # TensorFlow traces twice where variables are made.
    (entry,) = optimizer.ledger
    assert entry.event == tfdp.SampledEvent(
        tfdp.events.PoissonSampling(0.25, 48),
        tfdp.GaussianSumEvent(toy.CLIP, 0.0),
        tfdp.NeighboringRelation.ZERO_OUT,
    )


@pytest.mark.parametrize("jit_compile", [False, True])
def test_custom_loop_takes_the_step_written_by_hand(jit_compile):
    optimizer, variable = toy.dp(), matrix(0.1)
    losses = [
        lambda i=i: squared_error(variable)([leaf[i : i + 1] for leaf in EXAMPLES])
        for i in range(N)
    ]
    total = np.zeros([4, 2])
    for loss in losses:
        with tf.GradientTape() as tape:
            value = loss()
        gradient = tape.gradient(value, variable).numpy()
        total += gradient * min(1, toy.CLIP / np.linalg.norm(gradient))
    (gradient,), predictions = optimizer.private_gradients(
        lambda e: (squared_error(variable)(e), e[0] @ variable),
        [variable],
        EXAMPLES,
        has_aux=True,
        jit_compile=jit_compile,
        data_independent_loss=lambda: 5 * tf.reduce_sum(variable),
    )
    np.testing.assert_allclose(gradient, total / 10 + 5, rtol=1e-5)
    np.testing.assert_allclose(tf.squeeze(predictions, 1), X @ variable.numpy(), rtol=1e-5)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_private_step_is_gradients_and_update(jit_compile, in_graph):
    def trained(take):
        query = tfdp.GaussianAverageQuery(
            toy.CLIP, noise_multiplier=1.0, denominator=10.0, random_source=SeededRandomSource(3)
        )
        variable = tf.Variable(tf.fill([300, 200], 0.01))
        optimizer = DPOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), query)
        optimizer.build([variable])
        loss = squared_error(variable)
        x = tf.repeat(EXAMPLES[0], 75, axis=1)
        y = tf.repeat(EXAMPLES[1], 100, axis=1)

        def step(examples):
            return take(optimizer, lambda e: (loss(e), e[1]), [variable], examples)

        function = tf.function(step, autograph=False) if in_graph else step
        for _ in range(3):
            aux = function((x, y))
        np.testing.assert_allclose(tf.squeeze(aux, 1), y)
        assert optimizer.ledger.total_count == int(optimizer.iterations) == 3
        assert optimizer.private_step(loss, [variable], (x, y), jit_compile=jit_compile) is None
        return [variable.numpy(), *(v.numpy() for v in optimizer.inner_optimizer.variables)]

    def in_one(optimizer, loss, variables, examples):
        return optimizer.private_step(
            loss, variables, examples, has_aux=True, jit_compile=jit_compile
        )

    def in_two(optimizer, loss, variables, examples):
        gradients, aux = optimizer.private_gradients(loss, variables, examples, has_aux=True)
        optimizer.apply(gradients, variables)
        return aux

    for one, two in zip(trained(in_one), trained(in_two), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_step_that_is_refused_moves_nothing(jit_compile):
    model = toy.private(optimizer=toy.dp(keras.optimizers.Adam(0.1)), jit_compile=jit_compile)
    model.fit(X, Y, sampling=FullBatch(), verbose=0)
    before = [v.numpy() for v in model.variables]
    inner = [v.numpy() for v in model.optimizer.variables]

    def refuse(ledger, event):
        raise PrivacyBudgetExceededError("no more")

    model.optimizer.charging.add_guard(refuse)
    with pytest.raises(PrivacyBudgetExceededError, match="no more"):
        model.fit(X, Y, sampling=FullBatch(), verbose=0)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    for variable, value in zip(model.optimizer.variables, inner, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_masked_examples_take_no_part():
    variable = matrix()
    mask = tf.range(N) < 5
    masked = toy.dp().private_gradients(squared_error(variable), [variable], EXAMPLES, mask=mask)
    alone = toy.dp().private_gradients(
        squared_error(variable), [variable], [leaf[:5] for leaf in EXAMPLES]
    )
    np.testing.assert_allclose(masked[0], alone[0], atol=1e-7)
    assert np.abs(masked[0]).max() > 0


def test_variable_without_gradient_is_named():
    used, unused = matrix(), tf.Variable(1.0, name="never_used")
    with pytest.raises(ValueError, match="never_used"):
        toy.dp().private_gradients(squared_error(used), [used, unused], EXAMPLES)


# The event comes first, and is the right one.


def charges_before(output):
    """Returns the operations that write to the ledger and that a tensor of a graph waits for.

    TensorFlow lets whatever the host does wait for what the host did before. That order is not what
    the step asks for, so it does not count where random words are drawn.
    """
    before, pending = {}, [output.op]
    while pending:
        op = pending.pop()
        if op.name not in before:
            before[op.name] = op
            pending += [t.op for t in op.inputs]
            if "host_draw" not in op.name:
                pending += op.control_inputs
    host = [name for name, op in before.items() if op.type == "PyFunc"]
    return [name for name in host if "host_draw" not in name]


@pytest.mark.parametrize("stddev", [0.0, 1.0])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_nothing_comes_out_of_a_graph_before_the_step_is_charged(jit_compile, stddev):
    """The host may write to the ledger while gradients are summed up, but not later."""
    # Noise is drawn on the host, too, and TensorFlow runs what the host does in order.
    optimizer, variable = toy.dp(stddev=stddev), matrix()
    loss, outputs = squared_error(variable), []

    @tf.function(autograph=False)
    def step(examples):
        result = optimizer.private_gradients(
            lambda example: (loss(example), example[1]),
            [variable],
            examples,
            has_aux=True,
            jit_compile=jit_compile,
        )
        # What a function returns waits for everything in it.
        outputs[:] = tf.nest.flatten(result)

    step.get_concrete_function(EXAMPLES)
    assert len(outputs) == 2
    for output in outputs:
        assert charges_before(output)


@dataclasses.dataclass(frozen=True)
class PassingOn(tfdp.SumAggregationDPQuery):
    """Releases the sum itself; with `host` by way of the host, which XLA cannot compile."""

    host: bool

    def get_noised_result(self, sample_state, global_state):
        first, second = sample_state
        if self.host:
            first = tf.ensure_shape(tf.py_function(lambda t: t, [first], first.dtype), first.shape)
        return [first, second], global_state, self.derive_event(global_state)

    def derive_event(self, global_state):
        return tfdp.NonPrivateEvent()


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_sum_that_is_only_passed_on_waits_for_the_charge(jit_compile, host):
    variables = [matrix(), tf.Variable([0.0, 0.0])]
    optimizer = DPOptimizer(keras.optimizers.SGD(0.1), PassingOn(host))
    outputs = []

    def loss(example):
        return tf.reduce_mean((example[0] @ variables[0] + variables[1] - example[1]) ** 2)

    @tf.function(autograph=False)
    def step(examples):
        outputs[:] = optimizer.private_gradients(loss, variables, examples, jit_compile=jit_compile)

    step.get_concrete_function(EXAMPLES)
    assert len(outputs) == 2
    for output in outputs:
        assert charges_before(output)


@dataclasses.dataclass(frozen=True)
class Observing(tfdp.SumAggregationDPQuery):
    """Notes, whenever a result is computed, how many events the ledger holds."""

    ledger: tfdp.PrivacyLedger
    seen: list = dataclasses.field(default_factory=list, compare=False)

    def get_noised_result(self, sample_state, global_state):
        def note(leaf):
            self.seen.append(self.ledger.total_count)
            return leaf

        result = tf.nest.map_structure(
            lambda t: tf.ensure_shape(tf.py_function(note, [t], t.dtype), t.shape), sample_state
        )
        return result, global_state, self.derive_event(global_state)

    def derive_event(self, global_state):
        return tfdp.NonPrivateEvent()


def test_event_is_in_the_ledger_before_the_gradients_exist():
    ledger = tfdp.PrivacyLedger()
    query = Observing(ledger)
    model = toy.private(toy.linear(), DPOptimizer(keras.optimizers.SGD(0.1), query, ledger=ledger))
    model.fit(X, Y, sampling=FullBatch(), epochs=3, verbose=0)
    assert query.seen == [1, 2, 3]


@dataclasses.dataclass(frozen=True)
class Reporting(tfdp.SumAggregationDPQuery):
    """Returns whatever events the test wants."""

    derived: Any
    returned: Any

    def get_noised_result(self, sample_state, global_state):
        return sample_state, global_state, self.returned

    def derive_event(self, global_state):
        return self.derived


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("returned", [tfdp.GaussianSumEvent(1.0, 0.5), None])
def test_query_that_tells_two_stories_is_refused(in_graph, returned):
    query = Reporting(tfdp.GaussianSumEvent(1.0, 1.0), returned)
    optimizer, variable = DPOptimizer(keras.optimizers.SGD(0.1), query), matrix()
    optimizer.build([variable])

    def step():
        return optimizer.private_gradients(squared_error(variable), [variable], EXAMPLES)

    with pytest.raises(NotPrivateError, match="derive_event"):
        (tf.function(step, autograph=False) if in_graph else step)()


def test_event_is_that_of_the_release_in_the_graph():
    # What the query would say of another graph is not what this one does.
    event = tfdp.GaussianSumEvent(1.0, 1.0)
    query = Reporting(event, event)
    model = toy.private(toy.linear(), DPOptimizer(keras.optimizers.SGD(0.1), query))
    model.fit(X, Y, sampling=FullBatch(), verbose=0)
    object.__setattr__(query, "derived", tfdp.GaussianSumEvent(1.0, 100.0))
    model.fit(X, Y, sampling=FullBatch(), verbose=0)
    assert [e.event for e in toy.events(model)] == [event, event]


def test_query_whose_event_is_not_tfdps_is_refused():
    optimizer = DPOptimizer(keras.optimizers.SGD(0.1), Reporting("gaussian", "gaussian"))
    with pytest.raises(TypeError, match="must return a tfdp event"):
        optimizer.next_event()
    model = toy.private(toy.linear(), optimizer)
    start = toy.weights(model)
    with pytest.raises(TypeError, match="must return a tfdp event"):
        model.fit(X, Y, batch_size=4, verbose=0)
    toy.assert_weights(model, start, 0)
    assert model.ledger.total_count == 0


@dataclasses.dataclass(frozen=True)
class DecayingClip(tfdp.SumAggregationDPQuery):
    """Halves its clip norm after every step; the clip norm is a tensor of the global state."""

    initial_clip: float
    stddev: float = 0.0

    def initial_global_state(self):
        return {"clip": tf.constant(self.initial_clip), "stddev": self.stddev}

    def derive_sample_params(self, global_state):
        return global_state["clip"]

    def preprocess_record(self, params, record):
        clipped, _ = tf.clip_by_global_norm(tf.nest.flatten(record), params)
        return tf.nest.pack_sequence_as(record, clipped)

    def get_noised_result(self, sample_state, global_state):
        symbolic = tf.is_symbolic_tensor(global_state["clip"])
        event = None if symbolic else self.derive_event(global_state)
        return sample_state, {**global_state, "clip": global_state["clip"] / 2}, event

    def derive_event(self, global_state):
        return tfdp.GaussianSumEvent(float(global_state["clip"]), float(global_state["stddev"]))


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_event_and_clip_follow_the_state_of_the_query(run_eagerly):
    optimizer = DPOptimizer(keras.optimizers.SGD(1.0), DecayingClip(0.2))
    assert optimizer.next_event().event == tfdp.GaussianSumEvent(np.float32(0.2), 0.0)
    # The gradient of the loss is x, of norm 2, for every record.
    model = toy.private(toy.linear(), optimizer, loss=lambda y, p: p[:, 0], run_eagerly=run_eagerly)
    moved = []
    x = np.ones([3, 4], "float32")
    for _ in range(3):
        start = toy.weights(model)[0]
        model.fit(x, Y[:3], sampling=FullBatch(), verbose=0)
        moved.append(np.linalg.norm(toy.weights(model)[0] - start))
    assert moved == pytest.approx([3 * 0.2, 3 * 0.1, 3 * 0.05], rel=1e-4)
    bounds = [event.event.l2_norm_bound for event in toy.events(model)]
    assert bounds == pytest.approx([0.2, 0.1, 0.05])
    assert optimizer.next_event().event.l2_norm_bound == pytest.approx(0.025)


def test_state_of_the_query_is_restored(tmp_path):
    def make():
        optimizer = DPOptimizer(keras.optimizers.SGD(1.0), DecayingClip(0.2))
        model = toy.private(toy.linear(), optimizer, run_eagerly=True)
        optimizer.build(model.trainable_variables)
        return model

    first, second = make(), make()
    first.fit(X, Y, sampling=FullBatch(), epochs=2, verbose=0)
    first.save_weights(tmp_path / "w.weights.h5")
    second.load_weights(tmp_path / "w.weights.h5")
    second.fit(X, Y, sampling=FullBatch(), verbose=0)
    bounds = [event.event.l2_norm_bound for event in toy.events(second)]
    assert bounds == pytest.approx([0.2, 0.1, 0.05])


def test_state_is_not_made_anew_in_every_step():
    # Noise that remembers has many times the model's size in its state.
    made = []

    class Counting(DecayingClip):
        def initial_global_state(self):
            made.append(1)
            return super().initial_global_state()

    optimizer = DPOptimizer(keras.optimizers.SGD(1.0), Counting(0.2))
    model = toy.private(toy.linear(), optimizer)
    model.train_on_batch(X, Y)
    before = len(made)
    for _ in range(3):
        model.train_on_batch(X, Y)
    assert len(made) == before
    assert len(toy.events(model)) == 4


@pytest.mark.parametrize(("width", "jit_compile"), [(2, True), (5_000, False), (5_000, True)])
def test_trees_that_are_restarted_by_the_clock_train_whatever_xla_compiles(width, jit_compile):
    # XLA has no clock, and compiles the noise of large models unasked.
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(width, use_bias=False)])
    tree = tfdp.query.TreeResidualSumQuery(
        1.0, 1.0, tfdp.factorizations.BinaryTree(), 9, 1, model.trainable_variables
    )
    restarted = tfdp.query.RestartQuery(tree, tfdp.query.PeriodicTimeRestartIndicator(1e-9))
    optimizer = DPOptimizer(keras.optimizers.SGD(0.1), tfdp.NormalizedQuery(restarted, N))
    model = toy.private(model, optimizer, loss="mse", jit_compile=jit_compile)
    model.fit(X, np.zeros([N, width]), sampling=FullBatch(), epochs=3, verbose=0)
    events = [event.event for event in toy.events(model)]
    assert len({event.run_id for event in events}) == len(events) == 3
    assert [event.position for event in events] == [0, 0, 0]
