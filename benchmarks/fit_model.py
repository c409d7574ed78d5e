"""What a model of `fit.py` is, and data for it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

Data = tuple[Any, np.ndarray]
Rows = Callable[[np.random.Generator, int], Data]


class FitModel(NamedTuple):
    """A model with its data.

    Attributes:
        build: Makes the model.
        rows: Returns (x, y) of so many examples.
        batch_size: The usual one.
        steps: Steps of an epoch that is timed: so many that what `fit` takes to begin and to end,
            in Keras 30 to 60 ms of processor time, is little beside them.
        needs: A package that it is made of, or None.
    """

    build: Callable[[], keras.Model]
    rows: Rows
    batch_size: int
    steps: int = 50
    needs: str | None = None


def images(*shape: int, classes: int = 10) -> Rows:
    """Returns a maker of normal numbers of a shape with labels."""

    def rows(rng, n):
        return rng.standard_normal((n, *shape), np.float32), rng.integers(0, classes, n)

    return rows


def tokens(length: int, vocabulary: int, classes: int = 2) -> Rows:
    """Returns a maker of ids from 1 on, of which a tenth at the end is padding, with labels."""

    def rows(rng, n):
        x = rng.integers(1, vocabulary, (n, length), dtype=np.int32)
        x[:, length - length // 10 :] = 0
        return x, rng.integers(0, classes, n)

    return rows


def next_tokens(length: int, vocabulary: int) -> Rows:
    """Returns a maker of ids, with those that follow them as labels."""

    def rows(rng, n):
        ids = rng.integers(1, vocabulary, (n, length + 1), dtype=np.int32)
        return ids[:, :-1], ids[:, 1:]

    return rows
