"""Which answers count: of whom, in what form, how often, of which round, from which threads."""

import contextlib
import fractions
import threading

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.federated import rounds as making
from tfdp.federated import Server
from tfdp.keras import NotPrivateError
from tfdp.sampling import FullBatch

NAMES = making.NAMES

BAD = {
    "nan": lambda u: [np.full_like(u[0], np.nan), *u[1:]],
    "infinity": lambda u: [np.full_like(u[0], np.inf), *u[1:]],
    "square_overflows": lambda u: [np.full_like(u[0], 1e30), *u[1:]],
    "shape": lambda u: [u[0].T.copy(), *u[1:]],
    "scalar_for_a_vector": lambda u: [u[0], np.float32(1.0), *u[2:]],
    "broadcasts": lambda u: [u[0][:1], *u[1:]],
    "dtype": lambda u: [u[0].astype(np.float64), *u[1:]],
    "integers": lambda u: [u[0].astype(np.int32), *u[1:]],
    "objects": lambda u: [u[0].astype(object), *u[1:]],
    "missing": lambda u: u[:-1],
    "extra": lambda u: [*u, u[0]],
    "empty": lambda u: [],
    "none": lambda u: None,
    "dict": lambda u: dict(enumerate(u)),
    "text": lambda u: "update",
    "one_array": lambda u: u[0],
    "lists": lambda u: [part.tolist() for part in u],
    "none_inside": lambda u: [None, *u[1:]],
}


@pytest.fixture(scope="module")
def noiseless():
    return Server(making.model(stddev=0.0), NAMES, sampling=FullBatch())


def _moved(server, first):
    """Returns what a round adds to the weights in which the first client sends this."""
    before = making.weights(server.model)

    def answer(current):
        if first is not None:
            current.receive(NAMES[0], first)
            # A second answer in its place comes too late.
            current.receive(NAMES[0], making.update(0))
        for i, client in enumerate(NAMES[1:], 1):
            current.receive(client, making.update(i))

    server.train(answer, 1)
    return [a - b for a, b in zip(making.weights(server.model), before, strict=True)]


@pytest.mark.parametrize("name", BAD)
def test_bad_update_is_the_same_as_no_answer(name, noiseless, caplog, capfd):
    charged = noiseless.model.ledger.total_count
    with caplog.at_level("DEBUG"):
        bad = _moved(noiseless, BAD[name](making.update(0)))
    assert not [record for record in caplog.records if record.name != "tensorflow"]
    assert capfd.readouterr() == ("", "")
    assert noiseless.model.ledger.total_count == charged + 1
    making.assert_close(bad, _moved(noiseless, None))
    # The check would see an answer.
    good = _moved(noiseless, making.update(0))
    assert max(np.abs(g - b).max() for g, b in zip(good, bad, strict=True)) > 0.01


def _of_another_client(current):
    current.receive("nobody", making.update(0))
    current.receive(0, making.update(0))


def _of_another_round(current):
    current.receive(NAMES[0], making.update(0), token="0" * 32)


def _in_the_name_of_another_client(current):
    current.receive(NAMES[0], making.update(0), token=current.token_of(NAMES[1]))


def _with_a_weight(current):
    current.receive(NAMES[0], making.update(0), weight=1.0)


NOT_ITS_OWN = [
    _of_another_client,
    _of_another_round,
    _in_the_name_of_another_client,
    _with_a_weight,
]


@pytest.mark.parametrize("send", NOT_ITS_OWN)
def test_answer_that_is_not_of_this_round_changes_nothing(send):
    model = making.model(stddev=0.0)
    before = making.weights(model)
    Server(model, NAMES, sampling=FullBatch()).train(send, 1)
    making.assert_weights(model, before, tolerance=0)


def test_an_answer_in_the_name_of_another_client_does_not_take_its_place():
    server = Server(making.model(stddev=0.0), NAMES, sampling=FullBatch())
    before = making.weights(server.model)

    def answer(current):
        assert len({current.token_of(name) for name in NAMES}) == 6
        token = current.token_of(NAMES[1])
        current.receive(NAMES[0], making.update(1), token=token)
        current.receive(NAMES[0], making.update(0), token=current.token_of(NAMES[0]))

    server.train(answer, 1)
    moved = [6 * (a - b) for a, b in zip(making.weights(server.model), before, strict=True)]
    making.assert_close(moved, making.update(0))


def test_late_answer_changes_nothing_and_is_not_added_to_the_next_round():
    model = making.model(stddev=0.0)
    server = Server(model, NAMES, sampling=FullBatch())
    before = making.weights(model)
    late = []

    def answer(current):
        for earlier in late:
            earlier.receive(NAMES[0], making.update(0))
            earlier.receive_all(NAMES, making.stacked())
        late.append(current)

    server.train(answer, 2)
    for earlier in late:  # No round is open.
        earlier.receive(NAMES[0], making.update(0))
        earlier.receive_all(NAMES, making.stacked())
    making.assert_weights(model, before, tolerance=0)


def test_answers_at_once_are_the_answers_one_by_one():
    for kind in ("gaussian", "weighted", "exact"):
        results = []
        for at_once in (True, False):
            model = making.model(query=making.QUERIES[kind](0.0))
            weights = np.array([0.5, 1.0, 3.0, 0.0, 2.0, 1.0]) if kind == "weighted" else None

            def answer(current, at_once=at_once, weights=weights):
                if at_once:
                    # The last row is nobody's.
                    stacked = [np.concatenate([u, u[:1]]) for u in making.stacked()]
                    padded = None if weights is None else np.append(weights, 9.0)
                    current.receive_all(NAMES, stacked, padded)
                    return
                for i, client in enumerate(NAMES):
                    weight = None if weights is None else weights[i]
                    current.receive(client, making.update(i), weight=weight)

            Server(model, NAMES, sampling=FullBatch()).train(answer, 1)
            results.append(making.weights(model))
        making.assert_close(*results)


def test_answers_at_once_count_once_for_each_client():
    """As one by one: again, of nobody, of a client that was not drawn, of a round that is over."""
    server = Server(making.model(stddev=0.0), NAMES, sampling=FullBatch())
    before = making.weights(server.model)
    again = [*NAMES, NAMES[1], "nobody"]
    rows = [np.concatenate([u, u[:2]]) for u in making.stacked()]
    earlier = []

    def answer(current):
        current.receive(NAMES[0], making.update(0))
        current.receive_all(again, rows)
        current.receive_all(again, rows)
        current.receive(NAMES[2], making.update(2))
        for closed in earlier:
            closed.receive_all(again, rows)
        assert current.is_complete
        earlier.append(current)

    server.train(answer, 2)
    total = [2 * part.sum(axis=0) for part in making.stacked()]
    making.assert_weights(server.model, [w + t / 6 for w, t in zip(before, total, strict=True)])


def test_answers_at_once_need_a_row_for_each_client_and_the_weights_that_are_taken():
    server = Server(making.model(stddev=0.0), NAMES, sampling=FullBatch())
    all_of = making.stacked()
    with pytest.raises(ValueError, match="7 clients, 6 rows"):
        server.train(lambda current: current.receive_all([*NAMES, "more"], all_of), 1)
    with pytest.raises(ValueError, match="weights belong") as error:
        server.train(lambda current: current.receive_all(NAMES, all_of, np.full(6, 123.0)), 1)
    assert "123" not in str(error.value)


class _Waiting(str):
    """A name that is found in a cohort only when two threads look for it, or after a while."""

    barrier = threading.Barrier(2)
    __hash__ = str.__hash__

    def __eq__(self, other):
        with contextlib.suppress(threading.BrokenBarrierError):
            self.barrier.wait(timeout=0.3)
        return str.__eq__(self, other)


def test_a_client_that_answers_in_two_threads_counts_once(monkeypatch):
    server = Server(making.model(stddev=0.0), NAMES, sampling=FullBatch())
    added = []
    # Additions at the same time could lose one, which would hide it.
    monkeypatch.setattr(server._step, "add", lambda *arguments: added.append(arguments))

    def answer(current):
        arguments = _Waiting(NAMES[0]), making.update(0)
        threads = [threading.Thread(target=current.receive, args=arguments) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    server.train(answer, 1)
    assert len(added) == 1


def test_only_one_round_is_open_so_that_no_client_is_in_a_sum_twice():
    server = Server(making.model(stddev=0.0), NAMES, sampling=FullBatch())
    before = making.weights(server.model)
    one, other = server.rounds(2), server.rounds(2)
    given_up, current = next(one), next(other)
    given_up.receive(NAMES[0], making.update(0))
    given_up.receive_all(NAMES, making.stacked())
    current.receive(NAMES[0], making.update(0))
    with pytest.raises(NotPrivateError, match="Round 1 is not released"):
        next(one)
    assert next(other).number == 2
    moved = [6 * (a - b) for a, b in zip(making.weights(server.model), before, strict=True)]
    making.assert_close(moved, making.update(0))
    other.close()
    # Both first rounds, and the second that was begun.
    assert server.model.ledger.total_count == 3


# What stands in the place of one array, or of the whole list, or of a weight, in any combination.
IN_PLACE_OF_AN_ARRAY = {
    "itself": lambda a: a,
    "minus_zero": lambda a: -np.zeros_like(a),
    "subnormal": lambda a: np.full_like(a, 1e-45),
    "largest": lambda a: np.full_like(a, np.finfo(np.float32).max),
    "one_nan": lambda a: np.where(np.arange(a.size).reshape(a.shape) == 0, np.float32(np.nan), a),
    "minus_infinity": lambda a: np.full_like(a, -np.inf),
    "other_endian": lambda a: a.astype(">f4"),
    "half": lambda a: a.astype(np.float16),
    "complex": lambda a: a.astype(np.complex64),
    "bytes": lambda a: a.tobytes(),
    "times": lambda a: a.astype("int64").view("datetime64[s]"),
    "record": lambda a: a.view([("x", "f4")]),
    "objects_with_none": lambda a: np.full(a.shape, None),
    "scalar": lambda a: np.float32(1.0),
    "no_axis": lambda a: np.array(1.0, np.float32),
    "no_rows": lambda a: a[:0],
    "one_axis_more": lambda a: a[None],
    "read_only": lambda a: np.broadcast_to(np.float32(0.5), a.shape),
    "backwards": lambda a: a[::-1],
    "masked": lambda a: np.ma.masked_array(a, mask=np.ones_like(a)),
    "memory": lambda a: memoryview(np.ascontiguousarray(a)),
    "none": lambda a: None,
}
IN_PLACE_OF_THE_LIST = {
    "itself": lambda u: u,
    "tuple": tuple,
    "reversed": lambda u: u[::-1],
    "twice": lambda u: u * 2,
    "iterator": iter,
    "set": lambda u: {1, 2},
    "stacked": lambda u: np.array([1.0, 2.0], np.float32),
}
WEIGHTS = [None, 1.0, -0.0, -1e300, 1e308, np.nan, 10**400, True, "1", 1j, b"1", [1.0]]
WEIGHTS += [np.float32(2.0), np.int8(3), np.array(1.0), fractions.Fraction(1, 3)]
TOKENS = ["its own", "of another", None, "", b"", 0, "0" * 32]


@pytest.fixture(scope="module", params=["gaussian", "weighted"])
def of_both_kinds(request):
    return Server(
        making.model(query=making.QUERIES[request.param](0.0)), NAMES, sampling=FullBatch()
    )


def _mostly(ordinary, others):
    """So that not everything is wrong with every answer."""
    return st.sampled_from([ordinary] * len(list(others)) + list(others))


@hypothesis.settings(max_examples=150, deadline=None, database=None, derandomize=True)
@hypothesis.given(
    data=st.tuples(st.sampled_from(list(IN_PLACE_OF_AN_ARRAY)), _mostly("itself", ["one_nan"])),
    listed=_mostly("itself", IN_PLACE_OF_THE_LIST),
    weight=_mostly(None, WEIGHTS),
    token=_mostly("its own", TOKENS),
    client=_mostly(NAMES[0], ["nobody", None, 0]),
)
def test_whatever_a_client_sends_moves_the_weights_by_at_most_its_bound(
    of_both_kinds, data, listed, weight, token, client
):
    server = of_both_kinds
    before, charged = making.weights(server.model), server.model.ledger.total_count
    kinds = zip(making.update(0, 3.0), data, strict=True)
    update = IN_PLACE_OF_THE_LIST[listed]([IN_PLACE_OF_AN_ARRAY[kind](a) for a, kind in kinds])

    def answer(current):
        names = {"its own": NAMES[0], "of another": NAMES[1]}
        own = current.token_of(names[token]) if token in names else token
        current.receive(client, update, token=own, weight=weight)

    server.train(answer, 1)
    assert server.model.ledger.total_count == charged + 1
    moved = [a - b for a, b in zip(making.weights(server.model), before, strict=True)]
    expected = [np.zeros(shape) for shape in making.SHAPES]
    if client == NAMES[0] and token in ("its own", None) and listed in ("itself", "tuple"):
        expected = _usable(update, weight, server.form.is_weighted) or expected
    making.assert_close(moved, [part / 6 for part in expected])
    norm = np.sqrt(sum(np.sum(np.float64(part) ** 2) for part in moved))
    assert norm <= making.bound_of("weighted" if server.form.is_weighted else "gaussian") / 6 + 1e-6


def _usable(update, weight, is_weighted):
    """Returns what such an update adds to the sum, or None where it is dropped."""
    if not all(type(part) is np.ndarray and part.dtype == np.float32 for part in update):
        return None
    if [part.shape for part in update] != list(making.SHAPES):
        return None
    # The norm is computed in float32, and one that overflows counts as zero.
    norm = np.sqrt(sum(np.sum(np.float64(part) ** 2) for part in update))
    if not norm < 1e19 or is_weighted is (weight is None):
        return None
    number = 1.0
    if is_weighted:
        if isinstance(weight, bool | str | bytes | complex | list | np.ndarray):
            return None
        if not -1e308 <= weight <= 1e308:
            return None
        number = float(np.clip(float(weight), 0.0, 2.0))
    return [number * min(1.0, making.CLIP / norm) * part if norm else part for part in update]
