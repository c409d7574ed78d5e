"""How the cost of a private step grows: with batch, width, sequence length and vocabulary.

    python benchmarks/scaling.py --out scaling          # about 15 minutes
    python benchmarks/scaling.py --out scaling --quick

Cost is the time of a private step over that of Keras' ordinary step, timed in turn; of each the
faster with XLA on or off. Last comes a private step of 65536 examples of which 64 are in memory at
a time, next to one of 64. Writes OUT/scaling.json and OUT/scaling.png.
"""

import argparse
import json
import pathlib
from typing import NamedTuple

import inputs
import measure
import step_time


class Sweep(NamedTuple):
    """One size of a workload, and its values: of a full run and of a quick one."""

    workload: str
    size: str
    values: tuple[int, ...]
    quick: tuple[int, ...]
    others: dict[str, int] = {}


SWEEPS = (
    Sweep("mlp", "batch_size", (64, 256, 1024, 4096), (64, 256)),
    Sweep("cnn", "batch_size", (64, 256, 1024, 4096), (64, 256)),
    Sweep("mlp", "width", (64, 256, 1024, 4096), (64, 256)),
    Sweep("transformer", "length", (16, 64, 256, 1024, 2048), (16, 64), {"batch_size": 8}),
    Sweep("embedding", "vocabulary", (1000, 10_000, 100_000, 1_000_000), (1000, 10_000)),
)
VARIANTS = (*measure.ORDINARY, *measure.PRIVATE)
LOGICAL, QUICK_LOGICAL, PHYSICAL = 65_536, 4096, 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    step_time.add_common_options(parser)
    step_time.add_threads_option(parser)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.set_defaults(rounds=5, block_seconds=0.3)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = {"threads": arguments.threads, "engine": arguments.engine, "sweeps": []}
    for sweep in SWEEPS:
        result["sweeps"].append(run_sweep(sweep, arguments))
        save(result, arguments.out)
    result["memory"] = bounded_memory(arguments)
    save(result, arguments.out)
    plot(result["sweeps"], arguments.out / "scaling.png")


def save(result: dict, folder: pathlib.Path) -> None:
    """Writes the figures so far."""
    (folder / "scaling.json").write_text(json.dumps(result, indent=1) + "\n")


def run_sweep(sweep: Sweep, arguments: argparse.Namespace) -> dict:
    """Measures all values of a sweep, in processes that stay."""
    points = []
    workers: dict[str, measure.Worker] = {}
    try:
        for value in sweep.quick if arguments.quick else sweep.values:
            size = inputs.sizes(sweep.workload, **sweep.others, **{sweep.size: value})
            point = run_point(sweep.workload, size, workers, arguments)
            points.append({sweep.size: value, **point})
            print(describe(sweep, points[-1]), flush=True)
    finally:
        for worker in workers.values():
            worker.close()
    return {
        "workload": sweep.workload,
        "size": sweep.size,
        "others": sweep.others,
        "points": points,
    }


def run_point(
    workload: str,
    size: dict[str, int],
    workers: dict[str, measure.Worker],
    arguments: argparse.Namespace,
) -> dict:
    """Measures one point; starts the workers that are missing, ends those that fail."""
    options = {"workload": workload, "size": size, "engine": arguments.engine}
    warm_ms, failures = {}, {}
    for name in VARIANTS:
        try:
            if name not in workers:
                workers[name] = step_time.start(name, arguments)
            warm_ms[name] = workers[name].ask("build", **options)["warm_ms"]
        except measure.WorkerError as error:
            failures[name] = str(error)
    built = {name: workers[name] for name in warm_ms}
    timings, _, late = measure.alternate(built, warm_ms, arguments.rounds, arguments.block_seconds)
    failures |= late
    for name in failures:
        if name in workers:
            workers.pop(name).close()
    measured = {name: t for name, t in timings.items() if name not in failures}
    wall = {name: measure.summary(measure.flat(t.wall_ms)) for name, t in measured.items()}
    cpu = {name: measure.summary(measure.flat(t.cpu_ms)) for name, t in measured.items()}
    point = {"wall_ms": wall, "cpu_ms": cpu, "failures": failures}
    figures = {name: {"wall_ms": summary} for name, summary in wall.items()}
    ours, best = (step_time.faster(figures, v) for v in (measure.PRIVATE, measure.ORDINARY))
    if ours and best:
        point["best"], point["private"] = best, ours
        point["cost"] = measure.ratio(timings[ours].wall_ms, timings[best].wall_ms)
        point["cpu_cost"] = measure.ratio(timings[ours].cpu_ms, timings[best].cpu_ms)
    return point


def describe(sweep: Sweep, point: dict) -> str:
    """Returns one line about a point."""
    line = f"{sweep.workload:11} {sweep.size:10} {point[sweep.size]:8}"
    if "cost" in point:
        ordinary = point["wall_ms"][point["best"]]["median"]
        private = point["wall_ms"][point["private"]]["median"]
        line += f"  {point['best']:9} {ordinary:8.1f} ms  {point['private']:11} {private:8.1f} ms"
        line += f"  cost {point['cost']['ratio']:6.2f}, CPU {point['cpu_cost']['ratio']:6.2f}"
    return line + "".join(f"  {name}: {why}" for name, why in point["failures"].items())


def bounded_memory(arguments: argparse.Namespace) -> list[dict]:
    """Measures time and memory of a large step in small pieces, and of one piece alone."""
    rows = []
    for batch_size in (PHYSICAL, QUICK_LOGICAL if arguments.quick else LOGICAL):
        size = inputs.sizes("cnn", batch_size=batch_size)
        options = {"workload": "cnn", "size": size, "physical_batch_size": PHYSICAL}
        options |= {"engine": arguments.engine}
        try:
            with step_time.start("private", arguments) as worker:
                built = worker.ask("build", **options)
                timed = worker.ask("time", steps=1, untimed=0)
        except measure.WorkerError as error:
            rows.append({"batch_size": batch_size, "failure": str(error)})
            print(rows[-1], flush=True)
            continue
        growth = max(built["growth_before_steps_mib"], timed["growth_in_steps_mib"])
        data = inputs.batch("cnn", size)[0].nbytes / 2**20
        rows.append(
            {
                "batch_size": batch_size,
                "physical_batch_size": PHYSICAL,
                "wall_ms": timed["wall_ms"][0],
                "cpu_ms": timed["cpu_ms"][0],
                "peak_growth_mib": growth,
                "data_mib": data,
            }
        )
        print(
            f"cnn, {batch_size} examples, {PHYSICAL} at a time: {timed['wall_ms'][0]:.0f} ms, "
            f"peak memory {growth:.0f} MiB, of it data {data:.0f} MiB",
            flush=True,
        )
    return rows


def plot(sweeps: list[dict], path: pathlib.Path) -> None:
    """Draws cost over size, one panel for each sweep."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(sweeps), figsize=(3.2 * len(sweeps), 3.2), sharey=True)
    for panel, sweep in zip(panels, sweeps, strict=True):
        points = [p for p in sweep["points"] if "cost" in p]
        values = [p[sweep["size"]] for p in points]
        panel.plot(values, [p["cost"]["ratio"] for p in points], "o-", label="time")
        panel.plot(values, [p["cpu_cost"]["ratio"] for p in points], "x--", label="processor time")
        panel.axhline(1, color="grey", linewidth=0.8)
        panel.set(xscale="log", yscale="log", title=sweep["workload"], xlabel=sweep["size"])
    panels[0].set_ylabel("private step / ordinary step")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
