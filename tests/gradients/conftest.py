"""What tests of the engines share."""

import pytest

from tfdp.gradients import watching


@pytest.fixture
def record_by_record(monkeypatch):
    """Names of the layers that ran record by record."""
    names, run = [], watching._record_by_record

    def noted(recording, operation, *args):
        names.append(operation.name)
        return run(recording, operation, *args)

    monkeypatch.setattr(watching, "_record_by_record", noted)
    return names
