"""Draws private_step.png: gradients of two numbers are sampled, clipped, summed and noised.

python docs/private_step.py
"""

import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

HERE = pathlib.Path(__file__).parent
GREY, BLUE, ORANGE = "#c8c8c8", "#2b6cb0", "#dd6b20"
CLIP, NOISE_MULTIPLIER, RECORDS = 1.0, 1.0, 12


def draw(path: pathlib.Path) -> None:
    """Writes the picture as a PNG."""
    rng = np.random.default_rng(4)
    gradients = rng.normal((0.7, 0.4), 1.0, (RECORDS, 2))
    sampled = rng.random(RECORDS) < 0.5
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    clipped = gradients * np.minimum(1.0, CLIP / norms)
    one = np.flatnonzero(sampled)[np.argmax(norms[sampled])]
    total = clipped[sampled].sum(axis=0)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4.4), layout="constrained")
    colors = [ORANGE if i == one else BLUE if sampled[i] else GREY for i in range(RECORDS)]
    for axes, vectors, rows in (
        (left, gradients, range(RECORDS)),
        (middle, clipped, np.flatnonzero(sampled)),
    ):
        for i in rows:
            axes.annotate(
                "",
                vectors[i],
                (0, 0),
                arrowprops={"arrowstyle": "-|>", "color": colors[i], "lw": 2},
            )
        axes.set(xlim=(-2.6, 2.6), ylim=(-2.6, 2.6))
    middle.add_patch(plt.Circle((0, 0), CLIP, fill=False, color="#333333", ls="--"))
    noise = rng.normal(0, NOISE_MULTIPLIER * CLIP, (2, 300, 2))
    for center, color, draws, label in (
        (total - clipped[one], BLUE, noise[0], "without one record"),
        (total, ORANGE, noise[1], "with it"),
    ):
        right.scatter(*(center + draws).T, s=6, color=color, alpha=0.5)
        right.plot(*center, "o", ms=9, color=color, mec="black", label=label)
    right.legend(loc="lower right")
    right.set(xlim=total[0] + np.array((-4.2, 4.2)), ylim=total[1] + np.array((-4.2, 4.2)))
    for axes, title in (
        (left, "sample: the grey records stay out"),
        (middle, "clip: no arrow leaves the circle"),
        (right, "noise: 300 sums that could come out"),
    ):
        axes.set(aspect="equal", xticks=[], yticks=[])
        axes.set_title(title, size=13)
    figure.savefig(path, dpi=90)
    plt.close(figure)


if __name__ == "__main__":
    draw(HERE / "private_step.png")
