"""Mutants of sums of integers and their noise."""

from tests.mutation.mutant import ACCOUNTING, QUERY, in_folder

PRICE = f"{ACCOUNTING}/integer_sums_test.py"


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
        "too_few_shares",
        "a sum is released of fewer shares of noise than are charged for",
        "distributed.py",
        "enough = sample_state.contributors >= self.min_contributors",
        "enough = sample_state.contributors >= 0",
        f"{QUERY}/distributed_test.py::test_nothing_is_released_of_fewer_than_are_charged_for",
    ),
    (
        "shares_come_or_go",
        "a record that is removed is taken to leave its noise behind",
        "tfdp/accounting/integer_sums.py",
        "if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:",
        "if relation is None:",
        f"{PRICE}::test_records_that_take_their_noise_with_them_have_no_price",
    ),
    (
        "shares_are_one_gaussian",
        "the sum of discrete Gaussians is taken for a discrete Gaussian",
        "tfdp/accounting/integer_sums.py",
        "        width = interval_of_shares(event.share_stddev, count)",
        "        width = 0.0",
        f"{PRICE}::test_price_of_shares_is_above_the_divergence",
    ),
    (
        "shares_of_a_container_forgotten",
        "a query in a nested one loses the noise of records that are not finite",
        "nested.py",
        "return any(query.every_record_counts for query in self._flat_queries)",
        "return all(query.every_record_counts for query in self._flat_queries)",
        f"{QUERY}/distributed_test.py::test_all_that_hold_a_query_say_that_every_record_counts",
    ),
    (
        "integers_replaced_on_a_sample",
        "a unit that is replaced in a Poisson sample moves a sum of integers by one unit only",
        "tfdp/accounting/amplification.py",
        "return Concentrated(4 * mechanism.rho)",
        "return mechanism",
        f"{PRICE}::test_samples_are_charged_as_the_whole",
    ),
)
