"""tfdp.accounting.planning.plots: curves are drawn where matplotlib is installed."""

import sys

import pytest

from tfdp.accounting import plan

COMMON = {"target_delta": 1e-5, "population_size": 60_000, "accountant": "rdp"}


def _table(**changes):
    arguments = {"target_epsilons": [1.0, 8.0], "batch_sizes": [64, 1024], "epochs": [2, 20]}
    return plan(**{**arguments, **COMMON, **changes})


@pytest.mark.parametrize(
    "changes",
    [{}, {"epochs": (), "steps": [10, 1000], "batch_sizes": [64]}],
    ids=["over batches", "over steps"],
)
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot(tmp_path, changes, suffix):
    path = tmp_path / f"plan.{suffix}"
    _table(**changes).plot(path)
    content = path.read_bytes()
    if suffix == "png":
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000
    else:
        for text in (b"noise multiplier / batch size", b"epsilon 1", b"epsilon 8"):
            assert b"<!-- " + text in content


@pytest.mark.parametrize(
    ("changes", "x_label", "labels", "xs"),
    [
        ({"epochs": [2]}, "batch size", ["epsilon 1, 2 epochs", "epsilon 8, 2 epochs"], [64, 1024]),
        (
            {"epochs": (), "steps": [10, 1000], "batch_sizes": [64]},
            "steps",
            ["epsilon 1", "epsilon 8"],
            [10, 1000],
        ),
    ],
    ids=["over batches", "over steps"],
)
def test_what_is_plotted(changes, x_label, labels, xs, monkeypatch):
    drawn = {}

    def line_plot(path, lines, **words):
        drawn.update(words, lines=lines)

    monkeypatch.setattr("tfdp.accounting.planning.plots.line_plot", line_plot)
    table = _table(**changes)
    table.plot("plan.png")
    assert (drawn["x_label"], drawn["y_label"]) == (x_label, "noise multiplier / batch size")
    assert drawn["title"] == "60000 units, delta 1e-05, rdp"
    assert drawn["logarithmic"] is True
    assert list(drawn["lines"]) == labels
    ratios = [row.plan.noise_batch_ratio for row in table.rows]
    points = [point for line in drawn["lines"].values() for point in line]
    assert points == list(zip(xs * 2, ratios, strict=True))


def test_plot_without_matplotlib_says_how_to_install_it(tmp_path, monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install -e '\.\[plots\]'"):
        _table(batch_sizes=[64], epochs=[2]).plot(tmp_path / "plan.png")
