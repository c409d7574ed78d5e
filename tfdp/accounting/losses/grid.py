"""Privacy losses rounded to a grid, and the delta of their sums by the fast Fourier transform.

**Rounding.** A cell between the losses e and e + h, of probability p under P and q under Q, becomes
two atoms at its ends with the same two sums, a + b = p and a exp(-e) + b exp(-e - h) = q:

    b = (p - exp(e) q) / (1 - exp(-h)),    a = p - b.

A rounded loss is the true one plus a noise N in [-h, h] with E[exp(-N) | L] = 1. By Jensen's
inequality delta only grows, for sums of rounded losses too (Doroshenko et al. 2022,
arXiv:2207.04380, "connect the dots").

**How much it grows.** Let X be the sum of the true losses, N the sum of the noises, and
s^2 = sum h^2 / 4. Given X, N is sub-Gaussian with variance proxy s^2 and a mean between 0 and
s^2 / 2 (Hoeffding's lemma, at exponents lambda and -1). At a loss X that is d away from epsilon,
rounding adds at most Psi(d) = int_d^inf e^(y - d) P(|N| > y) dy to E[max(0, 1 - e^(epsilon - X))].
The probability that X is so near is not known, but the probability that X + N is so near is. And
P(|N| <= t | X) >= 1 - kappa, whatever X is. Therefore

    delta_rounded(epsilon) - delta(epsilon)
        <= E[Psi(|X - epsilon|)] <= E[Psi(max(0, |X + N - epsilon| - t))] / (1 - kappa).

This bound is of second order in h, and so is the true error. Gopi, Lee and Wutschitz (2021,
arXiv:2106.02848) bound |N| itself, which is of first order.

**Sums.** Before they are transformed, probabilities are multiplied by exp(tilt L) and divided by
their sum. This makes the losses that matter the likely ones, so the result is accurate relative to
delta, and not only relative to 1. Bounds on what wraps around, and on the rounding of the
transforms, are added.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tfdp.accounting.losses.pairs import LossPair

# Units in the last place by which a transcendental function, or a butterfly of a transform, may be
# off (Higham 2002, Accuracy and Stability of Numerical Algorithms, theorem 24.2).
_ROUNDOFF = 8 * 2.0**-53
# Values of a transform that are smaller than this are left out.
_NEGLIGIBLE = 1e-25
# Losses larger than this count as infinite, because e^loss would overflow.
_LARGEST_LOSS = 700.0


class GridPMF(NamedTuple):
    """A distribution of rounded losses under P.

    Attributes:
        interval: h, the distance of the losses on the grid.
        first: Index on the grid of the first atom.
        atoms: Probabilities of the losses first * h, (first + 1) * h, ...
        infinite: Probability of losses above the grid, which count as infinite.
        raised: Probability of losses below the grid, which count as the first atom.
        variance: Of the rounding noise, an atom of noise for every cell that ends with the atom.
        roundoff: Bound on what rounding has moved from every atom to the next, or from there.
    """

    interval: float
    first: int
    atoms: np.ndarray
    infinite: float
    raised: float
    variance: np.ndarray
    roundoff: np.ndarray

    @property
    def losses(self) -> np.ndarray:
        """The loss of every atom."""
        return (self.first + np.arange(len(self.atoms))) * self.interval


def round_losses(pair: LossPair, interval: float, log_tail: float) -> GridPMF:
    """Returns the losses of the pair, rounded so that delta is nowhere smaller.

    Args:
        pair: The pair P, Q.
        interval: h, positive.
        log_tail: Logarithm of a probability that is given up on either side.
    """
    (low, high), _ = pair.bounds(log_tail)
    high = min(high, _LARGEST_LOSS)
    first, last = math.floor(min(low, high) / interval) - 1, math.ceil(high / interval) + 1
    edges = (first + np.arange(last - first + 1)) * interval
    p, q = pair.cells(edges)
    # A cell is a difference, which rounding may make negative where nothing is in it.
    p = np.maximum(p, 0.0)
    inner, start = p[1:-1], edges[:-1]
    ratio = np.exp(np.minimum(start, _LARGEST_LOSS))
    up = np.clip((inner - ratio * q[1:-1]) / -math.expm1(-interval), 0.0, inner)
    atoms = np.append(inner - up, 0.0)
    atoms[1:] += up
    atoms[0] += p[0]
    variance = np.zeros(len(atoms))
    np.divide(up * (inner - up), inner, out=variance[1:], where=inner > 0)
    # The probability of a cell is a difference of the probabilities of two tails.
    tails = _rounded(_nearer_tail(p)[1:-1]) + ratio * _rounded(_nearer_tail(q)[1:-1])
    roundoff = np.append(_ROUNDOFF * tails / -math.expm1(-interval), 0.0)
    return GridPMF(
        interval, first, atoms, float(p[-1]), float(p[0]), variance * interval**2, roundoff
    )


def _nearer_tail(cells: np.ndarray) -> np.ndarray:
    return np.minimum(np.cumsum(cells), np.cumsum(cells[::-1])[::-1])


def _rounded(tails: np.ndarray) -> np.ndarray:
    """Returns tails times how many roundings they have. If x is rounded, the tail of a normal
    distribution beyond x is off by about x^2 roundings, where log(tail) is about -x^2 / 2; other
    distributions have heavier tails.
    """
    logarithms = np.log(tails, out=np.zeros_like(tails), where=tails > 0)
    return tails * (1 - np.minimum(logarithms, 0.0) / 2)


class Window(NamedTuple):
    """Where a sum of losses is looked for.

    Attributes:
        low: The smallest loss; below it almost nothing is left of the tilted sum.
        high: The largest loss; likewise.
        tilt: The exponent of the losses that matter, positive.
        tilt_below: A smaller exponent, which bounds what is below.
        tilt_above: A larger exponent, which bounds what is above.
    """

    low: float
    high: float
    tilt: float
    tilt_below: float
    tilt_above: float


@dataclasses.dataclass(frozen=True)
class LossSum:
    """The sum of rounded losses, and bounds of what was lost on the way.

    The loss x of index first + j has the probability atoms[j] exp(log_scale - tilt x), up to errors
    that are stated in units of atoms.

    Attributes:
        interval: h.
        first: Index on the grid of the first atom.
        atoms: Tilted probabilities.
        tilt: Exponent of the tilt.
        log_scale: Logarithm of E[exp(tilt X)].
        wrapped: Bound on the sum of what wrapped around, and is too much.
        lost: Bound on the probability, not tilted, of losses above the window.
        transformed: Bound on the Euclidean norm of the rounding errors of transforms.
        moved: Bound on the sum of what rounding has moved, times how far.
        scaled: Bound on the relative error of everything.
        infinite: Probability of an infinite loss.
        cut: Probability that a loss was outside its grid, above or below.
        proxy: s^2, the noise's variance proxy.
        variance: Of the noise where the tilted loss is, and of the loss within its cell.
    """

    interval: float
    first: int
    atoms: np.ndarray
    tilt: float
    log_scale: float
    wrapped: float
    lost: float
    transformed: float
    moved: float
    scaled: float
    infinite: float
    cut: float
    proxy: float
    variance: float


def tilted(pmf: GridPMF, tilt: float) -> tuple[float, np.ndarray]:
    """Returns log E[exp(tilt L)] of the finite losses, and the atoms tilted by it."""
    exponents = tilt * pmf.losses
    with np.errstate(divide="ignore"):
        exponents += np.log(pmf.atoms)
    largest = float(exponents.max())
    weights = np.exp(exponents - largest)
    total = float(weights.sum())
    return largest + math.log(total), weights / total


def _chernoff(exponent: float) -> float:
    return math.exp(min(0.0, exponent))


def add_losses(steps: Iterable[tuple[GridPMF, int]], window: Window) -> LossSum:
    """Returns the distribution of the sum of so many independent losses of every kind.

    Args:
        steps: Rounded losses, all on the same grid, and how many there are of each.
        window: Where the sum is.
    """
    from scipy import fft

    steps = list(steps)
    h, tilt = steps[0][0].interval, window.tilt
    first = math.floor(window.low / h)
    size = fft.next_fast_len(math.ceil(window.high / h) - first + 2, real=True)
    # The frequencies at which the product is not negligible.
    active, product = np.arange(size // 2 + 1), np.ones(size // 2 + 1, np.complex128)
    offset, log_scale, below, above = 0, 0.0, 0.0, 0.0
    norm = moved = scaled = infinite = cut = variance = 0.0
    for pmf, count in steps:
        log_moment, atoms = tilted(pmf, tilt)
        log_scale += count * log_moment
        below += count * tilted(pmf, window.tilt_below)[0]
        above += count * tilted(pmf, window.tilt_above)[0]
        # Once a loss is centred at its mean, the argument of its transform is small wherever the
        # modulus is not.
        index = np.arange(len(atoms))
        mean = round(float(index @ atoms))
        offset += count * (pmf.first + mean)
        transform = fft.rfft(np.bincount((index - mean) % size, atoms, size))
        product *= _power(transform[active], count)
        kept = np.abs(product) > _NEGLIGIBLE
        active, product = active[kept], product[kept]
        relative = np.divide(atoms, pmf.atoms, out=np.zeros_like(atoms), where=pmf.atoms > 0)
        norm += count * float(np.linalg.norm(atoms))
        moved += count * float(relative @ pmf.roundoff)
        scaled += count * (64 + tilt * float(np.abs(pmf.losses).max()))
        variance += count * float(relative @ pmf.variance)
        infinite += count * pmf.infinite
        cut += count * (pmf.infinite + pmf.raised)
    spectrum = np.zeros(size // 2 + 1, np.complex128)
    spectrum[active] = product
    total = np.roll(fft.irfft(spectrum, size), (offset - first) % size)
    low, high = (first - 1) * h, (first + size) * h
    return LossSum(
        interval=h,
        first=first,
        atoms=np.maximum(total, 0.0),
        tilt=tilt,
        log_scale=log_scale,
        wrapped=_chernoff(below - log_scale + (tilt - window.tilt_below) * low)
        + _chernoff(above - log_scale - (window.tilt_above - tilt) * high),
        lost=_chernoff(above - window.tilt_above * high),
        transformed=4 * _ROUNDOFF * math.log2(size) * (norm + 1),
        moved=math.expm1(min(1.0, h * math.exp(tilt * h) * moved)),
        scaled=math.expm1(min(1.0, _ROUNDOFF * scaled)),
        infinite=min(1.0, infinite),
        cut=cut,
        proxy=sum(count for _, count in steps) * h * h / 4,
        variance=variance,
    )


def _power(transform: np.ndarray, count: int) -> np.ndarray:
    if count == 1:
        return transform
    with np.errstate(divide="ignore"):
        modulus = np.exp(count * np.log(np.abs(transform)))
    angle = count * np.angle(transform)
    return modulus * (np.cos(angle) + 1j * np.sin(angle))
