"""The data sets that samples come from: how they are gone through, and what they hold."""

import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# Data sets of tf.data and Grain whose element i is made of element i of each of their inputs.
_IN_PLACE = {
    *("map", "parallelmap", "prefetch", "cache", "options", "assertcardinality", "zip"),
    *("mapmap", "mapwithindexmap", "sourcemap", "zipmap"),
}
# What a data set does with several records, or with one several times, besides batches. By
# `take_while` one record decides whether all behind it are there.
_STEPS = ("repeat", "window", "group", "scan", "takewhile")


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the data set, through which TensorFlow goes without tuning it.

    In a pipeline of samples there is nothing to tune, but a thread would look at it from time to
    time, at last once a minute. An iterator is not gone before that thread is, and whoever lets go
    of it waits. The thread is woken, but before it can see why, and so often sleeps on: then `fit`
    would end up to a minute late.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def check_elements(data: Any) -> None:
    """Refuses data sets that may have a record at several positions, or several at one.

    Args:
        data: A data set of tf.data or Grain. Of anything else nothing is known.

    Raises:
        TypeError: it reads a table of Arrow, whose positions are columns.
        ValueError: the data set, or one that it is made from, repeats, batches or cuts up, joins a
            data set with itself, makes elements of those before or of another data set, ends where
            a record says so, leaves places empty, or reads by other names than positions. Batches
            that are taken apart again are none.
    """
    waiting = [(data, 0)]
    while waiting:
        node, taken_apart = waiting.pop()
        if type(node).__module__.split(".")[0] == "pyarrow" and hasattr(node, "column_names"):
            raise TypeError(
                "Under [i] a table of Arrow has its column i, which holds a part of every record. "
                "Pass its columns: {name: table[name].to_numpy() for name in table.column_names}. "
                f"Received: {type(node).__name__}."
            )
        if node is not data and hasattr(node, "iloc"):
            raise ValueError(
                "A data set that reads a Series or DataFrame of pandas gets the row that is called "
                f"i, and not the one in place i. Give it an array. Received: {type(node).__name__}."
            )
        inputs = _inputs(node)
        if inputs is None:
            continue
        for step in _steps(node):
            if step == "unbatch":
                taken_apart += 1
            elif step == "batch" and taken_apart:
                taken_apart -= 1
            else:
                raise ValueError(
                    "Every element must be one record, and every record one element, for a sample "
                    f"to be what the ledger says. Received a data set with {type(node).__name__} "
                    "in it: leave out repeat, batch, window, flat_map, take_while, and Grain's "
                    "filter; fit goes over the data as often as it has to, and makes batches of "
                    "them."
                )
        if _meets_itself(node, inputs):
            raise ValueError(
                "Every element must be one record, and every record one element, for a sample to "
                f"be what the ledger says. Received a data set with {type(node).__name__} in it, "
                "two of whose inputs come from the same data set: a record may be in several "
                "elements. Write the parts as data sets of their own, from data that are split "
                "before."
            )
        waiting += [(each, taken_apart) for each in inputs]


def _inputs(node: Any) -> list[Any] | None:
    """Returns what a data set is made from; None where that is not known."""
    if isinstance(node, tf.data.Dataset):
        return list(node._inputs())
    parents = getattr(node, "_parents", None)  # Grain's.
    if not isinstance(parents, (list, tuple)):
        return None
    return [*parents, *([node._source] if hasattr(node, "_source") else [])]


def _steps(node: Any) -> Iterator[str]:
    """Yields what a data set does to the order of records, by the name of its class."""
    names = " ".join(kind.__name__.lower() for kind in type(node).__mro__)
    names = names.replace("windowshuffle", "shuffle")  # Grain's: it changes their order.
    # What tf.data reads from several files comes by flat_map, too.
    is_graph = isinstance(node, tf.data.Dataset)
    if is_graph:
        yield from _steps_of_functions(node, "flatmap" in names or "interleave" in names)
    # Grain's filter leaves None in the place of what it drops: that would be found in a sample.
    for step in (*_STEPS, *([] if is_graph else ["flatmap", "filter"])):
        if step in names:
            yield step
    if "unbatch" in names:
        yield "unbatch"
    elif "batch" in names:
        yield "batch"


def _steps_of_functions(node: tf.data.Dataset, makes_elements: bool) -> Iterator[str]:
    """Yields what the functions of a data set do to the order of records.

    Args:
        node: Of tf.data.
        makes_elements: Whether the elements are those of data sets that its functions make.
    """
    for graph in (wrapped.function.graph for wrapped in node._functions()):
        described = graph.as_graph_def()
        inner = [each.node_def for each in described.library.function]
        kinds = [op.op.lower() for op in itertools.chain(described.node, *inner)]
        kinds = [kind for kind in kinds if "dataset" in kind]
        # A part of a data set for each of its readers leaves every record where it is.
        is_part = any("shard" in kind for kind in kinds)
        if not is_part and any(given.dtype == tf.variant for given, _ in graph.captures):
            yield "another data set"
        if not makes_elements:
            continue
        for step in _STEPS:
            if any(step in kind for kind in kinds):
                yield step
        yield from ["unbatch" for kind in kinds if "unbatch" in kind]
        yield from ["batch" for kind in kinds if "batch" in kind and "unbatch" not in kind]


def _meets_itself(node: Any, inputs: list[Any]) -> bool:
    """Returns whether two inputs come from one data set, but for elements that are put together
    again: those in one place, where nothing has moved them on the way.
    """
    is_zip = _kind(node) in ("zip", "zipmap")
    for one, other in itertools.combinations(inputs, 2):
        together = _beneath(one, True) & _beneath(other, True) if is_zip else set()
        if _beneath(one, False, together) & _beneath(other, False, together):
            return True
    return False


def _beneath(node: Any, in_place: bool, but: Any = frozenset()) -> set[int]:
    """Returns names of the data sets that a data set is made from, itself included.

    Args:
        node: Of tf.data or Grain, or what it reads.
        in_place: Whether to go no further where elements are moved.
        but: Names of those at which to stop, which are left out.
    """
    found: set[int] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        # Of tf.data, what is put into another data set may be an object of its own.
        is_graph = isinstance(node, tf.data.Dataset)
        name = id(tf.data.experimental.to_variant(node) if is_graph else node)
        if name in found or name in but:
            continue
        found.add(name)
        if not in_place or _kind(node) in _IN_PLACE:
            waiting += _inputs(node) or []
    return found


def _kind(node: Any) -> str:
    return type(node).__name__.lower().strip("_").removesuffix("dataset")
