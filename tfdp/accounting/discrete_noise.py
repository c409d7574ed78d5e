"""How far discrete Gaussian noise is from Gaussian noise that is rounded to the grid.

Rounding a Gaussian N(m, s^2) to integers is post-processing. If m is an integer, as sums on a grid
are, the result is m plus a rounded N(0, s^2). So a sum with discrete noise costs as much as one
with Gaussian noise, except for the probability by which the two kinds of noise can be told apart.
That is their total variation distance tau, whatever the sums are. Let P and P' be the outputs of
two neighbours, and Q and Q' those with Gaussian noise. Then P(S) <= Q(S) + tau <= e^epsilon Q'(S) +
delta + tau <= e^epsilon P'(S) + delta + (1 + e^epsilon) tau. The distances of several steps add up,
and mixtures over samples are no further apart than what they mix. So tau is a failure probability,
and every accountant, sampling policy and relation treats it as one.

Let phi be the density of N(0, s^2), D(x) = phi(x) / sum phi the discrete Gaussian and R(x) the
probability of being rounded to x. The sum of phi over the integers is at least one (Poisson's
summation formula). With z = x / s, and cosh y >= 1 + y^2 / 2, and e^-y >= 1 - y,

    R(x) / phi(x) = int_-1/2^1/2 exp(-t^2 / (2s^2)) cosh(z t / s) dt
                 >= int (1 - t^2 / (2s^2)) (1 + z^2 t^2 / (2s^2)) dt
                  = 1 + u,  u = (z^2 - 1) / (24 s^2) - z^2 / (320 s^4) >= -1 / (24 s^2).

By log(1 + u) >= u - u^2, and because under D the moments of z are 1 and 3 to within 1e-25 for s of
at least 2 (by the same formula),

    KL(D || R) <= -E u + E u^2 <= 1 / (320 s^4) + (sqrt(2) / 24 + sqrt(3) / (320 s^2))^2 / s^4
               <= 0.008 / s^4.

For d coordinates divergences add up, and by Pinsker's inequality tau <= sqrt(KL / 2), below
sqrt(d) / (10 s^2). Of a million coordinates, on the grid of `tfdp.query.grid` and with noise as
large as the clip norm, that is 1e-16.
"""

import math


def distance_from_rounded_gaussian(steps: float, coordinates: int) -> float:
    """Returns a bound on the total variation distance of the noises; no more than one.

    Edge cases:
        Where the noise is below two steps of the grid it is one: nothing is promised.

    Args:
        steps: The parameter of the noise, s, in steps of the grid.
        coordinates: d, of the sum.
    """
    if steps < 2:
        return 1.0
    return min(1.0, math.sqrt(coordinates) / 10 / steps / steps)
