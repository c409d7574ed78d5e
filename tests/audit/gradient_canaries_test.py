"""Canaries pull where they are said to, and one run of `fit` with them proves most of its claim."""

import dataclasses

import keras
import numpy as np
import pytest

import tfdp
from tfdp.accounting import PRVAccountant
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.audit import (
    CanarySums,
    GradientCanaries,
    attack,
    correct_guesses,
    fair_coins,
    membership_scores,
    mislabelled_canaries,
    mu_lower_bound_of_independent_guesses,
    p_value_of_independent_guesses,
    sampled_gaussian_scores,
    sensitivity_factor_lower_bound,
)
from tfdp.events import NeighboringRelation, scale_sensitivity
from tfdp.report.tradeoff import make_profile
from tfdp.sampling import FullBatch, Poisson

CONFIDENCE = 1 - 1e-7
ADD = FullBatch(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
RATE, DENOMINATOR = 0.5, 100.0
LOSS = "sparse_categorical_crossentropy"


def classifier(shape=(4,)):
    return keras.Sequential([keras.Input(shape), keras.layers.Dense(3, activation="softmax")])


def data(records, shape=(4,), seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(records, *shape)).astype("float32")
    return x, rng.integers(0, 3, (records, *shape[:-1]))


def average(stddev, clip=1.0):
    return tfdp.GaussianAverageQuery(clip, stddev=stddev, denominator=DENOMINATOR)


def sums_of_fit(canaries, inserted, query, x, y, sampling=ADD, unit="example", **fit):
    """Returns (sums along the canaries, ledger)."""
    private = tfdp.keras.make_private(canaries.model)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(RATE), query, privacy_unit=unit)
    private.compile(optimizer, loss=canaries.losses(LOSS))
    released = CanarySums(canaries, RATE, DENOMINATOR)
    records = canaries.records(x, y, inserted)
    private.fit(*records, sampling=sampling, callbacks=[released], verbose=0, **fit)
    return released.sums, private.ledger


def test_a_canary_moves_its_weight_by_the_clip_and_no_other():
    canaries = GradientCanaries(classifier(), 40)
    inserted = fair_coins(40, seed=0)
    query = average(1e-4, clip=0.5)
    sums, ledger = sums_of_fit(canaries, inserted, query, *data(20), epochs=2)
    assert sums.shape == (2, 40) and ledger.total_count == 2
    np.testing.assert_allclose(sums, np.tile(0.5 * inserted, (2, 1)), atol=2e-3)


def test_canaries_pull_at_the_models_own_weights():
    model = classifier()
    coordinates = np.array([14, 0, 7])  # The last bias, the first weight, and one between them.
    canaries = GradientCanaries(model, 3, coordinates)
    assert len(canaries.model.trainable_variables) == 2
    # The record of zeros and the label 0 move biases alone: their gradient is p - (1, 0, 0).
    x, y = np.zeros((1, 4), "float32"), np.zeros(1, int)
    p = model.predict(x, verbose=0)[0]
    clipped = (p - [1, 0, 0]) / max(1.0, np.linalg.norm(p - [1, 0, 0]))
    sums, _ = sums_of_fit(canaries, np.array([True, False, True]), average(1e-4), x, y)
    np.testing.assert_allclose(sums[0], [1 + clipped[2], 0, 1], atol=2e-3)


@pytest.mark.parametrize("coordinates", [None, [0, 5, 10, 14]], ids=["added", "own"])
def test_canaries_are_seen_in_half_precision(coordinates):
    """In float16 their loss is infinite, and such a record counts for nothing."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        canaries = GradientCanaries(classifier(), 4, coordinates)
        inserted = np.array([True, False, True, True])
        x, y = np.zeros((1, 4), "float32"), np.zeros(1, int)
        sums, _ = sums_of_fit(canaries, inserted, average(1e-4, clip=0.5), x, y)
    finally:
        keras.config.set_dtype_policy("float32")
    # The record moves the biases, which are the last three.
    known = slice(0, None if coordinates is None else 3)
    np.testing.assert_allclose(sums[0][known], 0.5 * inserted[known], atol=2e-3)


def test_canaries_copy_a_record_that_is_finite():
    canaries, inserted = GradientCanaries(classifier(), 10), fair_coins(10, seed=0)
    x, y = data(5)
    x[:2, 1] = np.nan, np.inf
    (copied, _), _ = canaries.records(x, y, inserted)
    np.testing.assert_array_equal(copied[5:], np.repeat(x[2:3], sum(inserted), axis=0))
    sums, _ = sums_of_fit(canaries, inserted, average(1e-4), x, y)
    np.testing.assert_allclose(sums[0], inserted, atol=2e-3)
    with pytest.raises(ValueError, match="No record is finite"):
        canaries.records(x[:2], y[:2], inserted)


def test_inputs_and_labels_may_be_dicts():
    parts = {name: keras.Input((2,), name=name) for name in ("b", "a")}
    joined = keras.layers.Concatenate()([parts["b"], parts["a"]])
    output = keras.layers.Dense(3, activation="softmax")(joined)
    canaries, inserted = GradientCanaries(keras.Model(parts, output), 10), fair_coins(10, seed=0)
    x, y = data(5)
    named = {"b": x[:, :2], "a": x[:, 2:]}
    inputs, _ = canaries.records(named, y, inserted)
    by_name = {
        tensor.name: part for tensor, part in zip(canaries.model.inputs, inputs, strict=True)
    }
    for name, part in named.items():
        np.testing.assert_array_equal(by_name[name][:5], part)
    sums, _ = sums_of_fit(canaries, inserted, average(1e-4), named, y)
    np.testing.assert_allclose(sums[0], inserted, atol=2e-3)


def test_dicts_go_by_the_names_of_a_model_that_has_lists():
    parts = [keras.Input((2,), name=name) for name in ("b", "a")]
    outputs = [keras.layers.Dense(1, name=f"of_{part.name}")(part) for part in parts]
    model, (x, _) = keras.Model(parts, outputs), data(5)
    canaries = GradientCanaries(model, 10)
    named = {"b": x[:, :2], "a": x[:, 2:], "unused": x}
    labels = {"of_b": np.zeros([5, 1]), "of_a": np.ones([5, 1])}
    inputs, found = canaries.records(named, labels, fair_coins(10, seed=0))
    for part, name in zip(inputs[:2], ("b", "a"), strict=True):
        np.testing.assert_array_equal(part[:5], named[name])
    for part, name in zip(found[:2], ("of_b", "of_a"), strict=True):
        np.testing.assert_array_equal(part[:5], labels[name])


def guessed(scores, inserted, share):
    guesses = round(share * len(scores))
    return correct_guesses(scores, inserted, guesses), guesses, len(scores)


@pytest.mark.parametrize("unit", ["example", "user"])
def test_one_run_proves_most_of_what_a_gaussian_costs_and_not_more(unit):
    canaries, inserted = GradientCanaries(classifier(), 20_000), fair_coins(20_000, seed=1)
    sums, _ = sums_of_fit(canaries, inserted, average(2.0), *data(50), unit=unit, epochs=4)
    # Four sums with noise multiplier 2: mu = 1.
    counts = guessed(sums.sum(axis=0), inserted, 0.7)
    assert mu_lower_bound_of_independent_guesses(*counts, CONFIDENCE) <= 1.0
    proven = gaussian_epsilon(mu_lower_bound_of_independent_guesses(*counts), 1e-5)
    # Of 20,000 canaries the bound of mu is 0.97 in the mean, with a standard deviation of 0.014;
    # 80 % of epsilon is mu = 0.82.
    assert proven >= 0.8 * gaussian_epsilon(1.0, 1e-5)


def test_half_the_noise_is_refuted_in_one_run():
    canaries, inserted = GradientCanaries(classifier(), 4000), fair_coins(4000, seed=2)
    sums, _ = sums_of_fit(canaries, inserted, average(0.5), *data(50))
    counts = guessed(sums.sum(axis=0), inserted, 0.7)
    assert mu_lower_bound_of_independent_guesses(*counts, CONFIDENCE) > 1.0


def test_sampled_steps_are_held_against_their_own_curve():
    canaries, inserted = GradientCanaries(classifier(), 6000), fair_coins(6000, seed=3)
    policy = Poisson(0.1, None, NeighboringRelation.ADD_OR_REMOVE_ONE)
    sums, ledger = sums_of_fit(
        canaries, inserted, average(0.6), *data(50), policy, steps_per_epoch=8
    )
    scores = sampled_gaussian_scores(sums, 0.6, 0.1)
    counts = guessed(scores, inserted, 0.5)

    def accountant(factor):
        made = PRVAccountant()
        for entry in ledger:
            heavier = scale_sensitivity(entry.event.event, factor)
            made.compose(dataclasses.replace(entry.event, event=heavier), entry.count)
        return made

    def rates_of(factor):
        made = accountant(factor)
        return make_profile(made.get_epsilon, made.get_delta, points=6).true_positive_rate

    assert p_value_of_independent_guesses(*counts, rates_of(1.0)) > 1e-7
    factor = sensitivity_factor_lower_bound(*counts, rates_of)
    assert 0.7 < factor < 1.3
    claimed, proven = (accountant(f).get_epsilon(1e-5) for f in (1.0, factor))
    assert proven > claimed / 2
    # Nothing is amplified for whoever thinks that the steps were less noisy than they are.
    assert p_value_of_independent_guesses(*counts, rates_of(0.5)) < 1e-9


def test_users_with_wrong_labels_are_found_by_predictions_of_a_model_without_noise():
    # Each record is one user's two examples.
    x, y = data(120, (2, 60))
    planted = mislabelled_canaries(x, y, 100, classes=3, seed=0)
    model = keras.Sequential([keras.Input((2, 60)), keras.layers.Dense(3, activation="softmax")])
    model.compile(keras.optimizers.Adam(0.1), loss=LOSS)
    model.fit(planted.x, planted.y, epochs=60, batch_size=100, verbose=0)
    p = model.predict(planted.canaries_x, verbose=0)
    scores = membership_scores("loss", p.reshape(-1, 3), planted.canaries_y.reshape(-1)).reshape(
        -1, 2
    )
    assert attack("users", scores.sum(axis=1), planted.inserted).auc.lower > 0.6


def test_what_cannot_hold_canaries_is_refused():
    with pytest.raises(ValueError, match=r"keras\.Input"):
        GradientCanaries(keras.Sequential([keras.layers.Dense(3)]), 5)
    for coordinates in ([0, 0], [0, 15], [-1, 2], [0], [0.0, 1.0]):
        with pytest.raises(ValueError, match="coordinates"):
            GradientCanaries(classifier(), 2, coordinates)
    canaries = GradientCanaries(classifier(), 2)
    x, y = data(5)
    for inserted in ([True], [1, 0]):
        with pytest.raises(ValueError, match="2 booleans"):
            canaries.records(x, y, np.array(inserted))
    with pytest.raises(ValueError, match=r"\[5, 4\]"):
        canaries.records(x, y[:4], np.array([True, False]))
    with pytest.raises(ValueError, match="one loss for each"):
        canaries.losses(LOSS, LOSS)
    with pytest.raises(ValueError, match="no steps"):
        _ = CanarySums(canaries, 1.0, 1.0).sums
