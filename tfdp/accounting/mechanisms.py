"""What accountants price: every event comes down to some of these (`tfdp.accounting.normal_form`).

All are frozen, and equal only where they are of one type. The neighbouring relation, and whatever a
neighbour's sample may differ by, is already in their numbers; each says what two outputs it is a
pair of.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from tfdp.factorizations import BinaryTree, ToeplitzFactorization


class Mechanism:
    """Base of the mechanisms."""


@dataclasses.dataclass(frozen=True)
class NoPrivacy(Mechanism):
    """Neighbours can be told apart with certainty; accountants never see it."""


@dataclasses.dataclass(frozen=True)
class SampledGaussian(Mechanism):
    """The Gaussian mechanism on a Poisson sample: (1 - q) N(0, z^2) + q N(1, z^2) and N(0, z^2).

    Both orders of the two count: one unit is added to or removed from the data set, or zeroed out.

    Attributes:
        sampling_probability: q, in (0, 1].
        noise_multiplier: z, within `tfdp.accounting.ranges`.
    """

    sampling_probability: float
    noise_multiplier: float


@dataclasses.dataclass(frozen=True)
class SampledLaplace(Mechanism):
    """The Laplace mechanism on a Poisson sample: as `SampledGaussian`, with Laplace noise.

    A shift of several coordinates, of l1 norm one, is dominated by a shift of one by one.

    Attributes:
        sampling_probability: q, in (0, 1].
        noise_multiplier: Scale of the noise, within `tfdp.accounting.ranges`.
    """

    sampling_probability: float
    noise_multiplier: float


@dataclasses.dataclass(frozen=True)
class FixedSizeGaussian(Mechanism):
    """The Gaussian mechanism on a sample of fixed size without replacement; one unit is replaced.

    No single pair of outputs is known to be the worst.

    Attributes:
        sample_size: n, below population_size.
        population_size: N.
        noise_multiplier: z, relative to what one replacement *in the sample* moves the sum by
            (twice the norm bound), within `tfdp.accounting.ranges`.
    """

    sample_size: int
    population_size: int
    noise_multiplier: float


@dataclasses.dataclass(frozen=True)
class AllocatedGaussian(Mechanism):
    """The Gaussian mechanism in t steps, of which a unit is in exactly one, uniformly: a mixture of
    the N(e_i, z^2 I), i = 1, ..., t, and N(0, z^2 I).

    Both orders of the two count.

    Attributes:
        num_steps: t, at least 2, within `tfdp.accounting.ranges`.
        noise_multiplier: z, likewise.
    """

    num_steps: int
    noise_multiplier: float


@dataclasses.dataclass(frozen=True)
class SeparatedGaussian(Mechanism):
    """The Gaussian mechanism on C s, of the steps s of a unit that are at least b steps apart.

    s is drawn as `tfdp.events.MinSeparationSampling` says, in n steps. The pair is the mixture of
    the N(C s, I) over s, and N(0, I). Both orders of the two count. Column t of C has in the rows
    t, t + 1, ... the numbers of `columns`, cut off after row n. There may be several such matrices,
    one above the other, with noise of their own.

    With vectors of norm 1 at most in place of ones, which may depend on what was released before,
    and with other signs in C, it costs no more. Proof: the likelihood ratio is a sum over s of
    Pr(s) exp(X_s - |X_s|^2 / 2) with Gaussian X_s, whose covariances are inner products of sums of
    vectors. None is larger than if all vectors are equal, of norm 1, and C has no negative number.
    By Kahane's inequality (1986) the mean of a convex function of such a sum grows with every
    covariance, and hockey-stick divergences of both orders are such means. Where vectors depend on
    what was released, that is so of the last row, given all before; then of the row before it, and
    so on.

    Attributes:
        sampling_probability: p, in (0, 1].
        min_separation: b.
        num_steps: n.
        columns: Of each matrix, divided by the standard deviation of its noise; no number is
            negative, and none has more than min_separation of them.
    """

    sampling_probability: float
    min_separation: int
    num_steps: int
    columns: tuple[tuple[float, ...], ...]

    @property
    def noise_multiplier(self) -> float:
        """Noise, relative to what a unit in one step moves."""
        return 1 / math.hypot(*(x for column in self.columns for x in column))

    @property
    def participations(self) -> int:
        """In how many steps a unit may be."""
        return -(-self.num_steps // self.min_separation)

    @property
    def sensitivity(self) -> float:
        """How far a unit moves what is released at most, in standard deviations of its noise.

        Columns of two steps of the unit have no row in common, and those of later steps are cut off
        earlier. So the steps 0, b, 2 b, ... move it furthest.
        """
        whole = max(0, (self.num_steps - max(map(len, self.columns))) // self.min_separation + 1)
        moved = [math.sqrt(whole) * x for column in self.columns for x in column]
        for number in range(whole, self.participations):
            left = self.num_steps - number * self.min_separation
            moved.extend(x for column in self.columns for x in column[:left])
        return math.hypot(*moved) * (1 + 1e-12)


@dataclasses.dataclass(frozen=True)
class BinnedGaussian(Mechanism):
    """The Gaussian mechanism on C s, of a unit that is in the steps j, j + b, j + 2 b, ... of n.

    j is uniform over 0, ..., b - 1. The pair is the mixture of the N(C s_j, I) over j, and N(0, I).
    Both orders of the two count. C is of absolute values. There may be several matrices, one above
    the other, with noise of their own.

    The proof of `SeparatedGaussian` holds here, too, and asks nothing of the number of bands: with
    vectors of norm 1 at most in place of ones, which may depend on what was released before, and
    with other signs in C, it costs no more. All that counts is the products <C s_j, C s_k>: where
    they are larger, it costs more. So a run that stops early costs no more than a whole one.

    Attributes:
        num_bins: b.
        num_steps: n.
        releases: Of each matrix the factorization, and the standard deviation of its noise.
    """

    num_bins: int
    num_steps: int
    releases: tuple[tuple[ToeplitzFactorization | BinaryTree, float], ...]

    @property
    def sensitivity(self) -> float:
        """How far a unit moves what is released at most, in standard deviations of its noise."""
        moved = (c.sensitivity(self.num_steps, self.num_bins) / z for c, z in self.releases)
        return math.hypot(*moved) * (1 + 1e-12)

    @property
    def bands(self) -> int:
        """Of the matrix that has most of them; n where a column does not end."""
        return max(getattr(c, "bands", None) or self.num_steps for c, _ in self.releases)


@dataclasses.dataclass(frozen=True)
class TruncatedGaussian(Mechanism):
    """The Gaussian mechanism on a Poisson sample, of which a random part is kept where it is large.

    With the probability tau the others' sample is so large that one more unit in it drives another
    one out. Whether that is so does not depend on the unit. So the pair is, with probability 1 -
    tau, that of `SampledGaussian`. With probability tau the sample holds the unit with probability
    q at most, and then the sum moves by 2 at most. It is that of a `SampledGaussian`, too, or where
    a unit that contributes nothing takes a place, that of a `FixedSizeGaussian`.

    Attributes:
        sampling_probability: q, below 1.
        overflow_probability: tau, in (0, 1].
        noise_multiplier: z, within `tfdp.accounting.ranges`.
        keeps_places: Whether a unit that contributes nothing takes a place in the sample.
    """

    sampling_probability: float
    overflow_probability: float
    noise_multiplier: float
    keeps_places: bool


@dataclasses.dataclass(frozen=True)
class RemoveThenAdd(Mechanism):
    """`mechanism` for two neighbours in a row: one unit is removed, then another one is added.

    Attributes:
        mechanism: What it costs to add or remove one unit; it has a q below 1.
    """

    mechanism: SampledGaussian | SampledLaplace | AllocatedGaussian


@dataclasses.dataclass(frozen=True)
class BoundedRange(Mechanism):
    """A mechanism whose privacy loss lies in an interval of this length (exponential mechanism).

    The worst pair depends on what is asked: for some t in [0, epsilon], two outcomes with losses t
    and t - epsilon (Dong, Durfee and Rogers 2020, arXiv:1909.13830).

    Attributes:
        epsilon: Positive.
    """

    epsilon: float


@dataclasses.dataclass(frozen=True)
class Concentrated(Mechanism):
    """Any rho-zero-concentrated mechanism: divergences of every order a above one are <= rho a.

    No neighbours are known whose outputs are the worst.

    Attributes:
        rho: Positive.
    """

    rho: float


@dataclasses.dataclass(frozen=True)
class SkellamNoise(Mechanism):
    """An integer vector with Skellam noise on every coordinate, moved by an integer vector.

    No vector of these norms is known to be the worst.

    Attributes:
        l1_norm: Of what it is moved by, at most.
        l2_norm: Likewise.
        variance: Of the noise.
    """

    l1_norm: float
    l2_norm: float
    variance: float


@dataclasses.dataclass(frozen=True)
class PureEpsilon(Mechanism):
    """Any epsilon-differentially private mechanism; the worst is binary randomized response.

    That has losses +-epsilon, the first with probability e^epsilon / (1 + e^epsilon).

    Attributes:
        epsilon: Positive.
    """

    epsilon: float


@dataclasses.dataclass(frozen=True)
class RandomizedResponse(Mechanism):
    """A report that is uniform over k values with probability p, and else the unit's own value.

    Attributes:
        noise_parameter: p, in (0, 1).
        num_buckets: k, at least 2.
        from_uniform: False where neighbours report two different values of their own, True where
            one of the two always reports a uniform value (a null unit).
    """

    noise_parameter: float
    num_buckets: int
    from_uniform: bool


# What a run costs: mechanisms, and how often each was released.
Run = tuple[tuple[Mechanism, int], ...]


@dataclasses.dataclass(frozen=True)
class BestOfRuns(Mechanism):
    """The best of K runs, each of which is one of these; K from D(shape, success_probability).

    No neighbours are known whose outputs are the worst, only bounds of Renyi divergences.

    Attributes:
        runs: What a run may be.
        shape: eta.
        success_probability: gamma.
    """

    runs: tuple[Run, ...]
    shape: float
    success_probability: float


@dataclasses.dataclass(frozen=True)
class BestOfPureRuns(Mechanism):
    """`BestOfRuns`, where every run is epsilon-differentially private.

    It is (2 + shape) epsilon-differentially private (Papernot and Steinke 2022, arXiv:2110.03620;
    the limit of theorem 2 at large orders).

    Attributes:
        best: The same, as for runs that are not.
        epsilon: Of the dearest run.
    """

    best: BestOfRuns
    epsilon: float


@dataclasses.dataclass(frozen=True)
class BestOfPoissonRuns(Mechanism):
    """The best of K runs, each of which is one of these; K from a Poisson distribution.

    Attributes:
        runs: What a run may be.
        mean_runs: mu.
    """

    runs: tuple[Run, ...]
    mean_runs: float


@dataclasses.dataclass(frozen=True)
class WorstPart(Mechanism):
    """One of several lists of mechanisms, nobody knows which: releases about disjoint parts.

    Which of them is the worst depends on the order of divergence.

    Attributes:
        parts: Of each part, its mechanisms, all without sampling.
        together: Mechanisms that together dominate every part.
    """

    parts: tuple[tuple[Mechanism, ...], ...]
    together: tuple[Mechanism, ...]


def without_parts(mechanisms: Iterable[Mechanism]) -> list[Mechanism]:
    """Returns the mechanisms, with what dominates all parts in place of the worst part."""
    return [
        each
        for mechanism in mechanisms
        for each in (mechanism.together if isinstance(mechanism, WorstPart) else (mechanism,))
    ]


def amplified_epsilon(epsilon: float, sampling_probability: float) -> float:
    """Returns log(1 + q (e^epsilon - 1)): an epsilon-private mechanism on a sample.

    For Poisson samples under add-or-remove-one, and for samples of fixed size, q = n / N, under
    replace-one (Li et al. 2012, arXiv:1101.2604; Balle et al. 2018, arXiv:1807.01647).
    """
    if epsilon > 700:  # Beyond it e^epsilon overflows.
        exponent = epsilon + math.log(sampling_probability)
        return max(exponent, 0.0) + math.log1p(math.exp(-abs(exponent)))
    return math.log1p(sampling_probability * math.expm1(epsilon))


def _dearer_than_twice(mechanism: Any) -> Mechanism:
    once = mechanism.mechanism
    if isinstance(once, (AllocatedGaussian, SampledGaussian)):
        # Whoever knows the sample sees one replacement in it.
        return SampledGaussian(1.0, once.noise_multiplier / 2)
    return PureEpsilon(2 * amplified_epsilon(1 / once.noise_multiplier, once.sampling_probability))


def _dearer_than_binned(mechanism: Any) -> Mechanism:
    """Returns what it costs for whoever is told b // bands bins, one of which is the unit's.

    These are k, k + bands, k + 2 bands, ... modulo b, with k uniform, and the unit's bin uniform
    among them. Any two of their steps are at least `bands` apart, so that the columns are
    orthogonal. Outputs are mixtures over k, and divergences are jointly quasi-convex.
    """
    told, z = mechanism.num_bins // mechanism.bands, 1 / mechanism.sensitivity
    return AllocatedGaussian(told, z) if told > 1 else SampledGaussian(1.0, z)


def _dearer_than_randomized_response(mechanism: Any) -> Mechanism:
    # The likelihood of a value is 1 - p + p / k where it is the unit's own, p / k where it is
    # another's, and 1 / k where it is uniform.
    p, k = mechanism.noise_parameter, mechanism.num_buckets
    if mechanism.from_uniform:
        return PureEpsilon(max(-math.log(p), math.log(k - p * (k - 1))))
    return PureEpsilon(math.log1p((1 - p) * k / p))


# Mechanism type -> a simpler mechanism that costs at least as much. Accountants charge that where
# they have no price for the former, so that those of SampledGaussian and PureEpsilon are enough.
DEARER: dict[type[Mechanism], Callable[[Any], Mechanism]] = {
    AllocatedGaussian: lambda mechanism: SampledGaussian(1.0, mechanism.noise_multiplier),
    BinnedGaussian: _dearer_than_binned,
    BestOfPureRuns: lambda m: PureEpsilon((2 + m.best.shape) * m.epsilon),
    BoundedRange: lambda mechanism: PureEpsilon(mechanism.epsilon),
    FixedSizeGaussian: lambda mechanism: SampledGaussian(1.0, mechanism.noise_multiplier),
    RandomizedResponse: _dearer_than_randomized_response,
    RemoveThenAdd: _dearer_than_twice,
    SeparatedGaussian: lambda mechanism: SampledGaussian(1.0, 1 / mechanism.sensitivity),
    SampledLaplace: lambda mechanism: PureEpsilon(
        amplified_epsilon(1 / mechanism.noise_multiplier, mechanism.sampling_probability)
    ),
    TruncatedGaussian: lambda mechanism: SampledGaussian(1.0, mechanism.noise_multiplier / 2),
}
