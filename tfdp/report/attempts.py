"""What attacks on a trained model achieved, beside what its ledger allows."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdp.report.costs import Costs


@dataclasses.dataclass(frozen=True, eq=False)
class Attempt:
    """One attack.

    Attributes:
        attack: What was achieved, a `tfdp.audit.Attack`.
        allowed: By false positive rate, the largest true positive rate that the ledger allows;
            None where it bounds none.
        above: What was achieved beyond that, in words.
        allowed_advantage: The largest advantage that the ledger allows; None where it bounds none.
    """

    attack: Any
    allowed: dict[float, float] | None
    above: tuple[str, ...]
    allowed_advantage: float | None = None

    @property
    def verdict(self) -> str:
        """Whether more was achieved than the ledger allows, in a few words."""
        return "the ledger claims nothing" if self.allowed is None else verdict(self.above)


def verdict(above: Sequence[str]) -> str:
    """Returns what to say of an attack that achieves this beyond a claim.

    Example:
        >>> verdict([])
        'not above what is claimed'
    """
    return "above what is claimed" if above else "not above what is claimed"


def attempts_at(attacks: Sequence[Any], costs: Costs) -> tuple[Attempt, ...]:
    """Returns attacks with what the best upper bound allows.

    Guarantees:
        Where no attack exceeds the ledger, the probability that `above` of any holds something is
        at most 1 - their confidence (see `tfdp.audit.membership.Attack.above_the_bound`).

    Raises:
        ValueError: they are about different false positive rates, or intervals of different
            confidence.
    """
    kinds = {(tuple(attack.true_positive_rates), attack.confidence) for attack in attacks}
    if len(kinds) > 1:
        raise ValueError(
            "Attacks of one report must have the same false positive rates and confidence. "
            f"Received: {sorted(kinds)}."
        )
    profile = None if costs.headline is None else costs.headline.profile
    if profile is None:
        return tuple(Attempt(attack, None, ()) for attack in attacks)
    claim = profile.true_positive_rate
    return tuple(
        Attempt(
            attack,
            {rate: claim(rate) for rate in attack.true_positive_rates},
            tuple(attack.above_the_bound(claim, len(attacks))),
            profile.advantage,
        )
        for attack in attacks
    )
