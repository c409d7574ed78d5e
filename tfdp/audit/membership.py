"""Membership inference: how well a trained model's predictions tell who was in its training data.

Every score is larger where the attacker believes more in membership. An attack is a threshold: all
records whose score is not below it are called members. Let there be n members and m others. The
true positive rate of a threshold is the share of the members that are called so, and the false
positive rate the share of the others.

Intervals take the members as drawn independently from some population, and the others from another.
Then the rates of all thresholds at once are near the true ones: by Dvoretzky, Kiefer and Wolfowitz
1956, with the constant of Massart 1990, P[some TPR is above its true value by more than r] <=
exp(-2 n r^2), and so it is below, and for the FPR with m.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfdp.audit.scores import check_confidence
from tfdp.events.arguments import real_number
from tfdp.events.shown import shown_down, shown_up

_rounded_down = functools.partial(shown_down, digits=4)
_rounded_up = functools.partial(shown_up, digits=4)

# Of Carlini et al. 2022: where an attacker is nearly sure.
LOW_RATES = (0.001, 0.01)
_ALL_RECORDS = "all records"
# Of the thresholds that are held against a claim; more would find hardly more.
_POINTS = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class Roc:
    """Every threshold of one attack.

    Attributes:
        false_positive_rates: From 0 to 1, ascending.
        true_positive_rates: Likewise, of the same thresholds.
        members: How many there are.
        others: How many others.
    """

    false_positive_rates: np.ndarray
    true_positive_rates: np.ndarray
    members: int
    others: int

    @property
    def auc(self) -> float:
        """The area under the curve: P[a member's score is larger] + P[they are equal] / 2."""
        heights = self.true_positive_rates[1:] + self.true_positive_rates[:-1]
        return float(np.dot(np.diff(self.false_positive_rates), heights / 2))

    @property
    def advantage(self) -> float:
        """The largest difference of the two rates (Yeom et al. 2018, arXiv:1709.01604, def. 4)."""
        return float(np.max(self.true_positive_rates - self.false_positive_rates))

    @property
    def positive_predictive_value(self) -> float:
        """The largest share of members among those that are called so, over thresholds that call
        anybody so (Jayaraman et al. 2020, arXiv:2005.10881).
        """
        found = self.true_positive_rates * self.members
        called = found + self.false_positive_rates * self.others
        return float(np.max(found[1:] / called[1:]))

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Returns the largest TPR of a threshold whose FPR is at most this.

        Raises:
            ValueError: it is not in [0, 1].
            TypeError: it is not a number.
        """
        false_positive_rate = real_number(
            "false_positive_rate", false_positive_rate, minimum=0, inclusive=True, maximum=1
        )
        last = np.searchsorted(self.false_positive_rates, false_positive_rate, side="right") - 1
        return float(self.true_positive_rates[last])


def roc(scores: Any, members: Any) -> Roc:
    """Returns the curve of all thresholds of the scores.

    Edge cases:
        Equal scores are one threshold: nobody can tell them apart.

    Args:
        scores: One per record; larger where membership is believed in.
        members: One boolean per record.

    Raises:
        ValueError: the shapes differ, a score is NaN, or there are only members or only others.
        TypeError: `members` is not boolean.

    Example:
        >>> curve = roc([3.0, 1.0, 2.0, 0.0], np.array([True, True, False, False]))
        >>> curve.auc, curve.advantage
        (0.75, 0.5)
    """
    scores, members = _checked(scores, members)
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]  # Compared, as infinite ones that are equal have no difference.
    last_of_equals = np.append(ranked[1:] != ranked[:-1], True)
    found = np.cumsum(members[order])[last_of_equals]
    called = np.arange(1, len(scores) + 1)[last_of_equals]
    count = int(members.sum())
    return Roc(
        np.append(0.0, (called - found) / (len(scores) - count)),
        np.append(0.0, found / count),
        count,
        len(scores) - count,
    )


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number, and an interval that holds the true one with the confidence that was asked for."""

    value: float
    lower: float
    upper: float


@dataclasses.dataclass(frozen=True, eq=False)
class Attack:
    """What one attack achieves.

    Attributes:
        name: Of the score.
        roc: All of its thresholds.
        auc: Area under the curve, with an interval (`auc_interval`).
        advantage: The largest TPR - FPR of a threshold. It was chosen by these records, so it is
            above zero even for scores that say nothing. `advantage_interval` allows for that.
        true_positive_rates: By the FPR that is asked for, the largest TPR of a threshold whose FPR
            is at most this, with an interval for the true one (`rate_interval`).
        slice_name: Which records were attacked.
        confidence: Of every interval.
    """

    name: str
    roc: Roc
    auc: Estimate
    advantage: float
    true_positive_rates: dict[float, Estimate]
    slice_name: str
    confidence: float

    @property
    def on_all_records(self) -> bool:
        """Whether no slice was named."""
        return self.slice_name == _ALL_RECORDS

    @property
    def advantage_interval(self) -> Estimate:
        """The advantage, and an interval that holds the true one whatever the threshold was."""
        reach = self._reaches((1 - self.confidence) / 4)
        lower, upper = self.advantage - sum(reach), self.advantage + sum(reach)
        return Estimate(self.advantage, max(0.0, lower), min(1.0, upper))

    def above_the_bound(
        self, true_positive_rate: Callable[[float], float], attacks: int = 1
    ) -> list[str]:
        """Returns what is achieved beyond a claim, in words; empty where nothing.

        All thresholds are held against the claim at once, and so is their advantage, and those of
        `true_positive_rates` once more, by intervals that are closer where rates are small.

        Guarantees:
            Where the attack does not exceed the claim, the probability that anything is returned is
            at most 1 - `confidence`, over all that is compared. Where none of several attacks on
            the same records does, the probability that anything is returned for any of them is at
            most that, if `attacks` is their number. Records of either kind must be independent.

        Args:
            true_positive_rate: The claim: from an FPR to the largest TPR, such as
                `tfdp.report.tradeoff.Profile` has for a ledger. It does not fall. The score must
                not have been chosen by the coins of these records.
            attacks: How many attacks are held against the claim together.

        Raises:
            ValueError: `attacks` is below 1.
        """
        if attacks < 1:
            raise ValueError(f"attacks must be at least 1. Received: attacks={attacks}.")
        # Every comparison needs a bound for the TPR and one for the FPR.
        error = (1 - self.confidence) / attacks / (2 * (1 + len(self.true_positive_rates)))
        said = self._above_at_some_threshold(true_positive_rate, error)
        members, others = self.roc.members, self.roc.others
        for rate, estimate in self.true_positive_rates.items():
            # The FPR of the threshold is a measured one, too. Products may be a little too small.
            called = int(rate * others)
            called += (called + 1) / others <= rate
            highest = clopper_pearson(called, others, 1 - 2 * error).upper
            found = clopper_pearson(round(estimate.value * members), members, 1 - 2 * error)
            allowed = true_positive_rate(highest)
            if found.lower > allowed:
                said.append(
                    f"TPR {found.value:.3g} (at least {_rounded_down(found.lower)}) at FPR "
                    f"{float(rate)!r}, where at most {_rounded_up(allowed)} is claimed"
                )
        return said

    def _above_at_some_threshold(
        self, true_positive_rate: Callable[[float], float], error: float
    ) -> list[str]:
        """Returns by which threshold the claim is exceeded most, if by any.

        Each of the two bounds for all thresholds fails with a probability of `error` at most.
        """
        fpr, tpr = self.roc.false_positive_rates, self.roc.true_positive_rates
        below, above = self._reaches(error)
        shown = np.searchsorted(fpr, np.linspace(0, 1, _POINTS), side="right") - 1
        shown = np.union1d(shown, np.argmax(tpr - fpr))
        highest = np.minimum(1.0, fpr[shown] + above)
        allowed = np.array([true_positive_rate(float(rate)) for rate in highest])
        excess = tpr[shown] - below - allowed
        best = int(np.argmax(excess))
        if excess[best] <= 0:
            return []
        at = shown[best]
        return [
            f"TPR {tpr[at]:.3g} (at least {_rounded_down(tpr[at] - below)}) at FPR {fpr[at]:.3g} "
            f"(at most {_rounded_up(highest[best])}), where at most {_rounded_up(allowed[best])} "
            "is claimed"
        ]

    def _reaches(self, error: float) -> tuple[float, float]:
        """Returns how far the TPR of any threshold is above the true one, and the FPR below it;
        each with a probability of `error` at most, which is at most a half, further.
        """
        reach = np.log(1 / error) / 2
        return float(np.sqrt(reach / self.roc.members)), float(np.sqrt(reach / self.roc.others))


def attack(
    name: str,
    scores: Any,
    members: Any,
    confidence: float = 0.95,
    false_positive_rates: tuple[float, ...] = LOW_RATES,
    slice_name: str = _ALL_RECORDS,
) -> Attack:
    """Returns what thresholds of a score achieve, with confidence intervals.

    Args:
        name: What to call the attack.
        scores: One per record; larger where membership is believed in.
        members: One boolean per record.
        confidence: Of every interval, in (0, 1).
        false_positive_rates: Where to report the true positive rate.
        slice_name: What to call these records.

    Raises:
        ValueError: as `roc`, or `confidence` or a rate is out of range.
        TypeError: `members` is not boolean, or a rate is no number.
    """
    confidence = check_confidence(confidence)
    curve = roc(scores, members)
    rates = {rate: rate_interval(curve, rate, confidence) for rate in false_positive_rates}
    auc = auc_interval(curve, confidence)
    return Attack(name, curve, auc, curve.advantage, rates, slice_name, confidence)


def attack_slices(
    name: str,
    scores: Any,
    members: Any,
    slices: Mapping[str, Any],
    confidence: float = 0.95,
) -> list[Attack]:
    """Returns the attack on each slice that holds members and others.

    Args:
        name: What to call the attack.
        scores: One per record.
        members: One boolean per record.
        slices: From a name to one boolean per record (`class_slices` for classes).
        confidence: Of every interval.

    Raises:
        ValueError: as `attack`.
        TypeError: as `attack`.
    """
    scores, members = _checked(scores, members)
    found = []
    for slice_name, mask in slices.items():
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.shape != members.shape:
            raise ValueError(
                f"The slice {slice_name!r} must be one boolean per record. "
                f"Received: dtype={mask.dtype}, shape={mask.shape}."
            )
        if 0 < members[mask].sum() < mask.sum():
            found.append(
                attack(name, scores[mask], members[mask], confidence, slice_name=slice_name)
            )
    return found


def class_slices(labels: Any) -> dict[str, np.ndarray]:
    """Returns the slices of each class of integer labels, by "class k"."""
    labels = np.asarray(labels)
    return {f"class {label}": labels == label for label in np.unique(labels)}


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    """Returns the share of successes and its exact two-sided interval (Clopper and Pearson 1934).

    Example:
        >>> clopper_pearson(0, 100).upper < 0.037
        True
    """
    from scipy import special

    tail = (1 - confidence) / 2
    lower = 0.0 if successes == 0 else special.betaincinv(successes, trials - successes + 1, tail)
    upper = (
        1.0
        if successes == trials
        else special.betaincinv(successes + 1, trials - successes, 1 - tail)
    )
    return Estimate(successes / trials, float(lower), float(upper))


def rate_interval(curve: Roc, false_positive_rate: float, confidence: float = 0.95) -> Estimate:
    """Returns the TPR at an FPR, and an interval for the true one.

    True is the largest TPR of all thresholds whose true FPR is at most this rate: let T be that
    threshold, which is chosen by the populations and not by the records. T calls at most as many
    others as a binomial number of this rate has. So it calls at most as many members as the
    threshold of the records that calls so many others, and Clopper and Pearson bound its TPR by
    that. Likewise from below: every threshold above T calls at least a binomial number of others,
    so that one that calls fewer lies within T. Each of the four steps fails with a probability of
    (1 - confidence) / 4 at most.

    Args:
        curve: All thresholds of the records.
        false_positive_rate: In [0, 1].
        confidence: In (0, 1).

    Raises:
        ValueError: the rate is not in [0, 1].
        TypeError: it is not a number.
    """
    from scipy import stats

    value = curve.true_positive_rate(false_positive_rate)
    error, others = (1 - confidence) / 4, curve.others
    fewest = int(stats.binom.ppf(error, others, false_positive_rate))
    most = int(stats.binom.isf(error, others, false_positive_rate))

    def interval_where(called: int) -> Estimate:
        # Half an other more: quotients are rounded.
        share = curve.true_positive_rate(min(1.0, (called + 0.5) / others))
        return clopper_pearson(round(share * curve.members), curve.members, 1 - 2 * error)

    lower = interval_where(fewest - 1).lower if fewest > 0 else 0.0
    return Estimate(value, lower, interval_where(most).upper)


def auc_interval(curve: Roc, confidence: float = 0.95) -> Estimate:
    """Returns the AUC and its interval, which holds for every number of records and with ties.

    The AUC is a mean over all pairs of a member and another record, and so a mean over all ways to
    pair the k = min(members, others) records of the rarer kind with different ones of the other
    kind. In each way the pairs are independent. So the bound of Chernoff for k trials holds
    (Hoeffding 1963, section 5): P[AUC >= a] <= exp(-k KL(a, p)) for a above the true area p, and
    likewise below, where KL is the divergence of two coins.

    Args:
        curve: All thresholds of the records.
        confidence: In (0, 1).

    References:
        Hoeffding 1963, Journal of the American Statistical Association 58.

    Example:
        >>> curve = roc([3.0, 2.0, 1.0, 0.0], np.array([True, True, False, False]))
        >>> auc_interval(curve).upper, round(auc_interval(curve).lower**2, 9)
        (1.0, 0.025)
    """
    from scipy import special

    area = min(1.0, curve.auc)
    most = np.log(2 / (1 - confidence)) / min(curve.members, curve.others)

    def end(outside: float) -> float:
        inside = area
        for _ in range(100):
            middle = (inside + outside) / 2
            divergence = special.rel_entr(area, middle) + special.rel_entr(1 - area, 1 - middle)
            inside, outside = (middle, outside) if divergence <= most else (inside, middle)
        return float(outside)

    return Estimate(area, end(0.0), end(1.0))


def _checked(scores: Any, members: Any) -> tuple[np.ndarray, np.ndarray]:
    scores, members = np.asarray(scores, np.float64), np.asarray(members)
    if members.dtype != bool:
        raise TypeError(f"members must be boolean. Received: dtype={members.dtype}.")
    if scores.ndim != 1 or scores.shape != members.shape:
        raise ValueError(
            "scores and members must be vectors of the same length. "
            f"Received: {scores.shape} and {members.shape}."
        )
    if np.isnan(scores).any():
        raise ValueError("scores holds NaN: there is no telling if that is large or small.")
    if not 0 < members.sum() < len(members):
        raise ValueError(
            "There must be members and others. "
            f"Received: {int(members.sum())} members of {len(members)} records."
        )
    return scores, members
