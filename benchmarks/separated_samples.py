"""What samplings are worth to banded noise: epsilon at equal noise, and the time to draw it.

    python benchmarks/separated_samples.py [--json] [--steps 240] [--bands 8] [--noise 1 2]

A run of so many steps on samples of 500 of 60,000 units on average, with the banded factorization
of the least error for one participation. In a fixed order, and in bins, a unit is in every 120th
step.
"""

import argparse
import json
import time

from tfdp.accounting import CorrelatedPlan, MonteCarloAccountant
from tfdp.accounting.registry import DEFAULT_ACCOUNTANT
from tfdp.factorizations import optimal_banded

POPULATION, BATCH = 60_000, 500
DRAWN = ("balls_in_bins", "min_separation")
NOISE = (0.5, 1.0, 2.0, 4.0)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--bands", type=int, default=8)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--num-samples", type=int, default=1_000_000)
    parser.add_argument("--noise", type=float, nargs="+", default=NOISE)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for noise in arguments.noise:
        row = {"noise": noise}
        for sampling in ("fixed_order", "balls_in_bins", "cyclic_poisson", "min_separation"):
            ordered = sampling in ("fixed_order", "balls_in_bins")
            period = POPULATION // BATCH if ordered else arguments.bands
            factorization = optimal_banded(
                arguments.steps, arguments.bands, period if ordered else None
            )
            plan = CorrelatedPlan(
                POPULATION, BATCH, arguments.steps, noise, factorization, period, sampling
            )
            row[sampling] = plan.epsilon(arguments.delta, DEFAULT_ACCOUNTANT)
            if sampling in DRAWN:
                start = time.process_time()
                drawn = MonteCarloAccountant(arguments.num_samples)
                row[f"{sampling}_drawn"] = plan.epsilon(arguments.delta, drawn)
                row[f"{sampling}_seconds"] = time.process_time() - start
        rows.append(row)
    if arguments.json:
        print(json.dumps(rows))
        return
    print(
        "| noise multiplier | fixed order | balls in bins | balls in bins, by `monte_carlo` | "
        "cyclic Poisson | min-separation, not amplified | min-separation, by `monte_carlo` |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['noise']:g} | {row['fixed_order']:.3f} | {row['balls_in_bins']:.3f} | "
            f"{row['balls_in_bins_drawn']:.3f} ({row['balls_in_bins_seconds']:.0f} s) | "
            f"{row['cyclic_poisson']:.3f} | {row['min_separation']:.3f} | "
            f"{row['min_separation_drawn']:.3f} ({row['min_separation_seconds']:.0f} s) |"
        )


if __name__ == "__main__":
    main()
