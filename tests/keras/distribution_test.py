"""One step on many devices is one sum, one noise draw, one event; however the sample is split."""

import os
import pathlib
import pickle
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest
import replicas
import tensorflow as tf
import toy
import workers

import tfdp
from tfdp.events import FullBatchSampling, PoissonSampling, ShuffledSampling
from tfdp.keras import LedgerMismatchError, NotPrivateError, distributed_data, distribution
from tfdp.keras.charging import Charging
from tfdp.keras.records_of_fit import RecordsOfFit
from tfdp.sampling import PaddedBatch
from tfdp.sampling.arrays import batches

HERE = pathlib.Path(__file__).parent
COUNTS = [1, 2, 3]
COUNTS_OF_FIT = [1, 3]
FULL_BATCH = tfdp.SampledEvent(
    FullBatchSampling(7),
    tfdp.GaussianSumEvent(replicas.CLIP, 0.0),
    tfdp.NeighboringRelation.ZERO_OUT,
)


def run_together(directory, *commands):
    """Runs Python scripts of this folder at the same time."""
    root = str(pathlib.Path(tfdp.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("TF_CONFIG", None)
    processes = [
        subprocess.Popen(
            [sys.executable, HERE / script, *map(str, arguments)],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for script, *arguments in commands
    ]
    try:
        logs = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [p.returncode for p in processes] == [0] * len(processes), "\n\n".join(logs)


@pytest.fixture(scope="module")
def of_replicas(tmp_path_factory):
    """Outcomes of the cases in replicas.py, by number of replicas."""
    directory = tmp_path_factory.mktemp("replicas")
    run_together(directory, ("replicas.py", "outcomes"))
    return pickle.loads((directory / "outcomes").read_bytes())


@pytest.fixture(scope="module")
def of_workers(tmp_path_factory):
    """Outcomes of the cases in workers.py, by process."""
    directory = tmp_path_factory.mktemp("workers")
    with socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in (first, second)]
    run_together(directory, *[("workers.py", f"outcome{i}", i, *ports) for i in range(2)])
    return [pickle.loads((directory / f"outcome{i}").read_bytes()) for i in range(2)]


def assert_same_everywhere(copies, count):
    for on_replicas in copies:
        assert len(on_replicas) == count
        for value in on_replicas:
            np.testing.assert_array_equal(value, on_replicas[0])


def assert_close(copies, expected):
    for (value, *_), (wanted, *_) in zip(copies, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-6)


def assert_history(history, expected):
    assert list(history) == list(expected)
    for name, values in history.items():
        assert values == pytest.approx(expected[name], rel=1e-5)


# Several devices of one process.


@pytest.mark.parametrize("count", COUNTS_OF_FIT)
def test_full_batch_gives_the_same_weights_and_metrics_however_it_is_split(of_replicas, count):
    single, outcome = of_replicas[1]["fit"], of_replicas[count]["fit"]
    assert_close(outcome["weights"], single["weights"])
    assert_history(outcome["history"], single["history"])
    assert_same_everywhere(outcome["weights"] + outcome["state"], count)


@pytest.mark.parametrize("key", [*COUNTS, "mirrored 1"])
def test_step_without_sample_weights_is_the_same(of_replicas, key):
    single, outcome = of_replicas[1]["fit_once"], of_replicas[key]["fit_once"]
    assert_close(outcome["weights"], single["weights"])
    assert outcome["events"] == single["events"]
    assert len(outcome["events"]) == 1


@pytest.mark.parametrize("count", COUNTS)
def test_samples_of_no_one_and_few_records_are_the_same_however_they_are_split(of_replicas, count):
    single, outcome = of_replicas[1]["fit_samples"], of_replicas[count]["fit_samples"]
    assert_close(outcome["weights"], single["weights"])
    assert_same_everywhere(outcome["weights"], count)
    assert outcome["events"] == single["events"]
    assert len(outcome["events"]) == 6


@pytest.mark.parametrize("count", COUNTS)
def test_users_are_clipped_once_however_their_rows_are_split(of_replicas, count):
    single, outcome = of_replicas[1]["fit_users"], of_replicas[count]["fit_users"]
    assert_close(outcome["weights"], single["weights"])
    assert_history(outcome["history"], single["history"])
    assert_same_everywhere(outcome["weights"] + outcome["poisson_weights"], count)
    assert outcome["events"] == single["events"]
    assert len(outcome["events"]) == 1 + 2 * 4


@pytest.mark.parametrize("count", COUNTS)
def test_views_are_clipped_as_one_record_on_every_replica(of_replicas, count):
    single, outcome = of_replicas[1]["fit_views"], of_replicas[count]["fit_views"]
    assert_close(outcome["weights"], single["weights"])
    assert outcome["events"] == single["events"] == of_replicas[1]["fit_once"]["events"]


@pytest.mark.parametrize("count", COUNTS)
def test_two_optimizers_in_one_step_train_as_on_one_device(of_replicas, count):
    single, outcome = of_replicas[1]["two_optimizers"], of_replicas[count]["two_optimizers"]
    for name in ("discriminator", "generator"):
        assert_close(outcome[name], single[name])
        assert_same_everywhere(outcome[name], count)
    assert outcome["events"] == single["events"]
    assert len(outcome["events"]) == 3


@pytest.mark.parametrize("count", COUNTS_OF_FIT)
def test_the_average_of_weights_is_the_same_on_every_replica(of_replicas, count):
    key = "fit_with_averaged_weights"
    single, outcome = of_replicas[1][key], of_replicas[count][key]
    assert_close(outcome["weights"], single["weights"])
    assert_same_everywhere(outcome["weights"] + outcome["state"], count)


@pytest.mark.parametrize("count", COUNTS_OF_FIT)
def test_attention_with_lora_trains_as_on_one_device(of_replicas, count):
    single, outcome = of_replicas[1]["fit_attention"], of_replicas[count]["fit_attention"]
    assert_close(outcome["weights"], single["weights"])
    assert_same_everywhere(outcome["weights"] + outcome["frozen"], count)
    assert outcome["events"] == single["events"]


@pytest.mark.parametrize("count", COUNTS_OF_FIT)
def test_private_metrics_are_those_of_all_records_however_they_are_split(of_replicas, count):
    key = "fit_with_private_metrics"
    single, outcome = of_replicas[1][key], of_replicas[count][key]
    assert_history(outcome["history"], single["history"])
    assert outcome["history"]["counts_1"][0] == pytest.approx(replicas.Y.sum(), abs=1e-4)
    assert outcome["events"] == single["events"]


@pytest.mark.parametrize("count", COUNTS_OF_FIT)
def test_one_event_a_step_however_many_replicas(of_replicas, count):
    assert of_replicas[count]["fit"]["events"] == [FULL_BATCH] * 2
    poisson = PoissonSampling(1 / 7, 7)
    events = of_replicas[count]["fit"]["poisson_events"]
    assert [event.sampling for event in events] == [poisson] * 14


@pytest.mark.parametrize("count", COUNTS_OF_FIT)
def test_empty_samples_and_empty_shards_leave_replicas_equal(of_replicas, count):
    weights = of_replicas[count]["fit"]["poisson_weights"]
    assert_same_everywhere(weights, count)
    assert all(np.isfinite(value).all() for value, *_ in weights)
    assert not np.array_equal(weights[0][0], of_replicas[count]["fit"]["weights"][0][0])


@pytest.mark.parametrize("count", COUNTS_OF_FIT)
def test_error_of_a_guard_stops_all_replicas_before_the_step(of_replicas, count):
    outcome = of_replicas[count]["fit"]
    assert outcome["error"] == ("PrivacyBudgetExceededError", "The guard says no.")
    assert len(outcome["events_after_error"]) == 18


@pytest.mark.parametrize("count", COUNTS_OF_FIT)
def test_checkpoint_holds_weights_and_ledger(of_replicas, count):
    outcome = of_replicas[count]["fit"]
    for loaded, saved in zip(outcome["loaded_weights"], outcome["weights"], strict=True):
        np.testing.assert_array_equal(loaded, saved)
    assert outcome["loaded_events"] == outcome["events"]


@pytest.mark.parametrize("count", COUNTS_OF_FIT)
def test_batches_of_a_data_set_are_split_and_stay_steps(of_replicas, count):
    single, outcome = of_replicas[1]["fit_dataset"], of_replicas[count]["fit_dataset"]
    assert_close(outcome["weights"], single["weights"])
    assert_history(outcome["history"], single["history"])
    assert_same_everywhere(outcome["weights"], count)
    # Three steps an epoch, and none for finding out that the data have ended.
    passes = [ShuffledSampling(3, 7, p) for p in (0, 0, 0, 1, 1, 1)]
    assert [event.sampling for event in outcome["events"]] == passes


def sum_by_hand():
    """Returns the clipped sum over 7 of the loss in replicas.custom_step, and the losses."""
    x, target = np.float64(replicas.X), np.eye(2)[replicas.Y]
    gradients = [np.outer(a, -t) for a, t in zip(x, target, strict=True)]  # At zero weights.
    clipped = [g * min(1, replicas.CLIP / np.linalg.norm(g)) for g in gradients]
    assert any(np.linalg.norm(g) > replicas.CLIP for g in gradients)
    return sum(clipped) / 7, np.mean(target**2, axis=1)


@pytest.mark.parametrize("way", ["graph", "eager", "xla"])
@pytest.mark.parametrize("count", COUNTS)
def test_uneven_and_empty_shards_give_the_sum_of_all_records(of_replicas, count, way):
    outcome = of_replicas[count]["custom"][way]
    average, losses = sum_by_hand()
    assert_same_everywhere(outcome["weights"], count)
    expected = average + 0.01  # The gradient of the penalty, once.
    np.testing.assert_allclose(outcome["weights"][0][0], -expected, rtol=0, atol=1e-6)
    # What the replicas return adds up to the gradient.
    np.testing.assert_allclose(sum(outcome["gradients"]), expected, rtol=0, atol=1e-6)
    assert [len(part) for part in outcome["losses"]] == replicas.SHARDS[count]
    np.testing.assert_allclose(np.concatenate(outcome["losses"]), losses, rtol=1e-6)


@pytest.mark.parametrize("count", COUNTS)
def test_exact_sums_are_the_same_bit_for_bit_however_they_are_split(of_replicas, count):
    single, outcome = of_replicas[1]["custom"]["exact"], of_replicas[count]["custom"]["exact"]
    assert_same_everywhere(outcome["weights"], count)
    np.testing.assert_array_equal(outcome["weights"][0][0], single["weights"][0][0])
    average, _ = sum_by_hand()
    np.testing.assert_allclose(outcome["weights"][0][0], -average - 0.01, rtol=0, atol=1e-6)
    bound = tfdp.events.DiscreteGaussianSumEvent(replicas.CLIP, 0.0, 2.0**-32, 2**30)
    assert outcome["events"] == single["events"] == [bound]


@pytest.mark.parametrize("count", COUNTS)
def test_a_clip_that_adapts_is_moved_once_by_all_records(of_replicas, count):
    outcome = of_replicas[count]["custom"]["adaptive"]
    average, _ = sum_by_hand()
    np.testing.assert_allclose(outcome["weights"][0][0], -average - 0.01, rtol=0, atol=1e-6)
    gradients = [
        np.outer(a, -t) for a, t in zip(np.float64(replicas.X), np.eye(2)[replicas.Y], strict=True)
    ]
    share = np.mean([np.linalg.norm(g) <= replicas.CLIP for g in gradients])
    assert_same_everywhere(outcome["state"], count)
    clip = replicas.CLIP * np.exp(-0.2 * (share - 0.5))
    assert outcome["state"][0][0] == pytest.approx(clip, rel=1e-6)


@pytest.mark.parametrize("count", COUNTS)
def test_error_of_a_guard_comes_as_itself_without_a_graph(of_replicas, count):
    outcome = of_replicas[count]["custom"]["eager"]
    assert outcome["error_in_eager"] == ("PrivacyBudgetExceededError", "The guard says no.")
    assert outcome["events"] == [tfdp.GaussianSumEvent(replicas.CLIP, 0.0)]


def accepts(draws, stddev):
    """Whether draws are N(0, stddev^2): the variance of 10000 has a relative error of 0.014.

    Six of them: one in 10^9 is rejected.
    """
    assert np.size(draws) >= 10_000
    error = np.sqrt(2 / np.size(draws))
    return abs(np.mean(np.square(draws, dtype=np.float64)) / stddev**2 - 1) < 6 * error


def check_noise(outcome, count, replicas_in_all):
    """One draw of what the ledger says, the same on `count` replicas."""
    for values, states in zip(outcome["values"], outcome["states"], strict=True):
        assert_same_everywhere([values, *states], count)
    totals = [0.0, *(values[0] for values in outcome["values"])]
    draws = [after - before for before, after in zip(totals, totals[1:], strict=False)]
    for draw, stddev in zip(draws, outcome["stddevs"], strict=True):
        assert accepts(draw, stddev)
        if replicas_in_all > 1:
            # As many draws as replicas, added up or averaged, are not accepted; nor is none.
            factor = np.sqrt(replicas_in_all)
            assert not accepts(draw, stddev * factor)
            assert not accepts(draw, stddev / factor)
        assert not accepts(0 * draw, stddev)
    # The state that the first replica drew is everybody's, and is what is charged.
    assert outcome["stddevs"][0] == replicas.STDDEV
    assert outcome["next_stddevs"][:-1] == outcome["stddevs"][1:]
    assert len({*outcome["stddevs"], outcome["next_stddevs"][-1]}) == 4
    return draws


@pytest.mark.parametrize("where", ["noise", "noise_of_a_gpu"])
@pytest.mark.parametrize("count", COUNTS)
def test_noise_is_drawn_once_whatever_the_number_of_replicas(
    of_replicas, count, where, check_independent
):
    outcome = of_replicas[count][where]
    assert outcome.get("keystreams", 0) == (where == "noise_of_a_gpu")
    draws = check_noise(outcome, count, count)
    check_independent(draws[0], draws[1])
    check_independent(draws[1], draws[2])


REFUSALS = {
    "several examples": "A record of several examples would be spread",
    "microbatches": "num_microbatches = batch_size",
    "not a sum": "NoPrivacyAverageQuery is not a sum",
    "not built": r"optimizer.build\(variables\)",
    "made outside": "does not belong to the strategy",
    "undivided": "All replicas were given the same batch",
    "undivided, eager": "All replicas were given the same batch",
    "undivided array, eager": "All replicas were given the same batch",
    "undivided in part": "All replicas were given the same batch",
    "undivided in part, eager": "All replicas were given the same batch",
    "cross-replica": "strategy.run",
    "train_on_batch": "Use fit",
    "made private outside": "does not belong to the strategy",
    "steps_per_execution": "steps_per_execution=1",
    "distributed": "Pass the data set itself",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_replicas_cannot_do_exactly_is_refused(of_replicas, name):
    outcomes = of_replicas[2]["refusals"]
    kind, text = outcomes[name]
    assert kind == ("ValueError" if name == "steps_per_execution" else "NotPrivateError")
    with pytest.raises(ValueError, match=REFUSALS[name]):
        raise ValueError(text)
    assert outcomes["count"] == 0


def test_strategies_of_another_kind_are_refused():
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0"], "CPU:0")
    with pytest.raises(NotPrivateError, match="CentralStorageStrategy"):
        distribution.check_strategy(strategy)
    distribution.check_strategy(tf.distribute.get_strategy())
    distribution.check_strategy(tf.distribute.OneDeviceStrategy("CPU:0"))


# Several processes.


def test_processes_take_the_step_of_one(of_workers):
    first, second = (outcome["fit"] for outcome in of_workers)
    for mine, others in zip(first["weights"], second["weights"], strict=True):
        np.testing.assert_array_equal(mine, others)
    assert_history(second["history"], first["history"])

    single = replicas.model(tf.distribute.get_strategy())
    history = single.fit(
        replicas.X,
        replicas.Y,
        sample_weight=replicas.SAMPLE_WEIGHT,
        sampling=tfdp.sampling.FullBatch(),
        epochs=2,
        validation_data=(replicas.X, replicas.Y, replicas.SAMPLE_WEIGHT),
        verbose=0,
    ).history
    toy.assert_weights(single, first["weights"])
    assert_history(first["history"], {name: history[name] for name in first["history"]})


def test_private_metrics_of_processes_are_those_of_all_records(of_workers):
    single = replicas.fit_with_private_metrics(tf.distribute.get_strategy())
    for outcome in of_workers:
        assert_history(outcome["private metrics"]["history"], single["history"])
        assert outcome["private metrics"]["events"] == single["events"]


def test_every_process_has_a_ledger_with_one_event_a_step(of_workers):
    first, second = (outcome["fit"] for outcome in of_workers)
    assert first["events"] == second["events"] == [FULL_BATCH] * 2
    assert first["key"] != second["key"]


def test_noise_is_drawn_by_one_process(of_workers):
    first, second = (outcome["noise"] for outcome in of_workers)
    check_noise(first, 1, 2)
    check_noise(second, 1, 2)
    np.testing.assert_array_equal(first["values"], second["values"])
    assert first["stddevs"] == second["stddevs"]


def test_processes_draw_one_poisson_sample(of_workers):
    first, second = (outcome["sampled"] for outcome in of_workers)
    np.testing.assert_array_equal(first["kernels"], second["kernels"])
    assert first["events"] == second["events"]
    assert {e.sampling for e in first["events"]} == {PoissonSampling(3 / 7, 7)}
    assert len(first["events"]) == workers.STEPS
    # Nobody is in a step twice, and everybody is in some and not in others.
    moved = -np.diff(first["kernels"], axis=0)
    present = np.round(moved)
    np.testing.assert_allclose(moved, present, rtol=0, atol=1e-4)
    assert set(np.unique(present)) == {0, 1}
    # 59 * 7 draws of probability 3/7; six standard deviations are 60.
    assert abs(present.sum() - 59 * 3) < 60
    assert (present.sum(0) > 0).all()
    assert (present.sum(0) < 59).all()


def test_processes_refuse_what_would_not_be_one_sample(of_workers):
    for outcome in of_workers:
        refusals = outcome["refusals"]
        for name in ("other data", "order of other data"):
            assert refusals[name][0] == "NotPrivateError"
            assert "different arrays" in refusals[name][1]
            assert not any(c.isdigit() for c in refusals[name][1])  # Nothing of the rows.
        assert "FixedSize" in refusals["fixed size"][1]
        assert "Pass arrays" in refusals["data set"][1]
        assert refusals["count"] == 0


STARTS = {
    "weights": "begin with different weights",
    "slots": "begin with different weights",
    "weights, from a callback": "begin with different weights",
    "momentum": "different inner optimizers",
    "learning rate": "learning rates",
    "schedule": "learning rates",
    "trained layers": "weights that are trained",
    "views": "different inner optimizers",
    "one file": "write to one ledger",
}


@pytest.mark.parametrize("name", STARTS)
def test_processes_that_do_not_begin_alike_take_no_step(of_workers, name):
    for outcome in of_workers:
        (kind, text), count = outcome["starts"][name]
        assert kind == "NotPrivateError" and STARTS[name] in text
        assert count == 0


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="This Keras has no MultiOptimizer."
)
def test_settings_are_those_of_every_optimizer_inside():
    def settings(momentum, rate=0.1):
        second = keras.optimizers.SGD(rate, momentum)
        chosen = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.5), {".*": second})
        optimizer = toy.dp(keras.optimizers.MultiOptimizer(chosen))
        return distributed_data._settings(optimizer, RecordsOfFit())

    assert settings(0.5) == settings(0.5) == settings(0.5, rate=0.2)
    assert settings(0.5) != settings(0.6)


class Slower(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that is never saved: it has no `get_config`."""

    def __init__(self, power):
        self.power = power

    def __call__(self, step):
        return 0.1 / (1.0 + tf.cast(step, tf.float32)) ** self.power


def test_schedules_without_a_config_are_compared_by_their_rates():
    def settings(power, momentum=0.5):
        optimizer = toy.dp(keras.optimizers.SGD(Slower(power), momentum))
        rates = distributed_data._rates(optimizer)
        return distributed_data._settings(optimizer, RecordsOfFit()), rates

    assert settings(1.0) == settings(1.0)
    assert settings(1.0)[0] == settings(2.0)[0] != settings(1.0, momentum=0.6)[0]
    assert settings(1.0)[1] != settings(2.0)[1]


def test_each_process_may_have_a_file(of_workers):
    assert [outcome["starts"]["files of their own"] for outcome in of_workers] == [(None, 4)] * 2


def test_error_in_one_process_stops_all(of_workers):
    first, second = (outcome["error_of_one"] for outcome in of_workers)
    assert second["error"] == ("PrivacyBudgetExceededError", "The guard says no.")
    assert first["error"][0] == "LedgerMismatchError"
    assert "Another process" in first["error"][1]
    assert "[1]" in first["error"][1]
    assert (first["count"], second["count"]) == (3, 2)  # Charged, not taken: never the reverse.


def refuse(ledger, event):
    raise tfdp.keras.PrivacyBudgetExceededError("Enough.")


def test_processes_agree_on_the_event_or_all_raise():
    event = tfdp.SampledEvent(FullBatchSampling(7), tfdp.GaussianSumEvent(1.0, 1.0))
    other = tfdp.SampledEvent(FullBatchSampling(7), tfdp.GaussianSumEvent(1.0, 2.0))
    books = [Charging(tfdp.PrivacyLedger()) for _ in range(3)]
    *_, code = books[0].try_commit(lambda: event, (), 0, 0)
    *_, same = books[1].try_commit(lambda: event, (), 0, 0)
    assert code == same > 0
    books[0].agree(np.array([code, same]))

    *_, another = books[1].try_commit(lambda: other, (), 0, 0)
    for one in books[:2]:
        with pytest.raises(LedgerMismatchError, match="different events"):
            one.agree(np.array([code, another]))

    books[2].guards = (refuse,)
    assert books[2].try_commit(lambda: event, (), 0, 0) == (0, 0, 0)
    assert books[2].ledger.total_count == 0
    with pytest.raises(tfdp.keras.PrivacyBudgetExceededError, match="Enough"):
        books[2].agree(np.array([code, 0]))
    books[0].try_commit(lambda: event, (), 0, 0)
    with pytest.raises(LedgerMismatchError, match=r"\[1\]"):
        books[0].agree(np.array([code, 0]))
    # The next step starts anew.
    books[2].guards = ()
    assert books[2].try_commit(lambda: event, (), 0, 0)[2] == code
    books[2].agree(np.array([code, code]))


def test_parts_of_processes_are_disjoint_and_complete():
    arrays = (np.arange(7), {"y": np.arange(7) * 10}, None)
    policy = tfdp.sampling.Poisson().resolve(7, 2)
    parts = [distributed_data._part(arrays, policy, i, 3) for i in range(3)]
    assert [part[0].tolist() for part, _ in parts] == [[0, 1], [2, 3], [4, 5, 6]]
    assert [part[1]["y"].tolist() for part, _ in parts] == [[0, 10], [20, 30], [40, 50, 60]]
    assert [p.sampling_probability for _, p in parts] == [2 / 7] * 3
    assert [p.population_size for _, p in parts] == [2, 2, 3]
    with pytest.raises(ValueError, match="fewer examples than processes"):
        distributed_data._part(arrays, policy, 0, 8)


def test_a_digest_follows_values_and_forms():
    digests = [
        distributed_data._digest((x, None, None))
        for x in (
            np.zeros((600, 2), "float32"),
            np.zeros((601, 2), "float32"),
            np.zeros((600, 2), "int32"),
            np.zeros((600, 1, 2), "float32"),
            np.ones((600, 2), "float32"),
            np.eye(600, 2, dtype="float32"),
            np.eye(600, 2, -599, "float32"),
        )
    ]
    assert len(set(digests)) == len(digests)
    again = distributed_data._digest((np.zeros((600, 2), "float32"), None, None))
    assert again == digests[0]


def test_shards_of_a_batch_are_consecutive_and_equal():
    # For the devices of one of several processes, which have to be more than one CPU.
    batch = PaddedBatch({"a": tf.range(6)}, (), (), tf.constant([True] * 4 + [False] * 2))
    shards = list(distributed_data._shards(batch, 3))
    assert [shard.x["a"].numpy().tolist() for shard in shards] == [[0, 1], [2, 3], [4, 5]]
    assert [shard.mask.numpy().tolist() for shard in shards] == [[True] * 2] * 2 + [[False] * 2]
    assert distributed_data.as_drawn(shards[0]).y is None


@pytest.mark.parametrize("row_multiple", [1, 2, 3, 5])
def test_padded_rows_can_be_shared(row_multiple):
    policy = tfdp.sampling.Poisson().resolve(20, 4)
    drawn = batches(np.arange(20), None, None, policy, row_multiple=row_multiple)
    rows = {len(batch.mask) for batch in drawn.take(20)}
    assert all(count % row_multiple == 0 for count in rows)
