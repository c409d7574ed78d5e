"""The tutorials and the first examples of the documents run as written."""

import json
import os
import pathlib
import re
import runpy
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp

ROOT = pathlib.Path(__file__).parents[1]
SHARED = pathlib.Path(os.environ.get("TFDP_SHARED", ROOT.parent / "shared"))


def run(*command, cwd, quiet=False):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    if quiet:
        assert result.stderr == ""
    return result.stdout


def epsilons(output):
    """Epsilon by accountant, as the tutorials print them."""
    found = re.findall(r"epsilon = ([\d.]+) by (\S+)", output)
    return {name: float(value) for value, name in found}


def test_demo_trains_both_and_three_accountants_agree(tmp_path):
    demo = ROOT / "tutorials" / "digits_demo.py"
    output = run(demo, "--out", "out", "--epochs", 2, cwd=tmp_path, quiet=True)
    found = epsilons(output)
    assert set(found) == {"rdp", "pld", "dp_accounting.rdp"}
    # No progress bar and no log where there is no terminal: the table comes first.
    head, plain, private = (re.split(r"  +", line) for line in output.splitlines()[:3])
    assert head[0] == "training" and plain[0] == "not private" and plain[2] == "infinite"
    assert private[0] == "private" and float(private[2]) == pytest.approx(found["rdp"], abs=1e-3)
    assert found["pld"] < found["rdp"] == pytest.approx(found["dp_accounting.rdp"], abs=2e-3)
    assert tfdp.PrivacyLedger.load(tmp_path / "out" / "digits.ledger").total_count == 12
    assert (tmp_path / "out" / "digits.png").stat().st_size > 10_000
    assert (tmp_path / "out" / "digits.keras").exists()


def test_what_fails_while_tensorflow_starts_is_shown(tmp_path):
    code = "import os, quiet\nwith quiet.starting():\n    os.write(2, b'why'); {}"
    for then, shown in (("pass", ""), ("raise OSError", "why")):
        result = subprocess.run(
            [sys.executable, "-c", code.format(then)],
            capture_output=True,
            text=True,
            cwd=ROOT / "tutorials",
        )
        assert result.stderr[:3] == shown


def test_attacked_models_stay_below_what_their_ledgers_prove(tmp_path, monkeypatch, capsys):
    options = ["--members", 200, "--epochs", 2, "--seeds", 2, "--plot", tmp_path / "p.png"]
    output = run_here(monkeypatch, capsys, "attack_private_models.py", *options)
    rows = [line.split("|") for line in output.splitlines() if line.startswith(("| n", "| eps"))]
    assert [row[1].strip() for row in rows] == ["not private", "epsilon 10", "epsilon 1"]
    proven = [float(row[5]) for row in rows]
    # (epsilon, 0)-privacy alone would allow tanh(1 / 2) = 0.46.
    assert proven[0] == 1 > proven[1] > proven[2] and proven[2] < 0.47
    for cell in (row[column] for row in rows for column in (2, 3, 4)):
        mean, low, high = map(float, re.findall(r"[\d.]+", cell))
        assert mean == pytest.approx((low + high) / 2, abs=1e-3)  # Of two seeds.
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_shadow_models_attack_a_network(tmp_path, monkeypatch, capsys):
    options = ["--records", 120, "--shadows", 4, "--epochs", 1, "--plot", tmp_path / "lira.png"]
    output = run_here(monkeypatch, capsys, "lira.py", *options)
    rows = re.findall(r"^\| (one|LiRA|RMIA).*?\| ([\d.]+) \(", output, re.MULTILINE)
    assert [name for name, _ in rows] == ["one", "LiRA", "LiRA", "LiRA", "RMIA"]
    assert all(0 < float(auc) < 1 for _, auc in rows)
    assert (tmp_path / "lira.png").stat().st_size > 10_000


def test_a_secret_is_ranked_among_all_numbers(monkeypatch, capsys):
    output = run_here(monkeypatch, capsys, "memorised_secret.py", "--epochs", 1)
    found = re.findall(r"rank is (\d+) of 10000, exposure ([\d.]+) of 13.3 bits", output)
    assert len(found) == 2 and all(1 <= int(rank) <= 10_000 for rank, _ in found)
    for rank, bits in found:
        assert float(bits) == pytest.approx(np.log2(10_000 / int(rank)), abs=0.06)


@pytest.fixture(scope="module")
def small_mnist(tmp_path_factory):
    """A file with the keys, shapes and types of mnist.npz, of random pixels."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "mnist.npz"
    arrays = {}
    for part, size in (("train", 512), ("test", 100)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (size, 28, 28)).astype(np.uint8)
        arrays[f"y_{part}"] = rng.integers(0, 10, size).astype(np.uint8)
    np.savez(path, **arrays)
    return path


def run_here(monkeypatch, capsys, name, *options):
    """Runs a tutorial in this process, which saves importing TensorFlow; returns what it prints."""
    folder = ROOT / "tutorials"
    monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path(str(folder / name), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("clipping", ["flat", "per-layer", "joint"])
def test_mnist_tutorial_stays_within_its_epsilon(
    tmp_path, small_mnist, clipping, monkeypatch, capsys
):
    options = ["--data", small_mnist, "--clipping", clipping, "--epochs", 1, "--epsilon", 2]
    options += ["--ledger", tmp_path / "l", "--plot", tmp_path / "p.png"]
    output = run_here(monkeypatch, capsys, "mnist_dpsgd.py", *options)
    # The noise is chosen for this epsilon, so little of it is left over.
    assert 1.98 < epsilons(output)["rdp"] <= 2.0
    assert tfdp.PrivacyLedger.load(tmp_path / "l").total_count == 2
    assert (tmp_path / "p.png").exists()


def test_components_and_training_of_mnist_share_one_budget(
    tmp_path, small_mnist, monkeypatch, capsys
):
    ledger = tmp_path / "l"
    options = ["--data", small_mnist, "--epsilon", 2, "--lot", 64, "--ledger", ledger]
    output = run_here(monkeypatch, capsys, "abadi_mnist.py", *options, "--noise", 3)
    (spent,) = re.findall(r"accuracy 0\.\d+, epsilon ([\d.]+), of which", output)
    assert 1.8 < float(spent) <= 2.0
    assert "paper 0.95" in output
    saved = tfdp.PrivacyLedger.load(ledger)
    components, training = [event for event, _ in saved]
    assert (components.event.noise_multiplier, training.event.noise_multiplier) == (7.0, 3.0)
    assert saved.epsilon(1e-5) == pytest.approx(float(spent), abs=1e-4)


def test_whitened_components_keep_the_size_of_inputs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tutorials"))
    import abadi_mnist

    from tfdp.statistics.features import Components

    scatter = np.array([9.0, 4.0, 1.0])
    components = Components(np.eye(4)[:3], scatter)
    rows = np.random.default_rng(0).normal(size=(20_000, 4))[:, :3] * np.sqrt(scatter)
    for power in (0.0, 0.25, 0.5):
        found = abadi_mnist.scaled_directions(components, power)
        inputs = rows @ found[:3]
        # A row's mean square is 14 before, and three times that after.
        np.testing.assert_allclose(np.mean(np.sum(inputs**2, axis=1)), 3 * 14, rtol=0.03)
        expected = scatter ** (1 - 2 * power) / np.mean(scatter ** (1 - 2 * power))
        np.testing.assert_allclose(np.mean(inputs**2, 0) / np.mean(inputs**2), expected, rtol=0.06)
    # Noise can make a scatter negative, which has no power.
    noised = Components(np.eye(4)[:3], np.array([9.0, 4.0, -1.0]))
    assert np.all(np.isfinite(abadi_mnist.scaled_directions(noised, 0.5)))


def test_noise_that_leaves_no_epoch_is_left_out_of_the_effects(
    tmp_path, small_mnist, monkeypatch, capsys
):
    plot = tmp_path / "p.png"
    options = ["--data", small_mnist, "--show", "effects", "--vary", "noise_multiplier"]
    options += ["--epsilon", 2, "--noise", 1.2, "--lot", 64, "--plot", plot]
    output = run_here(monkeypatch, capsys, "abadi_mnist.py", *options)
    found = re.findall(r"noise_multiplier +([\d.]+)  (left out. The budget|accuracy)", output)
    assert [float(noise) for noise, _ in found] == [0.96, 1.2, 1.8, 2.4]
    assert found[0][1].startswith("left out") and found[-1][1] == "accuracy"
    assert plot.stat().st_size > 10_000


def test_epsilon_of_the_paper_grows_slower_by_moments(tmp_path, monkeypatch, capsys):
    plot = tmp_path / "p.png"
    options = ["--show", "figure2", "--plot", plot]
    output = run_here(monkeypatch, capsys, "abadi_mnist.py", *options)
    # Section 5.1 of the paper: 1.26 after 100 epochs by moments.
    (moments,) = re.findall(r"^ +100 +([\d.]+)", output, re.MULTILINE)
    assert float(moments) == pytest.approx(1.26, abs=0.005)
    assert plot.stat().st_size > 10_000


SHOWN = {
    "table": ["theta_u = 0.1 ", "paper 0.8832"],
    "figure9": ["N = 2, asynchronous", "N = 3, round robin"],
    "figure9 of batches": ["N = 2, asynchronous"],
    "figure10": ["theta_d = 0.5"],
    "figure11": ["gamma = 0.01, tau = 0.01"],
    # Epsilon 1 for each of 14,010 numbers, in two epochs.
    "private": ["14010 numbers", "1.401e+04 2.802e+04", "Gaussian, C 0.3, z 0.5"],
}


@pytest.mark.parametrize("show", SHOWN)
def test_selective_sgd_shows_table_and_figures(tmp_path, small_mnist, show, monkeypatch, capsys):
    plot = tmp_path / "p.png"
    figure, *batches = show.split(" of ")
    options = ["--data", small_mnist, "--show", figure, "--participants", 2, 3, "--plot", plot]
    options += ["--epochs", 2, "--epochs-of-sgd", 1, "--theta-u", 0.1, "--batch-size", 128]
    if batches:
        options += ["--batches", 3, "--training-share", 0.5]
    if show == "private":
        options += ["--epsilon-per-parameter", 1, "--noise-multiplier", 0.5]
    output = run_here(monkeypatch, capsys, "dssgd_mnist.py", *options)
    assert "140,106 parameters" in output and plot.stat().st_size > 10_000
    assert all(words in output for words in SHOWN[show])


def test_speakers_are_users_of_both_ways_at_one_epsilon(tmp_path, monkeypatch, capsys):
    said = [f"Speaker {i % 12}:\nTo be or not to be, that is {i}.\nAye." for i in range(24)]
    # A speaker who says less than an example takes is none.
    data = tmp_path / "said.txt"
    data.write_text("\n\n".join([*said, "Silent:\nNo."]), encoding="utf-8")
    options = ["--data", data, "--rounds", 2, "--most", 20, "--share", 0.5]
    output = run_here(monkeypatch, capsys, "fedavg_shakespeare.py", *options)
    assert "12 speakers, " in output
    found = dict(re.findall(r"^(\S.*?) +accuracy .*, epsilon (\S+);", output, re.MULTILINE))
    assert found["federated, no noise"] == found["central, no noise"] == "inf"
    # One of the 12 is held out; 6 of the 11 others are expected in a cohort.
    event = tfdp.events.GaussianSumEvent(1.0, 2.0)
    sampling = tfdp.events.PoissonSampling(6 / 11, 11)
    relation = tfdp.NeighboringRelation.ZERO_OUT
    sampled = tfdp.events.SampledEvent(sampling, event, relation, "user")
    ledger = tfdp.PrivacyLedger()
    ledger.append(sampled, count=2)
    assert found["federated"] == found["central"] == f"{ledger.epsilon(1e-3):.2f}"


def test_speakers_are_the_units_of_fit(monkeypatch, capsys):
    options = ["--steps", 2, "--most", 12, "--in-a-step", 1, 3, "--delta", 0.01]
    output = run_here(monkeypatch, capsys, "users_shakespeare.py", *options)
    assert "20 speakers, " in output
    # Two of the 20 are held out; 9 of the 18 others are expected in a step.
    step = tfdp.events.SampledEvent(
        tfdp.events.PoissonSampling(0.5, 18),
        tfdp.events.GaussianSumEvent(1.0, 4.0),
        tfdp.NeighboringRelation.ZERO_OUT,
        "user",
    )
    ledger = tfdp.PrivacyLedger()
    ledger.append(step, count=2)
    found = re.findall(r"epsilon of a speaker (\S+);", output)
    assert found == [f"{ledger.epsilon(0.01):.2f}"] * 2
    group = tfdp.accounting.PRVAccountant(group_size=12)
    assert f"12 of one speaker: epsilon {ledger.epsilon(0.01, group):.3g}" in output


@pytest.mark.parametrize(
    ("record", "ways"),
    [
        ("sequence", ["all weights, a clip for each layer", "LoRA"]),
        ("speaker", ["all weights, AdamBC"]),
    ],
)
def test_decoder_is_fine_tuned_within_its_epsilon(record, ways, tmp_path, monkeypatch, capsys):
    data = tmp_path / "said.txt"
    said = [f"Speaker {i % 40}:\nTo be or not to be, that is {i}.\nAye.\n" for i in range(80)]
    data.write_text("\n".join(said), encoding="utf-8")
    options = ["--data", data, "--record", record, "--length", 8, "--width", 4, "--steps", 2]
    options += ["--public-epochs", 1, "--in-a-step", 2, "--share", 0.5, "--delta", 0.01]
    options += ["--plot", tmp_path / "p.png"]
    output = run_here(monkeypatch, capsys, "language.py", *options, "--epsilon", 2, "--ways", *ways)
    rows = re.findall(r"^\| (.+) \| ([\d.]+) \| ([\d.]+) \(", output, re.MULTILINE)
    assert [name for name, *_ in rows] == ["the public half alone", *ways]
    assert [float(row[1]) for row in rows] == [0, *[pytest.approx(2, abs=0.02)] * len(ways)]
    # No better than to know all of it, and not much worse than to guess among its characters.
    assert all(1 < float(row[2]) < 60 for row in rows)
    # Of the 40 speakers of the second half, four are for the test.
    assert ("36 records" in output) == (record == "speaker")
    assert (tmp_path / "p.png").stat().st_size > 10_000


def test_adapters_alone_are_trained(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tutorials"))
    import language

    model = language.with_adapters(language.make_decoder(8, 5, 4), rank=2)
    # Two for each of seven dense layers: three of attention, its output, two hidden, the logits.
    assert len(model.trainable_variables) == 14
    assert all("lora" in variable.path for variable in model.trainable_variables)


def test_decoder_sees_no_later_character(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tutorials"))
    import language

    keras.utils.set_random_seed(0)
    model = language.make_decoder(8, 5, 4)
    text = np.random.default_rng(0).integers(0, 5, (1, 8))
    for place in range(8):
        other = text.copy()
        other[0, place] = (other[0, place] + 1) % 5
        change = np.abs(model(text) - model(other)).max(axis=(0, 2))
        assert np.all(change[:place] == 0) and change[place] > 0


def test_mnist_file_has_what_the_tutorial_reads():
    path = SHARED / "data" / "mnist.npz"
    if not path.exists():
        pytest.skip(f"no {path}; set TFDP_SHARED to the folder of shared data")
    with np.load(path) as data:
        assert data["x_train"].shape == (60_000, 28, 28) and data["x_train"].dtype == np.uint8
        assert data["x_test"].shape == (10_000, 28, 28)


def _blocks(name):
    """Returns the Python that stands in a document."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_first_example_of_the_readme_runs(tmp_path):
    blocks = _blocks("README.md")
    script = tmp_path / "example.py"
    script.write_text(blocks[0] + "\nprint(epsilon, model.ledger.total_count)\n")
    epsilon, steps = map(float, run(script, cwd=tmp_path).split()[-2:])
    # It stops just before the budget of 3 is overspent.
    assert 2.9 < epsilon <= 3.0 and steps > 50
    output = run("-m", "tfdp", "replay", "first.ledger", "--delta", "1e-4", cwd=tmp_path)
    assert f"{epsilon:.4f}"[:5] in output


def test_first_example_of_getting_started_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Fewer passes than are written: the example of the README shows that the budget ends them.
    code = _blocks("docs/getting_started.md")[0].replace("epochs=100", "epochs=3")
    names = {}
    exec(compile(code, "docs/getting_started.md", "exec"), names)
    assert 0 < names["epsilon"] < 3
    assert names["model"].ledger.total_count == names["ledger"].total_count == 3 * 7
    assert (tmp_path / "model.keras").exists()


def test_per_layer_example_of_getting_started_compiles():
    code = _blocks("docs/getting_started.md")[1]
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    private = tfdp.keras.make_private(model)
    exec(compile(code, "docs/getting_started.md", "exec"), {"model": private, **LIBRARIES})
    private.fit(np.zeros((8, 4)), np.zeros(8), batch_size=4, verbose=0)
    assert private.ledger.total_count == 2


LIBRARIES = {"tfdp": tfdp, "keras": keras, "tf": tf}


def _small_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])


def test_examples_of_resuming_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {
        **LIBRARIES,
        "build_model": _small_model,
        "query": tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=256),
        "x": np.zeros((512, 4)),
        "y": np.zeros((512, 2)),
    }
    before = tfdp.keras.make_private(_small_model())
    before.compile(tfdp.keras.DPOptimizer(keras.optimizers.Adam(), names["query"]), loss="mse")
    before.fit(names["x"], names["y"], batch_size=256, verbose=0)
    before.save_weights("x.weights.h5")
    going_on, on_the_disk = _blocks("docs/resuming.md")
    exec(compile(going_on, "docs/resuming.md", "exec"), names)
    assert names["model"].ledger.total_count == 4
    exec(compile(on_the_disk, "docs/resuming.md", "exec"), names)
    assert (tmp_path / "patients.ledger").exists()
    names["ledger"].close()


def test_example_of_several_devices_runs():
    names = {
        **LIBRARIES,
        "build_model": _small_model,
        "query": tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=256),
        "x": np.zeros((512, 4)),
        "y": np.zeros((512, 2)),
    }
    (code,) = _blocks("docs/devices.md")
    exec(compile(code, "docs/devices.md", "exec"), names)
    assert names["model"].ledger.total_count == 2


def test_custom_loop_is_traced_once_and_again_for_a_sample_that_is_large():
    (code,) = _blocks("docs/custom_loops.md")
    step = "    step(batch)"
    assert code.count(step) == 1
    code = code.replace(step, f"    rows.add(len(batch.x))\n{step}")
    rng = np.random.default_rng(0)
    names = {
        "tfdp": tfdp,
        "keras": keras,
        "tf": tf,
        "x": rng.normal(size=(600, 4)).astype("float32"),
        "y": rng.integers(0, 2, 600),
        "model": keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "query": tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=256),
        "rows": set(),
    }
    exec(compile(code, "docs/custom_loops.md", "exec"), names)
    # A hundred samples hold one that exceeds three deviations in one run of eight. The second
    # trace takes any number of rows.
    assert names["step"].experimental_get_tracing_count() == min(len(names["rows"]), 2)
    assert names["optimizer"].ledger.total_count == 100


def test_models_of_a_table_stay_within_their_epsilon(monkeypatch, capsys):
    options = ["--rows", 500, "--batch-size", 100, "--epochs", 2, "--epsilon", 1, "--trees", 4]
    output = run_here(monkeypatch, capsys, "tabular.py", *options)
    rows = [line.strip("| ").split(" | ") for line in output.splitlines()[2:8]]
    assert [row[0] for row in rows] == ["regression"] * 2 + ["trees"] * 2 + ["network"] * 2
    assert [row[1] for row in rows[1::2]] == ["inf"] * 3
    # The noise is chosen for this epsilon, with the quantiles of trees in it.
    assert all(0.99 < float(row[1]) <= 1 for row in rows[::2])
    assert all(0.3 < float(row[2].split()[0]) < 0.95 for row in rows)


def test_losses_of_a_plan_are_read_off_a_curve(tmp_path, monkeypatch, capsys):
    plot = tmp_path / "p.png"
    options = ["--widths", 4, "--ratios", 1e-3, 1.0, "--rates", 0.02, "--steps", 2, "--plot", plot]
    options += ["--batch-size", 16, "--batch-sizes", 16, "--epsilon", 2]
    output = run_here(monkeypatch, capsys, "scaling_laws.py", *options)
    low, high, planned = re.findall(r"^\| 4 \| (.*) \|$", output, re.MULTILINE)
    low, high = (float(row.split(" | ")[1]) for row in (low, high))
    epsilon, batch_size, ratio, foretold, _, spent = map(float, planned.split(" | "))
    # The noise is what fits the budget, and the loss is between those at the ratios around it.
    assert 1.98 < spent <= epsilon == 2 and min(low, high) <= foretold <= max(low, high)
    size = int(re.search(r"of (\d+) records", output)[1])
    plan = tfdp.accounting.calibrate(
        target_epsilon=2, target_delta=1e-6, population_size=size, batch_size=16, steps=2
    )
    assert ratio == pytest.approx(plan.noise_batch_ratio, rel=0.05)
    assert "1 runs of the plan" in output and plot.stat().st_size > 10_000


def test_images_that_are_made_cost_what_the_discriminator_does(
    tmp_path, small_mnist, monkeypatch, capsys
):
    options = ["--data", small_mnist, "--steps", 6, "--batch-size", 64, "--width", 8, "--made", 200]
    output = run_here(
        monkeypatch, capsys, "private_gan.py", *options, "--plot", tmp_path / "made.png"
    )
    (epsilon, steps) = re.findall(r"epsilon ([\d.]+) at .* (\d+) steps", output)[0]
    assert 9.9 < float(epsilon) <= 10.0
    assert steps == "6"
    assert len(re.findall(r"test accuracy 0\.\d+", output)) == 2
    assert (tmp_path / "made.png").exists()


# Constants of the notebooks, in small.
SMALL = {
    "CANARIES": 200,
    "EPOCHS": 1,
    "LENGTH": 12,
    "MESSAGES": 600,
    "PEOPLE": 2_000,
    "REPEATS": 5,
    "ROUNDS": 2,
    "RUNS": 2,
    "STEPS": 20,
}
NOTEBOOKS = sorted(path.name for path in (ROOT / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs_in_small(name, tmp_path, monkeypatch):
    """Its cells, one after another, in this process: a kernel would import TensorFlow again."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    if name == "keras_hub_lora.ipynb":
        pytest.importorskip("keras_hub")
    monkeypatch.chdir(tmp_path)
    book = json.loads((ROOT / "tutorials" / name).read_text(encoding="utf-8"))
    cells = [c for c in book["cells"] if c["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells), "Clear the outputs before it is committed."
    names = {}
    for i, cell in enumerate(cells):
        code = "".join(cell["source"])
        for constant, value in SMALL.items():
            code = re.sub(rf"^{constant} = [\d_]+", f"{constant} = {value}", code, flags=re.M)
        exec(compile(code, f"{name}:{i}", "exec"), names)
    assert names["plt"].get_fignums(), "It draws a figure."
    names["plt"].close("all")
    assert SHOWN_BY_NOTEBOOKS[name](names)


SHOWN_BY_NOTEBOOKS = {
    "audit.ipynb": lambda n: 0 < n["correct"] <= n["guesses"] and n["proven"] < 2,
    "custom_loop.ipynb": lambda n: n["optimizer"].ledger.total_count == n["steps"] == 9,
    "federated.ipynb": lambda n: n["count"] == 2 and n["event"].privacy_unit == "user",
    "fine_tuning.ipynb": lambda n: (
        "convert_norm" in n["refused"] and n["epsilons"][0] == n["epsilons"][1] > 0
    ),
    "first_private_model.ipynb": lambda n: n["model"].ledger.total_count == 7,
    "keras_hub_lora.ipynb": lambda n: (
        n["sizes"]["LoRA of rank 4"] < n["sizes"]["all weights"]
        and n["spent"]["LoRA of rank 4"] == n["spent"]["all weights"] > 0
    ),
    "large_data.ipynb": lambda n: (
        all(
            isinstance(e.sampling, tfdp.events.PoissonSampling)
            for ledger in n["ledgers"].values()
            for e, _ in ledger
        )
        and n["epsilons"]["memory maps"] == n["epsilons"]["tf.data"]
    ),
    "ledger_and_replay.ipynb": lambda n: (
        n["counter"].steps == 2_000 and n["epsilons"]["prv"] < n["together"]
    ),
    "mechanisms.ipynb": lambda n: all(0.7 < cost < 1.1 for cost in n["costs"].values()),
    "nested_and_joint_clipping.ipynb": lambda n: (
        [*n["epsilons"].values()] == pytest.approx([n["epsilons"]["one clip"]] * 3, rel=1e-6)
    ),
    "own_query_and_accountant.ipynb": lambda n: (
        n["curves"]["prv"] < n["curves"]["rdp"] < n["curves"]["sum of rho"]
        and "cannot price" in n["refused"]
    ),
    "statistics.ipynb": lambda n: 0 < n["spent"] < 2 and "What is left" in n["refused"],
    "tabular.ipynb": lambda n: n["asked"] < n["spent"][-1] < 2.2,
    "text_lstm.ipynb": lambda n: len(n["written"]) == 3 and n["epsilons"][0] > 0,
    "tuning.ipynb": lambda n: (
        n["ledger"].total_count == 1 and n["one"] < n["searched"] < 3 * n["one"]
    ),
}
