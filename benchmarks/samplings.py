"""What every sampling policy is worth: epsilon of the same training, and the time to compute it.

    python benchmarks/samplings.py [--json] [--steps 100] [--noise-multiplier 4] [--epochs 100]

Each epoch has so many steps over 60,000 records, with that noise multiplier in each step. The time
is that of one accountant in a process of its own, from the events to epsilon, without the imports.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import time
from typing import Any

from tfdp.accounting import make_accountant
from tfdp.events import GaussianSumEvent, NeighboringRelation, SampledEvent, UnsupportedEventError
from tfdp.sampling import (
    BallsInBins,
    FixedSize,
    MinSeparationPoisson,
    Poisson,
    RandomAllocation,
    SamplingPolicy,
    Shuffled,
    TruncatedPoisson,
    Unknown,
)

POPULATION = 60_000
ACCOUNTANTS = ("prv", "pld", "rdp")
REPLACE = NeighboringRelation.REPLACE_ONE
POLICIES = {
    "Poisson()": Poisson(),
    "TruncatedPoisson()": TruncatedPoisson(),
    "RandomAllocation()": RandomAllocation(),
    "BallsInBins()": BallsInBins(),
    "MinSeparationPoisson(10)": MinSeparationPoisson(10),
    "FixedSize(), replace one": FixedSize(neighboring_relation=REPLACE),
    "Poisson(), replace one": Poisson(neighboring_relation=REPLACE),
    "Shuffled()": Shuffled(),
    "undeclared": Unknown(),
}


def price(
    policy: SamplingPolicy, arguments: argparse.Namespace, accountant: str
) -> tuple[float | None, float]:
    """Returns (epsilon, seconds); None where the accountant has no price for such samples."""
    if not isinstance(policy, Unknown):
        policy = policy.resolve(POPULATION, POPULATION // arguments.steps)
    release = GaussianSumEvent(1.0, arguments.noise_multiplier)
    found, start = make_accountant(accountant), time.perf_counter()
    try:
        # Of an order each step is another event, and else each pass.
        events, count = arguments.epochs, arguments.steps
        if policy.is_ordered:
            events, count = count, events
        for index in range(events):
            sampling = policy.description(index)
            event = SampledEvent(sampling, release, policy.neighboring_relation)
            found.compose(event, count)
        epsilon = found.get_epsilon(arguments.delta)
    except UnsupportedEventError:
        epsilon = None
    return epsilon, time.perf_counter() - start


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="of an epoch")
    parser.add_argument("--noise-multiplier", type=float, default=4.0)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    context = multiprocessing.get_context("spawn")
    for name, policy in POLICIES.items():
        rows[name] = {}
        for accountant in ACCOUNTANTS:
            # A new process each time, so that nothing is remembered from before.
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
                found = pool.submit(price, policy, arguments, accountant).result()
            rows[name][accountant] = dict(zip(("epsilon", "seconds"), found, strict=True))
    if arguments.json:
        print(json.dumps(rows))
        return
    print("| sampling | " + " | ".join(f"epsilon by {name}" for name in ACCOUNTANTS) + " |")
    print("|---|" + "---|" * len(ACCOUNTANTS))
    for name, row in rows.items():
        cells = [
            "refused" if r["epsilon"] is None else f"{r['epsilon']:.3f} ({r['seconds']:.2f} s)"
            for r in row.values()
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
