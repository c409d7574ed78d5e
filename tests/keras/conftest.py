"""Fixtures that several files of tests share."""

import pytest

from tfdp.keras import charges


@pytest.fixture
def another_process():
    """Forgets which values this process has made, as a new one would not know them."""
    known = dict(charges._known)

    def begin():
        charges._known.clear()

    yield begin
    charges._known.update(known)
