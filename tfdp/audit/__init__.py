"""Lower bounds on what a mechanism costs, and attacks on what it trained.

None of it loads TensorFlow, but for names that need Keras, which are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfdp.audit.canaries import (
    PlantedRecords,
    fair_coins,
    mislabelled_canaries,
    sampled_gaussian_scores,
    scores_of_runs,
)
from tfdp.audit.exposure import (
    Exposure,
    exact_exposure,
    extrapolated_exposure,
    log_perplexities,
    random_secrets,
    skew_normal_p_value,
)
from tfdp.audit.f_privacy import mu_lower_bound_of_guesses
from tfdp.audit.guesses import correct_guesses
from tfdp.audit.membership import Attack, attack, attack_slices
from tfdp.audit.one_run import epsilon_lower_bound_of_guesses
from tfdp.audit.order_statistics import (
    mu_lower_bound_of_independent_guesses,
    p_value_of_independent_guesses,
    sensitivity_factor_lower_bound,
)
from tfdp.audit.predictions import membership_scores
from tfdp.audit.reference_attacks import lira, rmia
from tfdp.audit.scores import epsilon_lower_bound, mu_lower_bound
from tfdp.audit.shadows import Shadows, shadow_models
from tfdp.audit.trained import attacker_features, trained_scores

if TYPE_CHECKING:
    from tfdp.audit.callback import MembershipAttack as MembershipAttack
    from tfdp.audit.gradient_canaries import CanarySums as CanarySums
    from tfdp.audit.gradient_canaries import GradientCanaries as GradientCanaries

_NAMES = {
    "CanarySums": "tfdp.audit.gradient_canaries",
    "GradientCanaries": "tfdp.audit.gradient_canaries",
    "MembershipAttack": "tfdp.audit.callback",
}

__all__ = [
    "Attack",
    "CanarySums",
    "Exposure",
    "GradientCanaries",
    "MembershipAttack",
    "PlantedRecords",
    "Shadows",
    "attack",
    "attack_slices",
    "attacker_features",
    "correct_guesses",
    "epsilon_lower_bound",
    "epsilon_lower_bound_of_guesses",
    "exact_exposure",
    "extrapolated_exposure",
    "fair_coins",
    "lira",
    "log_perplexities",
    "membership_scores",
    "mislabelled_canaries",
    "mu_lower_bound",
    "mu_lower_bound_of_guesses",
    "mu_lower_bound_of_independent_guesses",
    "p_value_of_independent_guesses",
    "random_secrets",
    "rmia",
    "sampled_gaussian_scores",
    "scores_of_runs",
    "sensitivity_factor_lower_bound",
    "shadow_models",
    "skew_normal_p_value",
    "trained_scores",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'tfdp.audit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
