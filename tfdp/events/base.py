"""What every event and every sampling is, and the relations under which they are read."""

import enum
from collections.abc import Mapping
from typing import ClassVar


class UnsupportedEventError(ValueError):
    """An accountant or a converter met an event that it cannot account for."""


class NeighboringRelation(enum.Enum):
    """Which data sets count as neighbours.

    Attributes:
        ADD_OR_REMOVE_ONE: One has one privacy unit more than the other.
        REPLACE_ONE: Same size, one unit has another value.
        ZERO_OUT: Same size, one unit is replaced by a null unit whose contribution to every sum is
            zero (Kairouz et al. 2021, arXiv:2103.00039, section 2).
    """

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"
    ZERO_OUT = "zero_out"


class Event:
    """Base of everything that a ledger can hold.

    An event is a frozen dataclass that is decorated with `tfdp.events.register`. What others ask
    about it, it answers itself, so that no other part of tfdp has to name it; only its price is
    elsewhere (`tfdp.accounting.normal_form`).

    Attributes:
        words: What a report calls such a release.
        field_words: Field -> what a report calls it. A field that is not here is shown by its name.
        explanation: What a report says of a ledger that holds such releases only: sentences that
            may contain {unit}. None: the report gives `words`.
        protects: Whether the release is protected at all.
    """

    words: ClassVar[str]
    field_words: ClassVar[Mapping[str, str]] = {}
    explanation: ClassVar[str | None] = None
    protects: ClassVar[bool] = True

    def scaled(self, factor: float) -> "Event":
        """Returns the event of a sum that one privacy unit moves `factor` times as far.

        Raises:
            UnsupportedEventError: the release has no bound that could be multiplied.
        """
        raise UnsupportedEventError(
            f"The sensitivity of a {type(self).__name__} cannot be scaled: {self!r}."
        )

    def of_group(self, size: int) -> "Event":
        """Returns what the release costs a unit of `size` parts, given what it costs one part.

        Raises:
            UnsupportedEventError: no such release is known.
        """
        return self.scaled(float(size))

    def repeated(self, count: int) -> "Event":
        """Returns one release that costs at least as much as `count` of these about one sample.

        Raises:
            UnsupportedEventError: no such release is known.
        """
        if count == 1:
            return self
        raise UnsupportedEventError(
            f"{count} releases of a {type(self).__name__} about one sample are not known to cost "
            f"what one release of some kind does: {self!r}."
        )

    def why_not_private(self) -> str | None:
        """Returns why epsilon is infinite, or None where it need not be."""
        return None

    def why_not_on(self, sampling: "Sampling") -> str | None:
        """Returns why such a release cannot be about a sample that was drawn so, or None."""
        return None

    def run_start(self) -> "Event | None":
        """Returns the first step of the run that this is a step of; None where steps stand alone.

        Steps of one run cost, together, what the run costs.
        """
        return None

    def step_of_run(self) -> int | None:
        """Returns which step of its run this is; None where steps stand alone."""
        return None

    def run_ids(self) -> tuple[int, ...]:
        """Returns the numbers that name the run; none where steps stand alone."""
        return ()

    def line(self) -> str:
        """Returns what the command line prints."""
        return f"release: {self!r}"


class Sampling:
    """Base of the descriptions of how a step's sample was drawn from the population.

    A description is a frozen dataclass that is decorated with `tfdp.events.register`; as with
    events, only its price is elsewhere (`tfdp.accounting.sampling_rules`).

    Attributes:
        words: What a report says of the samples.
        field_words: As those of an event.
        is_declared: Whether somebody said how samples were drawn.
        is_random: Whether the price may use that samples were drawn at random, and in secret.
        takes_whole_parts: Whether a sample is all of the part of the data whose turn it is, which
            stays the same.
    """

    words: ClassVar[str]
    field_words: ClassVar[Mapping[str, str]] = {}
    is_declared: ClassVar[bool] = True
    is_random: ClassVar[bool] = True
    takes_whole_parts: ClassVar[bool] = False

    @property
    def pass_number(self) -> int:
        """Which pass over the data the step belongs to, or -1 where there are no passes."""
        return -1

    @property
    def place(self) -> tuple[int, int] | None:
        """Which of how many parts of the data, that follow each other in a fixed order, the step is
        about; None where there is no such order.
        """
        return None

    @property
    def separation(self) -> tuple[int, int] | None:
        """How many steps lie between two that have one unit, at least, and of how many steps a pass
        is in which that is so; None where nothing sees to it.
        """
        return None

    def at_first_place(self) -> "Sampling":
        """Returns the description of a step about the first part; itself where there is none."""
        return self

    def in_pass(self, number: int) -> "Sampling":
        """Returns the description of such a step in another pass; itself where there is none."""
        return self
