"""Plain words for what a ledger names."""

from tfdp.events import NeighboringRelation

_UNITS = {
    "example": ("one example", "a record of the training data"),
    "microbatch": ("one microbatch", "a fixed group of examples that come and go together"),
    "user": ("one user", "all that a single person or client contributed"),
}

_DIFFER = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "differ in that one has {unit} more than the other",
    NeighboringRelation.REPLACE_ONE: "have the same size and differ in the value of {unit}",
    NeighboringRelation.ZERO_OUT: (
        "have the same size and differ in that {unit} is blanked out in one of them, so that it "
        "contributes nothing"
    ),
}
_SECRETS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "whether {unit} was in the data",
    NeighboringRelation.REPLACE_ONE: "which of two given values {unit} had",
    NeighboringRelation.ZERO_OUT: "whether {unit} was in the data or had been blanked out",
}
_ANSWERS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "it was in the data",
    NeighboringRelation.REPLACE_ONE: "it was the first value",
    NeighboringRelation.ZERO_OUT: "it was in the data",
}


def unit_name(unit: str | None) -> str:
    """Returns "one example" and the like."""
    if unit is None:
        return "one unit"
    return _UNITS[unit][0] if unit in _UNITS else f"one {unit}"


def unit_meaning(unit: str | None) -> str:
    """Returns what a unit is, as far as the ledger says."""
    if unit is None:
        return "the ledger does not say what a unit is"
    return _UNITS[unit][1] if unit in _UNITS else "as the ledger names it"


def how_neighbours_differ(relation: NeighboringRelation, unit: str | None) -> str:
    """Returns what two data sets do that the guarantee compares: "differ in that" and so on."""
    return _DIFFER[relation].format(unit=unit_name(unit))


def the_secret(relation: NeighboringRelation, unit: str | None) -> str:
    """Returns what a membership attacker wants to know."""
    return _SECRETS[relation].format(unit=unit_name(unit).replace("one ", "a given ", 1))


def the_answer(relation: NeighboringRelation) -> str:
    """Returns the answer that counts as positive."""
    return _ANSWERS[relation]
