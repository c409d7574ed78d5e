"""Runs whose noise remembers, and how much of it a budget asks for."""

import dataclasses
import functools
import math

from tfdp import events
from tfdp.accounting.planning.boundary import find_boundary
from tfdp.accounting.planning.calibration import NOISE_AXIS, UnreachableBudgetError
from tfdp.accounting.planning.training_plan import check_batch, steps_of
from tfdp.accounting.registry import (
    DEFAULT_ACCOUNTANT,
    AccountantChoice,
    accountant_maker,
    check_proven,
)
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import positive_integer, real_number, set_field
from tfdp.factorizations import (
    BinaryTree,
    ToeplitzFactorization,
    banded_inverse_square_root,
    optimal_banded,
    optimal_buffered,
    optimal_one_step_back,
)
from tfdp.ledger.ledger import PrivacyLedger

# Names of mechanisms, and whether they have a number of bands.
MECHANISMS = {"bandmf": True, "bisr": True, "blt": True, "lambda_cgd": False, "tree": False}
RUN_SAMPLINGS = ("fixed_order", "balls_in_bins", "cyclic_poisson", "min_separation")
# Those in which a unit is in a step of every pass over the data, whatever the bands.
_BY_PASSES = ("fixed_order", "balls_in_bins")


@dataclasses.dataclass(frozen=True)
class CorrelatedPlan:
    """A run of sums with correlated noise, as far as its privacy goes.

    Attributes:
        population_size: Units in the data set; public.
        batch_size: (Expected) units in a sample.
        steps: How many; all of them are one run.
        noise_multiplier: Standard deviation of what is fresh in a step's noise, divided by the norm
            bound: `stddev / l2_norm_clip` of a `CorrelatedGaussianSumQuery`.
        factorization: As there.
        period: As there: steps between two participations, or groups that take turns.
        sampling: "fixed_order", "balls_in_bins", "cyclic_poisson" or "min_separation".
        neighboring_relation: ZERO_OUT or REPLACE_ONE.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range, or no event describes such a run.
    """

    population_size: int
    batch_size: int
    steps: int
    noise_multiplier: float
    factorization: ToeplitzFactorization | BinaryTree
    period: int
    sampling: str = "fixed_order"
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT

    def __post_init__(self) -> None:
        batch_size, population_size = check_batch(self.batch_size, self.population_size)
        set_field(self, "batch_size", batch_size)
        set_field(self, "population_size", population_size)
        for name in ("steps", "period"):
            set_field(self, name, positive_integer(name, getattr(self, name)))
        z = real_number("noise_multiplier", self.noise_multiplier, minimum=0, inclusive=False)
        set_field(self, "noise_multiplier", z)
        if self.sampling not in RUN_SAMPLINGS:
            raise ValueError(
                f"sampling must be one of {list(RUN_SAMPLINGS)} for noise that remembers. "
                f"Received: sampling={self.sampling!r}."
            )
        self.event()

    def event(self) -> events.SampledEvent:
        """Returns the event of the first step, which is charged as the whole run."""
        of, place = self.factorization, (self.steps, self.period, 0, 0)
        release: events.Event = (
            events.TreeGaussianSumEvent(1.0, self.noise_multiplier, *place, of.efficient)
            if isinstance(of, BinaryTree)
            else events.CorrelatedGaussianSumEvent(
                1.0, self.noise_multiplier, of.numerator, of.denominator, *place
            )
        )
        sampling: events.Sampling = events.FixedOrderSampling(self.batch_size, self.population_size)
        if self.sampling == "balls_in_bins":
            sampling = events.BallsInBinsSampling(self.period, 0, 0, self.population_size)
        if self.sampling == "cyclic_poisson":
            q = self.batch_size * self.period / self.population_size
            sampling = events.CyclicPoissonSampling(q, self.period, 0, self.population_size)
        if self.sampling == "min_separation":
            free = self.population_size - (self.period - 1) * self.batch_size
            sampling = events.MinSeparationSampling(
                self.batch_size / free if free > 0 else math.inf,
                self.period,
                self.steps,
                self.population_size,
            )
        return events.SampledEvent(sampling, release, self.neighboring_relation)

    def epsilon(
        self, target_delta: float, accountant: AccountantChoice = DEFAULT_ACCOUNTANT
    ) -> float:
        """Returns what the run costs.

        Args:
            target_delta: Between 0 and 1.
            accountant: A name in `tfdp.accounting.ACCOUNTANTS`, a class, or an empty accountant.

        Raises:
            UnsupportedEventError: the accountant cannot price such a run.
        """
        ledger = PrivacyLedger()
        ledger.append(self.event())
        made = accountant_maker(accountant)(self.neighboring_relation)
        return float(ledger.replay(made).get_epsilon(target_delta))

    def error(self, kind: str = "root_mean_squared") -> float:
        """Returns the error of running sums of average gradients, in clip norms.

        Args:
            kind: "root_mean_squared", over all steps, or "max".
        """
        errors = {
            "root_mean_squared": self.factorization.root_mean_squared_error,
            "max": self.factorization.max_error,
        }
        relative = errors[kind](self.steps) / self.factorization.sensitivity(self.steps)
        return self.noise_multiplier * relative / self.batch_size


def calibrate_correlated(
    *,
    target_delta: float,
    population_size: int,
    batch_size: int,
    mechanism: str,
    bands: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    target_epsilon: float | None = None,
    noise_multiplier: float | None = None,
    sampling: str = "fixed_order",
    groups: int | None = None,
    accountant: AccountantChoice = DEFAULT_ACCOUNTANT,
    neighboring_relation: NeighboringRelation | None = None,
) -> CorrelatedPlan:
    """Returns the run with noise that remembers which fits a budget with the least noise.

    Give `target_epsilon`, or `noise_multiplier` to ask the plan what that costs.

    Guarantees:
        `accountant` gives at most `target_epsilon` for the plan that is returned. Its noise
        multiplier is less than 0.1 % above the smallest that does so.

    Args:
        target_delta: Between 0 and 1; choose it well below 1 / population_size.
        population_size: Units in the data set; public.
        batch_size: (Expected) units in a sample.
        mechanism: "bandmf" (the banded C with the least error, `optimal_banded`), "bisr" (its
            inverse is banded), "blt" (`optimal_buffered`), "lambda_cgd"
            (`optimal_one_step_back`) or "tree" (`BinaryTree`).
        bands: Of C, or of its inverse; of "blt" the number of buffers. The last two have none.
        steps: How many. Give either these or `epochs`.
        epochs: As `fit` counts them: of groups an epoch ends with a whole turn of all of them.
        target_epsilon: The budget, positive.
        noise_multiplier: In place of the budget.
        sampling: "fixed_order" or "balls_in_bins", or "cyclic_poisson" or "min_separation" for
            "bandmf".
        groups: Of "cyclic_poisson", which take turns; of "min_separation" the steps between two
            participations, at least. By default as many as bands, with which samples are drawn from
            most of the data.
        accountant: A name in `tfdp.accounting.ACCOUNTANTS`, a class, or an empty accountant. To
            find the noise for a budget its bounds have to be proven.
        neighboring_relation: ZERO_OUT by default.

    Raises:
        UnreachableBudgetError: no noise is enough.
        UnsupportedEventError: the accountant cannot price such a run.
        ValueError: an argument is out of range, or not one of two is given.
        TypeError: an argument is of the wrong type.

    Example:
        >>> plan = calibrate_correlated(
        ...     target_epsilon=8.0, target_delta=1e-5, population_size=60_000, batch_size=500,
        ...     mechanism="bandmf", bands=16, epochs=1,
        ... )
        >>> plan.steps, round(plan.noise_multiplier, 3)
        (120, 0.952)

    References:
        Choquette-Choo et al. 2023, arXiv:2306.08153 (BandMF and its amplification).
    """
    batch_size, population_size = check_batch(batch_size, population_size)
    _check_choice(mechanism, bands, sampling, groups)
    if (target_epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            "Give either target_epsilon or noise_multiplier. Received: "
            f"{target_epsilon=}, {noise_multiplier=}."
        )
    if (steps is None) == (epochs is None):
        raise ValueError(f"Give either steps or epochs. Received: {steps=}, {epochs=}.")
    period = 1
    for name, number in (("bands", bands), ("groups", groups)):
        if number is not None:
            period = positive_integer(name, number)
    if sampling in _BY_PASSES:
        period = -(-population_size // batch_size)
    if steps is None:
        passes = real_number("epochs", epochs, minimum=0, inclusive=False)
        steps = steps_of(passes, _steps_per_epoch(population_size, batch_size, period, sampling))
    steps = positive_integer("steps", steps)
    made = functools.partial(
        CorrelatedPlan,
        population_size,
        batch_size,
        steps,
        factorization=_factorization(mechanism, bands, steps, period, sampling),
        period=period,
        sampling=sampling,
        neighboring_relation=neighboring_relation or NeighboringRelation.ZERO_OUT,
    )
    if noise_multiplier is not None:
        return made(noise_multiplier=noise_multiplier)
    check_proven(accountant)
    target = real_number("target_epsilon", target_epsilon, minimum=0, inclusive=False)

    @functools.cache
    def cost(z: float) -> float:
        return made(noise_multiplier=z).epsilon(target_delta, accountant)

    edge = find_boundary(cost, target, NOISE_AXIS, 1.0)
    if edge.within is None:
        raise UnreachableBudgetError(
            f"No noise keeps this run within epsilon {target!r} at delta {target_delta!r}."
        )
    return made(noise_multiplier=edge.within.x)


def _steps_per_epoch(population_size: int, batch_size: int, period: int, sampling: str) -> int:
    """Returns how many steps `fit` takes for an epoch: of groups, whole turns of all of them."""
    if sampling in _BY_PASSES:
        return period
    whole = max(1, round(population_size / batch_size))
    return whole if sampling == "min_separation" else period * -(-whole // period)


def _check_choice(mechanism: str, bands: int | None, sampling: str, groups: int | None) -> None:
    """Refuses names that there are not, and numbers that have no meaning for them."""
    if mechanism not in MECHANISMS:
        raise ValueError(
            f"mechanism must be one of {list(MECHANISMS)}. Received: mechanism={mechanism!r}."
        )
    if MECHANISMS[mechanism] != (bands is not None):
        needs = "needs bands" if MECHANISMS[mechanism] else "has no bands"
        raise ValueError(f"mechanism={mechanism!r} {needs}. Received: bands={bands!r}.")
    if sampling not in _BY_PASSES and mechanism != "bandmf":
        raise ValueError(
            "Random samples but balls in bins amplify banded noise only: mechanism='bandmf'. "
            f"Received: mechanism={mechanism!r}."
        )
    if groups is not None and sampling in _BY_PASSES:
        raise ValueError(f"groups are those of 'cyclic_poisson'. Received: {groups=}.")


def _factorization(
    mechanism: str, bands: int | None, steps: int, period: int, sampling: str
) -> ToeplitzFactorization | BinaryTree:
    if mechanism == "tree":
        return BinaryTree()
    if mechanism == "bisr":
        return banded_inverse_square_root(positive_integer("bands", bands))
    if mechanism == "blt":
        return optimal_buffered(steps, positive_integer("bands", bands), period)
    if mechanism == "lambda_cgd":
        return optimal_one_step_back(steps, period)
    # Of random samples a unit is in one at a time, and what counts is a column's norm.
    spacing = period if sampling in _BY_PASSES else None
    return optimal_banded(steps, min(positive_integer("bands", bands), steps), spacing)
