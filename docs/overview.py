"""Draws overview.png: a private step, its event, and who reads it.

python docs/overview.py
"""

import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent
BLUE, ORANGE, GREEN = "#dbe9f6", "#fde5cf", "#ddf0dd"
# Left edge, lower edge, width, color, and text of each box.
BOXES = {
    "data": (0.0, 2.1, 1.5, BLUE, "data\n(private)"),
    "sample": (2.1, 2.1, 1.7, BLUE, "sample\neach record\nby chance"),
    "clip": (4.4, 2.1, 1.7, ORANGE, "clip\neach record's\ngradient"),
    "noise": (6.7, 2.1, 1.7, ORANGE, "sum, add noise,\ndivide by a\npublic number"),
    "weights": (9.0, 2.1, 1.7, BLUE, "any Keras\noptimizer,\nweights"),
    "ledger": (5.55, 0.0, 1.7, GREEN, "ledger\nevents,\nno prices"),
    "accountant": (7.85, 0.0, 1.7, GREEN, "accountant\nof your choice"),
    "epsilon": (10.15, 0.0, 1.3, GREEN, "epsilon"),
}
HEIGHT = 1.1
ARROWS = [
    ("data", "sample"),
    ("sample", "clip"),
    ("clip", "noise"),
    ("noise", "weights"),
    ("ledger", "accountant"),
    ("accountant", "epsilon"),
]


def draw(path: pathlib.Path) -> None:
    """Writes the picture as a PNG."""
    figure, axes = plt.subplots(figsize=(11.6, 3.9), layout="constrained")
    axes.set(xlim=(-0.2, 11.6), ylim=(-0.35, 3.75))
    axes.axis("off")
    for left, bottom, width, color, text in BOXES.values():
        box = matplotlib.patches.FancyBboxPatch(
            (left, bottom), width, HEIGHT, boxstyle="round,pad=0.05", fc=color, ec="#555555"
        )
        axes.add_patch(box)
        axes.text(left + width / 2, bottom + HEIGHT / 2, text, ha="center", va="center", size=12)
    style = {"arrowstyle": "-|>", "color": "#333333", "lw": 1.5}
    for start, end in ARROWS:
        left, bottom, width, _, _ = BOXES[start]
        middle = bottom + HEIGHT / 2
        tip = (BOXES[end][0] - 0.05, middle)
        axes.annotate("", xy=tip, xytext=(left + width + 0.05, middle), arrowprops=style)
    axes.annotate("", xy=(6.4, HEIGHT + 0.07), xytext=(6.4, 2.0), arrowprops=style)
    axes.text(6.55, 1.57, "the event, before the result", size=11, va="center")
    for left, text in ((0.0, "training: Keras"), (4.4, "mechanism: a DPQuery")):
        axes.text(left, 3.45, text, size=12, weight="bold", color="#444444")
    axes.text(
        0.0, 0.55, "accounting: later, without TensorFlow", size=12, weight="bold", color="#444444"
    )
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    draw(HERE / "overview.png")
