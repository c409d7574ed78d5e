"""The table of docs/speed.md: all workloads, tfdp and its peers, as Markdown.

    python benchmarks/table.py --peer-python PEERS/bin/python --threads 1 2 --out results

Runs `step_time` for every workload and number of threads, one after the other, writes its figures
to OUT/WORKLOAD-THREADS.json, and prints the table. `--render` prints the table of figures that are
there.
"""

import argparse
import json
import pathlib

import inputs
import measure
import step_time

# Columns: heading, and the variant with its ordinary step in brackets.
PRIVATE_PEERS = {
    "Opacus (hooks)": "opacus",
    "Opacus (expanded weights)": "opacus_ew",
    "Opacus (ghost)": "opacus_ghost",
    "JAX Privacy": "jax_privacy",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    step_time.add_common_options(parser)
    step_time.add_builders_option(parser)
    parser.add_argument("--workload", choices=list(inputs.SIZES), nargs="+")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--peer", choices=step_time.PEERS, nargs="+")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--render", action="store_true")
    arguments = parser.parse_args()
    if not arguments.render:
        arguments.out.mkdir(parents=True, exist_ok=True)
        for threads in arguments.threads:
            for workload in arguments.workload or inputs.SIZES:
                run(workload, threads, arguments)
    for threads in arguments.threads:
        paths = [arguments.out / f"{name}-{threads}.json" for name in inputs.SIZES]
        results = [json.loads(path.read_text()) for path in paths if path.exists()]
        print(f"\n{threads} thread{'s' * (threads > 1)}\n\n{render(results)}")


def run(workload: str, threads: int, arguments: argparse.Namespace) -> None:
    """Measures one workload and keeps its figures."""
    arguments = argparse.Namespace(**{**vars(arguments), "threads": threads})
    variants = step_time.variants_of(arguments.peer or list(measure.ORDINARY_OF))
    result = step_time.run(workload, {}, variants, arguments)
    print(step_time.report(result), flush=True)
    path = arguments.out / f"{workload}-{threads}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


def render(results: list[dict]) -> str:
    """Returns the Markdown table of what `step_time.run` returned.

    Ratios are those of the faster private step to the faster one of Keras; memory is that of the
    process.
    """
    headings = ["workload", "Keras", "Keras, XLA", "tfdp", "tfdp, XLA"]
    headings += ["time ratio", "CPU ratio", "memory ratio", *PRIVATE_PEERS]
    rows = [headings, ["---", *["---:"] * (len(headings) - 1)]]
    rows += [_row(result) for result in results]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(result: dict) -> list[str]:
    measured = result["variants"]
    name = f"{result['workload']}, batch {result['size']['batch_size']}"
    variants = (*measure.ORDINARY, *measure.PRIVATE)
    cells = [name, *(_milliseconds(measured, variant) for variant in variants)]
    ours, best = (step_time.faster(measured, v) for v in (measure.PRIVATE, measure.ORDINARY))
    if ours is None or best is None:
        cells += ["-"] * 3
    else:
        ratios = result["ratios"][f"{ours} / {best}"]
        numbers = [ratios["wall"]["ratio"], ratios["cpu"]["ratio"], ratios["whole_memory"]]
        cells += [f"{number:.2f}" for number in numbers]
    for peer in PRIVATE_PEERS.values():
        cell = _milliseconds(measured, peer)
        ordinary = measure.ORDINARY_OF[peer]
        if peer in measured and ordinary in measured:
            cell += f" ({_milliseconds(measured, ordinary)})"
        elif peer in result["failures"]:
            cell = "out of memory" if _lacks_memory(result["failures"][peer]) else "fails"
        cells.append(cell)
    return cells


def _milliseconds(measured: dict, variant: str | None) -> str:
    if variant not in measured:
        return "-"
    median = measured[variant]["wall_ms"]["median"]
    return f"{median:.1f}" if median < 100 else f"{median:,.0f}"


def _lacks_memory(failure: str) -> bool:
    signs = ("allocate memory", "out of memory", "bad_alloc", "resource_exhausted", "resourceex")
    return any(sign in failure.lower() for sign in signs)


if __name__ == "__main__":
    main()
