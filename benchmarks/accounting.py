"""Epsilons of DP-SGD by every accountant, and the processor time that each takes.

    python benchmarks/accounting.py [--repeats 5] [--accountant "tfdp rdp"] [--json]
    python benchmarks/accounting.py --distinct 300
    python benchmarks/accounting.py --steps 1000000
    python benchmarks/accounting.py --appends 1000000

All in one process on one core, in alternation, medians. dp-accounting runs beside tfdp; Opacus and
prv-accountant do where they are installed. With --distinct N a run is N steps that all differ, and
measured once. With --steps N every run has N steps. With --appends N two steps are appended to a
ledger in turns, N in all, and an epsilon is asked for: of tfdp's RDP accountant alone.
"""

import argparse
import importlib.util
import json
import math
import os
import random
import statistics
import time

# Before NumPy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

DELTA = 1e-5
# (q, noise multiplier, steps)
RUNS = [(0.01, 4.0, 10_000), (0.01, 1.1, 10_000), (256 / 60_000, 1.1, 14_040), (0.001, 0.6, 10_000)]


def _tfdp(name):
    from tfdp.accounting import make_accountant
    from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent

    def epsilon(run):
        accountant = make_accountant(name)
        for q, z, steps in run:
            step = SampledEvent(PoissonSampling(q), GaussianSumEvent(1.0, z))
            accountant.compose(step, steps)
        return accountant.get_epsilon(DELTA)

    return epsilon


def _dp_accounting(make):
    import dp_accounting

    def epsilon(run):
        accountant = make()
        for q, z, steps in run:
            step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
            accountant.compose(step, steps)
        return float(accountant.get_epsilon(DELTA))

    return epsilon


def _opacus(make):
    def epsilon(run):
        accountant = make()
        accountant.history = [(z, q, steps) for q, z, steps in run]
        return float(accountant.get_epsilon(DELTA))

    return epsilon


def _prv_accountant():
    import prv_accountant

    def epsilon(run):
        mechanisms = [
            prv_accountant.PoissonSubsampledGaussianMechanism(
                noise_multiplier=z, sampling_probability=q
            )
            for q, z, _ in run
        ]
        steps = [steps for _, _, steps in run]
        accountant = prv_accountant.PRVAccountant(
            prvs=mechanisms, max_self_compositions=steps, eps_error=0.01, delta_error=DELTA / 1000
        )
        return float(accountant.compute_epsilon(DELTA, steps)[2])

    return epsilon


def _accountants():
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    names = ["prv", "pld", "rdp", "moments", "strong", "basic"]
    found = {f"tfdp {name}": _tfdp(name) for name in names}
    found["dp-accounting pld"] = _dp_accounting(PLDAccountant)
    found["dp-accounting rdp"] = _dp_accounting(dp_accounting.rdp.RdpAccountant)
    if importlib.util.find_spec("opacus"):
        from opacus.accountants import PRVAccountant, RDPAccountant

        found["opacus prv"] = _opacus(PRVAccountant)
        found["opacus rdp"] = _opacus(RDPAccountant)
    if importlib.util.find_spec("prv_accountant"):
        found["prv-accountant"] = _prv_accountant()
    return found


def _measure(accountants, run, repeats):
    """Returns {name: (epsilon, seconds)}."""
    from tfdp.accounting.pld import one_step

    times, epsilons = {name: [] for name in accountants}, {}
    for _ in range(repeats):
        for name, epsilon in accountants.items():
            one_step.cache_clear()
            start = time.process_time()
            epsilons[name] = epsilon(run)
            times[name].append(time.process_time() - start)
    return {name: (epsilons[name], statistics.median(times[name])) for name in accountants}


def _appends(count):
    from tfdp.accounting import RDPAccountant
    from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
    from tfdp.ledger import PrivacyLedger

    steps = [
        SampledEvent(PoissonSampling(q), GaussianSumEvent(1.0, z))
        for q, z in [(1e-4, 1), (2e-4, 2)]
    ]
    ledger = PrivacyLedger()
    start = time.process_time()
    for number in range(count):
        ledger.append(steps[number % 2])
    appended = time.process_time()
    epsilon = ledger.replay(RDPAccountant()).get_epsilon(DELTA)
    asked = time.process_time()
    run = f"{count} appends in turns"
    yield {"run": run, "accountant": "(append)", "epsilon": 0.0, "seconds": appended - start}
    yield {"run": run, "accountant": "tfdp rdp", "epsilon": epsilon, "seconds": asked - appended}


def _rows(arguments):
    if arguments.appends:
        yield from _appends(arguments.appends)
        return
    accountants = _accountants()
    if arguments.accountant:
        accountants = {name: accountants[name] for name in arguments.accountant}
    _measure(accountants, [(0.01, 2.0, 10)], 1)  # Imports, once.
    chosen = [(q, z, arguments.steps or n) for q, z, n in RUNS]
    runs = {f"q={q:.6g} z={z} steps={n}": [(q, z, n)] for q, z, n in chosen}
    if arguments.distinct:
        draw = random.Random(1)
        runs = {
            f"{arguments.distinct} distinct steps": [
                (draw.uniform(0.005, 0.02), draw.uniform(0.8, 2.0), 1)
                for _ in range(arguments.distinct)
            ]
        }
    for name, run in runs.items():
        repeats = 1 if arguments.distinct else arguments.repeats
        for accountant, (epsilon, seconds) in _measure(accountants, run, repeats).items():
            yield {"run": name, "accountant": accountant, "epsilon": epsilon, "seconds": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accountant", action="append", help="only this one; may be repeated")
    parser.add_argument("--distinct", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--appends", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for row in _rows(arguments):
        if arguments.json:
            finite = math.isfinite(row["epsilon"])
            print(json.dumps(row | {"epsilon": row["epsilon"] if finite else "inf"}), flush=True)
        else:
            print(
                f"{row['run']:34} {row['accountant']:18} epsilon {row['epsilon']:12.5f} "
                f"{1e3 * row['seconds']:9.1f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
