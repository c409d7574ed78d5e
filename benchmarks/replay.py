"""Processor time and memory of `tfdp replay` on long ledgers.

    python benchmarks/replay.py [--events 1000000] [--accountant rdp]

Writes ledgers into a temporary folder and replays each in a process of its own: one entry of many
steps; two events in turn; clips that adapt, at one noise multiplier; and a noise multiplier of its
own in every step.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.ledger import PrivacyLedger

SAMPLING = PoissonSampling(256 / 60_000, 60_000)
KINDS = {
    "one entry": lambda i, n: GaussianSumEvent(1.0, 1.1),
    "two in turn": lambda i, n: GaussianSumEvent(1.0, 1.1 + i % 2),
    "adaptive clips": lambda i, n: GaussianSumEvent(1 + i / n, 1.1 * (1 + i / n)),
    "all different": lambda i, n: GaussianSumEvent(1.0, 1.1 + 2.2 * i / n),
}


def _write(path, kind, number):
    ledger = PrivacyLedger()
    if kind == "one entry":
        ledger.append(SampledEvent(SAMPLING, KINDS[kind](0, number)), number)
    else:
        for i in range(number):
            ledger.append(SampledEvent(SAMPLING, KINDS[kind](i, number)))
    ledger.save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--accountant", default="rdp")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            path = pathlib.Path(folder, "run.ledger")
            write = [sys.executable, __file__, "--write", kind, str(path), str(arguments.events)]
            subprocess.run(write, check=True)
            code = (
                "import resource, sys, tfdp.cli; status = tfdp.cli.main(); "
                "u = resource.getrusage(resource.RUSAGE_SELF); "
                "print(u.ru_utime + u.ru_stime, u.ru_maxrss / 1024); sys.exit(status)"
            )
            flags = ["replay", str(path), "--delta", "1e-6", "--accountant", arguments.accountant]
            output = subprocess.run(
                [sys.executable, "-c", code, *flags], check=True, capture_output=True, text=True
            ).stdout.splitlines()
            seconds, megabytes = map(float, output[-1].split())
            size = path.stat().st_size / 1e6
            print(
                f"{kind:15} {arguments.events} events, {size:.0f} MB: {seconds:.1f} s, "
                f"{megabytes:.0f} MB of memory; {output[-2]}",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        _write(sys.argv[3], sys.argv[2], int(sys.argv[4]))
    else:
        main()
