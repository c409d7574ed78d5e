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
        "rounding_without_condition",
        "integers of a rounded record may be longer than their bound",
        "encoding.py",
        "    return tf.where(is_within(rounded), rounded, tf.cast(vector, tf.int64))",
        "    return rounded",
        f"{QUERY}/encoding_test.py::test_what_rounding_returns_is_always_within_the_bound",
    ),
    (
        "rounding_biased",
        "rounding goes up too rarely",
        "encoding.py",
        "tf.cast(uniform < rest, tf.int64)",
        "tf.cast(uniform < rest * rest, tf.int64)",
        f"{QUERY}/encoding_test.py::test_rounding_has_no_bias_and_no_other_values",
    ),
    (
        "signs_that_stay",
        "records are rotated in the same way in every step",
        "encoding.py",
        "tf.cast(step, tf.int64)])",
        "tf.zeros([], tf.int64)])",
        f"{QUERY}/encoding_test.py::test_signs_are_the_same_everywhere_and_new_in_every_step",
    ),
    (
        "records_sent_in_full",
        "what is sent to a secure sum has more bits than its modulus",
        "discretized.py",
        "return state._replace(sum=encoding.wrap(state.sum, self.modulus_bits))",
        "return state",
        f"{QUERY}/discretized_test.py::test_modular_sum_is_the_sum_in_the_modulus",
    ),
    (
        "share_lost_with_a_broken_record",
        "a record that is not finite takes its share of the noise away",
        "tfdp/gradients/engines/loop.py",
        "        is_real if query.every_record_counts else is_real & is_finite(record),",
        "        is_real & is_finite(record),",
        f"{QUERY}/discretized_test.py::test_masked_rows_bring_no_share",
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
