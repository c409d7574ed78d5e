"""Membership scores of predictions: their definitions, and the values of published tests."""

import math

import numpy as np
import pytest

from tfdp.audit import predictions
from tfdp.audit.predictions import membership_scores, probabilities_of_logits

P = np.array([[0.1, 0.85, 0.05], [0.1, 0.5, 0.4]])
Y = np.array([1, 2])


def test_values_of_tests_of_tensorflow_privacy():
    # advanced_mia_test.py, for probabilities and for logits; its losses are ours, negated.
    found = {name: membership_scores(name, P, Y) for name in predictions.SCORES}
    np.testing.assert_allclose(-found["loss"], [0.16251893, 0.91629073], rtol=1e-7)
    np.testing.assert_allclose(found["scaled confidence"], [1.73460106, -0.40546511], rtol=1e-7)
    logits = probabilities_of_logits([[1.0, 2.0, -3.0], [-1.0, 1.0, 0.0]])
    np.testing.assert_allclose(
        -membership_scores("loss", logits, Y), [0.31817543, 1.40760596], rtol=1e-7
    )
    np.testing.assert_allclose(
        membership_scores("scaled confidence", logits, Y), [0.98185009, -1.12692802], rtol=1e-7
    )
    # data_structures_test.py: losses of probabilities.
    losses = -membership_scores("loss", [[0.1, 0.1, 0.8], [0.8, 0.2, 0]], np.array([1, 0]))
    np.testing.assert_allclose(losses, [2.30258509, 0.22314355], rtol=1e-7)


def test_every_score_is_its_definition():
    for name in predictions.SCORES:
        for p, y, found in zip(P, Y, membership_scores(name, P, Y), strict=True):
            other = [q for k, q in enumerate(p) if k != y]
            expected = {
                "loss": math.log(p[y]),
                "confidence": max(p),
                "entropy": sum(q * math.log(q) for q in p),
                "modified entropy": (1 - p[y]) * math.log(p[y])
                + sum(q * math.log(1 - q) for q in other),
                "scaled confidence": math.log(p[y] / (1 - p[y])),
            }[name]
            assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.filterwarnings("error")
def test_what_has_no_softmax_is_refused():
    assert probabilities_of_logits([[-np.inf, 0.0]]).tolist() == [[0.0, 1.0]]
    for row in ([np.inf, 0.0], [np.nan, 0.0], [-np.inf, -np.inf]):
        with pytest.raises(ValueError, match="they stand for no probabilities"):
            probabilities_of_logits([[1.0, 2.0], row])
    with pytest.raises(ValueError, match=r"\[records, classes\]. Received: shape=\(2,\)"):
        probabilities_of_logits([1.0, 2.0])


def test_what_is_certain_has_finite_scores():
    certain, y = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 0])
    for name in predictions.SCORES:
        right, wrong = membership_scores(name, certain, y)
        assert np.isfinite([right, wrong]).all()
        assert right == wrong if name in predictions.WITHOUT_LABELS else right > wrong


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("luck", P, Y), ValueError, "'luck'"),
        (("loss", P), ValueError, "needs labels"),
        (("loss", P, [0.0, 1.0]), TypeError, "integers"),
        (("loss", P, [0, 3]), ValueError, "0 to 2"),
        (("loss", P, [0]), ValueError, "2 numbers"),
        (("loss", [[1.0, 2.0]], [0]), ValueError, "sum to one"),
        (("loss", [[np.nan, 1.0]], [0]), ValueError, "sum to one"),
        (("loss", [0.5, 0.5], [0]), ValueError, "records, classes"),
    ],
)
def test_arguments_are_validated(arguments, error, text):
    with pytest.raises(error, match=text):
        membership_scores(*arguments)
