"""The first page: sentences that a reader without mathematics can hold the ledger to."""

import dataclasses
import math
from collections.abc import Sequence

from tfdp.report import words
from tfdp.report.caveats import ATTENTION, FATAL, Caveat
from tfdp.report.costs import Costs
from tfdp.report.numbers import counted, exact, percent, percent_up, round_up
from tfdp.report.releases import AlikeSteps

# False positive rates of the attackers that the report speaks of.
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.05)


@dataclasses.dataclass(frozen=True)
class Summary:
    """What the first page says.

    Attributes:
        verdict: One line.
        holds: Whether there is a guarantee.
        sentences: Plain sentences; each follows from the ledger and the definitions beside it.
    """

    verdict: str
    holds: bool
    sentences: tuple[str, ...]


def _what(rows: Sequence[AlikeSteps], steps: int) -> str:
    kinds = list(dict.fromkeys(part.kind for row in rows for part in row.releases))
    number = f"The ledger records {counted(steps, 'step')}."
    if len(kinds) == 1 and kinds[0].explanation is not None:
        units = {row.unit for row in rows}
        unit = words.unit_name(units.pop() if len(units) == 1 else None)
        return f"{number} {kinds[0].explanation.format(unit=unit)}"
    names = " and ".join(kind.words for kind in kinds) or "nothing"
    return f"{number} What they released: {names}."


def _meaning(costs: Costs, relation: str) -> list[str]:
    delta = costs.target_delta
    # Beyond, the number says no more than its exponent.
    number = f" = {round_up(math.exp(costs.epsilon))}" if costs.epsilon < 30 else ""
    return [
        f"Everything that was released, taken together, is (ε, δ)-differentially private with "
        f"ε = {round_up(costs.epsilon)} at δ = {exact(delta)}; this is an upper bound, computed by "
        f"the accountant “{costs.headline.name if costs.headline else ''}”.",
        f"That is a statement about any two data sets that {relation}: whatever somebody "
        f"concludes or does from what was released, its probability with the one data set is at "
        f"most the factor e^ε{number} times its probability with the other, plus δ.",
    ]


def _attack(costs: Costs, row: AlikeSteps) -> list[str]:
    profile = costs.headline.profile if costs.headline else None
    if profile is None:
        return []
    secret = words.the_secret(row.relation, row.unit)
    answer = words.the_answer(row.relation)
    rate = FALSE_POSITIVE_RATES[1]
    found = percent_up(profile.true_positive_rate(rate))
    right = percent_up((1 + profile.advantage) / 2)
    return [
        f"An attacker may know everything that was released, and everything about the data but "
        f"{secret}. One who answers “{answer}” wrongly in at most {percent(rate)} of the cases "
        f"where it was not, answers so rightly in at most {found} of the cases where it was; "
        f"guessing achieves {percent(rate)}.",
        f"Where both cases are equally likely, no attacker is right with a probability above "
        f"{right}; guessing is right with 50 %.",
    ]


def _counts(caveats: Sequence[Caveat]) -> str:
    fatal = sum(caveat.level == FATAL for caveat in caveats)
    attention = sum(caveat.level == ATTENTION for caveat in caveats)
    parts = []
    if fatal:
        parts.append(f"{counted(fatal, 'finding')} that void{'s' if fatal == 1 else ''} it")
    if attention:
        parts.append(
            f"{counted(attention, 'finding')} that need{'s' if attention == 1 else ''} attention"
        )
    found = " and ".join(parts) if parts else "nothing unusual"
    return (
        "All this holds if the ledger is true and complete. The report sees nothing else. Looking "
        f"for what weakens the guarantee or its reading, it found {found} in the ledger; what is "
        "outside of any ledger is listed with the caveats."
    )


def summarize(
    rows: Sequence[AlikeSteps], steps: int, costs: Costs, caveats: Sequence[Caveat]
) -> Summary:
    """Returns the first page.

    Args:
        rows: The mechanisms that were run.
        steps: How many releases the ledger holds.
        costs: What they cost.
        caveats: What weakens the guarantee or its reading.
    """
    delta = f"δ = {exact(costs.target_delta)}"
    if not steps:
        return Summary(
            "Nothing is recorded",
            True,
            (
                "The ledger is empty: it records no release. Of nothing, ε and δ are zero.",
                _counts(caveats),
            ),
        )
    what = _what(rows, steps)
    fatal = [caveat for caveat in caveats if caveat.level == FATAL]
    if fatal:
        reasons = "; ".join(
            f"{caveat.title.lower()} in {exact(caveat.steps or 0)} of {counted(steps, 'step')}"
            for caveat in fatal
        )
        return Summary(
            "No privacy guarantee: ε is infinite",
            False,
            (
                what,
                f"The ledger gives no guarantee of differential privacy: {reasons}.",
                "No bound on what an attacker can learn follows from it.",
            ),
        )
    if costs.headline is None:
        return Summary(
            "No privacy guarantee: nothing that the report relies on could price this ledger",
            False,
            (
                what,
                "No accountant whose numbers are upper bounds gave an ε for it. Their reasons are "
                "listed under “What it costs”. No guarantee follows.",
            ),
        )
    if math.isinf(costs.epsilon):
        return Summary(
            f"No privacy guarantee: no finite ε was found at {delta}",
            False,
            (what, f"No accountant gives a finite ε at {delta}. A larger δ may have one."),
        )
    row = next((row for row in rows if row.unit is not None), rows[0])
    relation = words.how_neighbours_differ(row.relation, row.unit)
    name = words.unit_name(row.unit)
    return Summary(
        f"ε ≤ {round_up(costs.epsilon)} at {delta}, for {name}",
        True,
        (
            what,
            f"What is protected is {name}: {words.unit_meaning(row.unit)}.",
            *_meaning(costs, relation),
            *_attack(costs, row),
            _counts(caveats),
        ),
    )
