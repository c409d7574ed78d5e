"""Ledgers that tests write, and what they find in the files."""

from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.ledger import PrivacyLedger

A = SampledEvent(PoissonSampling(0.01, 60_000), GaussianSumEvent(1.0, 1.1))
B = SampledEvent(PoissonSampling(0.02, 60_000), GaussianSumEvent(1.0, 1.1))


def ledger_of(*pairs):
    """Returns a ledger in memory of events and how often each happened."""
    ledger = PrivacyLedger()
    for event, count in pairs:
        ledger.append(event, count)
    return ledger


def entries(ledger):
    """Returns the events, and how often each happened."""
    return [(entry.event, entry.count) for entry in ledger]


def on_disk(path, **kwargs):
    """Returns what somebody else finds in the file now: what a crash would leave."""
    return PrivacyLedger.load(path, **kwargs)


def crash(ledger):
    """Leaves the file as the end of the process would, without a chance to settle."""
    ledger._file.close("crashed")
