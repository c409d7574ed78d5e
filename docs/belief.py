"""Draws belief.png: how far the weights can move what somebody believes about a person.

python docs/belief.py
"""

import math
import pathlib

from tfdp.accounting.planning.plots import line_plot

HERE = pathlib.Path(__file__).parent
EPSILONS = (8, 3, 1, 0.1)


def belief(before: float, epsilon: float) -> float:
    """Returns the largest belief afterwards: odds grow by at most e^epsilon."""
    odds = before / (1 - before) * math.exp(epsilon)
    return odds / (1 + odds)


if __name__ == "__main__":
    lines = {
        f"epsilon {epsilon}": [(b / 100, belief(b / 100, epsilon)) for b in range(1, 100)]
        for epsilon in EPSILONS
    }
    line_plot(
        str(HERE / "belief.png"),
        lines,
        x_label="belief before the weights are seen",
        y_label="belief afterwards, at most",
        title="Is this person in the data?",
    )
