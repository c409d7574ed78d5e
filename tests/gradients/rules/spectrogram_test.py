"""Spectrograms, trained and frozen, against the explicit loop."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    assert_engines_agree,
    assert_layer_agrees,
    assert_layer_is_exact,
    floatx,
    head,
    how_it_runs,
    model_of,
    norms_of,
    problem,
    traced_sum,
)
from tests.gradients.problems import normal as numbers
from tfdp.gradients import explain
from tfdp.gradients.rules.rule import RecordWise, rule_for
from tfdp.gradients.rules.spectrogram import SpectrogramRule

L = keras.layers
MODES = ["log", "magnitude", "psd", "real", "imag", "stft", "angle"]
SIZES = {"frame_length": 6, "frame_step": 3, "fft_length": 8}
SOUNDS = (12, 2)
FIRST = {"data_format": "channels_first"}
OPTIONS = {
    "expanded": {"expand_dims": True, "padding": "same"},
    "expanded_first": {"expand_dims": True, **FIRST},
    "first": {"padding": "same", **FIRST},
    "long_frames": {"frame_length": 8, "frame_step": None, "padding": "same"},
    "own_window": {"window": [0.1, 0.4, 1.0, 0.8, 0.3, 0.2], "scaling": None},
    "periodic": {"window": "hamming", "periodic": True, "scaling": "spectrum"},
    "steps_of_one": {"frame_step": 1},
    "usual": {"padding": "valid"},
}


def spectrogram(mode="psd", **options):
    return L.STFTSpectrogram(mode, **{**SIZES, **options})


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode):
    def make():
        return spectrogram(mode, padding="same")

    assert how_it_runs(model_of(make, SOUNDS)) == ["SpectrogramRule"]
    assert_layer_is_exact(make, SOUNDS)


@pytest.mark.parametrize("name", sorted(OPTIONS))
@pytest.mark.parametrize("mode", ["real", "stft"])
def test_options(mode, name):
    shape = SOUNDS[::-1] if "first" in name else SOUNDS
    model = model_of(lambda: spectrogram(mode, **OPTIONS[name]), shape)
    assert how_it_runs(model) == ["SpectrogramRule"]
    loss, variables, examples = problem(model, numbers(*shape))
    assert_engines_agree(loss, variables, examples)
    actual, expected = norms_of(loss, variables, examples)
    assert (expected[:, 2 : len(variables) - 2].max(0) > 0).all()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6 * expected.max())


def test_one_frame():
    def make():
        return spectrogram("stft", padding="same")

    assert_layer_is_exact(make, (2, 3))


def test_one_channel():
    assert_layer_is_exact(spectrogram, (12, 1))


@pytest.mark.parametrize("mode", ["log", "angle"])
def test_frozen(mode):
    def make():
        return spectrogram(mode, trainable=False)

    assert "record by record" not in explain(model_of(make, SOUNDS))
    assert_layer_agrees(make, SOUNDS)


@pytest.mark.parametrize("name", ["real_kernel", "imag_kernel"])
def test_one_kernel_is_frozen(name):
    model = model_of(spectrogram, SOUNDS)
    getattr(model.layers[2], name).trainable = False
    assert how_it_runs(model) == ["SpectrogramRule"]
    loss, variables, examples = problem(model, numbers(*SOUNDS))
    assert len(variables) == 5
    assert_engines_agree(loss, variables, examples)


@pytest.mark.parametrize("shape", [(None, 2), (12, 2)])
def test_layer_that_is_used_twice_on_lengths_that_need_not_be_known(shape):
    keras.utils.set_random_seed(1)
    x, layer = keras.Input(shape), spectrogram("magnitude")
    y = L.GlobalAveragePooling1D()(layer(x)) + L.GlobalAveragePooling1D()(layer(x[:, 2:]))
    assert_engines_agree(*problem(keras.Model(x, L.Dense(2)(y)), numbers(*SOUNDS)))


def test_microbatches():
    grouping = {"num_microbatches": 2, "microbatch_ids": [1, 0, 1, 1]}
    assert_engines_agree(*problem(model_of(spectrogram, SOUNDS), numbers(*SOUNDS)), **grouping)
    assert_engines_agree(
        *problem(model_of(spectrogram, SOUNDS), numbers(*SOUNDS)), examples_per_record=2
    )


def test_steps_of_a_sequence():
    keras.utils.set_random_seed(1)
    x = keras.Input((3, *SOUNDS))
    model = keras.Model(x, head(L.TimeDistributed(spectrogram())(x)))
    assert "record by record" not in explain(model)
    assert_engines_agree(*problem(model, numbers(3, *SOUNDS)))


def test_mixed_precision():
    with floatx("float32"):
        keras.config.set_dtype_policy("mixed_float16")
        model = model_of(spectrogram, SOUNDS)
    assert_engines_agree(*problem(model, numbers(*SOUNDS)), tolerance=0.01)


@pytest.mark.parametrize("mode", MODES)
def test_record_that_is_not_finite_contributes_nothing(mode):
    x = numbers(*SOUNDS)
    loss, variables, (_, y) = problem(model_of(lambda: spectrogram(mode), SOUNDS), x)
    total = traced_sum(loss, variables, tfdp.GaussianSumQuery(0.3, 1.0))
    without = total((tf.constant(x), y), tf.range(BATCH) != 1)
    for bad in (np.nan, np.inf):
        x[1, 4, 1] = bad
        with_bad = total((tf.constant(x), y), tf.ones([BATCH], tf.bool))
        for a, e in zip(with_bad, without, strict=True):
            np.testing.assert_array_equal(a, e, err_msg=str(bad))


def test_what_takes_the_largest_number_of_a_batch_has_no_rule():
    assert rule_for(L.MelSpectrogram()) is None


class Louder(L.STFTSpectrogram):
    def call(self, inputs):
        return super().call(inputs / tf.reduce_max(inputs))


def test_spectrograms_with_other_code_have_no_rule():
    patched = spectrogram()
    rule = rule_for(patched)
    assert isinstance(rule, SpectrogramRule) and not isinstance(rule, RecordWise)
    vars(patched)["compute_output_shape"] = lambda shape: shape
    assert [rule_for(Louder()), rule_for(patched)] == [None, None]
