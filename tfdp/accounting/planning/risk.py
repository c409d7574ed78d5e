"""How much noise holds an attack to a target: an advantage, or a true positive rate at some FPR.

An attacker decides between two neighbouring data sets. By the privacy profile delta(epsilon) of a
run, no attack has an advantage (TPR - FPR) of more than delta(0), and at false positive rate alpha

    TPR <= min over epsilon >= 0 of  e^epsilon alpha + delta(epsilon)
                               and  1 - e^-epsilon (1 - alpha - delta(epsilon)).

Over all epsilon that is the trade-off curve, which an attack reaches. So noise for a target risk is
found directly, where a target epsilon at a small delta would allow for far less than is needed.

References:
    Kulynych, Gomez, Kaissis, Calmon and Troncoso 2024, Attack-aware noise calibration for
    differential privacy, arXiv:2407.02191; Dong, Roth and Su 2019, arXiv:1905.02383.
"""

import math
from collections.abc import Callable
from typing import Any

from tfdp.accounting.planning.boundary import find_boundary
from tfdp.accounting.planning.calibration import NOISE_AXIS, UnreachableBudgetError
from tfdp.accounting.planning.training_plan import (
    TrainingPlan,
    check_batch,
    steps_of_epochs,
)
from tfdp.accounting.registry import (
    DEFAULT_ACCOUNTANT,
    AccountantChoice,
    accountant_maker,
    check_proven,
)
from tfdp.events import NeighboringRelation
from tfdp.events.arguments import real_number
from tfdp.events.shown import shown_up
from tfdp.ledger import PrivacyLedger

_LARGEST_EPSILON = 100.0
_TOLERANCE = 0.01


def largest_true_positive_rate(
    get_delta: Callable[[float], float], false_positive_rate: float
) -> float:
    """Returns a bound of the TPR of every attack with this FPR: no lower than it, at most 1.

    Args:
        get_delta: From epsilon to delta, such as an accountant has.
        false_positive_rate: In [0, 1].

    Example:
        >>> from tfdp.accounting.analytic_gaussian import gaussian_delta
        >>> rate = largest_true_positive_rate(lambda e: gaussian_delta(1.0, e), 0.01)
        >>> round(rate, 4)  # Phi(Phi^-1(0.01) + 1)
        0.0924
    """
    from scipy import optimize

    rate = real_number(
        "false_positive_rate", false_positive_rate, minimum=0, inclusive=True, maximum=1
    )
    smallest = min(1.0, rate + get_delta(0.0))
    # Beyond that epsilon, the first bound is one.
    first = min(_LARGEST_EPSILON, -math.log(rate)) if rate > 0 else _LARGEST_EPSILON
    bounds = [(lambda epsilon: math.exp(epsilon) * rate + get_delta(epsilon), first)]
    # The curve is its own mirror image, and the second bound is that of its other half.
    if rate + smallest > 1:
        bounds.append(
            (lambda epsilon: 1 - (1 - rate - get_delta(epsilon)) * math.exp(-epsilon), 50.0)
        )
    for bound, end in bounds:
        if end > 0:
            # Whatever epsilon is looked at, it is a bound. Near the best one, it is off by a part
            # of the order of the square of the tolerance.
            found = optimize.minimize_scalar(
                bound, bounds=(0.0, end), method="bounded", options={"xatol": _TOLERANCE}
            )
            smallest = min(smallest, float(found.fun))
    return max(rate, smallest)


def risk_of(
    plan: TrainingPlan,
    false_positive_rate: float | None = None,
    accountant: AccountantChoice = DEFAULT_ACCOUNTANT,
) -> float:
    """Returns a bound of what an attack on a run achieves.

    Args:
        plan: The run.
        false_positive_rate: Where to bound the true positive rate; None bounds the advantage.
        accountant: A name in `tfdp.accounting.ACCOUNTANTS`, a class, or an empty accountant.

    Raises:
        UnsupportedEventError: the accountant cannot price such steps.
        TypeError: the accountant has no `get_delta`.
    """
    made = accountant_maker(accountant)(plan.neighboring_relation)
    if not hasattr(made, "get_delta"):
        raise TypeError(
            "A target risk needs an accountant with get_delta(epsilon), such as 'prv'. "
            f"Received: accountant={accountant!r}."
        )
    ledger = PrivacyLedger()
    ledger.append(plan.event(), plan.steps)
    priced: Any = ledger.replay(made)
    if false_positive_rate is None:
        return min(1.0, float(priced.get_delta(0.0)))
    return largest_true_positive_rate(priced.get_delta, false_positive_rate)


def noise_for_risk(
    *,
    population_size: int,
    batch_size: int,
    steps: int | None = None,
    epochs: float | None = None,
    advantage: float | None = None,
    true_positive_rate: float | None = None,
    false_positive_rate: float | None = None,
    accountant: AccountantChoice = DEFAULT_ACCOUNTANT,
    sampling: str = "poisson",
    neighboring_relation: NeighboringRelation | None = None,
) -> TrainingPlan:
    """Returns the run with the least noise that holds every attack to the target.

    Give either `advantage`, or `true_positive_rate` and `false_positive_rate`.

    Guarantees:
        By `accountant`, no membership attack on the run that is returned achieves more, whatever
        its author knows. Its noise multiplier is less than 0.1 % above the smallest one of which
        that is known, and has six significant digits.

    Args:
        population_size: Units in the data set; public.
        batch_size: (Expected) units in a sample.
        steps: How many. Give either these or `epochs`.
        epochs: Passes over the data, as `fit` counts them.
        advantage: The largest TPR - FPR of any attack; between 0 and 1.
        true_positive_rate: The largest TPR at `false_positive_rate`; between that and 1.
        false_positive_rate: Between 0 and 1.
        accountant: A name in `tfdp.accounting.ACCOUNTANTS`, a class, or an empty accountant.
        sampling: "poisson", "fixed_size", "shuffled" or "random_allocation".
        neighboring_relation: By default that of the sampling policy in `tfdp.sampling`.

    Raises:
        UnreachableBudgetError: no noise reaches the target, or none is needed.
        UnsupportedEventError: the accountant cannot price such steps.
        ValueError: an argument is out of range, or not exactly one target is given.
        TypeError: an argument is of the wrong type.

    Example:
        >>> plan = noise_for_risk(
        ...     advantage=0.1, population_size=60_000, batch_size=256, epochs=20
        ... )
        >>> round(plan.noise_multiplier, 2)
        1.34
    """
    if (advantage is None) == (true_positive_rate is None) or (true_positive_rate is None) != (
        false_positive_rate is None
    ):
        raise ValueError(
            "Give either advantage, or true_positive_rate and false_positive_rate. Received: "
            f"{advantage=}, {true_positive_rate=}, {false_positive_rate=}."
        )
    if (steps is None) == (epochs is None):
        raise ValueError(f"Give either steps or epochs. Received: {steps=}, {epochs=}.")
    # What an attack achieves beyond guessing falls to zero with more noise; its edge is searched.
    guessing = 0.0
    if false_positive_rate is not None:
        guessing = _rate("false_positive_rate", false_positive_rate)
        target = _rate("true_positive_rate", true_positive_rate)
        if target <= guessing:
            raise ValueError(
                "true_positive_rate must be above false_positive_rate, which guessing reaches. "
                f"Received: {true_positive_rate=}, {false_positive_rate=}."
            )
    else:
        target = _rate("advantage", advantage)
    batch_size, population_size = check_batch(batch_size, population_size)
    if epochs is not None:
        steps = steps_of_epochs(epochs, batch_size, population_size, sampling)

    def plan_of(noise_multiplier: float) -> TrainingPlan:
        return TrainingPlan(
            population_size,
            batch_size,
            steps,  # type: ignore[arg-type]  # Given, or made of epochs.
            noise_multiplier,
            sampling,
            neighboring_relation,  # type: ignore[arg-type]  # None: default.
        )

    def gain(noise_multiplier: float) -> float:
        return risk_of(plan_of(noise_multiplier), false_positive_rate, accountant) - guessing

    check_proven(accountant)
    within, beyond = find_boundary(gain, target - guessing, NOISE_AXIS, 1.0)
    if within is None:
        raise UnreachableBudgetError(
            f"No noise reaches the target by this accountant: with noise multiplier "
            f"{NOISE_AXIS.largest:g}, {shown_up(guessing + gain(NOISE_AXIS.largest))} remain of "
            f"{target!r}. Choose a larger target or a tighter accountant."
        )
    if beyond is None:
        raise UnreachableBudgetError(
            f"Even next to no noise holds attacks to {target!r}: sampling alone does. Choose a "
            "smaller target."
        )
    return plan_of(within.x)


def _rate(name: str, value: Any) -> float:
    found = real_number(name, value, minimum=0, inclusive=False, maximum=1)
    if found == 1:
        raise ValueError(f"{name} must be below 1. Received: {name}=1.")
    return found
