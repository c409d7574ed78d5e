"""What can be seen of a promise that a class of a user's own keeps records apart.

Nothing shows what its code does with a batch. On what it calls the layers in it, whose gradients
follow from what each row of their arguments gave, is looked at, and what the model returns: that
must be one row for each record, in front. So is whether weights are read in ways that are not seen.
The model is traced for some numbers of records, which tells their axis from others, such as that of
steps.
"""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.blocks import ERRORS, in_words
from tfdp.gradients.effects import handles_of
from tfdp.gradients.keras_internals import layers_in, replaced
from tfdp.gradients.layered_loss import UnsupportedModelError
from tfdp.gradients.lost_gradients import refuse_lost_gradients
from tfdp.gradients.mapping import comes_from_records
from tfdp.gradients.plan import check_records, has_regularizer, plan
from tfdp.gradients.record_scope import RecordScope, Seeds
from tfdp.gradients.recording import wanted_of
from tfdp.gradients.rules.rule import RecordWise, is_promise
from tfdp.noise.attempts import attempt

# What open lengths are taken to be: the first that the model takes.
LENGTHS = (64, 32, 16, 8, 4)
# Of the records that a model is traced for there are so many, or a few more.
_FEW = 53


def check_promises(
    model: keras.Layer,
    wanted: set[int],
    forward: Callable[[list[tf.Tensor], RecordScope], Any],
    leaves: Sequence[tf.Tensor],
    metrics: Sequence[Any] = (),
    own_forward: bool = False,
) -> None:
    """Checks on what layers are called in a model with a class that somebody has promised.

    Args:
        model: The model.
        wanted: Identities of the variables whose gradients are wanted.
        forward: Runs the model, given leaves of a batch and a scope.
        leaves: Of a batch, for whose shapes and dtypes it is looked at.
        metrics: Variables whose updates are dropped.
        own_forward: Whether `forward` is a user's own, and a promise itself.

    Raises:
        UnsupportedModelError: a layer is called on something else than one row for each record, or
            the model takes none of the numbers of records and `LENGTHS`.
    """
    # A layer in it may add losses, of the rows that it is called on, and have no weights.
    promised = [
        o
        for o in layers_in(model, deep=True)
        if is_promise(o) and (wanted_of(o, wanted) or layers_in(o))
    ]
    if not promised and not own_forward:
        return
    name = "The forward pass" if own_forward else promised[0].name
    lengths = {n for leaf in leaves for n in leaf.shape}
    lengths |= {n for v in model.weights for n in v.shape}
    numbers = (number for number in itertools.count(_FEW, 2) if number not in lengths)
    # What is as long as there are records, each time, has their axis.
    for rows in itertools.islice(numbers, 2):
        _check(model, wanted, promised, forward, leaves, metrics, rows, name)


def _check(
    model: Any,
    wanted: set[int],
    promised: Sequence[Any],
    forward: Any,
    leaves: Any,
    metrics: Any,
    rows: int,
    name: str,
) -> None:
    variables = wanted_of(model, wanted)
    handles = {id(handle): v.path for v in variables for handle in handles_of(v)}

    def run(*tensors):
        with contextlib.ExitStack() as stack:
            seen, watched = _Seen(rows), plan(model, wanted)
            for operation in promised:
                call = seen.entering(operation.call)
                stack.enter_context(replaced(operation, "call", call))
            for operation, rule in watched:
                if not isinstance(rule, RecordWise) or has_regularizer(operation):
                    call = seen.checked(operation, rule is not None)
                    stack.enter_context(replaced(operation, "call", call))
            seeds = Seeds(tf.zeros([2], tf.int64))
            values = [(v, tf.zeros(v.shape, v.dtype)) for v in variables]
            scope = stack.enter_context(RecordScope(seeds, values, metrics))
            # So it is seen what comes from records, and what is a constant.
            given = [tf.compat.v1.placeholder_with_default(t, t.shape) for t in tensors]
            outputs = forward(given, scope)
            refuse_lost_gradients([value for _, value in values], handles, name)
        if not all(map(seen.holds, filter(tf.is_tensor, tf.nest.flatten(outputs)))):
            raise UnsupportedModelError(
                f"{name} is promised to treat every record separately, and the model returns "
                "something else than one row for each record. Use engine='vectorized'."
            )
        return tf.zeros([])

    are_open = not all(leaf.shape[1:].is_fully_defined() for leaf in leaves)
    reason = ""
    for length in LENGTHS if are_open else LENGTHS[:1]:
        specs = [
            tf.TensorSpec([rows, *(n or length for n in leaf.shape[1:])], leaf.dtype)
            for leaf in leaves
        ]
        try:
            with attempt():
                tf.function(run, autograph=False).get_concrete_function(*specs)
            return
        except UnsupportedModelError:
            raise
        except ERRORS as error:
            reason = in_words(error)
    raise UnsupportedModelError(
        f"{name} is promised to treat every record separately, and nobody can see on what it calls "
        f"its layers: its code fails for {rows} records. {reason} Use engine='vectorized'."
    )


class _Seen:
    """What is seen of a model while it is traced.

    Args:
        rows: How many records there are.
    """

    def __init__(self, rows: int):
        self._rows = self._number = rows
        # Whose code is running: of a layer that answers for the layers in it, as a block does.
        self._inside: list[Any] = []

    def holds(self, tensor: tf.Tensor) -> bool:
        """Returns whether a tensor has one row for each record, or for each row of records that a
        block has made and called a promised layer on.
        """
        return tensor.shape.rank != 0 and tensor.shape[0] == self._rows

    def entering(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the call of a promised layer, in which nothing else answers for the layers."""

        def entered(*args, **kwargs):
            before = self._rows, self._inside
            tensors = list(filter(tf.is_tensor, tf.nest.flatten((args, kwargs))))
            first = tensors[0].shape[0] if tensors and tensors[0].shape.rank else None
            if self._inside and first is not None and first % self._number == 0:
                self._rows = first
            self._inside = []
            try:
                return call(*args, **kwargs)
            finally:
                self._rows, self._inside = before

        return entered

    def checked(self, operation: Any, every: bool) -> Callable[..., Any]:
        """Returns the call of a layer that must be on records.

        Args:
            operation: The layer.
            every: Whether all that it is called on must hold them, or what comes from records.
        """
        call = operation.call

        def checked(*args, **kwargs):
            if not self._inside:
                tensors = list(filter(tf.is_tensor, tf.nest.flatten((args, kwargs))))
                of_records = [t for t in tensors if every or comes_from_records(t)]
                if of_records:
                    check_records(operation, of_records, {}, True, self.holds)
            self._inside.append(operation)
            try:
                return call(*args, **kwargs)
            finally:
                self._inside.pop()

        return checked
