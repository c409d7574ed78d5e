"""The data sets that samples come from: how they are gone through, and what they hold."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


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
        ValueError: the data set, or one that it is made from, repeats, batches or cuts up, or
            reads by other names than positions. Batches that are taken apart again are none.
    """
    waiting = [(data, 0)]
    while waiting:
        node, taken_apart = waiting.pop()
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
                    "in it: leave out repeat, batch, window and flat_map; fit goes over the data "
                    "as often as it has to, and makes batches of them."
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
    for step in ("repeat", "window", "group", *([] if is_graph else ["flatmap"])):
        if step in names:
            yield step
    if "unbatch" in names:
        yield "unbatch"
    elif "batch" in names:
        yield "batch"
