"""Sizes of declared samples, to hold them against the declaration."""

import dataclasses
import math

# Logarithm of a probability below which sizes of samples are not taken for chance.
IMPOSSIBLE = math.log(1e-12)


def divergence(share: float, q: float) -> float:
    """Returns the relative entropy of Bernoulli distributions with these probabilities."""
    parts = ((share, q), (1 - share, 1 - q))
    return sum((a * math.log(a / b) if b else math.inf) for a, b in parts if a > 0)


@dataclasses.dataclass
class Sizes:
    """What is kept of the sizes of declared samples, to hold them against the declaration.

    Attributes:
        steps: How many there were.
        total: Their sum.
        smallest: Of them.
        largest: Of them.
    """

    steps: int = 0
    total: int = 0
    smallest: int = 0
    largest: int = 0

    def add(self, size: int) -> None:
        """Adds one more."""
        self.smallest = min(self.smallest, size) if self.steps else size
        self.largest = max(self.largest, size)
        self.steps, self.total = self.steps + 1, self.total + size
