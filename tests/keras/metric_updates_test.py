"""Updates of metrics may change metrics and nothing else, and no step follows what they keep."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import L

import tfdp
from tfdp.keras import NotPrivateError, make_private
from tfdp.keras.metric_updates import watched
from tfdp.sampling import FullBatch


@pytest.mark.parametrize("graph", [False, True])
def test_metrics_are_updated_and_nothing_else_is(graph):
    metric, other = keras.metrics.Mean(), keras.Variable(0.0)

    def run(update):
        call = tf.function(update, autograph=False) if graph else update
        return call()

    def allowed():
        metric.update_state(tf.constant([1.0, 3.0]))
        return metric.result()

    assert float(run(lambda: watched(allowed, [], metric.variables))) == 2.0

    def forbidden():
        other.assign(5.0)
        return tf.constant(0.0)

    with pytest.raises(NotPrivateError, match="leaves something of the training data behind"):
        run(lambda: watched(forbidden, [], metric.variables))
    assert float(other) == 0.0


def test_what_python_keeps_is_no_data():
    kept = []

    def update():
        kept.append(tf.constant([7.0]) + 1.0)
        return tf.constant(0.0)

    watched(update, [], [])
    assert tf.is_symbolic_tensor(kept[0])


class RawSum(keras.metrics.Metric):
    """Keeps the sum of all labels, in a variable of its own or of somebody else's."""

    def __init__(self, variable=None):
        super().__init__(name="raw")
        self.total = self.add_variable((), "zeros", name="sum") if variable is None else variable

    def update_state(self, y, p, sample_weight=None):
        self.total.assign(self.total + tf.reduce_sum(tf.cast(y, self.total.dtype)))

    def result(self):
        return tf.convert_to_tensor(self.total)

    def reset_state(self):
        pass  # What one epoch left is there in the next.


class ScheduleOf(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, metric):
        self.metric = metric

    def __call__(self, step):
        return 0.1 + tf.convert_to_tensor(self.metric.total)


class FollowingPenalty(keras.regularizers.Regularizer):
    def __init__(self, metric):
        self.metric = metric

    def __call__(self, w):
        return self.metric.total.value * tf.reduce_sum(w)


class FollowingConstraint(keras.constraints.Constraint):
    def __init__(self, metric):
        self.metric = metric

    def __call__(self, w):
        return w + self.metric.total


class FollowingSGD(keras.optimizers.SGD):
    metric: RawSum

    def update_step(self, gradient, variable, learning_rate):
        variable.assign_add(self.metric.total + tf.zeros_like(gradient))


def trained(labels, metric, optimizer, run_eagerly, **kernel):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    model = keras.Model(inputs, L.Dense(1, **kernel)(inputs))
    query = tfdp.GaussianAverageQuery(1.0, stddev=0.0, denominator=8)
    model = toy.private(
        model,
        tfdp.keras.DPOptimizer(optimizer, query),
        lambda y, p: p[:, 0],  # Labels reach nothing but the metric.
        metrics=[metric],
        run_eagerly=run_eagerly,
    )
    x, y = np.ones((8, 3), "f"), np.full(8, labels, "f")
    model.fit(x, y, sampling=FullBatch(), epochs=2, verbose=0)
    return model


def steered(way):
    """Returns (metric, optimizer, arguments of a layer) where one step follows the metric."""
    metric, optimizer, kernel = RawSum(), keras.optimizers.SGD(0.1), {}
    if way == "regularizer":
        kernel["kernel_regularizer"] = FollowingPenalty(metric)
    if way == "constraint":
        kernel["kernel_constraint"] = FollowingConstraint(metric)
    if way == "schedule":
        optimizer = keras.optimizers.SGD(ScheduleOf(metric))
    if way == "function":
        optimizer = keras.optimizers.SGD(lambda: 0.1 + metric.total.value)
    if way == "update":
        optimizer = FollowingSGD(0.1)
        optimizer.metric = metric
    return metric, optimizer, kernel


STEERED = ["regularizer", "constraint", "schedule", "function", "update"]


@pytest.mark.parametrize("way", STEERED)
def test_steps_that_follow_a_metric_are_refused(way):
    metric, optimizer, kernel = steered(way)
    with pytest.raises(NotPrivateError, match="raw/sum, which a metric updates"):
        trained(7.0, metric, optimizer, False, **kernel)


@pytest.mark.parametrize("way", STEERED)
def test_eager_steps_find_nothing_in_a_metric(way):
    weights = []
    for labels in (0.0, 7.0):
        metric, optimizer, kernel = steered(way)
        model = trained(labels, metric, optimizer, True, **kernel)
        assert float(metric.total) == 16 * labels
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


class Shifted(L.Layer):
    def build(self, shape):
        self.shift = self.add_weight(shape=(), trainable=False, initializer="zeros")
        self.inner = L.Dense(1)

    def call(self, x):
        return self.inner(x) + self.shift


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("whose", ["a weight", "a frozen weight", "a learning rate"])
def test_metrics_that_write_to_what_is_trained_are_refused(whose, run_eagerly):
    inputs, optimizer = keras.Input((3,)), keras.optimizers.SGD(0.1)
    layer = Shifted()
    model = keras.Model(inputs, layer(inputs))
    variable = {
        "a weight": lambda: layer.inner.bias,
        "a frozen weight": lambda: layer.shift,
        "a learning rate": lambda: optimizer._learning_rate,
    }[whose]()
    before = variable.numpy()
    model = toy.private(
        model,
        tfdp.keras.DPOptimizer(
            optimizer, tfdp.GaussianAverageQuery(1.0, stddev=1.0, denominator=8)
        ),
        "mse",
        metrics=[RawSum(variable)],
        run_eagerly=run_eagerly,
    )
    with pytest.raises(NotPrivateError, match=r"Give the metric variables of its own"):
        model.fit(np.ones((8, 3), "f"), np.full(8, 7.0, "f"), batch_size=4, verbose=0)
    assert model.ledger.total_count == 0
    np.testing.assert_array_equal(variable.numpy(), before)


class Shuffled(keras.metrics.Mean):
    """Draws, as ranking metrics do to shuffle ties."""

    def __init__(self, generator):
        super().__init__(name="shuffled")
        self.generator = generator

    def update_state(self, y, p, sample_weight=None):
        drawn = keras.random.uniform(tf.shape(y), seed=self.generator)
        return super().update_state(drawn)


@pytest.mark.parametrize("of_layer", [False, True])
def test_metrics_may_draw_but_not_from_what_a_layer_draws_from(of_layer):
    dropout = L.Dropout(0.5)
    generator = dropout.seed_generator if of_layer else keras.random.SeedGenerator(1)
    model = make_private(keras.Sequential([keras.Input((4,)), dropout, L.Dense(1)]))
    model.compile(toy.dp(), "mse", metrics=[Shuffled(generator)], jit_compile=False)
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    if of_layer:
        with pytest.raises(NotPrivateError, match="seed_generator_state.* is its variable and the"):
            model.fit(x, y, verbose=0, sampling=FullBatch())
    else:
        before = np.array(generator.state)
        history = model.fit(x, y, verbose=0, epochs=2, sampling=FullBatch()).history["shuffled"]
        assert history[0] != history[1] and all(0 < value < 1 for value in history)
        assert np.any(before != np.array(generator.state))


class Counts(keras.metrics.Metric):
    """Counts labels below 3 by a function of (labels, the counts' variable)."""

    def __init__(self, update):
        super().__init__(name="counts")
        self.update = update
        self.counts = self.add_variable((3,), "zeros", name="counts")

    def update_state(self, y, p, sample_weight=None):
        self.update(tf.reshape(tf.cast(y, tf.int32), [-1]), self.counts)

    def result(self):
        return tf.reduce_sum(tf.convert_to_tensor(self.counts))


def _read(y, counts):
    counts.assign_add(tf.reduce_sum(tf.gather(tf.eye(3), y), 0))


def _written(y, counts):
    ones = tf.ones_like(y, tf.float32)
    counts.assign(tf.tensor_scatter_nd_add(tf.convert_to_tensor(counts), y[:, None], ones))


def _read_in_a_loop(y, counts):
    total = tf.map_fn(lambda i: tf.gather(tf.eye(3), i), y, fn_output_signature=tf.float32)
    counts.assign_add(tf.reduce_sum(total, 0))


def _asserted(y, counts):
    tf.debugging.assert_less(y, 3)
    tf.debugging.assert_greater(y, -1)
    counts.assign_add(tf.fill([3], tf.cast(tf.size(y), tf.float32) / 3))


def _selected(y, counts):
    of_them = tf.boolean_mask(tf.ones_like(y, tf.float32), y < 9)
    counts.assign_add(tf.fill([3], tf.reduce_sum(of_them) / 3))


def _written_by_a_kernel(y, counts):
    counts.value.scatter_nd_add(y[:, None], tf.ones_like(y, tf.float32))


def _sized(y, counts):
    counts.assign_add(tf.fill([3], tf.reduce_sum(tf.fill([y[0]], 1.0))))


LABELS = (np.arange(8) % 3).astype("float32")[:, None]


def counted(update, bad=None, run_eagerly=False, is_private=True):
    """Returns what the metric shows of an epoch on one batch, with one label that is bad."""
    y = LABELS.copy()
    if bad is not None:
        y[3] = bad
    model = keras.Sequential([keras.Input((2,)), L.Dense(1)])
    optimizer = keras.optimizers.SGD(0.0)
    sampling = {"batch_size": 8, "shuffle": False}
    if is_private:
        model = tfdp.keras.make_private(model)
        query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=8)
        optimizer = tfdp.keras.DPOptimizer(optimizer, query)
        sampling = {"sampling": FullBatch()}
    model.compile(optimizer, "mse", metrics=[Counts(update)], run_eagerly=run_eagerly)
    history = model.fit(np.ones([8, 2], "float32"), y, verbose=0, **sampling).history
    return history["counts"][0]


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("update", [_read, _written, _read_in_a_loop, _asserted])
def test_no_label_ends_the_run_by_a_metric(update, run_eagerly):
    """TensorFlow's errors show the labels of a sample."""
    assert counted(update, run_eagerly=run_eagerly) == 8.0
    for bad in (7, -1):
        shown = counted(update, bad, run_eagerly)
        assert shown == 8.0 if update is _asserted else np.isnan(shown)
        with pytest.raises(tf.errors.InvalidArgumentError):
            counted(update, bad, run_eagerly, is_private=False)


def test_how_many_a_metric_selects_may_follow_records():
    assert counted(_selected) == 8.0
    assert counted(_selected, 20.0) == pytest.approx(7.0)


@pytest.mark.parametrize("update", [_written_by_a_kernel, _sized])
def test_metrics_whose_kernels_get_no_other_numbers_are_refused(update):
    with pytest.raises(NotPrivateError, match="would show raw training data.*private_metrics"):
        counted(update)
    if update is _written_by_a_kernel:
        assert counted(update, is_private=False) == 8.0
        with pytest.raises(tf.errors.InvalidArgumentError):
            counted(update, 7, is_private=False)


class Marks(keras.metrics.Metric):
    """Marks the place that the largest label of the batch before has named."""

    def __init__(self):
        super().__init__(name="counts")
        self.marks = self.add_variable((3,), "zeros", name="marks")
        self.place = self.add_variable((), "zeros", dtype="int32", name="place")

    def update_state(self, y, p, sample_weight=None):
        place, marks = (tf.convert_to_tensor(v) for v in (self.place, self.marks))
        self.marks.assign(tf.tensor_scatter_nd_update(marks, [[place]], [1.0]))
        self.place.assign(tf.cast(tf.reduce_max(y), tf.int32))

    def result(self):
        return tf.reduce_sum(tf.convert_to_tensor(self.marks))

    def reset_state(self):
        pass  # As in `RawSum`.


def test_places_that_a_metric_has_kept_are_checked():
    """The second batch writes where labels of the first have said."""

    def shown(bad=None):
        y = LABELS.copy()
        if bad is not None:
            y[3] = bad
        model = tfdp.keras.make_private(keras.Sequential([keras.Input((2,)), L.Dense(1)]))
        query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=8)
        optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.0), query)
        model.compile(optimizer, "mse", metrics=[Marks()])
        x = np.ones([8, 2], "float32")
        history = model.fit(x, y, epochs=2, verbose=0, sampling=FullBatch()).history
        return history["counts"][-1]

    assert shown() == 2.0
    assert np.isnan(shown(7))


@pytest.mark.parametrize("is_private", [False, True])
def test_metrics_see_nothing_but_records(is_private):
    """`fit` makes their variables without an update. Power: this metric never begins anew."""

    class Updates(RawSum):
        def update_state(self, y, p, sample_weight=None):
            self.total.assign(self.total + 1.0)

    model = keras.Sequential([keras.Input((2,)), L.Dense(1)])
    optimizer, sampling = keras.optimizers.SGD(0.0), {"batch_size": 8, "shuffle": False}
    if is_private:
        model, optimizer, sampling = make_private(model), toy.dp(), {"sampling": FullBatch()}
    model.compile(optimizer, "mse", metrics=[Updates()])
    x = np.ones([8, 2], "float32")
    history = model.fit(x, LABELS, epochs=2, verbose=0, **sampling).history
    assert history["raw"] == [1.0, 2.0]


@pytest.mark.parametrize("is_sparse", [False, True])
def test_accuracies_of_the_best_classes_are_those_of_keras(is_sparse):
    """Labels that are no classes, too, count as wrong, and end nothing."""
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    labels = np.array([0, 1, 2, 3, 4, 5, 0, 1])
    kind = "SparseTopKCategoricalAccuracy" if is_sparse else "TopKCategoricalAccuracy"
    y = labels if is_sparse else np.eye(6, dtype="float32")[labels]

    def shown(model, optimizer, y, **kwargs):
        # The loss of no record is NaN for a label that is no class.
        model.compile(
            optimizer,
            lambda y, p: keras.ops.mean(p, axis=-1),
            metrics=[getattr(keras.metrics, kind)(k=2, name="best")],
        )
        return model.fit(x, y, verbose=0, **kwargs).history["best"]

    def network():
        keras.utils.set_random_seed(0)
        return keras.Sequential([keras.Input((4,)), L.Dense(6)])

    for targets in (y, np.where(labels < 5, labels, [2**31 - 1, -7] * 4)) if is_sparse else (y,):
        optimizer = keras.optimizers.SGD(0.0)
        plain = shown(network(), optimizer, targets, batch_size=8, shuffle=False)
        private = shown(make_private(network()), toy.dp(), targets, sampling=FullBatch())
        assert 0 < private[0] < 1
        np.testing.assert_allclose(private, plain)


class Hides(tfdp.keras.DPModel):
    """A step reads what a metric keeps, and `metrics` has it only where metrics are updated."""

    def __init__(self):
        super().__init__()
        self.out, self.kept, self.asked = L.Dense(2), keras.metrics.Sum(name="kept"), 0

    def call(self, x):
        return self.out(x) * (1.0 + self.kept.variables[0])

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.kept.update_state(x)
        return {"kept": self.kept.result()}

    @property
    def metrics(self):
        called = {frame.function for frame in inspect.stack()}
        return [self.kept] if called & {"update", "reset_metrics"} else []


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_metrics_that_a_step_was_not_kept_from_reading_may_not_change(run_eagerly):
    model = Hides()
    model.compile(toy.dp(), loss=toy.LOGITS_LOSS, run_eagerly=run_eagerly)
    with pytest.raises(NotPrivateError, match="leaves something of the training data behind"):
        model.fit(toy.X, toy.Y, sampling=FullBatch(), verbose=0)
    assert float(model.kept.result()) == 0.0


class Notes(L.Layer):
    """Keeps the mean of what it is called on."""

    def __init__(self, name="seen"):
        super().__init__()
        self.mean = keras.metrics.Mean(name=name)

    def call(self, inputs):
        self.mean.update_state(keras.ops.mean(inputs))
        return inputs


@pytest.mark.parametrize("validated", [False, True])
def test_a_metric_that_a_layer_keeps_is_shown_where_records_are_public_only(validated):
    model = toy.private(keras.Sequential([keras.Input((4,)), Notes(), L.Dense(2)]))
    public = {"validation_data": (toy.X, toy.Y)} if validated else {}
    history = model.fit(toy.X, toy.Y, batch_size=10, epochs=2, verbose=0, **public).history
    assert "seen" not in history and "loss" in history  # Keras would show the mean of all records.
    assert ("val_seen" in history) is validated
    found = model.evaluate(toy.X, toy.Y, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["seen"], np.mean(toy.X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_a_metric_that_a_layer_keeps_takes_no_others_place(name):
    histories = []
    for layers in ([Notes(name)], []):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), *layers, L.Dense(2)])
        model = toy.private(model, metrics=["accuracy"])
        histories.append(model.fit(toy.X, toy.Y, sampling=FullBatch(), verbose=0).history)
    assert histories[0] == histories[1]
