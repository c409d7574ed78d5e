"""What mkdocs does to each page before it becomes HTML.

The site holds docs/, SECURITY.md and CHANGELOG.md. Links to other files become their names. A link
whose text is the name of a document gets the title of that document. On the disk, and where the
repository is shown, all links work as they stand.
"""

import pathlib
import re
from typing import Any

DOCS = pathlib.Path(__file__).parent
BESIDE = ("SECURITY.md", "CHANGELOG.md")
_BESIDE = re.compile(r"\]\(\.\./(" + "|".join(map(re.escape, BESIDE)) + ")")
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./[^)\s]+\)")
_NAMED = re.compile(r"\[`?((?:docs/)?\w+\.md)`?\]\((\w+\.md)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Returns the files of the site, with those that stand beside docs/.

    Args:
        files: MkDocs' files.
        config: MkDocs' configuration.
    """
    from mkdocs.structure.files import File

    for name in BESIDE:
        text = (DOCS.parent / name).read_text("utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def _titled(match: re.Match[str]) -> str:
    """Returns a link with the title of a page, or of the section that it leads to."""
    _, name, anchor = match.groups(default="")
    folder = DOCS.parent if name in BESIDE else DOCS
    lines = (folder / name).read_text("utf-8").splitlines()
    titles = [line.lstrip("# ") for line in lines if re.match("#+ ", line)]
    sections = {
        "#" + re.sub(r"[^\w\s-]", "", t).strip().lower().replace(" ", "-"): t for t in titles
    }
    return f"[{sections.get(anchor, titles[0])}]({name}{anchor})"


def on_page_markdown(markdown: str, *, page: Any = None, **_: Any) -> str:
    r"""Returns a page whose links stay within the site, and say where they lead.

    Code in two columns gets the place of the table of contents.

    Args:
        markdown: The text of the page.
        page: MkDocs' page, or None.

    Example:
        >>> on_page_markdown("[a](../b.md#c), [d](e.md), [devices.md](devices.md)")
        'a, [d](e.md), [Several devices](devices.md)'
        >>> on_page_markdown("[custom_loops.md](custom_loops.md#two-optimizers)")
        '[Two optimizers](custom_loops.md#two-optimizers)'
    """
    if page is not None and "side-by-side" in markdown:
        page.meta["hide"] = ["toc"]
    markdown = _BESIDE.sub(r"](\1", markdown)
    return _NAMED.sub(_titled, _OUTSIDE.sub(r"\1", markdown))
