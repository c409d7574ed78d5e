"""Random numbers that the code of a block draws for all records of a batch at once.

A record may get them if nobody knows the seed, if each has numbers of its own, and if no others
come from the same seed: numbers of different rows, and of different draws, are then independent.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.gradients.record_scope import MODULUS
from tfdp.gradients.static_values import static_value

# Operations that draw every number independently of the others, given (shape, key, counter,
# algorithm, ...).
DRAWS = frozenset(
    """
    StatelessRandomNormalV2 StatelessRandomUniformFullIntV2 StatelessRandomUniformIntV2
    StatelessRandomUniformV2 StatelessTruncatedNormalV2
    """.split()
)
# What Keras and TensorFlow do with seeds.
_OF_SEEDS = ("AddV2", "Cast", "FloorMod", "Identity", "Mul", "StatelessRandomGetKeyCounter")
# What a tensor holds that may be any seed, also a known one, or that of another draw.
_ANY = ""


class Draws:
    """Which tensors of a graph are seeds that follow from a secret one.

    Args:
        secret: int64 [2], from which `RecordScope` makes a seed for each draw; None: there is none.
    """

    def __init__(self, secret: tf.Tensor | None):
        self._secret = secret
        self._seeds: dict[str, str] = {}  # From names of tensors to the seed that they hold.
        self._used: set[str] = set()

    def makes_a_seed(self, op: tf.Operation) -> bool:
        """Notes what an operation makes of a seed and constants, and returns whether it does."""
        if self._secret is None or not op.outputs:
            return False
        if op.type == "Placeholder":
            return self._is_secret(op.outputs[0])
        if op.type == "AddV2" and any(map(self._is_secret, op.inputs)):
            # So the scope of records makes the seed of every draw.
            self._seeds[op.outputs[0].name] = op.name
            return True
        seeds = [self._seeds[t.name] for t in op.inputs if t.name in self._seeds]
        others = [static_value(t) for t in op.inputs if t.name not in self._seeds]
        if op.type not in _OF_SEEDS or len(seeds) != 1 or any(v is None for v in others):
            return False
        for tensor in op.outputs:
            self._seeds[tensor.name] = seeds[0] if self._stays_secret(op, others) else _ANY
        return True

    def use(self, op: tf.Operation) -> bool:
        """Notes that an operation of `DRAWS` draws, and returns whether it does so from a seed that
        is secret, and from which nothing else has been drawn.
        """
        seeds = {self._seeds.get(tensor.name) for tensor in op.inputs[1:3]}
        seed = seeds.pop()
        if seeds or seed in (None, _ANY) or seed in self._used:
            return False
        self._used.add(seed)
        return True

    def _is_secret(self, tensor: tf.Tensor) -> bool:
        while tensor is not self._secret:
            if not tf.is_symbolic_tensor(tensor) or tensor.dtype != tf.int64:
                return False
            if tensor.op.type != "Placeholder":
                return False
            captures = getattr(tensor.graph, "captures", ())
            tensor = next((outer for outer, inner in captures if inner is tensor), None)
        return True

    def _stays_secret(self, op: tf.Operation, others: list[np.ndarray]) -> bool:
        """Returns whether an operation makes another number of every seed, and of no two seeds the
        same: those of Keras and TensorFlow between a seed and a draw.
        """
        if op.type == "Mul":
            return bool((others[0] == 1).all())
        if op.type == "FloorMod":
            return op.inputs[0].name in self._seeds and bool((others[0] >= MODULUS).all())
        if op.type == "Cast":
            return op.outputs[0].dtype in (tf.int32, tf.int64, tf.uint32, tf.uint64)
        return op.type in ("Identity", "StatelessRandomGetKeyCounter")


def draws_in(steps: Sequence[Any]) -> bool:
    """Returns whether one of the steps of a region draws random numbers."""
    return any(isinstance(step, tuple) and step[0] in DRAWS for step in steps)
