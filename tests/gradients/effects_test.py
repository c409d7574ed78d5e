"""What a record's forward pass or loss would leave behind is refused, whatever holds it."""

import keras
import pytest
import tensorflow as tf

import tfdp
from tfdp.gradients import ModelLoss, SideEffectError

L = keras.layers
ENGINES = ["bookkeeping", "vectorized", "loop", "auto"]


@keras.saving.register_keras_serializable("effects_test")
class Keeps(L.Layer):
    """Does something with its input before it is passed on. No rule knows it."""

    def __init__(self, keep):
        super().__init__()
        self.keep = keep

    def call(self, inputs):
        return inputs + 0.0 * self.keep(inputs)


class Promised(Keeps):
    """The same, of which somebody says that it treats records separately."""


tfdp.gradients.register_rule(Promised, tfdp.gradients.RecordWise())


def keeps(how):
    """Returns a function of a tensor with a side effect, which returns a number."""
    variable = tf.Variable(0.0)
    of_keras = keras.Variable(0.0)
    vector = tf.Variable([0.0, 0.0])
    mean = keras.metrics.Mean()
    mean.update_state(0.0)
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    seen = []

    def in_a_branch(x):
        return tf.cond(
            tf.reduce_sum(x) > -1e9, lambda: variable.assign(tf.reduce_sum(x)), lambda: tf.zeros([])
        )

    def in_a_loop(x):
        def body(i, total):
            variable.assign_add(tf.reduce_sum(x))
            return i + 1, total

        return tf.while_loop(lambda i, _: i < 2, body, (0, tf.zeros([])))[1]

    def in_a_function(x):
        return tf.function(lambda x: variable.assign_add(tf.reduce_sum(x)), autograph=False)(x)

    def in_a_table(x):
        table.insert(tf.zeros([], tf.int64), tf.reduce_sum(x))
        return tf.zeros([])

    def in_python(x):
        def on_host(x):
            seen.append(x.numpy())
            return x

        return tf.reduce_sum(tf.py_function(on_host, [x], tf.float32))

    def by_numpy(x):
        def on_host(x):
            seen.append(x)
            return x

        return tf.reduce_sum(tf.numpy_function(on_host, [x], tf.float32))

    def by_numpy_without_state(x):
        def on_host(x):
            seen.append(x)
            return x

        return tf.reduce_sum(tf.numpy_function(on_host, [x], tf.float32, stateful=False))

    def in_a_metric(x):
        mean.update_state(x)
        return mean.result()

    return {
        "tf.Variable": lambda x: variable.assign(tf.reduce_sum(x)),
        "tf.Variable, added": lambda x: variable.assign_add(tf.reduce_sum(x)),
        "part of a tf.Variable": lambda x: vector[0].assign(tf.reduce_sum(x))[0],
        "rows of a tf.Variable": lambda x: tf.reduce_sum(
            vector.scatter_nd_add([[0]], [tf.reduce_sum(x)])
        ),
        "keras.Variable": lambda x: of_keras.assign(tf.reduce_sum(x)),
        "branch": in_a_branch,
        "loop": in_a_loop,
        "function": in_a_function,
        "table": in_a_table,
        "py_function": in_python,
        "numpy_function": by_numpy,
        "numpy_function, stateless": by_numpy_without_state,
        "metric that nobody knows": in_a_metric,
    }[how]


HOLDERS = [
    *("tf.Variable", "tf.Variable, added", "part of a tf.Variable", "rows of a tf.Variable"),
    *("keras.Variable", "branch", "loop", "function", "table", "py_function", "numpy_function"),
    *("numpy_function, stateless", "metric that nobody knows"),
]


def chain(*layers):
    return keras.Sequential([keras.Input((2,)), L.Dense(2), *layers])


def total(model, engine, loss=lambda y, outputs: tf.reduce_sum(outputs)):
    return tfdp.clipped_gradient_sum(
        ModelLoss(model, loss),
        model.trainable_variables,
        (tf.ones([3, 2]), tf.zeros([3])),
        tfdp.GaussianSumQuery(1.0, 1.0),
        engine=engine,
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_state_that_a_layer_leaves_is_refused(holder, engine):
    with pytest.raises(SideEffectError):
        total(chain(Keeps(keeps(holder))), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_state_that_a_loss_leaves_is_refused(holder, engine):
    keep = keeps(holder)

    def loss(y, outputs):
        return tf.reduce_sum(outputs) + 0.0 * keep(outputs)

    with pytest.raises(SideEffectError):
        total(chain(), engine, loss)


@pytest.mark.parametrize("holder", HOLDERS)
def test_state_that_a_promised_layer_leaves_is_refused(holder):
    # It runs on the whole batch.
    with pytest.raises(SideEffectError):
        total(chain(Promised(keeps(holder))), "bookkeeping")


@pytest.mark.parametrize("engine", ENGINES)
def test_what_python_keeps_is_a_symbol_not_data(engine):
    # Also eagerly: every engine builds a graph of a record's loss before it runs.
    seen = []

    def keep(x):
        seen.append(x)
        return 0.0

    total(chain(Keeps(keep)), engine)
    assert seen
    assert all(tf.is_symbolic_tensor(x) for x in seen)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_only_reads_prints_or_checks_is_allowed(engine):
    constant = tf.Variable(2.0)
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([0, 1], [1.0, 2.0], tf.int64, tf.float32), 0.0
    )

    def harmless(x):
        tf.debugging.assert_all_finite(x, "finite")
        return constant + table.lookup(tf.ones([], tf.int64))

    total(chain(Keeps(harmless)), engine)
    assert constant.numpy() == 2.0


@pytest.mark.parametrize("engine", ENGINES)
def test_functions_of_an_older_kind_are_named_for_what_they_are(engine):
    def loss(y, outputs):
        labels, logits = tf.ones([1, 2], tf.int32), tf.reshape(outputs, [1, 1, 2])
        return keras.losses.CTC()(labels, tf.repeat(logits, 4, 1))

    with pytest.raises(
        SideEffectError, match=r"a function of an older kind, such as keras\.losses"
    ):
        total(chain(), engine, loss)
