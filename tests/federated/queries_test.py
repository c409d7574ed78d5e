"""Every query within rounds: what it adds up, its noise, its bound and its events."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

import tfdp
from tests.federated import rounds as making
from tfdp.federated import Server
from tfdp.keras import NotPrivateError
from tfdp.noise import SeededRandomSource
from tfdp.query import NormalizedQuery
from tfdp.sampling import FullBatch

NAMES = making.NAMES


def _server(model, kind):
    return Server(
        model, NAMES, sampling=making.sampling_of(kind), cohort_size=making.cohort_size_of(kind)
    )


@pytest.mark.parametrize("kind", making.QUERIES)
def test_adversarial_client_moves_the_sum_of_any_query_by_at_most_its_bound(kind):
    """Record and replay: the same round with and without a client, without noise."""
    rng = np.random.default_rng(3)
    ordinary = {name: making.update(i) for i, name in enumerate(NAMES[1:])}
    for trial in range(2):
        scale = 10.0 ** rng.integers(-3, 6)
        bad = [scale * part for part in making.update(100 + trial)]
        results = []
        for first in (bad, None):
            model = making.model(query=making.QUERIES[kind](0.0))
            server = _server(model, kind)
            weight = 1e9 if kind == "weighted" else None

            def answer(current, first=first, weight=weight):
                if first is not None:
                    current.receive(NAMES[0], first, weight=weight)
                for name, update in ordinary.items():
                    current.receive(name, update, weight=None if weight is None else 1.0)

            server.train(answer, 1)
            results.append(making.weights(model))
        moved = np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(*results, strict=True)))
        rounding = 1e-4 if kind in making.ROUNDED else 1e-7
        assert moved <= making.bound_of(kind) / 6 * (1 + 1e-5) + rounding, (scale, moved)


@pytest.mark.parametrize("kind", making.QUERIES)
def test_rounds_of_any_query_are_the_loop_over_its_functions(kind):
    """Without noise; clips adapt and trees grow from round to round. One client stays away."""
    model = making.model(query=making.QUERIES[kind](0.0))
    query, values = model.optimizer.query, [tf.constant(w) for w in making.weights(model)]
    met = []

    def answer(current):
        met.append([name for name in current.cohort if name != NAMES[-1]])
        for name in met[-1]:
            weight = 0.7 if kind == "weighted" else None
            current.receive(name, making.update(NAMES.index(name), 2.0), weight=weight)

    _server(model, kind).train(answer, 3)
    state, start = query.initial_global_state(), values
    for names in met:
        params = query.derive_sample_params(state)
        total = query.weighed(1.0).initial_sample_state(values)
        for name in names:
            record = [tf.constant(-part) for part in making.update(NAMES.index(name), 2.0)]
            one = query.weighed(0.7) if kind == "weighted" else query
            total = one.accumulate_record(params, total, record)
        result, state, _ = query.get_noised_result(total, state)
        values = [v - r for v, r in zip(values, result, strict=True)]
    making.assert_weights(model, values, 1e-4 if kind in making.ROUNDED else 1e-5)
    assert max(np.abs(v - w).max() for v, w in zip(values, start, strict=True)) > 0.1
    released = model.history.history
    if kind == "adaptive":
        assert len(set(released["clip"])) == 3


NOISY = ("gaussian", "exact", "weighted", "discrete_shares", "skellam_shares")


@pytest.mark.parametrize("kind", NOISY)
def test_noise_of_rounds_is_that_of_the_event(kind):
    """50 rounds of 8 coordinates of zeros."""
    model = making.model(query=making.QUERIES[kind](2.0))
    server = Server(model, NAMES, sampling=FullBatch())
    seen = [np.concatenate([w.ravel() for w in making.weights(model)])]
    zeros, weight = [np.zeros(s, "float32") for s in making.SHAPES], None
    if kind == "weighted":
        weight = 1.0
    for current in server.rounds(50):
        for name in NAMES:
            current.receive(name, zeros, weight=weight)
        if current.number > 1:
            seen.append(np.concatenate([w.ravel() for w in current.weights]))
    noise = 6 * np.diff(seen, axis=0)
    stddev = 2.0 * making.bound_of(kind)
    if kind in making.ROUNDED:
        # Four shares are charged for, six clients answered.
        stddev *= np.sqrt(6 / 4)
    # A deviation of 2/3 or 3/2 of it would pass with a probability below 1e-6.
    low, high = scipy.stats.chi2.ppf([5e-10, 1 - 5e-10], noise.size) / noise.size
    assert low < np.mean(np.square(noise)) / stddev**2 < high


@pytest.mark.parametrize("kind", making.QUERIES)
def test_round_of_any_query_is_charged_with_its_event(kind):
    model = making.model(query=making.QUERIES[kind](2.0))
    query = model.optimizer.query
    server = _server(model, kind)
    expected = type(query.derive_event(query.initial_global_state()))
    weight = 1.0 if kind == "weighted" else None
    server.train(lambda current: making.answer_all(current, weight), 2)
    events = [entry.event.event for entry in model.ledger for _ in range(entry.count)]
    assert len(events) == 2 and {type(event) for event in events} == {expected}
    assert np.isfinite(model.ledger.epsilon(1e-2, "rdp"))
    assert all(np.isfinite(w).all() for w in making.weights(model))


def test_a_sum_with_fewer_shares_than_are_charged_for_is_not_released():
    """Three of four."""
    model = making.model(query=making.QUERIES["skellam_shares"](2.0))
    server, before = _server(model, "skellam_shares"), making.weights(model)

    def answer(current):
        for i, name in enumerate(NAMES[:3]):
            current.receive(name, making.update(i))

    with pytest.raises(NotPrivateError, match="min_contributors=4"):
        server.train(answer, 1)
    making.assert_weights(model, before, 0)
    assert model.ledger.total_count == 1
    server.train(making.answer_all, 1)
    assert model.ledger.total_count == 2


def _zeros():
    return [np.zeros(s, "float32") for s in making.SHAPES]


def _one_by_one(current, update):
    for name, each in zip(NAMES[:4], [update, *3 * [_zeros()]], strict=True):
        current.receive(name, each)


def _at_once(current, update):
    stacked = [np.stack([part, *3 * [np.zeros_like(part)]]) for part in update]
    current.receive_all(NAMES[:4], stacked)


UNUSABLE = {
    "nan": [np.full(s, np.nan, "float32") for s in making.SHAPES],
    "infinity": [np.zeros(making.SHAPES[0], "float32"), np.float32([0.0, np.inf])],
}


@pytest.mark.parametrize("kind", ["discrete_shares", "skellam_shares"])
@pytest.mark.parametrize(
    ("answer", "update"),
    [(answer, update) for answer in (_one_by_one, _at_once) for update in UNUSABLE.values()]
    + [(_one_by_one, []), (_one_by_one, [np.zeros(s) for s in making.SHAPES])],
)
def test_noise_does_not_follow_from_what_a_client_sends(kind, answer, update):
    """Whoever sends what cannot be used counts as zero, with a share of the noise: else the noise
    of the sum, and whether there is one, would tell it."""
    results = []
    for each in (update, _zeros()):
        secure = making.QUERIES[kind](2.0).numerator_query
        shares = dataclasses.replace(secure.sum_query, random_source=SeededRandomSource(3))
        query = NormalizedQuery(dataclasses.replace(secure, sum_query=shares), 6)
        model = making.model(query=query)
        how = _one_by_one if each is not update else answer
        _server(model, kind).train(lambda current, each=each, how=how: how(current, each), 1)
        results.append(making.weights(model))
    making.assert_close(*results, tolerance=0)
    making.assert_close(results[0], making.weights(making.model()), tolerance=20)
    assert np.abs(results[0][0] - making.weights(making.model())[0]).min() > 1e-4


@pytest.mark.parametrize("kind", ["gaussian", "correlated", "tree"])
def test_a_round_that_a_restart_takes_again_has_other_noise_and_is_charged_again(kind, tmp_path):
    """Weights of after the first round, and a ledger that holds the second."""
    ledger, weights = tmp_path / "ledger", tmp_path / "server.weights.h5"
    results, cohorts, costs = [], [], []
    for restarts in (False, True):
        book = tfdp.PrivacyLedger.open(ledger, create=not restarts, lease=1)
        model = making.model(query=making.QUERIES[kind](2.0), ledger=book)
        if restarts:
            model.load_weights(weights)
        else:
            _server(model, kind).train(making.answer_all, 1)
            model.save_weights(weights)

        def answer(current):
            cohorts.append(current.cohort)
            making.answer_all(current)

        _server(model, kind).train(answer, 1)
        results.append(making.weights(model))
        costs.append(book.epsilon(1e-2, "rdp"))
        book.close()
    assert tfdp.PrivacyLedger.load(ledger).total_count == 3
    assert costs[1] > 1.1 * costs[0]
    # The same clients, the same updates; the same noise would be 1e-6 apart.
    assert cohorts[0] == cohorts[1]
    assert max(np.abs(a - b).max() for a, b in zip(*results, strict=True)) > 1e-4
