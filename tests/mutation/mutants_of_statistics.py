"""Mutants of counts, partitions, disjoint parts and statistics."""

from tests.mutation.mutant import ACCOUNTING, QUERY, in_folder

PARTITIONS, STATISTICS_TESTS = f"{QUERY}/partitions_test.py", "tests/statistics"

COUNTED = in_folder(
    "query",
    (
        "every_partition_of_a_record_counts",
        "a record counts in all of its partitions, not in the first max_partitions",
        "partitions.py",
        "tf.cumsum(found) <= self.max_partitions, found",
        "tf.cumsum(found) <= 2 * self.max_partitions, found",
        f"{PARTITIONS}::test_a_record_is_in_its_first_partitions_and_counts_as_one_in_each",
    ),
    (
        "selection_without_the_second_inequality",
        "partitions are kept as if only what is kept mattered, and not what is dropped",
        "partitions.py",
        "one - _up(shrink[1] * rest[0], bits), one))",
        "one, one))",
        PARTITIONS,
    ),
    (
        "empty_partition_is_released",
        "a partition without records is released where its noise is above the threshold",
        "partitions.py",
        "kept = (counts > 0) & (steps >= math.ceil(self.threshold / step))",
        "kept = steps >= math.ceil(self.threshold / step)",
        f"{PARTITIONS}::test_a_partition_without_records_is_never_released",
    ),
    (
        "threshold_one_lower",
        "the threshold is one lower than a lone record needs",
        "partitions.py",
        "return 1 + excess",
        "return excess",
        f"{PARTITIONS}::test_laplace_threshold_is_the_least_that_keeps_a_lone_record_secret",
    ),
    (
        "threshold_not_charged",
        "the delta of a threshold is not in the event",
        "partitions.py",
        "event = ComposedEvent((event, EpsilonDeltaEvent(0.0, self.threshold_delta)))",
        "event = ComposedEvent((event,))",
        f"{PARTITIONS}::test_events",
    ),
    (
        "tree_clips_the_leaves",
        "a record's leaves are clipped, and not its whole tree",
        "tree_range.py",
        "return self.inner_query.preprocess_record(params[1], tf.concat(levels, axis=0))",
        "levels[-1] = self.inner_query.preprocess_record(params[1], levels[-1])\n"
        "        return tf.concat(levels, axis=0)",
        f"{QUERY}/tree_range_test.py::test_a_record_moves_all_levels_together_by_at_most_the_bound",
    ),
)

PARTS = in_folder(
    "accounting",
    (
        "delta_of_a_release_is_forgotten",
        "the delta of an (epsilon, delta)-private release is not taken from that of the answer",
        "accountant.py",
        "if delta - lost < _SMALLEST_DELTA:",
        "lost = 0.0\n        if delta - lost < _SMALLEST_DELTA:",
        f"{ACCOUNTING}/accountant_test.py::test_delta_of_a_release_goes_into_delta",
    ),
    (
        "replaced_delta_counts_once",
        "under replace-one the delta of a release counts once, not 1 + e^epsilon times",
        "normal_form.py",
        "2 if relation is _REPLACE else 1",
        "1",
        f"{ACCOUNTING}/accountant_test.py::test_delta_of_a_release_goes_into_delta",
    ),
    (
        "cheapest_part",
        "releases about disjoint parts cost what the cheapest of them costs",
        "parallel.py",
        "worst.append(max((m for m in rank if m is not None), key=cost))",
        "worst.append(min((m for m in rank if m is not None), key=cost))",
        f"{ACCOUNTING}/parallel_test.py::test_worst_of_parts",
    ),
    (
        "parts_under_replace_one",
        "disjoint parts are priced under replace-one, where a unit can move between two",
        "normal_form.py",
        "if relation is _REPLACE or factors != (1.0,):",
        "if False:",
        f"{ACCOUNTING}/parallel_test.py",
    ),
    (
        "parts_fail_once",
        "of the deltas of disjoint parts the smallest counts",
        "normal_form.py",
        "lost += max(_lost(_leaves(part), factors, relation) for part in leaf.events)",
        "lost += min(_lost(_leaves(part), factors, relation) for part in leaf.events)",
        f"{ACCOUNTING}/parallel_test.py",
    ),
    (
        "budget_looks_back_only",
        "a budget is compared with what was spent, without what comes next",
        "planning/budget.py",
        "cost = self._cost(ledger, event)",
        "cost = self._cost(ledger, None)",
        f"{STATISTICS_TESTS}/private_data_test.py::test_the_budget_refuses_what_it_does_not_cover_and_charges_nothing_for_it",
    ),
)

ASKED = in_folder(
    "statistics",
    (
        "groups_as_one_sample",
        "a question about groups is charged as one about everything, or the other way round",
        "account.py",
        "elif groups is not None:",
        "elif groups is None:",
        f"{STATISTICS_TESTS}/private_data_test.py::test_events_are_those_of_the_questions",
    ),
    (
        "mean_at_half_price",
        "sum and count of a mean each get all of epsilon, and are charged half",
        "column.py",
        "sums = self._noised(each, steps)",
        "sums = self._noised(Noise.of(epsilon, noise_multiplier), steps)",
        f"{STATISTICS_TESTS}/private_data_test.py::test_noise_of_answers_is_that_of_their_events",
    ),
    (
        "sum_of_the_width",
        "the sum is noised for the width of the range, not for its larger bound",
        "column.py",
        "bound = max(abs(low), abs(high))",
        "bound = (high - low) / 2",
        f"{STATISTICS_TESTS}/private_data_test.py::test_noise_of_answers_is_that_of_their_events",
    ),
    (
        "infinite_value_is_clipped",
        "an infinite value counts as the largest",
        "table.py",
        "return np.where(np.isfinite(found), found, np.nan)",
        "return found",
        f"{STATISTICS_TESTS}/table_test.py::test_what_is_not_finite_is_missing",
    ),
    (
        "keys_as_the_first_row_writes_them",
        "a key that is selected is written as the row wrote it that came first",
        "table.py",
        "if type(value) is bool or (type(value) is float and value.is_integer()):",
        "if False:",
        f"{STATISTICS_TESTS}/table_test.py::test_equal_values_are_one_key_that_is_written_in_one_way",
    ),
    (
        "keys_in_the_order_of_rows",
        "the order of selected keys is that in which rows come",
        "table.py",
        "return sorted(found, key=lambda key: (type(key).__name__, repr(key)))",
        "return list(dict.fromkeys(k for k in map(key_of, column) if k is not None))",
        f"{STATISTICS_TESTS}/table_test.py::test_order_of_keys_does_not_follow_the_rows",
    ),
    (
        "selection_of_features_charged_once",
        "several selections are charged as one",
        "features.py",
        "account.charge(ComposedEvent((query.derive_event(()),) * number), None)",
        "account.charge(query.derive_event(()), None)",
        f"{STATISTICS_TESTS}/features_test.py::test_features_that_explain_the_target_are_selected",
    ),
    (
        "rows_not_clipped",
        "rows of a scatter matrix are not clipped to a norm",
        "features.py",
        "rows = rows / np.maximum(norms, 1.0) * (1 - _ROUNDING)",
        "rows = rows * (1 - _ROUNDING)",
        f"{STATISTICS_TESTS}/features_test.py::test_a_row_moves_the_scatter_matrix_by_at_most_one",
    ),
)
