"""Membership scores by classifiers that are trained to tell members from others (scikit-learn).

The attacker of Shokri et al. 2017 (arXiv:1610.05820), with the records themselves in place of
shadow models. One part of the members and others is known to the attacker, and trains a classifier
of predictions. The rest are attacked. Then the parts change places. Every record's score comes from
a classifier that has not seen it.
"""

from typing import Any

import numpy as np

from tfdp.audit.predictions import SCORES, membership_scores
from tfdp.events.arguments import positive_integer

_PERCEPTRON = "multilayer perceptron"
ATTACKERS = ("logistic regression", "random forest", _PERCEPTRON, "nearest neighbors")
# It stops early by a tenth of the records that it is trained with, of both kinds, at least one of
# each: there must be two of each to be divided so, and a tenth, rounded up, must be two.
_LEAST_OF_A_KIND, _LEAST_RECORDS = 2, 11


def attacker_features(probabilities: Any, labels: Any) -> np.ndarray:
    """Returns what attackers are trained on: all scores, and the probabilities in falling order.

    Args:
        probabilities: [records, classes].
        labels: [records], integers.

    Returns:
        [records, features], float64.
    """
    scores = [membership_scores(name, probabilities, labels) for name in SCORES]
    falling = -np.sort(-np.asarray(probabilities, np.float64), axis=1)
    return np.column_stack([*scores, falling])


def trained_scores(
    attacker: str, features: Any, members: Any, folds: int = 2, seed: int = 0
) -> np.ndarray:
    """Returns a score per record, larger where membership is believed in.

    Guarantees:
        The classifier that scores a record has seen neither it nor its membership.

    Args:
        attacker: One of `ATTACKERS`.
        features: [records, features], such as those of `attacker_features`.
        members: One boolean per record.
        folds: Into how many parts the records are divided, two or more.
        seed: Of the division and of the training.

    Raises:
        ValueError: no such attacker, the shapes differ, a feature is not finite, or there are fewer
            members or fewer others than parts. A multilayer perceptron needs 11 records without
            any of the parts, among them 2 members and 2 others.
        TypeError: `members` is not boolean.
        ModuleNotFoundError: scikit-learn is not installed.
    """
    features, members = np.asarray(features, np.float64), np.asarray(members)
    folds = positive_integer("folds", folds)
    if members.dtype != bool:
        raise TypeError(f"members must be boolean. Received: dtype={members.dtype}.")
    if features.ndim != 2 or members.shape != features.shape[:1]:
        raise ValueError(
            "features must be of the shape [records, features], and members of the shape [records]."
            f" Received: {features.shape} and {members.shape}."
        )
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        raise ValueError(
            "features must be finite. Received: NaN or infinity in "
            f"{int(np.sum(~finite))} of {len(features)} records."
        )
    rarer = int(min(members.sum(), (~members).sum()))
    if not 2 <= folds <= rarer:
        raise ValueError(
            "folds must be two or more, and at most as many as there are members, and others. "
            f"Received: folds={folds}, {int(members.sum())} members of {len(members)} records."
        )
    model_selection = _scikit_learn()
    scores = np.empty(len(members))
    division = model_selection.StratifiedKFold(folds, shuffle=True, random_state=seed)
    parts = list(division.split(features, members))
    if attacker == _PERCEPTRON:
        _check_early_stopping([members[known] for known, _ in parts], members)
    for known, attacked in parts:
        classifier = _classifier(attacker, seed, len(known))
        classifier.fit(features[known], members[known])
        scores[attacked] = classifier.predict_proba(features[attacked])[:, 1]
    return scores


def _check_early_stopping(known: list[np.ndarray], members: np.ndarray) -> None:
    fewest = min(min(part.sum(), (~part).sum()) for part in known)
    records = min(len(part) for part in known)
    if fewest < _LEAST_OF_A_KIND or records < _LEAST_RECORDS:
        raise ValueError(
            f"folds must leave a {_PERCEPTRON}, which stops early, {_LEAST_RECORDS} records or "
            f"more to be trained with, among them {_LEAST_OF_A_KIND} members and "
            f"{_LEAST_OF_A_KIND} others. Received: folds={len(known)}, {int(members.sum())} "
            f"members of {len(members)} records."
        )


def _scikit_learn() -> Any:
    try:
        from sklearn import model_selection
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Trained attackers need scikit-learn: pip install tfdp[audit]."
        ) from error
    return model_selection


def _classifier(attacker: str, seed: int, records: int) -> Any:
    from sklearn import ensemble, linear_model, neighbors, neural_network, pipeline, preprocessing

    made = {
        "logistic regression": lambda: linear_model.LogisticRegression(max_iter=1000),
        "random forest": lambda: ensemble.RandomForestClassifier(
            min_samples_leaf=10, random_state=seed
        ),
        _PERCEPTRON: lambda: neural_network.MLPClassifier(
            (32,), learning_rate_init=0.01, early_stopping=True, random_state=seed
        ),
        "nearest neighbors": lambda: neighbors.KNeighborsClassifier(min(15, records)),
    }
    if attacker not in made:
        raise ValueError(
            f"There is no such attacker; take one of {ATTACKERS}. Received: {attacker!r}."
        )
    return pipeline.make_pipeline(preprocessing.StandardScaler(), made[attacker]())
