"""Blocks: layers whose own code calls other layers and operations, run on the whole batch.

The code of a block is traced on a batch of unknown length. What it does between the calls of its
layers is looked at, operation by operation. If all of that is known to keep the records apart, and
the same happens with a batch of one, the block runs on the batch. Every layer in it then runs as
its own rule says. Otherwise the block runs record by record. A block may have no layers in it, and
it may have weights of its own (`own_weights`) or draw random numbers (`draws`), not both.

A block that is like one that was tried out is not tried out again. Its operations are looked at
nevertheless when it runs on the batch. While a block is tried out, the layers in it matter by what
they return only: of blocks, that is known from their own trials, and of others from the first one
that is like them.
"""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp.gradients.attached import arguments_of, flatten_with_attached, with_values
from tfdp.gradients.draws import draws_in
from tfdp.gradients.keras_internals import layers_in
from tfdp.gradients.mapping import holds_records
from tfdp.gradients.record_wise_operations import MixesError
from tfdp.gradients.region import Region
from tfdp.gradients.returned import Returned
from tfdp.gradients.steps import Steps
from tfdp.noise.attempts import attempt

# What the code of a block may raise where the number of records is unknown.
ERRORS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError)

# Makes variables read as other values: (variable, value) pairs.
Reading = Callable[[list[tuple[Any, tf.Tensor]]], contextlib.AbstractContextManager[None]]


class Trial(NamedTuple):
    """What a block did when it was tried out.

    Attributes:
        steps: The operations and calls of layers.
        weights: Weights that its code reads itself: its own, those of layers that it calls on
            constants, and others of layers in it.
        parts: Identities of these layers.
        returned: What it returned for a batch.
    """

    steps: Steps
    weights: list[Any]
    parts: frozenset[int]
    returned: Returned


class Blocks:
    """Which blocks of a model run on the batch.

    Attributes:
        reasons: Why a block runs record by record, by its identity.

    Args:
        reading: Makes variables read as other values.
        secret: The seed of a batch that draws as a whole; None where nothing draws.
        aliases: Tensors as which weights read outside of the layers that own them.
    """

    def __init__(
        self,
        reading: Reading,
        secret: tf.Tensor | None = None,
        aliases: Sequence[tuple[Any, tf.Tensor]] = (),
    ) -> None:
        self.reasons: dict[int, str] = {}
        self._reading, self._secret = reading, secret
        self._aliases = {id(variable): alias for variable, alias in aliases}
        self._tried: dict[Any, tuple[Any, Trial]] = {}  # By what blocks that are alike share.
        self._returned: dict[str, Returned] = {}  # By what calls of layers that are alike share.
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
        with self.within(region), self._reading(weights), region.reading():
            outputs = with_values(call(*args, **kwargs))
        return region.finish(outputs)

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
        likeness = _likeness(block, call, args, kwargs)
        if likeness in self._tried:
            trial = _carried_over(*self._tried[likeness], block)
            if trial is not None:
                return trial
        parts: dict[int, Any] = {}
        borrowed: list[Any] = []
        while True:
            own = weights_of_its_own(block)
            weights = _distinct([*own, *_weights(parts.values()), *borrowed])
            asked: list[Any] = []
            reads: list[Any] = []
            try:
                values = [value_of(v) for v in weights]
                region, returned = self._try(
                    call,
                    args,
                    kwargs,
                    list(zip(weights, values, strict=True)),
                    frozenset(parts),
                    asked,
                    reads,
                    self._lent(block, weights),
                )
                trial = Trial(region.steps, weights, frozenset(parts), returned)
                if likeness is not None and not parts and not borrowed:
                    self._tried.setdefault(likeness, (block, trial))
                return trial
            except (MixesError, *ERRORS) as error:
                if asked and id(asked[0]) not in parts:
                    parts[id(asked[0])] = asked[0]
                    continue
                if reads:
                    borrowed.append(reads[0])
                    continue
                known = isinstance(error, MixesError)
                where = "" if known else "its code fails where the number of records is not known: "
                self.reasons[id(block)] = f"{where}{in_words(error)}"
                return None

    def _lent(self, block: Any, known: Sequence[Any]) -> dict[int, Any]:
        """Returns weights of layers in a block that its own code may read, by the identity of what
        they read as. Those that are frozen are none.
        """
        known = {id(v) for v in known}
        others = [v for v in getattr(block, "weights", ()) if id(v) not in known]
        return {id(self._aliases[id(v)]): v for v in others if id(v) in self._aliases}

    def _try(
        self,
        call: Callable[..., Any],
        args: Any,
        kwargs: Any,
        weights: list[Any],
        parts: dict[int, Any],
        asked: list[Any],
        reads: list[Any],
        lent: dict[int, Any],
    ) -> tuple[Region, Returned]:
        leaves, rebuild = arguments_of((args, kwargs))
        if not leaves or not all(map(holds_records, leaves)):
            raise MixesError("it is called on something without an axis of records")
        regions: list[Region] = []
        whole: list[Returned] = []
        layers = _Layers(self._returned)
        for rows in (None, 1):

            def run(*tensors, rows=rows):
                new_args, new_kwargs = rebuild(tensors)
                values = [tf.identity(value) for _, value in weights]
                runner = layers.note if rows is None else layers.give_back
                region = Region(
                    (new_args, new_kwargs),
                    values,
                    parts,
                    checked=rows is None,
                    runner=runner,
                    secret=self._secret,
                    lent=lent,
                )
                pairs = [(v, value) for (v, _), value in zip(weights, values, strict=True)]
                try:
                    whole.append(
                        Returned.by(
                            lambda *args, **kwargs: self.run(region, pairs, call, args, kwargs),
                            new_args,
                            new_kwargs,
                        )[1]
                    )
                finally:
                    asked.extend([] if region.asks_for is None else [region.asks_for])
                    reads.extend([] if region.borrows is None else [region.borrows])
                regions.append(region)
                return tf.zeros([])

            specs = [tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype) for leaf in leaves]
            before, self._trying = self._trying, True
            try:
                with attempt():
                    tf.function(run, autograph=False).get_concrete_function(*specs)
            finally:
                self._trying = before
        if not regions[0].steps.same_as(regions[1].steps):
            raise MixesError("it does something else with a batch of one")
        # For the gradients of its weights the block's code is run again, on single records.
        if weights and draws_in(regions[0].steps.done):
            raise MixesError("it draws random numbers, and has weights of its own")
        if weights and regions[0].parts_records:
            raise MixesError("it parts records into rows, and has weights of its own")
        return regions[0], whole[0]


class _Layers:
    """The layers in a block. What they return for a batch is given back for a batch of one: what
    they do with one is not the block's own doing, and is looked at where they run.

    Args:
        known: What layers return, by what calls that are alike share. Others are added.
    """

    def __init__(self, known: dict[str, Returned]) -> None:
        self._known = known
        self._returned: list[Returned] = []
        self._given = 0

    def note(self, layer: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        # Of a function, `call` is another one each time.
        is_known = isinstance(layer, keras.Operation)
        likeness = _likeness(layer, call, args, kwargs) if is_known else None
        if likeness in self._known:
            self._returned.append(self._known[likeness])
            return self._returned[-1].again(args, kwargs)
        outputs, returned = Returned.by(call, args, kwargs)
        if likeness is not None and returned.are_records:
            self._known[likeness] = returned
        self._returned.append(returned)
        return outputs

    def give_back(self, layer: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._given == len(self._returned):
            raise MixesError("it calls more layers with a batch of one")
        self._given += 1
        return self._returned[self._given - 1].again(args, kwargs)


def _likeness(block: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> str | None:
    """Returns what calls of blocks share that do the same, by all that is known beforehand; None
    where that cannot be told.
    """
    configuration: dict[str, Any] = {"": id(call)}
    try:
        if isinstance(block, keras.Operation):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Of lambdas Keras says what loading them takes.
                configuration = block.get_config()
    except ERRORS:  # It has arguments that Keras cannot put down.
        return None
    # Numbers may have been set after the block was made.
    attributes = getattr(block, "__dict__", {})  # Of functions in a layer there are none.
    numbers = {name: value for name, value in attributes.items() if isinstance(value, int | float)}
    configuration = {name: value for name, value in configuration.items() if name != "name"}
    weights = [tuple(variable.shape) for variable in getattr(block, "weights", ())]
    leaves, _ = flatten_with_attached((args, kwargs))
    called_with = [
        (leaf.dtype, tuple(leaf.shape)) if tf.is_tensor(leaf) else leaf for leaf in leaves
    ]
    # What is called on one tensor twice is not like what is called on two.
    first = {id(leaf): i for i, leaf in reversed(list(enumerate(leaves))) if tf.is_tensor(leaf)}
    same = [first.get(id(leaf)) for leaf in leaves]
    layout = tf.nest.map_structure(lambda leaf: None, (args, kwargs))
    return repr((type(block), configuration, numbers, weights, called_with, same, layout))


def _carried_over(like: Any, trial: Trial, block: Any) -> Trial | None:
    """Returns the trial of one block as that of another, whose layers stand in the same places;
    None where they do not.
    """
    of_like, of_block = (
        layers_in(one, deep=True) if isinstance(one, keras.Layer) else [] for one in (like, block)
    )
    if [type(one) for one in of_like] != [type(one) for one in of_block]:
        return None
    weights = weights_of_its_own(block)
    if [(v.shape, v.dtype) for v in trial.weights] != [(v.shape, v.dtype) for v in weights]:
        return None
    ids = {id(one): id(other) for one, other in zip(of_like, of_block, strict=True)}
    steps = trial.steps.of_other_layers(ids)
    return None if steps is None else Trial(steps, weights, frozenset(), trial.returned)


def in_words(error: Exception) -> str:
    """Returns the first line of what an error says, without what Keras puts around it."""
    lines = [re.sub("\x1b[^m]*m", "", line).strip() for line in str(error).split("\n")]
    own = [line for line in lines if line and not line.startswith("Exception encountered when")]
    return own[0] if own else type(error).__name__


def _weights(layers: Any) -> list[Any]:
    return [v for layer in layers for v in layer.weights]


def _distinct(variables: list[Any]) -> list[Any]:
    return list({id(v): v for v in variables}.values())


def weights_of_its_own(block: Any) -> list[Any]:
    """Returns those of the weights of a block that no layer in it has."""
    weights = getattr(block, "weights", ())
    inside = {id(v) for v in _weights(layers_in(block))} if weights else set()
    return [v for v in weights if id(v) not in inside]
