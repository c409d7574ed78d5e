"""Structures of tensors, with what Keras attaches to them."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp.gradients.keras_internals import ATTACHED, LOGITS, OF_LOGITS
from tfdp.gradients.mapping import holds_records


def flatten_with_attached(
    structure: Any, at: Sequence[int] | None = None
) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], Any]]:
    """Returns the tensors of a structure with those that Keras attached to them, and a function
    that makes the structure of others.

    Args:
        structure: Any structure.
        at: Which leaves to take; all by default. The others stay in the structure.
    """
    flat = tf.nest.flatten(structure)
    at = range(len(flat)) if at is None else at
    attached = [
        (i, name, tensor)
        for i in at
        for name in ATTACHED
        if (tensor := getattr(flat[i], name, None)) is not None
    ]

    def rebuild(tensors):
        values, made = list(flat), {}
        for i, tensor in zip(at, tensors[: len(at)], strict=True):
            # A new object, so that what is attached to it below does not show on the original; one
            # only where the same tensor is in several places.
            if id(flat[i]) not in made:
                made[id(flat[i])] = tf.identity(tensor)
            values[i] = made[id(flat[i])]
        for (i, name, of), tensor in zip(attached, tensors[len(at) :], strict=True):
            setattr(values[i], name, made.setdefault(id(of), tensor))
        return tf.nest.pack_sequence_as(structure, values)

    return [*(flat[i] for i in at), *(tensor for _, _, tensor in attached)], rebuild


def flatten_with_logits(
    structure: Any, at: Sequence[int] | None = None
) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], Any]]:
    """As `flatten_with_attached`, with logits in the place of probabilities that an operation of
    TensorFlow made of them. It makes them again: losses of Keras look for it.
    """
    flat, rebuild = flatten_with_attached(structure, at)
    leaves = tf.nest.flatten(structure)
    at = range(len(leaves)) if at is None else at
    operations = {i: _takes_logits(leaves[place]) for i, place in enumerate(at)}
    operations = {i: operation for i, operation in operations.items() if operation is not None}

    def rebuild_with_operations(tensors):
        leaves = tf.nest.flatten(rebuild(tensors))
        for i, operation in operations.items():
            made = OF_LOGITS[operation.type](tensors[i])
            copy_attached(leaves[at[i]], made)
            leaves[at[i]] = made
        return tf.nest.pack_sequence_as(structure, leaves)

    if not operations:
        return flat, rebuild
    of_logits = [operations[i].inputs[0] if i in operations else t for i, t in enumerate(flat)]
    return of_logits, rebuild_with_operations


def _takes_logits(leaf: Any) -> tf.Operation | None:
    """Returns the operation that made probabilities of logits that are not attached to them."""
    if not tf.is_symbolic_tensor(leaf) or getattr(leaf, LOGITS, None) is not None:
        return None
    return leaf.op if leaf.op.type in OF_LOGITS else None


def records_of(structure: Any) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], Any]]:
    """Returns the tensors in a structure that hold records, and a function that puts others in
    their places.
    """
    flat = tf.nest.flatten(structure)
    return flatten_with_attached(structure, [i for i, t in enumerate(flat) if holds_records(t)])


def tensors_of(structure: Any) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], Any]]:
    """Returns the tensors in a structure, and a function that puts others in their places. What is
    no tensor stays.
    """
    flat = tf.nest.flatten(structure)
    return flatten_with_attached(structure, [i for i, t in enumerate(flat) if tf.is_tensor(t)])


def with_values(structure: Any) -> Any:
    """Returns a structure with values in the place of its variables. What a variable is read as
    depends on the scope.
    """

    def value_of(leaf):
        return tf.convert_to_tensor(leaf) if isinstance(leaf, keras.Variable) else leaf

    return tf.nest.map_structure(value_of, structure)


def arguments_of(structure: Any) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], Any]]:
    """As `tensors_of`, of tensors of a graph: others are constants, and stay."""
    flat = tf.nest.flatten(structure)
    at = [i for i, t in enumerate(flat) if tf.is_symbolic_tensor(t)]
    return flatten_with_attached(structure, at)


def places_of(structure: Any) -> dict[tuple[int, str | None], tf.Tensor]:
    """Returns the tensors that `tensors_of` gives, in its order, by where they are: the number of
    a leaf, and the name under which Keras attached them to it, or None.
    """
    flat = tf.nest.flatten(structure)
    at = [i for i, t in enumerate(flat) if tf.is_tensor(t)]
    attached = {(i, name): getattr(flat[i], name, None) for i in at for name in ATTACHED}
    return {
        **{(i, None): flat[i] for i in at},
        **{place: tensor for place, tensor in attached.items() if tensor is not None},
    }


def with_logits(
    structure: Any,
) -> tuple[dict[Any, tf.Tensor], Callable[[Sequence[tf.Tensor]], Any]]:
    """Returns the tensors that `flatten_with_logits` gives for those in a structure, by where they
    are, as in `places_of`, and by what makes probabilities of them; and what rebuilds it.
    """
    places = places_of(structure)
    at = [i for i, name in places if name is None]
    tensors, rebuild = flatten_with_logits(structure, at)
    found = {
        (place, None if tensor is original else original.op.type): tensor
        for (place, original), tensor in zip(places.items(), tensors, strict=True)
    }
    return found, rebuild


@contextlib.contextmanager
def noting_detached(structure: Any) -> Iterator[set[tuple[int, str | None]]]:
    """Gives where something is no longer attached to a tensor of a structure after the block: an
    attention layer of Keras takes the masks of what it is called on away.
    """
    found: set[tuple[int, str | None]] = set()
    before = set(places_of(structure))
    yield found
    found |= before - set(places_of(structure))


def detach(structure: Any, places: Collection[tuple[int, str | None]]) -> None:
    """Takes away what is attached to tensors of a structure in some places."""
    flat = tf.nest.flatten(structure)
    for i, name in places:
        setattr(flat[i], name, None)


def attached_among(
    structure: Any, tensors: Sequence[tf.Tensor]
) -> dict[tuple[int, str | None], int]:
    """Returns where some tensors are attached to those of a structure, and which of them it is."""
    number = {id(tensor): i for i, tensor in enumerate(tensors)}
    return {
        place: number[id(tensor)]
        for place, tensor in places_of(structure).items()
        if place[1] is not None and id(tensor) in number
    }


def attach(
    structure: Any, places: Mapping[tuple[int, str | None], int], tensors: Sequence[tf.Tensor]
) -> None:
    """Attaches others of such tensors in the same places."""
    flat = tf.nest.flatten(structure)
    for (i, name), number in places.items():
        setattr(flat[i], name, tensors[number])


def copy_attached(source: tf.Tensor, target: tf.Tensor) -> None:
    """Attaches to a tensor what Keras attached to another."""
    for name in ATTACHED:
        if getattr(source, name, None) is not None:
            setattr(target, name, getattr(source, name))
