"""Where a test of something is: every module has the mirrored test file, tests/a/b_test.py."""

import pathlib

import tfdp

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = pathlib.Path(tfdp.__file__).parent

# Modules without a file of tests of their own, and why.
WITHOUT = {
    "cli/budget.py": "Its arguments are tested where commands take them: cli/calibrate_test.py.",
    "cli/predictions.py": "cli/audit_test.py and report_test.py test what is read and attacked.",
    "federated/selective/charging.py": "private_uploads_test.py tests what is charged when.",
    "gradients/attached.py": "gradients/mixing_test.py tests masks and logits of records.",
    "gradients/engines/batched.py": "gradients/clipped_sum_test.py compares the engines.",
    "gradients/dependence.py": "gradients/integers_test.py tests what follows a record's integers.",
    "gradients/forms/convolution_layout.py": "forms/convolution_test.py tests it by its gradients.",
    "gradients/graphs.py": "gradients/integers_test.py tests it with the rewriting of graphs.",
    "gradients/indices.py": "gradients/integers_test.py tests it with the rewriting.",
    "gradients/plan.py": "gradients/explaining_test.py tests it by what explain says.",
    "gradients/record_wise_checks.py": "gradients/record_wise_operations_test.py has its tables.",
    "gradients/region.py": "gradients/blocks_test.py and own_weights_test.py test it by blocks.",
    "gradients/steps.py": "gradients/blocks_test.py and own_weights_test.py test it by blocks.",
    "gradients/rewriting.py": "gradients/integers_test.py tests it with the indices.",
    "gradients/rules/recurrent_cells.py": "rules/recurrent_loop_test.py takes every cell's steps.",
    "gradients/static_values.py": "gradients/record_wise_operations_test.py tests it by shapes.",
    "gradients/watching.py": "gradients/recording_test.py and mixing_test.py test it by models.",
    "keras/carrying.py": "keras/weights_and_ledgers_test.py goes through all cases.",
    "keras/charges.py": "keras/weights_and_ledgers_test.py goes through all cases.",
    "keras/distributed_data.py": "keras/distribution_test.py tests it with what draws from it.",
    "keras/errors.py": "It holds classes of errors only.",
    "keras/fit_callbacks.py": "keras/sampling_of_steps_test.py tests whose step is whose.",
    "keras/inputs.py": "keras/bad_input_test.py tests it by what fit and train_on_batch say.",
    "keras/released.py": "private_metrics_test.py and batch_statistics_test.py test what it joins.",
    "keras/summed_step.py": "federated/server_test.py tests it by rounds of a server.",
    "ledger/errors.py": "It holds classes of errors only.",
    "migration.py": "keras/migration_test.py tests it with what users wrote.",
    "noise/host_calls.py": "noise/source_test.py and stage_test.py test it by draws.",
    "statistics/account.py": "statistics/private_data_test.py tests what is charged when.",
    "statistics/column.py": "statistics/private_data_test.py asks through the data.",
    "query/arguments.py": "query/bad_input_test.py tests it by what queries say.",
    "query/sparse_rows.py": "query/sparse_embedding_test.py tests it with the query of such sums.",
    "query/exact.py": "query/gaussian_test.py tests both precisions together.",
    "query/parts.py": "query/layers_test.py and query/arranged_test.py test the parts.",
    "query/scores.py": "query/selection_test.py and above_threshold_test.py test scores.",
    "sampling/cyclic_poisson.py": "sampling/fixed_order_test.py tests both orders.",
    "sampling/known_size.py": "sampling/policy_test.py tests what policies share.",
}
# Files in the folders of tests that are about several modules, and what they are about.
ABOUT_SEVERAL = {
    "accounting/base_accountant_test.py": "what every accountant inherits",
    "accounting/sampled_steps_test.py": "what every accountant makes of samplings and relations",
    "accounting/tf_privacy_values_test.py": "epsilons that TensorFlow Privacy publishes",
    "accounting/support_table_test.py": "docs/accounting.md against all accountants",
    "audit/fit_audit_test.py": "what fit releases against what its ledger claims",
    "audit/mechanisms_audit_test.py": "what every query releases against what its event claims",
    "audit/private_parts_test.py": "what steps release beside gradients against their ledgers",
    "audit/users_audit_test.py": "what fit releases of users against what its ledger claims",
    "cli/every_command_test.py": "what every command has, found by its parser",
    "cli/ledger_files_test.py": "files that every command reads",
    "cli/main_test.py": "the command line as a whole",
    "cli/options_test.py": "options that several commands share",
    "factorizations/published_values_test.py": "errors that others publish",
    "federated/answers_test.py": "which answers to a round count, once each",
    "federated/queries_test.py": "every query within rounds",
    "federated/supernodes_test.py": "rounds on processes of Flower, honest and not",
    "gradients/added_losses_test.py": "losses that layers add, in what runs on the batch",
    "gradients/axes_test.py": "operations along axes, in what is vectorized",
    "gradients/bad_input_test.py": "arguments of a step, of every entry",
    "gradients/rows_in_blocks_test.py": "layers in blocks that are called on rows of records",
    "gradients/blocks_of_layers_test.py": "layers of every kind within blocks",
    "gradients/called_on_test.py": "layers of every rule on fewer axes than usual",
    "gradients/clip_bound_test.py": "the bound of a clipped record, for every form and engine",
    "gradients/engines/random_architectures_test.py": "layers of every rule, put together",
    "gradients/ignored_weights_test.py": "weights that a loss ignores, by every engine",
    "gradients/integers_test.py": "integers of records in indices and their rewriting",
    "gradients/mixing_test.py": "code of one's own in layers of every rule",
    "gradients/places_in_blocks_test.py": "places that records name in a block's own code",
    "gradients/returned_variables_test.py": "weights that layers return, by every engine",
    "gradients/same_for_all_records_test.py": "one row for all records, in blocks and layers",
    "gradients/rounded_products_test.py": "rounding of products in every form",
    "keras/correlated_noise_test.py": "runs of correlated noise, from fit to the ledger",
    "keras/adaptive_clip_test.py": "clips that change, from fit to the query",
    "keras/bad_input_test.py": "data of fit and of train_on_batch",
    "keras/checkpoint_test.py": "weights, optimizer and ledger together",
    "keras/durable_training_test.py": "fit on a ledger on the disk",
    "keras/epsilon_logger_test.py": "one of the callbacks, with fit",
    "keras/every_query_test.py": "every query in a nested one, from fit to the ledger",
    "keras/exact_precision_test.py": "exact precision, from fit to the query",
    "keras/hub_layers_test.py": "layers of KerasHub in the book-keeping engine",
    "keras/hub_tasks_test.py": "task models of KerasHub, trained and saved",
    "keras/lifetime_test.py": "how long models, optimizers and weights last",
    "keras/losses_test.py": "records of every loss of Keras",
    "keras/migration_test.py": "names of TensorFlow Privacy in all packages",
    "keras/averaging_test.py": "averages of weights, in training, evaluation, prediction and files",
    "keras/relation_test.py": "the neighbouring relation of a whole run",
    "keras/shown_metrics_test.py": "private metrics, from fit to what anybody can read",
    "keras/source_of_fit_test.py": "sources of examples, from fit to the ledger",
    "keras/steering_test.py": "callbacks of Keras, with fit",
    "keras/threads_test.py": "threads on one optimizer, model or ledger",
    "keras/two_optimizers_test.py": "a private and a plain optimizer in one step",
    "keras/tf_privacy_values_test.py": "published values, by the constructors of optimizers",
    "keras/tuner_test.py": "searches of KerasTuner over private models",
    "keras/users_test.py": "users as records, from fit to the ledger",
    "keras/weighted_records_test.py": "weights of records, from fit to the query",
    "keras/weights_and_ledgers_test.py": "weights, their files and their ledgers together",
    "ledger/fuzz_test.py": "every reader of text",
    "ledger/golden_events_test.py": "stored events of every kind",
    "ledger/golden_test.py": "stored ledgers and every accountant",
    "ledger/interrupted_test.py": "all of storage, cut short",
    "ledger/places_test.py": "places in ledgers and their copies on the disk",
    "ledger/saved_files_test.py": "files of ledgers in memory, saved and loaded",
    "ledger/several_writers_test.py": "several processes on one ledger",
    "ledger/sql_edits_test.py": "all of storage, edited",
    "query/bad_input_test.py": "arguments of every query",
    "query/conformance_test.py": "what every query promises",
    "query/counting_conformance_test.py": "what queries that count or select promise",
    "query/every_query_test.py": "all queries against suites, mutants, texts and accountants",
    "query/sensitivity_test.py": "sensitivity and noise of every query",
    "query/tf_privacy_values_test.py": "published values of every query",
    "report/chromium_test.py": "a whole report in a browser",
}
# Folders of tests that mirror no package.
OF_THEIR_OWN = {"fuzz", "mutation", "traps"}


def _modules():
    names = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
    return {name for name in names if name.name not in ("__init__.py", "__main__.py")}


def _tests():
    names = (path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("*_test.py"))
    return {name for name in names if len(name.parts) > 1 and name.parts[0] not in OF_THEIR_OWN}


def _test_of(module):
    return module.with_name(f"{module.stem}_test.py")


def test_every_module_has_its_tests():
    missing = {str(module) for module in _modules() if _test_of(module) not in _tests()}
    assert missing - WITHOUT.keys() == set(), "Write the test file, or say in WITHOUT why not."
    assert WITHOUT.keys() - missing == set(), "These need no exception any more."


def test_every_test_file_mirrors_a_module():
    mirrored = {_test_of(module) for module in _modules()}
    others = {str(test) for test in _tests() - mirrored}
    assert others - ABOUT_SEVERAL.keys() == set(), "Move it, or say what it is about."
    assert ABOUT_SEVERAL.keys() - others == set(), "These need no exception any more."
