"""The accountants of tfdp, and what tests that go through all of them must know of each."""

from typing import NamedTuple

from tfdp.accounting import (
    Accountant,
    BasicComposition,
    GDPAccountant,
    MomentsAccountant,
    PLDAccountant,
    PRVAccountant,
    RDPAccountant,
    StrongComposition,
    ZCDPAccountant,
)
from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent


class Kind(NamedTuple):
    """An accountant, whether it prices samples, and whether its epsilon can be zero."""

    make: type[Accountant]
    sampled: bool = True
    reaches_zero: bool = True

    def step(self, q=0.01, stddev=2.0, bound=1.0):
        """Returns a step that costs more with q, and is of the kind that the accountant prices."""
        if self.sampled:
            return SampledEvent(PoissonSampling(q), GaussianSumEvent(bound, stddev))
        return GaussianSumEvent(bound, stddev / q)


KINDS = {
    "rdp": Kind(RDPAccountant),
    "pld": Kind(PLDAccountant),
    "prv": Kind(PRVAccountant),
    "moments": Kind(MomentsAccountant, reaches_zero=False),
    "zcdp": Kind(ZCDPAccountant, sampled=False),
    "gdp": Kind(GDPAccountant, sampled=False),
    "strong": Kind(StrongComposition),
    "basic": Kind(BasicComposition),
}

DELTA = 1e-5


def epsilon_of(make, *pairs):
    """Returns what events cost, each so often, by a new accountant."""
    accountant = make()
    for event, count in pairs:
        accountant.compose(event, count)
    return accountant.get_epsilon(DELTA)
