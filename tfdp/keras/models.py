"""Keras models with private training."""

import dataclasses
import logging
from typing import Any

import keras

from tfdp.gradients import register_rule
from tfdp.gradients.keras_internals import FUNCTIONAL
from tfdp.gradients.rules.rule import Around
from tfdp.keras import validation
from tfdp.keras.inputs import advice_of_keras_2
from tfdp.keras.normalization import convert_norm, with_plain_norms, with_private_norms
from tfdp.keras.saved_form import sequential_layers
from tfdp.keras.training import PrivateTraining
from tfdp.keras.weights_file import holds_ledger

_logger = logging.getLogger("tfdp")


def make_private(model: keras.Model, *, batch_norm: str | None = None) -> keras.Model:
    """Returns a model of the same layers and weights whose training is private.

    Sequential and functional models keep their form; any other model becomes the single layer of
    the result. Weights are shared with `model`, not copied. `save` writes a plain Keras model,
    which loads without tfdp. Task models of KerasHub are functional, and what is saved is the task;
    as the result has no preprocessor, they are to have none.

    Args:
        model: A Keras model, compiled or not; compile the result, with a `tfdp.keras.DPOptimizer`.
        batch_norm: What becomes of trainable `BatchNormalization`. None: such models are refused by
            `compile`. "group": the result is made of a copy of the model, in which group
            normalization stands for it (`convert_norm`); the log of "tfdp" says what was replaced.
            "private": the result is made of a copy, in which these layers normalize by their moving
            statistics, and training estimates those with noise
            (`DPOptimizer(batch_norm_noise_multiplier=...)`). What is saved has Keras' own layers.

    Raises:
        TypeError: `model` is not a Keras model, or of a form that `convert_norm` cannot copy.
        ValueError: `batch_norm` is something else.
        NotPrivateError: it has code of its own around `call`, as in `train_step`, `compute_metrics`
            or `compile`, which the result would bypass.

    Example:
        >>> import keras, tfdp
        >>> plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model = tfdp.keras.make_private(plain)
        >>> query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.1, denominator=8)
        >>> model.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query), loss="mse")
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"make_private takes a keras.Model. Received: {model!r}.{advice_of_keras_2(model)}"
        )
    if batch_norm not in (None, "group", "private"):
        raise ValueError(
            f'batch_norm must be None, "group" or "private". Received: batch_norm={batch_norm!r}.'
        )
    if isinstance(model, PrivateTraining):
        if batch_norm is not None:
            raise ValueError("The model is private already: give batch_norm with the plain model.")
        return model
    validation.check_plain_training(model)
    if batch_norm == "group":
        model, replaced = convert_norm(model)
        if replaced:
            _logger.warning("Batch normalization was replaced: %s.", "; ".join(replaced))
    if batch_norm == "private":
        model, _ = with_private_norms(model)
    if type(model) is keras.Sequential:
        layers = sequential_layers(model)
        if len(layers) > len(model.layers):
            layers[0] = model.inputs[0]  # The same tensor, from which outputs of layers come.
        return DPSequential(layers, name=model.name)
    if type(model) is FUNCTIONAL:
        return _DPFunctional(model.input, model.output, name=model.name)
    if isinstance(model, FUNCTIONAL) and validation.is_task(model):
        private = _DPFunctional(model.input, model.output, name=model.name)
        private._task = _Task(model)
        return private
    return _DPWrapper(model)


class DPModel(PrivateTraining, keras.Model):
    """`keras.Model` with private training: `DPModel(inputs, outputs)`, or a base class.

    A class derived from it needs itself, and therefore tfdp, to be loaded; `make_private` of a
    plain Keras class does not.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is DPModel:
            _refuse_clip_and_noise("DPModel", args, kwargs)
            if _is_functional(args, kwargs):
                return _DPFunctional(*args, **kwargs)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any):
        _refuse_clip_and_noise(type(self).__name__, args, kwargs)
        if _is_functional(args, kwargs):
            # Keras would rewrite the bases of this class, for every model derived from it.
            raise TypeError(
                f"{type(self).__name__} cannot be built from inputs and outputs. Define call(), or "
                "use tfdp.keras.make_private(keras.Model(inputs, outputs))."
            )
        super().__init__(*args, **kwargs)


@keras.saving.register_keras_serializable("tfdp")
class DPSequential(PrivateTraining, keras.Sequential):
    """`keras.Sequential` with private training."""

    def __init__(self, *args: Any, **kwargs: Any):
        _refuse_clip_and_noise(type(self).__name__, args, kwargs)
        super().__init__(*args, **kwargs)

    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Writes a plain `keras.Sequential`, not compiled; it loads without tfdp."""
        plain = keras.Sequential(sequential_layers(self), name=self.name)
        self._save_plain(with_plain_norms(plain), filepath, overwrite=overwrite, **kwargs)


@dataclasses.dataclass
class _Task:
    """A model of KerasHub; in an object in which Keras does not look for layers."""

    model: keras.Model


@keras.saving.register_keras_serializable("tfdp")
class _DPFunctional(PrivateTraining, keras.Model):
    """`keras.Model(inputs, outputs)` with private training."""

    _task: _Task | None = None  # Whose inputs and outputs these are.

    def __init__(self, *args: Any, **kwargs: Any):
        # Keras would ignore any other argument without an error.
        unknown = sorted(set(kwargs) - {"inputs", "outputs", "name", "trainable"})
        if unknown:
            raise TypeError(
                "A model of inputs and outputs takes a name and trainable besides them. Received "
                f"also: {', '.join(unknown)}."
            )
        super().__init__(*args, **kwargs)

    def compile(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """As `PrivateTraining.compile`.

        Raises:
            ValueError: the model is a task of KerasHub, and no loss is given, or `"auto"`, which
                only the task's own `compile` knows.
        """
        loss = args[0] if args else kwargs.get("loss")
        metrics = [kwargs.get("metrics"), kwargs.get("weighted_metrics")]
        filled_in = loss is None or "auto" in [v for v in (loss, *metrics) if isinstance(v, str)]
        if self._task is not None and filled_in:
            raise ValueError(
                "The loss and metrics that KerasHub fills in, or means by 'auto', are those of a "
                "plain task. Give both: loss=keras.losses.SparseCategoricalCrossentropy("
                "from_logits=True), metrics=['sparse_categorical_accuracy'], for example."
            )
        super().compile(optimizer, *args, **kwargs)

    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Writes a plain functional `keras.Model`, not compiled, or the task model that this one
        was made of; it loads without tfdp.
        """
        if self._task is None:
            plain = keras.Model(self.input, self.output, name=self.name)
        else:
            plain = self._task.model
        self._save_plain(with_plain_norms(plain), filepath, overwrite=overwrite, **kwargs)

    def _load_values(self, filepath: Any, **kwargs: Any) -> None:
        if self._task is None or holds_ledger(filepath):
            super()._load_values(filepath, **kwargs)
        else:
            with self._lend_ledger(self._task.model):
                self._task.model.load_weights(filepath, **kwargs)


@keras.saving.register_keras_serializable("tfdp")
class _DPWrapper(DPModel):
    """Private training around a model whose form Keras does not know."""

    def __init__(self, model: keras.Model):
        super().__init__(name=model.name)
        self.model = model
        self.built = model.built

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return self.model(inputs, *args, **kwargs)

    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Writes the wrapped model, which loads where its class does, without tfdp."""
        self._save_plain(self.model, filepath, overwrite=overwrite, **kwargs)

    def _load_values(self, filepath: Any, **kwargs: Any) -> None:
        if holds_ledger(filepath):
            super()._load_values(filepath, **kwargs)
        else:
            with self._lend_ledger(self.model):
                self.model.load_weights(filepath, **kwargs)

    def _export(self, *args: Any, **kwargs: Any) -> None:
        self.model.export(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {"model": keras.saving.serialize_keras_object(self.model)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "_DPWrapper":
        return cls(keras.saving.deserialize_keras_object(config["model"], custom_objects))


register_rule(_DPWrapper, Around(lambda wrapper: wrapper.model))


# Arguments of TensorFlow Privacy's models. Here they belong to the optimizer, or have no meaning.
_OF_OTHER_MODELS = {
    "l2_norm_clip",
    "noise_multiplier",
    "num_microbatches",
    "use_xla",
    "layer_registry",
    "sparsity_preserving_dpsgd_config",
}


def _refuse_clip_and_noise(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses what TensorFlow Privacy's models of the same names take and these do not.

    Raises:
        TypeError: says where a clip, noise and microbatches belong.
    """
    numbers = [repr(value) for value in args if isinstance(value, (int, float))]
    received = [*numbers, *sorted(_OF_OTHER_MODELS & set(kwargs))]
    if received:
        raise TypeError(
            f"{name} takes no clip and no noise: they belong to the optimizer. Write "
            "model.compile(tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), "
            "tfdp.GaussianAverageQuery(l2_norm_clip=..., noise_multiplier=..., denominator=<the "
            "expected batch size>), num_microbatches=...), loss=..., jit_compile=...). Layers have "
            f"rules by themselves (tfdp.gradients.register_rule). Received: {', '.join(received)}."
        )


def _is_functional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether these are the arguments of `keras.Model(inputs, outputs)`."""
    return len(args) == 2 or "inputs" in kwargs or "outputs" in kwargs
