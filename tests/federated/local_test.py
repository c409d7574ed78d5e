"""Local SGD of many clients against Keras' own training, client by client."""

import keras
import numpy as np
import pytest

import tfdp
from tests.federated import rounds as making
from tfdp.federated import Clients, LocalSGD, LocalTraining

L = keras.layers
SIZES = (5, 0, 12, 1, 8)
WIDTH = 3


def _mlp():
    return [
        L.Dense(4, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01)),
        L.Dense(2),
    ]


MODELS = {
    "mlp": ((WIDTH,), _mlp),
    "sequence": ((4, WIDTH), lambda: [L.Dense(3, activation="relu"), L.Flatten(), L.Dense(2)]),
    "convolution": ((5, 5, 1), lambda: [L.Conv2D(2, 3), L.Flatten(), L.Dense(2)]),
}


def _model(kind):
    keras.utils.set_random_seed(7)
    shape, layers = MODELS[kind]
    model = keras.Sequential([keras.Input(shape), *layers()])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Eagerly, because batches have many sizes.
    model.compile(keras.optimizers.SGD(0.3), loss=loss, run_eagerly=True)
    return model


def _data(shape, sizes=SIZES):
    rng = np.random.default_rng(2)
    return [(rng.normal(size=[n, *shape]).astype("float32"), rng.integers(0, 2, n)) for n in sizes]


def _stacked(data, sgd, generator):
    rows = max(len(x) for x, _ in data)
    x = np.zeros([len(data), rows, *data[0][0].shape[1:]], "float32")
    y = np.zeros([len(data), rows], "int64")
    order = np.full([len(data), sgd.steps(rows), sgd.batch_size], -1, np.int32)
    for i, (own_x, own_y) in enumerate(data):
        x[i, : len(own_x)], y[i, : len(own_y)] = own_x, own_y
        batches = sgd.batches(len(own_x), generator)
        order[i, : len(batches)] = batches
    return Clients(x, y, order)


@pytest.mark.parametrize("kind", MODELS)
def test_clients_at_once_are_keras_training_client_by_client(kind):
    model = _model(kind)
    sgd = LocalSGD(epochs=2, batch_size=4, learning_rate=0.3)
    data = _data(MODELS[kind][0])
    clients = _stacked(data, sgd, np.random.default_rng(1))
    start = [np.array(w) for w in model.get_weights()]
    updates = LocalTraining(model, sgd).updates(start, clients)
    making.assert_close(model.get_weights(), start, 0)
    for i, (x, y) in enumerate(data):
        model.set_weights(start)
        for batch in clients.order[i]:
            rows = batch[batch >= 0]
            if len(rows):
                model.train_on_batch(x[rows], y[rows])
        expected = [a - b for a, b in zip(model.get_weights(), start, strict=True)]
        making.assert_close([u[i] for u in updates], expected, 3e-6)
        assert (max(np.abs(u[i]).max() for u in updates) > 1e-3) == (len(x) > 0)


@pytest.mark.parametrize(
    ("shape", "layer"),
    [
        ((6, 2), lambda: L.Conv1D(3, 3)),
        ((6, 6, 2), lambda: L.Conv2D(3, 3)),
        ((6, 6, 2), lambda: L.SeparableConv2D(3, 3)),
        ((6, 6, 2), lambda: L.DepthwiseConv2D(3)),
        ((6, 6, 2), lambda: L.Conv2DTranspose(3, 3)),
        ((4, 4, 4, 1), lambda: L.Conv3D(2, 2)),
    ],
    ids=["1d", "2d", "separable", "depthwise", "transpose", "3d"],
)
def test_a_client_alone_trains_a_convolution_with_a_bias(shape, layer):
    """As over Flower, where every node is one client."""
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input(shape), layer(), L.Flatten(), L.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.3), loss=loss, run_eagerly=True)
    _check_one_client(model, *_data(shape, [6])[0])


def _check_one_client(model, x, y, tolerance=3e-6):
    """Checks batches of 4, of which the last may be filled up, against Keras, at rate 0.3."""
    batches = [np.arange(len(x))[i : i + 4] for i in range(0, len(x), 4)]
    order = np.full([1, len(batches), 4], -1)
    for i, rows in enumerate(batches):
        order[0, i, : len(rows)] = rows
    start = [np.array(w) for w in model.get_weights()]
    training = LocalTraining(model, LocalSGD(1, 4, 0.3))
    updates = training.updates(start, Clients(x[None], y[None], order))
    for rows in batches:
        model.train_on_batch(x[rows], y[rows])
    expected = [a - b for a, b in zip(model.get_weights(), start, strict=True)]
    making.assert_close([u[0] for u in updates], expected, tolerance)
    assert max(np.abs(u).max() for u in updates) > 1e-3


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
def test_a_batch_that_is_filled_up_has_the_loss_of_its_reduction(reduction):
    model = _model("mlp")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model.compile(keras.optimizers.SGD(0.3), loss=loss, run_eagerly=True)
    _check_one_client(model, *_data((WIDTH,), [5])[0])


@pytest.mark.parametrize("reductions", [["none"], ["sum", "sum_over_batch_size"]], ids=str)
def test_losses_that_are_reduced_in_no_common_way_are_refused(reductions):
    x = keras.Input((WIDTH,))
    model = keras.Model(x, [L.Dense(1)(x) for _ in reductions])
    model.compile(loss=[keras.losses.MeanSquaredError(reduction=r) for r in reductions])
    with pytest.raises(ValueError, match="reduction"):
        LocalTraining(model, LocalSGD(1, 4, 0.1))


def test_constraints_are_applied_after_every_step_of_a_client():
    keras.utils.set_random_seed(7)
    layer = L.Dense(2, kernel_constraint=keras.constraints.MaxNorm(0.5, axis=0))
    model = keras.Sequential([keras.Input((WIDTH,)), layer])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.3), loss=loss, run_eagerly=True)
    _check_one_client(model, *_data((WIDTH,), [12])[0])
    assert np.linalg.norm(model.get_weights()[0], axis=0).max() < 0.5 + 1e-6


def _by_hand(model, start, data, order, rate, proximal, corrections):
    """One client, with plain loops; the gradient is that of a step of SGD(1)."""
    weights = [w.copy() for w in start]
    for batch in order:
        rows = batch[batch >= 0]
        if not len(rows):
            continue
        model.set_weights(weights)
        model.train_on_batch(data[0][rows], data[1][rows])
        gradients = [a - b for a, b in zip(weights, model.get_weights(), strict=True)]
        weights = [
            w - rate * (g + proximal * (w - s) + c)
            for w, g, s, c in zip(weights, gradients, start, corrections, strict=True)
        ]
    return [w - s for w, s in zip(weights, start, strict=True)]


def test_proximal_term_and_corrections_are_those_of_the_papers():
    model = _model("mlp")
    model.optimizer.learning_rate = 1.0
    sgd = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2, proximal=0.7)
    data = _data((WIDTH,))
    clients = _stacked(data, sgd, np.random.default_rng(1))
    start = [np.array(w) for w in model.get_weights()]
    rng = np.random.default_rng(4)
    corrections = [rng.normal(size=[len(data), *w.shape]).astype("float32") for w in start]
    updates = LocalTraining(model, sgd).updates(start, clients, corrections)
    for i, own in enumerate(data):
        expected = _by_hand(
            model, start, own, clients.order[i], 0.2, 0.7, [c[i] for c in corrections]
        )
        making.assert_close([u[i] for u in updates], expected, 5e-6)


@pytest.mark.parametrize("proximal", [0.0, 0.1])
@pytest.mark.parametrize("corrected", [False, True])
def test_a_client_that_has_finished_stays_where_it_is_while_others_go_on(proximal, corrected):
    """One step more would overflow, and zero times that is no zero."""
    keras.utils.set_random_seed(0)
    layers = [L.Dense(4, use_bias=False) for _ in range(3)]
    model = keras.Sequential([keras.Input((1,)), *layers, L.Dense(1, use_bias=False)])
    model.compile(loss="mse")
    training = LocalTraining(model, LocalSGD(1, 1, 100.0, proximal))
    start = [np.array(w) for w in model.get_weights()]
    x, y = np.full([3, 12, 1], 1e-3, "float32"), np.zeros([3, 12, 1], "float32")
    x[0], y[0] = 1.0, 5.0
    corrections = None
    if corrected:
        corrections = [np.zeros([3, *w.shape], "float32") for w in start]
        for correction in corrections:
            correction[2] = np.inf  # Of the client without a step.

    def updates(sizes):
        order = np.full([3, 12, 1], -1)
        for i, size in enumerate(sizes):
            order[i, :size, 0] = np.arange(size)
        return training.updates(start, Clients(x, y, order), corrections)

    for alone, beside in zip(updates([2, 0, 0]), updates([2, 12, 0]), strict=True):
        assert np.all(np.isfinite(alone)) and np.all(alone[0] != 0)
        np.testing.assert_array_equal(beside[0], alone[0])
        assert np.any(beside[1]) and not np.any(beside[2])


def test_a_batch_is_filled_up_with_rows_of_its_own():
    """The loss of another row may overflow, and zero times that is no zero."""
    model = keras.Sequential([keras.Input((1,)), L.Dense(1, use_bias=False)])
    model.compile(loss="mse")
    training = LocalTraining(model, LocalSGD(1, 4, 0.1))
    x, y = np.zeros([1, 5, 1], "float32"), np.zeros([1, 5, 1], "float32")
    x[0, 0] = 1e15  # The first step is finite, and the loss of this row after it is not.
    first, nothing = [0, 1, 2, 3], [-1, -1, -1, -1]
    start = [np.ones([1, 1], "float32")]
    (expected,) = training.updates(start, Clients(x, y, np.array([[first, nothing]])))
    assert 1e28 < abs(expected.item()) < np.inf
    for place in range(4):
        last = np.array(nothing)
        last[place] = 4  # x = 0, which moves nothing.
        (found,) = training.updates(start, Clients(x, y, np.array([[first, last]])))
        np.testing.assert_array_equal(found, expected)


def test_dropout_differs_between_clients_and_rounds():
    model = keras.Sequential([keras.Input((40,)), L.Dropout(0.5), L.Dense(1, use_bias=False)])
    model.compile(loss="mse")
    sgd = LocalSGD(epochs=1, batch_size=1, learning_rate=0.1)
    clients = Clients(
        np.ones([3, 1, 40], "float32"), np.ones([3, 1, 1], "float32"), np.zeros([3, 1, 1], int)
    )
    training = LocalTraining(model, sgd)
    seen = [training.updates(model.get_weights(), clients)[0] == 0 for _ in range(2)]
    masks = {mask.tobytes() for masks in seen for mask in masks}
    assert len(masks) == 6  # Two masks of 40 coins are equal with probability 1e-12.


def test_batches_hold_every_example_once_an_epoch():
    sgd = LocalSGD(epochs=3, batch_size=4, learning_rate=0.1)
    batches = sgd.batches(10, tfdp.noise.host_generator())
    assert batches.shape == (sgd.steps(10), 4) == (9, 4)
    for epoch in batches.reshape(3, -1):
        assert sorted(epoch) == [-1, -1, *range(10)]
        assert list(epoch[-2:]) == [-1, -1]
    assert sgd.batches(0, tfdp.noise.host_generator()).shape == (0, 4)


@pytest.mark.parametrize(
    "arguments",
    [{"epochs": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"proximal": -1.0}],
    ids=str,
)
def test_numbers_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        LocalSGD(**{"epochs": 1, "batch_size": 1, "learning_rate": 0.1, **arguments})


def test_numbers_of_numpy_are_kept_as_pythons_own():
    sgd = LocalSGD(np.int64(2), np.int32(4), np.float32(0.5), np.float64(0.25))
    kinds = [type(value) for value in vars(sgd).values()]
    assert kinds == [int, int, float, float]
    assert sgd == LocalSGD(2, 4, 0.5, 0.25)


def test_what_is_no_sgd_is_refused():
    with pytest.raises(TypeError, match="sgd must be a tfdp.federated.LocalSGD"):
        LocalTraining(_model("mlp"), keras.optimizers.SGD(0.1))


def test_model_without_a_loss_is_refused():
    with pytest.raises(ValueError, match="compiled with a loss"):
        LocalTraining(making.plain(), LocalSGD(1, 1, 0.1))
