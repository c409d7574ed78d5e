"""Updates of metrics may change metrics and nothing else, eagerly and in a graph."""

import keras
import pytest
import tensorflow as tf

from tfdp.keras import NotPrivateError
from tfdp.keras.metric_updates import watched


@pytest.mark.parametrize("graph", [False, True])
def test_metrics_are_updated_and_nothing_else_is(graph):
    metric, other = keras.metrics.Mean(), keras.Variable(0.0)

    def run(update):
        call = tf.function(update, autograph=False) if graph else update
        return call()

    def allowed():
        metric.update_state(tf.constant([1.0, 3.0]))
        return metric.result()

    assert float(run(lambda: watched(allowed, metric.variables))) == 2.0

    def forbidden():
        other.assign(5.0)
        return tf.constant(0.0)

    with pytest.raises(NotPrivateError, match="leaves something of the training data behind"):
        run(lambda: watched(forbidden, metric.variables))
    assert float(other) == 0.0


def test_what_python_keeps_is_no_data():
    kept = []

    def update():
        kept.append(tf.constant([7.0]) + 1.0)
        return tf.constant(0.0)

    watched(update, [])
    assert tf.is_symbolic_tensor(kept[0])
