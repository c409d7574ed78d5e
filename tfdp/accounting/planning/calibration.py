"""What fits a privacy budget: how much noise, how many steps, how large a batch, or what budget.

One epsilon on the fixed grid of `PLDAccountant` takes much time. So the search finds the edge of
the budget with Renyi divergences first, and then by `PRVAccountant`, whose grid adapts. Only the
result is verified on the fixed grid.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from tfdp.accounting.accountant import Accountant
from tfdp.accounting.planning.boundary import Axis, Boundary, find_boundary
from tfdp.accounting.planning.training_plan import (
    TrainingPlan,
    steps_of_epochs,
)
from tfdp.accounting.registry import (
    DEFAULT_ACCOUNTANT,
    AccountantChoice,
    accountant_maker,
    accountant_name,
    check_proven,
    replayed,
)
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import positive_integer, real_number
from tfdp.events.shown import shown_up
from tfdp.ledger.ledger import PrivacyLedger

_SMALLEST_NOISE, _LARGEST_NOISE = 1e-3, 1e8
_MOST_STEPS = 10**12
# Relative width of the edge of the noise multiplier: what is returned is at most so far too large.
_TOLERANCE = 5e-4
# What PLDAccountant says is predicted by PRVAccountant with this relative error of its bounds. Its
# grid of losses, of about sqrt(epsilon / steps), is the finer one below this epsilon / steps.
_PREDICTION_ERROR = 1e-3
_FEWEST_POINTS = 2e-6
# A prediction counts as right if it is off by less than this share of what it is used to exclude.
_TRUSTED = 0.2
# Where it jumps by more than this share of the budget, it may jump at another place.
_LARGEST_EXCESS = 0.02
# The edge by this quick accountant, of this relative width, is where the search for others starts.
_ROUGH_ACCOUNTANT = "rdp"
_ROUGH = 0.05
# How often a prediction is scaled to what was found, before it is given up.
_CORRECTIONS = 3


NOISE_AXIS = Axis(_SMALLEST_NOISE, _LARGEST_NOISE, integer=False, tolerance=_TOLERANCE)


class UnreachableBudgetError(ValueError):
    """No choice of the free quantity is within the budget; the message says what would be."""


def _edge(
    plan_of: Callable[[float], TrainingPlan],
    axis: Axis,
    target_epsilon: float,
    target_delta: float,
    accountant: AccountantChoice,
    ledger: PrivacyLedger | None,
) -> Boundary:
    """Returns the edge of the budget by the accountant, of plans along the axis."""
    check_proven(accountant)

    @functools.cache
    def cost(x: float) -> float:
        return plan_of(x).epsilon(target_delta, accountant, ledger=ledger)

    start = 1000.0 if axis.integer else 1.0
    if accountant_name(accountant) == _ROUGH_ACCOUNTANT:
        return find_boundary(cost, target_epsilon, axis, start)

    def renyi(x: float) -> float:
        return plan_of(x).epsilon(target_delta, _ROUGH_ACCOUNTANT, ledger=ledger)

    rough = dataclasses.replace(axis, tolerance=_ROUGH)
    edge = find_boundary(renyi, target_epsilon, rough, start)
    crossing = edge.crossing(axis)
    plan = plan_of(crossing)
    made = accountant_maker(accountant)(plan.neighboring_relation)
    predicted_first = isinstance(made, Accountant) and made.is_predicted
    if not predicted_first or target_epsilon / plan.steps < _FEWEST_POINTS:
        return find_boundary(cost, target_epsilon, axis, crossing, edge.slope(axis))

    from tfdp.accounting.prv import PRVAccountant

    predictor = functools.partial(PRVAccountant, _PREDICTION_ERROR)

    @functools.cache
    def predicted(x: float) -> float:
        return plan_of(x).epsilon(target_delta, predictor, ledger=ledger)

    correction = 1.0
    for _ in range(_CORRECTIONS):

        def corrected(x: float, correction: float = correction) -> float:
            return correction * predicted(x)

        edge = find_boundary(corrected, target_epsilon, axis, edge.crossing(axis), edge.slope(axis))
        if edge.within is None or edge.beyond is None:
            break
        # One evaluation verifies the budget, and shows how good the prediction is: good enough to
        # leave the other side to it, if it exceeds the budget there by much more.
        real, expected = cost(edge.within.x), corrected(edge.within.x)
        excess = corrected(edge.beyond.x) - target_epsilon
        smooth = excess <= _LARGEST_EXCESS * target_epsilon
        if real <= target_epsilon and smooth and abs(real - expected) <= _TRUSTED * excess:
            return edge
        if not (0 < real < math.inf and expected > 0):
            break
        correction *= real / expected
    return find_boundary(cost, target_epsilon, axis, edge.crossing(axis), edge.slope(axis))


def calibrate(
    *,
    target_delta: float,
    population_size: int,
    target_epsilon: float | None = None,
    noise_multiplier: float | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    accountant: AccountantChoice = DEFAULT_ACCOUNTANT,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
    ledger: PrivacyLedger | None = None,
) -> TrainingPlan:
    """Returns the run in which the one quantity that was left out just fits the others.

    Leave out one of `noise_multiplier` (the least noise is found), `steps` (or `epochs`; the most
    steps), `batch_size` (the largest) and `target_epsilon` (nothing is searched; ask the plan).

    Guarantees:
        `accountant` gives at most `target_epsilon` for the plan that is returned. A noise
        multiplier is less than 0.1 % above the smallest that does so and has six significant
        digits. One step more, or one unit more in a batch, is beyond the budget.

    Edge cases:
        If a batch of the whole population is within the budget, it is returned. Steps of shuffled
        data are priced by begun passes, so the steps that are returned end with a whole pass.

    Args:
        target_delta: Between 0 and 1; choose it well below 1 / population_size.
        population_size: Units in the data set; public.
        target_epsilon: The budget, positive.
        noise_multiplier: Standard deviation of the noise on a sum, divided by its norm bound.
        batch_size: (Expected) units in a sample.
        steps: How many.
        epochs: In place of `steps`, as `fit` counts them.
        accountant: A name in `tfdp.accounting.ACCOUNTANTS`, a class, or an empty accountant.
        sampling: "poisson", "fixed_size", "shuffled" or "random_allocation".
        neighboring_relation: By default that of the sampling policy in `tfdp.sampling`.
        ledger: What was done with the same units before; the budget is then for both together.

    Raises:
        UnreachableBudgetError: nothing fits; says why, and what would.
        UnsupportedEventError: the accountant cannot price such steps.
        ValueError: an argument is out of range, or not exactly one quantity is left out.
        TypeError: an argument is of the wrong type.

    Example:
        >>> plan = calibrate(
        ...     target_epsilon=2.0,
        ...     target_delta=1e-5,
        ...     population_size=60_000,
        ...     batch_size=256,
        ...     epochs=20,
        ...     accountant="rdp",
        ... )
        >>> plan.steps, round(plan.noise_multiplier, 3)
        (4680, 0.943)
    """
    population_size = positive_integer("population_size", population_size)
    free = _left_out(target_epsilon, noise_multiplier, batch_size, steps, epochs)
    real_number("target_delta", target_delta, minimum=0, inclusive=False, maximum=1)
    if epochs is not None:
        # Where epochs are given, the batch size is: else two would be left out.
        steps = steps_of_epochs(epochs, batch_size, population_size, sampling)  # type: ignore[arg-type]

    def plan_of(**found: Any) -> TrainingPlan:
        known = {"noise_multiplier": noise_multiplier, "batch_size": batch_size, "steps": steps}
        return TrainingPlan(
            population_size,
            sampling=sampling,
            neighboring_relation=neighboring_relation,  # type: ignore[arg-type]  # None: default.
            **{**known, **found},  # type: ignore[arg-type]
        )

    if free == "target_epsilon":
        return plan_of()
    target = real_number("target_epsilon", target_epsilon, minimum=0, inclusive=False)
    axis = _axis(free, population_size)

    def along(x: float) -> TrainingPlan:
        return plan_of(**{free: int(x) if axis.integer else x})

    along(1)  # Says what is wrong with the others, if something is.
    within, beyond = _edge(along, axis, target, target_delta, accountant, ledger)
    if within is None:
        raise UnreachableBudgetError(
            _too_dear(along, axis, free, target, target_delta, accountant, ledger)
        )
    if beyond is None and free != "batch_size":
        raise UnreachableBudgetError(_too_cheap(free, target, target_delta))
    return along(within.x)


def _left_out(
    target_epsilon: float | None,
    noise_multiplier: float | None,
    batch_size: int | None,
    steps: int | None,
    epochs: float | None,
) -> str:
    """Returns which of the four quantities is to be found."""
    if steps is not None and epochs is not None:
        raise ValueError(f"Give steps or epochs, not both. Received: {steps=}, {epochs=}.")
    given = {
        "target_epsilon": target_epsilon,
        "noise_multiplier": noise_multiplier,
        "batch_size": batch_size,
        "steps": steps if epochs is None else epochs,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise ValueError(
            f"Leave out exactly one of {list(given)}: what is to be found. Left out were {missing}."
        )
    if missing == ["batch_size"] and epochs is not None:
        raise ValueError(
            "How many steps epochs are depends on the batch size that is to be found: give steps. "
            "tfdp.accounting.plan compares batch sizes at a number of epochs."
        )
    return missing[0]


def _axis(free: str, population_size: int) -> Axis:
    """Returns where the quantity is searched."""
    if free == "noise_multiplier":
        return NOISE_AXIS
    most = _MOST_STEPS if free == "steps" else population_size
    return Axis(1, most, integer=True, tolerance=0.0)


def _too_cheap(free: str, target_epsilon: float, target_delta: float) -> str:
    if free == "steps":
        return (
            f"More than {_MOST_STEPS:g} steps stay within epsilon {target_epsilon!r}: with so much "
            "noise the number of steps is no matter of privacy. Choose less noise."
        )
    return (
        f"Even with the noise multiplier {shown_up(_SMALLEST_NOISE)}, that is next to no noise, "
        f"epsilon is within {target_epsilon!r}: a delta of {target_delta!r} allows for all the "
        "damage. Choose delta well below 1 / population_size, or a smaller epsilon."
    )


def _too_dear(
    along: Callable[[float], TrainingPlan],
    axis: Axis,
    free: str,
    target_epsilon: float,
    target_delta: float,
    accountant: AccountantChoice,
    ledger: PrivacyLedger | None,
) -> str:
    """Returns why no number on the axis is within the budget, and what would be."""
    cheapest = along(axis.smallest if axis.integer else axis.largest)
    if ledger is not None:
        spent = float(replayed(ledger, accountant).get_epsilon(target_delta))
        if spent >= target_epsilon:
            return (
                f"The ledger has cost epsilon {shown_up(spent)} at delta {target_delta!r} by "
                f"{accountant_name(accountant)} already, and the budget is {target_epsilon!r}."
            )
    epsilon = cheapest.epsilon(target_delta, accountant, ledger=ledger)
    name = accountant_name(accountant)
    if free == "noise_multiplier":
        return (
            f"No noise reaches epsilon {target_epsilon!r} at delta {target_delta!r} by {name}: "
            f"with noise multiplier {shown_up(cheapest.noise_multiplier)} it is still "
            f"{shown_up(epsilon)}. An epsilon above {shown_up(epsilon)} reaches it, or a larger "
            "delta, fewer steps, or an accountant that is tighter here."
        )
    what = "one step" if free == "steps" else f"batches of one, in {cheapest.steps} steps,"
    why = (
        f"Even {what} with noise multiplier {shown_up(cheapest.noise_multiplier)} costs epsilon "
        f"{shown_up(epsilon)} at delta {target_delta!r} by {name}, more than {target_epsilon!r}."
    )

    def with_noise(x: float) -> TrainingPlan:
        return dataclasses.replace(cheapest, noise_multiplier=x)

    noise = _axis("noise_multiplier", cheapest.population_size)
    within, _ = _edge(with_noise, noise, target_epsilon, target_delta, accountant, ledger)
    cures = [f"an epsilon above {shown_up(epsilon)}"]
    if within is not None:
        cures.insert(
            0, f"a noise multiplier of at least {shown_up(within.x)} (for {what.rstrip(',')})"
        )
    if free == "batch_size" and cheapest.steps > 1:
        few = Axis(1, cheapest.steps, integer=True, tolerance=0.0)
        within, _ = _edge(
            lambda x: dataclasses.replace(cheapest, steps=int(x)),
            few,
            target_epsilon,
            target_delta,
            accountant,
            ledger,
        )
        if within is not None:
            cures.append(f"at most {int(within.x)} steps (of batches of one)")
    return f"{why} What reaches it: {', or '.join(cures)}."


def noise_for_budget(
    target_epsilon: float,
    target_delta: float,
    *,
    population_size: int,
    batch_size: int,
    steps: int | None = None,
    epochs: float | None = None,
    accountant: AccountantChoice = DEFAULT_ACCOUNTANT,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
    ledger: PrivacyLedger | None = None,
) -> float:
    """Returns the least noise multiplier with which a run stays within (epsilon, delta).

    It is `calibrate` with everything but the noise given; see there for guarantees and errors.

    Args:
        target_epsilon: The budget.
        target_delta: Between 0 and 1; choose it well below 1 / population_size.
        population_size: Records in the data set; public.
        batch_size: (Expected) records of a step.
        steps: Steps of the run. Give either these or `epochs`.
        epochs: Passes over the data, as `fit` counts them.
        accountant: A name in `tfdp.accounting.ACCOUNTANTS`, a class, or an empty accountant.
        sampling: "poisson", "fixed_size", "shuffled" or "random_allocation".
        neighboring_relation: By default that of the sampling policy in `tfdp.sampling`.
        ledger: What was done with the same units before; the budget is then for both together.

    Example:
        >>> noise = noise_for_budget(2.0, 1e-5, population_size=60_000, batch_size=256, epochs=20)
        >>> round(noise, 3)
        0.889
    """
    return calibrate(
        target_epsilon=target_epsilon,
        target_delta=target_delta,
        population_size=population_size,
        batch_size=batch_size,
        steps=steps,
        epochs=epochs,
        accountant=accountant,
        sampling=sampling,
        neighboring_relation=neighboring_relation,
        ledger=ledger,
    ).noise_multiplier
