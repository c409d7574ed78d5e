"""Where TensorFlow rounds the factors of products, no norm is taken from factors."""

import json
import os
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.gradients import ModelLoss, UnsupportedModelError
from tfdp.query import rounding

QUERY = tfdp.GaussianSumQuery(1.0, 0.0)


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU, as far as anybody asks; and a function that switches TensorFloat-32."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["a GPU"])
    switch = tf.config.experimental.enable_tensor_float_32_execution
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    yield switch
    switch(before)


@pytest.fixture
def problem():
    model = keras.Sequential([keras.Input((5, 4)), keras.layers.Dense(3), keras.layers.Flatten()])
    model.add(keras.layers.Dense(2))
    loss = ModelLoss(model, keras.losses.MeanSquaredError())
    rng = np.random.default_rng(0)
    examples = tf.constant(rng.normal(size=[6, 5, 4]), tf.float32), tf.ones([6, 2])
    return loss, model.trainable_variables, examples


def _sum(problem, engine):
    return tfdp.clipped_gradient_sum(*problem, QUERY, engine=engine).sample_state


def test_products_are_exact_by_default_on_a_cpu():
    assert rounding.products_are_rounded() is None


@pytest.mark.parametrize(
    "name",
    ["ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "TF_SET_ONEDNN_FPMATH_MODE"],
)
def test_environment_says_that_they_are_rounded(name, monkeypatch):
    for mode in ("STRICT", "strict", ""):
        monkeypatch.setenv(name, mode)
        assert rounding.products_are_rounded() is None
    for mode in ("BF16", "tf32", "ANY", "F16"):
        monkeypatch.setenv(name, mode)
        assert name in rounding.products_are_rounded()


def test_gpu_rounds_them_unless_told_not_to(gpu):
    gpu(True)
    assert "enable_tensor_float_32_execution(False)" in rounding.products_are_rounded()
    gpu(False)
    assert rounding.products_are_rounded() is None


def test_book_keeping_is_refused_with_the_remedy(problem, gpu):
    gpu(True)
    with pytest.raises(UnsupportedModelError, match=r"enable_tensor_float_32_execution\(False\)"):
        _sum(problem, "bookkeeping")
    gpu(False)
    _sum(problem, "bookkeeping")


def test_auto_vectorizes_and_warns(problem, gpu, caplog):
    gpu(False)
    expected = _sum(problem, "auto")
    assert not caplog.records
    gpu(True)
    for left, right in zip(_sum(problem, "auto"), expected, strict=True):
        # Clipped to a little less.
        np.testing.assert_allclose(left, right, rtol=5e-3, atol=1e-6)
    (record,) = (r for r in caplog.records if r.name == "tfdp")
    assert record.levelname == "WARNING"
    assert "enable_tensor_float_32_execution(False)" in record.message


def test_clip_leaves_room_for_rounded_records(gpu):
    # Halfway between numbers of 8 digits, and a little above: these round up by the most.
    records = np.nextafter(np.arange(128, 256, dtype=np.float32) / 128 + 2.0**-8, np.float32(2))
    rounded = tf.cast(tf.cast(records, tf.bfloat16), tf.float32).numpy()
    growth = float(np.max(rounded / records))
    assert growth > 1 + 2.0**-8.01
    gpu(False)
    assert growth * float(rounding.down(1.0, tf.float32)) > 1
    gpu(True)
    assert growth * float(rounding.down(1.0, tf.float32)) <= 1


SCRIPT = """
    import json, sys
    import keras, numpy as np, tensorflow as tf, tfdp
    from tfdp.gradients import ModelLoss
    from tfdp.query import rounding

    NUMBER = 1.0038  # Becomes 1 in bfloat16.
    model = keras.Sequential([keras.Input((8, 128)), keras.layers.Dense(128, use_bias=False)])
    loss = ModelLoss(model, lambda y, outputs: NUMBER * tf.reduce_sum(outputs))
    examples = tf.fill([4, 8, 128], NUMBER), tf.ones([4])

    def norm(engine):
        (total,) = tfdp.clipped_gradient_sum(
            loss, model.trainable_variables, examples, tfdp.GaussianSumQuery(1.0, 0.0),
            mask=tf.range(4) == 2, engine=engine,
        ).sample_state
        return float(np.linalg.norm(total.numpy().astype(np.float64)))

    norms = [norm("auto"), norm("vectorized")]
    rounding.products_are_rounded = lambda: None
    print(json.dumps([*norms, norm("bookkeeping")]))
"""


def test_no_record_exceeds_the_clip_where_a_cpu_rounds():
    environment = {**os.environ, "ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *guarded, unguarded = json.loads(done.stdout.splitlines()[-1])
    for norm in guarded:
        assert 1 - 2.0**-6 < norm <= 1
    if abs(unguarded - 1) < 1e-3:
        pytest.skip("This processor has no bfloat16 products: nothing was rounded.")
    # What the guard is for.
    assert unguarded > 1.005
