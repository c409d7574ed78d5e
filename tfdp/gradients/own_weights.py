"""Weights of a block's own: their gradients by record.

On the batch, such weights are constants. Their gradients follow from those at what the block's code
makes of them: what it gives to its layers, and what it returns. For these, the code is run once
more, on single records, with what the layers returned in the place of the layers.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdp.gradients.attached import (
    arguments_of,
    attach,
    attached_among,
    detach,
    noting_detached,
    tensors_of,
)
from tfdp.gradients.blocks import Trial
from tfdp.gradients.dependence import which_reach
from tfdp.gradients.mapping import map_records
from tfdp.gradients.record_wise_operations import MixesError
from tfdp.gradients.recording import Recording, Tap
from tfdp.gradients.region import Region
from tfdp.gradients.tables import gradient_of_record


class OwnWeights:
    """One call of a block that has weights of its own.

    Args:
        recording: Of the model.
        trial: What the block did when it was tried out.
        call: The block's call.
        args: Of the call.
        kwargs: Of the call.
    """

    def __init__(
        self, recording: Recording, trial: Trial, call: Callable[..., Any], args: Any, kwargs: Any
    ):
        self._recording, self._trial, self._call = recording, trial, call
        # Layers may take what Keras attaches to the arguments away.
        self._arguments, self._with_arguments = arguments_of((args, kwargs))
        self._taps: list[Tap] = []
        self._returned: list[Any] = []
        self._attached: list[Any] = []
        self._detached: list[Any] = []

    def run_layer(self, layer: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a layer in the block on what gradients are looked for at.

        Args:
            layer: In the block.
            call: Its call.
            args: Of the call.
            kwargs: Of the call.
        """
        given = args, kwargs
        args, kwargs = self._tapped(given)
        before, taps = tensors_of(given)[0], tensors_of((args, kwargs))[0]
        # To the layer, these weights are somebody else's, and a use of them is noticed.
        with self._recording.values(self._recording.aliases_of(self._trial.weights)):
            with noting_detached((args, kwargs)) as detached:
                outputs = call(*args, **kwargs)
        # Logits that it attaches are what it was given, as when the block was tried out.
        attached = attached_among(outputs, taps)
        attach(outputs, attached, before)
        self._attached.append(attached)
        detach(given, detached)
        # Without the masks that Keras attaches to them next.
        self._returned.append(arguments_of(outputs))
        self._detached.append(detached)
        return outputs

    def _tapped(self, structure: Any) -> Any:
        leaves, rebuild = tensors_of(structure)
        taps: dict[int, Tap] = {}
        for leaf in leaves:
            if leaf.dtype.is_floating and id(leaf) not in taps:
                taps[id(leaf)] = self._recording.watch(leaf)
        self._taps.extend(taps.values())
        return rebuild([taps[id(t)].tensor if id(t) in taps else t for t in leaves])

    def finish(self, outputs: Any) -> Any:
        """Returns what the block returns, at which gradients are looked for, and says how those of
        its weights follow.
        """
        outputs = self._tapped(outputs)
        wanted = self._recording.wanted
        weights = [v for v in self._trial.weights if id(v) in wanted]
        arguments = self._arguments
        leaves = [*arguments, *(tensor for tensors, _ in self._returned for tensor in tensors)]
        tensors = [tap.tensor for tap in self._taps]
        # Which weights something depends on, and at which taps.
        uses: dict[int, list[int]] = {}

        def one(record):
            args, kwargs = self._with_arguments(record[: len(arguments)])
            rest = iter(record[len(arguments) : len(leaves)])
            returned = [
                rebuild([next(rest) for _ in tensors]) for tensors, rebuild in self._returned
            ]
            at_results = record[len(leaves) :]
            values = [tf.identity(self._recording.value_of(v)) for v in self._trial.weights]
            of = [t for v, t in zip(self._trial.weights, values, strict=True) if id(v) in wanted]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(of)
                results = self._again(args, kwargs, returned, values)
            found = tape.gradient(results, of, output_gradients=at_results)
            # One pass for all taps: a pass for each would go back through all that is before it.
            taps_in = which_reach(tf.compat.v1.get_default_graph(), at_results)
            for i, gradient in enumerate(found):
                # One that is zero whatever comes after, as that of a sign, depends on no tap.
                of_all = [] if gradient is None else list(range(len(at_results)))
                uses[i] = of_all and (taps_in(gradient) or of_all)
            return [
                tf.zeros_like(value) if g is None else gradient_of_record(g, value.shape)
                for g, value in zip(found, of, strict=True)
            ]

        with self._recording.unseen():
            gradients = map_records(one, [*leaves, *tensors])[0]
        self._recording.add_joint(
            self._taps,
            [(v, uses[i]) for i, v in enumerate(weights)],
            lambda at_taps: gradients(*leaves, *at_taps),
        )
        return outputs

    def _again(self, args: Any, kwargs: Any, returned: Any, values: list[tf.Tensor]) -> list[Any]:
        """Returns what the block gives to its layers, and what it returns, for one record."""
        results: list[Any] = []
        given: list[Any] = []

        def note(structure):
            smooth = [t for t in tensors_of(structure)[0] if t.dtype.is_floating]
            results.extend({id(t): t for t in smooth}.values())

        def give_back(layer, call, layer_args, layer_kwargs):
            note((layer_args, layer_kwargs))
            if len(given) == len(returned):
                raise MixesError("it calls more layers for one record")
            number, arguments = len(given), tensors_of((layer_args, layer_kwargs))[0]
            attach(returned[number], self._attached[number], arguments)
            detach((layer_args, layer_kwargs), self._detached[number])
            given.append(layer)
            return returned[number]

        trial, blocks = self._trial, self._recording.blocks
        region = Region((args, kwargs), values, trial.parts, checked=False, runner=give_back)
        pairs = list(zip(trial.weights, values, strict=True))
        note(blocks.run(region, pairs, self._call, args, kwargs))
        if not region.steps.same_as(trial.steps):
            raise MixesError("its operations are others for one record")
        return results
