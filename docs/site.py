"""What mkdocs does to each page before it becomes HTML.

Links to files outside of docs/ become their names: the site holds the documents alone. A link whose
text is the name of a document gets the title of that document. On the disk, and where the
repository is shown, all links work as they stand.
"""

import pathlib
import re
from typing import Any

DOCS = pathlib.Path(__file__).parent
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./[^)\s]+\)")
_NAMED = re.compile(r"\[`?(\w+\.md)`?\]\((\w+\.md)(#[^)\s]*)?\)")


def _titled(match: re.Match[str]) -> str:
    """Returns a link with the title of a page, or of the section that it leads to."""
    _, name, anchor = match.groups(default="")
    lines = (DOCS / name).read_text("utf-8").splitlines()
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
    return _NAMED.sub(_titled, _OUTSIDE.sub(r"\1", markdown))
