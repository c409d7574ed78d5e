"""Per-layer clipping over the variables of a model."""

import math
from collections.abc import Sequence
from typing import Any

from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource
from tfdp.query.gaussian import GaussianSumQuery, clip_norm
from tfdp.query.nested import NestedQuery
from tfdp.query.normalized import NormalizedQuery


def per_layer(
    model: Any,
    l2_norm_clip: float | Sequence[float],
    noise_multiplier: float,
    denominator: float,
    split: str | None = None,
    random_source: RandomSource | None = None,
) -> NestedQuery:
    """Returns a `NestedQuery` that clips every trainable variable of a model on its own and
    averages.

    With G variables of d_g coordinates (d in all) and a total bound C the clip of variable g is

        split="uniform":    C_g = C / sqrt(G)
        split="dimension":  C_g = C * sqrt(d_g / d)

    and a sequence as `l2_norm_clip` gives every C_g, with C = sqrt(sum_g C_g^2). Every coordinate
    gets the same noise, stddev = noise_multiplier * C on the sum, so that the groups together are
    one Gaussian sum with the noise multiplier that was asked for: (sum_g (C_g / stddev)^2)^(-1/2) =
    noise_multiplier.

    Args:
        model: A built Keras model (its trainable variables are used), or a list of variables or
            tensors.
        l2_norm_clip: C, or the list of the C_g, one for each variable.
        noise_multiplier: That of all groups together.
        denominator: The expected number of records in a sample.
        split: "uniform" (default) or "dimension", where `l2_norm_clip` is one number.
        random_source: Where the noise comes from; by default keyed by the operating system.

    Raises:
        ValueError: the model has no variables yet, the number of clips is not that of the
            variables, or `split` is unknown.

    References:
        McMahan, Ramage, Talwar, Zhang 2018, arXiv:1710.06963, section 2.2; arXiv:1812.06210,
        section 4.
    """
    variables = variables_of(model)
    clips = split_clips(variables, l2_norm_clip, split)
    multiplier = real_number("noise_multiplier", noise_multiplier, minimum=0, inclusive=True)
    stddev = multiplier * math.hypot(*clips)
    return nested_average(clips, [stddev] * len(clips), denominator, random_source)


def variables_of(model: Any) -> list[Any]:
    """Returns the trainable variables of a built model, or the list of variables that it is.

    Raises:
        ValueError: there are none.
    """
    variables = list(getattr(model, "trainable_variables", model))
    if not variables:
        raise ValueError(
            "Per-layer clipping needs variables, and this model has none yet. Build it first: give "
            "it an Input or call it once."
        )
    return variables


def nested_average(
    clips: Sequence[float],
    stddevs: Sequence[float],
    denominator: float,
    random_source: RandomSource | None,
) -> NestedQuery:
    """Returns a query that averages every part of a record with a clip and noise of its own."""
    return NestedQuery(
        [
            NormalizedQuery(GaussianSumQuery(clip, stddev, random_source), denominator)
            for clip, stddev in zip(clips, stddevs, strict=True)
        ]
    )


def split_clips(
    variables: Sequence[Any], l2_norm_clip: float | Sequence[float], split: str | None
) -> list[float]:
    """Returns the clip of every variable; see `per_layer`."""
    if isinstance(l2_norm_clip, (list, tuple)):
        if split is not None:
            raise ValueError(
                f"Every clip is given, so there is nothing to split. Received: split={split!r}."
            )
        if len(l2_norm_clip) != len(variables):
            raise ValueError(
                f"l2_norm_clip must hold one clip for each of the {len(variables)} variables. "
                f"Received {len(l2_norm_clip)}: l2_norm_clip={l2_norm_clip!r}."
            )
        return [clip_norm("l2_norm_clip", clip) for clip in l2_norm_clip]
    total = clip_norm("l2_norm_clip", l2_norm_clip)
    if split in (None, "uniform"):
        return [total / math.sqrt(len(variables))] * len(variables)
    if split == "dimension":
        sizes = [math.prod(variable.shape) for variable in variables]
        return [total * math.sqrt(size / sum(sizes)) for size in sizes]
    raise ValueError(f"split must be 'uniform' or 'dimension'. Received: split={split!r}.")
