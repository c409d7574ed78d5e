"""Clipping by groups of a model's variables: by layer, by variable, or as a function says."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from tfdp.events.arguments import real_number
from tfdp.noise import RandomSource
from tfdp.query.arguments import clip_norm
from tfdp.query.arranged import ArrangedQuery
from tfdp.query.dp_query import DPQuery
from tfdp.query.gaussian import GaussianSumQuery
from tfdp.query.nested import NestedQuery
from tfdp.query.normalized import NormalizedQuery

GroupBy = str | Callable[[Any], Hashable]


def per_layer(
    model: Any,
    l2_norm_clip: float | Sequence[float],
    noise_multiplier: float,
    denominator: float,
    split: str | None = None,
    random_source: RandomSource | None = None,
    *,
    group_by: GroupBy = "layer",
) -> DPQuery:
    """Returns a query that clips each layer's variables together, by a norm of their own, and
    averages.

    With G groups of d_g coordinates (d in all) and a total bound C the clip of group g is

        split="uniform":    C_g = C / sqrt(G)
        split="dimension":  C_g = C * sqrt(d_g / d)

    and a sequence as `l2_norm_clip` gives every C_g, with C = sqrt(sum_g C_g^2). Every coordinate
    gets the same noise, stddev = noise_multiplier * C on the sum, so that the groups together are
    one Gaussian sum with the noise multiplier that was asked for: (sum_g (C_g / stddev)^2)^(-1/2) =
    noise_multiplier.

    Args:
        model: A built Keras model (its trainable variables are used), or a list of variables or
            tensors.
        l2_norm_clip: C, or the list of the C_g, one for each group, in the order of `groups_of`.
        noise_multiplier: That of all groups together.
        denominator: The expected number of records in a sample.
        split: "uniform" (default) or "dimension", where `l2_norm_clip` is one number.
        random_source: Where the noise comes from; by default keyed by the operating system.
        group_by: "layer" (default): kernel, bias and what else a layer holds share a clip.
            "variable": each has its own. A function: those for which it returns the same do.

    Raises:
        ValueError: the model has no variables yet, the number of clips is not that of the groups,
            or `split` or `group_by` is unknown.
        TypeError: an argument is of the wrong type.

    References:
        McMahan, Ramage, Talwar, Zhang 2018, arXiv:1710.06963, section 2.2; arXiv:1812.06210,
        section 4.
    """
    groups = Groups(model, group_by)
    clips = groups.split_clips(l2_norm_clip, split)
    multiplier = real_number("noise_multiplier", noise_multiplier, minimum=0, inclusive=True)
    stddev = multiplier * math.hypot(*clips)
    return groups.averages(clips, [stddev] * len(clips), denominator, random_source)


def by_layer(model: Any, queries: Mapping[str, DPQuery]) -> ArrangedQuery:
    """Returns a query that applies each of `queries` to the variables of one layer.

    Args:
        model: A built Keras model.
        queries: For the path of every layer with trainable variables, a query, whose records are
            lists of the layer's trainable variables. A path is, for example, "dense" or
            "block/dense_1": what stands before the last "/" in `variable.path`, without the model's
            name.

    Raises:
        ValueError: a layer has no query, or a query no layer.
        TypeError: a value is not a query.

    Example:
        >>> import keras, tfdp
        >>> layers = [keras.layers.Dense(3, name="a"), keras.layers.Dense(2, name="b")]
        >>> model = keras.Sequential([keras.Input((4,)), *layers])
        >>> small, large = (
        ...     tfdp.GaussianAverageQuery(clip, noise_multiplier=1.5, denominator=256)
        ...     for clip in (0.5, 2.0)
        ... )
        >>> tfdp.query.by_layer(model, {"a": large, "b": small}).arrangement
        {'a': [0, 1], 'b': [2, 3]}
    """
    groups = Groups(model, "layer")
    if set(groups.keys) != set(queries):
        raise ValueError(
            f"queries must have a query for each layer. Expected: {sorted(map(str, groups.keys))}. "
            f"Received: {sorted(map(str, queries))}."
        )
    arrangement = dict(zip(groups.keys, groups.places, strict=True))
    return ArrangedQuery(NestedQuery(dict(queries)), arrangement)


class Groups:
    """The trainable variables of a model, in groups.

    Attributes:
        keys: What the variables of each group have in common.
        places: The variables of each group, as indices in the list of all.
        sizes: How many coordinates each group has.

    Args:
        model: A built Keras model, or a list of variables or tensors.
        group_by: As in `per_layer`.

    Raises:
        ValueError: there are no variables, or `group_by` is unknown.
    """

    def __init__(self, model: Any, group_by: GroupBy):
        variables = _variables_of(model)
        if not (callable(group_by) or group_by in ("layer", "variable")):
            raise ValueError(
                "group_by must be 'layer', 'variable' or a function of a variable. Received: "
                f"group_by={group_by!r}."
            )
        members: dict[Hashable, list[int]] = {}
        for index, variable in enumerate(variables):
            if callable(group_by):
                key = group_by(variable)
            else:
                key = _layer_of(variable, model) if group_by == "layer" else None
                key = index if key is None else key
            members.setdefault(key, []).append(index)
        self.keys = list(members)
        self.places = list(members.values())
        self.sizes = [
            sum(math.prod(variables[index].shape) for index in places) for places in self.places
        ]

    def averages(
        self,
        clips: Sequence[float],
        stddevs: Sequence[float],
        denominator: float,
        random_source: RandomSource | None,
    ) -> DPQuery:
        """Returns a query that averages every group with a clip and noise of its own.

        Args:
            clips: The bound of every group.
            stddevs: The noise on the sum of every group.
            denominator: What the noised sums are divided by.
            random_source: As in `GaussianSumQuery`.
        """
        queries = [
            NormalizedQuery(GaussianSumQuery(clip, stddev, random_source), denominator)
            for clip, stddev in zip(clips, stddevs, strict=True)
        ]
        nested = NestedQuery(queries)
        if all(len(places) == 1 for places in self.places):
            return nested
        return ArrangedQuery(nested, self.places)

    def split_clips(self, l2_norm_clip: float | Sequence[float], split: str | None) -> list[float]:
        """Returns the clip of every group; see `per_layer`."""
        if isinstance(l2_norm_clip, (list, tuple)):
            if split is not None:
                raise ValueError(
                    f"Every clip is given, so there is nothing to split. Received: split={split!r}."
                )
            if len(l2_norm_clip) != len(self.keys):
                raise ValueError(
                    f"l2_norm_clip must hold one clip for each of the {len(self.keys)} groups of "
                    f"variables, {self.keys} (group_by='variable' makes each variable one). "
                    f"Received {len(l2_norm_clip)}: l2_norm_clip={l2_norm_clip!r}."
                )
            return [clip_norm("l2_norm_clip", clip) for clip in l2_norm_clip]
        total = clip_norm("l2_norm_clip", l2_norm_clip)
        if split in (None, "uniform"):
            return [total / math.sqrt(len(self.keys))] * len(self.keys)
        if split == "dimension":
            return [total * math.sqrt(size / sum(self.sizes)) for size in self.sizes]
        raise ValueError(f"split must be 'uniform' or 'dimension'. Received: split={split!r}.")


def _layer_of(variable: Any, model: Any) -> str | None:
    """Returns the path of a Keras variable's layer in its model; None for other variables."""
    path = getattr(variable, "path", None)
    if not path or "/" not in path:
        return None
    # The paths of variables begin with the name of the model if it was built after it was made, as
    # every Sequential is.
    return path.rpartition("/")[0].removeprefix(f"{getattr(model, 'name', '')}/")


def _variables_of(model: Any) -> list[Any]:
    variables = list(getattr(model, "trainable_variables", model))
    if not variables:
        raise ValueError(
            "Clipping by layer needs variables, and this model has none yet. Build it first: give "
            "it an Input or call it once."
        )
    return variables
