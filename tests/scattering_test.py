"""The tutorial's scattering transform is that of the definition, and its model pays for moments."""

import pathlib
import re
import runpy
import sys

import numpy as np
import pytest

import tfdp

TUTORIALS = pathlib.Path(__file__).parents[1] / "tutorials"


@pytest.fixture
def transform(monkeypatch):
    monkeypatch.syspath_prepend(str(TUTORIALS))
    import scattering_transform

    return scattering_transform


def slow_scattering(transform, image, scales, angles):
    """One image: every convolution a product of spectra, at the resolution of what it acts on."""
    step = 2**scales
    image = np.pad(image, step, mode="reflect")
    side = len(image)

    def convolved(pixels, kernel):
        apart = side // len(pixels)
        taps = apart**2 * kernel[::apart, ::apart]
        return np.fft.ifft2(np.fft.fft2(pixels) * np.fft.fft2(taps))

    def averaged(pixels):
        apart = step * len(pixels) // side
        low = transform.gabor(side, 0.8 * 2 ** (scales - 1), 0.0, 0.0, 1.0)
        return convolved(pixels, low).real[::apart, ::apart][1:-1, 1:-1]

    def moduli(pixels, scale):
        apart = 2**scale * len(pixels) // side
        for i in range(angles):
            angle = (angles // 2 - 1 - i) * np.pi / angles
            kernel = transform.morlet(side, scale, angle, 4 / angles)
            yield np.abs(convolved(pixels, kernel))[::apart, ::apart]

    first = [list(moduli(image, scale)) for scale in range(scales)]
    pairs = [
        averaged(pixels)
        for one in range(scales)
        for two in range(one + 1, scales)
        for wave in first[one]
        for pixels in moduli(wave, two)
    ]
    waves = [averaged(wave) for of_scale in first for wave in of_scale]
    return np.stack([averaged(image), *waves, *pairs], axis=-1)


@pytest.mark.parametrize(("side", "scales", "angles"), [(28, 2, 8), (32, 3, 4), (16, 1, 6)])
def test_transform_equals_its_definition(transform, side, scales, angles):
    images = np.random.default_rng(0).random((2, side, side)).astype("float32")
    fast = transform.Scattering(side, scales, angles)
    found = fast(images).numpy()
    kept = side // 2**scales
    assert found.shape == (2, kept, kept, fast.channels)
    for image, values in zip(images, found, strict=True):
        slow = slow_scattering(transform, image.astype(float), scales, angles)
        np.testing.assert_allclose(values, slow, atol=1e-6)


def test_wavelets_have_sum_zero_and_the_average_sum_one(transform):
    wavelet = transform.morlet(8, 0, 0.3, 0.5)
    assert abs(wavelet.sum()) < 1e-12
    assert transform.gabor(32, 1.6, 0.0, 0.0, 1.0).sum() == pytest.approx(1.0, abs=1e-6)
    found = transform.Scattering(16)(np.full((1, 16, 16), 0.5, "float32")).numpy()
    np.testing.assert_allclose(found[..., 0], 0.5, atol=1e-5)
    np.testing.assert_allclose(found[..., 1:], 0.0, atol=1e-5)


def test_first_order_answers_to_stripes_of_its_angle(transform):
    at = np.arange(32) * 0.75 * np.pi
    rows = np.repeat(0.5 + 0.5 * np.cos(at)[:, None], 32, axis=1)
    fast = transform.Scattering(32)
    found = fast(np.stack([rows, rows.T]).astype("float32")).numpy()[:, 2:-2, 2:-2].mean((1, 2))
    # Angles are (3 - i) pi / 8: waves that run down the rows are those of angle 0.
    assert np.argmax(found[0, 1:]) == 3
    # And along the columns of pi / 2.
    assert np.argmax(found[1, 1:]) == 7


def test_side_must_be_a_multiple(transform):
    with pytest.raises(ValueError, match="multiple of 4. Received: side=30"):
        transform.Scattering(30)


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """What the tutorial caches, with numbers drawn at random."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("cache") / "features.npz"
    arrays = {}
    for part, size in (("train", 256), ("test", 50)):
        arrays[f"x_{part}"] = rng.random((size, 2, 2, 81)).astype("float16")
        arrays[f"y_{part}"] = rng.integers(0, 10, size).astype("uint8")
    np.savez(path, **arrays)
    return path


def run(monkeypatch, capsys, *options):
    monkeypatch.setattr(sys, "argv", ["scattering.py", *map(str, options)])
    monkeypatch.syspath_prepend(str(TUTORIALS))
    runpy.run_path(str(TUTORIALS / "scattering.py"), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("normalization", "model"), [("data", "linear"), ("group", "cnn"), ("data", "dense")]
)
def test_moments_are_charged_and_groups_are_free(
    features, normalization, model, tmp_path, monkeypatch, capsys
):
    ledger = tmp_path / "l"
    options = ["--cache", features, "--ledger", ledger, "--epsilon", 2, "--epochs", 2]
    options += ["--batch-size", 64, "--model", model, "--normalization", normalization]
    output = run(monkeypatch, capsys, *options)
    (spent,) = re.findall(r"epsilon ([\d.]+), 8 steps", output)
    assert 1.95 < float(spent) <= 2.0
    saved = list(tfdp.PrivacyLedger.load(ledger))
    assert len(saved) == (2 if normalization == "data" else 1)
    if normalization == "data":
        assert saved[0][0].noise_multiplier == pytest.approx(8.0)


@pytest.fixture
def tutorial(monkeypatch):
    monkeypatch.syspath_prepend(str(TUTORIALS))
    import scattering_features

    return scattering_features


def test_normalized_images_have_mean_zero_and_variance_one(tutorial):
    x = np.random.default_rng(0).normal(3, 2, (40, 2, 2, 81)).astype("float16")
    grouped = tutorial.group_normalized(x, 27).astype("float32").reshape(40, 4, 27, 3)
    np.testing.assert_allclose(grouped.mean((1, 3)), 0, atol=2e-3)
    np.testing.assert_allclose(grouped.std((1, 3)), 1, atol=2e-3)
    x = np.random.default_rng(0).normal(0.5, 0.2, (4000, 2, 2, 81)).astype("float16")
    scale = tutorial.sizes(81)
    x *= scale.astype("float16")
    found, _ = tutorial.data_normalized(x, x[:10], scale, tfdp.PrivacyLedger(), 0.1)
    found = found.astype("float32")
    np.testing.assert_allclose(found.mean((0, 1, 2)), 0, atol=0.1)
    np.testing.assert_allclose(found.std((0, 1, 2)), 1, atol=0.1)


def test_a_mirror_image_has_the_same_symmetric_features(transform, tutorial):
    rng = np.random.default_rng(0)
    rows = np.cumsum(np.cumsum(rng.normal(size=(6, 32, 32, 1)), 1), 2)
    smooth = (255 * (rows - rows.min()) / np.ptp(rows)).astype("uint8")
    images = np.concatenate([smooth, rng.integers(0, 256, (2, 32, 32, 1)).astype("uint8")])
    plain, mirror = (tutorial.scattered(x).astype("float32") for x in (images, images[:, :, ::-1]))
    ours, theirs = (tutorial.symmetric(x) for x in (plain, mirror))
    assert ours.shape == (8, 8, 4, 81)
    # Up to where the kept columns lie, which is a pixel off in the mirror: by order of channels.
    for channels in (slice(1, 17), slice(17, 81)):
        away = np.linalg.norm((ours - theirs)[..., channels])
        assert away < 0.5 * np.linalg.norm((plain - mirror)[..., channels])
    # Of features that are their own mirror images nothing is lost.
    np.testing.assert_allclose(
        np.linalg.norm(tutorial.symmetric(np.ones((1, 4, 4, 81)))), np.sqrt(16 * 81), rtol=1e-6
    )


def test_opponent_colors_keep_norms_and_split_off_brightness(tutorial):
    np.testing.assert_allclose(tutorial.OPPONENT @ tutorial.OPPONENT.T, np.eye(3), atol=1e-12)
    gray = np.repeat(np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1)), 3, -1)
    found = tutorial.scattered(gray.astype("uint8"), opponent=True)
    np.testing.assert_allclose(found[..., 81:], 0, atol=1e-3)
    of_one = tutorial.scattered(gray[..., :1].astype("uint8")).astype("float32")
    np.testing.assert_allclose(found[..., :81], np.sqrt(3) * of_one, atol=2e-3)


def test_weights_are_those_of_orders_and_colors(tutorial):
    found = tutorial.weighted(np.ones((1, 2, 2, 243), "float32"), [2.0, 1.0, 0.5], 0.5)[0, 0, 0]
    np.testing.assert_allclose(np.mean(found**2), 1, rtol=1e-6)
    ratios = found / found[1]
    assert ratios[[0, 17, 80, 81, 82, 98]] == pytest.approx([2, 0.5, 0.5, 1, 0.5, 0.25])


def test_symmetric_and_weighted_features_are_trained_on(features, monkeypatch, capsys):
    options = ["--cache", features, "--epsilon", 2, "--epochs", 1, "--batch-size", 64]
    output = run(monkeypatch, capsys, *options, "--symmetric", "--weights", 2, 1, 0.5)
    assert re.search(r"epsilon (1\.9\d+|2\.0+), 4 steps", output)


def test_features_are_scaled_after_they_are_normalized(features, monkeypatch, capsys):
    sizes = []
    monkeypatch.setattr(
        tfdp.keras.DPSequential,
        "fit",
        lambda self, x, y, **_: sizes.append(x.astype(float).std()) or Stop(),
    )

    class Stop:
        @property
        def history(self):
            raise SystemExit

    for scale in ([], ["--feature-scale", 0.1]):
        options = ["--cache", features, "--normalization", "group", "--groups", 27, *scale]
        with pytest.raises(SystemExit):
            run(monkeypatch, capsys, *options, "--batch-size", 64, "--epochs", 1)
    assert sizes[1] == pytest.approx(0.1 * sizes[0], rel=0.01)
