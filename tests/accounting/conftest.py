"""Every accountant, one after another."""

import pytest

from tests.accounting.kinds import KINDS


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def make(kind):
    return kind.make
