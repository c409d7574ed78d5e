"""Blocks: layers whose own code calls other layers and operations, run on the whole batch.

The code of a block is traced on a batch of unknown length. What it does between the calls of its
layers is looked at, operation by operation. If all of that is known to keep the records apart, and
the same happens with a batch of one, the block runs on the batch. Every layer in it then runs as
its own rule says. Otherwise the block runs record by record. A block may have no layers in it, and
it may have weights of its own (`own_weights`).
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.gradients.attached import flatten_with_attached
from tfdp.gradients.keras_internals import layers_in
from tfdp.gradients.mapping import holds_records
from tfdp.gradients.record_wise_operations import MixesError
from tfdp.gradients.region import Region
from tfdp.noise.attempts import attempt

# What the code of a block may raise where the number of records is unknown.
ERRORS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError)

# Makes variables read as other values: (variable, value) pairs.
Reading = Callable[[list[tuple[Any, tf.Tensor]]], contextlib.AbstractContextManager[None]]


class Trial(NamedTuple):
    """What a block did when it was tried out.

    Attributes:
        steps: As `Region.steps`.
        weights: Weights that its code reads itself: its own, and those of layers that it calls on
            constants.
        parts: Identities of these layers.
    """

    steps: list[Any]
    weights: list[Any]
    parts: frozenset[int]


class Blocks:
    """Which blocks of a model run on the batch.

    Attributes:
        reasons: Why a block runs record by record, by its identity.

    Args:
        reading: Makes variables read as other values.
    """

    def __init__(self, reading: Reading) -> None:
        self.reasons: dict[int, str] = {}
        self._reading = reading
        self._regions: list[Region] = []
        self._trying = False

    @property
    def trying(self) -> bool:
        """Whether a block is being tried out: layers in it then run as their own code says."""
        return self._trying

    @property
    def region(self) -> Region | None:
        """The innermost block that is running; None where there is none."""
        return self._regions[-1] if self._regions else None

    @contextlib.contextmanager
    def within(self, region: Region | None) -> Iterator[None]:
        """Makes calls of layers in the block of code calls in this region, or in none."""
        before, self._regions = self._regions, [] if region is None else [region]
        try:
            yield
        finally:
            self._regions = before

    def run(
        self,
        region: Region,
        weights: list[tuple[Any, tf.Tensor]],
        call: Callable[..., Any],
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Returns what a block returns whose operations a region looks at.

        Args:
            region: It has been given the block's arguments and the values of `weights`.
            weights: (variable, value) pairs that the block's own code reads.
            call: The block's call.
            args: Of the call.
            kwargs: Of the call.
        """
        with self.within(region), self._reading(weights):
            outputs = call(*args, **kwargs)
        region.finish(outputs)
        return outputs

    def tried(
        self,
        block: Any,
        call: Callable[..., Any],
        args: Any,
        kwargs: Any,
        value_of: Callable[[Any], tf.Tensor],
    ) -> Trial | None:
        """Returns what a call of a block does, if it is known to keep the records apart, and None
        if it is not.

        Args:
            block: A layer or operation without a rule.
            call: Its call, by which it is run.
            args: Of the call.
            kwargs: Of the call.
            value_of: Gives the value of a weight.
        """
        if id(block) in self.reasons:
            return None
        parts: dict[int, Any] = {}
        while True:
            weights = _distinct([*weights_of_its_own(block), *_weights(parts.values())])
            asked: list[Any] = []
            try:
                values = [value_of(v) for v in weights]
                steps = self._try(
                    call,
                    args,
                    kwargs,
                    list(zip(weights, values, strict=True)),
                    frozenset(parts),
                    asked,
                )
                return Trial(steps, weights, frozenset(parts))
            except (MixesError, *ERRORS) as error:
                if asked and id(asked[0]) not in parts:
                    parts[id(asked[0])] = asked[0]
                    continue
                self.reasons[id(block)] = in_words(error)
                return None

    def _try(
        self,
        call: Callable[..., Any],
        args: Any,
        kwargs: Any,
        weights: list[Any],
        parts: dict[int, Any],
        asked: list[Any],
    ) -> list[Any]:
        leaves, rebuild = flatten_with_attached((args, kwargs), _tensors_at((args, kwargs)))
        if not leaves or not all(map(holds_records, leaves)):
            raise MixesError("it is called on something without an axis of records")
        steps: list[list[Any]] = []
        for rows in (None, 1):

            def run(*tensors, rows=rows):
                new_args, new_kwargs = rebuild(tensors)
                values = [tf.identity(value) for _, value in weights]
                region = Region((new_args, new_kwargs), values, parts, checked=rows is None)
                pairs = [(v, value) for (v, _), value in zip(weights, values, strict=True)]
                try:
                    self.run(region, pairs, call, new_args, new_kwargs)
                finally:
                    asked.extend([] if region.asks_for is None else [region.asks_for])
                steps.append(region.steps)
                return tf.zeros([])

            specs = [tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype) for leaf in leaves]
            before, self._trying = self._trying, True
            try:
                with attempt():
                    tf.function(run, autograph=False).get_concrete_function(*specs)
            finally:
                self._trying = before
        if steps[0] != steps[1]:
            raise MixesError("it does something else with a batch of one")
        return steps[0]


def in_words(error: Exception) -> str:
    """Returns the first line of what an error says, without what Keras puts around it."""
    lines = [re.sub("\x1b[^m]*m", "", line).strip() for line in str(error).split("\n")]
    own = [line for line in lines if line and not line.startswith("Exception encountered when")]
    return own[0] if own else type(error).__name__


def _tensors_at(structure: Any) -> list[int]:
    return [i for i, leaf in enumerate(tf.nest.flatten(structure)) if tf.is_tensor(leaf)]


def _weights(layers: Any) -> list[Any]:
    return [v for layer in layers for v in layer.weights]


def _distinct(variables: list[Any]) -> list[Any]:
    return list({id(v): v for v in variables}.values())


def weights_of_its_own(block: Any) -> list[Any]:
    """Returns those of the weights of a block that no layer in it has."""
    weights = getattr(block, "weights", ())
    inside = {id(v) for v in _weights(layers_in(block))} if weights else set()
    return [v for v in weights if id(v) not in inside]
