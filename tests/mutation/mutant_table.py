"""Ways to break the mechanism, each of which the test suite has to notice.

A mutant replaces a piece of source text, which must occur exactly once in its file. `tests` are
what is run against it: small, and enough.
"""

from tests.mutation.mutants_of_audits import AUDITS
from tests.mutation.mutants_of_blocks import BLOCKS
from tests.mutation.mutants_of_books import BOOKS, PRICES
from tests.mutation.mutants_of_disk import DISK
from tests.mutation.mutants_of_extensions import EXTENSIONS
from tests.mutation.mutants_of_factors import FACTORS
from tests.mutation.mutants_of_federated import ROUNDS, SUMMED
from tests.mutation.mutants_of_integers import INTEGERS
from tests.mutation.mutants_of_mechanisms import ADAPTIVE, CORRELATED, PURE, RUNS, SELECTED
from tests.mutation.mutants_of_selective import SELECTIVE
from tests.mutation.mutants_of_statistics import ASKED, COUNTED, PARTS
from tests.mutation.mutants_of_steps import RANDOMNESS, TRAINING
from tests.mutation.mutants_of_sums import MECHANISM, SUMS

MUTANTS = [
    *MECHANISM,
    *ADAPTIVE,
    *CORRELATED,
    *INTEGERS,
    *PURE,
    *SELECTED,
    *RUNS,
    *FACTORS,
    *COUNTED,
    *PARTS,
    *ASKED,
    *SELECTIVE,
    *SUMS,
    *BLOCKS,
    *RANDOMNESS,
    *TRAINING,
    *ROUNDS,
    *SUMMED,
    *PRICES,
    *BOOKS,
    *DISK,
    *EXTENSIONS,
    *AUDITS,
]
