"""`fit` with a DPOptimizer takes the step that the paper writes down, and logs what records say."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import L, N, X, Y, crossentropy, fit_step

import tfdp
from tfdp.sampling import FullBatch, Poisson, Shuffled


def test_step_clips_each_example_sums_and_divides():
    model = toy.private()
    expected, norms = toy.step_by_hand(
        model, [lambda i=i: crossentropy(model, i) for i in range(N)]
    )
    assert min(norms) < toy.CLIP < max(norms)  # Otherwise the test could not tell.
    fit_step(model)
    toy.assert_weights(model, expected)
    assert model.ledger.total_count == 1


@pytest.mark.parametrize(
    ("compile_args", "optimizer_args"),
    [
        ({"jit_compile": True}, {}),
        ({"run_eagerly": True}, {}),
        ({}, {"physical_batch_size": 5}),
        ({"jit_compile": True}, {"physical_batch_size": 5}),
        ({}, {"engine": "bookkeeping"}),
        ({}, {"engine": "vectorized"}),
        ({}, {"engine": "loop"}),
        ({}, {"loss_scale_factor": 64.0}),
        ({}, {"num_microbatches": N}),
    ],
    ids=str,
)
def test_step_is_the_same_however_it_is_computed(compile_args, optimizer_args):
    model = toy.private(optimizer=toy.dp(**optimizer_args), **compile_args)
    expected, _ = toy.step_by_hand(model, [lambda i=i: crossentropy(model, i) for i in range(N)])
    fit_step(model, sampling=Shuffled(), batch_size=N)
    toy.assert_weights(model, expected)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Ftrl", "RMSprop", "SGD"])
def test_compiled_update_is_the_inner_optimizers(name):
    weights = []
    for jit_compile in (False, True):
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
        inner = getattr(keras.optimizers, name)(schedule, use_ema=name == "SGD")
        model = toy.private(toy.linear(), toy.dp(inner), jit_compile=jit_compile)
        start = toy.weights(model)
        fit_step(model, sampling=FullBatch(), epochs=3)
        assert int(model.optimizer.iterations) == 3
        weights.append([v.numpy() for v in [*model.trainable_variables, *inner.variables[2:]]])
        assert not np.allclose(weights[-1][0], start[0], atol=1e-3)
    for plain, compiled in zip(*weights, strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_several_steps_an_execution_are_that_many_events(run_eagerly):
    model = toy.private(toy.linear(), steps_per_execution=3, run_eagerly=run_eagerly)
    batches = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batches.append(batch)
    )
    for _ in range(2):  # Two epochs of 3 + 1 steps: the last execution is not full.
        before = model.ledger.total_count
        reference = toy.private(toy.linear())
        reference.set_weights(model.get_weights())
        for _ in range(4):
            losses = [lambda i=i, m=reference: crossentropy(m, i) for i in range(N)]
            reference.set_weights(toy.step_by_hand(reference, losses)[0])
        fit_step(model, steps_per_epoch=4, callbacks=[count])
        assert model.ledger.total_count == before + 4
        assert int(model.optimizer.iterations) == model.ledger.total_count
        toy.assert_weights(model, toy.weights(reference))
    assert len(batches) == 4  # Two executions an epoch.


def two_in_two_out():
    keras.utils.set_random_seed(3)
    a, b = keras.Input((3,), name="a"), keras.Input((1,), name="b")
    hidden = L.Dense(3, activation="tanh")(L.Concatenate()([a, b]))
    outputs = {
        "logits": L.Dense(2, name="logits")(hidden),
        "value": L.Dense(1, name="value")(hidden),
    }
    return keras.Model({"a": a, "b": b}, outputs)


def private_two_in_two_out(**kwargs):
    loss = {"logits": toy.LOGITS_LOSS, "value": "mse"}
    return toy.private(
        two_in_two_out(), loss=loss, loss_weights={"logits": 1.0, "value": 0.3}, **kwargs
    )


def test_train_on_batch():
    model = toy.private(toy.linear())
    expected, _ = toy.step_by_hand(model, [lambda i=i: crossentropy(model, i) for i in range(N)])
    logs = model.train_on_batch(X, Y, return_dict=True)
    toy.assert_weights(model, expected)
    assert np.isfinite(logs["loss"])
    assert [event.sampling for event in toy.events(model)] == [tfdp.events.UnknownSampling()]


def test_dropout_differs_between_records_and_between_steps():
    # All records are equal, and the loss is the sum of the outputs. Without clipping, the sum of
    # gradients with respect to a diagonal matrix counts, for each unit, in how many records it was
    # kept (times two).
    units, rows = 64, 16
    layers = [
        keras.Input((units,)),
        L.EinsumDense("bi,i->bi", units, name="diagonal"),
        L.Dropout(0.5, seed=1),
    ]
    model = tfdp.keras.make_private(keras.Sequential(layers))
    query = tfdp.GaussianAverageQuery(1e6, stddev=0.0, denominator=1)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query)
    model.compile(optimizer, loss=lambda y, y_pred: keras.ops.sum(y_pred, axis=-1))
    x = np.ones((rows, units), "float32")
    counts = []
    for _ in range(2):
        before = model.get_layer("diagonal").kernel.numpy()
        fit_step(model, x, x[:, :1])
        counts.append((before - model.get_layer("diagonal").kernel.numpy()) / 2)
    for count in counts:
        # One mask for all records would make every count 0 or 16; with independent masks such a
        # count has probability 2^-15 for each unit.
        assert np.isin(np.round(count), [0, rows]).sum() <= 3
        # Binomial(16, 1/2) has variance 4: the mean of 64 of them is off by 2.5 once in 10^23.
        assert 5.5 < count.mean() < 10.5
    # The same masks in both steps would give the same counts.
    assert np.abs(counts[0] - counts[1]).max() > 0.5


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_learns_without_a_loss_scale_that_follows_the_data(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        plain = toy.dense()
    finally:
        keras.config.set_dtype_policy(before)
    model = toy.private(plain, toy.dp(keras.optimizers.SGD(2.0)))
    assert type(model.optimizer) is tfdp.keras.DPOptimizer
    history = fit_step(model, epochs=15).history["loss"]
    assert all(w.dtype == np.float32 for w in toy.weights(model))
    assert toy.all_finite(model)
    assert history[-1] < 0.9 * history[0]


OPTIMIZERS = [
    "SGD",
    "Adam",
    "AdamW",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Adamax",
    "Nadam",
    "Ftrl",
    "Lion",
]


@pytest.mark.parametrize("name", [*OPTIMIZERS, "momentum"])
def test_optimizer_moves_weights_by_what_it_does_with_the_average(name):
    def make():
        if name == "momentum":
            return keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
        return getattr(keras.optimizers, name)(0.1)

    model = toy.private(toy.linear(), toy.dp(make()), run_eagerly=True)
    twin = toy.linear()
    twin_optimizer = make()
    for _ in range(2):
        total, _ = toy.gradients_by_hand(
            twin.trainable_variables, [lambda i=i: crossentropy(twin, i) for i in range(N)]
        )
        twin_optimizer.apply(
            [tf.constant(t / 10, tf.float32) for t in total], twin.trainable_variables
        )
    start = toy.weights(model)
    fit_step(model, epochs=2)
    assert toy.all_finite(model)
    assert np.abs(toy.weights(model)[0] - start[0]).max() > 1e-5
    toy.assert_weights(model, toy.weights(twin), 1e-4)


class Draws(Poisson):
    """Poisson, except that the test says what is drawn."""

    def draw(self, generator):
        yield from self.samples
        while True:
            yield self.samples[-1]


def drawing(*samples):
    """Returns a policy that gives these samples, one after another."""
    name = f"Draws{len(samples)}"
    return type(name, (Draws,), {"samples": [np.asarray(s, np.int64) for s in samples]})()


def log_of(history):
    return {name: values[0] for name, values in history.history.items()}


def test_metrics_are_those_of_the_records_without_padding():
    weight = np.linspace(0.5, 2, N).astype("float32")
    model = toy.private(
        toy.dense(kernel_regularizer=keras.regularizers.L2(0.1)),
        toy.dp(
            keras.optimizers.SGD(0.0)
        ),  # The weights stand still, so that the exact values are known.
        metrics=["accuracy"],
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="weighted")],
    )
    kept = np.array([0, 3, 4, 5, 9])
    labels = model.predict(X, verbose=0).argmax(1)
    labels[::3] = 1 - labels[::3]
    right = np.arange(N) % 3 != 0
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(X)).numpy()
    penalty = 0.1 * np.sum(model.get_layer("first").kernel.numpy() ** 2)
    history = fit_step(
        model,
        y=labels,
        sample_weight=weight,
        sampling=drawing(kept[:3], kept[3:]),
        batch_size=4,
        steps_per_epoch=2,
        constant_batch_size=True,  # So that there is padding.
    )
    assert log_of(history) == pytest.approx(
        {
            "loss": (losses * weight)[kept].mean() + penalty,
            "accuracy": right[kept].mean(),
            "weighted": np.average(right[kept], weights=weight[kept]),
        },
        rel=1e-5,
    )


@pytest.mark.parametrize("jit_compile", [False, True])
def test_empty_sample_is_charged_and_moves_nothing(jit_compile):
    model = toy.private(metrics=["accuracy"], jit_compile=jit_compile)
    start = toy.weights(model)
    history = fit_step(model, sampling=drawing([]), batch_size=1, steps_per_epoch=3)
    toy.assert_weights(model, start, 0)
    assert model.ledger.total_count == 3
    assert np.isfinite(list(log_of(history).values())).all()


def test_empty_sample_gets_noise():
    model = toy.private(toy.linear(), toy.dp(stddev=1.0))
    start = toy.weights(model)
    fit_step(model, sampling=drawing([]), batch_size=1, steps_per_epoch=1)
    assert np.abs(toy.weights(model)[0] - start[0]).min() > 0


def test_tiny_sampling_probability_does_not_crash():
    x, y = toy.data(200)
    model = toy.private(toy.linear())
    model.fit(
        x, y, batch_size=1, steps_per_epoch=12, verbose=0
    )  # Empty with probability 0.37 each time.
    (entry,) = model.ledger
    assert entry.count == 12
    assert entry.event.sampling == tfdp.events.PoissonSampling(1 / 200, 200)


@pytest.mark.parametrize("outputs", ["one", "two"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e38])
def test_record_that_is_not_finite_leaves_no_trace(outputs, bad):
    def run(x, samples):
        kwargs = {"steps_per_epoch": 2, "batch_size": 4, "sampling": drawing(*samples), "epochs": 1}
        if outputs == "one":
            model = toy.private(toy.linear(), loss="mse", metrics=["mae"])
            history = fit_step(model, x, x[:, :2] + 1, **kwargs)
        else:
            model = private_two_in_two_out(metrics={"value": ["mae"]})
            history = fit_step(
                model,
                {"a": x[:, :3], "b": x[:, 3:]},
                {"logits": Y, "value": x[:, :1] + 2},
                **kwargs,
            )
        assert toy.all_finite(model)
        return toy.weights(model), log_of(history), list(model.ledger)

    x = X.copy()
    x[7] = bad
    with_record = run(x, [[0, 7, 3, 5], [2, 7, 8]])
    without = run(X, [[0, 3, 5], [2, 8]])
    for a, b in zip(with_record[0], without[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-7)
    assert with_record[1] == pytest.approx(without[1], rel=1e-6)
    assert with_record[2] == without[2]


def test_learning_rate_schedule_object():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.0])
    model = toy.private(toy.linear(), toy.dp(keras.optimizers.SGD(schedule)))
    expected, _ = toy.step_by_hand(model, [lambda i=i: crossentropy(model, i) for i in range(N)])
    # Steps 0 and 1 have 0.5; later ones stand still.
    fit_step(model, epochs=2)
    after_two = toy.weights(model)
    assert np.abs(after_two[0] - expected[0]).max() > 1e-4
    fit_step(model)
    toy.assert_weights(model, after_two, 0)


def test_keras_callbacks_work(tmp_path):
    rates = [0.4, 0.3, 0.2]
    model = toy.private(toy.linear(), metrics=["accuracy"])
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch]),
        # No epoch improves val_loss by 100: from the second on, each divides the rate by ten.
        keras.callbacks.ReduceLROnPlateau(
            monitor="val_loss", factor=0.1, patience=1, min_delta=100.0
        ),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    public = (X.copy(), Y.copy())
    history = fit_step(model, epochs=3, callbacks=callbacks, validation_data=public)
    assert history.history["learning_rate"] == pytest.approx(rates)
    assert float(model.optimizer.learning_rate) == pytest.approx(0.02)
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert len(lines) == 4
    assert set(lines[0].split(",")) >= {"epoch", "accuracy", "loss", "val_loss", "val_accuracy"}
    logged = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    assert float(logged["loss"]) == pytest.approx(history.history["loss"][0])


def test_validation_data_is_evaluated_on_the_updated_weights():
    x, y = toy.data(7, seed=5)
    model = toy.private(toy.linear(), metrics=["accuracy"])
    history = log_of(fit_step(model, validation_data=(x, y)))
    loss, accuracy = model.evaluate(x, y, verbose=0)
    assert (history["val_loss"], history["val_accuracy"]) == pytest.approx((loss, accuracy))
    assert model.ledger.total_count == 1


def test_validation_split_trains_on_the_first_part_only():
    model = toy.private(toy.linear())
    losses = [lambda i=i: crossentropy(model, i) for i in range(9)]
    expected, _ = toy.step_by_hand(model, losses)
    history = log_of(fit_step(model, validation_split=0.25))
    toy.assert_weights(model, expected)
    assert history["val_loss"] == pytest.approx(model.evaluate(X[9:], Y[9:], verbose=0))
    (event,) = toy.events(model)
    assert event.sampling.population_size == 9


@pytest.mark.parametrize("unroll", [False, True])
def test_a_compiled_step_of_recurrent_layers_is_that_by_hand(unroll, caplog):
    layers = [L.Reshape((4, 1)), L.SimpleRNN(3, unroll=unroll), L.Dense(2)]
    keras.utils.set_random_seed(3)
    model = toy.private(keras.Sequential([keras.Input((4,)), *layers]), jit_compile=True)
    assert model.jit_compile
    assert "jit_compile=False" not in caplog.text
    expected, _ = toy.step_by_hand(model, [lambda i=i: crossentropy(model, i) for i in range(N)])
    fit_step(model, sampling=Shuffled(), batch_size=N)
    toy.assert_weights(model, expected)


def test_compiled_step_is_compiled_once():
    """XLA takes what it believes to be a shape for a constant, and compiles again for another."""
    model = toy.private(jit_compile=True)
    seconds = []
    for _ in range(4):
        begin = time.perf_counter()
        model.train_on_batch(*toy.data())
        seconds.append(time.perf_counter() - begin)
    assert min(seconds[1:]) < 0.05 * seconds[0]


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_compiling_again_with_the_same_optimizer_takes_other_losses_and_metrics(run_eagerly):
    model = toy.private(metrics=None)
    fit_step(model)
    loss = keras.losses.MeanSquaredError()
    model.compile(model.optimizer, loss=loss, metrics=["mae"], run_eagerly=run_eagerly)
    labels = np.eye(2, dtype="float32")[Y]

    def loss_of(i):
        return loss(labels[i : i + 1], model(X[i : i + 1]))

    expected, _ = toy.step_by_hand(model, [lambda i=i: loss_of(i) for i in range(N)])
    history = fit_step(model, y=labels).history
    toy.assert_weights(model, expected)
    assert set(history) == {"loss", "mae"} and model.ledger.total_count == 2
