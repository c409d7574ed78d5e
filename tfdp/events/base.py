"""What every event and every sampling is, and the relations under which they are read."""

import enum


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
    """Base of everything a ledger can hold."""


class Sampling:
    """Base of the descriptions of how a step's sample was drawn from the population."""
