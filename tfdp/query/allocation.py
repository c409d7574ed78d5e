"""How noise is divided between the layers of a model, at one price.

Every group g of variables, such as those of a layer, has a clip S_g and noise sigma_g. All together
are one Gaussian sum with the noise multiplier z = (sum_g (S_g / sigma_g)^2)^(-1/2) (McMahan et al.
2018, arXiv:1812.06210, section 3). So if z is given, less noise on one group means more noise on
another. G groups have d_g coordinates each, and d in all:

| strategy | sigma_g | what it evens out |
|---|---|---|
| `per_layer` | z sqrt(sum_g S_g^2) | the noise on every coordinate |
| `proportional_noise` | z sqrt(G) S_g | noise on a coordinate, relative to the group's clip |
| `dimension_adjusted_noise` | z sqrt(d / d_g) S_g | the noise's norm, relative to the clip |

The last two do better than the first if clips follow the typical norms of the groups. The third
suits groups whose coordinates are the larger, the fewer they are.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource
from tfdp.query.dp_query import DPQuery
from tfdp.query.layers import GroupBy, Groups


def proportional_noise(
    model: Any,
    l2_norm_clip: float | Sequence[float],
    noise_multiplier: float,
    denominator: float,
    split: str | None = None,
    random_source: RandomSource | None = None,
    *,
    group_by: GroupBy = "layer",
) -> DPQuery:
    """Returns a per-layer query whose noise is in proportion to each group's clip.

        sigma_g = noise_multiplier * sqrt(G) * S_g

    Every one of the G groups costs the same: each alone has noise multiplier
    noise_multiplier * sqrt(G).

    Guarantees:
        All groups together have exactly the noise multiplier that was asked for.

    Args:
        model: A built Keras model (its trainable variables are used), or a list of variables or
            tensors.
        l2_norm_clip: C, which `split` divides, or the list of the S_g.
        noise_multiplier: That of all groups together.
        denominator: The expected number of records in a sample.
        split: "uniform" (default) or "dimension", as in `per_layer`.
        random_source: Where the noise comes from; by default keyed by the operating system.
        group_by: As in `per_layer`: "layer" (default), "variable" or a function.

    Raises:
        ValueError: as in `per_layer`.
        TypeError: an argument is of the wrong type.

    Example:
        >>> variables = [np.zeros([30, 10]), np.zeros([10])]
        >>> query = proportional_noise(variables, [3.0, 1.0], 1.0, denominator=256)
        >>> event = query.derive_event(query.initial_global_state())
        >>> [round(e.noise_stddev, 3) for e in event.events]
        [4.243, 1.414]

    References:
        McMahan et al. 2018, arXiv:1812.06210, section 4.
    """
    groups = Groups(model, group_by)
    return _allocated(
        groups,
        [1.0] * len(groups.keys),
        l2_norm_clip,
        noise_multiplier,
        denominator,
        split,
        random_source,
    )


def dimension_adjusted_noise(
    model: Any,
    l2_norm_clip: float | Sequence[float],
    noise_multiplier: float,
    denominator: float,
    split: str | None = None,
    random_source: RandomSource | None = None,
    *,
    group_by: GroupBy = "layer",
) -> DPQuery:
    """Returns a per-layer query in which the norm of a group's noise is in proportion to its clip.

        sigma_g = noise_multiplier * sqrt(d / d_g) * S_g

    Noise on d_g coordinates has a norm of about sigma_g sqrt(d_g). Here that is noise_multiplier *
    sqrt(d) * S_g, the same multiple of the clip for every group. So a group with many coordinates
    gets less noise on each of them, and has a larger part in what the step costs.

    Guarantees:
        All groups together have exactly the noise multiplier that was asked for.

    Args:
        model: As in `proportional_noise`.
        l2_norm_clip: As in `proportional_noise`.
        noise_multiplier: As in `proportional_noise`.
        denominator: As in `proportional_noise`.
        split: As in `proportional_noise`.
        random_source: As in `proportional_noise`.
        group_by: As in `proportional_noise`.

    Raises:
        ValueError: as in `per_layer`, or a group has no coordinates.
        TypeError: an argument is of the wrong type.

    Example:
        >>> variables = [np.zeros([30, 10]), np.zeros([10])]
        >>> query = dimension_adjusted_noise(variables, [3.0, 1.0], 1.0, denominator=256)
        >>> event = query.derive_event(query.initial_global_state())
        >>> [round(e.noise_stddev, 3) for e in event.events]
        [3.05, 5.568]

    References:
        McMahan et al. 2018, arXiv:1812.06210, section 4.
    """
    groups = Groups(model, group_by)
    if 0 in groups.sizes:
        raise ValueError(
            "Every group of variables must have coordinates. Received groups with these numbers of "
            f"them: {groups.sizes}."
        )
    return _allocated(
        groups,
        [float(size) for size in groups.sizes],
        l2_norm_clip,
        noise_multiplier,
        denominator,
        split,
        random_source,
    )


def _allocated(
    groups: Groups,
    shares: Sequence[float],
    l2_norm_clip: float | Sequence[float],
    noise_multiplier: float,
    denominator: float,
    split: str | None,
    random_source: RandomSource | None,
) -> DPQuery:
    """Returns a query in which each group has its share of sum_g (S_g / sigma_g)^2."""
    clips = groups.split_clips(l2_norm_clip, split)
    multiplier = real_number("noise_multiplier", noise_multiplier, minimum=0, inclusive=True)
    stddevs = [
        multiplier * math.sqrt(sum(shares) / share) * clip
        for clip, share in zip(clips, shares, strict=True)
    ]
    return groups.averages(clips, stddevs, denominator, random_source)


def clips_from_public_gradients(
    public_gradients: Sequence[Any], quantile: float = 0.5
) -> list[float]:
    """Returns, for every variable, a quantile of the gradient norms of PUBLIC records.

    The result is not private: it must come from records that nobody needs to protect, such as
    another, public data set, or random inputs. Norms of the training data would leak, and no ledger
    would know. It is meant as the list of clips of `per_layer`, `proportional_noise` and
    `dimension_adjusted_noise`.

    Edge cases:
        Records with a NaN or infinity in a variable are left out of that variable's quantile.

    Args:
        public_gradients: For every variable the gradients of all public records, [records, ...].
        quantile: Share of the public records that the clip leaves as they are, in (0, 1].

    Raises:
        ValueError: there is no finite record, the numbers of records differ, or all norms up to the
            quantile are zero, which is no clip.
        TypeError: `quantile` is not a number.

    Example:
        >>> gradients = [np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]]), np.array([1.0, 1.0, 5.0])]
        >>> clips_from_public_gradients(gradients)
        [2.0, 1.0]
    """
    share = real_number("quantile", quantile, minimum=0, inclusive=False, maximum=1)
    arrays = [np.asarray(gradient, dtype=np.float64) for gradient in public_gradients]
    counts = {array.shape[0] if array.ndim else 0 for array in arrays}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(
            "public_gradients must hold gradients of the same records, [records, ...], for every "
            f"variable. Received shapes: {[array.shape for array in arrays]}."
        )
    clips = []
    for index, array in enumerate(arrays):
        norms = np.linalg.norm(array.reshape(len(array), -1), axis=1)
        norms = norms[np.isfinite(norms)]
        clip = float(np.quantile(norms, share)) if len(norms) else 0.0
        if clip <= 0:
            raise ValueError(
                f"The public gradients of variable {index} are zero or not finite up to the "
                f"quantile {share:g}, so they suggest no clip. Take a larger quantile, or other "
                "public records."
            )
        clips.append(clip)
    return clips
