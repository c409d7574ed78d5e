"""tfdp.sampling.pipelines: no thread tunes what samples come from.

That the end would wait for it is not shown here: now and then that test would take minutes.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.sampling import Poisson, batches


def is_tuned(dataset):
    return dataset.options().autotune.enabled is not False


def test_samples_are_not_tuned():
    x = np.zeros([10, 2], np.float32)
    assert not is_tuned(batches(x, None, None, Poisson().resolve(10, 5)))
    assert is_tuned(tf.data.Dataset.from_tensor_slices(x))


@pytest.mark.parametrize("rows", [20, 40_000], ids=["small", "large"])
def test_fit_goes_through_data_sets_that_are_not_tuned(rows, monkeypatch):
    seen = []
    iterate = tf.data.Dataset.__iter__
    iterators = type(tf.data.Dataset.range(1))
    for kind in (iterators, *iterators.__mro__[1:-1]):
        if "__iter__" in vars(kind):
            monkeypatch.setattr(kind, "__iter__", lambda d: seen.append(d) or iterate(d))
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(1)])
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=rows)
    model = tfdp.keras.make_private(model)
    model.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query), "mse")
    x = np.zeros([rows, 40], np.float32)
    model.fit(x, x[:, :1], batch_size=rows // 2, epochs=2, verbose=0)
    assert seen and not any(map(is_tuned, seen))
