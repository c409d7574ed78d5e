"""Errors and prices of mechanisms beyond training steps, section by section.

    python benchmarks/mechanisms.py [--only statistics ...] [--json]

Each section is one function that returns rows; all are run by default.
"""

import argparse
import importlib.util
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tfdp.statistics import PrivateData

Row = dict[str, Any]
DELTA = 1e-6
RUNS = 200


def _people(number: int = 10_000) -> PrivateData:
    rng = np.random.default_rng(0)
    ages = np.clip(rng.gamma(6.0, 7.0, number), 0, 110)
    cities = rng.choice(100, number, p=1 / np.arange(1, 101) / np.sum(1 / np.arange(1, 101)))
    return PrivateData({"age": ages, "city": cities})


def _questions() -> dict[str, tuple[Callable[..., Any], Callable[[np.ndarray, np.ndarray], Any]]]:
    """Returns, by name, how a question is asked, and its answer without noise."""
    edges, cities = list(range(0, 111, 10)), list(range(100))
    return {
        "count": (lambda data, **noise: data.count(**noise), lambda ages, _: len(ages)),
        "sum of ages in [0, 110]": (
            lambda data, **noise: data["age"].clip(0, 110).sum(**noise),
            lambda ages, _: ages.sum(),
        ),
        "mean age in [0, 110]": (
            lambda data, **noise: data["age"].clip(0, 110).mean(**noise),
            lambda ages, _: ages.mean(),
        ),
        "histogram of 11 bins, mean error of a bin": (
            lambda data, **noise: data["age"].histogram(edges, **noise),
            lambda ages, _: np.histogram(ages, edges)[0],
        ),
        "counts of 100 cities, mean error of a city": (
            lambda data, **noise: np.array(
                list(data.group_by("city", keys=cities).count(**noise).values())
            ),
            lambda _, towns: np.bincount(towns, minlength=100),
        ),
    }


def statistics() -> Iterator[Row]:
    """Yields errors of answers about 10,000 people, and what they cost."""
    raw = _people()
    ages, towns = raw._columns["age"], raw._columns["city"]
    for name, (ask, truth) in _questions().items():
        exact = truth(ages, towns)
        for noise in ({"epsilon": 0.1}, {"epsilon": 1.0}, {"noise_multiplier": 10.0}):
            runs = RUNS if "noise_multiplier" not in noise else RUNS // 4
            data = PrivateData({"age": ages, "city": towns})
            errors = []
            for _ in range(runs):
                errors.append(np.mean(np.abs(ask(data, **noise) - exact)))
            once = PrivateData({"age": ages, "city": towns})
            ask(once, **noise)
            yield {
                "question": name,
                **noise,
                "mean_absolute_error": float(np.mean(errors)),
                "epsilon_prv": once.ledger.epsilon(DELTA),
            }
    for epsilon in (0.1, 1.0):
        data = PrivateData({"age": ages, "city": towns})
        medians = [
            data["age"].quantile(0.5, epsilon=epsilon, candidates=range(111)) for _ in range(RUNS)
        ]
        kept = [len(data.group_by("city", epsilon=epsilon, delta=DELTA).keys) for _ in range(20)]
        yield {
            "question": "median age of 111 candidates",
            "epsilon": epsilon,
            "mean_absolute_error": float(np.mean(np.abs(np.array(medians) - np.median(ages)))),
        }
        yield {
            "question": "cities found of 100",
            "epsilon": epsilon,
            "delta": DELTA,
            "found": float(np.mean(kept)),
        }


def secure_sums() -> Iterator[Row]:
    """Yields the error of a sum of 100 records of 1000 coordinates in few bits, and its price.

    Errors are those of a coordinate, relative to the standard deviation of Gaussian noise of the
    same multiplier; epsilons are those of 100 sums.
    """
    import tensorflow as tf

    from tfdp.accounting import RDPAccountant
    from tfdp.events import FullBatchSampling, GaussianSumEvent, NeighboringRelation, SampledEvent
    from tfdp.query import secure_sum_query

    def epsilon(event):
        step = SampledEvent(FullBatchSampling(), event, NeighboringRelation.ZERO_OUT)
        return RDPAccountant().compose(step, 100).get_epsilon(DELTA)

    n, coordinates, z = 100, 1000, 5.0
    records = np.random.default_rng(0).normal(size=[n, coordinates]).astype(np.float32)
    records /= np.linalg.norm(records, axis=1, keepdims=True)
    truth = records.sum(axis=0)
    for noise in ("discrete_gaussian", "skellam"):
        for bits in (10, 12, 14, 18):
            query = secure_sum_query(1.0, z, coordinates, n, noise=noise, modulus_bits=bits)
            state = query.initial_global_state()
            params = query.derive_sample_params(state)
            add = tf.function(lambda s, r, q=query, p=params: q.accumulate_record(p, s, r))
            sample = query.initial_sample_state(records[0])
            for record in records:
                sample = add(sample, record)
            error = query.get_noised_result(sample, state)[0].numpy() - truth
            yield {
                "noise": noise,
                "bits": bits,
                "scale": query.scale,
                "error": float(np.sqrt(np.mean(error**2)) / z),
                "epsilon": epsilon(query.derive_event(state)),
                "epsilon_of_a_gaussian": epsilon(GaussianSumEvent(1.0, z)),
            }


def correlated_noise() -> Iterator[Row]:
    """Yields errors of running sums at sensitivity 1, and JAX Privacy's where it is installed."""
    import factorizations

    for num_steps in (1024, 4096):
        peers = dict(_of_jax_privacy(num_steps))
        for row in factorizations.measure(num_steps, None):
            yield {**row, **peers.get(row["factorization"], {})}


def _of_jax_privacy(num_steps: int) -> Iterator[tuple[str, Row]]:
    if importlib.util.find_spec("jax_privacy") is None:
        return
    import jax
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

    jax.config.update("jax_enable_x64", True)

    def errors(column: Any) -> Row:
        column = np.asarray(column)
        squares = np.asarray(toeplitz.per_query_error(strategy_coef=column, n=num_steps))
        sensitivity = np.linalg.norm(column)
        return {
            "jax_privacy_root_mean_squared": float(sensitivity * np.sqrt(squares.mean())),
            "jax_privacy_max": float(sensitivity * np.sqrt(squares.max())),
        }

    for bands in (2, 4, 16, 64):
        found = toeplitz.optimize_banded_toeplitz(n=num_steps, bands=bands)
        yield f"optimal, {bands} bands", errors(found)
    for buffers in (1, 2, 4):
        found = buffered_toeplitz.optimize(
            n=num_steps,
            min_sep=num_steps,
            max_participations=1,
            min_buffers=buffers,
            max_buffers=buffers,
            error="mean",
        )
        yield f"optimal, {buffers} buffers", errors(found.toeplitz_coefs(num_steps))


def step_times() -> Iterator[Row]:
    """Yields what a private step costs with each noise, beside independent noise."""
    import factorizations

    for kind in ("dense", "convolutional"):
        yield from factorizations.step_times(kind, rounds=7)


SECTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    "statistics": statistics,
    "secure_sums": secure_sums,
    "correlated_noise": correlated_noise,
    "step_times": step_times,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = {name: list(SECTIONS[name]()) for name in arguments.only}
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    for name, rows in results.items():
        print(f"\n{name}")
        for row in rows:
            shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{v}" for k, v in row.items())
            print("  " + ", ".join(shown))


if __name__ == "__main__":
    main()
