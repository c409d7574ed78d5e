"""The tutorial's random convolution is that of its definition, whatever the images are."""

import pathlib
import re
import runpy
import sys

import numpy as np
import pytest

TUTORIALS = pathlib.Path(__file__).parents[1] / "tutorials"


@pytest.fixture
def tutorial(monkeypatch):
    monkeypatch.syspath_prepend(str(TUTORIALS))
    import random_features

    # Fewer images take less time, and nothing but their statistics needs more.
    monkeypatch.setattr(random_features, "_MADE", 200)
    return random_features


def slow_features(made, image, mirror):
    """One image, one cell and one filter at a time, as float64."""
    projection, offset, weights, cells = (
        np.asarray(a, float) for a in (made._projection, made._offset, made._weights, made._cells)
    )
    views = [image] if mirror is None else [image, image[:, ::-1][..., mirror]]
    total = np.zeros((len(cells), len(cells), weights.shape[-1]))
    for view in views:
        projected = view.astype(float) @ projection - offset
        side = len(projected) - 2
        patches = np.zeros((side, side, weights.shape[-1]))
        for r, c in np.ndindex(side, side):
            patch = projected[r : r + 3, c : c + 3]
            found = np.einsum("rck,rckf->f", patch, weights)
            patches[r, c] = np.maximum(found, 0) / np.sqrt(np.mean(patch**2) + 0.1)
        total += np.einsum("rh,hwf,sw->rsf", cells, patches, cells)
    return (total - made._mean) / made._deviation


@pytest.mark.parametrize(("colors", "mirror", "cells"), [(1, False, 2), (3, True, 1)])
def test_features_equal_their_definition(tutorial, colors, mirror, cells):
    made = tutorial.RandomFeatures(16, colors, 5, kept=8, cells=cells, mirror=mirror)
    leaves = tutorial.dead_leaves(3, 16, colors, seed=9)
    x = tutorial.scattered(leaves, opponent=colors == 3)
    found = made(x)
    assert found.shape == (3, cells, cells, 5) and found.dtype == np.float16
    other = tutorial.mirrored(x.shape[-1]) if mirror else None
    for image, values in zip(x, found, strict=True):
        slow = slow_features(made, image.astype("float32"), other)
        np.testing.assert_allclose(values, slow, atol=5e-3)


def test_made_images_have_features_of_mean_zero_and_variance_one(tutorial, monkeypatch):
    monkeypatch.setattr(tutorial, "_MADE", 2000)
    made = tutorial.RandomFeatures(16, 1, 20, kept=16)
    x = tutorial.scattered(tutorial.dead_leaves(1000, 16, 1, seed=1))
    found = made(x).astype("float32")
    np.testing.assert_allclose(found.mean((0, 1, 2)), 0, atol=0.15)
    np.testing.assert_allclose(found.std((0, 1, 2)), 1, atol=0.15)


def test_features_of_an_image_are_the_same_whatever_the_others_are(tutorial):
    made = tutorial.RandomFeatures(16, 1, 6, kept=8)
    x = tutorial.scattered(tutorial.dead_leaves(4, 16, 1, seed=2))
    alone = tutorial.RandomFeatures(16, 1, 6, kept=8)(x[:1])
    np.testing.assert_allclose(made(x)[:1], alone, atol=2e-3)


def test_an_image_and_its_mirror_image_have_the_same_features(tutorial):
    made = tutorial.RandomFeatures(16, 1, 6, kept=8, mirror=True)
    x = tutorial.scattered(tutorial.dead_leaves(4, 16, 1, seed=2))
    flipped = x[:, :, ::-1][..., tutorial.mirrored(81)]
    np.testing.assert_allclose(made(x), made(flipped), atol=2e-3)
    without = tutorial.RandomFeatures(16, 1, 6, kept=8)
    assert np.abs(without(x) - without(flipped)).max() > 0.1


def test_cells_cover_all_places(tutorial):
    np.testing.assert_array_equal(tutorial._cells(4, 2), [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    third = [1 / 3] * 3
    np.testing.assert_allclose(tutorial._cells(5, 2), [[*third, 0, 0], [0, 0, *third]])
    np.testing.assert_array_equal(tutorial._cells(3, 3), np.eye(3))


@pytest.fixture
def trained(tutorial, tmp_path, monkeypatch, capsys):
    """Runs the tutorial on features that are drawn at random, which are in `f.npz`."""

    def draw(seed):
        rng = np.random.default_rng(seed)
        arrays = {}
        for part, size in (("train", 256), ("test", 50)):
            arrays[f"x_{part}"] = rng.random((size, 4, 4, 81)).astype("float16")
            arrays[f"y_{part}"] = rng.integers(0, 10, size).astype("uint8")
        np.savez(tmp_path / "f.npz", **arrays)

    def run(*options, seed=0):
        draw(seed)
        usual = ["--cache", tmp_path / "f.npz", "--random-filters", 8, "--symmetric"]
        usual += ["--epsilon", 2, "--epochs", 1, "--batch-size", 64]
        monkeypatch.setattr(sys, "argv", ["scattering.py", *map(str, [*usual, *options])])
        runpy.run_path(str(TUTORIALS / "scattering.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_a_private_model_of_random_features_is_within_its_epsilon(trained):
    (spent,) = re.findall(r"epsilon ([\d.]+), 4 steps", trained())
    assert 1.9 < float(spent) <= 2.0


def test_cached_random_features_are_those_of_the_convolution(tutorial, trained, tmp_path):
    path = tmp_path / "r.npz"
    first, second = trained("--random-cache", path), trained("--random-cache", path)
    assert "random features in" in first and "random features in" not in second
    assert re.search(r", 4 steps of noise multiplier", second)
    with np.load(tmp_path / "f.npz") as source, np.load(path) as data:
        made = tutorial.RandomFeatures(16, 1, 8, mirror=True)
        for part in ("train", "test"):
            np.testing.assert_array_equal(data[f"y_{part}"], source[f"y_{part}"])
            np.testing.assert_allclose(data[f"x_{part}"], made(source[f"x_{part}"]), atol=2e-3)


@pytest.mark.parametrize(
    ("options", "seed"),
    [
        (["--random-filters", 9], 0),
        (["--cells", 1], 0),
        (["--color", 0.7], 0),
        (["--weights", 1, 1, 1], 0),
        ([], 1),
    ],
)
def test_cached_random_features_of_another_setting_are_refused(trained, tmp_path, options, seed):
    path = tmp_path / "r.npz"
    trained("--random-cache", path)
    with pytest.raises(SystemExit, match=r"has other random features: .* Delete it"):
        trained("--random-cache", path, *options, seed=seed)


def test_random_features_are_cached_beside_those_they_are_of(trained, tmp_path, capsys):
    with pytest.raises(SystemExit):
        trained("--random-cache", tmp_path / "r.npz", "--random-filters", 0)
    assert "needs --cache" in capsys.readouterr().err
