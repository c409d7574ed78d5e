"""Reference numbers that were computed elsewhere, where they are at hand."""

import json
import os
import pathlib

import pytest

_DEFAULT = pathlib.Path(__file__).resolve().parents[3] / "shared"


def load_reference(name):
    """Returns the parsed reference file, or skips the test."""
    path = pathlib.Path(os.environ.get("TFDP_SHARED", _DEFAULT)) / "reference" / name
    if not path.is_file():
        pytest.skip(f"no reference numbers at {path}; set TFDP_SHARED to their folder")
    return json.loads(path.read_text())
