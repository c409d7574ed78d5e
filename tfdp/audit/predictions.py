"""Membership scores from a classifier's predictions: the smaller its doubts, the more a member.

With p the predicted probabilities and y the label of a record:

    loss               log p_y
    confidence         max_k p_k
    entropy            sum_k p_k log p_k
    modified entropy   (1 - p_y) log p_y + sum_{k != y} p_k log(1 - p_k)
    scaled confidence  log p_y - log sum_{k != y} p_k

The second and third need no labels. Logarithms of zero are those of 1e-30.

References:
    Yeom et al. 2018, arXiv:1709.01604 (loss); Song and Mittal 2021, arXiv:2003.10595, equations 7
    and 8 (entropies); Carlini et al. 2022, arXiv:2112.03570, section VI (scaled confidence).
"""

from typing import Any

import numpy as np

SCORES = ("loss", "confidence", "entropy", "modified entropy", "scaled confidence")
WITHOUT_LABELS = ("confidence", "entropy")
_SMALLEST = 1e-30


def membership_scores(name: str, probabilities: Any, labels: Any | None = None) -> np.ndarray:
    """Returns a score per record, larger where membership is believed in.

    Args:
        name: One of `SCORES`.
        probabilities: [records, classes]; rows sum to one (`probabilities_of_logits`).
        labels: [records], integers; "confidence" and "entropy" do without.

    Raises:
        ValueError: no such score, labels are missing, or these are no probabilities of records and
            their labels.
        TypeError: labels are not integers.

    Example:
        >>> membership_scores("loss", [[0.5, 0.5], [0.1, 0.9]], [0, 1]).round(3).tolist()
        [-0.693, -0.105]
    """
    if name not in SCORES:
        raise ValueError(
            f"There is no such score. Take one of these: {', '.join(SCORES)}. Received: {name!r}."
        )
    p = _probabilities(probabilities)
    if name == "confidence":
        return p.max(axis=1)
    if name == "entropy":
        return np.sum(p * _log(p), axis=1)
    y = np.arange(len(p)), _labels(name, labels, p)
    if name == "loss":
        return _log(p[y])
    if name == "modified entropy":
        each = p * _log(1 - p)
        each[y] = (1 - p[y]) * _log(p[y])
        return np.sum(each, axis=1)
    others = p.copy()
    others[y] = 0.0
    return _log(p[y]) - _log(others.sum(axis=1))


def probabilities_of_logits(logits: Any) -> np.ndarray:
    """Returns the softmax of each row.

    Raises:
        ValueError: the logits are not [records, classes], or a row has no softmax: it holds NaN or
            infinity, or minus infinity alone.
    """
    from scipy import special

    logits = np.asarray(logits, np.float64)
    if logits.ndim != 2:
        raise ValueError(
            f"logits must be of the shape [records, classes]. Received: shape={logits.shape}."
        )
    if logits.size and not np.isfinite(logits.max(axis=1)).all():
        raise ValueError(
            "logits of a record are NaN, infinite, or all minus infinity: they stand for no "
            "probabilities."
        )
    return special.softmax(logits, axis=1)


def _log(values: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(values, _SMALLEST))


def _probabilities(probabilities: Any) -> np.ndarray:
    p = np.asarray(probabilities, np.float64)
    if p.ndim != 2 or p.shape[1] < 2:
        raise ValueError(
            "probabilities must be of the shape [records, classes], with two classes or more. Of "
            "one sigmoid output p [records], take numpy.stack([1 - p, p], axis=-1). Received: "
            f"shape={p.shape}."
        )
    # Sums of float32 and of what was written with few digits.
    if not (np.all(p >= 0) and np.all(np.abs(p.sum(axis=1) - 1) < 1e-3)):
        raise ValueError(
            "Every row of probabilities must be at least zero and sum to one. Of logits, take "
            "probabilities_of_logits first."
        )
    return p


def _labels(name: str, labels: Any | None, p: np.ndarray) -> np.ndarray:
    if labels is None:
        raise ValueError(f"The score {name!r} needs labels.")
    labels = np.asarray(labels)
    if not np.issubdtype(labels.dtype, np.integer):
        raise TypeError(f"labels must be integers. Received: dtype={labels.dtype}.")
    if labels.shape != (len(p),) or not np.all((labels >= 0) & (labels < p.shape[1])):
        raise ValueError(
            f"labels must be {len(p)} numbers of classes from 0 to {p.shape[1] - 1}, one a record. "
            f"Received: shape={labels.shape}."
        )
    return labels
