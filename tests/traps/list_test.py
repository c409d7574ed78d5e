"""The traps that libraries for differential privacy fell into, and the tests that show each."""

import ast
import pathlib

import pytest

from tests import named

NOISE = "tests/traps/noise_traps_test.py"
CLIPPING = "tests/traps/clipping_traps_test.py"
ACCOUNTING = "tests/traps/accounting_traps_test.py"
RECORDS = "tests/traps/record_traps_test.py"
STEERING = "tests/keras/steering_test.py"
STEPS = "tests/keras/sampling_of_steps_test.py"
INTEGERS = "tests/gradients/integers_test.py"
REPLICAS = "tests/keras/distribution_test.py"
WEIGHTS = "tests/keras/weights_and_ledgers_test.py"
WEIGHTS_FILE = "tests/keras/weights_file_test.py"
THREADS = "tests/keras/threads_test.py"

TRAPS = {
    "data change their length while samples are drawn from them": [
        "tests/sampling/source_test.py::test_length_must_stay",
        "tests/sampling/source_test.py::test_a_memory_map_whose_file_was_cut_does_not_end_the_process",
    ],
    "steps of one draw are composed as if they were drawn apart": [
        "tests/accounting/passes_test.py::test_least_noise_is_needed",
        "tests/keras/fit_data_test.py::test_an_epoch_of_random_allocation_is_whole_passes",
    ],
    "samples that are to be apart are drawn anew in the middle of a run": [
        "tests/keras/correlated_noise_test.py::test_a_run_on_samples_that_are_apart_is_not_taken_up_again",
        "tests/accounting/correlated_test.py::test_a_pass_that_was_left_and_taken_up_again_has_no_price",
    ],
    "rows of one user are clipped one by one, or shared out over records": [
        "tests/keras/users_test.py::test_a_user_moves_the_sum_by_at_most_the_bound",
        "tests/keras/users_test.py::test_other_gradient_and_other_bound_are_traced_anew",
        "tests/audit/users_audit_test.py::test_rows_clipped_one_by_one_cost_more_than_is_claimed",
    ],
    "a row of two users is taken for one of a third": [
        "tests/sampling/users_test.py::test_rows_of_several_users_are_no_single_users",
        "tests/sampling/owners_test.py::test_nobody_has_more_than_allowed_and_no_more_rows_would_do",
    ],
    "vectorizing puts records where an axis of theirs is counted from": [
        "tests/gradients/axes_test.py::test_every_axis",
        "tests/gradients/axes_test.py::test_a_record_does_not_reach_its_neighbour",
    ],
    "a block that runs on the batch mixes records, or counts them": [
        "tests/gradients/blocks_test.py::test_block_that_could_mix_records_runs_record_by_record",
        "tests/gradients/blocks_test.py::test_a_block_that_changes_its_mind_is_refused",
        "tests/gradients/record_wise_operations_test.py::test_refuses_what_could_mix_records",
    ],
    "the gradient of a weight that a block uses itself is lost, or another code's": [
        "tests/gradients/own_weights_test.py::test_own_weights_are_exact",
        "tests/gradients/own_weights_test.py::test_a_layer_that_uses_a_weight_of_its_block_is_refused",
        "tests/gradients/own_weights_test.py::test_a_block_that_changes_its_mind_is_refused",
    ],
    "a layer for images takes the records for the rows of one image": [
        "tests/gradients/rules/images_test.py::test_records_are_no_rows_of_one_image",
    ],
    "views of one record are clipped one by one": [
        "tests/keras/records_of_fit_test.py::test_an_example_moves_the_sum_by_at_most_the_bound_whatever_its_views",
        "tests/keras/records_of_fit_test.py::test_mean_gradient_of_views_is_clipped_once",
    ],
    "rows of one user are on several replicas": [
        "tests/keras/distribution_test.py::test_users_are_clipped_once_however_their_rows_are_split",
    ],
    "the size of a padded batch follows how many rows users have": [
        "tests/sampling/users_test.py::test_shape_of_a_batch_follows_no_users_rows",
    ],
    "event dropped": [f"{ACCOUNTING}::test_event_dropped"],
    "only rows of a table that records use get noise": [
        f"{NOISE}::test_rows_that_no_record_uses_have_no_noise",
        "tests/query/sparse_embedding_test.py::test_selection_has_the_distribution_of_comparing_every_row",
    ],
    "rows outside the chain take steps away": [
        "tests/ledger/sql_edits_test.py::test_edit_is_found",
        "tests/ledger/sql_edits_test.py::test_random_edits_are_found_or_cost_more",
    ],
    "noise of records that did not take part is counted": [
        "tests/query/distributed_test.py::test_nothing_is_released_of_fewer_than_are_charged_for",
        "tests/accounting/integer_sums_test.py::test_records_that_take_their_noise_with_them_have_no_price",
    ],
    "a log that is lost takes steps away": [
        "tests/ledger/interrupted_test.py::test_copy_without_what_is_beside_it_is_whole_after_every_commit",
        "tests/ledger/interrupted_test.py::test_write_ahead_log_is_refused_by_name",
    ],
    "a ledger with a key is read without it in silence": [
        "tests/cli/ledger_files_test.py::test_edited_noise_is_refused_with_the_key_and_said_without"
    ],
    "an accident to an export is a smaller epsilon": [
        "tests/ledger/fuzz_test.py::test_file_with_bytes_flipped_is_read_as_its_text_or_refused"
    ],
    "mistyped path begins an empty ledger": [
        "tests/ledger/durable_test.py::test_path_without_a_file_makes_none_unless_told_to"
    ],
    "budget overspent by one step": [f"{ACCOUNTING}::test_guard_of_a_budget_is_one_step_exact"],
    "a group that exists tells of its rows": [
        "tests/query/partitions_test.py::test_a_partition_without_records_is_never_released",
        "tests/statistics/table_test.py::test_order_of_keys_does_not_follow_the_rows",
        "tests/statistics/table_test.py::test_equal_values_are_one_key_that_is_written_in_one_way",
    ],
    "parallel composition where a record can move between parts": [
        "tests/accounting/parallel_test.py::test_price_is_that_of_all_neighbours_of_small_data",
        "tests/accounting/parallel_test.py::test_neighbours_that_differ_by_more_than_one_unit_are_refused",
    ],
    "an error message that depends on a value": [
        "tests/statistics/private_data_test.py::test_no_value_decides_what_is_refused",
        "tests/statistics/table_test.py::test_no_value_of_a_column_of_objects_is_an_error",
    ],
    "a client's update is trusted to be clipped, finite and of the model's form": [
        "tests/federated/queries_test.py::test_adversarial_client_moves_the_sum_of_any_query_by_at_most_its_bound",
        "tests/federated/answers_test.py::test_bad_update_is_the_same_as_no_answer",
    ],
    "clients that drop out change the denominator": [
        "tests/federated/server_test.py::test_round_is_the_clipped_average_over_the_fixed_denominator"
    ],
    "a round is charged after its release": [
        "tests/federated/server_test.py::test_the_ledger_holds_the_event_before_anybody_is_asked",
        "tests/federated/server_test.py::test_round_that_a_kill_interrupts_is_charged_and_never_released",
    ],
    "updates travel without TLS where others can listen": [
        "tests/federated/plain_connections_test.py::test_addresses_of_other_machines_need_tls",
        "tests/federated/plain_connections_test.py::test_what_listens_on_all_addresses_is_not_on_loopback",
    ],
    "an answer is taken for that of the client that it names": [
        "tests/federated/answers_test.py::test_an_answer_in_the_name_of_another_client_does_not_take_its_place",
    ],
    "noise in shares that did not come is charged for": [
        "tests/federated/secure_sum_test.py::test_a_sum_without_the_noise_that_is_charged_is_not_released",
        "tests/federated/queries_test.py::test_a_sum_with_fewer_shares_than_are_charged_for_is_not_released",
    ],
    "a late answer is added to another round": [
        "tests/federated/answers_test.py::test_late_answer_changes_nothing_and_is_not_added_to_the_next_round"
    ],
    "a client is in the sum of a round twice": [
        "tests/federated/answers_test.py::test_a_client_that_answers_in_two_threads_counts_once",
        "tests/federated/answers_test.py::test_only_one_round_is_open_so_that_no_client_is_in_a_sum_twice",
        "tests/federated/answers_test.py::test_answers_at_once_count_once_for_each_client",
    ],
    "budget spent again by compiling again": [
        f"{WEIGHTS}::test_a_budget_is_spent_once_however_often_a_model_is_compiled",
        f"{WEIGHTS}::test_an_optimizer_that_is_set_without_compile_continues_the_ledger",
        f"{WEIGHTS}::test_two_private_models_of_one_share_a_ledger",
    ],
    "weights without their ledger": [
        f"{WEIGHTS_FILE}::test_refused_load_changes_nothing",
        f"{WEIGHTS_FILE}::test_skipped_mismatch_does_not_skip_the_ledger",
        f"{WEIGHTS_FILE}::test_checkpoint_before_or_after_compile",
        f"{WEIGHTS_FILE}::test_own_model_file_brings_its_ledger_in_another_process",
        f"{WEIGHTS}::test_copied_values_bring_their_ledger",
    ],
    "private weights trained plainly": [
        f"{WEIGHTS}::test_weights_that_something_else_changed_are_noticed"
    ],
    "threads that share an optimizer": [
        f"{THREADS}::test_threads_on_one_optimizer_are_all_charged",
        f"{THREADS}::test_threads_on_one_ledger_lose_no_event",
    ],
    "noise per accumulation micro-step": [f"{NOISE}::test_noise_per_accumulation_micro_step"],
    "realised batch size as denominator": [f"{CLIPPING}::test_realised_batch_size_as_denominator"],
    "accountants beyond the digits of a float": [
        "tests/fuzz/extreme_events_test.py::test_extremes_are_bounded_or_refused",
        "tests/accounting/mechanisms_test.py::test_amplification_of_a_huge_epsilon",
    ],
    "integer int(N*q) expected size": [f"{CLIPPING}::test_integer_int_n_q_expected_size"],
    "Poisson accounting over shuffled batches": [
        f"{ACCOUNTING}::test_poisson_accounting_over_shuffled_batches",
        f"{ACCOUNTING}::test_batches_that_nobody_declared_are_not_amplified",
    ],
    "drop_last": [
        f"{ACCOUNTING}::test_drop_last",
        "tests/sampling/clock_test.py::test_declared_passes_are_never_fewer_than_there_were",
    ],
    "begun passes of several runs counted as one": [
        "tests/accounting/replay_test.py::test_begun_passes_of_different_ledgers_are_different_passes",
        "tests/accounting/replay_test.py::test_passes_of_ledgers_that_one_accountant_replays_are_different_passes",
        "tests/sampling/clock_test.py::test_clocks_on_one_ledger_share_no_pass",
    ],
    "a policy that holds for batches it did not draw": [
        f"{STEPS}::test_steps_during_fit_are_charged_as_what_they_are",
        f"{STEPS}::test_batches_that_cannot_be_samples_as_declared_are_refused",
    ],
    "the number of records protected and published": [
        "tests/keras/relation_test.py::test_a_blank_record_leaves_everything_but_the_sums",
        "tests/keras/relation_test.py::test_under_add_or_remove_what_follows_the_number_of_records_is_refused",
    ],
    "empty samples skipped": [
        f"{NOISE}::test_empty_samples_skipped",
        f"{NOISE}::test_empty_sample_in_a_custom_loop",
        f"{CLIPPING}::test_empty_samples_are_steps",
    ],
    "NaN passes the clip": [
        f"{CLIPPING}::test_nan_passes_the_clip",
        f"{CLIPPING}::test_nan_in_one_variable_drops_the_record_from_every_group",
    ],
    "record broadcast over the sum": [
        "tests/query/bad_input_test.py::test_record_of_another_shape_is_not_repeated"
    ],
    "integers of one record reach into another": [
        f"{INTEGERS}::test_ids_and_labels_out_of_range",
        f"{INTEGERS}::test_places_that_do_not_exist_make_a_record_contribute_nothing",
    ],
    "zero-norm division": [f"{CLIPPING}::test_zero_norm_division"],
    "fast path differs from the explicit path": [
        f"{CLIPPING}::test_fast_path_differs_from_the_explicit_path",
        f"{CLIPPING}::test_layer_normalization_with_microbatches",
        f"{CLIPPING}::test_unused_variable_is_refused_in_every_engine",
    ],
    # In processes of their own, which have several devices.
    "same noise on every replica, on none, or on all": [
        f"{REPLICAS}::test_noise_is_drawn_once_whatever_the_number_of_replicas",
        f"{REPLICAS}::test_noise_is_drawn_by_one_process",
    ],
    "noise constant-folded by tf.function": [f"{NOISE}::test_noise_constant_folded_by_tf_function"],
    "noise repeated after resume": [f"{NOISE}::test_noise_repeated_after_resume"],
    "key reuse across variables": [
        f"{NOISE}::test_key_reuse_across_variables",
        f"{NOISE}::test_key_reuse_across_parts_of_a_nested_query",
    ],
    "adaptive clip whose count query is not charged": [
        f"{ACCOUNTING}::test_adaptive_clip_whose_count_query_is_not_charged",
        f"{ACCOUNTING}::test_every_clip_that_follows_the_data_charges_its_count",
    ],
    "clip reaching 0": [
        f"{CLIPPING}::test_clip_reaching_zero",
        "tests/query/adaptive_clip_test.py::test_clip_reaches_neither_zero_nor_infinity",
    ],
    "BatchNorm moving averages ship raw statistics": [
        f"{ACCOUNTING}::test_batch_norm_moving_averages_ship_raw_statistics"
    ],
    "batch-dependent metrics and losses": [
        f"{ACCOUNTING}::test_batch_dependent_metrics",
        f"{CLIPPING}::test_batch_dependent_loss",
    ],
    "early stopping on raw training loss": [
        f"{ACCOUNTING}::test_early_stopping_on_raw_training_loss",
        f"{STEERING}::test_callbacks_that_act_on_raw_statistics_are_refused",
        f"{STEERING}::test_validation_metrics_of_the_training_data_do_not_steer",
    ],
    "raw metrics beside private ones": [
        "tests/keras/private_metrics_test.py::test_raw_metrics_appear_nowhere",
        "tests/keras/private_metrics_test.py::test_one_metric_alone_hides_the_loss_too",
        "tests/keras/private_metrics_test.py::test_callbacks_may_act_on_private_metrics_only",
        "tests/keras/private_metrics_test.py::test_validation_on_private_data_is_refused",
    ],
    "metrics that are released and not charged": [
        "tests/keras/private_metrics_test.py::test_event_and_price_are_those_of_all_leaves_together"
    ],
    "metrics of another optimizer, model or evaluation in private logs": [
        "tests/keras/shown_metrics_test.py::test_no_metric_that_anybody_can_read_holds_raw_values",
        "tests/keras/shown_metrics_test.py::test_metrics_are_those_of_the_optimizer_compiled_last",
    ],
    "a tree that is begun anew is not charged anew": [
        f"{NOISE}::test_a_tree_that_begins_anew_is_charged_anew",
        "tests/query/restart_test.py::test_a_tree_that_ends_as_it_is_restarted_is_followed_by_one_new_run",
        "tests/accounting/correlated_test.py::test_two_runs_cost_what_two_do_and_copies_of_ledgers_no_less",
    ],
    "a tree that is resumed twice is charged once, or gives its noise again": [
        f"{NOISE}::test_a_tree_that_is_resumed_twice_has_fresh_noise_and_costs_two",
        "tests/query/correlated_test.py::test_two_continuations_of_one_state_have_fresh_noise_and_the_same_places",
        "tests/keras/correlated_noise_test.py::test_a_resumed_run_goes_on_and_one_that_is_repeated_costs_two",
    ],
    "noise of a tree is amplified by samples": [
        "tests/accounting/correlated_test.py::test_samples_do_not_amplify_a_tree",
        "tests/keras/correlated_noise_test.py::test_refuses_samples_in_no_order_before_anything_is_charged",
    ],
    "private batch normalization takes statistics from the forward pass": [
        "tests/keras/batch_statistics_test.py::test_nothing_but_the_step_moves_the_statistics",
        "tests/keras/batch_statistics_test.py::test_saved_model_is_keras_own_and_holds_the_noised_statistics",
    ],
    "private batch normalization is not charged, or for one layer of several": [
        "tests/keras/batch_statistics_test.py::test_event_holds_every_layer_and_all_of_them_cost_what_was_asked",
        "tests/keras/batch_statistics_test.py::test_one_record_moves_the_sums_by_their_bounds_at_most",
    ],
    "rows of a person are protected one by one": [
        "tests/statistics/private_data_test.py::test_which_rows_are_kept_follows_ids_alone",
        "tests/statistics/private_data_test.py::test_audit_of_persons",
    ],
    "gradient accumulation tail": [f"{ACCOUNTING}::test_gradient_accumulation_tail"],
    "checkpoint in mid-accumulation": [f"{ACCOUNTING}::test_checkpoint_in_mid_accumulation"],
    "int vs float parameters": [f"{ACCOUNTING}::test_int_and_float_parameters"],
    "count ignored": [f"{ACCOUNTING}::test_count_ignored"],
    "float32 counters that saturate at 2^24": [
        f"{ACCOUNTING}::test_float32_counters_saturate_at_2_24"
    ],
    "price of somebody else's taken for a proven one": [
        "tests/extending_test.py::test_a_report_names_the_price_of_another_package",
        "tests/extending_test.py::test_replay_names_the_price_of_another_package",
        "tests/extending_test.py::test_a_report_states_what_its_own_accountants_say",
    ],
    "raw model trained by mistake": [f"{ACCOUNTING}::test_raw_model_trained_by_mistake"],
    "dropout follows the row": [f"{RECORDS}::test_dropout_follows_the_row"],
    "state that a step leaves behind": [f"{RECORDS}::test_state_that_a_step_leaves"],
    "validation by assert": [f"{ACCOUNTING}::test_validation_by_assert"],
    "padded batch changes the number of records": [
        f"{CLIPPING}::test_padded_batch_changes_the_number_of_records",
        f"{CLIPPING}::test_padded_batches_of_fit_hold_the_records_that_were_drawn",
    ],
}


@pytest.mark.parametrize("trap", TRAPS)
def test_trap_has_its_tests(trap):
    assert TRAPS[trap]
    assert named.missing(TRAPS[trap]) == []


def test_every_test_of_this_folder_is_in_the_list():
    listed = {test for tests in TRAPS.values() for test in tests}
    for path in (NOISE, CLIPPING, ACCOUNTING, RECORDS):
        tree = ast.parse((named.ROOT / pathlib.Path(path)).read_text(encoding="utf-8"))
        tests = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
        assert {f"{path}::{t}" for t in tests if t.startswith("test_")} <= listed


def test_what_does_not_exist_is_found():
    gone = [f"{NOISE}::test_no_such_thing", "tests/no_such_test.py::test_a", f"{NOISE}::take_steps"]
    assert named.missing([*gone, f"{NOISE}::test_empty_samples_skipped"]) == gone
