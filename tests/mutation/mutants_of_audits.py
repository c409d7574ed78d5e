"""Mutants of audits: bounds that a mechanism exceeds more often than stated."""

from tests.mutation.mutant import in_folder

AUDITS = in_folder(
    "audit",
    (
        "equal_scores_keep_the_order",
        "equal scores are guessed in the order of the canaries, which may know the coins",
        "guesses.py",
        "np.lexsort((lots, scores))",
        "np.argsort(scores, kind='stable')",
        "tests/audit/guesses_test.py::test_equal_scores_are_guessed_by_lot",
    ),
    (
        "order_statistic_of_the_last_guess",
        "guesses are as sure as beyond the last of them, not as beyond the first that is left out",
        "order_statistics.py",
        "special.betaincinv(guesses + 1, canaries - guesses, points)",
        "special.betaincinv(guesses, canaries - guesses + 1, points)",
        "tests/audit/order_statistics_test.py::test_two_canaries_and_one_guess_by_integration",
    ),
    (
        "surplus_of_the_wrong_count",
        "the recursion over right guesses is one off",
        "f_privacy.py",
        "right += i / (guesses - i) * (demanded - wrong)",
        "right += (i + 1) / (guesses - i) * (demanded - wrong)",
        "tests/audit/f_privacy_test.py::test_numbers_of_published_code",
    ),
    (
        "threshold_chosen_for_nothing",
        "the best of all thresholds is held against a claim as if it had not been chosen",
        "membership.py",
        "excess = tpr[shown] - below - allowed",
        "excess = tpr[shown] - allowed",
        "tests/audit/membership_test.py::"
        "test_attack_that_is_just_at_the_claim_is_flagged_no_more_often_than_stated",
    ),
    (
        "rates_of_one_kind_are_certain",
        "the two bounds of a comparison are each as unsure as both together may be",
        "membership.py",
        "/ attacks / (2 * (1 + len(self.true_positive_rates)))",
        "/ attacks / (1 + len(self.true_positive_rates))",
        "tests/audit/membership_test.py::test_band_is_as_wide_as_it_has_to_be_and_hardly_wider",
    ),
    (
        "small_rates_only",
        "an attack is held against a claim at small false positive rates only",
        "membership.py",
        "said = self._above_at_some_threshold(true_positive_rate, error)",
        "said: list[str] = []",
        "tests/audit/membership_test.py::"
        "test_advantage_above_the_claim_is_flagged_where_small_rates_show_nothing",
    ),
    (
        "attacks_judged_alone",
        "every attack of a report may be named wrongly as often as all together may be",
        "membership.py",
        "error = (1 - self.confidence) / attacks /",
        "error = (1 - self.confidence) /",
        "tests/audit/membership_test.py::"
        "test_judging_many_attacks_together_takes_more_to_flag_each",
    ),
)
