"""The command `tfdp doctor`: what is installed, and whether training works here."""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

HELP = "say what is installed, and whether private training works here"
EXAMPLE = "tfdp doctor"
# What every command that reads or prices a ledger needs.
_FOR_AUDITS = ("numpy", "scipy")
_FOR_DEVELOPERS = ("docs", "test")
# Tried in a process of its own: TensorFlow may write to its output, or end the process.
_TRAINING = """
import json
import keras
import numpy as np
import tensorflow as tf
import tfdp

query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=4)
model = tfdp.keras.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query)
model.compile(optimizer, loss="mse")
model.fit(np.zeros((8, 2)), np.zeros((8, 1)), batch_size=4, verbose=0)
try:
    xla = float(tf.function(lambda x: x + 1.0, jit_compile=True)(tf.constant(1.0))) == 2.0
except tf.errors.OpError:
    xla = False
print(json.dumps({
    "backend": keras.backend.backend(),
    "devices": [device.name for device in tf.config.list_physical_devices()],
    "engine": optimizer.engine,
    "xla": xla,
    "noise": tfdp.noise.SystemRandomSource.__doc__.splitlines()[0],
    "steps": model.ledger.total_count,
}))
"""
_LONGEST = 300  # Seconds; a cold start takes less than 60.
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*([^;]*)(?:;\s*(.*))?$")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument(
        "--no-training", action="store_true", help="do not start TensorFlow for a private step"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> Iterator[str]:
    """Runs the command and yields what it prints.

    Raises:
        ValueError: something is missing or does not work, after everything is printed.
    """
    found = _packages()
    training = None if arguments.no_training else _training(found)
    problems = list(_problems(found, training))
    said = {
        "tfdp": _version("tfdp"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": found,
        "ledgers": all(p["supported"] for p in found if p["name"] in _FOR_AUDITS),
        "training": training,
        "problems": problems,
    }
    yield (json.dumps(said, indent=2) if arguments.json else _text(said)) + "\n"
    if problems:
        raise ValueError("; ".join(problems))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _packages() -> list[dict[str, Any]]:
    """Returns each package that tfdp requires; those of extras after those of all."""
    try:
        requirements = metadata.requires("tfdp") or []
    except metadata.PackageNotFoundError as error:
        raise ValueError(
            "tfdp itself is not installed, so that nothing says what it requires. Install it: "
            "pip install tfdp"
        ) from error
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None:
            raise ValueError(f"A requirement of tfdp cannot be read: {requirement!r}.")
        name, wanted, condition = match.groups()
        extra = _EXTRA.search(condition or "")
        if extra and extra[1] in _FOR_DEVELOPERS:
            continue
        wanted, version = wanted.strip().strip("()"), _version(name)
        package = found.setdefault(
            (name, wanted),
            {
                "name": name,
                "version": version,
                "wanted": wanted,
                "extras": [],
                "supported": None if version is None else within(version, wanted),
            },
        )
        package["extras"] += [extra[1]] if extra else []
    return sorted(found.values(), key=lambda package: package["extras"])


def within(version: str, wanted: str) -> bool:
    """Returns whether a version satisfies all of ">=1.2,<2"; only the numbers of a release count.

    Example:
        >>> within("2.21.0", "<2.22,>=2.18"), within("2.22.0rc1", "<2.22"), within("1.26", "==1.26")
        (True, False, True)
    """
    return all(_satisfies(version, part) for part in wanted.split(",") if part)


def _satisfies(version: str, part: str) -> bool:
    match = re.match(r"\s*(>=|<=|==|<|>|!=)\s*(\S+)", part)
    if match is None:
        raise ValueError(f"A requirement of tfdp cannot be read: {part!r}.")
    ours, bound = _release(version), _release(match[2])
    length = max(len(ours), len(bound))
    ours, bound = (numbers + (0,) * (length - len(numbers)) for numbers in (ours, bound))
    return {
        ">=": ours >= bound,
        "<=": ours <= bound,
        "==": ours == bound,
        "!=": ours != bound,
        "<": ours < bound,
        ">": ours > bound,
    }[match[1]]


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    if match is None:
        raise ValueError(f"A version cannot be read: {version!r}.")
    return tuple(map(int, match[0].split(".")))


def _training(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Takes private steps in a process of its own, and returns what it says or why it failed."""
    missing = [p["name"] for p in found if not p["extras"] and p["version"] is None]
    if missing:
        return {"works": False, "why": f"not installed: {', '.join(missing)}"}
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _TRAINING],
            capture_output=True,
            text=True,
            env=environment,
            timeout=_LONGEST,
        )
    except subprocess.TimeoutExpired:
        return {"works": False, "why": f"a private step took more than {_LONGEST} seconds"}
    if ran.returncode:
        why = (ran.stderr.strip().splitlines() or [f"the process ended with {ran.returncode}"])[-1]
        return {"works": False, "why": why}
    return {"works": True, **json.loads(ran.stdout.splitlines()[-1])}


def _problems(found: list[dict[str, Any]], training: dict[str, Any] | None) -> Iterator[str]:
    for package in found:
        if package["supported"] is False:
            yield (
                f"{package['name']} {package['version']} is not supported, {package['wanted']} is"
            )
        if package["version"] is None and package["name"] in _FOR_AUDITS:
            yield f"{package['name']} is not installed, and no command works without it"
    if training is not None and not training["works"]:
        yield (
            f"private training does not work: {training['why']}. Whoever only reads ledgers needs "
            "none: tfdp doctor --no-training"
        )


def _text(said: dict[str, Any]) -> str:
    lines = [f"tfdp {said['tfdp']}, Python {said['python']}, {said['platform']}", ""]
    for package in said["packages"]:
        state = {True: "ok", False: "not supported", None: "not installed"}[package["supported"]]
        extra = f"  [{', '.join(package['extras'])}]" if package["extras"] else ""
        lines.append(
            f"  {package['name']:<24}{package['version'] or '-':<12}{package['wanted']:<16}"
            f"{state}{extra}"
        )
    training = said["training"]
    lines += ["", f"ledgers:  {'are' if said['ledgers'] else 'cannot be'} read and priced"]
    if training is None:
        return "\n".join([*lines, "training: not tried"])
    if not training["works"]:
        return "\n".join([*lines, f"training: does not work: {training['why']}"])
    xla = "works" if training["xla"] else "does not work"
    return "\n".join(
        [
            *lines,
            f"training: works ({training['steps']} private steps taken), engine "
            f"{training['engine']}, Keras on {training['backend']}, XLA {xla}",
            f"noise:    {training['noise']}",
            f"devices:  {', '.join(training['devices'])}",
        ]
    )
