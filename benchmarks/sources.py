"""What reading costs: `fit` from a large file against `fit` from arrays in memory.

    python benchmarks/sources.py --folder /tmp/rows --gib 5 --workload mlp cnn --threads 2

Files of float32 rows and labels are written once: a memory map, an HDF5 file in one piece, and one
in chunks of 64 rows. Of each, and of 16 batches of its rows in memory, `fit` takes epochs of
Poisson samples in turn, with the same batch size and model; the table has the medians of a step and
the ratios. The first epochs (`--untimed`) are in none: the very first one traces, and a row costs
more until its pages are where the process finds them. With `--cold` the system is asked to forget
the file before every epoch, so that it is read from the disk. Memory is by how much the process's
own (without pages of files) has grown.
"""

import argparse
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

KINDS = ("memory_map", "hdf5", "hdf5_chunks")
BATCHES_IN_MEMORY = 16
ROWS_AT_ONCE = 1 << 14
CHUNK = 64


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for the files")
    parser.add_argument("--gib", type=float, default=5.0, help="of each file")
    parser.add_argument("--workload", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40, help="of an epoch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--untimed", type=int, default=1, help="epochs before the rounds")
    parser.add_argument("--threads", type=int, help="processors to use; default: all")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    print("| workload | rows from | ms a step | of that in memory | own memory, MiB |")
    for workload in arguments.workload:
        for result in run(workload, arguments):
            print(json.dumps(result) if arguments.json else row(result), flush=True)


def run(workload: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Times a step from every kind of file, and from memory, in turn."""
    import inputs

    import tfdp

    size = inputs.sizes(workload)
    x, y = inputs.batch(workload, size)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = int(arguments.gib * 2**30 / x[0].nbytes)
    opened = {
        kind: OPEN[kind](write(kind, arguments.folder, rows, x, y)) for kind in arguments.kind
    }
    few = BATCHES_IN_MEMORY * len(x)
    first = next(iter(opened.values()))
    data = {"memory": (first[0][:few], first[1][:few])}
    for kind, parts in opened.items():
        data[kind] = (tfdp.sampling.Source(parts, workers=arguments.workers),)
    model = private_model(workload, size)
    epochs: dict[str, list[float]] = {name: [] for name in data}
    for index in range(arguments.untimed + arguments.rounds):
        for name, given in data.items():
            if arguments.cold and name != "memory":
                forget(arguments.folder)
            begin = time.perf_counter()
            model.fit(
                *given, batch_size=len(x), steps_per_epoch=arguments.steps, epochs=1, verbose=0
            )
            if index >= arguments.untimed:
                epochs[name].append(1e3 * (time.perf_counter() - begin) / arguments.steps)
        if not index:
            before = own_memory_mib()
    return [
        {
            "workload": workload,
            "rows_from": name,
            "rows": few if name == "memory" else rows,
            "step_ms": statistics.median(times),
            "ratio": statistics.median(
                ms / of_memory for ms, of_memory in zip(times, epochs["memory"], strict=True)
            ),
            "own_memory_growth_mib": own_memory_mib() - before,
        }
        for name, times in epochs.items()
    ]


def private_model(workload: str, size: dict[str, int]) -> Any:
    """Returns the workload's model with a private optimizer."""
    import keras
    import workloads

    import tfdp

    model = tfdp.keras.make_private(workloads.build(workload, size))
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=size["batch_size"])
    model.compile(
        optimizer=tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.01), query),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def write(kind: str, folder: pathlib.Path, rows: int, x: Any, y: Any) -> pathlib.Path:
    """Writes rows of normal numbers and labels, unless they are there; returns the folder."""
    import h5py
    import numpy as np

    place = folder / f"{kind}_{rows}_{'x'.join(map(str, x.shape[1:]))}"
    if place.exists():
        return place
    draft = folder / f"{place.name}.part"
    draft.mkdir(exist_ok=True)
    if kind == "memory_map":
        shape = (rows, *x.shape[1:])
        parts = (
            np.lib.format.open_memmap(draft / "x.npy", "w+", x.dtype, shape),
            np.lib.format.open_memmap(draft / "y.npy", "w+", y.dtype, (rows,)),
        )
        fill(parts, rows, x, y)
        for part in parts:
            part.flush()
    else:
        with h5py.File(draft / "rows.h5", "w") as file:
            chunks = (CHUNK, *x.shape[1:]) if kind == "hdf5_chunks" else None
            parts = (
                file.create_dataset("x", (rows, *x.shape[1:]), x.dtype, chunks=chunks),
                file.create_dataset("y", (rows,), y.dtype),
            )
            fill(parts, rows, x, y)
    draft.rename(place)
    return place


def fill(parts: tuple[Any, Any], rows: int, x: Any, y: Any) -> None:
    """Writes the rows of a batch again and again."""
    import numpy as np

    times = -(-ROWS_AT_ONCE // len(x))
    many = np.concatenate([x] * times), np.concatenate([y] * times)
    for start in range(0, rows, len(many[0])):
        end = min(rows, start + len(many[0]))
        for part, values in zip(parts, many, strict=True):
            part[start:end] = values[: end - start]


def open_memory_map(place: pathlib.Path) -> tuple[Any, Any]:
    """Returns (x, y)."""
    import numpy as np

    return np.load(place / "x.npy", mmap_mode="r"), np.load(place / "y.npy", mmap_mode="r")


def open_hdf5(place: pathlib.Path) -> tuple[Any, Any]:
    """Returns (x, y)."""
    import h5py

    file = h5py.File(place / "rows.h5")
    return file["x"], file["y"]


OPEN: dict[str, Callable[[pathlib.Path], tuple[Any, Any]]] = {
    "memory_map": open_memory_map,
    "hdf5": open_hdf5,
    "hdf5_chunks": open_hdf5,
}


def forget(folder: pathlib.Path) -> None:
    """Asks the system to drop the pages of all files in a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def own_memory_mib() -> float:
    """Returns the resident memory of this process that is not of files."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


def row(result: dict[str, Any]) -> str:
    """Returns a line of the table."""
    return (
        f"| {result['workload']} | {result['rows_from']}, {result['rows']:,} rows | "
        f"{result['step_ms']:.2f} | {result['ratio']:.3f} | "
        f"{result['own_memory_growth_mib']:.0f} |"
    )


if __name__ == "__main__":
    main()
