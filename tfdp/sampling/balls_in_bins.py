"""Bins that take turns, in one of which every unit is for the whole run."""

import dataclasses
import hashlib
import math
import os
from collections.abc import Iterator

import numpy as np

from tfdp import events
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import MAX_INTEGER, positive_integer
from tfdp.noise.bits import SeededFill
from tfdp.noise.host import HostGenerator
from tfdp.sampling.policy import (
    SamplingPolicy,
    check_batch,
    check_fields,
    check_public_number,
    fill,
    fill_number,
    nearly_whole,
    three_deviations_above,
    told,
)
from tfdp.sampling.sizes import IMPOSSIBLE, Sizes, divergence

_KEY_BYTES = 32


@dataclasses.dataclass(frozen=True)
class BallsInBins(SamplingPolicy):
    """Every unit is in one of `num_bins` bins, uniformly and independently of all other units. Bins
    take turns, and a sample is all of a bin. Bins stay for as long as the policy is used.

    What amplifies correlated noise that remembers more than a turn, such as buffers and trees: the
    number of bands does not matter. `RandomAllocation` draws anew for every pass instead, which
    costs independent noise less, and correlated noise has no price there.

    Bins follow from `key` and the numbers of bins and units. A policy without a key draws it, and
    keeps it over its calls of `fit`. **Whoever goes on in another process has to keep `policy.key`,
    as secret as the data, and give it again**, with the same data in the same order. The ledger
    holds a number that names the bins, and tells nothing of what they follow from. So a run of
    correlated noise that went on with other bins is refused; steps with independent noise are then
    charged as about another draw.

    For a new run take a new policy. Two runs with the same bins are charged as if bins were known.

    Args:
        num_bins: b. With arrays it is, by default, the number of batches of batch_size units.
        population_size: Number of units, where it is known.
        neighboring_relation: ZERO_OUT by default, under which the number of units is public. Under
            ADD_OR_REMOVE_ONE it is not: `num_bins` is then a public number of its own, which has to
            be given.
        key: 32 secret, random bytes, from which the bins follow; by default new ones.
        first_bin: Whose turn it is in the first step; `fit` goes on where the run is.

    References:
        Choquette-Choo et al. 2024, arXiv:2410.06266, section 3.
    """

    num_bins: int | None = None
    population_size: int | None = None
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    key: bytes | None = dataclasses.field(default=None, repr=False)
    first_bin: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_bins is not None:
            object.__setattr__(self, "num_bins", positive_integer("num_bins", self.num_bins))
        if self.key is None:
            object.__setattr__(self, "key", os.urandom(_KEY_BYTES))
        if not isinstance(self.key, bytes) or len(self.key) != _KEY_BYTES:
            # The key is a secret, so that no message may hold it.
            raise ValueError(
                f"key must be {_KEY_BYTES} random bytes: the key of a policy from before, or "
                f"os.urandom({_KEY_BYTES}). Received: an object of type {type(self.key).__name__}."
            )

    @property
    def is_ordered(self) -> bool:
        return True

    def from_step(self, step: int) -> "SamplingPolicy":
        return dataclasses.replace(self, first_bin=step % self.num_bins)

    def resolve(self, population_size: int, batch_size: int) -> "SamplingPolicy":
        check_public_number(self, "num_bins")
        if batch_size is None or self.hides_population:
            return fill(self, population_size=population_size)
        batch_size, population_size = check_batch(batch_size, population_size)
        num_bins = -(-population_size // batch_size)
        return fill_number(self, "num_bins", num_bins, batch_size, population_size)

    def default_batch_size(self, population_size: int) -> int | None:
        return 32 if self.num_bins is None and not self.hides_population else None

    @property
    def expected_batch_size(self) -> float | None:
        if self.num_bins is None or self.population_size is None:
            return None
        return nearly_whole(self.population_size / self.num_bins)

    def description(self, pass_index: int) -> events.Sampling:
        if self.num_bins is None:
            raise ValueError(
                "Declare the number of bins: sampling=tfdp.sampling.BallsInBins(num_bins=...)."
            )
        # Bins of other sizes are others, and so is their name, also where N is not public.
        named = b"tfdp name of a draw of bins" + self.key + self._sizes()
        digest = hashlib.sha256(named).digest()
        population_size = None if self.hides_population else self.population_size
        return events.BallsInBinsSampling(
            self.num_bins,
            (self.first_bin + pass_index) % self.num_bins,
            int.from_bytes(digest[:8], "big") % MAX_INTEGER,
            population_size,
        )

    @property
    def steps_per_epoch(self) -> int:
        return self.num_bins

    def contradiction(self, sizes: Sizes) -> str | None:
        population, q = self.population_size, 1 / self.num_bins
        if population is not None:
            if sizes.largest > population:
                return told(self, f"a sample of {sizes.largest} units")
            # Chernoff, for one bin: sizes depend on each other, but by convexity no average of them
            # is far from what is expected with a larger probability than one of them.
            share = sizes.total / (sizes.steps * population)
            if q < 1 and -population * divergence(share, q) < IMPOSSIBLE:
                return told(
                    self,
                    f"{sizes.steps} samples of {sizes.total / sizes.steps:g} units on average, "
                    f"where {q * population:g} are expected",
                )
        # In the first half of the first turn sizes are, given those before, binomial with a
        # probability of at most 2q; later ones are known. See `RandomAllocation`.
        mean = sizes.smallest if population is None else q * population
        likeliest = -0.5 * math.log(max(1.0, 2 * math.e * mean * max(0.0, 1 - 2 * q)))
        free = min(sizes.steps, self.num_bins // 2)
        if sizes.smallest == sizes.largest and (free - 1) * likeliest < IMPOSSIBLE:
            return told(
                self, f"{sizes.steps} samples of {sizes.largest} units each, where sizes are random"
            )
        return None

    def _sizes(self) -> bytes:
        """Returns what bins follow from, besides the key."""
        return f"{self.num_bins} bins, {self.population_size} units".encode()

    def _bins(self) -> np.ndarray:
        """Returns the bin of every unit, [population_size], always the same."""
        sizes = self._sizes()
        seed = hashlib.sha256(b"tfdp bins" + self.key + sizes).digest()
        generator = HostGenerator(SeededFill(int.from_bytes(seed, "big")))
        return generator.integers(self.num_bins, size=self.population_size)

    @property
    def uses_generator(self) -> bool:
        return False

    def draw(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        bins = self._bins()
        units = np.argsort(bins, kind="stable")
        ends = np.cumsum(np.bincount(bins, minlength=self.num_bins))[:-1]
        samples = np.split(units, ends)
        step = self.first_bin
        while True:
            yield samples[step % self.num_bins]
            step += 1

    @property
    def padded_size(self) -> int:
        return three_deviations_above(
            self.expected_batch_size, 1 / self.num_bins, self.population_size
        )
