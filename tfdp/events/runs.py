"""The best of many private runs: a search for hyper-parameters that tells the winner only."""

import dataclasses
from typing import Any, ClassVar

from tfdp.events.arguments import check_type, positive_integer, real_number, set_field
from tfdp.events.base import Event
from tfdp.events.registry import register
from tfdp.events.step import first_reason, releases


@register
@dataclasses.dataclass(frozen=True)
class RunEvent(Event):
    """All that one run did: so many of these steps, and so many of those.

    Attributes:
        events: Its different steps.
        counts: How often each was done.
    """

    words: ClassVar[str] = "run"

    events: tuple[Event, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        for event in self.events:
            check_type("events", event, Event)
            if any(isinstance(part, (RunEvent, SelectedRun)) for part in releases(event)):
                raise TypeError(f"A step of a run cannot be a run itself: {event!r}.")
            if event.run_ids():
                raise TypeError(f"The steps of a run cannot have correlated noise: {event!r}.")
        counts = tuple(positive_integer("counts", count) for count in self.counts)
        set_field(self, "counts", counts)
        if not self.events or len(self.events) != len(counts):
            raise ValueError(
                "A run needs at least one step, and a count for each. Received: "
                f"{len(self.events)} events, {len(counts)} counts."
            )

    def why_not_private(self) -> str | None:
        return first_reason(self.events)

    def line(self) -> str:
        steps = zip(self.counts, self.events, strict=True)
        return "; ".join(f"{count} x {event.line()}" for count, event in steps)


class SelectedRun(Event):
    """What selections of a run have in common: `runs` are what each of the candidates costs.

    A run gives an output and a score, both as private as its events say. Candidates are drawn
    uniformly and independently of the data and of each other's outputs, as often as a secret random
    number says. The output and the score of the best run are released, and nothing else.
    """

    runs: tuple[Any, ...]

    def _check_runs(self) -> None:
        for run in self.runs:
            check_type("runs", run, RunEvent)
        if not self.runs:
            raise ValueError("runs must hold at least one run. Received: runs=().")
        set_field(self, "runs", tuple(dict.fromkeys(self.runs)))

    def why_not_private(self) -> str | None:
        return first_reason(self.runs)

    def line(self) -> str:
        runs = " or ".join(f"({run.line()})" for run in self.runs)
        return f"{self.words}, each {runs}"


@register
@dataclasses.dataclass(frozen=True)
class SelectedRunEvent(SelectedRun):
    """The best of K runs, where K has the truncated negative binomial distribution D(eta, gamma).

        P(K = k) proportional to (1 - gamma)^k prod_(i < k) (i + eta) / (i + 1),  k = 1, 2, ...

    eta = 1 is the geometric distribution, eta = 0 the logarithmic one (Papernot and Steinke 2022,
    arXiv:2110.03620, definition 1).

    Attributes:
        runs: The cost of each candidate, of which equal ones stand here once.
        shape: eta, above -1 and at most 1000.
        success_probability: gamma, in (0, 1): the smaller, the more runs.
    """

    words: ClassVar[str] = "the best of a random number of private runs"
    field_words = {
        "runs": "what a run may be",
        "shape": "η of the number of runs",
        "success_probability": "γ of the number of runs",
    }

    runs: tuple[Event, ...]
    shape: float
    success_probability: float

    def __post_init__(self) -> None:
        self._check_runs()
        shape = real_number("shape", self.shape, minimum=-1, inclusive=False, maximum=1000)
        gamma = real_number(
            "success_probability", self.success_probability, minimum=0, inclusive=False, maximum=1
        )
        if gamma == 1:
            raise ValueError("success_probability must be below 1. Received: 1.")
        set_field(self, "shape", shape)
        set_field(self, "success_probability", gamma)


@register
@dataclasses.dataclass(frozen=True)
class PoissonSelectedRunEvent(SelectedRun):
    """The best of K runs, where K has a Poisson distribution; where K is zero nothing is released.

    Attributes:
        runs: As in `SelectedRunEvent`.
        mean_runs: Of the distribution; at least 1.
    """

    words: ClassVar[str] = "the best of a Poisson number of private runs"
    field_words = {"runs": "what a run may be", "mean_runs": "mean number of runs"}

    runs: tuple[Event, ...]
    mean_runs: float

    def __post_init__(self) -> None:
        self._check_runs()
        mean = real_number("mean_runs", self.mean_runs, minimum=1, inclusive=True, maximum=1e9)
        set_field(self, "mean_runs", mean)
