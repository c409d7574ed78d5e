"""Errors of running sums beside published ones, and beside the least that any noise can have.

    PYTHONPATH=. python benchmarks/published_errors.py [--json]

One participation, noise of sensitivity 1, as in factorizations.py. Published numbers stand in the
form in which they were published: as ratios to a bound, or to the square of another error.
"""

import argparse
import functools
import json
import math
from typing import Any

import numpy as np
from factorizations import factorizations

from tfdp.factorizations import ToeplitzFactorization, optimal_buffered

# The most that the errors of JAX Privacy's own BLTs may be, as multiples of 1 + ln(n) / pi, for n
# steps and so many buffers: tests/matrix_factorization/buffered_toeplitz_test.py of its repository,
# test_optimize_single_participation_near_optimal (commit 8967688). Its rows of more than 100,000
# steps are left out: they take minutes.
OF_JAX_PRIVACY = {
    (10, 1): 1.04,
    (100, 2): 1.03,
    (100, 3): 1.03,
    (1_000, 2): 1.04,
    (1_000, 3): 1.03,
    (10_000, 1): 1.45,
    (10_000, 3): 1.03,
    (10_000, 4): 1.03,
    (100_000, 2): 1.16,
    (100_000, 4): 1.03,
}
# The BLT of 2 buffers with the smallest largest error over 100,000 steps, by the same file,
# test_optimize_single_participation_golden: C_j = sum_d scale_d decay_d^(j - 1).
GOLDEN = {"decay": (0.9999528892, 0.9857068667), "scale": (0.0122853238, 0.1878393665)}
# Squared errors as multiples of the square root's, by the numbers that a step needs: data of the
# figures of Andersson and Pagh, "Streaming private continual counting via binning", in their
# repository (jodander/streaming-via-binning, commit 6ea83a5), the smallest for each space in
# plot_data/{mean,max}_mult_vs_space_Rmean_a1b0n{1000,10000}.csv.
BINNED = {
    (1_000, 2): (3.1915714652649547, 2.959924774054194),
    (1_000, 4): (1.5532430449319805, 1.5775893930889768),
    (1_000, 9): (1.0369926013713828, 1.0394645635093644),
    (1_000, 20): (1.001453165582668, 1.001563415200863),
    (10_000, 4): (2.438191545548658, 2.5744485795279872),
    (10_000, 8): (1.2328367657962085, 1.257951071447677),
    (10_000, 16): (1.0276547794968622, 1.0295782754470943),
    (10_000, 26): (1.004597773792877, 1.0045620146177945),
}
MOST_BUFFERS = 4


def bound_of_mathias(num_steps: int) -> float:
    """Returns 1 + ln(n) / pi: some C has no larger error of any sum (Mathias 1993)."""
    return 1 + math.log(num_steps) / math.pi


def least_of_all(num_steps: int) -> float:
    """Returns the nuclear norm of A over n: no C has a smaller error, by either measure.

    The nuclear norm of B C is at most |B|_F |C|_F, and |C|_F is at most sqrt(n) times C's longest
    column. A's singular values are 1 / (2 sin((2 j - 1) pi / (4 n + 2))).
    """
    odd = 2 * np.arange(1, num_steps + 1) - 1
    return float(np.mean(0.5 / np.sin(odd * math.pi / (4 * num_steps + 2))))


def errors_of_square_root(num_steps: int) -> tuple[float, float]:
    """Returns (root mean squared error, error of the last sum) of all bands of the square root.

    A^(1/2) has the column f_k = binomial(2 k, k) / 4^k, and is both factors.
    """
    k = np.arange(1, num_steps)
    squares = np.cumsum(np.concatenate([[1.0], np.cumprod(1 - 0.5 / k)]) ** 2)
    return math.sqrt(squares[-1] * np.mean(squares)), float(squares[-1])


def golden() -> ToeplitzFactorization:
    """Returns JAX Privacy's golden BLT as p(x) / r(x)."""
    (a, b), (s, t) = GOLDEN["decay"], GOLDEN["scale"]
    return ToeplitzFactorization((1.0, s + t - a - b, a * b - s * b - t * a), (1.0, -a - b, a * b))


@functools.cache
def ratios_to_square_root(num_steps: int, buffers: int) -> tuple[float, float]:
    """Returns squared errors of the best buffers over those of the square root: mean, last."""
    mean, last = errors_of_square_root(num_steps)
    return (
        (optimal_buffered(num_steps, buffers).root_mean_squared_error(num_steps) / mean) ** 2,
        (optimal_buffered(num_steps, buffers, error="max").max_error(num_steps) / last) ** 2,
    )


def ratio_to_mathias(num_steps: int, buffers: int) -> float:
    """Returns the error of the last sum with the best buffers for it, over 1 + ln(n) / pi."""
    best = optimal_buffered(num_steps, buffers, error="max")
    return best.max_error(num_steps) / bound_of_mathias(num_steps)


def measure() -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of the three tables."""
    return {
        "bounds": [
            {
                "steps": n,
                "least of all": least_of_all(n),
                "1 + ln(n) / pi": bound_of_mathias(n),
                "square root": errors_of_square_root(n),
                "4 buffers, mean": optimal_buffered(n, 4).root_mean_squared_error(n),
                "4 buffers, last": optimal_buffered(n, 4, error="max").max_error(n),
            }
            for n in (1024, 4096)
        ],
        "jax_privacy": [
            {"steps": n, "buffers": d, "published": most, "ours": ratio_to_mathias(n, d)}
            for (n, d), most in OF_JAX_PRIVACY.items()
        ],
        "binned": [
            {
                "steps": n,
                "numbers": space,
                "published": published,
                "buffers": min(space, MOST_BUFFERS),
                "ours": ratios_to_square_root(n, min(space, MOST_BUFFERS)),
            }
            for (n, space), published in BINNED.items()
        ],
    }


def closest_to_least(num_steps: int) -> dict[str, tuple[float, float]]:
    """Returns both errors of every factorization of factorizations.py, over the least of all."""
    least = least_of_all(num_steps)
    return {
        name: (
            each.root_mean_squared_error(num_steps) / least,
            each.max_error(num_steps) / least,
        )
        for name, each in factorizations(num_steps, None).items()
    }


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tables = measure()
    if arguments.json:
        print(json.dumps(tables))
        return
    for rows in tables.values():
        print(f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
        for row in rows:
            cells = (np.atleast_1d(value).tolist() for value in row.values())
            shown = (
                ", ".join(str(v) if isinstance(v, int) else f"{v:.4f}" for v in cell)
                for cell in cells
            )
            print(f"| {' | '.join(shown)} |")
        print()


if __name__ == "__main__":
    main()
