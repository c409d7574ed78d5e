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
    """

    attack: Any
    allowed: dict[float, float] | None
    above: tuple[str, ...]


def attempts_at(attacks: Sequence[Any], costs: Costs) -> tuple[Attempt, ...]:
    """Returns attacks with what the best upper bound allows.

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
            tuple(attack.above_the_bound(claim)),
        )
        for attack in attacks
    )
