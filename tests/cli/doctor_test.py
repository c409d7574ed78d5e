"""`tfdp doctor`: versions, their bounds, and private steps that are really taken."""

import contextlib
import io
import json
from importlib import metadata

import numpy as np
import pytest

from tests.cli.running import run
from tfdp.cli import doctor

WORKS = {
    "works": True,
    "backend": "tensorflow",
    "devices": ["/physical_device:CPU:0"],
    "engine": "auto",
    "xla": True,
    "noise": "a cipher",
    "steps": 2,
}


@pytest.fixture
def installed(monkeypatch):
    """Makes a package of a name have a version; None where it is not installed."""
    versions = {"tfdp": "0.1.0", "numpy": "1.26.4", "scipy": "1.12.0", "tensorflow": "2.20.0"}
    requires = ["numpy>=1.26", "scipy>=1.12", "tensorflow<2.22,>=2.18"]
    requires += ['jinja2>=3.1; extra == "report"', 'pytest>=8; extra == "test"']

    def version(name):
        if versions.get(name) is None:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: requires)
    monkeypatch.setattr(doctor, "_training", lambda found: WORKS)
    return versions


def test_everything_is_well(installed, capsys):
    status, out, err = run(capsys, "doctor")
    assert (status, err) == (0, "")
    assert "tensorflow              2.20.0      <2.22,>=2.18    ok\n" in out
    assert "jinja2                  -           >=3.1           not installed  [report]\n" in out
    assert "ledgers:  are read and priced\ntraining: works (2 private steps taken)" in out
    assert "noise:    a cipher" in out
    assert "pytest" not in out


def test_json_holds_all_of_it(installed, capsys):
    status, out, err = run(capsys, "doctor", "--json")
    said = json.loads(out)
    assert (status, err, said["problems"], said["training"]) == (0, "", [], WORKS)
    packages = {package["name"]: package for package in said["packages"]}
    assert packages["tensorflow"]["supported"] is True
    assert packages["jinja2"]["extras"] == ["report"] and packages["jinja2"]["version"] is None


@pytest.mark.parametrize("version", ["2.17.1", "2.22.0", "2.22.0rc1", "3.0"])
def test_version_outside_of_the_bounds_is_a_problem(installed, capsys, version):
    installed["tensorflow"] = version
    status, out, err = run(capsys, "doctor", "--no-training")
    assert status == 2
    assert "not supported" in out
    assert f"tensorflow {version} is not supported" in err


def test_missing_tensorflow_is_no_problem_for_an_auditor(installed, capsys):
    installed["tensorflow"] = None
    status, out, err = run(capsys, "doctor", "--no-training")
    assert (status, err) == (0, "")
    assert "training: not tried" in out


def test_missing_scipy_is_a_problem_for_everybody(installed, capsys):
    installed["scipy"] = None
    status, _, err = run(capsys, "doctor", "--no-training")
    assert status == 2
    assert "scipy is not installed" in err
    assert "ledgers:  cannot be read" in run(capsys, "doctor", "--no-training")[1]


def test_private_steps_are_taken():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(doctor._TRAINING, {})
    said = json.loads(out.getvalue())
    assert said["backend"] == "tensorflow"
    assert said["steps"] == 2
    assert said["noise"].startswith("AES-256")
    assert any("CPU" in device for device in said["devices"])


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import sys; print('x'); sys.exit('no such device')", "no such device"),
        ("import os; os._exit(3)", "ended with 3"),
        ("import time; time.sleep(60)", "more than 2 seconds"),
    ],
)
def test_training_that_fails_is_said(monkeypatch, code, why):
    monkeypatch.setattr(doctor, "_TRAINING", code)
    monkeypatch.setattr(doctor, "_LONGEST", 2)
    said = doctor._training([])
    assert said["works"] is False and why in said["why"]
    (problem,) = doctor._problems([], said)
    assert why in problem and "tfdp doctor --no-training" in problem


def test_what_the_process_prints_last_is_read(monkeypatch):
    monkeypatch.setattr(doctor, "_TRAINING", "print('log'); print('{\"steps\": 2}')")
    assert doctor._training([]) == {"works": True, "steps": 2}


def test_training_is_not_tried_without_its_packages():
    keras = {"name": "keras", "version": None, "extras": []}
    assert doctor._training([keras]) == {"works": False, "why": "not installed: keras"}


def test_bounds_of_versions():
    rng = np.random.default_rng(0)
    for ours, bound in rng.integers(0, 3, (50, 2, 3)):
        text, limit = ".".join(map(str, ours)), ".".join(map(str, bound))
        assert doctor.within(text, f">={limit}") == (tuple(ours) >= tuple(bound))
        assert doctor.within(text, f"<{limit}") == (tuple(ours) < tuple(bound))
    assert doctor.within("1.2", "==1.2.0")
    with pytest.raises(ValueError, match="cannot be read"):
        doctor.within("1.2", "~~1")
