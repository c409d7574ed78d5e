"""Membership scores by comparison with models that were trained with and without each record.

A *statistic* is a number of a model and a record, such as its scaled confidence
(`membership_scores`). Shadow models (`shadow_models`) have known members, so that they show, for
each record, what its statistic is like where it is a member and where it is not.
"""

from typing import Any

import numpy as np

from tfdp.events.arguments import real_number


def lira(
    target: Any,
    statistics: Any,
    memberships: Any,
    online: bool = True,
    fixed_variance: bool = False,
) -> np.ndarray:
    """Returns the scores of the likelihood ratio attack, larger where membership is believed in.

    With normal distributions fitted to the shadow models' statistics t of each record,

        online:   log N(t; mean_in, var_in) - log N(t; mean_out, var_out),
        offline:  (t - mean_out) / stddev_out,

    the latter a growing function of the paper's P[N(mean_out, var_out) <= t]. It only needs models
    without the record.

    Args:
        target: [records], of the model that is attacked; larger statistics tell of membership.
        statistics: [models, records], of the shadow models.
        memberships: [models, records], boolean: who was a member where.
        online: Whether to use models with the record.
        fixed_variance: One variance for all records (about their own means), instead of one for
            each: better below some 64 models.

    Raises:
        ValueError: shapes differ, a number is not finite, all variances are zero, or a record has
            too few models. It needs two with it and two without it, or one of each with a fixed
            variance.
        TypeError: `memberships` is not boolean.

    Example:
        >>> members = np.array([[True, False], [False, True]] * 2)
        >>> statistics = np.where(members, 3.0, 1.0) + np.array([[0.1], [0.1], [-0.1], [-0.1]])
        >>> lira([3.0, 1.0], statistics, members, fixed_variance=True).round().tolist()
        [200.0, -200.0]

    References:
        Carlini et al. 2022, arXiv:2112.03570, algorithm 1 and sections VI-A to VI-C.
    """
    target, statistics, memberships = _checked(target, statistics, memberships)
    mean_out, stddev_out = _normal_fit(statistics, ~memberships, fixed_variance, "without it")
    from_out = (target - mean_out) / stddev_out
    if not online:
        return from_out
    mean_in, stddev_in = _normal_fit(statistics, memberships, fixed_variance, "with it")
    from_in = (target - mean_in) / stddev_in
    return np.log(stddev_out / stddev_in) + (from_out**2 - from_in**2) / 2


def rmia(
    target: Any,
    reference: Any,
    memberships: Any,
    population_target: Any,
    population_reference: Any,
    gamma: float = 2.0,
    online: bool = True,
    offline_scale: float = 0.3,
) -> np.ndarray:
    """Returns the scores of the robust membership inference attack.

    With p(x | model) the probability of a record's label and p(x) its mean over reference models,

        score(x) = share of the population's z with r(x) >= gamma r(z),  r = p(. | target) / p(.).

    Online, p(x) is the mean of its means over reference models with and without x. Offline it is
    ((1 + a) p_out(x) + 1 - a) / 2, with p_out(x) over those without, for x and z alike. Few
    reference models are enough: offline, one without each record.

    Args:
        target: [records], probabilities of the labels, by the model that is attacked.
        reference: [models, records], by the reference models.
        memberships: [models, records], boolean: who was a member where.
        population_target: [population], of records that are no member of any model.
        population_reference: [models, population], by the reference models.
        gamma: At least 1; how much more likely x must be.
        online: Whether to use models with the record.
        offline_scale: a, in [0, 1]; only used offline.

    Raises:
        ValueError: shapes differ, the population is empty, a number is no positive probability, or
            a record has no model without it, or with it where `online`.
        TypeError: `memberships` is not boolean.

    References:
        Zarifzadeh, Liu and Shokri 2024, arXiv:2312.03262, equations 2 and 4, algorithms 1 and 2.
    """
    target, reference, memberships = _checked(target, reference, memberships)
    z_target, z_reference, _ = _checked(
        population_target,
        population_reference,
        np.zeros(np.shape(population_reference), bool),
    )
    if len(z_reference) != len(reference):
        raise ValueError(
            "reference and population_reference must be of the same models. "
            f"Received: {len(reference)} and {len(z_reference)} models."
        )
    if len(z_target) == 0:
        raise ValueError(
            "The population must have a record at least. Received: population_target of the shape "
            f"{z_target.shape}."
        )
    for values in (target, reference, z_target, z_reference):
        if not np.all((values > 0) & (values <= 1)):
            raise ValueError("Probabilities must be above 0 and at most 1.")
    gamma = real_number("gamma", gamma, minimum=1, inclusive=True)
    scale = real_number("offline_scale", offline_scale, minimum=0, inclusive=True, maximum=1)
    out = _mean(reference, ~memberships, "without it")
    if online:
        known = (_mean(reference, memberships, "with it") + out) / 2
        z_known = z_reference.mean(axis=0)
    else:
        known = ((1 + scale) * out + 1 - scale) / 2
        z_known = ((1 + scale) * z_reference.mean(axis=0) + 1 - scale) / 2
    ratios = np.sort(gamma * z_target / z_known)
    return np.searchsorted(ratios, target / known, side="right") / len(ratios)


def _normal_fit(
    statistics: np.ndarray, chosen: np.ndarray, fixed_variance: bool, which: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (mean, standard deviation) of every record's statistics in the chosen models."""
    mean = _mean(statistics, chosen, which, least=1 if fixed_variance else 2)
    squares = np.where(chosen, (statistics - mean) ** 2, 0.0)
    if fixed_variance:
        variance = np.full_like(mean, squares.sum() / chosen.sum())
    else:
        variance = squares.sum(axis=0) / chosen.sum(axis=0)
    if not np.all(variance > 0):
        raise ValueError(
            f"The statistics of {int(np.sum(variance == 0))} records are the same in every model "
            f"{which}, so no normal distribution fits. Train more models, or set fixed_variance."
        )
    return mean, np.sqrt(variance)


def _mean(values: np.ndarray, chosen: np.ndarray, which: str, least: int = 1) -> np.ndarray:
    counts = chosen.sum(axis=0)
    if np.any(counts < least):
        raise ValueError(
            f"Every record needs at least {least} of the models {which}. "
            f"{int(np.sum(counts < least))} of {len(counts)} records have fewer."
        )
    return np.where(chosen, values, 0.0).sum(axis=0) / counts


def _checked(
    target: Any, statistics: Any, memberships: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    target, statistics = np.asarray(target, np.float64), np.asarray(statistics, np.float64)
    memberships = np.asarray(memberships)
    if memberships.dtype != bool:
        raise TypeError(f"memberships must be boolean. Received: dtype={memberships.dtype}.")
    if (
        statistics.ndim != 2
        or memberships.shape != statistics.shape
        or target.shape != statistics.shape[1:]
    ):
        raise ValueError(
            "Numbers of the attacked model must be of the shape [records], those of other models "
            "and their memberships of the shape [models, records]. "
            f"Received: {target.shape}, {statistics.shape} and {memberships.shape}."
        )
    if not (np.isfinite(target).all() and np.isfinite(statistics).all()):
        raise ValueError("A number is infinite or NaN.")
    return target, statistics, memberships
