"""Random events, counts, deltas and epsilons from the ends of their ranges, for every accountant.

    PYTHONPATH=. python tests/fuzz/extreme_events.py 0 1000 [accountant ...]

tries the seeds from 0 to 999 and prints what is wrong; the test suite tries a few. Wrong are an
error other than a refusal, a warning, a number that is none, and an epsilon below the truth.
"""

import math
import random
import sys
import time
import warnings
from collections.abc import Iterator

import numpy as np
from scipy import special

from tfdp import accounting, events
from tfdp.events import NeighboringRelation, UnsupportedEventError

ACCOUNTANTS = {
    "rdp": accounting.RDPAccountant,
    "rdp at some orders": lambda: accounting.RDPAccountant([1.0000001, 2.0, 1e6, math.inf]),
    "rdp of groups": lambda: accounting.RDPAccountant(group_size=3),
    "pld": accounting.PLDAccountant,
    "prv": accounting.PRVAccountant,
    "prv of groups": lambda: accounting.PRVAccountant(group_size=3),
    "moments": accounting.MomentsAccountant,
    "zcdp": accounting.ZCDPAccountant,
    "gdp": accounting.GDPAccountant,
    "strong": accounting.StrongComposition,
    "basic": accounting.BasicComposition,
    "monte_carlo": lambda: accounting.MonteCarloAccountant(num_samples=50),
}
_SIZES = [
    *(5e-324, 1e-300, 1e-154, 1e-100, 1e-76, 1e-20, 1e-8, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.3, 0.5),
    *(1.0, 2.0, 4.0, 10.0, 100.0, 1e3, 1e4, 1e6, 1e8, 1e10, 1e15, 1e16, 1e20, 1e77, 1e100, 1e150),
    *(1e154, 1e300, 1.7e308),
]
_PROBABILITIES = [
    *(5e-324, 1e-300, 1e-200, 1e-100, 1e-20, 1e-16, 1e-10, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9),
    *(1 - 1e-10, 1 - 2**-53, 1.0),
]
_COUNTS = [1, 2, 3, 10, 100, 1000, 10**5, 10**6, 10**9, 10**12, 2**40, 2**53 + 1, 2**62, 2**63 - 1]
_DELTAS = [
    *(0.0, 5e-324, 1e-308, 1e-300, 1e-200, 1e-100, 1e-50, 1e-20, 1e-15, 1e-12, 1e-9, 1e-5, 1e-3),
    *(0.1, 0.5, 0.9, 1 - 1e-10, 1 - 2**-53),
]
_EPSILONS = [
    *(math.inf, 0.0, 5e-324, 1e-300, 1e-100, 1e-20, 1e-10, 1e-5, 1e-3, 0.1, 1.0, 10.0, 100.0),
    *(499.0, 501.0, 700.0, 750.0, 1e4, 1e6, 1e10, 1e100, 1e300, 1.7e308),
]


def _release(draw: random.Random) -> events.Event:
    size = draw.choice(_SIZES)
    kind = draw.randrange(14)
    if kind < 3:
        return events.GaussianSumEvent(draw.choice([1.0, 1.0, 1e-3, 1e150]), size)
    if kind == 3:
        return events.LaplaceSumEvent(1.0, size)
    if kind == 4:
        return events.ExponentialMechanismEvent(size)
    if kind == 5:
        return events.PureEpsilonEvent(size)
    if kind == 6:
        p, buckets = draw.choice([0.0, *_PROBABILITIES]), draw.choice([2, 3, 10**6, 2**62])
        return events.RandomizedResponseEvent(p, buckets)
    if kind == 7:
        step, coordinates = draw.choice([1e-300, 1e-10, 1e-5, 1.0]), draw.choice(_COUNTS)
        return events.DiscreteGaussianSumEvent(1.0, size, step, coordinates)
    if kind == 8:
        return events.EpsilonDeltaEvent(size, draw.choice([1e-300, 1e-12, 1e-5, 0.5, 1 - 1e-16]))
    if kind == 9:
        parts = tuple(_release(draw) for _ in range(1, draw.randrange(2, 5)))
        return events.ParallelComposition(parts)
    if kind == 10:
        return events.IntegerGaussianSumEvent(1.0, size)
    if kind == 11:
        return events.GaussianSharesSumEvent(1.0, size, draw.choice(_COUNTS), draw.choice(_COUNTS))
    if kind == 12:
        bounds = draw.choice(_SIZES), draw.choice(_SIZES)
        return events.SkellamSharesSumEvent(*bounds, size, draw.choice(_COUNTS))
    return events.ComposedEvent(tuple(_release(draw) for _ in range(draw.randrange(4))))


def _sampling(draw: random.Random) -> events.Sampling:
    q, some = draw.choice(_PROBABILITIES), [draw.choice(_COUNTS), draw.choice(_COUNTS)]
    return draw.choice(
        [
            events.PoissonSampling(q),
            events.PoissonSampling(q),
            events.PoissonSampling(q),
            events.TruncatedPoissonSampling(q, *some),
            events.FixedSizeSampling(min(some), max(some)),
            events.ShuffledSampling(*some),
            events.RandomAllocationSampling(max(some), min(some)),
            events.MinSeparationSampling(q, *some),
            events.BallsInBinsSampling(max(some), max(some) - min(some), draw.randrange(3)),
            events.FullBatchSampling(),
            events.UnknownSampling(),
        ]
    )


def steps(draw: random.Random) -> list[tuple[events.Event, int]]:
    """Returns a few events under one relation, and how often each happened."""
    relation = draw.choice(list(NeighboringRelation))
    found = [
        (events.SampledEvent(_sampling(draw), _release(draw), relation), draw.choice(_COUNTS))
        for _ in range(draw.choice([1, 1, 1, 2, 3]))
    ]
    if draw.randrange(8):
        return found
    run = events.RunEvent(*map(tuple, zip(*found, strict=True)))
    if draw.randrange(3):
        shape = draw.choice([-0.999, -0.5, 0.0, 5e-324, 1e-13, 1.0, 1000.0])
        gamma = draw.choice([p for p in _PROBABILITIES if p < 1])
        return [(events.SelectedRunEvent((run,), shape, gamma), draw.choice([1, 2, 10**6]))]
    return [(events.PoissonSelectedRunEvent((run,), draw.choice([1.0, 3.0, 1e9])), 1)]


def lower_bound(event: events.Event, count: int, delta: float) -> float:
    """Returns an epsilon that so many Gaussian steps certainly exceed; zero for others.

    The event "some step released more than t" has probability 1 - (1 - p(t))^count under one of
    two neighbours' outputs, and at most count q(t) under the other's.
    """
    if not isinstance(event, events.SampledEvent):
        return 0.0
    release, sampling = event.event, event.sampling
    if not isinstance(release, events.GaussianSumEvent):
        return 0.0
    z, q = release.noise_multiplier, 1.0
    if isinstance(sampling, events.PoissonSampling):
        q = sampling.sampling_probability
    elif isinstance(sampling, events.ShuffledSampling):
        count = 1
    elif not isinstance(sampling, (events.FullBatchSampling, events.UnknownSampling)):
        return 0.0
    if q == 1 and count > 1:
        z, count = z / math.sqrt(count), 1
    if not 1e-10 < z < 1e300 or delta == 0:
        return 0.0
    t = np.concatenate([np.linspace(-40, 40, 400), 1 / z + np.linspace(-38, 10, 400)])
    with np.errstate(all="ignore"):
        without, moved = special.log_ndtr(-t), special.log_ndtr(-(t - 1 / z))
        once = moved
        if q < 1:
            once = np.logaddexp(math.log1p(-q) + without, math.log(q) + moved)
        some = -np.expm1(count * np.log1p(-np.minimum(np.exp(once), 1 - 1e-16)))
        excess = some - delta * (1 + 1e-12)
        losses = np.log(excess) - np.minimum(0.0, without + math.log(count))
        return max(0.0, float(np.max(losses[some > delta * (1 + 1e-9)], initial=0.0)))


def faults(name: str, seed: int, longest: float = math.inf) -> Iterator[str]:
    """Yields what is wrong with an accountant's answers about the steps of a seed.

    Args:
        name: A key of `ACCOUNTANTS`.
        seed: Decides everything that is random.
        longest: Seconds that one answer may take.
    """
    draw = random.Random(seed)
    taken = steps(draw)
    asked = [("epsilon", draw.choice(_DELTAS)) for _ in range(2)]
    asked += [("delta", draw.choice(_EPSILONS)) for _ in range(2)]
    accountant = ACCOUNTANTS[name]()
    try:
        for event, count in taken:
            accountant.compose(event, count)
    except UnsupportedEventError:
        return
    for what, of in asked:
        where, begin = f"{name}, seed {seed}, {what} of {of}: ", time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                get = accountant.get_epsilon if what == "epsilon" else accountant.get_delta
                found = get(of)
        except UnsupportedEventError as e:
            # How long it takes depends on all that was composed.
            if name != "monte_carlo":
                yield f"{where}{e!r}"
            continue
        except (ArithmeticError, LookupError, MemoryError, RuntimeError, Warning, ValueError) as e:
            yield f"{where}{e!r}"
            continue
        seconds = time.perf_counter() - begin
        most = math.inf if what == "epsilon" else 1.0
        if type(found) is not float or not 0 <= found <= most:
            yield f"{where}{found!r}"
        elif what == "epsilon":
            truth = max(lower_bound(event, count, of) for event, count in taken)
            if found < truth * (1 - 1e-7) - 1e-12:
                yield f"{where}{found} is below the truth, {truth}"
        if seconds > longest:
            yield f"{where}took {seconds:.0f} seconds"


if __name__ == "__main__":
    first, last = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, last):
        for name in sys.argv[3:] or ACCOUNTANTS:
            for fault in faults(name, seed, longest=60.0):
                print(fault, flush=True)
