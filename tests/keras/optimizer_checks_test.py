"""What a DPOptimizer refuses to be made of."""

import keras
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp.keras import DPOptimizer, NotPrivateError


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"inner_optimizer": "sgd"}, TypeError, "inner_optimizer"),
        ({"inner_optimizer": None}, TypeError, "inner_optimizer"),
        ({"query": 1.0}, TypeError, "query"),
        ({"num_microbatches": 0}, ValueError, "num_microbatches"),
        ({"num_microbatches": 2.0}, TypeError, "num_microbatches"),
        ({"num_microbatches": True}, TypeError, "num_microbatches"),
        ({"privacy_unit": "household"}, ValueError, "privacy_unit"),
        ({"privacy_unit": "microbatch"}, ValueError, "num_microbatches"),
        ({"physical_batch_size": 0}, ValueError, "physical_batch_size"),
        ({"physical_batch_size": 4.0}, TypeError, "physical_batch_size"),
        ({"engine": "fast"}, ValueError, "engine"),
        ({"loss_scale_factor": 0.0}, ValueError, "loss_scale_factor"),
        ({"loss_scale_factor": float("inf")}, ValueError, "loss_scale_factor"),
        ({"loss_scale_factor": "8"}, TypeError, "loss_scale_factor"),
        ({"ledger": []}, TypeError, "ledger"),
    ],
    ids=str,
)
def test_bad_argument_is_named(arguments, error, message):
    arguments = {"inner_optimizer": keras.optimizers.SGD(0.1), "query": toy.query(), **arguments}
    with pytest.raises(error, match=message):
        DPOptimizer(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "follows the data"),
        (lambda: keras.optimizers.SGD(loss_scale_factor=8.0), "loss_scale_factor"),
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), "physical_batch_size"),
        (lambda: toy.dp(), "already a DPOptimizer"),
    ],
    ids=["loss_scale", "loss_scale_factor", "accumulation", "nested"],
)
def test_inner_optimizer_that_would_void_the_accounting_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        DPOptimizer(make(), toy.query())


def test_inner_optimizer_that_was_changed_afterwards_is_refused():
    model = toy.private()
    model.optimizer.inner_optimizer.gradient_accumulation_steps = 2
    with pytest.raises(ValueError, match="physical_batch_size"):
        toy.fit_step(model)
    assert model.ledger.total_count == 0


@pytest.mark.parametrize("name", ["of_fit", "has_statistics", "check", "colour"])
def test_step_by_hand_takes_no_other_arguments_than_gradients_do(name):
    optimizer, variable = toy.dp(), toy.matrix()
    with pytest.raises(TypeError, match=f"Received also: {name}"):
        optimizer.private_step(
            toy.squared_error(variable), [variable], toy.examples(), **{name: True}
        )
    assert optimizer.ledger.total_count == 0


def test_optimizer_of_keras_2_is_told_which_keras_is_needed():
    other = type("SGD", (), {"__module__": "tf_keras.src.optimizers.sgd"})()
    with pytest.raises(TypeError, match="Keras 3 is needed"):
        DPOptimizer(other, toy.query())


def test_warning_of_a_sum_is_about_the_line_that_makes_the_optimizer():
    with pytest.warns(UserWarning, match="which nothing divides") as caught:
        DPOptimizer(keras.optimizers.SGD(), tfdp.GaussianSumQuery(1.0, 1.0))
    assert [warning.filename for warning in caught] == [__file__]


def test_model_without_a_trainable_layer_says_so_before_a_step():
    plain = toy.linear()
    plain.trainable = False
    model = toy.private(plain)
    with pytest.raises(ValueError, match="no layer is trainable"):
        toy.fit_step(model)
    assert model.ledger.total_count == 0
    with pytest.raises(ValueError, match="Build the model first"):
        toy.dp().private_step(None, keras.Sequential([keras.layers.Dense(2)]).weights, None)
    with pytest.raises(TypeError, match="must be a list of trainable variables"):
        toy.dp().private_gradients(toy.squared_error(toy.matrix()), toy.matrix(), toy.examples())


def test_one_variable_in_the_place_of_all_is_refused_in_a_graph_too(monkeypatch):
    def unknown(variable):
        raise NotImplementedError("Keras 3.12 does not write variables in graphs.")

    model = toy.linear()
    monkeypatch.setattr(keras.Variable, "__repr__", unknown)
    step = tf.function(
        lambda: toy.dp().private_step(None, model.trainable_variables[0], None), autograph=False
    )
    with pytest.raises(TypeError, match="Received a .*Variable"):
        step()


class MixesRecords(DPOptimizer):
    def private_step(self, loss_fn, variables, examples, **kwargs):
        x, y, weights = examples
        return super().private_step(
            loss_fn, variables, (x - tf.reduce_mean(x, 0), y, weights), **kwargs
        )


def test_steps_of_somebody_elses_are_refused():
    arguments = (
        keras.optimizers.SGD(0.1),
        tfdp.GaussianAverageQuery(1.0, stddev=1.0, denominator=4),
    )
    with pytest.raises(NotPrivateError, match="MixesRecords has its own private_step"):
        toy.private(optimizer=MixesRecords(*arguments))
    model = toy.private()
    with pytest.raises(NotPrivateError, match="MixesRecords has its own private_step"):
        model.optimizer = MixesRecords(*arguments)
    step = model.optimizer.private_step
    model.optimizer.private_step = lambda *args, **kwargs: step(*args, **kwargs)
    with pytest.raises(NotPrivateError, match="DPOptimizer has its own private_step"):
        model.fit(toy.X, toy.Y, batch_size=4, verbose=0)


@pytest.mark.parametrize("name", ["apply", "apply_gradients"])
def test_a_method_that_steps_do_not_call_is_refused(name):
    kind = type("Scales", (DPOptimizer,), {name: lambda self, *args, **kwargs: None})
    with pytest.raises(NotPrivateError, match=f"Scales has its own {name}, which .* not call"):
        toy.private(optimizer=kind(keras.optimizers.SGD(0.1), toy.query(1.0)))


class SaysItself(DPOptimizer):
    def get_config(self):
        return {**super().get_config(), "name": "said"}


def test_classes_derived_from_it_may_do_other_things():
    optimizer = SaysItself(
        keras.optimizers.SGD(0.1), tfdp.GaussianAverageQuery(1.0, stddev=1.0, denominator=4)
    )
    model = toy.private(optimizer=optimizer, run_eagerly=True)
    model.fit(toy.X, toy.Y, batch_size=4, steps_per_epoch=1, verbose=0)
    assert model.ledger.total_count == 1
