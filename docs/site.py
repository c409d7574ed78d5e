"""What mkdocs does to each page: links to files outside of docs/ become their names.

The site holds the documents alone. On the disk, and where the repository is shown, the links work.
"""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./[^)\s]+\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    r"""Returns a page whose links stay within the site.

    Example:
        >>> on_page_markdown("[a](../b.md#c), [d](e.md)")
        'a, [d](e.md)'
    """
    return _OUTSIDE.sub(r"\1", markdown)
