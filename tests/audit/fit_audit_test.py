"""What `fit` releases costs as much as its ledger claims: no more, and hardly less."""

import dataclasses
import inspect
import math
import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from canaries import (
    CONFIDENCE,
    DELTA,
    Run,
    always,
    bracket,
    events_of,
    mu_shown,
    once,
    sampled,
    shown,
)

import tfdp
from tfdp import sampling as tfdp_sampling
from tfdp.accounting import GDPAccountant, PRVAccountant
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.audit import mu_lower_bound
from tfdp.events import GaussianSumEvent, NeighboringRelation, PoissonSampling, SampledEvent
from tfdp.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedOrder,
    FixedSize,
    FullBatch,
    MinSeparationPoisson,
    Poisson,
    RandomAllocation,
    SamplingPolicy,
    Shuffled,
    TruncatedPoisson,
    Unknown,
)

ADD, REPLACE, ZERO = NeighboringRelation
SMALL_DELTA = 1e-5


def full_batch(out="absent", relation=ADD, **kwargs):
    # The noise multiplier is sqrt(2) / 2 for one unit: mu is 2 in two steps.
    stddev = math.sqrt(2) if out == "opposite" else math.sqrt(0.5)
    return Run(FullBatch(neighboring_relation=relation), out, stddev, steps=2, **kwargs)


GAUSSIAN = {
    "add_auto": full_batch(),
    "replace_bookkeeping": full_batch("opposite", REPLACE, optimizer={"engine": "bookkeeping"}),
    "zero_accumulated": full_batch("zero", ZERO, optimizer={"physical_batch_size": 3000}),
    "add_loop": full_batch(canaries=1000, epochs=16, optimizer={"engine": "loop"}),
    "unknown_vectorized": Run(
        Unknown(),
        "zero",
        math.sqrt(0.5),
        steps=2,
        canaries=2000,
        optimizer={"engine": "vectorized"},
        as_dataset=True,
    ),
}


@pytest.mark.parametrize("name", GAUSSIAN)
def test_sums_of_everybody_are_as_gaussian_as_claimed(name):
    run = GAUSSIAN[name]
    with_canary, without, ledger = run.trials()
    events = events_of(ledger, run.steps)
    interval = bracket(events)
    assert shown(with_canary, without, always, run.stddev) <= interval.lower
    # In terms of mu, the audit is close also at a delta that no trial could show.
    accountant = GDPAccountant()
    for event in events:
        accountant.compose(event)
    claimed = accountant.get_epsilon(SMALL_DELTA)
    assert claimed == pytest.approx(gaussian_epsilon(2.0, SMALL_DELTA))
    proven = gaussian_epsilon(mu_shown(with_canary, without), SMALL_DELTA)
    assert claimed / 2 <= proven <= claimed


def poisson(out, relation, stddev=0.5):
    if relation is ADD:  # The size of the population is no public number.
        return Run(Poisson(0.5, None, ADD), out, stddev, steps=2), sampled(0.5, out)
    policy = Poisson(neighboring_relation=relation)
    return Run(policy, out, stddev, 0.5, steps=2), sampled(0.5, out)


def shuffled(out, relation, stddev=0.5):
    policy = Shuffled(neighboring_relation=relation)
    return Run(policy, out, stddev, 0.5, steps=2), once(out)


def truncated(out, relation, stddev=0.5):
    policy = TruncatedPoisson(neighboring_relation=relation)
    return Run(policy, out, stddev, 0.5, steps=2), sampled(0.5, out)


def allocated(out, relation, stddev=0.5):
    policy = RandomAllocation(neighboring_relation=relation)
    return Run(policy, out, stddev, 0.5, steps=2), once(out)


def binned(out, relation, stddev=0.5):
    policy = BallsInBins(neighboring_relation=relation)
    # One turn: in the next one a canary is in the same step again, so that it is no trial of its
    # own.
    return Run(policy, out, stddev, 0.5, steps=2, epochs=1, canaries=50_000), once(out)


def separated(out, relation, stddev=0.5):
    # Of two steps in turn: each record is in exactly one of them.
    policy = MinSeparationPoisson(2, 2, neighboring_relation=relation)
    return Run(policy, out, stddev, 0.5, steps=2), once(out)


def fixed_size(out, relation):
    policy = FixedSize(neighboring_relation=relation)
    return Run(policy, out, 0.7, 0.5), sampled(0.5, out)


def read_as(relation, events):
    """Returns the events as what they would be under another relation: the same samples."""
    return [dataclasses.replace(event, neighboring_relation=relation) for event in events]


# In samples of a fixed size canaries depend on each other, and yet the bounds of Clopper and
# Pearson hold: how many of some canaries are sampled is hypergeometric, which is a sum of
# independent, unequal trials (Vatutin and Mikhailov 1982), and such a sum has lighter tails than a
# binomial of the same mean (Hoeffding 1956). The halves of a pass are such a sample, too.
SAMPLED = {
    "poisson_add": poisson("absent", ADD),
    "poisson_zero": poisson("zero", ZERO),
    "poisson_replace": poisson("opposite", REPLACE, stddev=1.0),
    "truncated_zero": truncated("zero", ZERO),
    "allocated_zero": allocated("zero", ZERO),
    "allocated_replace": allocated("opposite", REPLACE, stddev=1.0),
    "binned_zero": binned("zero", ZERO),
    "binned_replace": binned("opposite", REPLACE, stddev=1.0),
    "separated_zero": separated("zero", ZERO),
    "separated_replace": separated("opposite", REPLACE, stddev=1.0),
    "shuffled_zero": shuffled("zero", ZERO),
    "shuffled_replace": shuffled("opposite", REPLACE, stddev=1.0),
    # `fit` takes no steps of these under ADD; a data set's declaration may claim it.
    "shuffled_add": shuffled("absent", ZERO, stddev=1.0),
    "fixed_size_replace": fixed_size("opposite", REPLACE),
    "fixed_size_add": fixed_size("absent", ZERO),
    # Independent noise is charged there as if every record were in every step.
    "fixed_order_zero": (Run(FixedOrder(), "zero", 0.5, 0.5, steps=2), once("zero")),
    # Of one group: with more, even and odd canaries would not be in the same one.
    "cyclic_zero": (
        Run(CyclicPoisson(1), "zero", 0.5, 0.5, steps=2),
        sampled(0.5, "zero"),
    ),
}
# What these canaries can show of what is claimed. The claim for a pass is about an attacker who
# knows the order; those for ADD_OR_REMOVE_ONE under shuffling and for samples of a fixed size are
# about data sets in which all others are the canary's opposite.
PART = {
    "poisson_add": 0.5,
    "poisson_zero": 0.5,
    "poisson_replace": 0.5,
    "truncated_zero": 0.45,
    "allocated_zero": 0.6,
    "allocated_replace": 0.3,
    "binned_zero": 0.5,
    "binned_replace": 0.3,
    "shuffled_zero": 0.5,
    "shuffled_replace": 0.3,
}


def test_every_sampling_policy_is_audited():
    policies = {getattr(tfdp_sampling, name) for name in tfdp_sampling.__all__}
    policies = {p for p in policies if inspect.isclass(p) and issubclass(p, SamplingPolicy)}
    runs = [*GAUSSIAN.values(), *(run for run, _ in SAMPLED.values())]
    assert {type(run.sampling) for run in runs} == policies - {SamplingPolicy}


@pytest.mark.parametrize("name", SAMPLED)
def test_samples_cost_what_is_claimed(name):
    run, score = SAMPLED[name]
    with_canary, without, ledger = run.trials()
    events = events_of(ledger, run.steps)
    interval = bracket(read_as(ADD, events) if name.endswith("add") else events)
    proven = shown(with_canary, without, score, run.stddev)
    assert 0 < proven <= interval.upper
    assert proven >= PART.get(name, 0) * interval.upper
    if name == "fixed_size_replace":
        # A replacement moves a sum by twice the bound: without that the claim would be too small.
        once_only = SampledEvent(PoissonSampling(0.5), GaussianSumEvent(1.0, run.stddev))
        assert proven > PRVAccountant().compose(once_only).get_epsilon(DELTA)


class HalvesTheNoise(tfdp.GaussianSumQuery):
    def get_noised_result(self, sample_state, global_state):
        halved = global_state._replace(stddev=global_state.stddev / 2)
        result, _, _ = super().get_noised_result(sample_state, halved)
        return result, global_state, self.derive_event(global_state)


class SkipsTheClip(tfdp.GaussianSumQuery):
    def scale_factors(self, params, norms):
        return tf.ones_like(norms) / 5


class ClipsEachVariable(tfdp.GaussianSumQuery):
    @property
    def num_norm_groups(self):
        return 2

    def norm_groups(self, template):
        return [0, 1]


class NoisesOneVariable(tfdp.GaussianSumQuery):
    def get_noised_result(self, sample_state, global_state):
        result, state, event = super().get_noised_result(sample_state, global_state)
        return [result[0], sample_state[1]], state, event


def broken(query):
    def make(clip, stddev, denominator):
        return tfdp.NormalizedQuery(query(clip, stddev), denominator)

    return full_batch(make_query=make, canaries=4000, epochs=8)


BROKEN = {q.__name__: broken(q) for q in (HalvesTheNoise, SkipsTheClip, ClipsEachVariable)}
BROKEN["NoisesOneVariable"] = broken(NoisesOneVariable)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_mechanisms_cost_more_than_they_claim(name):
    with_canary, without, ledger = BROKEN[name].trials()
    (event, *_) = events = events_of(ledger, 2)
    assert event.event == tfdp.GaussianSumEvent(1.0, math.sqrt(0.5))  # So that mu is 2.
    assert bracket(events).upper == pytest.approx(gaussian_epsilon(2.0, DELTA))
    assert mu_shown(with_canary, without) > 2.0


def test_declared_samples_that_are_not_drawn_cost_more_than_is_claimed():
    stddev = math.sqrt(0.5)
    run = Run(Poisson(0.1), "absent", stddev, steps=2, epochs=3, as_dataset=True)
    with_canary, without, ledger = run.trials()
    claimed = bracket(events_of(ledger, run.steps)).upper
    assert claimed < 0.1
    assert shown(with_canary, without, always, stddev) > 2.0


def as_claimed(ledger, scores_in, scores_out):
    """Whether a step is the Gaussian with mu = 3 that the ledger says, and shows as one."""
    (event,) = events_of(ledger, 1)
    claimed = GDPAccountant().compose(event).get_epsilon(SMALL_DELTA)
    assert claimed == pytest.approx(gaussian_epsilon(3.0, SMALL_DELTA))
    proven = gaussian_epsilon(mu_lower_bound(scores_in, scores_out, CONFIDENCE), SMALL_DELTA)
    return claimed / 2 <= proven <= claimed


def test_microbatches_as_units_cost_what_is_claimed():
    options = {"num_microbatches": 1000, "privacy_unit": "microbatch"}
    run = Run(FullBatch(), "absent", 1 / 3, canaries=2000, epochs=8, optimizer=options)
    sums, ledger = run.fit(tuple(np.repeat(part, 2) for part in run.records()))
    assert as_claimed(ledger, sums[..., ::2].ravel(), sums[..., 1::2].ravel())


def test_examples_in_microbatches_move_sums_by_twice_the_bound():
    # Forty examples in two microbatches pull one way, and hardly ever all in one of them (once in
    # 2^39). The canary is so long that its microbatch goes the other way.
    scores, options = [], {"num_microbatches": 2}
    for canaries in ([], [-1000.0]):
        run = Run(FullBatch(), "absent", 0.5, canaries=1, epochs=1, steps=800, optimizer=options)
        signs = np.array([1.0] * 40 + canaries, "float32")
        sums, ledger = run.fit((np.zeros(len(signs), "int32"), signs))
        scores.append(sums.ravel())
    (event,) = events_of(ledger, 1)
    claimed = GDPAccountant().compose(event).get_epsilon(SMALL_DELTA)
    assert claimed == pytest.approx(gaussian_epsilon(4.0, SMALL_DELTA))
    # Not what it would be if an example moved the sum by the bound.
    assert 2.0 < mu_lower_bound(*scores, CONFIDENCE) <= 4.0


def test_two_replicas_cost_what_is_claimed(tmp_path):
    script = pathlib.Path(__file__).parent / "audited_replicas.py"
    root = str(pathlib.Path(tfdp.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("TF_CONFIG", None)
    output = tmp_path / "trials"
    subprocess.run([sys.executable, script, output], env=environment, check=True, timeout=600)
    replicas, with_canary, without, events = pickle.loads(output.read_bytes())
    assert replicas == 2
    interval = bracket(events)
    proven = shown(with_canary, without, sampled(0.5, "absent"), 0.5)
    assert interval.upper / 2 <= proven <= interval.lower
