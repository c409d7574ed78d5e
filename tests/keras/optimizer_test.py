"""A DPOptimizer charges first, then releases, and takes no gradient that was not charged."""

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import L

import tfdp
from tfdp.keras import (
    DPOptimizer,
    LedgerMismatchError,
    NotPrivateError,
    PrivacyBudgetExceededError,
)
from tfdp.noise import SeededRandomSource
from tfdp.sampling import FullBatch, Poisson, Shuffled

X, Y = toy.data()
N = len(X)


def matrix(value=0.0):
    return tf.Variable(tf.fill([4, 2], value))


def squared_error(variable):
    """A loss function for `private_gradients` over (x, one-hot y)."""
    return lambda example: tf.reduce_mean((example[0] @ variable - example[1]) ** 2)


EXAMPLES = (tf.constant(X), tf.one_hot(Y, 2))


# Gradients that were not charged.


@pytest.mark.parametrize("method", ["apply", "apply_gradients"])
def test_plain_gradients_are_refused(method):
    optimizer, variable = toy.dp(), matrix()
    optimizer.build([variable])
    gradient = tf.ones([4, 2])
    arguments = (
        ([gradient], [variable])
        if method == "apply"
        else (zip([gradient], [variable], strict=True),)
    )
    with pytest.raises(NotPrivateError, match="make_private"):
        getattr(optimizer, method)(*arguments)
    assert not variable.numpy().any()
    assert int(optimizer.iterations) == 0


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_raw_model_trained_by_mistake_is_refused(run_eagerly):
    model = toy.dense()
    model.compile(toy.dp(), loss=toy.LOGITS_LOSS, run_eagerly=run_eagerly)
    start = toy.weights(model)
    with pytest.raises(NotPrivateError, match="make_private"):
        model.fit(X, Y, verbose=0)
    toy.assert_weights(model, start, 0)


def test_no_gradients_are_refused():
    with pytest.raises(NotPrivateError):
        toy.dp().apply([], [])


def test_gradients_are_applied_once_only():
    optimizer, variable = toy.dp(), matrix()
    gradients = optimizer.private_gradients(squared_error(variable), [variable], EXAMPLES)
    optimizer.apply(gradients, [variable])
    after = variable.numpy()
    with pytest.raises(NotPrivateError):
        optimizer.apply(gradients, [variable])
    np.testing.assert_array_equal(variable, after)


def test_gradients_of_another_optimizer_are_refused():
    first, second, variable = toy.dp(), toy.dp(), matrix()
    gradients = first.private_gradients(squared_error(variable), [variable], EXAMPLES)
    with pytest.raises(NotPrivateError):
        second.apply(gradients, [variable])
    assert second.ledger.total_count == 0


def test_processed_gradients_are_refused_but_may_go_to_the_inner_optimizer():
    optimizer, variable = toy.dp(), matrix()
    gradients = optimizer.private_gradients(squared_error(variable), [variable], EXAMPLES)
    halved = [g / 2 for g in gradients]
    with pytest.raises(NotPrivateError, match="inner_optimizer"):
        optimizer.apply(halved, [variable])
    optimizer.inner_optimizer.apply(halved, [variable])
    np.testing.assert_allclose(variable, -0.5 * halved[0], rtol=1e-6)


# Custom loops.


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
    """Returns the operations that write to the ledger and that a tensor of a graph waits for."""
    before, pending = {}, [output.op]
    while pending:
        op = pending.pop()
        if op.name not in before:
            before[op.name] = op
            pending += [*(t.op for t in op.inputs), *op.control_inputs]
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


# Microbatches.


def bound_after(optimizer, batch_size, **kwargs):
    model = toy.private(toy.linear(), optimizer, run_eagerly=True)
    model.fit(X, Y, batch_size=batch_size, steps_per_epoch=1, verbose=0, **kwargs)
    return toy.events(model)[-1]


@pytest.mark.parametrize(
    ("num_microbatches", "privacy_unit", "factor"),
    [
        (None, "example", 1),
        (2, "example", 2),
        (6, "example", 1),
        (1, "example", 2),
        (2, "microbatch", 1),
    ],
)
def test_bound_is_what_one_unit_can_move(num_microbatches, privacy_unit, factor):
    optimizer = toy.dp(num_microbatches=num_microbatches, privacy_unit=privacy_unit)
    event = bound_after(optimizer, batch_size=6)
    assert event.event == tfdp.GaussianSumEvent(factor * toy.CLIP, 0.0)
    assert event.privacy_unit == privacy_unit


def test_without_a_known_batch_size_microbatches_cost_twice():
    model = toy.private(toy.linear(), toy.dp(num_microbatches=6), run_eagerly=True)
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    model.fit(batches, sampling=Poisson(0.3), verbose=0)
    assert {event.event.l2_norm_bound for event in toy.events(model)} == {2 * toy.CLIP}


def test_population_of_microbatch_units_is_counted_in_microbatches():
    optimizer = toy.dp(num_microbatches=2, privacy_unit="microbatch")
    event = bound_after(optimizer, batch_size=6)  # 12 examples are 4 units of 3; 2 of them a batch.
    assert event.sampling == tfdp.events.PoissonSampling(2 / 4, 4)


def test_microbatch_units_are_sampled_whole_and_are_one_record():
    # The loss is linear: the mean gradient of a unit is the mean of its x. A batch is one unit of
    # 4 examples.
    optimizer = DPOptimizer(
        keras.optimizers.SGD(1.0),
        toy.query(clip=100.0, denominator=1),
        1,
        privacy_unit="microbatch",
    )
    model = toy.private(toy.linear(), optimizer, loss=lambda y, p: p[:, 0])
    x = np.arange(N, dtype="float32")[:, None] * np.ones([1, 4], "float32")
    means = {1.5, 5.5, 9.5}  # Of 0-3, 4-7 and 8-11.
    kernels = [toy.weights(model)[0]]
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: kernels.append(toy.weights(model)[0])
    )
    policy = tfdp.sampling.FixedSize()
    model.fit(x, Y, batch_size=4, sampling=policy, steps_per_epoch=20, verbose=0, callbacks=[note])
    moved = -np.diff(np.stack(kernels), axis=0)[:, :, 0]
    np.testing.assert_allclose(moved, moved[:, :1] * np.ones(4), rtol=1e-4)
    seen = {round(float(m), 2) for m in moved[:, 0]}
    assert seen <= means
    assert len(seen) > 1  # Twenty times the same unit: once in 3^19 runs.


def test_other_batch_size_makes_another_step():
    # 6 microbatches of 6 examples are examples; of 12 examples they are pairs.
    model = toy.private(toy.linear(), toy.dp(num_microbatches=6))
    sampling = tfdp.sampling.FixedSize
    for batch_size in (6, 12, 6):
        model.fit(X, Y, batch_size=batch_size, sampling=sampling(), steps_per_epoch=2, verbose=0)
    bounds = [event.event.l2_norm_bound / toy.CLIP for event in toy.events(model)]
    assert bounds == [1, 1, 2, 2, 1, 1]


def test_microbatches_are_clipped_as_means():
    # Equal records: every microbatch that is not empty has the same mean, above the clip norm, and
    # the sum counts them.
    optimizer = DPOptimizer(keras.optimizers.SGD(1.0), toy.query(denominator=1), 3)
    model = toy.private(toy.linear(), optimizer, loss=lambda y, p: p[:, 0])
    start = toy.weights(model)[0]
    x = np.ones([60, 4], "float32")  # 3 * (2/3)^60 < 10^-10: no microbatch is empty.
    model.fit(x, np.zeros(60, "int32"), batch_size=60, sampling=FullBatch(), verbose=0)
    assert np.linalg.norm(start - toy.weights(model)[0]) == pytest.approx(3 * toy.CLIP, rel=1e-5)


def test_microbatch_units_of_a_data_set_are_refused():
    # Nothing says how many examples of a data set come and go together.
    model = toy.private(toy.linear(), toy.dp(num_microbatches=2, privacy_unit="microbatch"))
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(6)
    with pytest.raises(ValueError, match="Pass arrays"):
        model.fit(batches, sampling=Shuffled(batch_size=2, population_size=4), verbose=0)
    assert model.ledger.total_count == 0


@pytest.mark.parametrize("batch_size", [None, 7])
def test_batches_that_do_not_hold_whole_units_are_refused(batch_size):
    optimizer = toy.dp(num_microbatches=2, privacy_unit="microbatch")
    with pytest.raises(ValueError, match=f"batch_size={batch_size}"):
        optimizer.set_batch_size(batch_size)


def test_microbatch_ids_of_the_caller():
    optimizer, variable = toy.dp(num_microbatches=2), matrix()
    ids = [0] * 6 + [1] * 6
    (gradient,) = optimizer.private_gradients(
        squared_error(variable), [variable], EXAMPLES, microbatch_ids=ids
    )
    total = np.zeros([4, 2])
    for half in (slice(0, 6), slice(6, 12)):
        with tf.GradientTape() as tape:
            loss = squared_error(variable)([leaf[half] for leaf in EXAMPLES])
        mean = tape.gradient(loss, variable).numpy()
        total += mean * min(1, toy.CLIP / np.linalg.norm(mean))
    np.testing.assert_allclose(gradient, total / 10, rtol=1e-5)
    with pytest.raises(ValueError, match="microbatch_ids"):
        toy.dp().private_gradients(
            squared_error(variable), [variable], EXAMPLES, microbatch_ids=ids
        )


# Noise.

WIDE = 1000


def noise_of_steps(stddev, steps, **kwargs):
    """Returns [kernel's, bias'] noise of each step: updates of a model whose gradients are zero."""
    query = tfdp.GaussianAverageQuery(1.0, stddev=stddev, denominator=4)
    optimizer = DPOptimizer(keras.optimizers.SGD(1.0), query, **kwargs)
    layers = [keras.Input((1,)), L.Dense(WIDE, bias_initializer="zeros")]
    model = tfdp.keras.make_private(keras.Sequential(layers))
    model.compile(optimizer, loss=lambda y, p: 0.0 * keras.ops.sum(p, axis=-1))
    x, noise = np.zeros([8, 1], "float32"), []
    for _ in range(steps):
        before = toy.weights(model)
        model.fit(x, x, batch_size=8, sampling=FullBatch(), verbose=0)
        noise.append([4 * (b - a).ravel() for b, a in zip(before, toy.weights(model), strict=True)])
    return model, noise


@pytest.mark.parametrize(
    "kwargs", [{}, {"physical_batch_size": 2}, {"physical_batch_size": 8}], ids=str
)
def test_noise_is_one_draw_of_the_same_scale_for_every_variable(
    kwargs, check_stddev, check_independent
):
    # Four chunks with noise each would have twice the standard deviation, which check_stddev would
    # reject.
    model, noise = noise_of_steps(1.5, 2, **kwargs)
    for step in noise:
        for variable in step:
            check_stddev(variable, 1.5)
        check_independent(step[0], step[1])  # Kernel and bias have the same number of coordinates.
    check_independent(noise[0][0], noise[1][0])
    assert model.ledger.total_count == 2
    assert {event.event for event in toy.events(model)} == {tfdp.GaussianSumEvent(1.0, 1.5)}


def test_noise_differs_between_functions_that_were_traced_again(check_independent):
    variable = tf.Variable(tf.zeros([WIDE]))
    optimizer = toy.dp(stddev=1.0)

    def draw():
        # A new function each time: a seed fixed at tracing would repeat itself.
        step = tf.function(
            lambda x: optimizer.private_gradients(
                lambda e: tf.reduce_sum(e * variable), [variable], x
            ),
            autograph=False,
        )
        return step(tf.zeros([2, WIDE]))[0].numpy()

    check_independent(draw(), draw())


# Guards and the ledger.


class Refused(Exception):
    pass


@pytest.mark.parametrize(
    "arguments", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}], ids=str
)
@pytest.mark.parametrize("error", [Refused("no"), RuntimeError("no"), OSError("no")], ids=repr)
def test_guard_that_raises_prevents_the_update(error, arguments):
    def guard(ledger, event):
        if ledger.total_count == 2:
            raise error

    model = toy.private(toy.linear(), **arguments)
    model.optimizer.charging.add_guard(guard)
    after_two = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: after_two.append(toy.weights(model))
    )
    with pytest.raises(type(error), match="no") as caught:
        model.fit(X, Y, batch_size=4, sampling=Shuffled(), epochs=2, verbose=0, callbacks=[note])
    assert caught.value is error
    assert model.ledger.total_count == int(model.optimizer.iterations) == 2
    toy.assert_weights(model, after_two[-1], 0)
    model.optimizer.charging.remove_guard(guard)
    model.fit(X, Y, batch_size=4, steps_per_epoch=2, verbose=0)
    assert model.ledger.total_count == 4


def test_error_of_an_earlier_step_is_not_reported_for_a_later_one():
    model = toy.private(toy.linear())
    optimizer = model.optimizer

    def guard(ledger, event):
        raise Refused("earlier")

    optimizer.build(model.trainable_variables)
    optimizer.charging.add_guard(guard)
    with pytest.raises(Refused):
        optimizer.private_gradients(lambda e: tf.reduce_sum(model(e)), model.trainable_variables, X)
    optimizer.charging.remove_guard(guard)
    bad = tf.data.Dataset.from_tensors((X, Y)).map(
        lambda x, y: (tf.debugging.check_numerics(x / 0.0, "bad"), y)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        model.fit(bad, sampling=FullBatch(), verbose=0)


def test_other_ledger_is_refused():
    model = toy.private(toy.linear())
    model.fit(X, Y, batch_size=4, steps_per_epoch=2, verbose=0)
    ledger, weights = model.ledger, toy.weights(model)
    model.ledger = tfdp.PrivacyLedger()
    with pytest.raises(LedgerMismatchError, match="model.ledger"):
        model.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0)
    toy.assert_weights(model, weights, 0)
    longer = tfdp.PrivacyLedger()  # As many steps, but of another run.
    longer.append(tfdp.NonPrivateEvent(), 10)
    model.ledger = longer
    with pytest.raises(LedgerMismatchError):
        model.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0)
    assert longer.total_count == 10
    model.ledger = ledger
    model.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0)
    assert ledger.total_count == 3


def test_ledger_may_hold_other_releases():
    ledger = tfdp.PrivacyLedger()
    ledger.append(tfdp.NonPrivateEvent())
    model = toy.private(toy.linear(), toy.dp(ledger=ledger), run_eagerly=True)
    model.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0)
    ledger.append(tfdp.NonPrivateEvent())
    model.fit(X, Y, batch_size=4, steps_per_epoch=1, verbose=0)
    assert ledger.total_count == 4


@pytest.mark.parametrize("name", ["query", "num_microbatches", "privacy_unit"])
def test_what_events_are_derived_from_cannot_change(name):
    optimizer = toy.dp()
    with pytest.raises(AttributeError):
        setattr(optimizer, name, object())


# Construction.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"inner_optimizer": "sgd"}, TypeError, "inner_optimizer"),
        ({"inner_optimizer": None}, TypeError, "inner_optimizer"),
        ({"query": 1.0}, TypeError, "query"),
        ({"num_microbatches": 0}, ValueError, "num_microbatches"),
        ({"num_microbatches": 2.0}, TypeError, "num_microbatches"),
        ({"num_microbatches": True}, TypeError, "num_microbatches"),
        ({"privacy_unit": "user"}, ValueError, "privacy_unit"),
        ({"privacy_unit": "microbatch"}, ValueError, "num_microbatches"),
        ({"physical_batch_size": 0}, ValueError, "physical_batch_size"),
        ({"physical_batch_size": 4.0}, TypeError, "physical_batch_size"),
        ({"engine": "fast"}, ValueError, "engine"),
        ({"loss_scale_factor": 0.0}, ValueError, "loss_scale_factor"),
        ({"loss_scale_factor": float("inf")}, ValueError, "loss_scale_factor"),
        ({"loss_scale_factor": "8"}, TypeError, "loss_scale_factor"),
        ({"ledger": []}, TypeError, "ledger"),
    ],
    ids=str,
)
def test_bad_argument_is_named(arguments, error, message):
    arguments = {"inner_optimizer": keras.optimizers.SGD(0.1), "query": toy.query(), **arguments}
    with pytest.raises(error, match=message):
        DPOptimizer(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "follows the data"),
        (lambda: keras.optimizers.SGD(loss_scale_factor=8.0), "loss_scale_factor"),
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), "physical_batch_size"),
        (lambda: toy.dp(), "already a DPOptimizer"),
    ],
    ids=["loss_scale", "loss_scale_factor", "accumulation", "nested"],
)
def test_inner_optimizer_that_would_void_the_accounting_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        DPOptimizer(make(), toy.query())


def test_sampling_and_ledger_are_checked():
    optimizer = toy.dp()
    with pytest.raises(TypeError, match="tfdp.sampling"):
        optimizer.sampling = "poisson"
    with pytest.raises(TypeError, match="PrivacyLedger"):
        optimizer.ledger = []
    with pytest.raises(ValueError, match="Declare"):
        optimizer.sampling = Poisson()


def test_learning_rate_is_the_inner_optimizers():
    inner = keras.optimizers.SGD(0.5)
    optimizer = toy.dp(inner)
    assert float(optimizer.learning_rate) == 0.5
    optimizer.learning_rate = 0.25
    assert float(inner.learning_rate) == float(optimizer.learning_rate) == 0.25


@pytest.mark.parametrize(
    ("make", "inner_class"),
    [
        (tfdp.keras.DPKerasSGDOptimizer, keras.optimizers.SGD),
        (tfdp.keras.DPKerasAdamOptimizer, keras.optimizers.Adam),
        (tfdp.keras.DPKerasAdagradOptimizer, keras.optimizers.Adagrad),
    ],
)
def test_named_optimizers_are_compositions(make, inner_class):
    optimizer = make(l2_norm_clip=2.0, noise_multiplier=1.5, num_microbatches=8, learning_rate=0.25)
    assert type(optimizer) is DPOptimizer
    assert type(optimizer.inner_optimizer) is inner_class
    assert float(optimizer.learning_rate) == 0.25
    assert optimizer.num_microbatches == 8
    assert optimizer.query == tfdp.GaussianAverageQuery(2.0, stddev=3.0, denominator=8)
    optimizer = make(2.0, 1.5, denominator=32)
    assert optimizer.num_microbatches is None
    assert optimizer.query.denominator == 32
    with pytest.raises(TypeError, match="denominator"):
        make(2.0, 1.5)
