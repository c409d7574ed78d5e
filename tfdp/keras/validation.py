"""Which models and callbacks private training takes."""

import json
import pathlib
import string
from collections.abc import Collection, Mapping
from typing import Any

import keras

from tfdp.keras.callbacks import LogsEpsilon
from tfdp.keras.errors import NotPrivateError

# What Keras' callbacks do with the logs. Of a callback that a user wrote, only the class that it is
# derived from and its `monitor` are known.
_ACT_ON_LOGS = (keras.callbacks.TerminateOnNaN,)
_DECIDE_BY_MONITOR = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ReduceLROnPlateau,
)
# What writes weights where the ledger has no place. Earlier versions of Keras have none.
_LOSES_LEDGER = getattr(keras.callbacks, "OrbaxCheckpoint", ())

_OF_TRAINING_DATA = (
    " (validation_split takes a part of them, or validation_data are in the same memory as x)"
)


def check_callbacks(
    callbacks: Any, public_validation: bool = True, private_metrics: Collection[str] = ()
) -> None:
    """Refuses callbacks that would steer training by raw statistics of the training data, or save
    weights without their ledger.

    An epsilon that an `EpsilonLogger` or a `PrivacyBudget` among them writes is public: it is a
    function of the ledger.

    Args:
        callbacks: As given to `fit`.
        public_validation: Whether validation data are others than the training data.
        private_metrics: Keys of the logs that the step released.

    Raises:
        NotPrivateError: a callback acts on a raw statistic of the training data, or saves weights
            without their ledger.
        TypeError: something is no callback.
        ValueError: a callback would overwrite a private metric, or a backup was cut short.
    """
    callbacks = getattr(callbacks, "callbacks", None) or keras.tree.flatten(callbacks)
    for callback in callbacks:
        if callback is not None and not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(
                "callbacks must hold keras.callbacks.Callback objects. Received among them: "
                f"{callback!r}."
            )
    public = {callback.log_name for callback in callbacks if isinstance(callback, LogsEpsilon)}
    if public & set(private_metrics):
        raise ValueError(
            "A private metric and a callback that logs epsilon have one name: "
            f"{sorted(public & set(private_metrics))}. Give the metric another."
        )
    public.update(private_metrics)

    def is_public(key: str) -> bool:
        return key in public or (public_validation and key.startswith("val_"))

    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            _check_backup(callback)
        if isinstance(callback, _LOSES_LEDGER):
            raise NotPrivateError(
                f"{name} writes weights without their ledger: another process would load them as "
                "starting values, for which nothing was paid. Use keras.callbacks.BackupAndRestore,"
                " or keras.callbacks.ModelCheckpoint."
            )
        if isinstance(callback, _ACT_ON_LOGS) and not is_public("loss"):
            raise NotPrivateError(
                f"{name} ends training where a raw loss of the private training data is not "
                "finite, so that the number of steps tells of a record. Leave it out: a record "
                "that is not finite contributes nothing, and weights stay finite."
            )
        for monitor in _monitors(callback):
            if is_public(monitor):
                continue
            of_training = (
                "" if public_validation or not monitor.startswith("val_") else _OF_TRAINING_DATA
            )
            raise NotPrivateError(
                f"{name} decides by {monitor!r}, a raw statistic of the private training data"
                f"{of_training}: when it acts, it publishes something that no event covers. "
                "Monitor a metric of public validation data (validation_data, not "
                "validation_split), "
                f"monitor={_of_validation(monitor)!r}, one of the optimizer's private_metrics, or "
                "the epsilon of an EpsilonLogger among the callbacks. Rows that you split off the "
                "private data by hand are not public, and tfdp cannot tell."
            )
        named = [key for key in _keys_of_names(callback) if not is_public(key)]
        if named:
            raise NotPrivateError(
                f"{name} writes {named}, raw statistics of the private training data, into the "
                "names of the files that it saves. Leave them out of filepath."
            )


def _check_backup(callback: keras.callbacks.BackupAndRestore) -> None:
    """Says what to do where a process was ended while Keras wrote which epoch comes next."""
    path = pathlib.Path(callback.backup_dir, "training_metadata.json")
    if not path.is_file():
        return
    try:
        json.loads(path.read_text(encoding="utf-8"))["epoch"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} does not say which epoch comes next: the process that wrote it was ended "
            "meanwhile, or the file was damaged. The weights beside it are checked when they are "
            "read. Delete this file. `fit` then goes on from those weights, and counts epochs from "
            "initial_epoch."
        ) from error


def check_logs(private_metrics: Collection[str], public_validation: bool) -> None:
    """Refuses raw statistics of the training data in logs that promise to have none.

    Args:
        private_metrics: Keys of the logs that the step released; none: nothing is promised.
        public_validation: Whether validation data are others than the training data.

    Raises:
        NotPrivateError: validation data are part of the training data.
    """
    if private_metrics and not public_validation:
        raise NotPrivateError(
            "With private_metrics the logs hold no raw statistics of the private data, but "
            "validation on a part of them would write some there. Give public validation_data, or "
            "leave validation_split out."
        )


def _monitors(callback: Any) -> list[str]:
    """Returns the keys of the logs by which a callback decides."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return [str(callback.monitor)] if callback.save_best_only else []
    # KerasTuner's callback that saves the weights of the best epoch.
    objective = getattr(callback, "objective", None)
    if objective is not None and type(callback).__module__.startswith("keras_tuner."):
        return [str(one.name) for one in getattr(objective, "objectives", [objective])]
    monitor = getattr(callback, "monitor", None)
    return [str(monitor)] if isinstance(callback, _DECIDE_BY_MONITOR) or monitor else []


def _of_validation(monitor: str) -> str:
    return monitor if monitor.startswith("val_") else f"val_{monitor}"


def _keys_of_names(callback: Any) -> list[str]:
    """Returns the keys of the logs that stand in the names of a callback's files."""
    if not isinstance(callback, keras.callbacks.ModelCheckpoint):
        return []
    fields = [field for _, field, _, _ in string.Formatter().parse(str(callback.filepath))]
    return [field for field in fields if field and field not in ("epoch", "batch")]


# What `fit` and its kin call. A private model of Keras' own class has only those of Keras.
_OF_STEPS = ("train_step", "make_train_function")
_OF_TRAINING = (
    *(*_OF_STEPS, "compute_loss", "compute_metrics", "get_metrics_result"),
    *("test_step", "predict_step", "make_test_function", "make_predict_function"),
)
# These KerasHub's tasks override, to preprocess and to fill in a loss.
_OF_TASKS = (
    *("fit", "evaluate", "predict", "compile"),
    *("train_on_batch", "test_on_batch", "predict_on_batch"),
)


def check_plain_training(model: keras.Model) -> None:
    """Refuses models whose own code around `call` would be bypassed.

    Raises:
        NotPrivateError: the model, or its class, overrides a method such as `train_step`,
            `compute_loss`, `compute_metrics`, `test_step` or `compile`.
    """
    known = "keras.", "keras_hub."
    for name in _OF_TRAINING + _OF_TASKS:
        defined = _where_defined(model, name)
        own = known if name in _OF_TASKS and is_task(model) else known[:1]
        if name in vars(model) or not defined.__module__.startswith(own):
            advice = (
                "Derive it from tfdp.keras.DPModel (which calls your compute_loss, compute_metrics,"
                " test_step and compile), or write the loop with tfdp.clipped_gradient_sum."
            )
            if name in _OF_STEPS:
                advice = (
                    "Move what it computes to call() or compute_loss(), which see one record at a "
                    "time, and derive the class from tfdp.keras.DPModel, or write the loop with "
                    "DPOptimizer.private_gradients."
                )
            if getattr(model, "outputs", None):
                advice = (
                    "Its layers are a functional model: train "
                    "make_private(keras.Model(model.input, model.output)), which has the same "
                    "weights, on data that are preprocessed as this class would do it."
                )
            raise NotPrivateError(
                f"{type(model).__name__} has its own {name}, which a private model would bypass. "
                + advice
            )
    if is_task(model):
        _check_preprocessor(model)


def check_steps(model: keras.Model) -> None:
    """Refuses private models whose steps are not those that are accounted for.

    Raises:
        NotPrivateError: `train_step` or what runs it is somebody else's.
    """
    for name in _OF_STEPS:
        defined = _where_defined(model, name)
        if name in vars(model) or not defined.__module__.startswith(("tfdp.", "keras.")):
            raise NotPrivateError(
                f"{type(model).__name__} has its own {name}, which sees raw data and decides what "
                "is done with a sample: two steps on one, for example, cost more than two samples. "
                "Override call() or compute_loss(), which see one record at a time, or write the "
                "loop with DPOptimizer.private_gradients."
            )


def is_task(model: keras.Model) -> bool:
    """Returns whether a model is one of KerasHub's tasks, which add preprocessing to `fit`."""
    owner = _where_defined(model, "fit")
    return owner.__module__.startswith("keras_hub.") and "preprocess_samples" in vars(owner)


def _where_defined(model: keras.Model, name: str) -> type:
    return next(c for c in type(model).__mro__ if name in vars(c))


def _check_preprocessor(task: keras.Model) -> None:
    if getattr(task, "preprocessor", None) is not None:
        raise NotPrivateError(
            f"{type(task).__name__} preprocesses batches in its fit, which a private step would "
            "bypass. Preprocess the data first, data = model.preprocess_samples(x, y), then set "
            "model.preprocessor = None, and pass fit what data holds: x, y and, where there is "
            "one, sample_weight."
        )


def check_names(logs: Mapping[str, Any]) -> None:
    """Refuses logs of training that would be taken for those of validation data.

    Raises:
        NotPrivateError: names them.
    """
    named = [key for key in logs if key.startswith("val_")]
    if named:
        raise NotPrivateError(
            "Names that begin with val_ are those of validation data, by which callbacks may "
            "decide. These are raw statistics of the training data: rename the metrics, or the "
            f"outputs of the model, that they are called by. Received: {named}."
        )
