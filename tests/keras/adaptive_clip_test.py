"""An adaptive clip in training: one kind of event, every engine, replicas, checkpoints."""

import keras
import numpy as np
import pytest
import toy

import tfdp
from tfdp.events import ComposedEvent, GaussianSumEvent
from tfdp.query import AutomaticClippingSumQuery, ScheduledGaussianSumQuery
from tfdp.sampling import Shuffled

X, Y = toy.data()
COUNT_STDDEV = 1.5


def adaptive(z=0.0, stddev=0.0, clip=100.0):
    return tfdp.QuantileAdaptiveClipSumQuery(clip, z, 0.5, 0.2, stddev, 12.0)


def private(query, **kwargs):
    options = {name: kwargs.pop(name) for name in ("jit_compile", "run_eagerly") if name in kwargs}
    average = tfdp.NormalizedQuery(query, 12)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.5), average, **kwargs)
    return toy.private(toy.dense(), optimizer, **options)


def clip_of(model):
    (clip,) = (v for v in model.optimizer.variables if v.name == "query_state")
    return float(clip)


def steps(model, number):
    for _ in range(number):
        model.train_on_batch(X, Y)


@pytest.mark.parametrize("engine", ["bookkeeping", "vectorized", "loop"])
@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"run_eagerly": True}], ids=str)
def test_weights_and_clip_are_those_by_hand(engine, options):
    if engine == "loop" and "jit_compile" in options:
        return  # Loops of one example are not for XLA.
    model = private(adaptive(clip=1.0), engine=engine, **options)
    clip = 1.0
    for _ in range(2):
        losses = [
            lambda i=i: toy.LOGITS_LOSS(Y[i : i + 1], model(X[i : i + 1])) for i in range(len(X))
        ]
        expected, norms = toy.step_by_hand(model, losses, clip=clip, denominator=12)
        model.train_on_batch(X, Y)
        toy.assert_weights(model, expected, 2e-6)
        clip *= np.exp(-0.2 * (np.mean(np.array(norms) <= clip) - 0.5))
        assert clip_of(model) == pytest.approx(clip, rel=1e-6)
    assert {e.event for e in toy.events(model)} == {
        ComposedEvent((GaussianSumEvent(1.0, 0.0), GaussianSumEvent(0.5, 0.0)))
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(model after 20 noisy steps, path of its weights)."""
    model = private(adaptive(1.1, COUNT_STDDEV))
    model.fit(X, Y, batch_size=4, sampling=Shuffled(), epochs=7, steps_per_epoch=3, verbose=0)
    path = tmp_path_factory.mktemp("adaptive") / "model.weights.h5"
    model.save_weights(path)
    return model, path


def test_a_run_is_one_event_whatever_the_clip_was(trained):
    model, _ = trained
    releases = {event.event for event in toy.events(model)}
    both = ComposedEvent((GaussianSumEvent(1.0, 1.1), GaussianSumEvent(0.5, COUNT_STDDEV)))
    assert releases == {both}
    assert model.ledger.total_count == 21
    assert clip_of(model) < 80  # From 100, where the norms are below 2.
    # What it costs is what one Gaussian of the joint noise multiplier costs.
    joint = GaussianSumEvent(1.0, (1.1**-2 + (2 * COUNT_STDDEV) ** -2) ** -0.5)
    epsilons = []
    for release in (both, joint):
        accountant = tfdp.accounting.RDPAccountant()
        accountant.compose(release, 21)
        epsilons.append(accountant.get_epsilon(1e-5))
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-9)


def test_the_clip_is_resumed(trained):
    model, path = trained
    restored = private(adaptive(1.1, COUNT_STDDEV))
    restored.optimizer.build(restored.trainable_variables)
    assert clip_of(restored) == 100.0
    restored.load_weights(path)
    assert clip_of(restored) == clip_of(model)
    assert restored.ledger == model.ledger
    assert restored.optimizer.next_event().event == model.optimizer.next_event().event


def test_microbatches_of_several_are_charged_twice_the_bound_of_both():
    model = private(adaptive(1.1, COUNT_STDDEV), num_microbatches=4, engine="vectorized")
    steps(model, 1)
    (event,) = toy.events(model)
    assert event.event == ComposedEvent(
        (GaussianSumEvent(2.0, 1.1), GaussianSumEvent(1.0, COUNT_STDDEV))
    )


def test_every_layer_has_a_clip_of_its_own():
    queries = {"first": adaptive(clip=100.0), "second": adaptive(clip=0.01)}
    query = tfdp.query.by_layer(toy.dense(), queries)
    optimizer = tfdp.keras.DPOptimizer(
        keras.optimizers.SGD(0.1), tfdp.NormalizedQuery(query, 12), engine="bookkeeping"
    )
    model = toy.private(toy.dense(), optimizer)
    steps(model, 3)
    first, second = (float(v) for v in optimizer.variables if v.name == "query_state")
    assert first == pytest.approx(100 * np.exp(-0.2 * 0.5 * 3), rel=1e-5)
    assert second > 0.011


@pytest.mark.parametrize("jit_compile", [False, True])
def test_noise_of_a_schedule_is_charged_step_by_step(jit_compile):
    noise = keras.optimizers.schedules.PiecewiseConstantDecay([1], [2.0, 1.0])
    clips = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    model = private(ScheduledGaussianSumQuery(clips, noise), jit_compile=jit_compile)
    steps(model, 4)
    assert [e.event.noise_stddev for e in toy.events(model)] == [2.0, 2.0, 1.0, 1.0]
    step, clip, multiplier = (float(v) for v in model.optimizer.variables if "query" in v.name)
    assert (step, clip, multiplier) == (4.0, 0.0625, 1.0)


def test_schedule_that_leaves_its_range_stops_the_run_before_the_step():
    noise = keras.optimizers.schedules.PiecewiseConstantDecay([0], [2.0, -1.0])
    model = private(ScheduledGaussianSumQuery(1.0, noise))
    steps(model, 1)
    before = toy.weights(model)
    with pytest.raises(ValueError, match="noise_multiplier of step 1 must be"):
        steps(model, 1)
    toy.assert_weights(model, before, 0)
    assert model.ledger.total_count == 1


@pytest.mark.parametrize("engine", ["bookkeeping", "vectorized", "loop"])
def test_normalised_gradients_are_those_by_hand(engine):
    model = private(AutomaticClippingSumQuery(1.0, 0.0, 0.5), engine=engine)
    losses = [lambda i=i: toy.LOGITS_LOSS(Y[i : i + 1], model(X[i : i + 1])) for i in range(len(X))]
    expected = toy.weights(model)
    for loss in losses:
        gradient, (norm,) = toy.gradients_by_hand(model.trainable_variables, [loss], 1e9)
        moves = [0.5 * g / (norm + 0.5) / 12 for g in gradient]
        expected = [w - move for w, move in zip(expected, moves, strict=True)]
    model.train_on_batch(X, Y)
    toy.assert_weights(model, expected, 2e-6)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("clip", [1e-30, 0.0, -1.0, np.nan, np.inf, 2e30])
def test_a_clip_that_no_step_made_is_refused_before_anything_is_charged(clip, eager):
    model = private(adaptive(1.0, COUNT_STDDEV), run_eagerly=eager)
    steps(model, 1)
    (state,) = (v for v in model.optimizer.variables if v.name == "query_state")
    state.assign(clip)
    before = toy.weights(model)
    with pytest.raises(ValueError, match="out of its bounds"):
        steps(model, 1)
    assert model.ledger.total_count == 1
    toy.assert_weights(model, before, 0)


@pytest.mark.parametrize("clip", [0.1, 1 / 3])
def test_a_clip_at_its_bounds_is_no_stranger(clip):
    query = tfdp.QuantileAdaptiveClipSumQuery(
        clip, 1.0, 0.5, 5.0, 1.0, 12.0, min_l2_norm_clip=clip, max_l2_norm_clip=clip
    )
    model = private(query)
    steps(model, 3)
    assert model.ledger.total_count == 3
