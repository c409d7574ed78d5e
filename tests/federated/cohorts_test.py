"""Cohorts are drawn among the registered clients, as the ledger says."""

import collections

import numpy as np
import pytest

import tfdp
from tests.federated import rounds as making
from tfdp.events import (
    FixedSizeSampling,
    FullBatchSampling,
    NeighboringRelation,
    PoissonSampling,
    UnknownSampling,
)
from tfdp.federated import Server
from tfdp.federated.cohorts import policy_of, registered
from tfdp.noise import HostGenerator
from tfdp.noise.bits import SeededFill
from tfdp.sampling import BallsInBins, FixedSize, FullBatch, Poisson, Shuffled, Unknown

NAMES = making.NAMES


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (FixedSize(), FixedSizeSampling(3, 6)),
        (Poisson(), PoissonSampling(0.5, 6)),
        (
            Poisson(
                sampling_probability=0.5,
                neighboring_relation=tfdp.NeighboringRelation.ADD_OR_REMOVE_ONE,
            ),
            PoissonSampling(0.5, None),
        ),
    ],
    ids=["fixed", "poisson", "hidden"],
)
def test_cohorts_are_drawn_as_the_ledger_says(sampling, expected):
    model = making.model(stddev=1.0)
    size = None if sampling.hides_population else 3
    server = Server(model, NAMES, cohort_size=size, sampling=sampling)
    sizes = []
    server.train(lambda current: sizes.append(len(current.cohort)), 12)
    assert model.ledger.total_count == 12
    assert {entry.event.sampling for entry in model.ledger} == {expected}
    # Twelve binomial samples of one size are less likely than 1e-5; of a fixed size, all are.
    assert (set(sizes) == {3}) == isinstance(sampling, FixedSize)


def test_shuffled_cohorts_meet_every_client_once_a_pass():
    model = making.model(stddev=1.0)
    server = Server(model, NAMES, cohort_size=4, sampling=Shuffled())
    met = []
    server.train(lambda current: met.append(current.cohort), 4)
    for one, two in (met[:2], met[2:]):
        assert sorted(one + two) == sorted(NAMES)
    passes = [entry.event.sampling.pass_index for entry in model.ledger]
    assert passes == [0, 1]


def test_cohorts_are_uniform():
    """2,000 cohorts of 3 of 6: each client in about half of them."""
    server = Server(making.model(stddev=1.0), NAMES, cohort_size=3, sampling=FixedSize())
    draws = server.policy.draw(server._generator)
    counts = collections.Counter(int(unit) for _ in range(2000) for unit in next(draws))
    # A binomial of 2,000 trials of 1/2 is 137 or more from 1,000 with probability below 1e-9.
    assert all(abs(counts[unit] - 1000) < 140 for unit in range(6))


SEEDED = {
    "numpy": lambda: np.random.default_rng(0),
    "seeded": lambda: HostGenerator(SeededFill(0)),
}
ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize("kind", SEEDED)
@pytest.mark.parametrize(
    "policy", [Poisson(), FixedSize(), Shuffled(), Poisson(0.5, neighboring_relation=ADD)], ids=str
)
def test_cohorts_that_can_be_drawn_again_have_no_amplification(kind, policy, caplog):
    """Whoever knows the seed knows who was asked."""
    size = None if policy.hides_population else 3
    cohorts = []
    for _ in range(2):
        model = making.model(stddev=1.0)
        server = Server(model, NAMES, cohort_size=size, sampling=policy, generator=SEEDED[kind]())
        server.train(lambda current: cohorts.append(current.cohort), 2)
        (entry,) = model.ledger
        assert (entry.event.sampling, entry.count) == (UnknownSampling(), 2)
        assert entry.event.neighboring_relation is policy.neighboring_relation
    assert cohorts[:2] == cohorts[2:]
    assert sum("without amplification" in message for message in caplog.messages) == 2


def test_cohorts_that_need_no_secret_draws_are_charged_as_they_are(caplog):
    # Bins follow the key of their policy.
    options = [{"sampling": FullBatch()}, {"sampling": BallsInBins(), "cohort_size": 3}]
    options.append({"cohort_size": 3})
    generators = [np.random.default_rng(0), np.random.default_rng(0), HostGenerator()]
    found = []
    for arguments, generator in zip(options, generators, strict=True):
        model = making.model(stddev=1.0)
        server = Server(model, NAMES, generator=generator, **arguments)
        server.train(making.answer_all, 1)
        found += [entry.event.sampling for entry in model.ledger]
    assert found == [FullBatchSampling(6), found[1], PoissonSampling(0.5, 6)]
    assert found[1].num_bins == 2
    assert not any("amplification" in message for message in caplog.messages)


REFUSED = {
    "same_names": (lambda: Server(making.model(), ["a", "a"], cohort_size=1), ValueError),
    "no_names": (lambda: Server(making.model(), [], cohort_size=1), ValueError),
    "no_size": (lambda: Server(making.model(), NAMES), ValueError),
    "too_large": (lambda: Server(making.model(), NAMES, cohort_size=7), ValueError),
    "unknown": (
        lambda: Server(making.model(), NAMES, cohort_size=2, sampling=Unknown()),
        ValueError,
    ),
    "no_policy": (lambda: Server(making.model(), NAMES, cohort_size=2, sampling=0.5), TypeError),
}


@pytest.mark.parametrize("sampling", [Poisson(), FixedSize(), FullBatch(), None], ids=str)
@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (0, ValueError, "cohort_size must be at least 1. Received: cohort_size=0."),
        (2.5, TypeError, "cohort_size must be an integer. Received: cohort_size=2.5."),
        (7, ValueError, "number of clients. Received: cohort_size=7, number of clients=6."),
    ],
)
def test_sizes_that_no_cohort_has_are_called_by_their_name(sampling, size, error, message):
    with pytest.raises(error, match=message) as found:
        policy_of(sampling, 6, size)
    assert "batch_size" not in str(found.value)


@pytest.mark.parametrize(
    "clients", [10, None, "abc", b"abc", [["a"], ["b"]], [np.zeros(1)]], ids=repr
)
def test_what_are_no_names_is_refused(clients):
    with pytest.raises(TypeError, match="clients must be .* Received: "):
        registered(clients)


@pytest.mark.parametrize("clients", [[], ["a", "b", "a"]])
def test_nobody_and_the_same_client_twice_are_refused(clients):
    with pytest.raises(ValueError, match="clients must be different names, at least one"):
        registered(clients)


def test_a_size_that_hidden_clients_do_not_have_is_refused():
    sampling = Poisson(0.5, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="leave cohort_size out"):
        policy_of(sampling, 6, 3)


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    make, error = REFUSED[name]
    with pytest.raises(error):
        make()
