"""How `fit` makes records of rows: of several rows of a user or microbatch, of views of a row."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.events.arguments import positive_integer
from tfdp.gradients import SideEffectError, draw_seeds
from tfdp.gradients.mapping import records_in_turn
from tfdp.gradients.record_scope import RecordScope, Seeds, with_seeds
from tfdp.keras.errors import NotPrivateError
from tfdp.sampling import PaddedBatch

# From the inputs of one example, and int64 [2], to inputs of the same shapes and types.
Augment = Callable[[Any, tf.Tensor], Any]


class RecordsOfFit(NamedTuple):
    """What is clipped once.

    Attributes:
        max_examples_per_user: Rows of a user in a batch; None where rows are records.
        user_gradient: "mean" or "sum" of the gradients of a user's rows.
        views: How often each row is seen in a step, each time with random numbers of its own. The
            gradient of a row is the mean over its views (De et al. 2022, Unlocking high-accuracy
            differentially private image classification through scale, arXiv:2204.13650, sec. 3.2).
        augment: What makes a view of an example; None where only the model draws.
        examples_per_microbatch: As `DPOptimizer` has it.
    """

    max_examples_per_user: int | None = None
    user_gradient: str = "mean"
    views: int = 1
    augment: Augment | None = None
    examples_per_microbatch: float | None = 1.0

    def of_batch(self, data: PaddedBatch) -> tuple[PaddedBatch, int | None]:
        """Returns (batch of rows with a mask, how many consecutive rows are a record); None where
        each row is one.

        Args:
            data: As it was drawn; of users, rows have two axes.

        Raises:
            NotPrivateError: how many rows a user has is not known to the graph.
            ValueError: `augment` returned something else than inputs of the model.
        """
        together = rows_of_user(data.mask)
        if together is not None:
            data = tf.nest.map_structure(_one_axis_less, data)
        if data.mask is None:
            first = next(leaf for leaf in tf.nest.flatten(data.x) if leaf is not None)
            data = data._replace(mask=tf.ones(tf.shape(first)[:1], tf.bool))
        if self.views > 1:
            data = tf.nest.map_structure(self._repeated, data)
            together = self.views * (together or 1)
        if self.augment is not None:
            data = data._replace(x=_augmented(self.augment, data.x, tf.size(data.mask)))
        return data, together

    def _repeated(self, part: tf.Tensor | None) -> tf.Tensor | None:
        return None if part is None else tf.repeat(part, self.views, axis=0)


def records_of_fit(
    max_examples_per_user: int | None, user_gradient: str, views: Any, augment: Any
) -> RecordsOfFit:
    """Returns how records are made, from the arguments of `fit`.

    Args:
        max_examples_per_user: As in `fit`.
        user_gradient: As in `fit`.
        views: As in `fit`.
        augment: As in `fit`.

    Raises:
        TypeError: `views` is not an integer, or `augment` cannot be called.
        ValueError: `views` is below one, or the sum over a user's rows is asked for: each would
            count as often as it is seen.
    """
    views = positive_integer("views", views)
    if augment is not None and not callable(augment):
        raise TypeError(
            "augment must be a function of the inputs of one example and a seed. Received: "
            f"augment={augment!r}."
        )
    if views > 1 and user_gradient != "mean":
        raise ValueError(
            "Each row of a user would be added up as often as it is seen. Use user_gradient='mean' "
            f"with views. Received: views={views}, user_gradient={user_gradient!r}."
        )
    return RecordsOfFit(max_examples_per_user, user_gradient, views, augment)


def check_records(
    records: RecordsOfFit, num_microbatches: int | None, physical_batch_size: int | None
) -> None:
    """Refuses records that the optimizer cannot make, in the words of `fit`.

    Args:
        records: As `fit` makes them.
        num_microbatches: Of the optimizer.
        physical_batch_size: Likewise.

    Raises:
        ValueError: says which argument to leave out or to change.
    """
    rows = records.views * (records.max_examples_per_user or 1)
    if records.views > 1 and num_microbatches is not None:
        raise ValueError(
            "The views of a row are one record, and so are the rows of a microbatch. Leave views, "
            f"or num_microbatches of the optimizer, out. Received: views={records.views}, "
            f"num_microbatches={num_microbatches}."
        )
    if physical_batch_size is not None and physical_batch_size < rows:
        raise ValueError(
            "All rows and views of a record are in memory at once: physical_batch_size of the "
            f"optimizer must be at least views times max_examples_per_user, {rows}. Received: "
            f"physical_batch_size={physical_batch_size}."
        )


def rows_of_user(mask: tf.Tensor | None) -> int | None:
    """Returns how many rows of a batch each user has, by its mask; None where rows are records.

    Raises:
        NotPrivateError: the graph does not know it.
    """
    if mask is None or mask.shape.rank == 1:
        return None
    if mask.shape.rank != 2 or mask.shape[1] is None:
        raise NotPrivateError(
            "A step must know how many rows of a batch are one user's. Received a mask of shape "
            f"{mask.shape}."
        )
    return mask.shape[1]


def _one_axis_less(part: tf.Tensor | None) -> tf.Tensor | None:
    """Returns [users * rows of each, ...] from [users, rows of each, ...]."""
    return None if part is None else tf.reshape(part, [-1, *part.shape[2:]])


def _augmented(augment: Augment, x: Any, rows: tf.Tensor) -> Any:
    """Returns a view of every row, which sees no other row and leaves nothing behind.

    Raises:
        NotPrivateError: `augment` does more than to compute a view, or draws what rows share.
        ValueError: It returned something else than inputs of the model.
    """
    inputs, seeds = tf.nest.flatten(x), draw_seeds(rows)

    # What layers draw must not be what is drawn from the seed that `augment` is given.
    def views(seeds_of_layers):
        drawn = [] if seeds_of_layers is None else [seeds_of_layers]

        def view(row):
            *inputs, seed = (leaf[0] for leaf in row[: len(row) - len(drawn)])
            example = tf.nest.pack_sequence_as(x, inputs)
            with RecordScope(Seeds(row[-1][0] if drawn else None)):
                made = augment(example, seed)
            tf.nest.assert_same_structure(example, made)
            return tf.nest.map_structure(_like, made, example)

        leaves = [*inputs, seeds, *drawn]
        call, _ = records_in_turn(view, leaves, leaves[0].shape[0])
        return call(*leaves)

    try:
        return with_seeds(views, rows)
    except SideEffectError as error:
        raise NotPrivateError(
            f"augment may only compute a view of one example, from its inputs and its seed. {error}"
        ) from error


def _like(made: Any, given: tf.Tensor) -> tf.Tensor:
    made = tf.convert_to_tensor(made)
    if made.dtype != given.dtype or not given.shape.is_compatible_with(made.shape):
        raise ValueError(
            "augment must return inputs of the shapes and types that it is given. Received: "
            f"{made.dtype.name} {made.shape} for {given.dtype.name} {given.shape}."
        )
    return tf.ensure_shape(made, given.shape)
