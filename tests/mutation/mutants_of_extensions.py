"""Mutants of what other packages register: events, prices and accountants."""

from tests.mutation.mutant import ACCOUNTING, LEDGER, in_folder

EXTENSIONS = in_folder(
    "accounting",
    (
        "price_of_others_unnamed",
        "no report says that a price is not tfdp's",
        "prices_of_others.py",
        "return found | sampling_rules_of_others(event)",
        "return sampling_rules_of_others(event)",
        f"{ACCOUNTING}/prices_of_others_test.py",
    ),
    (
        "price_of_others_unchecked",
        "a price that is no number, or negative, is taken from another package",
        "prices_of_others.py",
        "return _checked(price(event, factor, relation), event)",
        "return price(event, factor, relation)",
        f"{ACCOUNTING}/prices_of_others_test.py",
    ),
    (
        "price_of_ours_replaced",
        "another package gives an event of tfdp another price",
        "prices_of_others.py",
        "if is_ours(event_class) or owner not in (None, str(price.__module__)):",
        "if False:",
        f"{ACCOUNTING}/prices_of_others_test.py",
    ),
    (
        "discrete_releases_are_one",
        "so many releases of discrete noise fail as rarely as one",
        "tfdp/events/base.py",
        "        if count == 1:\n            return self\n",
        "        if count:\n            return self\n",
        "tests/events/step_test.py",
    ),
    (
        "texts_turn_a_report_around",
        "what a ledger calls its data turns around the numbers that follow in a report",
        "tfdp/report/render.py",
        "_environment(autoescape=True, finalize=visible)",
        "_environment(autoescape=True)",
        "tests/report/render_test.py::test_what_a_ledger_says_does_not_turn_around_what_follows",
    ),
    (
        "report_rests_on_others",
        "the epsilon of a report is by an accountant of another package",
        "tfdp/report/costs.py",
        "return isinstance(accountant, Accountant) and is_ours(type(accountant))",
        "return isinstance(accountant, Accountant)",
        "tests/extending_test.py",
    ),
    (
        "stored_and_never_read",
        "a ledger stores what it cannot give back",
        "tfdp/ledger/codec.py",
        "if not registry.is_ours(type(value)):",
        "if False:",
        f"{LEDGER}/codec_test.py",
    ),
    (
        "any_field_is_registered",
        "an event with a field that no ledger can store is registered",
        "tfdp/events/registry.py",
        "if annotation not in FIELD_TYPES:",
        "if False:",
        "tests/events/registry_test.py",
    ),
    (
        "file_of_another_history_is_continued",
        "a ledger is saved over one that holds steps which it lacks",
        "tfdp/ledger/continuation.py",
        "and last.count <= whole[before].count",
        "and True",
        f"{LEDGER}/continuation_test.py",
    ),
)
