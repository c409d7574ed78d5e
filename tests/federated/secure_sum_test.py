"""Updates that clients encode, and a server that sees their sum alone."""

import numpy as np
import pytest
import scipy.stats

from tests.federated import rounds as making
from tfdp.federated import Server, encoded
from tfdp.keras import NotPrivateError
from tfdp.query import NormalizedQuery, secure_sum_query
from tfdp.sampling import FullBatch

NAMES = making.NAMES
BITS = 24
KINDS = ("discrete_shares", "skellam_shares")


def _server(kind, noise_multiplier=0.0, **arguments):
    model = making.model(query=making.QUERIES[kind](noise_multiplier))
    return Server(model, NAMES, sampling=FullBatch(), **arguments)


def _wrapped(total):
    return (total + 2 ** (BITS - 1)) % 2**BITS - 2 ** (BITS - 1)


def _masked_sum(parts, rng):
    """Adds parts that nobody can read: each pair has a mask that one adds and the other subtracts.

    A protocol agrees upon masks by keys, and reveals those of clients that drop out.
    """
    sent = [part.copy() for part in parts]
    for i in range(len(parts)):
        for j in range(i):
            mask = rng.integers(0, 2**BITS, parts[0].shape)
            sent[i], sent[j] = sent[i] + mask, sent[j] - mask
    return _wrapped(sum(_wrapped(part) for part in sent))


@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_sum_of_encoded_updates_is_the_sum_of_the_updates(kind):
    """Three rounds, each with a rotation of its own; the updates are longer than the clip."""
    masked, seen = _server(kind), _server(kind)
    query, rng = masked.model.optimizer.query, np.random.default_rng(0)

    def hides(current):
        updates = [making.update(i + 10 * current.number, 3.0) for i in range(5)]
        parts = [encoded(query, current.step, update) for update in updates]
        assert all(part.shape == (8,) and part.dtype == np.int64 for part in parts)
        current.receive_sum(NAMES[:5], _masked_sum(parts, rng))

    def shows(current):
        for i, name in enumerate(NAMES[:5]):
            current.receive(name, making.update(i + 10 * current.number, 3.0))

    start = making.weights(masked.model)
    masked.train(hides, 3)
    seen.train(shows, 3)
    making.assert_close(making.weights(masked.model), making.weights(seen.model), 1e-4)
    moved = [a - b for a, b in zip(making.weights(masked.model), start, strict=True)]
    assert max(np.abs(part).max() for part in moved) > 0.1
    assert [entry.event for entry in masked.model.ledger] == [
        entry.event for entry in seen.model.ledger
    ]


def test_controls_are_encoded_behind_the_weights():
    query = NormalizedQuery(
        secure_sum_query(making.CLIP, 1e-5, num_coordinates=16, num_records=6, modulus_bits=BITS), 6
    )
    server = Server(making.model(query=query), NAMES, sampling=FullBatch(), controls=True)
    before = making.weights(server.model)
    update = [*making.update(0, 0.5), *making.update(1, 0.7)]

    def answer(current):
        parts = [encoded(query, current.step, update) for _ in NAMES]
        current.receive_sum(NAMES, _wrapped(sum(parts)))

    server.train(answer, 1)
    moved = [a - b for a, b in zip(making.weights(server.model), before, strict=True)]
    making.assert_close(moved, update[:2], 1e-4)
    making.assert_close([control.numpy() for control in server.controls], update[2:], 1e-4)


def test_noise_of_a_secure_sum_is_that_of_the_event():
    """Four clients, as many as are charged for; 50 rounds of 8 coordinates of zeros."""
    server, zeros = _server("discrete_shares", 2.0), [np.zeros(s, "float32") for s in making.SHAPES]
    query = server.model.optimizer.query
    seen = [np.concatenate([w.ravel() for w in making.weights(server.model)])]
    for current in server.rounds(50):
        parts = [encoded(query, current.step, zeros) for _ in range(4)]
        current.receive_sum(NAMES[:4], _wrapped(sum(parts)))
        if current.number > 1:
            seen.append(np.concatenate([w.ravel() for w in current.weights]))
    noise = 6 * np.diff(seen, axis=0)
    # A deviation of 2/3 or 3/2 of it would pass with a probability below 1e-6.
    low, high = scipy.stats.chi2.ppf([5e-10, 1 - 5e-10], noise.size) / noise.size
    assert low < np.mean(np.square(noise)) / (2.0 * making.CLIP) ** 2 < high


@pytest.mark.parametrize("bad", [np.nan, 1e30])
def test_an_update_that_cannot_be_used_is_a_share_of_noise_alone(bad):
    query = making.QUERIES["discrete_shares"](2.0)
    update = [np.full(shape, bad, "float32") for shape in making.SHAPES]
    drawn = [encoded(query, 0, update) for _ in range(50)]
    stddev = query.numerator_query.sum_query.local_stddev
    low, high = scipy.stats.chi2.ppf([5e-10, 1 - 5e-10], 400) / 400
    assert low < np.mean(np.square(drawn)) / stddev**2 < high


def _answers_with(send):
    server = _server("discrete_shares", 2.0)
    query, before = server.model.optimizer.query, making.weights(server.model)

    def answer(current):
        parts = [encoded(query, current.step, making.update(i)) for i in range(6)]
        send(current, lambda n: _wrapped(sum(parts[:n])))

    return server, before, answer


SENT = {
    "three of the four that are charged for": lambda c, of: c.receive_sum(NAMES[:3], of(3)),
    "a client that was not drawn": lambda c, of: c.receive_sum(["x", *NAMES[:5]], of(6)),
    "nothing": lambda c, of: None,
}


@pytest.mark.parametrize("name", SENT)
def test_a_sum_without_the_noise_that_is_charged_is_not_released(name):
    server, before, answer = _answers_with(SENT[name])
    with pytest.raises(NotPrivateError, match="min_contributors=4"):
        server.train(answer, 1)
    making.assert_weights(server.model, before, 0)
    assert server.model.ledger.total_count == 1


def test_a_client_is_in_a_round_once_by_itself_or_in_one_sum():
    """Noiseless: every client would move the weights by a sixth of its update."""
    server = _server("discrete_shares")
    query, before = server.model.optimizer.query, making.weights(server.model)
    update, late = making.update(0), []

    def answer(current):
        parts = [encoded(query, current.step, update) for _ in NAMES]
        current.receive(NAMES[0], update)
        current.receive_sum(NAMES[:2], _wrapped(sum(parts[:2])))  # The first has answered.
        current.receive_sum(NAMES[1:4], _wrapped(sum(parts[:3])))
        current.receive_sum(NAMES[1:4], _wrapped(sum(parts[:3])))
        current.receive(NAMES[3], update)
        for closed in late:
            closed.receive_sum(NAMES[4:], _wrapped(sum(parts[:2])))
        late.append(current)

    server.train(answer, 2)
    moved = [a - b for a, b in zip(making.weights(server.model), before, strict=True)]
    making.assert_close(moved, [2 * 4 / 6 * part for part in update], 2e-4)


BAD_SUMS = {
    "shape": lambda of: of(6)[:-1],
    "dtype": lambda of: of(6).astype(np.float64),
    "list": lambda of: of(6).tolist(),
}


@pytest.mark.parametrize("name", BAD_SUMS)
def test_a_sum_of_another_form_is_refused(name):
    server, before, answer = _answers_with(
        lambda current, of: current.receive_sum(NAMES, BAD_SUMS[name](of))
    )
    with pytest.raises(ValueError, match=r"int64\(8,\)"):
        server.train(answer, 1)
    making.assert_weights(server.model, before, 0)


@pytest.mark.parametrize("names", [(), (NAMES[0], NAMES[0])])
def test_a_sum_names_its_clients_once(names):
    server, _, answer = _answers_with(lambda current, of: current.receive_sum(names, of(2)))
    with pytest.raises(ValueError, match="each of them once"):
        server.train(answer, 1)


def test_other_queries_have_no_secure_sum():
    server = Server(making.model(), NAMES, sampling=FullBatch())
    query = server.model.optimizer.query

    def answer(current):
        assert current.step is None
        with pytest.raises(TypeError, match="secure_sum_query"):
            current.receive_sum(NAMES, np.zeros(8, np.int64))
        with pytest.raises(TypeError, match="secure_sum_query"):
            encoded(query, 0, making.update(0))

    server.train(answer, 1)
    with pytest.raises(TypeError, match="step"):
        encoded(making.QUERIES["discrete_shares"](1.0), 0.5, making.update(0))


def test_signs_of_a_step_are_the_same_at_client_and_server():
    query = making.QUERIES["discrete_shares"](0.0)
    ends = [encoded(query, step, making.update(0, 1.0)) for step in (0, 0, 1)]
    tolerance = 40 * query.numerator_query.sum_query.local_stddev + 2
    assert np.abs(ends[0] - ends[1]).max() < tolerance < np.abs(ends[0] - ends[2]).max()
