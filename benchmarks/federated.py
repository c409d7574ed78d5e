"""Seconds of a round of federated averaging: tfdp's simulation, Flower's and pfl-research's.

    python benchmarks/federated.py --peer flower=FLOWER/bin/python --peer pfl=PFL/bin/python

10,000 clients with 20 examples each, cohorts of 100, a perceptron of 9,610 parameters, one epoch of
batches of 10 at a client, one clip and Gaussian noise at the server (`peers/federated_task.py`).
Engines run in turn, each in a process of its own. The first round of a process, in which things are
traced and workers start, is reported apart. FLOWER is an environment with `flwr[simulation]`,
TensorFlow and Keras; PFL one with `pfl[pytorch]`.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

PEERS = pathlib.Path(__file__).parent / "peers"
ENGINES = {"tfdp": "tfdp_rounds.py", "pfl": "pfl_rounds.py", "flower": "flower_rounds.py"}


def main() -> None:
    """Runs the engines and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=11, help="of a process, the first included")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each engine")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.rounds < 2 or arguments.repeats < 1:
        parser.error("--rounds must be at least 2, and --repeats at least 1.")
    pythons = {"tfdp": sys.executable}
    for text in arguments.peer:
        name, equals, python = text.partition("=")
        if name not in ENGINES or name == "tfdp" or not equals:
            parser.error(f"--peer is flower=PYTHON or pfl=PYTHON, received {text!r}.")
        pythons[name] = python
    runs: dict[str, list[dict]] = {name: [] for name in pythons}
    for _ in range(arguments.repeats):
        for name, python in pythons.items():
            runs[name].append(run(name, python, arguments.rounds))
    rows = [summary(name, found) for name, found in runs.items()]
    if arguments.json:
        print(json.dumps(rows))
        return
    ours = rows[0]["seconds"]
    print(f"{'engine':<14} {'s a round':>10} {'(fastest, slowest)':>20} {'first':>8} {'/ tfdp':>8}")
    for row in rows:
        spread = f"({row['fastest']:.3f}, {row['slowest']:.3f})"
        times = f"{row['seconds']:10.3f} {spread:>20} {row['first']:8.1f}"
        print(f"{row['version']:<14} {times} {row['seconds'] / ours:8.1f}")


def run(name: str, python: str, rounds: int) -> dict:
    """Returns what one process of an engine measured: version, first round, other rounds."""
    command = [python, str(PEERS / ENGINES[name]), str(rounds)]
    done = subprocess.run(command, cwd=PEERS, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def summary(name: str, runs: list[dict]) -> dict:
    """Returns medians over the processes: of their medians, and of their first rounds."""
    rounds = [seconds for run in runs for seconds in run["rounds"]]
    return {
        "engine": name,
        "version": runs[0]["version"],
        "seconds": statistics.median(statistics.median(run["rounds"]) for run in runs),
        "fastest": min(rounds),
        "slowest": max(rounds),
        "first": statistics.median(run["first"] for run in runs),
    }


if __name__ == "__main__":
    main()
