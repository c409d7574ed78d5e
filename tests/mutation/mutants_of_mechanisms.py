"""Mutants of mechanisms beyond one Gaussian sum with one clip."""

from tests.mutation.mutant import ACCOUNTING_TRAPS, KERAS, QUERY, in_folder

ADAPTIVE = in_folder(
    "query",
    (
        "count_not_charged",
        "an adaptive clip charges its sum and not its count",
        "adaptive_clip.py",
        "return ComposedEvent((GaussianSumEvent(1.0, self.noise_multiplier, seeded), count))",
        "return GaussianSumEvent(1.0, self.noise_multiplier, seeded)",
        f"{ACCOUNTING_TRAPS}::test_every_clip_that_follows_the_data_charges_its_count",
    ),
    (
        "count_in_full",
        "a record moves the count of unclipped records by one, not by one half",
        "quantile_estimator.py",
        "half = tf.constant(0.5, dtype)",
        "half = tf.constant(1.0, dtype)",
        f"{QUERY}/sensitivity_test.py::test_one_record_moves_the_sum_by_at_most_the_bound",
    ),
    (
        "noise_of_the_first_clip",
        "noise follows the first clip, not the present one",
        "adaptive_clip.py",
        "clip = tf.cast(global_state.l2_norm_clip, tf.float64)",
        "clip = tf.constant(self.initial_l2_norm_clip, tf.float64)",
        f"{QUERY}/adaptive_clip_test.py::test_noise_follows_the_clip_and_the_event_does_not",
    ),
    (
        "clip_without_bounds",
        "a clip that adapts can reach zero or infinity",
        "quantile_estimator.py",
        "estimate = tf.clip_by_value(moved, self.min_estimate, self.max_estimate)",
        "estimate = tf.identity(moved)",
        f"{QUERY}/adaptive_clip_test.py::test_clip_reaches_neither_zero_nor_infinity",
    ),
    (
        "not_finite_is_counted",
        "a record that is not finite is counted as clipped",
        "quantile_estimator.py",
        "return tf.where(tf.math.is_finite(values), signed, tf.zeros_like(signed))",
        "return signed",
        f"{QUERY}/quantile_estimator_test.py::test_record_that_is_not_finite_is_not_counted",
    ),
    (
        "padding_is_counted",
        "an engine counts rows of padding among the unclipped records",
        "tfdp/gradients/engines/batched.py",
        "statistics = tf.where(keep[:, None], statistics, tf.zeros_like(statistics))",
        "statistics = tf.identity(statistics)",
        f"{QUERY}/adaptive_clip_test.py::test_engines_give_the_state_of_one_record_at_a_time",
    ),
    (
        "statistics_of_the_first_part",
        "parts of a nested query share the count of the first",
        "nested.py",
        "packed.append(query.pack_scaled(part, statistics[first:end]))",
        "packed.append(query.pack_scaled(part, statistics[: end - first]))",
        f"{QUERY}/adaptive_clip_test.py::test_engines_give_the_state_of_one_record_at_a_time",
    ),
    (
        "schedule_charged_late",
        "noise of a schedule is that of the next step, which is charged later",
        "scheduled.py",
        "stddev = global_state.noise_multiplier * global_state.l2_norm_clip",
        "stddev = self._state_of(global_state.step + 1).noise_multiplier"
        " * global_state.l2_norm_clip / 2",
        f"{QUERY}/scheduled_test.py::test_records_and_noise_follow_the_state",
    ),
    (
        "schedule_does_not_advance",
        "a schedule stays at its first step",
        "scheduled.py",
        "return result, self._state_of(global_state.step + 1), event",
        "return result, self._state_of(global_state.step), event",
        f"{KERAS}/adaptive_clip_test.py::test_noise_of_a_schedule_is_charged_step_by_step",
    ),
    (
        "normalised_without_the_norm",
        "a normalised record is divided by the stability alone",
        "automatic_clip.py",
        "/ (norms + self.stability)",
        "/ self.stability",
        f"{QUERY}/automatic_clip_test.py::test_norm_is_that_of_the_paper",
    ),
)

PURE = in_folder(
    "query",
    (
        "l1_is_l2",
        "records are clipped in l2 where the event bounds l1",
        "laplace.py",
        "tf.reduce_sum(tf.abs(tf.cast(leaf, dtype))),",
        "tf.norm(tf.cast(leaf, dtype)),",
        f"{QUERY}/laplace_test.py",
    ),
    (
        "laplace_scale_halved",
        "half the Laplace noise that the event says",
        "laplace.py",
        "noise * rounding.up(self.scale, leaf.dtype)",
        "noise * rounding.up(self.scale / 2, leaf.dtype)",
        f"{QUERY}/laplace_test.py::test_noise_is_that_of_the_event_on_every_leaf",
    ),
    (
        "laplace_tail_cut",
        "a Laplace draw does not see the zeros that its bits begin with",
        "tfdp/noise/gaussian.py",
        "    return power * (1 - v / 2)",
        "    return power * 0 + (1 - v / 2)",
        "tests/noise/laplace_test.py",
    ),
)
