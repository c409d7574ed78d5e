"""Mutants of sums of integers and their noise."""

from tests.mutation.mutant import QUERY, in_folder

INTEGERS = in_folder(
    "query",
    (
        "integer_norm_in_floating_point",
        "the norm of integers is bounded up to rounding",
        "integer_sums.py",
        "math.floor(Fraction(l2_norm_bound) ** 2))",
        "math.ceil(Fraction(l2_norm_bound) ** 2 * (1 + Fraction(1, 2**40))))",
        f"{QUERY}/integer_sums_test.py::test_bound_is_checked_exactly",
    ),
    (
        "long_integers_under_xla",
        "where XLA drops the check, a record of any size counts",
        "integer_sums.py",
        "lambda leaf: tf.where(holds, leaf, tf.zeros_like(leaf)), record",
        "lambda leaf: tf.where(holds, leaf, leaf), record",
        f"{QUERY}/integer_sums_test.py::test_bound_is_checked_exactly",
    ),
    (
        "integer_noise_of_the_stddev",
        "integer noise has the standard deviation for a variance",
        "integer_sums.py",
        "source_of(self), Fraction(self.stddev) ** 2",
        "source_of(self), Fraction(self.stddev)",
        f"{QUERY}/integer_sums_test.py::test_noise_is_that_of_the_event",
    ),
    (
        "integers_replaced_on_a_sample",
        "a unit that is replaced in a Poisson sample moves a sum of integers by one unit only",
        "tfdp/accounting/amplification.py",
        "return Concentrated(4 * mechanism.rho)",
        "return mechanism",
        "tests/accounting/integer_sums_test.py::test_samples_are_charged_as_the_whole",
    ),
)
