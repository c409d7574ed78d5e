"""The arithmetic of the benchmarks, and that workers are asked and fail as they should."""

import pathlib
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import cost_model  # noqa: E402
import fit  # noqa: E402
import fit_models  # noqa: E402
import fit_parts  # noqa: E402
import inputs  # noqa: E402
import measure  # noqa: E402
import million_steps  # noqa: E402
import scaling  # noqa: E402
import step_time  # noqa: E402
import table  # noqa: E402
import workloads  # noqa: E402

PARAMETERS = {
    "mlp": 1_796_010,  # 784 * 1000 + 1000 + 1000 * 1000 + 1000 + 1000 * 10 + 10
    "cnn": 26_010,  # 1040 + 8224 + 512 * 32 + 32 + 330
    # 864 + 64; 18432 + 1024 + 192, 55296 + 2048 + 384, 221184 + 8192 + 768 (kernels of 3 x 3, of
    # 1 x 1, three norms); 1290.
    "resnet": 309_738,
    # 8000 * 128 + 64 * 128; twice four projections of 128 * 128 + 128, 512 * 128 + 512, 512 * 128
    # + 128 and norms of 512 in all; 258.
    "transformer": 1_428_994,
    "lstm": 545_154,  # 8000 * 64 + 4 * (64 * 64 + 64 * 64 + 64) + 130
    "embedding": 16_000_130,
}


@pytest.mark.parametrize("workload", list(inputs.SIZES))
def test_workloads_have_their_parameters(workload):
    changes = {"vocabulary": 1000} if workload == "embedding" else {}
    expected = PARAMETERS[workload] - (249_000 * 64 if changes else 0)
    assert workloads.build(workload, changes).count_params() == expected


def test_batch_fits_the_model():
    x, y = inputs.batch("transformer", inputs.sizes("transformer", batch_size=3))
    assert x.shape == (3, 64) and x.max() < 8000 and y.shape == (3,) and set(y) <= {0, 1}
    with pytest.raises(ValueError, match="mlp has no"):
        inputs.sizes("mlp", length=3)


def test_summary_has_quartiles():
    # Of 1, 2, 3, 4, 5 a quarter is at or below 2.
    expected = {"median": 3, "lower_quartile": 2, "upper_quartile": 4}
    assert measure.summary([5, 1, 4, 2, 3]) == expected
    assert measure.summary([7])["upper_quartile"] == 7


def test_ratio_pairs_rounds():
    # Medians 20 and 10 of all steps. The machine was slow in round 1, for both: the ratios of the
    # rounds are 2 and 2. Round 2 has no partner.
    ratio = measure.ratio({0: [20, 20], 1: [80], 2: [20]}, {0: [10, 10], 1: [40]})
    assert ratio == {"ratio": 2, "lower_quartile": 2, "upper_quartile": 2}


def test_long_steps_have_short_blocks():
    assert measure.Block.of(10, rounds=15, block_s=0.4) == (40, 1, 1)
    assert measure.Block.of(0.1, rounds=15, block_s=0.4) == (50, 1, 1)
    assert measure.Block.of(900, rounds=15, block_s=0.4) == (1, 0, 2)
    assert measure.Block.of(60_000, rounds=15, block_s=0.4) == (1, 0, 3)  # Five rounds of 15.


def test_last_error_leaves_out_the_calls():
    log = "Traceback\n  File x\nValueError: one\n\nTraceback\n  File y\na.b.OOMError: two\nthree\n"
    assert measure.last_error(log) == "a.b.OOMError: two / three"
    assert measure.last_error("Killed\n") == "Killed"


def _variant(step_ms, memory=100.0):
    facts = {"growth_before_steps_mib": memory, "imports_mib": 50.0, "parameters": 1}
    facts |= {"build_s": 0.1, "first_step_s": 0.2, "version": "v"}
    timings = measure.Timings({0: [step_ms], 1: [step_ms]}, {0: [step_ms], 1: [step_ms]})
    return step_time.figures(facts, timings, 10.0), timings


def test_ratios_are_to_the_faster_ordinary_step():
    steps = {
        "keras": 10.0,
        "keras_xla": 8.0,
        "private": 13.0,
        "private_xla": 12.0,
        "torch": 6.0,
        "opacus": 24.0,
    }
    both = {name: _variant(ms) for name, ms in steps.items()}
    measured = {name: figures for name, (figures, _) in both.items()}
    found = step_time.ratios(measured, {name: timings for name, (_, timings) in both.items()})
    assert {name: r["wall"]["ratio"] for name, r in found.items()} == {
        "private / keras_xla": 1.625,
        "private_xla / keras_xla": 1.5,
        "opacus / keras_xla": 3,
        "opacus / torch": 4,
    }
    result = {
        "workload": "mlp",
        "size": {"batch_size": 256},
        "threads": 1,
        "variants": measured,
        "ratios": found,
        "failures": {"opacus_ew": "RuntimeError: can't allocate memory", "jax_privacy": "no jax"},
    }
    assert found["private_xla / keras_xla"]["memory"] == 1
    row = table.render([result]).splitlines()[-1]
    assert row == (
        "| mlp, batch 256 | 10.0 | 8.0 | 13.0 | 12.0 | 1.50 | 1.50 | 1.00 | 24.0 (6.0) | "
        "out of memory | - | fails |"
    )
    assert "private_xla / keras_xla: wall 1.50" in step_time.report(result)


@pytest.mark.parametrize(
    "script", [step_time, table, scaling, cost_model, fit, fit_parts], ids=lambda m: m.__name__
)
def test_options_are_explained(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["script", "--help"])
    with pytest.raises(SystemExit) as end:
        script.main()
    assert end.value.code == 0 and "python benchmarks/" in capsys.readouterr().out


STEPS = """
import time

def set_threads(threads):
    pass

def make_step(variant, options):
    if variant == "broken":
        raise RuntimeError("cannot build this")
    held = []
    def step():
        held.append(bytearray(options["mib"] << 20))
        time.sleep(0.001)
    return step, {"parameters": 1, "version": "1"}
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    (tmp_path / "made_up_steps.py").write_text(STEPS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda variant: measure.Worker(variant, "made_up_steps", threads=1, memory_gib=1)


def test_workers_take_turns_and_tell_time_and_memory(start):
    with start("a") as a, start("b") as b:
        workers = {"a": a, "b": b}
        facts = {name: worker.ask("build", mib=8) for name, worker in workers.items()}
        # Three steps so far, of 8 MiB each.
        assert 24 <= facts["a"]["growth_before_steps_mib"] < 40
        timings, growth, failures = measure.alternate(workers, {"a": 10, "b": 50}, 2, 0.05)
    assert not failures
    assert {i: len(steps) for i, steps in timings["a"].wall_ms.items()} == {0: 5, 1: 5}
    assert {i: len(steps) for i, steps in timings["b"].cpu_ms.items()} == {0: 1, 1: 1}
    assert min(measure.flat(timings["a"].wall_ms)) >= 1
    assert growth["a"] > growth["b"] > 0


def test_worker_that_fails_says_why_and_the_others_go_on(start):
    with start("broken") as broken, pytest.raises(measure.WorkerError, match="cannot build this"):
        broken.ask("build", mib=1)
    with start("a") as a, start("greedy") as greedy:
        warm_ms = {"a": a.ask("build", mib=1), "greedy": greedy.ask("build", mib=100)}
        warm_ms = dict.fromkeys(warm_ms, 1.0)
        workers = {"greedy": greedy, "a": a}
        timings, _, failures = measure.alternate(workers, warm_ms, rounds=2, block_s=0.02)
    assert list(failures) == ["greedy"] and "MemoryError" in failures["greedy"]
    assert len(timings["a"].wall_ms) == 2


def test_peers_bring_their_ordinary_step():
    assert step_time.variants_of(["none"]) == ["keras", "keras_xla", "private", "private_xla"]
    assert step_time.variants_of(["opacus", "opacus_ghost"])[4:] == [
        "torch",
        "opacus",
        "opacus_ghost",
    ]


@pytest.mark.parametrize("positions", [1, 16, 300])
def test_cost_model_ways_agree_and_the_choice_is_the_engines(positions):
    row = cost_model.measure_case(cost_model.dense(positions, 8, 4), seconds=0)
    assert row["chosen"] == {1: "norms", 16: "explicit", 300: "explicit"}[positions]
    assert row["lost"] >= 1 and row["ms"][row["best"]] == min(row["ms"].values())
    totals = cost_model.summary([{"lost": 1.0}, {"lost": 1.2}, {"lost": 3.0}, {"lost": 1.25}])
    assert totals["share_within_factor"] == 0.75 and totals["largest_loss"] == 3


def test_fit_is_measured_by_the_step_and_the_first_one_apart():
    facts = {"parameters": 1, "version": "v", "growth_before_steps_mib": 10.0}
    facts = {
        "keras": {**facts, "first_step_s": 2.0, "first_step_cpu_s": 1.0},
        "private": {**facts, "first_step_s": 6.0, "first_step_cpu_s": 5.0},
    }
    # Epochs of 20 steps: 5 ms a step and 8 ms.
    timings = {
        "keras": measure.Timings({0: [100.0], 1: [100.0]}, {0: [100.0], 1: [100.0]}),
        "private": measure.Timings({0: [160.0], 1: [160.0]}, {0: [150.0], 1: [150.0]}),
    }
    growth = {"keras": 8.0, "private": 15.0}
    found = fit.figures(facts, timings, growth, 20, {})
    assert found["variants"]["keras"]["step_wall_ms"]["median"] == 5
    assert found["ratios"]["wall"]["ratio"] == 1.6 and found["ratios"]["cpu"]["ratio"] == 1.5
    one = {"model": "m", "batch_size": 4}
    assert fit.row({**one, **found}) == (
        "| m, batch 4 | 5.0 / 7.5 | 1.50 | 1.60 | 1.0 / 5.0 | 5.0 | 10 / 15 | 1.50 |"
    )
    failed = fit.figures({"keras": facts["keras"]}, timings, growth, 20, {"private": "no memory"})
    assert "ratios" not in failed and "private: no memory" in fit.render([{**one, **failed}])


@pytest.mark.parametrize(
    "name", ["tabular", "decoder", "two_layers", "recommender", "siamese", "translation"]
)
def test_models_of_fit_take_their_data(name):
    chosen = fit_models.MODELS[name]
    x, y = chosen.rows(np.random.default_rng(0), 2)
    logits = chosen.build()(x)
    assert logits.shape[:-1] == y.shape and np.max(y) < logits.shape[-1]


def test_worker_of_fit_trains_both_ways():
    from peers import fit_steps

    options = {"model": "two_layers", "batch_size": 2, "steps": 3, "engine": "auto"}
    for variant in fit.VARIANTS:
        step, facts = fit_steps.make_step(variant, options)
        step()
        step()
        assert facts["parameters"] == 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10


def test_parts_of_fit_are_timed_both_ways():
    found = fit_parts.measure("two_layers", 2, 3, 1)
    assert list(found) == list(fit_parts.PARTS)
    for plain, private in found.values():
        assert plain > 0 and private > 0


@pytest.mark.parametrize("sampling", million_steps.SAMPLINGS)
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_run_of_many_steps_is_charged_as_fit_charges_it(tmp_path, sampling, on_disk):
    run = million_steps.Run(sampling, 40, 10, on_disk, tmp_path)
    parts = list(run.parts(40, 2, 20))
    assert [part["steps"] for part in parts] == [20, 40]
    assert run.ledger.total_count == 40
    assert parts[1]["epsilon"] >= parts[0]["epsilon"] > 0  # A run of correlated noise has one.
    assert (parts[1]["ledger_kib"] > 0) == on_disk
