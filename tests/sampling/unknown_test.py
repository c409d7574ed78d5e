"""Nothing declared grants nothing."""

import pytest

from tfdp.events import (
    UnknownSampling,
)
from tfdp.noise import host_generator
from tfdp.sampling import Unknown


def test_unknown_grants_nothing_and_does_not_draw():
    assert Unknown().description(3) == UnknownSampling()
    assert Unknown().expected_batch_size is None
    with pytest.raises(ValueError, match="Choose another policy"):
        Unknown().resolve(10, 2)
    with pytest.raises(TypeError, match="Unknown says nothing about how to draw"):
        Unknown().draw(host_generator())
