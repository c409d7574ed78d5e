"""Simulated clients against a loop over them."""

import pathlib
import re

import keras
import numpy as np
import pytest

import tfdp
from tests.federated import rounds as making
from tfdp.federated import Clients, LocalSGD, LocalTraining, Server, Simulation
from tfdp.federated.simulation import control_changes
from tfdp.query import WeightedAverageQuery
from tfdp.sampling import FullBatch

SIZES = (5, 0, 12, 1, 8, 3)
SGD = LocalSGD(epochs=2, batch_size=4, learning_rate=0.1)


def _data():
    rng = np.random.default_rng(2)
    return {
        name: (
            rng.normal(size=[n, 3]).astype("float32"),
            rng.normal(size=[n, 2]).astype("float32"),
        )
        for name, n in zip(making.NAMES, SIZES, strict=True)
    }


def _alone(x, y):
    """Returns a client, all of whose examples are in one batch, whatever their order."""
    order = np.full([1, 2, 16], -1)
    order[0, :, : len(x)] = np.arange(len(x))
    rows = max(SIZES)  # So that one graph serves all clients.
    padded = [np.concatenate([a, np.zeros([rows - len(a), a.shape[1]], a.dtype)]) for a in (x, y)]
    return Clients(padded[0][None], padded[1][None], order)


@pytest.mark.parametrize(("at_once", "weighted"), [(2, False), (8, True)])
def test_simulation_is_the_loop_over_clients(at_once, weighted):
    # One batch an epoch holds all, so that the order of examples does not matter.
    sgd = LocalSGD(epochs=2, batch_size=16, learning_rate=0.1)
    results = []
    for simulated in (True, False):
        query = (
            WeightedAverageQuery(making.CLIP, stddev=0.0, denominator=6, max_weight=6.0)
            if weighted
            else None
        )
        model = making.model(stddev=0.0, query=query)
        server = Server(model, making.NAMES, sampling=FullBatch())
        if simulated:
            answer = Simulation(server, _data(), sgd, clients_at_once=at_once)
        else:
            training = LocalTraining(model, sgd)

            def answer(current, training=training):
                for name, (x, y) in _data().items():
                    if len(x):
                        updates = training.updates(current.weights, _alone(x, y))
                        weight = float(len(x)) if weighted else None
                        current.receive(name, [u[0] for u in updates], weight=weight)

        server.train(answer, 2)
        results.append(making.weights(model))
    making.assert_close(*results, 3e-6)


def test_convolutions_train_one_client_at_a_time():
    results = []
    rng = np.random.default_rng(1)
    data = {
        name: (rng.normal(size=(4, 5, 5, 1)).astype("float32"), rng.integers(0, 2, 4))
        for name in making.NAMES
    }
    for at_once in (1, 4):
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Conv2D(2, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
        model = tfdp.keras.make_private(keras.Sequential([keras.Input((5, 5, 1)), *layers]))
        query = tfdp.GaussianAverageQuery(making.CLIP, stddev=0.0, denominator=6)
        optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, privacy_unit="user")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss=loss)
        server = Server(model, making.NAMES, sampling=FullBatch())
        before = making.weights(model)
        server.train(Simulation(server, data, LocalSGD(1, 4, 0.1), clients_at_once=at_once), 1)
        results.append([a - b for a, b in zip(making.weights(model), before, strict=True)])
    making.assert_close(*results, 3e-6)
    assert min(np.abs(part).max() for part in results[0]) > 1e-3


def test_a_client_that_diverged_keeps_its_control_variate():
    updates = [np.ones([4, 2], np.float32), np.ones([4], np.float32)]
    updates[0][1, 1], updates[1][2], updates[1][3] = np.nan, np.inf, 1e38
    controls = [np.full([2], 0.5, np.float32), np.float32(0.5)]
    changes = control_changes(updates, controls, np.ones(4), 0.1)
    np.testing.assert_allclose(changes[0][0], -10.5)
    assert not np.any(changes[0][1:]) and not np.any(changes[1][1:])


def test_scaffold_is_the_loop_of_the_paper():
    sgd = LocalSGD(epochs=2, batch_size=16, learning_rate=0.1)
    model = making.model(query=making.QUERIES["gaussian"](0.0))
    server = Server(model, making.NAMES, sampling=FullBatch(), controls=True)
    simulation = Simulation(server, _data(), sgd, clients_at_once=4)
    twin = LocalTraining(making.model(), sgd)
    weights = making.weights(model)
    controls = [np.zeros_like(w) for w in weights]
    own = {name: [np.zeros_like(w) for w in weights] for name in making.NAMES}
    server.train(simulation, 3)
    for _ in range(3):
        total = [np.zeros_like(part) for part in [*weights, *controls]]
        for name, (x, y) in _data().items():
            if not len(x):
                continue
            corrections = [(c - c_i)[None] for c, c_i in zip(controls, own[name], strict=True)]
            update = [u[0] for u in twin.updates(weights, _alone(x, y), corrections)]
            # c_i+ = c_i - c + (x - y_i) / (K learning_rate)
            change = [-c - u / (2 * 0.1) for c, u in zip(controls, update, strict=True)]
            own[name] = [a + b for a, b in zip(own[name], change, strict=True)]
            record = [*update, *change]
            norm = np.sqrt(sum(np.sum(np.square(part)) for part in record))
            total = [t + min(1, making.CLIP / norm) * r for t, r in zip(total, record, strict=True)]
        weights = [w + t / 6 for w, t in zip(weights, total[:2], strict=True)]
        controls = [c + t / 6 for c, t in zip(controls, total[2:], strict=True)]
    making.assert_weights(model, weights, 2e-5)
    making.assert_close(server.controls, controls, 2e-5)
    assert max(np.abs(c).max() for c in controls) > 0.01


def test_control_of_a_client_without_a_step_stays():
    changes = control_changes([np.ones([2, 3])], [np.ones(3)], np.array([0, 2]), 0.5)
    np.testing.assert_array_equal(changes[0], [[0, 0, 0], [-2, -2, -2]])


def test_lengths_that_differ_are_refused():
    server = Server(making.model(), making.NAMES, sampling=FullBatch())
    data = {**_data(), making.NAMES[0]: (np.zeros([2, 3]), np.zeros([3, 2]))}
    with pytest.raises(ValueError, match="one length"):
        Simulation(server, data, SGD)
    with pytest.raises(KeyError):
        Simulation(server, {}, SGD)


PAIRS = {
    "rows": np.zeros([7, 3], "float32"),
    "two_rows": np.zeros([2, 3], "float32"),
    "weights": (np.zeros([2, 3]), np.zeros([2, 2]), np.ones(2)),
    "nothing": None,
}


@pytest.mark.parametrize("pair", PAIRS)
def test_data_of_a_client_are_a_pair(pair):
    server = Server(making.model(), making.NAMES, sampling=FullBatch())
    with pytest.raises(TypeError, match=f"pair .* of client '{making.NAMES[0]}'") as error:
        Simulation(server, {**_data(), making.NAMES[0]: PAIRS[pair]}, SGD)
    assert "7" not in str(error.value)


def test_what_a_simulation_is_made_of_is_checked():
    server = Server(making.model(), making.NAMES, sampling=FullBatch())
    for arguments, message in (
        ((server.model, _data(), SGD), "server must be"),
        ((server, [], SGD), "data must map the name of every client"),
        ((server, _data(), 0.1), "sgd must be"),
    ):
        with pytest.raises(TypeError, match=message):
            Simulation(*arguments)
    for generator in (0, "secret"):
        with pytest.raises(TypeError, match="generator must"):
            Simulation(server, _data(), SGD, generator=generator)
        with pytest.raises(TypeError, match="generator must"):
            Server(server.model, making.NAMES, sampling=FullBatch(), generator=generator)


@pytest.mark.parametrize("kind", ["gaussian", "weighted", *making.ROUNDED])
@pytest.mark.parametrize("controls", [False, True])
def test_clients_without_any_example_change_nothing(kind, controls):
    query = making.QUERIES[kind](0.0)
    if kind in making.ROUNDED and controls:
        pytest.skip("Its number of coordinates is that of the weights alone.")
    data = {name: tuple(part[:0] for part in pair) for name, pair in _data().items()}
    model = making.model(query=query)
    before = making.weights(model)
    server = Server(model, making.NAMES, sampling=FullBatch(), controls=controls)
    server.train(Simulation(server, data, SGD), 1)
    making.assert_weights(model, before, 1e-4)


@pytest.mark.parametrize("kind", making.ROUNDED)
def test_shares_of_the_noise_do_not_follow_from_the_data(kind):
    """All clients bring theirs, without an example and with one that is not finite, too."""
    data = _data()
    data[making.NAMES[0]] = (np.full([5, 3], np.inf, "float32"), np.zeros([5, 2], "float32"))
    data |= {name: tuple(part[:0] for part in data[name]) for name in making.NAMES[2:]}
    model = making.model(query=making.QUERIES[kind](1.0))
    server = Server(model, making.NAMES, sampling=FullBatch())
    # With five of them left out there would be too few: an error.
    server.train(Simulation(server, data, SGD), 1)
    assert all(np.isfinite(w).all() for w in making.weights(model))


FORMS = {
    "integers": (np.zeros([2, 3], "int32"), np.zeros([2, 2], "float32")),
    "rows": (np.zeros([2, 1], "float32"), np.zeros([2, 2], "float32")),
    "integer_targets": (np.zeros([2, 3], "float32"), np.zeros([2, 2], "int8")),
    "rows_of_targets": (np.zeros([2, 3], "float32"), np.zeros([2], "float32")),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
def test_one_client_does_not_decide_how_data_of_others_are_held(form, place):
    """In an array of integers the numbers of all others would be cut, by any amount."""
    server = Server(making.model(), making.NAMES, sampling=FullBatch())
    data = {**_data(), making.NAMES[place]: FORMS[form]}
    with pytest.raises(ValueError, match="one shape and one dtype"):
        Simulation(server, data, SGD)
    assert server.model.ledger.total_count == 0


def test_strings_are_refused():
    server = Server(making.model(), making.NAMES, sampling=FullBatch())
    for part in (0, 1):
        data = _data()
        arrays = list(data[making.NAMES[0]])
        arrays[part] = np.full(arrays[part].shape, "long text")
        with pytest.raises(TypeError, match="must hold numbers"):
            Simulation(server, {**data, making.NAMES[0]: tuple(arrays)}, SGD)


def test_floats_are_cast_as_in_fit_and_nobody_asks_for_the_form_of_nothing():
    server = Server(making.model(), making.NAMES, sampling=FullBatch())
    data = _data()
    x, y = data[making.NAMES[0]]
    data[making.NAMES[0]] = x.astype("float64"), y.astype("float16")
    data[making.NAMES[1]] = [], []
    clients = Simulation(server, data, SGD, clients_at_once=6)._stacked([making.NAMES[0]])
    assert {clients.x.dtype, clients.y.dtype} == {np.dtype("float32")}
    np.testing.assert_array_equal(clients.x[0, : len(x)], x)


def test_first_example_of_the_document_runs(capsys):
    document = pathlib.Path(__file__).resolve().parents[2] / "docs" / "federated.md"
    code = re.search(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)[1]
    exec(compile(code, document.name, "exec"), {})
    epsilon, rounds = map(float, capsys.readouterr().out.split()[-2:])
    assert 3.9 < epsilon <= 4.0 and rounds == 16
