"""How the sample of each step was drawn, as its event says."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tfdp.events import Event, NeighboringRelation, SampledEvent, Sampling
from tfdp.keras.errors import NotPrivateError
from tfdp.ledger import PrivacyLedger
from tfdp.sampling import SamplingPolicy, Unknown
from tfdp.sampling.clock import PassClock
from tfdp.sampling.sizes import Sizes


class Batch(NamedTuple):
    """What the host knows of a step's sample.

    Attributes:
        of_fit: Whether the model's own training step takes it. It is a sample that `fit` drew, or
            that was declared to `fit`, if `fit` runs that step.
        size: Units in it; None where that is not known.
    """

    of_fit: bool = False
    size: int | None = None


@dataclasses.dataclass(eq=False)
class Fitting:
    """One run of `fit`, or one loop over a server's rounds, and how its samples are drawn.

    Attributes:
        clock: Describes its steps.
        sizes: Of its samples, where they are declared.
        step_is_due: Whether the next thing that it does is a step.
        steps_unseen: So many steps may be taken before anybody looks at what they did.
        runs_step: Whether it runs one now.
        has_begun: Whether a step of it is in the ledger.
        order_was_cut: Whether an epoch ended before all parts of the data had their turn.
    """

    clock: PassClock
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    step_is_due: bool = False
    steps_unseen: int = 1
    runs_step: bool = False
    has_begun: bool = False
    order_was_cut: bool = False


class SamplingOfSteps:
    """The policies of an optimizer's steps: that of the steps that `fit` runs, and that of others.

    A policy describes the samples that it drew or was declared for, and no others. Where one `fit`
    runs within another, or a loop over rounds is left open meanwhile, only the one that began last
    takes steps. They may end in any order.

    Args:
        ledger: In which passes over the data have their numbers.

    Attributes:
        is_declared: Whether somebody set `policy`.
    """

    def __init__(self, ledger: PrivacyLedger):
        self.is_declared = False
        self._clock = PassClock(Unknown(), ledger, drawn=False)
        self._sizes = Sizes()
        self._fits: list[Fitting] = []  # The last is the innermost.
        self._last: SampledEvent | None = None

    @property
    def _fit(self) -> Fitting | None:
        return self._fits[-1] if self._fits else None

    @property
    def policy(self) -> SamplingPolicy:
        """How the samples of steps are drawn that `fit` does not run."""
        return self._clock.policy

    @policy.setter
    def policy(self, policy: SamplingPolicy) -> None:
        if not isinstance(policy, SamplingPolicy):
            raise TypeError(
                f"sampling must be a policy from tfdp.sampling. Received: sampling={policy!r}."
            )
        self._clock, self._sizes = PassClock(policy, self._clock.ledger, drawn=False), Sizes()
        self.is_declared = True

    def continue_in(self, ledger: PrivacyLedger) -> None:
        """Numbers passes in another ledger, from the next step on."""
        self._clock = self._clock.moved_to(ledger)
        for fit in self._fits:
            fit.clock = fit.clock.moved_to(ledger)

    @contextlib.contextmanager
    def kept_unless_done(self) -> Iterator[None]:
        """Puts the place in the passes of declared samples back if the block raises."""
        with contextlib.ExitStack() as undo:
            undo.callback(self._put_back, self._clock)
            yield
            undo.pop_all()

    def _put_back(self, clock: PassClock) -> None:
        self._clock = clock

    def begin_pass(self) -> None:
        """Says that a new pass over the data begins, for policies that have passes. One that a
        `fit` draws goes on, by another number.
        """
        self._clock.begin_pass()
        if self._fit is not None:
            self._fit.clock.renumber()

    def end_epoch(self, fit: Fitting) -> None:
        """Says that an epoch of a `fit` has ended.

        Args:
            fit: From `fitting`.
        """
        self._clock.end_epoch()
        fit.clock.end_epoch()
        fit.order_was_cut = fit.clock.drawn and fit.clock.is_within_order

    @contextlib.contextmanager
    def fitting(
        self, policy: SamplingPolicy, drawn: bool, goes_on: bool | None = None
    ) -> Iterator[Fitting]:
        """Says how the samples of the steps are drawn that `fit` runs meanwhile.

        It begins during a turn of the optimizer (`Charging.turn`), and may end outside of one.

        Args:
            policy: By which tfdp draws, or which was declared.
            drawn: Whether tfdp draws.
            goes_on: Whether declared samples go on at the end of an epoch, or begin anew; None
                where that is not known.

        Yields:
            What stands for this `fit`. It takes no step while a later one goes on.

        Raises:
            NotPrivateError: another `fit` runs a step.
        """
        self.check_no_step_of_fit()
        fit = Fitting(PassClock(policy, self._clock.ledger, drawn, goes_on))
        self._fits.append(fit)
        try:
            yield fit
        finally:
            self._fits.remove(fit)

    def expect_step_of_fit(self, fit: Fitting, unseen: int = 1) -> None:
        """Says that the next thing a `fit` does is a step on a sample of its own, or several.

        Args:
            fit: From `fitting`.
            unseen: So many steps may be taken before anybody looks at what they did.

        Raises:
            NotPrivateError: another `fit`, or loop over rounds, began since and has not ended.
        """
        if self._fit is not fit:
            raise NotPrivateError(
                "Another fit() or another loop over rounds was begun with this optimizer, and goes "
                "on. Finish that one first, or close() its rounds: a step is charged as a sample "
                "of the one that began last."
            )
        fit.step_is_due, fit.steps_unseen = True, unseen

    @contextlib.contextmanager
    def step_of_fit(self) -> Iterator[None]:
        """Says that the model runs steps meanwhile, which are those of `fit` if it was about to.

        Whoever calls the model's `train_function` by hand, in a callback, trains on samples of
        their own.
        """
        self.check_no_step_of_fit()
        fit = self._fit
        if fit is None:
            yield
            return
        fit.runs_step, fit.step_is_due = fit.step_is_due, False
        try:
            yield
        finally:
            fit.runs_step = False

    @property
    def fit_goes_on(self) -> bool:
        """Whether a `fit`, or a loop over rounds, has begun and not ended."""
        return self._fit is not None

    @property
    def fit_runs_step(self) -> bool:
        """Whether the steps that the model runs now are those of `fit`."""
        return self._fit is not None and self._fit.runs_step

    @property
    def fit_begins(self) -> bool:
        """Whether the step that the model is about to run is the first of a `fit`."""
        return self.fit_runs_step and not self._fits[-1].has_begun

    @property
    def steps_unseen(self) -> int:
        """How many steps `fit` may take, with the next, before anybody looks at what they did."""
        return 1 if self._fit is None else self._fit.steps_unseen

    def check_no_step_of_fit(self) -> None:
        """Refuses a step of the model while `fit` runs another, because nothing distinguishes the
        two.

        Raises:
            NotPrivateError: `fit` runs a step.
        """
        if self.fit_runs_step:
            raise NotPrivateError(
                "A training step was started while fit() runs another one, from a data generator "
                "or another thread. Train before or after fit(), or in a callback."
            )

    def check_run_is_as_it_was(self, position: Callable[[], int | None]) -> None:
        """Refuses the first step of a `fit` if its samples begin where the run is no more.

        Args:
            position: Returns which step of a run is next; None where there are no runs.

        Raises:
            NotPrivateError: says what puts a run back after `fit` was called.
        """
        fit = self._fit
        if fit is None or fit.has_begun or not fit.clock.drawn:
            return
        place, step = fit.clock.peek().place, position()
        if place is None or step is None or step % place[1] == place[0]:
            return
        raise NotPrivateError(
            f"The samples of this fit begin with part {place[0]} of {place[1]}, where the run was "
            f"when fit was called. Since then a callback put the run to step {step}, which is "
            f"about part {step % place[1]}: keras.callbacks.BackupAndRestore does so when training "
            "begins. Nothing was charged. Call fit again with the same arguments, and it begins "
            "where the run is. Backups at the ends of epochs (save_freq='epoch') need no second "
            "call."
        )

    def next_sampled(self, event: Event, privacy_unit: str) -> SampledEvent:
        """Returns `event` with the sampling of the next step: of `fit`, if it runs."""
        return self._sampled(event, privacy_unit, self._next_clock, None)

    @property
    def are_independent(self) -> bool:
        """Whether further samples, of `fit` if it runs, are drawn and priced each like the next."""
        policy = self._next_clock.policy
        return policy.steps_per_pass is None and not policy.is_ordered

    @property
    def _next_clock(self) -> PassClock:
        return self._clock if self._fit is None else self._fit.clock

    def sampled(self, event: Event, privacy_unit: str, batch: Batch) -> SampledEvent:
        """Returns `event` with the sampling of a step on this batch.

        Raises:
            NotPrivateError: the step is of `fit`, and after an epoch that ended before all parts of
                the data had their turn.
        """
        clock, fit = self._clock_of(batch), self._fit_of(batch)
        if fit is not None and fit.order_was_cut:
            raise NotPrivateError(
                f"{type(clock.policy).__name__} takes the parts of the data in turn, and an epoch "
                "ended before the last of them, so that the next one begins with the first again, "
                "out of turn. Call fit again instead: the ledger then says so."
            )
        return self._sampled(event, privacy_unit, clock, batch.size)

    def _sampled(
        self, event: Event, privacy_unit: str, clock: PassClock, size: int | None
    ) -> SampledEvent:
        relation: NeighboringRelation = clock.policy.neighboring_relation
        sampling, last = clock.peek(size), self._last
        # Most steps are like the one before, down to the very objects, which do not change.
        same = last is not None and last.sampling is sampling and last.event is event
        if same and (last.neighboring_relation, last.privacy_unit) == (relation, privacy_unit):
            return last
        self._last = SampledEvent(sampling, event, relation, privacy_unit)
        return self._last

    def _fit_of(self, batch: Batch) -> Fitting | None:
        return self._fit if batch.of_fit and self.fit_runs_step else None

    def _clock_of(self, batch: Batch) -> PassClock:
        fit = self._fit_of(batch)
        return self._clock if fit is None else fit.clock

    def check_size(self, batch: Batch) -> None:
        """Refuses a batch that cannot be a sample as it was declared.

        Raises:
            NotPrivateError: says why it cannot.
        """
        clock, fit = self._clock_of(batch), self._fit_of(batch)
        if clock.drawn or batch.size is None:
            return
        sizes = self._sizes if fit is None else fit.sizes
        sizes.add(batch.size)
        found = clock.policy.contradiction(sizes)
        if found is not None:
            raise NotPrivateError(
                f"The batches are not samples as they were declared: {clock.policy!r} does not "
                f"give {found}. The ledger holds the steps before this one as declared, which may "
                "be too little. Declare how the batches are drawn, or pass arrays to fit()."
            )

    def begin_pass_of(self, batch: Batch) -> None:
        """Says that a new pass begins with this batch, or another number of one that is drawn."""
        self._clock_of(batch).renumber()

    def advance(self, batch: Batch, sampling: Sampling) -> None:
        """Counts a step on this batch, that was described so, once it is in the ledger."""
        self._clock_of(batch).advance(sampling, batch.size)
        fit = self._fit_of(batch)
        if fit is not None:
            fit.has_begun = True
