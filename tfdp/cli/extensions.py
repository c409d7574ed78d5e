"""Packages that extend tfdp: the command line imports them, so that it knows what they register."""

from importlib import metadata

# Entry points of installed packages: each names a module, which registers events, prices and
# accountants when it is imported.
GROUP = "tfdp.extensions"


def load_extensions() -> None:
    """Imports what installed packages name in the group of entry points "tfdp.extensions".

    Raises:
        ModuleNotFoundError: one cannot be imported. Without it a ledger could not be read, or would
            be priced by less than its author has said.
    """
    for point in metadata.entry_points(group=GROUP):
        try:
            point.load()
        except (ImportError, AttributeError) as error:
            raise ModuleNotFoundError(
                f"The extension {point.name} ({point.value}) cannot be imported: {error}. Repair "
                "it, or uninstall the package that names it."
            ) from error
