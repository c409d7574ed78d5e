"""What bounds from one run prove of a Gaussian whose mu is known: means, and how often too much.

python benchmarks/audit.py [--runs 10000] [--delta 1e-5] [--seed 0]
"""

import argparse

import numpy as np

from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.audit import (
    correct_guesses,
    epsilon_lower_bound_of_guesses,
    mu_lower_bound_of_guesses,
    mu_lower_bound_of_independent_guesses,
)

CASES = ((1000, 0.5), (1000, 1.0), (1000, 2.0), (1000, 4.0), (10_000, 1.0))


def methods(delta):
    """Returns (what is bounded and assumed, bound, share of canaries that are guessed) of each."""

    def epsilon_of(mu_bound):
        def bound(*counts):
            mu = mu_bound(*counts)
            return gaussian_epsilon(mu, delta) if mu > 0 else 0.0

        return bound

    independent = epsilon_of(mu_lower_bound_of_independent_guesses)
    return [
        ("epsilon", lambda *counts: epsilon_lower_bound_of_guesses(*counts, delta), 0.1),
        ("mu", epsilon_of(mu_lower_bound_of_guesses), 0.1),
        ("mu, independent", independent, 0.7),
        ("mu, independent", independent, 1.0),
    ]


def measure(bound, correct, guesses, canaries, truth):
    """Returns (mean of what is proven, share of the runs that prove more than is true)."""
    proven = {v: bound(v, guesses, canaries) for v in set(correct)}
    values = np.array([proven[v] for v in correct])
    return float(values.mean()), float(np.mean(values > truth))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    bounds = methods(arguments.delta)
    titles = [f"{name} ({share:.0%} guessed)" for name, _, share in bounds]
    print("| canaries | mu | epsilon | " + " | ".join(titles) + " |")
    print("|---|---|---|" + "---|" * len(bounds))
    for canaries, mu in CASES:
        truth = gaussian_epsilon(mu, arguments.delta)
        guesses = [max(1, round(share * canaries)) for _, _, share in bounds]
        correct = []
        for _ in range(arguments.runs):
            coins = rng.integers(0, 2, canaries) == 1
            scores = mu * (coins - 0.5) + rng.normal(size=canaries)
            correct.append([correct_guesses(scores, coins, number) for number in guesses])
        cells = []
        for (_, bound, _), number, counts in zip(
            bounds, guesses, zip(*correct, strict=True), strict=True
        ):
            mean, wrong = measure(bound, counts, number, canaries, truth)
            cells.append(f"{mean:.2f} ({wrong:.1%})")
        print(f"| {canaries} | {mu:g} | {truth:.3f} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
