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

SAMPLINGS = {
    "FixedSizeSampling": "a set of fixed size, drawn anew at random for every step",
    "FullBatchSampling": "all of the data in every step",
    "PoissonSampling": "every unit independently, with the same probability in every step",
    "ShuffledSampling": "consecutive batches of the shuffled data, each unit once a pass",
    "TruncatedPoissonSampling": (
        "every unit independently with the same probability; of a sample that is too large, a "
        "random part"
    ),
    "UnknownSampling": "not declared",
}
RELEASES = {
    "DiscreteGaussianSumEvent": "sum on a grid with exact (discrete Gaussian) noise",
    "ExponentialMechanismEvent": "choice by the exponential mechanism",
    "GaussianSumEvent": "sum with Gaussian noise",
    "LaplaceSumEvent": "sum with Laplace noise",
    "NonPrivateEvent": "release without protection",
    "PureEpsilonEvent": "release declared to be epsilon-differentially private",
    "RandomizedResponseEvent": "randomized reports of single units",
}
# Field names of events and samplings, as they are shown.
FIELDS = {
    "batch_size": "batch size",
    "epsilon": "ε",
    "granularity": "distance of the grid",
    "l1_norm_bound": "l1 norm bound S",
    "l2_norm_bound": "l2 norm bound S",
    "max_coordinates": "coordinates, at most",
    "max_sample_size": "largest sample",
    "noise_parameter": "probability of a random report",
    "noise_scale": "noise scale b",
    "noise_stddev": "noise standard deviation σ",
    "num_buckets": "possible reports",
    "population_size": "population",
    "sample_size": "sample size",
    "sampling_probability": "probability q",
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
