"""Which models become private, what is refused, and what is saved."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import toy
from toy import L

import tfdp
from tfdp.keras import DPModel, DPSequential, NotPrivateError, make_private
from tfdp.sampling import FullBatch, Unknown

X, Y = toy.data()


N = len(X)


class Plain(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = L.Dense(2)

    def call(self, x):
        return self.out(x)


def functional():
    x = keras.Input((4,))
    return keras.Model(x, L.Dense(2)(L.Dense(3)(x)))


def unbuilt():
    return keras.Sequential([L.Dense(3), L.Dense(2)])


MODELS = {"built": toy.dense, "unbuilt": unbuilt, "functional": functional, "subclassed": Plain}


@pytest.mark.parametrize("batch_norm", [None, "group", "private"])
@pytest.mark.parametrize("name", ["built", "called", "functional"])
def test_outputs_of_layers_are_connected_to_the_inputs(name, batch_norm):
    plain = unbuilt() if name == "called" else MODELS[name]()
    plain(X)
    private = make_private(plain, batch_norm=batch_norm)
    features = keras.Model(private.inputs[0], private.layers[-2].output)
    np.testing.assert_array_equal(
        features(X), keras.Model(plain.inputs[0], plain.layers[-2].output)(X)
    )


def test_model_of_keras_2_is_told_which_keras_is_needed():
    other = type("Sequential", (), {"__module__": "tf_keras.src.engine.sequential"})()
    with pytest.raises(TypeError, match="Keras 3 is needed"):
        make_private(other)


@pytest.mark.parametrize("name", MODELS)
def test_make_private_shares_weights_and_trains(name):
    plain = MODELS[name]()
    model = toy.private(plain, run_eagerly=True)
    assert model.name == plain.name
    model.fit(X, Y, sampling=FullBatch(), verbose=0)
    assert model.ledger.total_count == 1
    np.testing.assert_array_equal(plain(X), model(X))
    before = plain(X).numpy()
    model.fit(X, Y, sampling=FullBatch(), verbose=0)
    assert np.abs(plain(X) - before).max() > 1e-4  # The plain model sees the training.
    ours, theirs = (
        {id(v) for v in model.trainable_variables},
        {id(v) for v in plain.trainable_variables},
    )
    assert ours == theirs


def test_make_private_keeps_the_form():
    assert isinstance(make_private(toy.dense()), keras.Sequential)
    model = make_private(functional())
    assert [type(layer).__name__ for layer in model.layers] == ["InputLayer", "Dense", "Dense"]
    assert model.input_shape == (None, 4)


def test_make_private_of_a_private_model_is_itself():
    model = make_private(toy.dense())
    assert make_private(model) is model


def test_make_private_takes_models_only():
    with pytest.raises(TypeError, match=r"keras\.Model"):
        make_private(L.Dense(2))


def dp_model_positional():
    x = keras.Input((4,))
    return DPModel(x, L.Dense(2)(x))


def dp_model_keywords():
    x = keras.Input((4,))
    return DPModel(inputs=x, outputs=L.Dense(2)(x))


def dp_model_mixed():
    x = keras.Input((4,))
    return DPModel(x, outputs=L.Dense(2)(x), name="mixed")


class DPSubclass(DPModel):
    def __init__(self):
        super().__init__()
        self.out = L.Dense(2)

    def call(self, x):
        return self.out(x)


@pytest.mark.parametrize(
    "make",
    [
        dp_model_positional,
        dp_model_keywords,
        dp_model_mixed,
        DPSubclass,
        lambda: DPSequential([keras.Input((4,)), L.Dense(2)]),
        lambda: DPSequential([L.Dense(2)]),
    ],
    ids=["positional", "keywords", "mixed", "subclass", "sequential", "unbuilt"],
)
def test_class_forms_train_privately(make):
    model = toy.private(make(), run_eagerly=True)
    model.fit(X, Y, sampling=FullBatch(), verbose=0)
    assert model.ledger.total_count == int(model.optimizer.iterations) == 1


def test_class_of_inputs_and_outputs_derived_from_dp_model_is_refused():
    class Derived(DPModel):
        pass

    x = keras.Input((4,))
    with pytest.raises(TypeError, match="make_private"):
        Derived(x, L.Dense(2)(x))
    assert isinstance(DPSubclass(), DPModel)  # And the classes still are what they were.


class OwnLoss(DPSubclass):
    """Predicts -x: the loss is a function of x and the predictions, and y is not used."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y_pred + x[:, :2]))


class MetricInLoss(tfdp.keras.DPModel):
    """Updates a metric of its own in compute_loss, as Keras' documentation shows."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = keras.ops.mean(keras.ops.square(y_pred))
        self.seen.update_state(loss)
        return loss


def test_metrics_that_compute_loss_updates_see_the_whole_batch_once():
    model = MetricInLoss()
    model.compile(toy.dp())
    x, _ = toy.data(16)
    logs = model.fit(x, np.zeros(16), sampling=tfdp.sampling.FullBatch(), verbose=0).history
    assert logs["seen"][0] > 0
    np.testing.assert_allclose(logs["seen"], logs["loss"], rtol=1e-5)


def test_own_compute_loss_of_a_dp_model_is_what_is_differentiated():
    model = OwnLoss()
    model(X[:1])
    model.compile(toy.dp())
    losses = [
        lambda i=i: keras.ops.mean((model(X[i : i + 1]) + X[i : i + 1, :2]) ** 2) for i in range(N)
    ]
    expected, _ = toy.step_by_hand(model, losses)
    model.fit(X, Y, sampling=FullBatch(), verbose=0)
    toy.assert_weights(model, expected)


LOAD = """
import sys
sys.modules["tfdp"] = None  # Importing tfdp is an error now.
import keras, numpy
model = keras.models.load_model(sys.argv[1])
assert not model.compiled and not any(name.startswith("tfdp.") for name in sys.modules)
numpy.save(sys.argv[3], model.predict(numpy.load(sys.argv[2]), verbose=0))
"""


def test_saved_models_load_where_there_is_no_tfdp(tmp_path):
    np.save(tmp_path / "x.npy", X)
    program = ["import runpy, sys"]
    models = {
        name: toy.private(make(), run_eagerly=True)
        for name, make in MODELS.items()
        if name != "subclassed"
    }
    for name, model in models.items():
        model.fit(X, Y, sampling=FullBatch(), verbose=0)
        model.save(tmp_path / f"{name}.keras")
        arguments = [str(tmp_path / f"{name}{end}") for end in (".keras", ".npy")]
        arguments.insert(1, str(tmp_path / "x.npy"))
        program.append(f"sys.argv = ['load', *{arguments!r}]\nexec({LOAD!r})")
    subprocess.run([sys.executable, "-c", "\n".join(program)], check=True, cwd=tmp_path)
    for name, model in models.items():
        np.testing.assert_allclose(
            np.load(tmp_path / f"{name}.npy"), model.predict(X, verbose=0), rtol=1e-5
        )


@keras.saving.register_keras_serializable("tests")
class Registered(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.out = L.Dense(2)

    def call(self, x):
        return self.out(x)


def test_wrapped_subclass_is_saved_as_itself(tmp_path):
    model = toy.private(Registered(), run_eagerly=True)
    model.fit(X, Y, sampling=FullBatch(), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is Registered
    assert not loaded.compiled
    np.testing.assert_allclose(loaded(X), model(X), rtol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", keras.optimizers.SGD(0.1), None])
def test_other_optimizers_are_refused(optimizer):
    with pytest.raises(NotPrivateError, match=r"tfdp\.keras\.DPOptimizer"):
        make_private(toy.dense()).compile(optimizer, loss="mse")


def test_evaluate_and_predict_are_keras_own():
    plain = toy.dense()
    model = toy.private(plain, metrics=["accuracy"])
    plain.compile(loss=toy.LOGITS_LOSS, metrics=["accuracy"])
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(plain.evaluate(X, Y, verbose=0))
    np.testing.assert_array_equal(model.predict(X, verbose=0), plain.predict(X, verbose=0))
    assert model.ledger.total_count == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": X[:0], "y": Y[:0]}, ValueError, "empty"),
        ({"y": Y[:5]}, ValueError, "same length"),
        ({"sample_weight": np.ones(5)}, ValueError, "same length"),
        ({"x": np.float32(1), "y": np.float32(1)}, ValueError, "leading axis"),
        ({"batch_size": 4.0}, TypeError, "batch_size"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": N + 1}, ValueError, "batch_size"),
        ({"shuffle": False}, ValueError, "sampling"),
        ({"sampling": "poisson"}, TypeError, "sampling"),
        ({"sampling": Unknown()}, ValueError, "Poisson"),
        ({"class_weight": {0: 1.0}, "sample_weight": np.ones(N)}, ValueError, "not both"),
        ({"validation_split": 1.0}, ValueError, "validation_split"),
        ({"validation_split": -0.5}, ValueError, "validation_split"),
        ({"validation_split": 0.95, "batch_size": 1}, ValueError, "validation_split"),
    ],
    ids=str,
)
def test_bad_fit_argument_is_named(arguments, error, message):
    model = toy.private(toy.linear(), run_eagerly=True)
    arguments = {"x": X, "y": Y, "batch_size": 4, **arguments}
    with pytest.raises(error, match=message):
        model.fit(**arguments, verbose=0)
    assert model.ledger.total_count == 0


def test_default_batch_size_may_be_too_large():
    with pytest.raises(ValueError, match="batch_size=32.*units=12"):
        toy.private(toy.linear()).fit(X, Y, verbose=0)


def test_fit_before_compile_says_how_to_compile():
    model = make_private(toy.dense())
    for use in (
        lambda: model.fit(X, Y, verbose=0),
        lambda: model.ledger,
        lambda: model.train_on_batch(X, Y),
    ):
        with pytest.raises(NotPrivateError, match="compile"):
            use()


def test_functional_class_with_training_of_its_own_is_told_what_works():
    # As the task models of KerasHub are.
    class Task(keras.Model):
        def __init__(self):
            inputs = {"ids": keras.Input((3,), dtype="int32", name="ids")}
            outputs = L.Dense(2)(L.GlobalAveragePooling1D()(L.Embedding(5, 2)(inputs["ids"])))
            super().__init__(inputs=inputs, outputs=outputs)

        def train_step(self, *args):
            return super().train_step(*args)

    task = Task()
    with pytest.raises(NotPrivateError, match=r"keras.Model\(model.input, model.output\)"):
        make_private(task)
    model = make_private(keras.Model(task.input, task.output))
    model.compile(toy.dp(), loss=toy.LOGITS_LOSS)
    model.fit({"ids": np.ones([8, 3], "int32")}, np.zeros(8, "int32"), batch_size=4, verbose=0)
    assert model.trainable_variables[0] is task.trainable_variables[0]
