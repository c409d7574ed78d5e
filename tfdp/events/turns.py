"""Samplings in which parts of the data take turns: each step is about the next part."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from tfdp.events.arguments import MAX_INTEGER, integer_below, positive_integer, set_field
from tfdp.events.base import Sampling
from tfdp.events.registry import register
from tfdp.events.sampling import PoissonSampling, check_population


@register
@dataclasses.dataclass(frozen=True)
class FixedOrderSampling(Sampling):
    """Consecutive batches of the data, in the order in which they stand, again and again.

    Attributes:
        batch_size: Units in a batch; the last batch may be smaller.
        population_size: Number of units.
        batch_index: Which of the batches the step is about, from 0 on.
    """

    words: ClassVar[str] = "consecutive batches of the data, in a fixed order"
    is_random: ClassVar[bool] = False
    field_words: ClassVar[Mapping[str, str]] = {
        "batch_size": "batch size",
        "population_size": "population",
        "batch_index": "batch",
    }

    batch_size: int
    population_size: int
    batch_index: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "population_size"):
            set_field(self, name, positive_integer(name, getattr(self, name)))
        set_field(
            self, "batch_index", integer_below("batch_index", self.batch_index, self.steps_per_pass)
        )

    @property
    def steps_per_pass(self) -> int:
        """Batches in one pass, a smaller last one included."""
        return -(-self.population_size // self.batch_size)

    @property
    def place(self) -> tuple[int, int]:
        return self.batch_index, self.steps_per_pass

    def at_first_place(self) -> Sampling:
        return dataclasses.replace(self, batch_index=0)


@register
@dataclasses.dataclass(frozen=True)
class CyclicPoissonSampling(Sampling):
    """Fixed groups of the data take turns. Of the group whose turn it is, every unit is in the
    sample independently, with the same probability (Choquette-Choo et al. 2023, arXiv:2306.08153,
    section 5).

    Attributes:
        sampling_probability: q, in (0, 1], of a unit when it is its group's turn.
        num_groups: How many groups there are.
        group_index: Whose turn it is, from 0 on.
        population_size: Number of units in all groups, or None where it is not known.
    """

    words: ClassVar[str] = "of groups that take turns, every unit with the same probability"
    field_words: ClassVar[Mapping[str, str]] = {
        "sampling_probability": "probability q",
        "num_groups": "groups",
        "group_index": "group",
        "population_size": "population",
    }

    sampling_probability: float
    num_groups: int
    group_index: int = 0
    population_size: int | None = None

    def __post_init__(self) -> None:
        PoissonSampling(self.sampling_probability)
        set_field(self, "sampling_probability", float(self.sampling_probability))
        set_field(self, "num_groups", positive_integer("num_groups", self.num_groups))
        set_field(
            self, "group_index", integer_below("group_index", self.group_index, self.num_groups)
        )
        check_population(self)

    @property
    def place(self) -> tuple[int, int]:
        return self.group_index, self.num_groups

    def at_first_place(self) -> Sampling:
        return dataclasses.replace(self, group_index=0)


@register
@dataclasses.dataclass(frozen=True)
class BallsInBinsSampling(Sampling):
    """Every unit is in one of `num_bins` bins, uniformly and independently of all other units, once
    for all steps. Bins take turns, and all of the bin whose turn it is are in the sample
    (Choquette-Choo et al. 2024, arXiv:2410.06266, section 3).

    Attributes:
        num_bins: b; public.
        bin_index: Whose turn it is, from 0 on.
        assignment: A random number that names the draw of all bins. Steps of the same number are
            about the same bins, whatever ledger or run they are in.
        population_size: Number of units, or None where it is not known.
    """

    words: ClassVar[str] = "of bins that take turns, all units; each has a random one for the run"
    takes_whole_parts: ClassVar[bool] = True
    field_words: ClassVar[Mapping[str, str]] = {
        "num_bins": "bins",
        "bin_index": "bin",
        "assignment": "draw of the bins",
        "population_size": "population",
    }

    num_bins: int
    bin_index: int
    assignment: int
    population_size: int | None = None

    def __post_init__(self) -> None:
        set_field(self, "num_bins", positive_integer("num_bins", self.num_bins))
        for name, end in (("bin_index", self.num_bins), ("assignment", MAX_INTEGER)):
            set_field(self, name, integer_below(name, getattr(self, name), end))
        check_population(self)

    @property
    def place(self) -> tuple[int, int]:
        return self.bin_index, self.num_bins

    def at_first_place(self) -> Sampling:
        return dataclasses.replace(self, bin_index=0)
