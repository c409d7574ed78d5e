"""Errors of running sums by every factorization: of noise with sensitivity 1.

    PYTHONPATH=. python benchmarks/factorizations.py [--json] [--steps 1024 4096]

Root mean squared error over all running sums, and the standard deviation of the last, the largest.
One participation in the run, unless --period is given.
"""

import argparse
import json

from tfdp.factorizations import (
    ToeplitzFactorization,
    banded_inverse_square_root,
    banded_square_root,
    independent,
    one_step_back,
    optimal_banded,
)

BANDS = (2, 4, 16, 64)


def factorizations(num_steps: int, period: int | None) -> dict[str, ToeplitzFactorization]:
    """Returns every factorization by the name that the table gives it."""
    found = {"independent": independent(), "one step back, 0.9": one_step_back(0.9)}
    for bands in BANDS:
        found[f"square root, {bands} bands"] = banded_square_root(bands)
        found[f"inverse square root, {bands} bands"] = banded_inverse_square_root(bands)
        found[f"optimal, {bands} bands"] = optimal_banded(num_steps, bands, period)
        found[f"optimal for the last, {bands} bands"] = optimal_banded(
            num_steps, bands, period, error="max"
        )
    if num_steps <= 1024:
        found["square root, all bands"] = banded_square_root(num_steps)
    return found


def measure(num_steps: int, period: int | None) -> list[dict[str, float | str]]:
    """Returns a row for every factorization."""
    return [
        {
            "factorization": name,
            "steps": num_steps,
            "root_mean_squared": each.root_mean_squared_error(num_steps, period),
            "max": each.max_error(num_steps, period),
        }
        for name, each in factorizations(num_steps, period).items()
    ]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--period", type=int)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [row for n in arguments.steps for row in measure(n, arguments.period)]
    if arguments.json:
        print(json.dumps(rows))
        return
    print("| factorization | steps | root mean squared | last |\n|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['factorization']} | {row['steps']} | {row['root_mean_squared']:.3f} "
            f"| {row['max']:.3f} |"
        )


if __name__ == "__main__":
    main()
