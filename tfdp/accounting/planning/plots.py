"""Curves as image files, by matplotlib, which is an optional extra."""

import os
from collections.abc import Mapping, Sequence


def line_plot(
    path: str | os.PathLike[str],
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str,
    y_label: str,
    title: str,
    logarithmic: bool = False,
) -> None:
    """Writes labelled lines of (x, y) to an image file; what is not finite is left out.

    Args:
        path: The file. Its ending says which kind of image it is.
        lines: The points of every line, by the line's label.
        x_label: What stands at the horizontal axis.
        y_label: What stands at the vertical axis.
        title: What stands above.
        logarithmic: Whether both axes are logarithmic; otherwise the vertical one starts at zero.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: the ending of `path` names no kind of image.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Plots need matplotlib: pip install -e '.[plots]' in a checkout of tfdp. Tables need "
            "nothing."
        ) from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for label, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="." if len(points) < 50 else "", label=label)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
