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
)
