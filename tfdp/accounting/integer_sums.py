"""What sums of integer vectors with integer noise cost.

Let D be the discrete Gaussian of parameter s over the integers. For integers v and k,

    sum_x D(x - v)^a D(x)^(1 - a) = exp(a (a - 1) v^2 / (2 s^2)) sum_x D(x - a v),

and the last sum is at most one, which it attains where a v is an integer (Canonne, Kamath and
Steinke 2020, arXiv:2004.00010, proposition 5 and theorem 14). So a shift by an integer vector of
norm S has divergences of at most a S^2 / (2 s^2) at every order a: as with a Gaussian,
rho = S^2 / (2 s^2), whatever s and the number of coordinates are.
"""

from typing import Any

from tfdp.accounting.mechanisms import Concentrated, Mechanism, NoPrivacy
from tfdp.accounting.ranges import LARGEST_MULTIPLIER, SMALLEST_MULTIPLIER, within_range
from tfdp.events import NeighboringRelation


def discrete_gaussian_sum(event: Any, factor: float, _: NeighboringRelation) -> Mechanism:
    """Returns what the sum costs where neighbouring samples differ by `factor` units."""
    z = min(event.noise_multiplier, LARGEST_MULTIPLIER) / factor
    return within_range(Concentrated(0.5 / z / z)) if z >= SMALLEST_MULTIPLIER else NoPrivacy()
