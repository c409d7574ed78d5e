"""The cost of `fit`, private and plain: time of a step, of the first one, and peak memory.

    python benchmarks/fit.py --model two_layers tabular --threads 1
    python benchmarks/fit.py --batch-size 8 64 1024 --json

Both variants call `fit(x, y, batch_size=...)` on the same arrays and models that nobody tuned, each
in a process of its own: plain SGD; privately with Poisson samples, each example clipped at 1, and
noise multiplier 1. Epochs are timed in turn, each a `fit` of its own; their time is divided by
their steps, so it holds the input, what begins and ends `fit`, and the ledger. Keras takes longer
to begin, so that short epochs of fast steps (`--steps`) make tfdp look better than it is. Ratios
are those of the medians. What the first step takes stands apart: a `fit` of one step, which traces
and compiles. Peak memory is by how much the process grew since its imports; the data are in it.
"""

import argparse
import concurrent.futures
import importlib.util
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import measure
import step_time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

VARIANTS = ("keras", "private")


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import fit_models

    parser = step_time.parser_of(__doc__)
    parser.add_argument("--model", choices=list(fit_models.MODELS), nargs="+")
    parser.add_argument("--batch-size", type=int, nargs="+", help="default: each model's own")
    parser.add_argument("--steps", type=int, help="of an epoch; default: each model's own")
    parser.add_argument("--json", action="store_true")
    step_time.add_common_options(parser)
    step_time.add_threads_option(parser)
    step_time.add_builders_option(parser)
    parser.set_defaults(rounds=7)
    arguments = parser.parse_args()
    names = arguments.model or fit_models.MODELS
    rows = [
        (n, b) for n in names for b in arguments.batch_size or [fit_models.MODELS[n].batch_size]
    ]
    results = []
    together = max(1, arguments.builders // len(VARIANTS))
    for start in range(0, len(rows), together):
        for result in measured(rows[start : start + together], arguments):
            results.append(result)
            print(json.dumps(result) if arguments.json else row(result), flush=True)
    if not arguments.json:
        print(f"\n{render(results)}")


def measured(
    rows: list[tuple[str, int]], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Builds both variants of some models, then measures each pair in turn; yields all figures."""
    pairs = [Pair(name, batch_size, arguments) for name, batch_size in rows]
    try:
        with concurrent.futures.ThreadPoolExecutor(arguments.builders) as pool:
            list(pool.map(Pair.build, *zip(*itertools.product(pairs, VARIANTS), strict=True)))
        for pair in pairs:
            yield pair.figures()
            pair.close()
    finally:
        for pair in pairs:
            pair.close()


class Pair:
    """The processes that train a model, plain and private."""

    def __init__(self, name: str, batch_size: int, arguments: argparse.Namespace):
        import fit_models

        model = fit_models.MODELS[name]
        self._arguments = arguments
        self._options = {
            "model": name,
            "batch_size": batch_size,
            "steps": arguments.steps or model.steps,
            "engine": arguments.engine,
        }
        self._workers: dict[str, measure.Worker] = {}
        self._facts: dict[str, dict] = {}
        self._failures: dict[str, str] = {}
        if model.needs and importlib.util.find_spec(model.needs) is None:
            self._failures = dict.fromkeys(VARIANTS, f"{model.needs} is not installed")

    def build(self, variant: str) -> None:
        """Starts the process of a variant, in which the first step is run."""
        if variant in self._failures:
            return
        arguments = self._arguments
        limits = {"threads": arguments.threads, "memory_gib": arguments.memory_gib}
        try:
            self._workers[variant] = measure.Worker(variant, "peers.fit_steps", **limits)
            self._facts[variant] = self._workers[variant].ask("build", **self._options)
        except measure.WorkerError as error:
            self._failures[variant] = str(error)

    def figures(self) -> dict[str, Any]:
        """Times epochs of the two in turn, and returns all figures."""
        facts = {variant: self._facts[variant] for variant in VARIANTS if variant in self._facts}
        timings, growth, late = measure.alternate(
            {variant: self._workers[variant] for variant in facts},
            {variant: facts[variant]["warm_ms"] for variant in facts},
            self._arguments.rounds,
            self._arguments.block_seconds,
        )
        failures = {**self._failures, **late}
        return {
            **self._options,
            "threads": self._arguments.threads,
            "machine": {**step_time.machine(), "load": os.getloadavg()},
            **figures(facts, timings, growth, self._options["steps"], failures),
        }

    def close(self) -> None:
        """Ends the processes."""
        while self._workers:
            self._workers.popitem()[1].close()


def figures(
    facts: dict[str, dict],
    timings: dict[str, measure.Timings],
    growth: dict[str, float],
    steps: int,
    failures: dict[str, str],
) -> dict:
    """Returns what was measured: times of a step, which are those of an epoch by its steps."""
    variants = {}
    for name in facts.keys() - failures.keys():
        wall, cpu = measure.flat(timings[name].wall_ms), measure.flat(timings[name].cpu_ms)
        variants[name] = {
            **facts[name],
            "epochs": len(wall),
            "step_wall_ms": measure.summary([ms / steps for ms in wall]),
            "step_cpu_ms": measure.summary([ms / steps for ms in cpu]),
            "peak_growth_mib": max(growth[name], facts[name]["growth_before_steps_mib"]),
        }
    result = {"variants": variants, "failures": failures}
    if len(variants) == len(VARIANTS):
        private, plain = timings["private"], timings["keras"]
        result["ratios"] = {
            "wall": measure.ratio(private.wall_ms, plain.wall_ms),
            "cpu": measure.ratio(private.cpu_ms, plain.cpu_ms),
            **{
                name: variants["private"][name] / variants["keras"][name]
                for name in ("first_step_s", "first_step_cpu_s", "peak_growth_mib")
            },
        }
    return result


def row(result: dict) -> str:
    """Returns a line of the table."""
    name = f"{result['model']}, batch {result['batch_size']}"
    if result["failures"]:
        reasons = "; ".join(f"{k}: {reason}" for k, reason in result["failures"].items())
        return f"| {name} | {reasons} | | | | | | |"
    plain, private = (result["variants"][variant] for variant in VARIANTS)
    ratios = result["ratios"]
    cells = [
        name,
        f"{plain['step_cpu_ms']['median']:.1f} / {private['step_cpu_ms']['median']:.1f}",
        f"{ratios['cpu']['ratio']:.2f}",
        f"{ratios['wall']['ratio']:.2f}",
        f"{plain['first_step_cpu_s']:.1f} / {private['first_step_cpu_s']:.1f}",
        f"{ratios['first_step_cpu_s']:.1f}",
        f"{plain['peak_growth_mib']:.0f} / {private['peak_growth_mib']:.0f}",
        f"{ratios['peak_growth_mib']:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def render(results: list[dict]) -> str:
    """Returns the table of results as Markdown; every pair of numbers is plain / private."""
    headings = ["model", "step, CPU ms", "ratio", "wall ratio", "first step, CPU s", "ratio"]
    headings += ["peak memory, MiB", "ratio"]
    lines = [f"| {' | '.join(headings)} |", f"| --- |{' ---: |' * (len(headings) - 1)}"]
    return "\n".join([*lines, *map(row, results)])


if __name__ == "__main__":
    main()
