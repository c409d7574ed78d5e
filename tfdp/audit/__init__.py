"""Lower bounds on what a mechanism costs, from what is seen of it. NumPy and SciPy only."""

from tfdp.audit.one_run import epsilon_lower_bound_of_guesses
from tfdp.audit.scores import epsilon_lower_bound, mu_lower_bound

__all__ = [
    "epsilon_lower_bound",
    "epsilon_lower_bound_of_guesses",
    "mu_lower_bound",
]
