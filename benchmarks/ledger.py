"""What a durable ledger costs a step.

    python benchmarks/ledger.py [--folder .] [--steps 6400] [--json]

Appends events to a `PrivacyLedger.open` file in FOLDER, by leases of several sizes, and prints the
wall time and processor time of a step, and the part that it is of a step of 10 ms. The wall time of
a commit is that of the disk's sync, so the folder decides.
"""

import argparse
import json
import pathlib
import tempfile
import time

from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.ledger import PrivacyLedger
from tfdp.ledger.durable import DEFAULT_LEASE

STEP_SECONDS = 0.01


def measure(folder: str, lease: int, steps: int) -> dict[str, float]:
    """Returns seconds a step."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as inside,
        PrivacyLedger.open(pathlib.Path(inside, "run.ledger"), create=True, lease=lease) as ledger,
    ):
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(steps):
            # Made anew, as an optimizer does.
            ledger.append(SampledEvent(PoissonSampling(0.01, 60_000), GaussianSumEvent(1.0, 1.1)))
        return {
            "lease": lease,
            "wall": (time.perf_counter() - wall) / steps,
            "processor": (time.process_time() - processor) / steps,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", default=".")
    parser.add_argument("--steps", type=int, default=6400)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    sizes = sorted({1, 8, DEFAULT_LEASE, 512})
    results = [measure(arguments.folder, n, min(arguments.steps, 200 * n)) for n in sizes]
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    for result in results:
        default = ", the default" if result["lease"] == DEFAULT_LEASE else ""
        print(
            f"lease {result['lease']:4}{default}: {1e6 * result['wall']:.1f} us wall, "
            f"{1e6 * result['processor']:.1f} us processor: "
            f"{result['wall'] / STEP_SECONDS:.2%} of a 10 ms step"
        )


if __name__ == "__main__":
    main()
