"""Which noise remembers what: factorizations of the matrix of running sums, and what they cost.

Needs NumPy and SciPy only, and imports nothing else of tfdp.
"""

from tfdp.factorizations.binary_tree import BinaryTree
from tfdp.factorizations.optimal import (
    optimal_banded,
    optimal_buffered,
    optimal_one_step_back,
)
from tfdp.factorizations.toeplitz import (
    ToeplitzFactorization,
    banded_inverse_square_root,
    banded_square_root,
    independent,
    one_step_back,
)

__all__ = [
    "BinaryTree",
    "ToeplitzFactorization",
    "banded_inverse_square_root",
    "banded_square_root",
    "independent",
    "one_step_back",
    "optimal_banded",
    "optimal_buffered",
    "optimal_one_step_back",
]
