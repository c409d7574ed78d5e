"""Mutants of distributed selective SGD: uploads, their noise and charge, and the server."""

from tests.mutation.mutant import NOISE, in_folder

SELECTIVE_TESTS = "tests/federated/selective"
UPLOADS = f"{SELECTIVE_TESTS}/private_uploads_test.py"

SELECTIVE = in_folder(
    "federated/selective",
    (
        "upload_is_charged_after_its_noise",
        "a participant that stops between noise and ledger has released what is not charged",
        "private_uploads.py",
        "        source = charge(self, event)\n        places, numbers = source.on_host(",
        "        source, _ = self.random_source, 0\n        places, numbers = source.on_host(",
        f"{UPLOADS}::test_an_upload_is_charged_before_its_noise_is_drawn",
    ),
    (
        "numbers_that_move_by_two_bounds_have_noise_for_one",
        "noise of shared numbers is half of what a change from -gamma to gamma needs",
        "private_uploads.py",
        "scale = 2 * STEPS * count",
        "scale = STEPS * count",
        f"{UPLOADS}::test_scales_are_those_of_the_formula",
    ),
    (
        "changes_are_bounded_after_the_noise_only",
        "a change of any size is compared and noised",
        "private_uploads.py",
        "np.clip(np.trunc(changes.astype(np.float64) / self.gamma * STEPS), -STEPS, STEPS)",
        "np.trunc(changes.astype(np.float64) / self.gamma * STEPS)",
        f"{UPLOADS}::test_data_move_magnitudes_by_one_bound_and_numbers_by_two",
    ),
    (
        "gaussian_upload_for_data_that_are_added_only",
        "data that are replaced move the sum by twice the bound of the event",
        "private_uploads.py",
        ".scaled(2.0)",
        "",
        f"{UPLOADS}::test_events_say_what_the_noise_is_for",
    ),
    (
        "largest_changes_have_the_gaussian_noise",
        "places of the noised subset follow the data, which no noise covers",
        "private_uploads.py",
        "np.sort(host_generator().permutation(size)[: number_of(self.theta_u, size)])",
        "np.sort(np.argsort(-np.abs(changes))[: number_of(self.theta_u, size)])",
        f"{UPLOADS}::test_places_are_chosen_without_looking",
    ),
    (
        "noise_of_the_threshold_is_left_out",
        "comparisons are with the threshold itself",
        "private_uploads.py",
        "threshold += int(",
        "int(",
        f"{UPLOADS}::test_noise_of_the_threshold_moves_it",
    ),
    (
        "server_takes_large_changes",
        "one upload moves a parameter as far as it likes",
        "server.py",
        "if bound is not None and np.any(magnitudes > bound):",
        "if bound is not None and np.all(magnitudes > bound):",
        f"{SELECTIVE_TESTS}/server_test.py::test_bad_upload_changes_nothing",
    ),
    (
        "servers_state_is_written_in_place",
        "a server that is killed while it saves has no state",
        "state_file.py",
        'path.with_name(f".{path.name}.unfinished")',
        "path",
        f"{SELECTIVE_TESTS}/state_file_test.py",
        f"{SELECTIVE_TESTS}/server_test.py::test_a_killed_server_leaves_a_whole_state",
    ),
    (
        "digits_of_laplace_noise_are_alike",
        "noise has two magnitudes, with one random digit for all places",
        "tfdp/noise/discrete_laplace.py",
        "Fraction(2**i) / scale)",
        "Fraction(1) / scale)",
        f"{NOISE}/discrete_laplace_test.py::test_frequencies_are_the_probabilities",
    ),
    (
        "epoch_ends_at_a_bad_label",
        "a label that does not exist ends an epoch that is not charged",
        "tfdp/federated/selective/local_sgd.py",
        "with_checks(tf.function(self._gradients), specs)",
        "tf.function(self._gradients)",
        "tests/federated/selective/local_sgd_test.py::test_what_does_not_exist_"
        "is_no_error_and_is_charged",
    ),
    (
        "wide_noise_is_charged_first",
        "noise that is too wide is charged before it is refused",
        "tfdp/federated/selective/private_uploads.py",
        "if max(self._scales(count)) > LARGEST_SCALE:",
        "if False:",
        "tests/federated/selective/private_uploads_test.py::test_refuses_noise_"
        "that_has_too_many_digits_before_anything_is_shared",
    ),
    (
        "packed_state_is_read",
        "a compressed state file is read",
        "tfdp/federated/selective/state_file.py",
        "if any(i.compress_type != zipfile.ZIP_STORED for i in file.zip.infolist()):",
        "if False:",
        "tests/federated/selective/state_file_test.py::test_whatever_a_file_hol"
        "ds_is_a_state_or_a_value_error",
    ),
)
