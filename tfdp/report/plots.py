"""The plots of a report, as SVG text that stands inside the document."""

import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdp.report.attempts import Attempt
from tfdp.report.costs import Costs
from tfdp.report.numbers import exact
from tfdp.report.tradeoff import Profile

# Distinguishable without colour by their dashes (Okabe and Ito 2008 for the colours).
_STYLES = (
    {"color": "#0b4f8a", "linestyle": "-"},
    {"color": "#b34700", "linestyle": "--"},
    {"color": "#00694e", "linestyle": "-."},
    {"color": "#7a2f6b", "linestyle": ":"},
)
_SETTINGS = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": "#767676",
    "axes.labelcolor": "#222222",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e2e2e2",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "text.color": "#222222",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}
_SMALLEST_RATE = 1e-4


def _matplotlib() -> Any:
    try:
        import matplotlib
        from matplotlib import figure, ticker
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "The plots of a report need Matplotlib: pip install tfdp[report]. "
            "The format markdown needs none."
        ) from error
    return matplotlib, figure, ticker


def _svg(figure: Any, name: str, label: str) -> str:
    """Returns the figure as an <svg> element whose ids are its own and the same every time."""
    matplotlib, _, _ = _matplotlib()
    buffer = io.StringIO()
    empty = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=empty)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Its style sheet would apply to the whole document.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r' width="[^"]*pt"| height="[^"]*pt"', "", text, count=2)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()


def epsilon_over_steps(costs: Costs) -> str | None:
    """Returns the plot of epsilon after every step, or None where there is nothing to plot."""
    curves = [cost for cost in costs.costs if cost.curve is not None]
    if not curves:
        return None
    matplotlib, module, ticker = _matplotlib()
    with matplotlib.rc_context(_SETTINGS):
        figure = module.Figure(figsize=(5.2, 2.9), layout="constrained")
        axes = figure.add_subplot()
        for cost, style in zip(curves, _cycle(len(curves)), strict=True):
            axes.plot(costs.steps, cost.curve, marker="o", markersize=2.5, label=cost.name, **style)
        axes.set(xlabel="steps", ylabel=f"ε at δ = {exact(costs.target_delta)}")
        axes.set_xlim(0, 1.02 * costs.steps[-1])
        axes.set_ylim(0, None)
        axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
        axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
        axes.legend(loc="lower right")
        return _svg(figure, "steps", "Line plot of epsilon over steps; the table holds its ends.")


def trade_off(profiles: dict[str, Profile], attempts: Sequence[Attempt] = ()) -> str | None:
    """Returns the plot of the largest true positive rate over the false positive rate, with what
    attacks on all records achieved, or None where there are neither.
    """
    whole = [attempt.attack for attempt in attempts if attempt.attack.on_all_records]
    if not profiles and not whole:
        return None
    matplotlib, module, ticker = _matplotlib()
    rates = np.concatenate([np.geomspace(_SMALLEST_RATE, 0.1, 60), np.linspace(0.1, 1.0, 60)[1:]])
    with matplotlib.rc_context(_SETTINGS):
        figure = module.Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = figure.add_subplot()
        lowest = np.ones_like(rates)
        styles = _cycle(len(profiles) + len(whole))
        for (name, profile), style in zip(profiles.items(), styles, strict=False):
            bound = np.array([profile.true_positive_rate(float(rate)) for rate in rates])
            lowest = np.minimum(lowest, bound)
            axes.plot(rates, bound, label=f"at most, by {name}", **style)
        if profiles:
            axes.fill_between(rates, lowest, 1.0, color="#0b4f8a", alpha=0.07, linewidth=0)
        for attack, style in zip(whole, styles[len(profiles) :], strict=True):
            found = np.array([attack.roc.true_positive_rate(float(rate)) for rate in rates])
            # Zero has no place on a logarithmic axis.
            found[found == 0] = np.nan
            # A dollar sign would begin a formula.
            name = attack.name.replace("$", r"\$")
            axes.plot(rates, found, label=f"attack: {name}", linewidth=1.0, **style)
        axes.plot(rates, rates, color="#767676", linewidth=1.0, label="guessing")
        axes.set(
            xscale="log",
            yscale="log",
            xlim=(_SMALLEST_RATE, 1),
            ylim=(_SMALLEST_RATE, 1),
            xlabel="false positive rate",
            ylabel="true positive rate",
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda rate, _: f"{100 * rate:g} %")
            axis.set_minor_locator(ticker.NullLocator())
        axes.legend(loc="lower right")
        return _svg(
            figure,
            "tradeoff",
            "Plot of the largest true positive rate over the false positive rate, both axes "
            "logarithmic; the tables hold some of its points.",
        )


def _cycle(number: int) -> Sequence[dict[str, str]]:
    return [_STYLES[i % len(_STYLES)] for i in range(number)]
