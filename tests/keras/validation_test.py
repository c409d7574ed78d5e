"""Code of models, and callbacks, that private training refuses, by name and with what to do."""

import keras
import numpy as np
import pytest
import toy
from toy import L

import tfdp
from tfdp.keras import NotPrivateError, make_private
from tfdp.sampling import FullBatch

X, Y = toy.data()


class Plain(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = L.Dense(2)

    def call(self, x):
        return self.out(x)


class OwnTrainStep(Plain):
    def train_step(self, data):
        return {}


class PlainOwnLoss(Plain):
    def compute_loss(self, *args, **kwargs):
        return 0.0


@pytest.mark.parametrize(
    ("model_class", "name"), [(OwnTrainStep, "train_step"), (PlainOwnLoss, "compute_loss")]
)
def test_own_training_code_of_a_plain_model_is_refused(model_class, name):
    with pytest.raises(
        NotPrivateError, match=f"{model_class.__name__} has its own {name}.*DPModel"
    ):
        make_private(model_class())


@pytest.mark.parametrize("name", ["train_step", "make_train_function"])
def test_whoever_has_a_step_of_their_own_is_not_sent_to_what_refuses_it(name):
    model = type("Mine", (Plain,), {name: lambda self, *args: {}})()
    with pytest.raises(NotPrivateError, match="Move what it computes to call.* compute_loss"):
        make_private(model)


AROUND_CALL = (
    *("compute_metrics", "get_metrics_result", "compile", "fit", "evaluate", "predict"),
    *("test_step", "predict_step", "train_on_batch", "test_on_batch", "predict_on_batch"),
    *("make_train_function", "make_test_function", "make_predict_function"),
)


@pytest.mark.parametrize("where", ["class", "object", "sequential"])
@pytest.mark.parametrize("name", AROUND_CALL)
def test_other_code_that_would_be_bypassed_is_refused(name, where):
    def own(self, *args, **kwargs):
        raise AssertionError

    model = Plain()
    if where == "class":
        model = type("Mine", (Plain,), {name: own})()
    elif where == "sequential":
        model = type("Mine", (keras.Sequential,), {name: own})([keras.Input((4,)), L.Dense(2)])
    else:
        setattr(model, name, own)
    with pytest.raises(NotPrivateError, match=f"has its own {name}, which .* bypass"):
        make_private(model)


class OwnAroundCall(tfdp.keras.DPModel):
    def __init__(self):
        super().__init__()
        self.out = L.Dense(2)

    def call(self, x):
        return self.out(x)

    def compile(self, optimizer):
        super().compile(optimizer, loss="mae")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "mine": 7.0}

    def test_step(self, data):
        return {"tested": 3.0}

    def predict_step(self, data):
        return 0.0 * super().predict_step(data) + 5.0


def test_what_is_refused_of_a_plain_class_is_called_in_one_derived_from_dp_model():
    model = OwnAroundCall()
    model.compile(toy.dp())
    x, y = np.ones((4, 4), "float32"), np.ones((4, 2), "float32")
    assert model.fit(x, y, sampling=FullBatch(), verbose=0).history["mine"] == [7.0]
    assert model.evaluate(x, y, verbose=0, return_dict=True) == {"tested": 3.0}
    assert (model.predict(x, verbose=0) == 5.0).all()
    assert model.loss == "mae"


class PrivateOwnTrainStep(tfdp.keras.DPModel):
    """Takes two releases from one sample, of which the second is charged as another's."""

    def __init__(self):
        super().__init__()
        self.out = L.Dense(2)

    def call(self, x):
        return self.out(x)

    def train_step(self, data):
        super().train_step(data)
        return super().train_step(data)


class PrivateOwnFunction(tfdp.keras.DPSequential):
    def make_train_function(self, force=False):
        step = super().make_train_function(force)
        self.train_function = lambda iterator: [step(iterator), step(iterator)][1]
        return self.train_function


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (PrivateOwnTrainStep, "train_step"),
        (lambda: PrivateOwnFunction([keras.Input((4,)), L.Dense(2)]), "make_train_function"),
    ],
)
def test_own_steps_of_a_private_model_are_refused(make, name):
    with pytest.raises(NotPrivateError, match=f"has its own {name}.*private_gradients"):
        make().compile(toy.dp(), loss=toy.LOGITS_LOSS)


def test_a_step_that_is_put_into_a_model_is_refused():
    model = toy.private(run_eagerly=True)
    step = model.train_step
    model.train_step = lambda data: [step(data), step(data)][1]
    for train in (
        lambda: model.fit(X, Y, batch_size=4, verbose=0),
        lambda: model.train_on_batch(X, Y),
        lambda: model.compile(toy.dp(), loss=toy.LOGITS_LOSS),
    ):
        with pytest.raises(NotPrivateError, match="has its own train_step"):
            train()
    assert model.ledger.total_count == 0


@pytest.mark.parametrize("arguments", [{"validation_split": 0.5}, {"validation_data": (X, Y)}])
def test_error_says_that_validation_data_are_training_data(arguments):
    stop = keras.callbacks.EarlyStopping(monitor="val_loss")
    with pytest.raises(NotPrivateError, match="'val_loss'.*in the same memory as x"):
        toy.private().fit(X, Y, batch_size=4, callbacks=[stop], verbose=0, **arguments)
    stop.monitor = "loss"
    with pytest.raises(NotPrivateError, match="private training data: when"):
        toy.private().fit(X, Y, batch_size=4, callbacks=[stop], verbose=0, **arguments)


class Remembering(keras.layers.Layer):
    """Publishes the mean of the last record."""

    def build(self, shape):
        self.memory = self.add_weight(shape=(), trainable=False, name="memory")

    def call(self, x):
        self.memory.assign(keras.ops.mean(x))
        return x


def test_layer_that_stores_data_in_a_weight_is_refused_by_the_weights_name():
    layer = Remembering()
    plain = keras.Sequential([keras.Input((4,)), L.Dense(4), layer, L.Dense(2)])
    model = toy.private(plain)
    start = toy.weights(model)
    model(np.zeros([1, 4]))
    memory = layer.memory.numpy()
    with pytest.raises(NotPrivateError, match="memory.*trainable = False"):
        model.fit(X, Y, sampling=FullBatch(), verbose=0)
    toy.assert_weights(model, start, 0)
    assert layer.memory.numpy() == memory


@pytest.mark.parametrize(
    ("make", "accepted"),
    [
        (lambda path: keras.callbacks.EarlyStopping(monitor="loss"), False),
        (lambda path: keras.callbacks.EarlyStopping(monitor="val_loss"), True),
        (lambda path: keras.callbacks.ReduceLROnPlateau(monitor="accuracy"), False),
        (
            lambda path: keras.callbacks.ModelCheckpoint(
                path, monitor="accuracy", save_best_only=True
            ),
            False,
        ),
        (
            lambda path: keras.callbacks.ModelCheckpoint(
                path, monitor="val_accuracy", save_best_only=True
            ),
            True,
        ),
        (lambda path: keras.callbacks.ModelCheckpoint(path, monitor="accuracy"), True),
    ],
)
@pytest.mark.parametrize("form", ["list", "nested", "single", "CallbackList"])
def test_callbacks_that_act_on_training_metrics_are_refused(make, accepted, form, tmp_path):
    callback = make(tmp_path / "model.keras")
    model = make_private(toy.dense())
    model.compile(toy.dp(), loss=toy.LOGITS_LOSS)
    callbacks = {
        "list": [callback],
        "nested": [[keras.callbacks.History()], [callback]],
        "single": callback,
        "CallbackList": keras.callbacks.CallbackList([callback], model=model),
    }[form]
    if accepted:
        tfdp.keras.validation.check_callbacks(callbacks)
        return
    with pytest.raises(NotPrivateError, match=f"{type(callback).__name__}.*monitor='val_"):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=callbacks)
    assert model.ledger.total_count == 0


def test_accepted_callbacks_act(tmp_path):
    model = toy.private(toy.linear(), metrics=["accuracy"])
    path = tmp_path / "best.keras"
    callbacks = [
        # Nothing improves by 100: training stops after the second epoch.
        keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=100.0, patience=1),
        keras.callbacks.ModelCheckpoint(path, monitor="val_accuracy", save_best_only=True),
    ]
    public = (X.copy(), Y.copy())
    history = model.fit(
        X, Y, sampling=FullBatch(), epochs=5, verbose=0, callbacks=callbacks, validation_data=public
    )
    assert len(history.history["loss"]) == model.ledger.total_count == 2
    assert path.exists()


@pytest.mark.parametrize("text", ["", '{"epoch": 2, "ba', "[]", "{}"])
def test_a_backup_that_was_cut_short_is_named_and_its_weights_go_on(tmp_path, text):
    def fit(model, epochs, **kwargs):
        backup = keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
        model.fit(X, Y, batch_size=4, epochs=epochs, verbose=0, callbacks=[backup], **kwargs)

    first = toy.private()
    fit(first, 2)
    steps = first.ledger.total_count
    (tmp_path / "training_metadata.json").write_text(text)
    model = toy.private()
    with pytest.raises(ValueError, match="does not say which epoch comes next.*Delete this file"):
        fit(model, 3)
    assert model.ledger.total_count == 0
    (tmp_path / "training_metadata.json").unlink()
    fit(model, 3, initial_epoch=2)
    assert model.ledger.total_count == steps * 3 // 2
