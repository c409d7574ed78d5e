"""Draws trade_off.png: epsilon over steps, for three noise multipliers.

python docs/trade_off.py
"""

import pathlib

from tfdp.accounting.planning.plots import line_plot
from tfdp.events import GaussianSumEvent, PoissonSampling, SampledEvent
from tfdp.ledger import PrivacyLedger

HERE = pathlib.Path(__file__).parent
STEPS = (250, 500, 1000, 2000, 4000, 8000)
DELTA = 1e-5


def epsilon(noise_multiplier: float, steps: int) -> float:
    """Returns the epsilon of Poisson samples of 256 of 60,000."""
    ledger = PrivacyLedger()
    sampling = PoissonSampling(256 / 60_000, 60_000)
    ledger.append(SampledEvent(sampling, GaussianSumEvent(1.0, noise_multiplier)), steps)
    return ledger.epsilon(DELTA)


if __name__ == "__main__":
    lines = {
        f"noise multiplier {z}": [(steps, epsilon(z, steps)) for steps in STEPS]
        for z in (0.7, 1.0, 2.0)
    }
    line_plot(
        str(HERE / "trade_off.png"),
        lines,
        x_label="steps",
        y_label="epsilon",
        title=f"epsilon at delta = {DELTA:g}",
    )
