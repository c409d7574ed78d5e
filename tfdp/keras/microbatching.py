"""How the examples of a batch become records."""

import contextlib
import logging
import warnings
from collections.abc import Iterator

import tensorflow as tf

from tfdp.events.arguments import positive_integer
from tfdp.gradients.microbatches import assign_microbatches, consecutive_microbatches
from tfdp.keras.errors import NotPrivateError

_logger = logging.getLogger("tfdp")


class Microbatching:
    """Which examples make a record, and how far one privacy unit can move a sum of records.

    Args:
        num_microbatches: M, or None where each example is a record.
        privacy_unit: "example", "microbatch", or "user": each record is all that one user gives.

    Raises:
        TypeError: `num_microbatches` is not an integer.
        ValueError: an argument is out of range, or microbatches are the unit and there are none, or
            users are and there are some.
    """

    def __init__(self, num_microbatches: int | None, privacy_unit: str):
        if privacy_unit not in ("example", "microbatch", "user"):
            raise ValueError(
                "privacy_unit must be 'example', 'microbatch' or 'user'. Received: "
                f"{privacy_unit=}."
            )
        if privacy_unit == "user" and num_microbatches is not None:
            raise ValueError(
                "With privacy_unit='user' each record is all of one user's: leave num_microbatches "
                f"out. Received: {num_microbatches=}."
            )
        if num_microbatches is not None:
            num_microbatches = positive_integer("num_microbatches", num_microbatches)
        elif privacy_unit == "microbatch":
            raise ValueError("privacy_unit='microbatch' needs num_microbatches.")
        self.num_microbatches = num_microbatches
        self.privacy_unit = privacy_unit
        self._examples_each = 1.0 if num_microbatches is None else None  # None: not known.

    def set_batch_size(self, batch_size: float | None) -> bool:
        """Tells how many examples a batch is expected to hold; None where that is not known. Logs
        what microbatches of several examples cost.

        Returns:
            Whether the way examples become records changed.

        Raises:
            ValueError: batches of this size cannot be cut into `num_microbatches` units.
        """
        if self.num_microbatches is None:
            return False
        before = self._examples_each
        examples_each = None if batch_size is None else batch_size / self.num_microbatches
        if self.privacy_unit == "microbatch" and (examples_each is None or examples_each % 1):
            raise ValueError(
                "privacy_unit='microbatch' needs batches of a known size that num_microbatches "
                f"divides. Received: batch_size={batch_size}, "
                f"num_microbatches={self.num_microbatches}."
            )
        self._examples_each = examples_each
        if examples_each not in (None, before) and self.sensitivity_factor == 2:
            _logger.warning(
                "Batches of %g examples are %d microbatches, which examples may share. One "
                "example moves the sum by up to twice the clip, and epsilon is that of half the "
                "noise multiplier. Leave num_microbatches out, and each example is a record.",
                batch_size,
                self.num_microbatches,
            )
        return before != examples_each

    def notice_rows(self, rows: int | None) -> bool:
        """Makes each example a record, if batches of unknown size turn out to hold as many as there
        are microbatches: that is how TensorFlow Privacy is told so.

        Args:
            rows: Examples in a batch; None where a graph does not know.

        Returns:
            As `set_batch_size`.
        """
        if self._examples_each is not None or self.privacy_unit == "microbatch":
            return False
        if rows is None:
            warnings.warn(
                f"How many examples a batch holds is not known, so each joins one of "
                f"{self.num_microbatches} microbatches at random, and the sum moves by up to twice "
                "the clip. If each is to be a record, leave num_microbatches out, or say so: "
                f"optimizer.set_batch_size({self.num_microbatches}).",
                stacklevel=2,
            )
            return False
        if rows != self.num_microbatches:
            return False
        self._examples_each = 1.0
        return True

    @property
    def examples_each(self) -> float | None:
        """Examples that a microbatch is expected to hold; None where that is not known."""
        return self._examples_each

    def check_units_of(self, examples_each: float | None) -> None:
        """Refuses a step whose units are of another size than units are now. Where examples are the
        unit, a step that was traced before goes on to charge for the records that it makes.

        Args:
            examples_each: When the step was traced.

        Raises:
            NotPrivateError: they are.
        """
        if self.privacy_unit == "microbatch" and examples_each != self._examples_each:
            raise NotPrivateError(
                "This step was traced for units of another size: a unit as it is now would be in "
                "several of its records. Trace it again after set_batch_size: a new tf.function. "
                f"Received: {examples_each} examples of a unit then, {self._examples_each} now."
            )

    @contextlib.contextmanager
    def of_size(self, examples_each: float | None) -> Iterator[None]:
        """Makes microbatches hold so many examples meanwhile, and what they did before at the end.

        Args:
            examples_each: From `examples_each`.
        """
        before, self._examples_each = self._examples_each, examples_each
        try:
            yield
        finally:
            self._examples_each = before

    @property
    def sensitivity_factor(self) -> int:
        """How often the query's bound one privacy unit can move the sum.

        One example among others in a microbatch moves a clipped mean from one vector within the
        bound to another.
        """
        return 1 if self._examples_each == 1 or self.privacy_unit == "microbatch" else 2

    @property
    def holds_several(self) -> bool:
        """Whether a record may hold several examples, also of several shards of a sample."""
        return self._examples_each != 1

    def assign(
        self, num_examples: tf.Tensor, microbatch_ids: tf.Tensor | None
    ) -> tuple[tf.Tensor | None, int | tf.Tensor | None]:
        """Returns (microbatch of every example, number of microbatches); Nones: each is a record.

        Args:
            num_examples: Rows of the batch, padding included.
            microbatch_ids: The caller's choice, in place of a draw.

        Raises:
            ValueError: ids were given where each example is a record, or are needed.
        """
        if self._examples_each == 1:
            if microbatch_ids is not None:
                raise ValueError(
                    "microbatch_ids were given, but each example is a record of its own."
                )
            return None, None
        if microbatch_ids is not None:
            return tf.cast(microbatch_ids, tf.int32), self.num_microbatches
        if self.privacy_unit == "example":
            return assign_microbatches(num_examples, self.num_microbatches), self.num_microbatches
        if self._examples_each is None:
            raise ValueError(
                "privacy_unit='microbatch' needs microbatch_ids, or the size of a batch: call "
                "set_batch_size first."
            )
        # A batch consists of whole units, but may hold more or fewer of them than expected.
        size = int(self._examples_each)
        return consecutive_microbatches(num_examples, size), -(-num_examples // size)
