"""PReLU against the explicit loop."""

import keras
import pytest

from tests.gradients.problems import BATCH, assert_layer_is_exact, how_it_runs, model_of

L = keras.layers


# name -> (layer, shape of its input)
LAYERS = {
    "prelu": (lambda: L.PReLU(), (4,)),
    "prelu_shared": (lambda: L.PReLU(shared_axes=[1, 2]), (3, 3, 2)),
}
# What Keras makes of axes: the slopes that records share, and 0 and -1 are axes of theirs.
SHARED = [None, 1, [0], [-1], [-2, -1], [1, -1], [2, 3], [0, 1, 2, 3]]


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layer(name):
    assert how_it_runs(model_of(*LAYERS[name])) == ["PReLURule"]
    assert_layer_is_exact(*LAYERS[name])


@pytest.mark.parametrize("axes", SHARED, ids=str)
def test_shared_axes(axes):
    def make():
        return L.PReLU("uniform", shared_axes=axes)

    # As many places along each axis as there are records.
    shape = (BATCH, BATCH, BATCH)
    assert how_it_runs(model_of(make, shape)) == ["PReLURule"]
    assert_layer_is_exact(make, shape)
