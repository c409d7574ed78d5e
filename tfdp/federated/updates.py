"""What a client sends, and whether it can be used."""

import numbers
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfdp.query.structure import Structure, describe


class InvalidUpdateError(ValueError):
    """An update does not have the form of the model. A server counts it as zero."""


class Form(NamedTuple):
    """What every update looks like.

    Attributes:
        shapes: Of the arrays, in order.
        dtypes: NumPy's names of their dtypes.
        is_weighted: Whether each comes with a weight.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    is_weighted: bool

    def check(self, arrays: Any, weight: Any) -> tuple[list[np.ndarray], float]:
        """Returns the arrays and the weight, 1 where none is wanted.

        The checks are the same whatever the values are, except that they must be finite. The text
        of an error tells shapes and dtypes, and no value.

        Args:
            arrays: A sequence of arrays, as many as the model has.
            weight: One number, where weights are wanted; else None.

        Raises:
            InvalidUpdateError: there are too few or too many arrays; an array has another shape or
                dtype; a value or the weight is not finite; or there is a weight and none is wanted,
                or the other way round.
        """
        if isinstance(arrays, (str, bytes, Mapping)) or not isinstance(arrays, Sequence):
            raise InvalidUpdateError(
                f"An update is a list of arrays. Received: {type(arrays).__name__}."
            )
        if len(arrays) != len(self.shapes):
            raise InvalidUpdateError(
                f"An update has {len(self.shapes)} arrays. Received: {len(arrays)}."
            )
        found = []
        forms = zip(self.shapes, self.dtypes, strict=True)
        for index, (array, form) in enumerate(zip(arrays, forms, strict=True)):
            # No subclass, which may have its own sums, and bytes in the order of this machine.
            is_plain = type(array) is np.ndarray and array.dtype.isnative
            if not is_plain or (array.shape, array.dtype.name) != form:
                raise InvalidUpdateError(
                    f"Array {index} of an update must be {form[1]}{form[0]}. "
                    f"Received: {_words(array)}."
                )
            if not np.isfinite(array).all():
                raise InvalidUpdateError(f"Array {index} of an update is not finite.")
            found.append(array)
        return found, self._weight(weight)

    def check_all(self, arrays: Any, weights: Any) -> int:
        """Returns how many updates there are, one behind the other.

        Args:
            arrays: As for `check`, each with an axis of updates in front.
            weights: One number for each update, where weights are wanted; else None.

        Raises:
            ValueError: there are too few or too many arrays; an array has another shape or dtype,
                or other rows than the first; or there are weights and none are wanted, or the other
                way round, or fewer or more than rows.
        """
        if len(arrays) != len(self.shapes):
            raise ValueError(f"An update has {len(self.shapes)} arrays. Received: {len(arrays)}.")
        first = np.shape(arrays[0]) or (0,)
        expected = [((first[0], *s), d) for s, d in zip(self.shapes, self.dtypes, strict=True)]
        received = [(tuple(a.shape), a.dtype.name) for a in map(np.asarray, arrays)]
        if received != expected:
            raise ValueError(
                "Arrays of several updates have an axis of them in front, of one length. "
                f"Expected: {expected}, received: {received}."
            )
        if (weights is not None) != self.is_weighted:
            raise ValueError(
                "weights belong to a query that takes weights, and are needed by one. Received: "
                f"weights of type {type(weights).__name__}."
            )
        if weights is not None and np.shape(weights) != first[:1]:
            raise ValueError(
                f"There is one weight for each of {first[0]} rows. Received: weights of shape "
                f"{np.shape(weights)}."
            )
        return first[0]

    def zeros(self) -> list[np.ndarray]:
        """Returns the arrays of an update that changes nothing."""
        return [np.zeros(s, d) for s, d in zip(self.shapes, self.dtypes, strict=True)]

    def _weight(self, weight: Any) -> float:
        if not self.is_weighted:
            if weight is not None:
                raise InvalidUpdateError("A weight was sent, but the query takes none.")
            return 1.0
        is_number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
        try:
            value = float(weight) if is_number else None
        except OverflowError:  # An integer beyond all floats.
            value = None
        if value is None or not np.isfinite(value):
            raise InvalidUpdateError("The weight of an update must be one finite number.")
        return value


def form_of(variables: Sequence[Any], is_weighted: bool) -> Form:
    """Returns the form of updates of these variables.

    Args:
        variables: Of a model.
        is_weighted: Whether each comes with a weight.
    """
    shapes = tuple(tuple(v.shape) for v in variables)
    return Form(shapes, tuple(np.dtype(v.dtype).name for v in variables), is_weighted)


def _words(array: Structure) -> str:
    return describe(array) if isinstance(array, np.ndarray) else type(array).__name__
