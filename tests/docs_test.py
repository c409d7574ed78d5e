"""The documents lead to each other: every one is in the index, and no relative link is dead."""

import pathlib
import re

import pytest

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
    index = {
        (DOCS / target).resolve() for target in _links((DOCS / "README.md").read_text("utf-8"))
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
