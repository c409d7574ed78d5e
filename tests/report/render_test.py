"""The documents: complete, deterministic, self-contained, and safe whatever the ledger says."""

import html.parser
import itertools
import os
import re
import subprocess
import sys

import pytest

import tfdp.report
from tfdp.accounting import registry
from tfdp.events import (
    ComposedEvent,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    SampledEvent,
    UnsupportedEventError,
)
from tfdp.ledger import PrivacyLedger
from tfdp.report.render import escape_markdown

GROUPS = ComposedEvent((GaussianSumEvent(3.25, 7.125), GaussianSumEvent(0.5, 2.875)))
STEP = SampledEvent(
    PoissonSampling(0.0123, 4567), GROUPS, NeighboringRelation.ZERO_OUT, privacy_unit="user"
)
EVIL = (
    '"><script>alert(1)</script><img src=x onerror=alert(2)>&{{ 12345679 * 72 }}'
    "|`*_[a](javascript:b)"
)


def make_ledger():
    ledger = PrivacyLedger()
    ledger.append(STEP, 1234)
    return ledger


def make_facts(ledger=None, **arguments):
    ledger = make_ledger() if ledger is None else ledger
    arguments = {"accountants": ["rdp", "dp_accounting.rdp"], "source": "run.ledger", **arguments}
    return tfdp.report.gather(ledger, **arguments)


FORMATS = {"html": tfdp.report.to_html, "markdown": tfdp.report.to_markdown}


class Parsed(html.parser.HTMLParser):
    """What a document consists of; a tag that is not closed in order is an error."""

    VOID = {"meta", "br", "img", "link", "input", "hr", "path", "use", "rect"}

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self._open = [], [], "", []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.extend((tag, name, value or "") for name, value in attributes)
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.extend((tag, name, value or "") for name, value in attributes)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.text += data


HARMLESS = set(
    "html head meta title style body main section h1 h2 h3 p code pre strong sup sub br cite "
    "footer div table caption thead tbody tr th td figure figcaption dl dt dd span "
    "svg g defs path use text clippath rect".split()
)


def visible(text):
    return " ".join(text.replace("\xa0", " ").split())


@pytest.mark.parametrize("name", FORMATS)
def test_everything_that_the_facts_hold_is_shown(name):
    facts = make_facts()
    text = FORMATS[name](facts)
    shown = visible(Parsed(text).text if name == "html" else text.replace("\\", ""))
    expected = [facts.ledger_id, facts.fingerprint, "run.ledger", "1,234 steps", "4,567", "0.0123"]
    expected += ["3.25", "7.125", "0.5", "2.875", "zero_out", "user", "PoissonSampling"]
    # 1 / z^2 = (3.25 / 7.125)^2 + (0.5 / 2.875)^2 = 0.208064 + 0.030246 = 0.238310
    expected += ["2.04846", facts.delta_reason, facts.summary.verdict, *facts.summary.sentences]
    for caveat in facts.caveats:
        expected += [caveat.title, caveat.text, caveat.level]
    for cost in facts.costs.costs:
        expected += [cost.name, cost.kind]
    for number in expected:
        assert visible(number) in shown
    for rate in ("0.1 %", "1 %", "5 %", "50 %"):
        assert rate in shown


@pytest.mark.parametrize("name", FORMATS)
def test_refusal_is_shown(name, monkeypatch):
    def refuse(relation):
        raise UnsupportedEventError(f"not {EVIL}")

    monkeypatch.setitem(registry.ACCOUNTANTS, "magic", refuse)
    text = FORMATS[name](make_facts(accountants=["rdp", "magic"]))
    assert "refused: not" in text
    assert "<script" not in text.replace("\\<", "") and "<img" not in text.replace("\\<", "")


@pytest.mark.parametrize("name", FORMATS)
def test_equal_ledgers_give_equal_text_in_any_process(name, tmp_path):
    ledger = make_ledger()
    ledger.to_json_lines(tmp_path / "run.jsonl")
    program = (
        "import pathlib, sys, tfdp.report\n"
        "from tfdp.ledger import PrivacyLedger\n"
        "ledger = PrivacyLedger.from_json_lines(pathlib.Path(sys.argv[1]).read_text())\n"
        "facts = tfdp.report.gather(ledger, accountants=['rdp', 'dp_accounting.rdp'],"
        " source='run.ledger')\n"
        f"sys.stdout.buffer.write(tfdp.report.to_{name}(facts).encode())\n"
        "assert not {'tensorflow', 'keras', 'matplotlib.pyplot'} & set(sys.modules)\n"
    )
    outputs = set()
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-c", program, str(tmp_path / "run.jsonl")]
        result = subprocess.run(command, capture_output=True, env=environment)
        assert result.returncode == 0, result.stderr.decode()
        outputs.add(result.stdout.decode())
    assert outputs == {FORMATS[name](make_facts(ledger))}


def evil_ledger():
    event = SampledEvent(PoissonSampling(0.01, 4567), GaussianSumEvent(1.0, 2.0))
    # A unit that no reader of ledgers accepts today.
    object.__setattr__(event, "privacy_unit", EVIL)
    ledger = PrivacyLedger()
    ledger.append(event, 3)
    return ledger


def test_what_a_ledger_says_is_never_markup_in_html():
    parsed = Parsed(tfdp.report.to_html(make_facts(evil_ledger(), source=EVIL)))
    assert set(parsed.tags) <= HARMLESS
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    assert not [value for _, _, value in parsed.attributes if "script" in value]
    assert parsed.text.count("<script>alert(1)</script>") >= 2
    assert "{{ 12345679 * 72 }}" in parsed.text and "888888888" not in parsed.text


@pytest.mark.parametrize("render", [tfdp.report.to_html, tfdp.report.to_markdown])
@pytest.mark.parametrize("hidden", ["\u202e", "\u2066", "\u200b", "\x00", "\x1b", "\ue000"])
def test_what_a_ledger_says_does_not_turn_around_what_follows(render, hidden):
    names = {"source": f"run{hidden}.ledger", "dataset_id": f"a{hidden}b", "about": {"x": hidden}}
    text = render(make_facts(**names))
    assert hidden not in text
    escape = hidden.encode("unicode_escape").decode()
    assert f"a{escape}b" in text.replace("\\\\", "\\")


def test_check_finds_markup():
    parsed = Parsed(f"<p>{'<script>x</script><b onclick=y></b>'}</p>")
    assert not set(parsed.tags) <= HARMLESS
    assert [name for _, name, _ in parsed.attributes if name.startswith("on")]


def _tables(text):
    """Returns the lines of every table."""
    lines = itertools.groupby(text.splitlines(), lambda line: line.startswith("|"))
    return [list(of_one) for is_table, of_one in lines if is_table]


def test_what_a_ledger_says_is_never_markup_in_markdown(monkeypatch):
    def refuse(relation):
        raise UnsupportedEventError(f"not {EVIL}")

    monkeypatch.setitem(registry.ACCOUNTANTS, "magic", refuse)
    facts = make_facts(evil_ledger(), source=EVIL, accountants=["rdp", "magic"])
    text = tfdp.report.to_markdown(facts)
    assert not re.search(r"(?<!\\)<(script|img)", text)
    assert "\\[a\\](javascript:b)" in text and "\\|\\`\\*\\_" in text
    tables = _tables(text)
    assert any("script" in line for lines in tables for line in lines)
    for header, *lines in tables:
        columns = re.findall(r"(?<!\\)\|", header)
        for line in lines:
            assert re.findall(r"(?<!\\)\|", line) == columns, line


@pytest.mark.parametrize("text", ["a\nb", "a\r\n# b", "  a", "x\u2028y"])
def test_markdown_stays_on_one_line(text):
    assert len(escape_markdown(text).splitlines()) == 1


def test_html_needs_nothing_from_outside():
    text = tfdp.report.to_html(make_facts())
    parsed = Parsed(text)
    for _, name, value in parsed.attributes:
        if name in ("src", "href", "xlink:href", "data", "action", "poster", "srcset"):
            assert value.startswith("#")
        if not name.startswith("xmlns"):
            assert "//" not in value
    assert "@import" not in text and "script" not in parsed.tags
    assert set(re.findall(r"url\(([^)]{2})", text)) <= {"#s", "#t"}
    policy = [v for tag, name, v in parsed.attributes if tag == "meta" and "default-src" in v]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_ids_are_unique_and_references_meet_them():
    text = tfdp.report.to_html(make_facts())
    ids = re.findall(r'\bid="([^"]*)"', text)
    references = re.findall(r'xlink:href="#([^"]*)"|url\(#([^)]*)\)', text)
    assert len(ids) == len(set(ids)) > 10
    assert {a or b for a, b in references} <= set(ids)


def test_accessible():
    text = tfdp.report.to_html(make_facts())
    parsed = Parsed(text)
    assert ("html", "lang", "en") in parsed.attributes
    assert "title" in parsed.tags and parsed.tags.count("h1") == 1
    figures = [dict((n, v) for t, n, v in parsed.attributes if t == "svg")]
    assert parsed.tags.count("svg") == 2 == parsed.tags.count("figcaption")
    assert figures[0]["role"] == "img" and figures[0]["aria-label"]
    headers = parsed.tags.count("th")
    assert headers == sum(t == "th" and n == "scope" for t, n, _ in parsed.attributes) > 10


def _luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("name", ["ink", "soft", "accent", "bad", "warn"])
def test_contrast_is_enough(name):
    # WCAG 2.2, criterion 1.4.3: 4.5 for text, here on white and on the grey of a code block.
    text = tfdp.report.to_html(make_facts())
    color = re.search(rf"--{name}: (#[0-9a-f]{{6}})", text)[1]
    for background in ("#ffffff", "#f5f6f7"):
        assert (_luminance(background) + 0.05) / (_luminance(color) + 0.05) >= 4.5


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(GaussianSumEvent(1.0, 1.0, seeded=True), 3)],
        [(SampledEvent(STEP.sampling, GROUPS), 1)],
    ],
    ids=["empty", "seeded", "one"],
)
def test_any_ledger_has_a_report(pairs):
    ledger = PrivacyLedger()
    for event, count in pairs:
        ledger.append(event, count)
    facts = make_facts(ledger, source=None)
    assert facts.summary.verdict in Parsed(tfdp.report.to_html(facts)).text
    assert facts.summary.verdict in tfdp.report.to_markdown(facts)


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_missing_package_says_what_to_install(monkeypatch, missing):
    facts = make_facts()
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install tfdp\[report\]"):
        tfdp.report.to_html(facts)
    if missing == "matplotlib":
        assert "# Privacy report" in tfdp.report.to_markdown(facts)


def test_names():
    for name in tfdp.report.__all__:
        assert getattr(tfdp.report, name) is not None
    assert dir(tfdp.report) == sorted(tfdp.report.__all__)
    with pytest.raises(AttributeError, match="no attribute 'to_pdf'"):
        _ = tfdp.report.to_pdf
