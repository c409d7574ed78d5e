"""What a ledger implies that a reader of its epsilon must know."""

import dataclasses
from collections.abc import Sequence

from tfdp.accounting.planning.target_delta import delta_warning
from tfdp.events import Event, NeighboringRelation, Sampling
from tfdp.report.attempts import Attempt
from tfdp.report.costs import Costs
from tfdp.report.numbers import exact, percent_up, rest_of
from tfdp.report.releases import AlikeSteps
from tfdp.report.words import unit_name

FATAL = "no guarantee"
ATTENTION = "attention"
SCOPE = "scope"

# An attacker who may be wrong about one in a hundred, and finds more than this part.
_LITTLE_IS_RULED_OUT = 0.5


@dataclasses.dataclass(frozen=True)
class Caveat:
    """One thing to know.

    Attributes:
        level: `FATAL` (the guarantee is void), `ATTENTION` (this ledger is special in a way that
            weakens the guarantee or its reading) or `SCOPE` (what no ledger of this kind covers).
        title: A few words.
        text: Plain sentences.
        steps: How many steps it is about, or None where it is not about single steps.
    """

    level: str
    title: str
    text: str
    steps: int | None = None


def _steps(rows: Sequence[AlikeSteps]) -> int:
    return sum(row.steps for row in rows)


def _is_silent(release: Event) -> bool:
    return release.protects and not getattr(release, "seeded", False)


def _is_next_to_none(row: AlikeSteps) -> bool:
    """Whether there is some noise, of which no accountant can make anything."""
    smallest = None if row.noise_multiplier is None else row.noise_multiplier.low
    return smallest == 0 and not row.unprotected


def _not_private(rows: Sequence[AlikeSteps]) -> list[Caveat]:
    unprotected = [r for r in rows if any(not p.protects for p in r.unprotected)]
    seeded = [r for r in rows if any(getattr(p, "seeded", False) for p in r.unprotected)]
    silent = [r for r in rows if any(map(_is_silent, r.unprotected)) or _is_next_to_none(r)]
    reasons = {p.why_not_private() for r in silent for p in r.unprotected if _is_silent(p)} - {None}
    why = " and ".join(sorted(map(str, reasons))) or "the noise was zero"
    found = []
    if unprotected:
        found.append(
            Caveat(
                FATAL,
                "Released without protection",
                "The ledger holds releases that it marks as not private. Nothing bounds what they "
                "tell.",
                _steps(unprotected),
            )
        )
    if seeded:
        found.append(
            Caveat(
                FATAL,
                "Seeded noise",
                "The noise came from a generator with a known seed. Whoever knows the seed can "
                "compute the noise and subtract it, so it counts as no noise.",
                _steps(seeded),
            )
        )
    if silent:
        found.append(
            Caveat(
                FATAL,
                "No noise",
                f"Nothing hides the data: {why}.",
                _steps(silent),
            )
        )
    return found


def _said(row: AlikeSteps) -> list[Sampling]:
    return [sampling for sampling in row.samplings if sampling is not None]


def _sampling(rows: Sequence[AlikeSteps]) -> list[Caveat]:
    unknown = [r for r in rows if any(not s.is_declared for s in _said(r))]
    bare = [r for r in rows if None in r.samplings]
    shuffled = [r for r in rows if any(s.pass_number >= 0 for s in _said(r))]
    random = [r for r in rows if any(s.is_random for s in _said(r))]
    found = []
    if unknown:
        found.append(
            Caveat(
                ATTENTION,
                "Unknown sampling",
                "How the data of these steps were chosen was not declared. They are priced as if "
                "every unit were in every step, but in each at most once: data that repeat a unit "
                "within a step are not covered.",
                _steps(unknown),
            )
        )
    if bare:
        found.append(
            Caveat(
                ATTENTION,
                "No sampling and no unit declared",
                "These releases say neither what a unit is nor how data were sampled. They are "
                "priced as if all data were used, and neighbours had one unit more or less.",
                _steps(bare),
            )
        )
    if shuffled:
        found.append(
            Caveat(
                SCOPE,
                "Passes over the data",
                "The steps are those of passes, in each of which a unit is once, or a few times. A "
                "pass that was begun is priced as a whole one.",
                _steps(shuffled),
            )
        )
    if random:
        found.append(
            Caveat(
                SCOPE,
                "Random sampling is taken at its word",
                "The guarantee of these steps uses that samples were drawn at random as recorded, "
                "and that nobody learns who was in them. Batches of a fixed order that were "
                "declared as random samples could cost more than this report says.",
                _steps(random),
            )
        )
    return found


def _units(rows: Sequence[AlikeSteps]) -> list[Caveat]:
    found = []
    units = sorted({r.unit for r in rows if r.unit is not None})
    relations = {r.relation for r in rows}
    if len(units) > 1 or len(relations) > 1:
        names = ", ".join([*units, *sorted(r.value for r in relations)])
        found.append(
            Caveat(
                ATTENTION,
                "Different guarantees in one ledger",
                f"The steps are about different privacy units or neighbouring relations ({names}). "
                "No single epsilon is about all of them.",
            )
        )
    for unit in units:
        if unit != "user":
            found.append(
                Caveat(
                    SCOPE,
                    f"The guarantee is about {unit_name(unit)}",
                    "Somebody whose data are in several units is protected less: for k units "
                    "together, what follows from this guarantee has k times its ε and more than k "
                    "times its δ.",
                )
            )
    if NeighboringRelation.ZERO_OUT in relations:
        found.append(
            Caveat(
                SCOPE,
                "Zero-out neighbours",
                "The data sets that the guarantee compares have the same size; a unit is blanked "
                "out, not taken away. How many units there are is not hidden.",
            )
        )
    if NeighboringRelation.REPLACE_ONE in relations:
        found.append(
            Caveat(
                SCOPE,
                "Replace-one neighbours",
                "The data sets that the guarantee compares have the same size; a unit has another "
                "value. How many units there are is not hidden, and the epsilon is not comparable "
                "with one for adding and removing units, which is usually smaller.",
            )
        )
    return found


def _population(rows: Sequence[AlikeSteps], delta: float) -> list[Caveat]:
    known = [r.population for r in rows if r.population is not None]
    found = []
    if not known and rows:
        found.append(
            Caveat(
                ATTENTION,
                "Unknown population",
                "The ledger does not say how many units there are, so this report cannot say "
                f"whether δ = {exact(delta)} is small enough: it should be well below one divided "
                "by that number.",
            )
        )
    elif known and delta_warning(delta, max(known)) is not None:
        found.append(
            Caveat(
                ATTENTION,
                "δ is too large",
                f"δ = {exact(delta)} is not below one divided by the population "
                f"({exact(max(known))}). At such a δ, publishing the whole record of somebody "
                "chosen at random would count as private.",
            )
        )
    if known:
        found.append(
            Caveat(
                SCOPE,
                "The number of units is public",
                "The population and sampling probability stand in the ledger and in this report, "
                "and are not protected.",
            )
        )
    return found


def _priced_by_others(rows: Sequence[AlikeSteps]) -> list[Caveat]:
    foreign = [r for r in rows if r.priced_by_others]
    if not foreign:
        return []
    names = sorted({name for row in foreign for name in row.priced_by_others})
    return [
        Caveat(
            ATTENTION,
            "Prices that are not tfdp's",
            f"What some of the steps cost is computed by code that is no part of tfdp, for "
            f"{', '.join(names)}. Every ε of this report rests on it, and tfdp cannot check it.",
            _steps(foreign),
        )
    ]


def _drawn(costs: Costs) -> list[Caveat]:
    drawn = [
        (cost.name, cost.confidence)
        for cost in costs.costs
        if cost.confidence is not None and cost.refusal is None
    ]
    return [
        Caveat(
            ATTENTION,
            "A bound that is not certain",
            f"The numbers of {name} rest on privacy losses that were drawn at random. They "
            f"are upper bounds with probability {exact(confidence)}, and not with certainty. "
            "Whoever compared several plans by them has taken the risk for each.",
        )
        for name, confidence in drawn
    ]


def _weak(costs: Costs) -> list[Caveat]:
    if costs.headline is None or costs.headline.profile is None or costs.epsilon == float("inf"):
        return []
    rate = costs.headline.profile.true_positive_rate(0.01)
    if rate <= _LITTLE_IS_RULED_OUT:
        return []
    return [
        Caveat(
            ATTENTION,
            "The bound rules out little",
            f"An attacker who is wrong about 1 % could by this bound be right about "
            f"{percent_up(rate)}. Real attacks may do worse; the guarantee does not say so.",
        )
    ]


_ALWAYS = (
    Caveat(
        SCOPE,
        "Tuning is not accounted",
        "Only what was written to this ledger is priced. Other runs on the same data (to choose "
        "hyper-parameters, or that failed), preprocessing fitted to the data, and the decision "
        "when to stop cost extra.",
    ),
    Caveat(
        SCOPE,
        "Metrics are not in the ledger",
        "Training losses and metrics, and metrics of validation data, are raw statistics. "
        "Publishing them is not covered.",
    ),
    Caveat(
        SCOPE,
        "The ledger is taken at its word",
        "This report reads the ledger and nothing else. It cannot see steps that were never "
        "written to it, or lost because a program ended before it saved a ledger that it kept in "
        "memory, nor whether norm bounds and noise were as recorded. The fingerprint tells "
        "whether two copies are the same, not who wrote them.",
    ),
    Caveat(
        SCOPE,
        "Random numbers and arithmetic",
        "The ledger says whether noise was seeded, not how good the generator was. The guarantee "
        "is about real numbers; attacks on the lowest bits of floating-point noise (Mironov 2012) "
        "and on running times are outside of it.",
    ),
)


def _exceeded(attempts: Sequence[Attempt]) -> list[Caveat]:
    above = [attempt for attempt in attempts if attempt.above]
    if not above:
        return []
    named = "; ".join(
        f"{attempt.attack.name}, {attempt.attack.slice_name}: {said}"
        for attempt in above
        for said in attempt.above
    )
    return [
        Caveat(
            ATTENTION,
            "An attack achieved more than the ledger allows",
            f"{named}. Either chance made it so, which happens with a probability of at most "
            f"{rest_of(above[0].attack.confidence)} for all attacks together, or a dependence "
            "between records, or the ledger is not that of this model, or what was trained is not "
            "what the ledger says.",
        )
    ]


def caveats(
    rows: Sequence[AlikeSteps], costs: Costs, attempts: Sequence[Attempt] = ()
) -> tuple[Caveat, ...]:
    """Returns what the rows, their costs and attacks imply, the gravest first."""
    found = [
        *_exceeded(attempts),
        *_not_private(rows),
        *_sampling(rows),
        *_units(rows),
        *_population(rows, costs.target_delta),
        *_priced_by_others(rows),
        *_drawn(costs),
        *_weak(costs),
        *_ALWAYS,
    ]
    return tuple(sorted(found, key=lambda c: [FATAL, ATTENTION, SCOPE].index(c.level)))
