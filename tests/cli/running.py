"""Running the command line inside of a test, and what tests run it on."""

import json

from tfdp.cli import main
from tfdp.events import (
    ComposedEvent,
    GaussianSumEvent,
    PoissonSampling,
    SampledEvent,
)

POISSON = PoissonSampling(256 / 60_000, 60_000)


STEP = SampledEvent(POISSON, ComposedEvent((GaussianSumEvent(1.0, 1.1),)))


# What is said of a ledger without a key.
UNKEYED = "not authenticated: without a key its digests show accidents only"


def run(capsys, *arguments):
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


BUDGET = ["--delta", "1e-5", "--population", "60000", "--accountant", "rdp"]


def calibrate(capsys, *flags):
    status, out, err = run(capsys, "calibrate", *BUDGET, *flags, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)
