"""The document in a browser: it is drawn, nothing sticks out, and its first page is one page."""

import io
import shutil
import subprocess

import matplotlib.image
import numpy as np
import pytest

import tfdp.report
from tfdp.events import GaussianSumEvent, NeighboringRelation, PoissonSampling, SampledEvent
from tfdp.ledger import PrivacyLedger

CHROMIUM = next(
    filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="No Chromium to draw the report with.")

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--virtual-time-budget=2000"
).split()
ACCENT, BAD = (0x0B, 0x4F, 0x8A), (0x8C, 0x1C, 0x13)


def _browse(tmp_path, page, *flags):
    profile = tmp_path / "profile"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    result = subprocess.run(command, capture_output=True, timeout=120)
    shutil.rmtree(profile, ignore_errors=True)
    assert result.returncode == 0, result.stderr.decode(errors="replace")
    return result.stdout


@pytest.fixture
def draw(tmp_path):
    """Returns the pixels [height, width, 3] of an HTML text in a frame of some width."""

    def draw(text, width, height):
        (tmp_path / "report.html").write_text(text, encoding="utf-8")
        # A window cannot be as narrow as a telephone, a frame can.
        (tmp_path / "frame.html").write_text(
            '<body style="margin:0"><iframe src="report.html" '
            f'style="border:0;width:{width}px;height:{height}px"></iframe>'
        )
        image = tmp_path / "image.png"
        size = f"--window-size={max(width, 600)},{height}"
        _browse(tmp_path, tmp_path / "frame.html", size, f"--screenshot={image}")
        pixels = matplotlib.image.imread(io.BytesIO(image.read_bytes()), format="png")
        return np.round(pixels[:height, :width, :3] * 255).astype(int)

    return draw


def make_facts(seeded=False):
    ledger = PrivacyLedger()
    event = GaussianSumEvent(1.0, 2.0, seeded)
    ledger.append(
        SampledEvent(PoissonSampling(0.01, 4567), event, NeighboringRelation.ZERO_OUT), 300
    )
    return tfdp.report.gather(ledger, accountants=["rdp", "dp_accounting.rdp"], source="x" * 200)


def _has(pixels, color, at_least):
    return np.sum(np.abs(pixels - np.array(color)).max(axis=-1) <= 2) >= at_least


@pytest.mark.parametrize("width", [360, 1000], ids=["telephone", "desktop"])
def test_is_drawn_within_its_margins(draw, width):
    pixels = draw(tfdp.report.to_html(make_facts()), width, 9000)
    assert _has(pixels, ACCENT, 300)
    assert np.mean(pixels.min(axis=-1) < 128) > 0.01  # Text.
    for margin in (pixels[:, :10], pixels[:, -10:]):
        assert (margin == 255).all()
    assert (pixels[-50:] == 255).all()  # All of it was in the picture.


def test_check_of_the_margins_has_power(draw):
    text = tfdp.report.to_html(make_facts())
    wide = text.replace("<h1>", '<h1 style="white-space:nowrap">' + 200 * "x")
    assert not (draw(wide, 360, 800)[:, -10:] == 255).all()


def test_missing_guarantee_is_red(draw):
    assert not _has(draw(tfdp.report.to_html(make_facts()), 1000, 500), BAD, 50)
    assert _has(draw(tfdp.report.to_html(make_facts(seeded=True)), 1000, 500), BAD, 300)


def test_plots_are_drawn(draw):
    with_plots = tfdp.report.to_html(make_facts())
    without = with_plots.replace("<figure>", '<figure style="visibility:hidden">')
    drawn = [draw(text, 1000, 6000) for text in (with_plots, without)]
    different = np.any(drawn[0] != drawn[1], axis=-1)
    rows = np.flatnonzero(different.any(axis=1))
    # Two plots, each more than 200 pixels high.
    assert np.count_nonzero(np.diff(rows) > 100) == 1 and len(rows) > 400
    assert _has(drawn[0][rows], ACCENT, 500)


def test_prints_with_the_summary_on_a_page_of_its_own(tmp_path):
    page = tmp_path / "report.html"
    text = tfdp.report.to_html(make_facts())
    page.write_text(text, encoding="utf-8")
    _browse(tmp_path, page, f"--print-to-pdf={tmp_path / 'report.pdf'}", "--no-pdf-header-footer")
    whole = _pages(tmp_path / "report.pdf")
    start, end = text.index('<section class="first">'), text.index("</section>")
    page.write_text(text[:end] + "</section></main></body></html>", encoding="utf-8")
    assert start < end
    _browse(tmp_path, page, f"--print-to-pdf={tmp_path / 'first.pdf'}", "--no-pdf-header-footer")
    assert _pages(tmp_path / "first.pdf") == 1
    assert 3 <= whole <= 6


def _pages(path):
    data = path.read_bytes()
    assert data.startswith(b"%PDF")
    return data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") + data.count(b"/Type /Page/")
