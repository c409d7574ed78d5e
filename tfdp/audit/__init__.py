"""Lower bounds on what a mechanism costs, and attacks on what it trained. No TensorFlow."""

from tfdp.audit.f_privacy import mu_lower_bound_of_guesses
from tfdp.audit.guesses import correct_guesses
from tfdp.audit.membership import Attack, attack, attack_slices
from tfdp.audit.one_run import epsilon_lower_bound_of_guesses
from tfdp.audit.order_statistics import (
    mu_lower_bound_of_independent_guesses,
    p_value_of_independent_guesses,
)
from tfdp.audit.predictions import membership_scores
from tfdp.audit.reference_attacks import lira, rmia
from tfdp.audit.scores import epsilon_lower_bound, mu_lower_bound
from tfdp.audit.shadows import Shadows, shadow_models
from tfdp.audit.trained import attacker_features, trained_scores

__all__ = [
    "Attack",
    "Shadows",
    "attack",
    "attack_slices",
    "attacker_features",
    "correct_guesses",
    "epsilon_lower_bound",
    "epsilon_lower_bound_of_guesses",
    "lira",
    "membership_scores",
    "mu_lower_bound",
    "mu_lower_bound_of_guesses",
    "mu_lower_bound_of_independent_guesses",
    "p_value_of_independent_guesses",
    "rmia",
    "shadow_models",
    "trained_scores",
]
