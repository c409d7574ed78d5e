"""How the sample of each step was drawn, as its event says."""

import contextlib
from collections.abc import Iterator
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


class SamplingOfSteps:
    """The policies of an optimizer's steps: that of the steps that `fit` runs, and that of others.

    A policy describes the samples that it drew or was declared for, and no others.

    Args:
        ledger: In which passes over the data have their numbers.
    """

    def __init__(self, ledger: PrivacyLedger):
        self._clock = PassClock(Unknown(), ledger, drawn=False)
        self._clock_of_fit: PassClock | None = None
        self._fit_step_is_due, self._fit_runs_step = False, False
        self._order_was_cut = False
        self._sizes = Sizes()
        self._last: SampledEvent | None = None

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

    def continue_in(self, ledger: PrivacyLedger) -> None:
        """Numbers passes in another ledger, from the next step on."""
        self._clock = PassClock(self._clock.policy, ledger, drawn=False)
        if self._clock_of_fit is not None:
            self._clock_of_fit = self._clock_of_fit.moved_to(ledger)

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
        """Says that a new pass over the data begins, for policies that have passes."""
        self._clock.begin_pass()
        if self._clock_of_fit is not None:
            self._clock_of_fit.begin_pass()

    def end_epoch(self) -> None:
        """Says that `fit` goes through the data from their beginning again."""
        self.begin_pass()
        fit = self._clock_of_fit
        self._order_was_cut = fit is not None and fit.drawn and fit.is_within_order

    @contextlib.contextmanager
    def fitting(self, policy: SamplingPolicy, drawn: bool) -> Iterator[None]:
        """Says how the samples of the steps are drawn that `fit` runs meanwhile.

        Args:
            policy: By which tfdp draws, or which was declared.
            drawn: Whether tfdp draws.
        """
        before = self._clock_of_fit, self._sizes, self._fit_step_is_due, self._fit_runs_step
        was_cut, self._order_was_cut = self._order_was_cut, False
        self._clock_of_fit, self._sizes = PassClock(policy, self._clock.ledger, drawn), Sizes()
        self._fit_step_is_due, self._fit_runs_step = False, False
        try:
            yield
        finally:
            self._clock_of_fit, self._sizes, self._fit_step_is_due, self._fit_runs_step = before
            self._order_was_cut = was_cut

    def expect_step_of_fit(self) -> None:
        """Says that the next thing `fit` does is a step on a sample of its own, or several."""
        self._fit_step_is_due = self._clock_of_fit is not None

    @contextlib.contextmanager
    def step_of_fit(self) -> Iterator[None]:
        """Says that the model runs steps meanwhile, which are those of `fit` if it was about to.

        Whoever calls the model's `train_function` by hand, in a callback, trains on samples of
        their own.
        """
        self.check_no_step_of_fit()
        self._fit_runs_step, self._fit_step_is_due = self._fit_step_is_due, False
        try:
            yield
        finally:
            self._fit_runs_step = False

    @property
    def fit_runs_step(self) -> bool:
        """Whether the steps that the model runs now are those of `fit`."""
        return self._fit_runs_step

    def check_no_step_of_fit(self) -> None:
        """Refuses a step of the model while `fit` runs another, because nothing distinguishes the
        two.

        Raises:
            NotPrivateError: `fit` runs a step.
        """
        if self._fit_runs_step:
            raise NotPrivateError(
                "A training step was started while fit() runs another one, from a data generator "
                "or another thread. Train before or after fit(), or in a callback."
            )

    def next_sampled(self, event: Event, privacy_unit: str) -> SampledEvent:
        """Returns `event` with the sampling of the next step: of `fit`, if it runs."""
        return self._sampled(event, privacy_unit, self._clock_of_fit or self._clock, None)

    @property
    def are_independent(self) -> bool:
        """Whether further samples, of `fit` if it runs, are drawn and priced each like the next."""
        policy = (self._clock_of_fit or self._clock).policy
        return policy.steps_per_pass is None and not policy.is_ordered

    def sampled(self, event: Event, privacy_unit: str, batch: Batch) -> SampledEvent:
        """Returns `event` with the sampling of a step on this batch.

        Raises:
            NotPrivateError: the step is of `fit`, and after an epoch that ended before all parts of
                the data had their turn.
        """
        clock = self._clock_of(batch)
        if self._order_was_cut and clock is self._clock_of_fit:
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

    def _clock_of(self, batch: Batch) -> PassClock:
        fit = self._clock_of_fit if batch.of_fit and self._fit_runs_step else None
        return fit or self._clock

    def check_size(self, batch: Batch) -> None:
        """Refuses a batch that cannot be a sample as it was declared.

        Raises:
            NotPrivateError: says why it cannot.
        """
        clock = self._clock_of(batch)
        if clock.drawn or batch.size is None:
            return
        self._sizes.add(batch.size)
        found = clock.policy.contradiction(self._sizes)
        if found is not None:
            raise NotPrivateError(
                f"The batches are not samples as they were declared: {clock.policy!r} does not "
                f"give {found}. The ledger holds the steps before this one as declared, which may "
                "be too little. Declare how the batches are drawn, or pass arrays to fit()."
            )

    def begin_pass_of(self, batch: Batch) -> None:
        """Says that a new pass begins with this batch."""
        self._clock_of(batch).begin_pass()

    def advance(self, batch: Batch, sampling: Sampling) -> None:
        """Counts a step on this batch, that was described so, once it is in the ledger."""
        self._clock_of(batch).advance(sampling)
