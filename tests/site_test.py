"""mkdocs.yml: the site is built with warnings as errors and without a network, and needs none."""

import html.parser
import os
import pathlib
import re
import subprocess
import sys

import pytest

import tfdp

ROOT = pathlib.Path(__file__).resolve().parents[1]
BESIDE = ("SECURITY.html", "CHANGELOG.html")  # They stand beside docs/.
# MkDocs, in a process that cannot reach other machines.
BUILD = """
import socket, sys
def refuse(*args, **kwargs):
    raise OSError(f"The site must be built without a network. Received: {args!r}.")
socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
sys.exit(cli())
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    arguments = ["build", "--strict", "--config-file", "mkdocs.yml", "--site-dir", str(folder)]
    built = subprocess.run(
        [sys.executable, "-c", BUILD, *arguments],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    return {path.relative_to(folder).as_posix(): _read(path) for path in folder.rglob("*.html")}


class _Page(html.parser.HTMLParser):
    """What a page loads, where its links lead, and what can be linked to in it."""

    def __init__(self):
        super().__init__()
        self.loads, self.links, self.anchors = [], [], {"", "__top"}

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors.add(values.get("id"))
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") != "canonical":
            self.loads.append(values["href"])
        if values.get("src"):
            self.loads.append(values["src"])


def _read(path):
    return _parsed(path.read_text("utf-8"))


def _parsed(text):
    page = _Page()
    page.feed(text)
    return page


def _dead(pages):
    """Returns (page, link) of the links to a page or an anchor that the site does not have."""
    dead = []
    for name, page in pages.items():
        for link in page.links:
            target, _, anchor = link.partition("#")
            if re.match(r"\w+:", target):
                continue
            target = (
                os.path.normpath(os.path.join(os.path.dirname(name), target)) if target else name
            )
            if target.endswith(".html") and anchor not in getattr(pages.get(target), "anchors", ()):
                dead.append((name, link))
    return dead


def test_site_has_every_document(site):
    docs = ROOT / "docs"
    documents = {
        path.relative_to(docs).with_suffix(".html").as_posix() for path in docs.rglob("*.md")
    }
    assert documents - {"README.html"} | {"index.html", "404.html", *BESIDE} == set(site)


def test_links_and_anchors_exist(site):
    # The page for what is not found is served from anywhere, so its links are absolute.
    assert _dead({name: page for name, page in site.items() if name != "404.html"}) == []


def test_pages_load_nothing_from_elsewhere(site):
    loads = {load for page in site.values() for load in page.loads}
    assert len(loads) > 5
    assert [load for load in loads if re.match(r"(\w+:)?//", load)] == []


def test_reference_has_the_names_of_every_package(site):
    missing = [
        f"tfdp.{package}.{name}"
        for package in tfdp._SUBMODULES
        for name in getattr(tfdp, package).__all__
        if f"tfdp.{package}.{name}" not in site[f"api/{package}.html"].anchors
    ]
    assert missing == []


def test_what_is_wrong_would_be_found():
    there = '<h2 id="a">A</h2><img src="https://x.org/y.png"><a href="p.html#a">b</a>'
    pages = {"p.html": _parsed(there), "q.html": _parsed('<a href="p.html#c">d</a>')}
    assert _dead(pages) == [("q.html", "p.html#c")]
    assert pages["p.html"].loads == ["https://x.org/y.png"]
