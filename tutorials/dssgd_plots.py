"""Plots of distributed selective SGD: accuracy over epochs, and over epsilon."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any


def _axes() -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(8, 5), layout="constrained")


def accuracies(
    path: pathlib.Path, curves: Mapping[str, Sequence[float]], paper: Mapping[Any, float]
) -> None:
    """Writes a PNG: a curve for each setting, and the paper's largest accuracies as lines."""
    figure, axes = _axes()
    for label, values in curves.items():
        axes.plot(range(1, len(values) + 1), values, label=label)
    for name, value in paper.items():
        axes.axhline(value, color="gray", linestyle=":", linewidth=0.8)
        axes.annotate(f"paper: {name}", (1, value), fontsize=6, color="gray")
    axes.set(xlabel="epoch", ylabel="test accuracy")
    axes.legend(fontsize=6, loc="lower right")
    _write(figure, path)


def against_epsilon(
    path: pathlib.Path, points: Mapping[str, Sequence[tuple[float, float]]], plain: float
) -> None:
    """Writes a PNG: accuracy against the epsilon of the whole run, by kind of upload."""
    figure, axes = _axes()
    for label, pairs in points.items():
        ordered = sorted(pairs)
        axes.plot([p[0] for p in ordered], [p[1] for p in ordered], "o-", label=label)
    axes.axhline(plain, color="gray", linestyle=":", label="no noise")
    axes.set(xlabel="epsilon of all epochs", ylabel="test accuracy", xscale="log")
    axes.legend(loc="lower right")
    _write(figure, path)


def _write(figure: Any, path: pathlib.Path) -> None:
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")
