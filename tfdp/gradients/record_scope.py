"""The scope of a record's forward pass and loss: randomness is fresh, and no state is left that
another record or step could find.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from tfdp.gradients.keras_internals import is_compiled_by_xla
from tfdp.noise import system_random_source
from tfdp.noise.attempts import attempt

# Keras takes the numbers of a seed modulo this before it draws.
MODULUS = 2**31 - 2
# How many draws one block of seeds serves, and how many blocks there are.
_BLOCK = 2**16
_BLOCKS = 2**14

_Result = TypeVar("_Result")


class SideEffectError(ValueError):
    """A record's forward pass or loss leaves something behind, or draws from what records share.

    What one step leaves for the next never went through the mechanism.
    """


class _SeedsNeededError(Exception):
    """A record's loss draws random numbers, and has been given no seeds."""


def draw_seeds(rows: int | tf.Tensor) -> tf.Tensor:
    """Returns int64 [rows, 2]: fresh secret bits for the randomness of each of so many records.

    They come from the operating system's generator through `tfdp.noise`, anew each time the graph
    runs. So the numbers that a record draws depend neither on its row nor on which other records
    are there.
    """
    numbers = system_random_source().integers([rows, 2], MODULUS)
    return tf.reshape(tf.cast(numbers, tf.int64), [-1, 2])


def with_seeds(
    function: Callable[[tf.Tensor | None], _Result], rows: int | tf.Tensor, likely: bool = False
) -> _Result:
    """Returns `function(seeds)`, and draws none where the function is found not to use them: they
    are drawn on the host, which a function that XLA compiles as a whole cannot call.

    Args:
        function: Called with None first, unless it is likely to draw; an attempt to draw ends it.
        rows: Number of records.
        likely: Whether it is. One that ends at its last layer has been traced for nothing. Where it
            draws nothing after all, the seeds were drawn in vain.
    """
    if likely and not is_compiled_by_xla():
        return function(draw_seeds(rows))
    try:
        with attempt():
            return function(None)
    except _SeedsNeededError:
        return function(draw_seeds(rows))


class Seeds:
    """The seeds of one record, or of a batch that draws as a whole. No two draws get the same seed.

    Args:
        numbers: int64 [2], secret; None where there are none, and a draw is an error.
        block: Which part of what follows from `numbers` is meant. Parts that have other numbers
            share no seed.
    """

    def __init__(self, numbers: tf.Tensor | None, block: int = 0):
        if not 0 <= block < _BLOCKS:
            raise ValueError(
                f"A model calls layers that run record by record more than {_BLOCKS - 1} times."
            )
        self._numbers, self._block, self._count = numbers, block, 0

    def next(self) -> tf.Tensor:
        """Returns a seed, int64 [2]."""
        if self._numbers is None:
            raise _SeedsNeededError("A record's loss draws random numbers.")
        if self._count == _BLOCK:
            raise ValueError(f"A record's loss draws more than {_BLOCK} times.")
        offset = self._block * _BLOCK + self._count
        self._count += 1
        return self._numbers + tf.constant([0, offset], tf.int64)


class RecordScope(keras.StatelessScope):
    """The scope in which a record's forward pass and loss run.

    Guarantees:
        Every `keras.random.SeedGenerator`, whatever object holds it, gives seeds of this scope
        alone, a new one each time. Nothing is assigned to a `keras.Variable`: metrics start from
        zero, and what they add up is dropped; any other assignment is refused.

    Args:
        seeds: Where random numbers come from.
        mapping: (variable, value) pairs to compute with.
        metrics: Variables whose updates are dropped.
    """

    def __init__(
        self,
        seeds: Seeds,
        mapping: Iterable[tuple[Any, Any]] = (),
        metrics: Sequence[Any] = (),
    ):
        zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in metrics]
        # Keras would create variables at the end of the scope, which a replica cannot.
        super().__init__([*zeros, *mapping], collect_losses=True, initialize_variables=False)
        self._seeds = seeds
        self._metrics = {id(v) for v in metrics}

    def get_current_value(self, variable: Any) -> Any:
        """Returns what is read in the place of a variable; None: the variable itself."""
        if _is_seed_state(variable):
            return self._seeds.next()
        return super().get_current_value(variable)

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Takes what is assigned to a variable.

        Raises:
            SideEffectError: it is neither a metric's nor a seed.
        """
        variable, _ = update
        if _is_seed_state(variable):
            return  # The next draw has a new seed in any case.
        if id(variable) not in self._metrics:
            _refuse_assignment(variable)
        super().add_update(update)


class MetricScope(keras.StatelessScope):
    """The scope in which a loss runs on a batch for the sake of metrics that it updates.

    Guarantees:
        Metrics are assigned to at once. A `keras.random.SeedGenerator` stays as it is. Any other
        assignment to a `keras.Variable` is refused.

    Args:
        metrics: Variables of metrics.
        mapping: (variable, value) pairs to compute with.
    """

    def __init__(self, metrics: Sequence[Any], mapping: Iterable[tuple[Any, Any]] = ()):
        super().__init__(mapping, initialize_variables=False)
        self._metrics = {id(v) for v in metrics}

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Takes what is assigned to a variable.

        Raises:
            SideEffectError: it is neither a metric's nor a seed.
        """
        variable, value = update
        if id(variable) in self._metrics:
            variable.value.assign(tf.cast(value, variable.dtype))
        elif not _is_seed_state(variable):
            _refuse_assignment(variable)


def metrics_of(loss_fn: Any) -> list[Any]:
    """Returns the variables of the metrics of a loss' model, where it has one."""
    return list(getattr(getattr(loss_fn, "model", None), "metrics_variables", ()))


def _refuse_assignment(variable: Any) -> None:
    raise SideEffectError(
        f"{variable.path} is updated in the forward pass or the loss. Such updates hold raw "
        "statistics of the data, which no noise covers. Freeze the layer (layer.trainable = "
        "False), replace it, or keep the state out of the loss."
    )


@functools.cache
def _form_of_seed_states() -> tuple[str, str, tuple[int, ...]]:
    """Returns name, dtype and shape of the state of a `keras.random.SeedGenerator`.

    It is asked for when it is needed: a variable that is made while a module is imported starts
    TensorFlow's devices, which nobody could configure afterwards.
    """
    with tf.init_scope():
        state = keras.random.SeedGenerator(0).state
    return state.name, state.dtype, tuple(state.shape)


def _is_seed_state(variable: Any) -> bool:
    """Returns whether a variable is the state of a `keras.random.SeedGenerator`."""
    form = (variable.name, variable.dtype, tuple(variable.shape))
    return form == _form_of_seed_states() and not variable.trainable
