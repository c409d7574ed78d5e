"""Runs the commands that auditors need where nothing but NumPy and SciPy is installed.

    python tests/without_tensorflow.py GOLDEN TFDP

GOLDEN is the folder of stored ledgers, and TFDP the installed command. tests/package.sh does this
for the wheel and for the sdist.
"""

import importlib.util
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import scipy

_ABSENT = ("tensorflow", "keras", "tf_keras", "dp_accounting", "cryptography", "sklearn", "jinja2")
_KEY = bytes(range(32))
_BUDGET = ["--delta", "1e-5", "--population", "60000", "--batch-size", "256", "--json"]
# Epsilons at delta = 1e-5 that other programs computed: tests/ledger/golden_test.py.
_EPSILON = 2.5943633557853634


def main(golden: pathlib.Path, tfdp: str) -> None:
    """Runs every command, and stops with what is wrong."""
    found = [name for name in _ABSENT if importlib.util.find_spec(name)]
    if found:
        sys.exit(f"These are installed here: {', '.join(found)}.")
    with tempfile.TemporaryDirectory() as folder:
        _run_all(golden, tfdp, pathlib.Path(folder))


def _run_all(golden: pathlib.Path, tfdp: str, folder: pathlib.Path) -> None:
    def run(*arguments: object) -> str:
        # Elsewhere than in the tree, whose package would be imported.
        ran = subprocess.run(
            [tfdp, *map(str, arguments)], capture_output=True, text=True, cwd=folder
        )
        if ran.returncode or ran.stderr:
            sys.exit(f"tfdp {' '.join(map(str, arguments))}: {ran.returncode} {ran.stderr}")
        return ran.stdout

    (folder / "key").write_bytes(_KEY)
    ledgers = [*golden.rglob("*.jsonl"), *golden.rglob("*.sqlite")]
    replayed = 0
    for path in ledgers:
        if path.parent.name == "every_event":  # No accountant prices all of these at once.
            continue
        key = ["--key-file", "key"] if path.parent.name in ("sqlite", "with_digests") else []
        said = json.loads(
            run("replay", path, *key, "--delta", "1e-5", "--json", "--accountant", "rdp")
        )
        if path.stem == "poisson" and not math.isclose(
            said["epsilon"]["rdp"], _EPSILON, rel_tol=3e-4
        ):
            sys.exit(f"{path} costs {said['epsilon']}, and not {_EPSILON}")
        replayed += 1
        if path.suffix == ".sqlite":
            if not json.loads(run("verify", path, *key, "--json"))["authenticated"]:
                sys.exit(f"{path} is not verified")
            run("export", path, *key, "--json")
    rng = np.random.default_rng(0)
    inserted = rng.random(500) < 0.5
    np.savez(folder / "canaries.npz", scores=inserted + rng.normal(size=500), inserted=inserted)
    poisson = ["--ledger", golden / "poisson.jsonl", "--delta", "1e-5"]
    json.loads(run("audit", "epsilon", "canaries.npz", *poisson, "--json"))
    json.loads(run("calibrate", "--epsilon", "2", "--steps", "1000", *_BUDGET))
    json.loads(run("plan", "--epsilon", "2", "--steps", "1000", *_BUDGET))
    json.loads(run("doctor", "--no-training", "--json"))
    for shell in ("bash", "zsh", "fish"):
        run("completion", shell)
    print(
        f"{run('--version').strip()} beside NumPy {np.__version__}, SciPy {scipy.__version__} "
        f"and no TensorFlow: "
        f"{replayed} ledgers replayed; verify, export, audit, calibrate, plan, doctor and "
        "completion work"
    )


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2])
