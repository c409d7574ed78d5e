"""White-box canaries: records whose gradients are chosen, on the real path of `fit`.

The gradient of the loss `scale * w_k` points along the coordinate k, whatever the weights are. So a
canary is a record whose loss is that of one coordinate: its clipped gradient is one clip norm long,
along it. This module needs Keras, and nothing else of tfdp's training: the model that it makes
is an ordinary one, which becomes private as any other does.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfdp.events.arguments import positive_integer, real_number

# A canary's loss is so much steeper than any other term, which turns its gradient by 1e-6.
_SCALE = 1e6


def canary_loss(y_true: Any, y_pred: Any) -> Any:
    """Returns the product of both, per record: linear in the weight that a canary is about."""
    return keras.ops.mean(y_true * y_pred, axis=-1)


class _Coordinates(keras.layers.Layer):
    """Reads one coordinate of weights that belong to other layers."""

    def __init__(self, owner: keras.Model, coordinates: np.ndarray, name: str):
        # In float16 the loss of a canary would be infinite, and its record count for nothing.
        super().__init__(name=name, dtype="float32")
        self._read = list(owner.trainable_variables)
        self._coordinates = coordinates

    def call(self, canary: Any) -> Any:
        flat = keras.ops.concatenate([keras.ops.reshape(v, (-1,)) for v in self._read])
        # Number 0 stands for no canary: its loss does not count, wherever it points.
        first = np.concatenate([[0], self._coordinates]).astype("int32")
        return keras.ops.take(flat, keras.ops.take(first, canary))[..., None]


class GradientCanaries:
    """A model with canaries beside its records, and what training does along their gradients.

    `model` has one input and one output more than the model that it is made from. The input is the
    number of a canary (0 for an ordinary record), and the output is the weight that this canary
    pulls at. Its other layers are those of the original model, so training one trains the other.

    By default canaries pull at weights that were added for them. Ordinary records do not move
    these, and a canary does not move the others', so scores of different canaries are independent,
    and nothing but the noise hides a canary. With `coordinates` they pull at the model's own
    weights: the audit then covers the noise of these, and the gradients of ordinary records hide
    canaries, too.

    Attributes:
        model: To be made private, compiled with `losses`, and trained on `records`.
        canaries: How many there are.

    Example:
        canaries = GradientCanaries(model, 1000)
        inserted = fair_coins(1000, seed=0)
        private = tfdp.keras.make_private(canaries.model)
        private.compile(optimizer, loss=canaries.losses("sparse_categorical_crossentropy"))
        released = CanarySums(canaries, learning_rate=0.1, denominator=256)
        private.fit(*canaries.records(x, y, inserted), batch_size=256, callbacks=[released])
        scores = released.sums.sum(axis=0)

    References:
        Steinke, Nasr and Jagielski 2023, arXiv:2305.08846, section 6 (white-box, Dirac canaries);
        Nasr et al. 2023, arXiv:2302.07956.
    """

    def __init__(self, model: keras.Model, canaries: int, coordinates: Sequence[int] | None = None):
        """Builds the model with canaries.

        Args:
            model: Functional or sequential, built; not compiled.
            canaries: How many.
            coordinates: One for every canary, each another one: positions in the trainable weights
                of the model, flattened and put one after the other. None adds weights.

        Raises:
            ValueError: the model has no inputs and outputs to read, or `coordinates` are not
                different positions, one for every canary.
            TypeError: `canaries` is no integer.
        """
        self.canaries = positive_integer("canaries", canaries)
        if not model.built or not getattr(model, "inputs", None):
            raise ValueError(
                "Canaries need a built functional or sequential model: give it a keras.Input. "
                f"Received: {type(model).__name__} {model.name!r}."
            )
        number = keras.Input((), dtype="int32", name="canary")
        if coordinates is None:
            self._own = keras.layers.Embedding(
                self.canaries + 1,
                1,
                embeddings_initializer="zeros",
                name="canary_weights",
                dtype="float32",  # As for `_Coordinates`.
            )
            pulled = self._own(number)
            self._coordinates = None
        else:
            self._coordinates = _checked_coordinates(coordinates, self.canaries, model)
            pulled = _Coordinates(model, self._coordinates, name="canary_weights")(number)
        self._audited = model
        self.model = keras.Model([*model.inputs, number], [*model.outputs, pulled])

    def losses(self, *losses: Any) -> list[Any]:
        """Returns what to compile with, from the losses of the outputs of the original model."""
        if len(losses) != len(self._audited.outputs):
            raise ValueError(
                f"There must be one loss for each of the {len(self._audited.outputs)} outputs of "
                f"the model. Received: {len(losses)}."
            )
        return [*losses, canary_loss]

    def records(self, x: Any, y: Any, inserted: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns (x, y) for `fit`: the records, and after them the canaries that are in.

        A canary's other inputs and labels are those of the first record that is finite. Its
        gradient must be negligible beside the canary's own, which is 1e6 long, and its labels must
        be ones that the losses know: a record whose loss is NaN counts for nothing, and canaries
        that are copies of one are not seen. Scale the labels of a regression.

        Args:
            x: [records, ...] array, or a list or dict of one for every input. In a dict they go by
                the names of the inputs, where all of these are in it.
            y: [records, ...] array, or a list or dict of one for every output, likewise.
            inserted: One boolean per canary.

        Raises:
            ValueError: `inserted` is not one boolean per canary, arrays differ in length, or no
                record is finite.
        """
        inserted = np.asarray(inserted)
        if inserted.dtype != bool or inserted.shape != (self.canaries,):
            raise ValueError(
                f"inserted must be {self.canaries} booleans. "
                f"Received: dtype={inserted.dtype}, shape={inserted.shape}."
            )
        inputs = _arrays(x, [tensor.name for tensor in self._audited.inputs])
        outputs = _arrays(y, getattr(self._audited, "output_names", []))
        counts = {len(array) for array in (*inputs, *outputs)}
        if len(counts) != 1 or 0 in counts:
            raise ValueError(
                "All arrays must hold as many records, one at least. "
                f"Received: {[len(array) for array in (*inputs, *outputs)]}."
            )
        (records,) = counts
        finite = np.all([_finite(array) for array in (*inputs, *outputs)], axis=0)
        if not finite.any():
            raise ValueError("No record is finite in all arrays, and canaries need one to copy.")
        copied = [np.argmax(finite)]
        planted = np.flatnonzero(inserted) + 1
        numbers = np.concatenate([np.zeros(records, "int32"), planted.astype("int32")])

        def padded(array: np.ndarray) -> np.ndarray:
            return np.concatenate([array, np.repeat(array[copied], len(planted), axis=0)])

        pull = np.where(numbers > 0, _SCALE, 0.0).astype("float32")[:, None]
        return [*map(padded, inputs), numbers], [*map(padded, outputs), pull]

    def positions(self) -> np.ndarray:
        """Returns the weight that each canary pulls at, [canaries], float64."""
        if self._coordinates is None:
            (table,) = self._own.get_weights()
            return np.asarray(table[1:, 0], np.float64)
        variables = self._audited.trainable_variables
        flat = np.concatenate([np.ravel(keras.ops.convert_to_numpy(v)) for v in variables])
        return np.asarray(flat[self._coordinates], np.float64)


class CanarySums(keras.callbacks.Callback):
    """Records what every step releases along each canary's gradient.

    Under plain SGD the change of a weight is -learning_rate / denominator times the noised sum of
    gradients. So this is what the mechanism released. A canary in a step moves it by its clip norm.
    Another optimizer changes weights by some function of that, which is a score as well, if a
    weaker one. The sum over steps is then the change of the weights, up to a factor.

    Attributes:
        sums: [steps, canaries], larger where a canary is believed to be in.
    """

    def __init__(self, canaries: GradientCanaries, learning_rate: float, denominator: float):
        """Stores what a change is to be multiplied by.

        Args:
            canaries: Whose weights to look at.
            learning_rate: Of the inner optimizer.
            denominator: Of the query.

        Raises:
            ValueError: a number is not positive.
            TypeError: a number is none.
        """
        super().__init__()
        self._canaries = canaries
        rate = real_number("learning_rate", learning_rate, minimum=0, inclusive=False)
        self._factor = real_number("denominator", denominator, minimum=0, inclusive=False) / rate
        self._steps: list[np.ndarray] = []

    @property
    def sums(self) -> np.ndarray:
        """[steps, canaries], float64."""
        if not self._steps:
            raise ValueError("There are no steps: give this callback to `fit`.")
        return np.stack(self._steps)

    def on_train_begin(self, logs: Any = None) -> None:
        self._position = self._canaries.positions()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        position = self._canaries.positions()
        self._steps.append(self._factor * (self._position - position))
        self._position = position


def _arrays(parts: Any, names: Sequence[str]) -> list[np.ndarray]:
    """Returns the arrays of all inputs or outputs, in the order in which a model has them."""
    if isinstance(parts, dict):
        # Of a model that was made from dicts, the names of tensors and layers may be others.
        by_name = bool(names) and set(names) <= set(parts)
        parts = [parts[name] for name in names] if by_name else keras.tree.flatten(parts)
    return [np.asarray(part) for part in (parts if isinstance(parts, list | tuple) else [parts])]


def _finite(array: np.ndarray) -> np.ndarray:
    """Returns which records are finite, bool [records]."""
    if array.dtype.kind not in "fc":
        return np.ones(len(array), bool)
    return np.isfinite(array).reshape(len(array), -1).all(axis=1)


def _checked_coordinates(coordinates: Any, canaries: int, model: keras.Model) -> np.ndarray:
    found = np.asarray(coordinates)
    size = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    if found.dtype.kind not in "iu" or found.shape != (canaries,):
        raise ValueError(
            f"coordinates must be {canaries} integers, one for every canary. "
            f"Received: dtype={found.dtype}, shape={found.shape}."
        )
    if len(np.unique(found)) < canaries or found.min() < 0 or found.max() >= size:
        raise ValueError(
            f"coordinates must be different positions in [0, {size}), the trainable weights of "
            f"the model. Received: {found.min()} to {found.max()}, "
            f"{len(np.unique(found))} different ones."
        )
    return found
