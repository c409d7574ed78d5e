"""Time and memory of a private training step against the ordinary ones of Keras and of peers.

    python benchmarks/step_time.py --workload transformer
    python benchmarks/step_time.py --workload mlp --peer opacus_ghost --peer-python PEERS/bin/python

Every variant trains on the same synthetic batch of fixed size, in a process of its own: plain SGD,
each example clipped at 1, noise multiplier 1 (tfdp's default noise, which is secure). The processes
are timed in turn, a block of steps at a time. Making the model, tracing, compiling and warming up
are left out and reported apart. Keras' step and the private one are measured with XLA and without;
ratios are to the faster of Keras'.

Peers run where they are installed: `pip install opacus torch` for opacus (hooks), opacus_ew
(expanded weights) and opacus_ghost; `pip install jax jax_privacy keras` for jax_privacy. Their own
ordinary step is measured too.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys

import inputs
import measure

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

PEERS = ("none", "keras", *measure.ORDINARY_OF)


def parser_of(text: str) -> argparse.ArgumentParser:
    """Returns a parser whose help is the text of a benchmark."""
    description, _, epilog = text.partition("\n")
    return argparse.ArgumentParser(
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that all benchmarks share."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tfdp.gradients import ENGINES

    parser.add_argument("--engine", choices=ENGINES, default="auto")
    parser.add_argument("--rounds", type=int, default=15, help="blocks of every variant")
    parser.add_argument("--block-seconds", type=float, default=0.4)
    parser.add_argument(
        "--memory-gib",
        type=float,
        default=measure.default_memory_gib(),
        help="most private memory of a process; default: half of the machine's",
    )
    parser.add_argument("--peer-python", help="interpreter that has the peers; default: this one")


def add_threads_option(parser: argparse.ArgumentParser) -> None:
    """Adds the number of threads of a run."""
    threads = min(2, len(os.sched_getaffinity(0)))
    text = "cores, and threads of every pool, of each process; default: 2"
    parser.add_argument("--threads", type=int, default=threads, help=text)


def add_builders_option(parser: argparse.ArgumentParser) -> None:
    """Adds the number of processes that are built together."""
    text = "processes that build at the same time; start times are no measure if more than 1"
    parser.add_argument("--builders", type=int, default=1, help=text)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--workload", choices=list(inputs.SIZES), default="cnn")
    parser.add_argument(
        "--peer",
        choices=PEERS,
        nargs="+",
        default=["none"],
        help="none and keras: nothing beside Keras' own step, which is always measured",
    )
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--physical-batch-size", type=int, help="of the private step")
    parser.add_argument("--jax-microbatch-size", type=int, help="examples at once in JAX Privacy")
    parser.add_argument("--json", action="store_true")
    add_common_options(parser)
    add_threads_option(parser)
    add_builders_option(parser)
    arguments = parser.parse_args()
    result = run(
        arguments.workload,
        {"batch_size": arguments.batch_size} if arguments.batch_size else {},
        variants_of(arguments.peer),
        arguments,
        physical_batch_size=arguments.physical_batch_size,
        jax_microbatch_size=arguments.jax_microbatch_size,
    )
    print(json.dumps(result, indent=1) if arguments.json else report(result))


def variants_of(peers: list[str]) -> list[str]:
    """Returns what to measure: Keras' steps, private ones, and peers with their ordinary one."""
    chosen = [p for p in peers if p in measure.ORDINARY_OF]
    ordinary = dict.fromkeys(measure.ORDINARY_OF[p] for p in chosen)
    return [*measure.ORDINARY, *measure.PRIVATE, *ordinary, *chosen]


def run(
    workload: str,
    changes: dict[str, int],
    variants: list[str],
    arguments: argparse.Namespace,
    physical_batch_size: int | None = None,
    jax_microbatch_size: int | None = None,
) -> dict:
    """Measures variants of a workload, in turn, and returns all figures."""
    size = inputs.sizes(workload, **changes)
    options = {
        "workload": workload,
        "size": size,
        "engine": arguments.engine,
        "physical_batch_size": physical_batch_size,
        "jax_microbatch_size": jax_microbatch_size,
    }
    workers, facts, failures = {}, {}, {}

    def build(name: str) -> None:
        try:
            workers[name] = start(name, arguments)
            facts[name] = workers[name].ask("build", **options)
        except measure.WorkerError as error:
            failures[name] = str(error)

    try:
        with concurrent.futures.ThreadPoolExecutor(arguments.builders) as pool:
            list(pool.map(build, variants))
        built = {name: workers[name] for name in variants if name in facts}
        warm_ms = {name: facts[name]["warm_ms"] for name in built}
        timings, growth, late = measure.alternate(
            built, warm_ms, arguments.rounds, arguments.block_seconds
        )
    finally:
        for worker in workers.values():
            worker.close()
    failures.update(late)
    done = [name for name in built if name not in failures]
    measured = {name: figures(facts[name], timings[name], growth[name]) for name in done}
    return {
        "workload": workload,
        "size": size,
        "threads": arguments.threads,
        "physical_batch_size": physical_batch_size,
        "machine": {**machine(), "cores": os.cpu_count(), "load": os.getloadavg()},
        "variants": measured,
        "ratios": ratios(measured, {name: timings[name] for name in done}),
        "failures": failures,
    }


def start(variant: str, arguments: argparse.Namespace) -> measure.Worker:
    """Starts the process of a variant."""
    ours = variant in (*measure.ORDINARY, *measure.PRIVATE)
    return measure.Worker(
        variant,
        measure.MODULES[variant],
        python=None if ours else arguments.peer_python,
        threads=arguments.threads,
        memory_gib=arguments.memory_gib,
    )


def figures(facts: dict, timings: measure.Timings, growth: float) -> dict:
    """Returns what was measured of one variant."""
    wall, cpu = measure.flat(timings.wall_ms), measure.flat(timings.cpu_ms)
    return {
        **facts,
        "steps": len(wall),
        "wall_ms": measure.summary(wall),
        "cpu_ms": measure.summary(cpu),
        "growth_in_steps_mib": growth,
        "peak_growth_mib": max(growth, facts["growth_before_steps_mib"]),
        "peak_mib": facts["imports_mib"] + max(growth, facts["growth_before_steps_mib"]),
    }


def ratios(measured: dict[str, dict], timings: dict[str, measure.Timings]) -> dict[str, dict]:
    """Returns "variant / ordinary step": ratios of wall time, CPU time and peak memory.

    `memory` is what the process has grown by since its imports, `whole_memory` all of it.
    """
    pairs = [(p, o) for p, o in measure.ORDINARY_OF.items() if p in measured and o in measured]
    best = faster(measured, measure.ORDINARY)
    if best:
        dp = [name for name in measured if name in (*measure.PRIVATE, *measure.ORDINARY_OF)]
        pairs = [(name, best) for name in dp] + pairs
    return {
        f"{a} / {b}": {
            "wall": measure.ratio(timings[a].wall_ms, timings[b].wall_ms),
            "cpu": measure.ratio(timings[a].cpu_ms, timings[b].cpu_ms),
            "memory": measured[a]["peak_growth_mib"] / measured[b]["peak_growth_mib"],
            "whole_memory": measured[a]["peak_mib"] / measured[b]["peak_mib"],
        }
        for a, b in pairs
    }


def faster(measured: dict[str, dict], names: tuple[str, ...]) -> str | None:
    """Returns which of some variants takes the least time, or None where none was measured."""
    done = [name for name in names if name in measured]
    return min(done, key=lambda name: measured[name]["wall_ms"]["median"], default=None)


def machine() -> dict:
    """Returns the names of the processor and of the GPUs."""
    gpus = []
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpus = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return {"processor": processor(), "gpus": gpus}


def processor() -> str:
    """Returns the name of the processor."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def report(result: dict) -> str:
    """Returns the figures as text."""
    sizes = ", ".join(f"{name} {value}" for name, value in result["size"].items())
    engine = result["variants"].get("private", {}).get("engine", "-")
    lines = [
        f"{result['workload']}: {sizes}; threads {result['threads']}; engine {engine}",
        f"{'variant':13} {'wall ms (quartiles)':>28} {'CPU ms':>8} {'grown MiB':>9} "
        f"{'start s':>8} {'parameters':>11}  version",
    ]
    for name, v in result["variants"].items():
        wall = v["wall_ms"]
        spread = f"({wall['lower_quartile']:.1f} - {wall['upper_quartile']:.1f})"
        lines.append(
            f"{name:13} {wall['median']:9.1f} {spread:>18} {v['cpu_ms']['median']:8.1f} "
            f"{v['peak_growth_mib']:9.0f} {v['build_s'] + v['first_step_s']:8.1f} "
            f"{v['parameters']:11,}  {v['version']}"
        )
    for name, r in result["ratios"].items():
        wall = r["wall"]
        lines.append(
            f"{name}: wall {wall['ratio']:.2f} "
            f"({wall['lower_quartile']:.2f} - {wall['upper_quartile']:.2f}), "
            f"CPU {r['cpu']['ratio']:.2f}, memory {r['memory']:.2f} (with imports "
            f"{r['whole_memory']:.2f})"
        )
    lines += [f"{name} failed: {reason}" for name, reason in result["failures"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
