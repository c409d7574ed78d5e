"""What a `DPOptimizer` is made of, and what it is given."""

import warnings
from typing import Any

import keras
import tensorflow as tf

from tfdp.events.arguments import real_number
from tfdp.gradients.clipped_sum import ENGINES, check_weights
from tfdp.gradients.inputs import check_call
from tfdp.keras.errors import NotPrivateError
from tfdp.keras.inputs import advice_of_keras_2, check_learning_rate
from tfdp.keras.microbatching import Microbatching
from tfdp.keras.step import StepArguments
from tfdp.keras.wrapping import parts
from tfdp.ledger import PrivacyLedger
from tfdp.query.dp_query import DPQuery
from tfdp.query.parts import undivided_sums


def as_list(variables: Any) -> list[Any]:
    """Returns variables as a list.

    Raises:
        TypeError: it is none.
        ValueError: it is empty.
    """
    if isinstance(variables, (list, tuple)) and not variables:
        raise ValueError(
            "There is nothing to train: no layer is trainable, or the model has no weights yet. "
            "Set layer.trainable = True for those that are to be trained, and compile again. Build "
            "the model first: give it an Input, or call it once on a batch."
        )
    if not isinstance(variables, (list, tuple)):
        raise TypeError(
            "variables must be a list of trainable variables, such as "
            f"model.trainable_variables. Received a {type(variables).__name__}."
        )
    return list(variables)


def check_query(query: Any) -> None:
    """Refuses what is no query. Warns if the result is a sum, which as a gradient is larger than an
    average by a factor of the number of records.
    """
    if not isinstance(query, DPQuery):
        raise TypeError(
            "query must be a DPQuery, such as tfdp.GaussianAverageQuery. Received: "
            f"query={query!r}."
        )
    kinds = sorted({type(part).__name__ for part in undivided_sums(query)})
    if kinds:
        warnings.warn(
            f"{', '.join(kinds)}: the optimizer gets a sum over the records of a sample, which "
            "nothing divides. TensorFlow Privacy's optimizers divide it by the number of "
            "microbatches. Write tfdp.NormalizedQuery(query, denominator=<the expected number of "
            "records>) for an average, or NormalizedQuery(query, denominator=1) for the sum.",
            stacklevel=4,  # The line that makes the optimizer.
        )


def positive_or_none(name: str, value: Any) -> float | None:
    """Returns a positive number, which may be left out.

    Raises:
        TypeError: it is no number.
        ValueError: it is not positive and finite.
    """
    return None if value is None else real_number(name, value, minimum=0, inclusive=False)


def check_engine(engine: Any) -> None:
    """Refuses what is no engine."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {ENGINES}. Received: engine={engine!r}.")


def check_ledger(ledger: Any) -> None:
    """Refuses what is neither a ledger nor None."""
    if not (ledger is None or isinstance(ledger, PrivacyLedger)):
        raise TypeError(f"ledger must be a tfdp.PrivacyLedger. Received: ledger={ledger!r}.")


def check_inner(inner: Any, outer_class: type) -> None:
    """Refuses inner optimizers that would void the accounting; `outer_class` is a DPOptimizer."""
    if not isinstance(inner, keras.optimizers.Optimizer):
        raise TypeError(
            f"inner_optimizer must be a keras.optimizers.Optimizer. Received: {inner!r}."
            + advice_of_keras_2(inner)
        )
    if isinstance(inner, outer_class):
        raise ValueError("inner_optimizer is already a DPOptimizer.")
    if isinstance(inner, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "A LossScaleOptimizer follows the data (it reacts to overflow), which no event "
            "covers. Pass its inner optimizer, and a constant loss_scale_factor to DPOptimizer."
        )
    for part in parts(inner):
        _check_part(part)


def _check_part(inner: keras.optimizers.Optimizer) -> None:
    if inner.loss_scale_factor is not None:
        raise ValueError(
            "Gradients must be unscaled before they are clipped: set loss_scale_factor on "
            "DPOptimizer."
        )
    if inner.gradient_accumulation_steps is not None:
        raise ValueError(
            "gradient_accumulation_steps would add noise, and charge, for every partial batch. "
            "For large batches in little memory use DPOptimizer(physical_batch_size=...): one "
            "noise draw, one event."
        )
    if tf.executing_eagerly():
        check_learning_rate(inner.learning_rate)


def check_arguments(query: DPQuery, microbatching: Microbatching, arguments: StepArguments) -> None:
    """Refuses what a step cannot be taken on, before anything is charged for it.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: it does not go with the others, with the query or with the microbatches.
    """
    check_call(
        arguments.loss_fn,
        arguments.variables,
        arguments.examples,
        arguments.mask,
        arguments.microbatch_ids,
        arguments.loss_scale,
        arguments.weights,
    )
    several = arguments.examples_per_record not in (None, 1)
    if several and microbatching.num_microbatches is not None:
        raise ValueError(
            "examples_per_record says which examples are a record, and so does "
            "num_microbatches. Leave one of them out."
        )
    in_microbatches = microbatching.holds_several or arguments.microbatch_ids is not None
    check_weights(query, arguments.weights is not None, in_microbatches or several)


def check_private_steps(optimizer: Any) -> None:
    """Refuses a private optimizer whose steps are not those that are accounted for.

    Raises:
        NotPrivateError: what takes a step on raw data is somebody else's, or what applies gradients
            is, which steps of a model do not call.
    """
    for name in ("private_step", "private_gradients"):
        if _is_own(optimizer, name, known=("tfdp.",)):
            raise NotPrivateError(
                f"{type(optimizer).__name__} has its own {name}, which sees raw data. What is done "
                "with noised gradients belongs into the Keras optimizer inside, and another "
                "mechanism into a query."
            )
    for name in ("apply", "apply_gradients"):
        if _is_own(optimizer, name, known=("tfdp.", "keras.")):
            raise NotPrivateError(
                f"{type(optimizer).__name__} has its own {name}, which a model's steps do not "
                "call: they charge, add noise and update in one. What is done with noised "
                "gradients belongs into the Keras optimizer inside."
            )


def _is_own(optimizer: Any, name: str, known: tuple[str, ...]) -> bool:
    """Returns whether a method comes from elsewhere than from modules of these packages."""
    defined = next(c for c in type(optimizer).__mro__ if name in vars(c))
    return name in vars(optimizer) or not defined.__module__.startswith(known)
