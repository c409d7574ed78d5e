"""PReLU against the explicit loop."""

import keras
import pytest

from tests.gradients.problems import assert_layer_is_exact

L = keras.layers


# name -> (layer, shape of its input)
LAYERS = {
    "prelu": (lambda: L.PReLU(), (4,)),
    "prelu_shared": (lambda: L.PReLU(shared_axes=[1, 2]), (3, 3, 2)),
}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    assert_layer_is_exact(*LAYERS[name])
