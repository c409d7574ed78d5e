"""Mutants of rounds whose records are clients."""

from tests.mutation.mutant import in_folder

SERVER, ANSWERS = "tests/federated/server_test.py", "tests/federated/answers_test.py"

ROUNDS = in_folder(
    "federated",
    (
        "answer_of_another_round_counts",
        "an answer with the token of another round is taken",
        "server.py",
        "if token not in (None, self._tokens.get(client)) or not self._is_missing(client):",
        "if not self._is_missing(client):",
        f"{ANSWERS}::test_answer_that_is_not_of_this_round_changes_nothing",
    ),
    (
        "all_clients_of_a_round_have_one_token",
        "an answer with the token of another client of the round is taken",
        "server.py",
        "{client: secrets.token_hex(16) for client in self.cohort}",
        "dict.fromkeys(self.cohort, secrets.token_hex(16))",
        f"{ANSWERS}::test_an_answer_in_the_name_of_another_client_does_not_take_its_place",
    ),
    (
        "late_answer_goes_to_the_next_round",
        "a round that was released still takes answers",
        "server.py",
        "                    current.close()\n",
        "                    pass\n",
        f"{ANSWERS}::test_late_answer_changes_nothing_and_is_not_added_to_the_next_round",
    ),
    (
        "client_answers_as_often_as_it_likes",
        "every answer of a client is added",
        "server.py",
        "        self._missing.discard(client)\n        return found",
        "        return found",
        f"{ANSWERS}::test_bad_update_is_the_same_as_no_answer",
    ),
    (
        "client_answers_twice_at_the_same_time",
        "two threads look for a client before either takes it out",
        "server.py",
        "self._turn = threading.RLock()",
        "self._turn = contextlib.nullcontext()",
        f"{ANSWERS}::test_a_client_that_answers_in_two_threads_counts_once",
    ),
    (
        "two_rounds_are_open_at_a_time",
        "answers to a round are added to the sum of another one",
        "server.py",
        "                self._open.close()\n",
        "                pass\n",
        f"{ANSWERS}::test_only_one_round_is_open_so_that_no_client_is_in_a_sum_twice",
    ),
    (
        "loop_begins_out_of_turn",
        "a loop over rounds begins while another thread charges a round",
        "server.py",
        "            with optimizer.charging.turn:\n",
        "            with contextlib.nullcontext():\n",
        f"{SERVER}::test_a_loop_begins_in_its_turn",
    ),
    (
        "cohorts_of_a_known_seed",
        "cohorts that can be drawn again are charged as secret samples",
        "server.py",
        "if isinstance(generator, HostGenerator) and generator.is_secret:",
        "if isinstance(generator, object):",
        "tests/federated/cohorts_test.py"
        "::test_cohorts_that_can_be_drawn_again_have_no_amplification",
    ),
    (
        "clients_that_are_done_go_on",
        "what a client would compute after its last step decides whether it counts",
        "local.py",
        "new.append(tf.where(_like(takes, weight), moved, weight))",
        "new.append(weight + _like(tf.cast(takes, weight.dtype), weight) * (moved - weight))",
        "tests/federated/local_test.py"
        "::test_a_client_that_has_finished_stays_where_it_is_while_others_go_on",
    ),
    (
        "one_client_decides_the_dtype",
        "data of all simulated clients are held in the dtype of one of them",
        "simulation.py",
        "if form != forms[first]:",
        "if len(form) != len(forms[first]):",
        "tests/federated/simulation_test.py"
        "::test_one_client_does_not_decide_how_data_of_others_are_held",
    ),
    (
        "who_listens_is_not_looked_at",
        "a SuperLink without TLS on all addresses is taken for one on loopback",
        "plain_connections.py",
        '(parts.hostname or "", *_listening(parts.port))',
        '(parts.hostname or "",)',
        "tests/federated/plain_connections_test.py"
        "::test_what_listens_on_all_addresses_is_not_on_loopback",
    ),
    (
        "unknown_grid_is_taken_for_one_with_tls",
        "a version of Flower that tfdp does not know passes the check of TLS",
        "plain_connections.py",
        "if insecure is False or _is_in_memory(grid):",
        "if not insecure:",
        "tests/federated/plain_connections_test.py::test_a_grid_that_does_not_say_is_refused",
    ),
    (
        "client_is_in_a_sum_and_answers",
        "a secure sum is added although one of its clients has answered",
        "server.py",
        "            if set(names) <= self._missing:\n",
        "            if True:\n",
        "tests/federated/secure_sum_test.py"
        "::test_a_client_is_in_a_round_once_by_itself_or_in_one_sum",
    ),
    (
        "encoded_update_has_other_signs",
        "a client rotates by the signs of the first step, whatever the step is",
        "secure_sum.py",
        "params._replace(step=tf.constant(step, tf.int64))",
        "params._replace(step=tf.constant(0, tf.int64))",
        "tests/federated/secure_sum_test.py"
        "::test_a_masked_sum_of_encoded_updates_is_the_sum_of_the_updates",
    ),
    (
        "update_of_another_shape_is_taken",
        "the shapes of an update are not looked at",
        "updates.py",
        "or (array.shape, array.dtype.name) != form",
        "or array.dtype.name != form[1]",
        f"{ANSWERS}::test_bad_update_is_the_same_as_no_answer",
    ),
    (
        "control_of_another_client",
        "the correction of SCAFFOLD has the other sign",
        "simulation.py",
        "[c - c_i for c, c_i in",
        "[c_i - c for c, c_i in",
        "tests/federated/simulation_test.py::test_scaffold_is_the_loop_of_the_paper",
    ),
)

SUMMED = in_folder(
    "keras",
    (
        "sum_is_kept_after_its_release",
        "the sum of a round stays where it can be released again",
        "summed_step.py",
        "sample_state, self._sum = self._sum, None",
        "sample_state = self._sum",
        f"{SERVER}::test_a_round_is_released_once",
    ),
    (
        "shares_of_a_round_are_not_counted",
        "a round with fewer shares of noise than are charged for goes on to its release",
        "summed_step.py",
        "if self._contributors < least:",
        "if self._contributors < 0:",
        "tests/federated/secure_sum_test.py"
        "::test_a_sum_without_the_noise_that_is_charged_is_not_released",
    ),
    (
        "round_is_charged_when_it_is_released",
        "a round is not charged before anybody is asked",
        "summed_step.py",
        "            charging.samples.expect_step_of_fit(fit)\n",
        "            return charging.samples.sampled(step.event_of_state(values), 'user', batch)\n",
        f"{SERVER}::test_the_ledger_holds_the_event_before_anybody_is_asked",
    ),
    (
        "round_is_released_after_another_step",
        "a round is released although the state of the query is another",
        "summed_step.py",
        "if place != self._place:",
        "if self._place is None:",
        f"{SERVER}::test_another_step_during_a_round_ends_it",
    ),
    (
        "frozen_layer_is_charged",
        "rounds are charged of which every answer is dropped",
        "tfdp/federated/server.py",
        "if list(map(id, self.model.trainable_variables)) != list(map(id, self._variables)):",
        "if False:",
        "tests/federated/server_test.py::test_a_layer_that_is_frozen_later_is_r"
        "efused_before_the_next_round",
    ),
    (
        "late_answers_at_once_raise",
        "late answers of a whole cohort raise",
        "tfdp/federated/server.py",
        "            if mask.any():\n",
        "            if True:\n",
        "tests/federated/answers_test.py::test_late_answer_changes_nothing_and_"
        "is_not_added_to_the_next_round",
    ),
    (
        "sum_is_scaled_as_a_mean",
        "a client takes larger steps where its loss is a sum",
        "tfdp/federated/local.py",
        "        if _divides_by_rows(self.model):\n",
        "        if True:\n",
        "tests/federated/local_test.py::test_a_batch_that_is_filled_up_has_the_"
        "loss_of_its_reduction",
    ),
    (
        "constraints_are_ignored",
        "clients ignore constraints of weights",
        "tfdp/federated/local.py",
        "if constraints[i] is not None:",
        "if False:",
        "tests/federated/local_test.py::test_constraints_are_applied_after_every_step_of_a_client",
    ),
    (
        "unchecked_ledger_passes",
        "a ledger of which nothing was checked passes",
        "tfdp/cli/verify.py",
        "    if not verified.checked:\n        raise LedgerFormatError(",
        "    if False:\n        raise LedgerFormatError(",
        "tests/cli/verify_test.py::test_edited_ledger_that_says_it_has_a_key_is_not_verified",
    ),
    (
        "unchecked_head_is_shown",
        "the head that stands in a file is shown where nothing was checked",
        "tfdp/cli/verify.py",
        "header.head if verified.checked else None",
        "header.head",
        "tests/cli/verify_test.py::test_edited_ledger_that_says_it_has_a_key_is_not_verified",
    ),
    (
        "measured_by_the_claims_accountant",
        "the upper bound of a loose accountant is called measured",
        "tfdp/cli/audit.py",
        "replayed(entries, PRVAccountant)",
        'replayed(entries, claim["accountant"])',
        "tests/cli/audit_test.py::test_what_is_measured_is_no_loose_bound",
    ),
    (
        "names_make_lines",
        "the name of a file can look like a line that a command prints",
        "tfdp/cli/common.py",
        "[one_line(p) for p, found",
        "[p for p, found",
        "tests/cli/common_test.py::test_what_is_not_authenticated_stands_first",
    ),
    (
        "weights_of_clients_are_float32",
        "a client's large weight ends the server's loop",
        "tfdp/federated/server.py",
        "np.asarray(weights, np.float64) if takes",
        "np.asarray(weights, np.float32) if takes",
        "tests/federated/server_test.py::test_a_weight_beyond_float32_is_as_large_as_is_allowed",
    ),
    (
        "search_begins_far_from_the_claim",
        "the factor of an audit is looked for far from the claim first",
        "tfdp/audit/order_statistics.py",
        "    low = 0.0\n    if refuted(low):",
        "    low = -6.0\n    if refuted(low):",
        "tests/audit/order_statistics_test.py::test_factor_is_what_the_claim_is"
        "_exceeded_by_and_others_are_hardly_asked_about",
    ),
)
