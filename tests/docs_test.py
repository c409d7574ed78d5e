"""The documents lead to each other: every one is in the index, and no relative link is dead."""

import math
import pathlib
import re
import runpy

import pytest

import tfdp

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FILES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _links(text):
    """Returns the targets of the links to other files, without what follows the name of a file."""
    # What stands in a block of code is no link.
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    targets = [target.partition("#")[0] for target in _LINK.findall(text)]
    return [target for target in targets if target and "://" not in target]


def test_every_document_is_in_the_index():
    # The index of the reference has the pages of the packages.
    index = {
        (DOCS / target).resolve()
        for name in ("README.md", "api.md")
        for target in _links((DOCS / name).read_text("utf-8"))
    }
    documents = {path for path in DOCS.rglob("*.md") if path != DOCS / "README.md"}
    assert documents - index == set()


def test_readme_is_short_and_leads_to_the_index():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120
    assert "docs/README.md" in _links((ROOT / "README.md").read_text("utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(path):
    dead = [t for t in _links(path.read_text("utf-8")) if not (path.parent / t).exists()]
    assert dead == []


def test_dead_link_would_be_found():
    text = "[a](b.md#c), [d](https://e.f), [g](#h)\n```\n[i](j)\n```\n[k](l/m.png)"
    assert _links(text) == ["b.md", "l/m.png"]


def test_every_document_is_in_the_navigation_of_the_site():
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
    listed = re.findall(r"- (\S+\.md)$", nav, re.MULTILINE)
    documents = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*documents, "SECURITY.md", "CHANGELOG.md"])


def test_links_of_the_site_stay_within_it():
    page = runpy.run_path(str(DOCS / "site.py"))["on_page_markdown"]
    text = "[a `b`](../c.md#d), [e](f.md), ![g](h.png), [i](https://j.k)"
    assert page(text, page=None) == "a `b`, [e](f.md), ![g](h.png), [i](https://j.k)"


def test_reference_has_a_page_of_every_public_package():
    pages = {path.stem: path.read_text("utf-8") for path in (DOCS / "api").glob("*.md")}
    assert pages == {n: f"# tfdp.{n}\n\n::: tfdp.{n}\n" for n in tfdp._SUBMODULES}


def test_example_of_concepts_runs():
    (code,) = re.findall(
        r"```python\n(.*?)```", (DOCS / "concepts.md").read_text("utf-8"), re.DOTALL
    )
    names = {}
    exec(compile(code, "docs/concepts.md", "exec"), names)
    assert 0 < names["epsilon"] < names["by_renyi"] < 2


def test_beliefs_of_concepts_are_upper_bounds():
    rows = re.findall(
        r"^\| ([\d.]+) \| (0\.\d+) \|$", (DOCS / "concepts.md").read_text("utf-8"), re.M
    )
    assert len(rows) == 4
    for epsilon, belief in rows:
        exact = 1 / (1 + math.exp(-float(epsilon)))
        assert 0 <= float(belief) - exact < 1e-3
