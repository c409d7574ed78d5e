"""Round robin, random order and asynchronous exchange, against runs written out by hand."""

import numpy as np
import pytest

from tfdp.accounting import Budget, PrivacyBudgetExceededError
from tfdp.federated.selective import (
    AsynchronousExchange,
    LargestValues,
    ParameterServer,
    Participant,
    SparseVectorUpload,
    random_order,
    run_epoch,
)
from tfdp.ledger import PrivacyLedger

GOALS = {"a": [4, 0, 1], "b": [-2, 3, 0], "c": [0, -1, 8]}


def toward(goal):
    return lambda w: w + np.float32(0.5) * (np.array(goal, np.float32) - w)


def make(theta_d=1.0, theta_u=0.67):
    return {
        name: Participant(toward(g), LargestValues(theta_u, 1.5), theta_d)
        for name, g in GOALS.items()
    }


class SlowRun:
    """Figures 2 and 3, one number after another."""

    def __init__(self, theta_d, theta_u, beta):
        self.w, self.stat = [0.0] * 3, [0.0] * 3
        self.own = {}
        self.theta_d, self.theta_u, self.beta = theta_d, theta_u, beta

    def download(self, name):
        if name not in self.own:
            self.own[name] = list(self.w)
        order = sorted(range(3), key=lambda j: (-self.stat[j], j))
        for j in order[: int(self.theta_d * 3)]:
            self.own[name][j] = self.w[j]

    def train(self, name):
        changes = [0.5 * (goal - w) for goal, w in zip(GOALS[name], self.own[name], strict=True)]
        self.own[name] = [w + d for w, d in zip(self.own[name], changes, strict=True)]
        order = sorted(range(3), key=lambda j: (-abs(changes[j]), j))[: int(self.theta_u * 3)]
        return {j: max(-1.5, min(1.5, changes[j])) for j in order if changes[j]}

    def upload(self, changes):
        for j in range(3):
            self.stat[j] *= self.beta
        for j, change in changes.items():
            self.w[j] += change
            self.stat[j] += 1

    def turn(self, name):
        self.download(name)
        self.upload(self.train(name))


@pytest.mark.parametrize(
    "theta_d, theta_u, beta", [(1.0, 1.0, 1.0), (0.34, 0.67, 0.5), (0.67, 0.34, 0.9)]
)
def test_turns_are_those_of_the_definition(theta_d, theta_u, beta):
    server = ParameterServer(np.zeros(3, np.float32), beta=beta)
    participants, slow = make(theta_d, theta_u), SlowRun(theta_d, theta_u, beta)
    rng = np.random.default_rng(0)
    for epoch in range(8):
        order = random_order(participants, rng) if epoch % 2 else None
        assert run_epoch(server, participants, order) == {}
        for name in order or participants:
            slow.turn(name)
    # Halves of small integers: hardly any rounding.
    assert server.parameters == pytest.approx(np.array(slow.w), abs=1e-5)
    assert server.stat == pytest.approx(np.array(slow.stat))
    for name, participant in participants.items():
        assert participant.parameters == pytest.approx(np.array(slow.own[name]), abs=1e-5)


def test_random_order_has_everybody_once():
    orders = {tuple(random_order(make())) for _ in range(200)}
    assert len(orders) == 6 and {frozenset(order) for order in orders} == {frozenset("abc")}


@pytest.mark.parametrize("generator", [0, 5])
def test_what_is_no_generator_is_refused(generator):
    with pytest.raises(TypeError, match="generator must be .* Received: int."):
        random_order(make(), generator)


def test_asynchronous_uploads_are_of_stale_parameters():
    server, slow = ParameterServer(np.zeros(3, np.float32)), SlowRun(1.0, 0.67, 1.0)
    exchange, participants = AsynchronousExchange(server), make()
    # All begin at zero. "a" uploads at 1 and 2, "b" at 2.5 what it learned at 0.
    pending = {}
    for name, duration in (("a", 1.0), ("b", 2.5)):
        exchange.add(name, participants[name], duration)
        slow.download(name)
        pending[name] = slow.train(name)
    turns = list(exchange.run(until=2.6))
    for name in ("a", "a", "b"):
        slow.upload(pending[name])
        slow.download(name)
        pending[name] = slow.train(name)
    assert [(turn.name, turn.time, turn.staleness) for turn in turns] == [
        ("a", 1.0, 0),
        ("a", 2.0, 0),
        ("b", 2.5, 2),
    ]
    assert server.parameters == pytest.approx(np.array(slow.w))
    assert exchange.time == 2.6
    # What "a" uploads at 3 it learned before the upload of "b"; then it lags.
    exchange.set_duration("a", 10.0)
    assert [tuple(turn[:3]) for turn in exchange.run(until=5.0)] == [("a", 3.0, 1), ("b", 5.0, 1)]
    slow.upload(pending["a"])
    slow.upload(pending["b"])
    assert server.parameters == pytest.approx(np.array(slow.w))


def test_a_pause_is_before_every_download():
    server, slow = ParameterServer(np.zeros(3, np.float32)), SlowRun(1.0, 0.67, 1.0)
    exchange, participants = AsynchronousExchange(server), make()
    # "a" downloads at 1 and 4, "b" at 0 and 3.5: "a" knows what "b" uploads at 3.5 from 4 on.
    exchange.add("a", participants["a"], 2.0, pause=1.0)
    exchange.add("b", participants["b"], 3.5)
    turns = [tuple(turn[:3]) for turn in exchange.run(until=7.0)]
    assert turns == [("a", 3.0, 0), ("b", 3.5, 1), ("a", 6.0, 0), ("b", 7.0, 1)]
    pending = {}
    for name, uploads in (("b", 0), ("a", 0), ("a", 1), ("b", 1), ("a", 0), ("a", 1), ("b", 1)):
        if uploads:
            slow.upload(pending[name])
        else:
            slow.download(name)
            pending[name] = slow.train(name)
        if (name, uploads) == ("b", 1):
            slow.download("b")
            pending["b"] = slow.train("b")
    assert server.parameters == pytest.approx(np.array(slow.w))
    # Who leaves while it pauses does not begin, and a pause may be no negative time.
    exchange.remove("a")
    exchange.remove("b")
    assert list(exchange.run(until=20.0)) == []
    with pytest.raises(ValueError, match="pause"):
        exchange.add("c", participants["c"], 1.0, pause=-1.0)


def test_who_leaves_uploads_nothing_and_may_return():
    server, participants = ParameterServer(np.zeros(3, np.float32)), make()
    exchange = AsynchronousExchange(server)
    exchange.add("a", participants["a"], 1.0)
    exchange.add("b", participants["b"], 0.75)
    exchange.remove("a")
    assert [turn.name for turn in exchange.run(until=2.0)] == ["b", "b"]
    participants["a"].crash()
    exchange.add("a", participants["a"], 1.0)
    assert [turn.name for turn in exchange.run(until=3.1)] == ["b", "a", "b"]
    with pytest.raises(ValueError, match="already"):
        exchange.add("a", participants["a"], 1.0)


class _Away:
    """A participant's training that loses the connection when told to."""

    def __init__(self, goal):
        self.train, self.away = toward(goal), False

    def __call__(self, w):
        if self.away:
            raise ConnectionError("away")
        return self.train(w)


class _Malicious:
    """Says what is refused."""

    def __call__(self, changes):
        return LargestValues(1.0, 100.0)(np.full_like(changes, 50.0))


def test_the_others_go_on_when_some_are_away_or_refused():
    server = ParameterServer(np.zeros(3, np.float32), largest_value=1.5)
    participants, away = make(), _Away(GOALS["b"])
    participants["b"] = Participant(away, LargestValues(0.67, 1.5))
    participants["m"] = Participant(toward([0, 0, 0]), _Malicious())
    away.away = True
    failed = run_epoch(server, participants)
    assert set(failed) == {"b", "m"} and server.version == 2
    away.away = False
    assert set(run_epoch(server, participants)) == {"m"} and server.version == 5
    # Somebody joins, and somebody else leaves.
    participants["d"] = Participant(toward([1, 1, 1]), LargestValues(1.0, 1.0))
    del participants["m"]
    assert run_epoch(server, participants) == {} and server.version == 9

    exchange = AsynchronousExchange(server)
    away.away = True
    exchange.add("b", participants["b"], 1.0)
    exchange.add("m", Participant(toward([0, 0, 0]), _Malicious()), 1.0)
    turns = list(exchange.run(until=1.0))
    assert [(turn.name, turn.error is None) for turn in turns] == [("b", False), ("m", False)]
    away.away = False
    list(exchange.run(until=2.0))  # It finds out only now that it is back.
    assert [turn.name for turn in exchange.run(until=3.0) if turn.error is None] == ["b"]


def _spends(uploads):
    """Returns a participant whose budget covers so many uploads."""
    upload = SparseVectorUpload(1.0, 1.5, 0.0, 1.0, PrivacyLedger(), Budget(uploads, 1e-5))
    return Participant(toward(GOALS["a"]), upload)


def test_the_others_go_on_when_one_has_spent_its_budget():
    server, participants = ParameterServer(np.zeros(3, np.float32)), make()
    participants = {"spent": _spends(1), **participants}
    assert run_epoch(server, participants) == {} and server.version == 4
    failed = run_epoch(server, participants)
    assert set(failed) == {"spent"} and server.version == 7
    assert isinstance(failed["spent"], PrivacyBudgetExceededError)

    exchange = AsynchronousExchange(server)
    exchange.add("spent", _spends(1), 1.0)
    exchange.add("b", participants["b"], 1.0)
    turns = list(exchange.run(until=2.0))
    assert [turn.name for turn in turns] == ["spent", "b", "spent", "b"]
    assert [type(turn.error) for turn in turns if turn.error] == [PrivacyBudgetExceededError]
    assert turns[2].error is not None and server.version == 10


def test_faults_of_the_program_are_not_taken_for_absence():
    def broken(w):
        raise RuntimeError("a fault")

    server = ParameterServer(np.zeros(3, np.float32))
    with pytest.raises(RuntimeError, match="a fault"):
        run_epoch(server, {"a": Participant(broken, LargestValues(1.0, 1.0))})
