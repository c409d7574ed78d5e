"""What the API reference is told about the code, which Griffe reads without running it.

Doctests below "Example:" are code: Griffe knows that section as "Examples:", and takes what stands
below any other word for text. Packages that import all of their names on first use list them in
`_NAMES`.
"""

import ast
import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)


class Reading(griffe.Extension):
    """Changes what was read from each module before it is shown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Renames the section of examples.

        Args:
            obj: A module, class, function or attribute.
        """
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(r"\1Examples:", obj.docstring.value)

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Makes the names public of a package that imports all of them on first use.

        Args:
            mod: A module whose names are read.
        """
        if str(mod.members["__all__"].value if "__all__" in mod.members else "") == "list(_NAMES)":
            mod.exports = list(ast.literal_eval(str(mod.members["_NAMES"].value)))
