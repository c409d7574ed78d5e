"""What samplings are worth to banded noise: epsilon at equal noise, and the time to draw it.

    python benchmarks/separated_samples.py [--json] [--steps 240] [--bands 8] [--noise 1 2]
    python benchmarks/separated_samples.py --mechanisms [--epsilon 2 8]

A run of so many steps on samples of 500 of 60,000 units on average, with the banded factorization
of the least error for one participation. In a fixed order, and in bins, a unit is in every 120th
step. With `--mechanisms`, other noise that remembers: its epsilon in bins, where it has as much of
it as a fixed order needs for the given epsilon.
"""

import argparse
import dataclasses
import json
import time

from tfdp.accounting import CorrelatedPlan, MonteCarloAccountant, calibrate_correlated
from tfdp.accounting.registry import DEFAULT_ACCOUNTANT
from tfdp.factorizations import optimal_banded

POPULATION, BATCH = 60_000, 500
DRAWN = ("balls_in_bins", "min_separation")
NOISE = (0.5, 1.0, 2.0, 4.0)
MECHANISMS = {
    "banded, 8 bands": ("bandmf", 8),
    "banded inverse, 8 bands": ("bisr", 8),
    "4 buffers": ("blt", 4),
    "one step back": ("lambda_cgd", None),
    "tree": ("tree", None),
}


def of_mechanisms(arguments: argparse.Namespace) -> None:
    """Prints the table of other mechanisms."""
    rows = []
    for name, (mechanism, bands) in MECHANISMS.items():
        for target in arguments.epsilon:
            plan = calibrate_correlated(
                target_epsilon=target,
                target_delta=arguments.delta,
                population_size=POPULATION,
                batch_size=BATCH,
                mechanism=mechanism,
                bands=bands,
                steps=arguments.steps,
            )
            bins = dataclasses.replace(plan, sampling="balls_in_bins")
            start = time.process_time()
            drawn = bins.epsilon(arguments.delta, MonteCarloAccountant(arguments.num_samples))
            seconds = time.process_time() - start
            row = {"mechanism": name, "noise": plan.noise_multiplier, "fixed_order": target}
            row |= {"bins": bins.epsilon(arguments.delta), "drawn": drawn, "seconds": seconds}
            rows.append(row)
    if arguments.json:
        print(json.dumps(rows))
        return
    print(
        "| noise that remembers | noise multiplier | fixed order | balls in bins | balls in bins, "
        "by `monte_carlo` |\n|---|---|---|---|---|"
    )
    for row in rows:
        print(
            f"| {row['mechanism']} | {row['noise']:.3f} | {row['fixed_order']:g} | "
            f"{row['bins']:.3f} | {row['drawn']:.3f} ({row['seconds']:.0f} s) |"
        )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--bands", type=int, default=8)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--num-samples", type=int, default=1_000_000)
    parser.add_argument("--noise", type=float, nargs="+", default=NOISE)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mechanisms", action="store_true")
    parser.add_argument("--epsilon", type=float, nargs="+", default=(2.0, 8.0))
    arguments = parser.parse_args()
    if arguments.mechanisms:
        of_mechanisms(arguments)
        return
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
