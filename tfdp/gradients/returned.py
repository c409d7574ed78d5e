"""What a call returns, in terms that do not depend on the number of records."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.gradients.attached import detach, noting_detached, tensors_of
from tfdp.gradients.mapping import holds_records


class Returned(NamedTuple):
    """What a call returned for a batch.

    Attributes:
        specs: Of every tensor, the number of the argument that it is, or (dtype, shape).
        rebuild: Makes what was returned of such tensors.
        like: The number of the first argument that holds records.
        detached: Where the call took away what was attached to an argument.
        are_records: Whether all that was returned are tensors that hold records.
    """

    specs: Sequence[int | tuple[tf.DType, tf.TensorShape]]
    rebuild: Callable[[Sequence[tf.Tensor]], Any]
    like: int | None
    detached: Collection[tuple[int, str | None]]
    are_records: bool

    @classmethod
    def by(cls, call: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, "Returned"]:
        """Returns what a call returns, twice: as it is, and what there is to know of it."""
        with noting_detached((args, kwargs)) as detached:
            outputs = call(*args, **kwargs)
        tensors, rebuild = tensors_of(outputs)
        arguments = tensors_of((args, kwargs))[0]
        # A layer may return what it is called on, as dropout at rate zero does, or attach it.
        place = {id(tensor): i for i, tensor in enumerate(arguments)}
        specs = [place.get(id(t), (t.dtype, t.shape)) for t in tensors]
        like = next((i for i, tensor in enumerate(arguments) if holds_records(tensor)), None)
        are_records = all(map(holds_records, [*tf.nest.flatten(outputs), *tensors]))
        return outputs, cls(specs, rebuild, like, detached, are_records)

    def again(self, args: Any, kwargs: Any) -> Any:
        """Returns tensors for what such a call returns that is given other arguments, in the graph
        that is being made: of as many rows as these have.
        """
        detach((args, kwargs), self.detached)
        arguments = tensors_of((args, kwargs))[0]
        # One row, or the rows of one record.
        rows = None if self.like is None else arguments[self.like].shape[0]
        return self.rebuild(
            [
                arguments[spec]
                if isinstance(spec, int)
                else tf.compat.v1.placeholder(spec[0], _of_rows(spec[1], rows))
                for spec in self.specs
            ]
        )


def _of_rows(shape: tf.TensorShape, rows: int | None) -> tf.TensorShape:
    """Returns the shape that a tensor has for so many rows, given that for any number of them."""
    return tf.TensorShape([rows, *shape[1:]]) if shape.rank and shape[0] is None else shape
