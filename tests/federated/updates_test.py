"""What an update must look like; server_test.py has what becomes of others."""

import keras
import numpy as np
import pytest

from tfdp.federated import InvalidUpdateError
from tfdp.federated.updates import form_of

VARIABLES = [keras.Variable(np.zeros([3, 2], "float32")), keras.Variable(np.float32(1.0))]
GOOD = [np.ones([3, 2], np.float32), np.array(2.0, np.float32)]


def test_form_is_that_of_the_variables():
    form = form_of(VARIABLES, is_weighted=False)
    assert form == (((3, 2), ()), ("float32", "float32"), False)
    arrays, weight = form.check(GOOD, None)
    assert all(one is other for one, other in zip(arrays, GOOD, strict=True))
    assert weight == 1.0


@pytest.mark.parametrize("weight", [2, 0.5, np.float32(3.0), np.int64(2), -1.0])
def test_weight_is_a_number(weight):
    assert form_of(VARIABLES, is_weighted=True).check(GOOD, weight)[1] == float(weight)


BAD_WEIGHTS = [None, np.nan, np.inf, True, "1", [1.0], np.ones(2), 10**400, 1j]


@pytest.mark.parametrize("weight", BAD_WEIGHTS, ids=lambda weight: repr(weight)[:9])
def test_weight_that_is_no_finite_number_is_refused(weight):
    with pytest.raises(InvalidUpdateError, match="one finite number"):
        form_of(VARIABLES, is_weighted=True).check(GOOD, weight)


def test_weight_that_nobody_wants_is_refused():
    with pytest.raises(InvalidUpdateError, match="takes none"):
        form_of(VARIABLES, is_weighted=False).check(GOOD, 1.0)


def test_error_tells_no_value():
    form = form_of(VARIABLES, is_weighted=False)
    secret = np.full([3, 2], 123456.0, np.float64)
    for bad in ([secret, GOOD[1]], [np.float32(secret) * np.inf, GOOD[1]], [secret]):
        with pytest.raises(InvalidUpdateError) as error:
            form.check(bad, None)
        assert "123456" not in str(error.value)


ALL = [np.stack(4 * [part]) for part in GOOD]


def test_several_updates_stand_one_behind_the_other():
    assert form_of(VARIABLES, is_weighted=False).check_all(ALL, None) == 4
    assert form_of(VARIABLES, is_weighted=True).check_all(ALL, np.ones(4)) == 4
    nothing = [part[:0] for part in ALL]
    assert form_of(VARIABLES, is_weighted=True).check_all(nothing, []) == 0


@pytest.mark.parametrize(
    "bad",
    [
        [],
        ALL[:1],
        GOOD,
        [ALL[0], ALL[1][:1]],
        [ALL[0], np.float32(2.0)],
        [ALL[0].astype("float16"), ALL[1]],
        [ALL[0].astype("uint8"), ALL[1]],
        [ALL[0], ALL[1].tolist()],
    ],
    ids=["none", "one", "one_client", "rows", "scalar", "float16", "uint8", "list"],
)
def test_several_updates_of_another_form_are_refused(bad):
    with pytest.raises(ValueError, match="arrays|Arrays"):
        form_of(VARIABLES, is_weighted=False).check_all(bad, None)


@pytest.mark.parametrize("weights", [np.ones(3), np.ones([4, 1]), 1.0, None])
def test_there_is_a_weight_for_each_of_several_updates(weights):
    with pytest.raises(ValueError, match="weight"):
        form_of(VARIABLES, is_weighted=True).check_all(ALL, weights)
