"""What `fit` trains on: samples that tfdp draws from arrays, or batches of a data set."""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdp import sampling as policies
from tfdp.events.arguments import positive_integer
from tfdp.keras import distributed_data, inputs
from tfdp.keras.class_weights import with_class_weights
from tfdp.keras.data import is_dataset, length, peek, prepare_arrays
from tfdp.keras.distributed_data import Raised
from tfdp.keras.optimizer import DPOptimizer
from tfdp.keras.small_samples import SmallSamples
from tfdp.sampling import SamplingPolicy, Source, Users


class FitData(NamedTuple):
    """What `fit` trains on.

    Attributes:
        arguments: For Keras' `fit`: the data set, steps of an epoch, validation data.
        policy: The policy by which tfdp draws samples, or that was declared for them.
        drawn: Whether tfdp draws them.
        batch_size: Examples that a batch is expected to hold; None where that is not known.
        example: (x, y, sample_weight) of one example, whose values do not matter.
        raised: Has what was raised while samples were drawn ahead.
        samples: Those that are drawn between the steps, in place of the data set's.
        goes_on: Whether declared samples go on at the end of an epoch, or begin anew; None where
            that is not known.
    """

    arguments: dict[str, Any]
    policy: SamplingPolicy
    drawn: bool
    batch_size: float | None
    example: tuple[Any, Any, Any]
    raised: Raised
    samples: SmallSamples | None = None
    goes_on: bool | None = None


def prepare(
    arguments: dict[str, Any],
    policy: SamplingPolicy | None,
    optimizer: DPOptimizer,
    strategy: tf.distribute.Strategy,
    is_compiled: bool,
    between_steps: bool,
) -> FitData:
    """Returns what `fit` trains on.

    Args:
        arguments: Those of `fit` that are about data.
        policy: As given to `fit`.
        optimizer: Whose records the examples become.
        strategy: Whose replicas take the steps.
        is_compiled: Whether XLA compiles the step, anew for each shape.
        between_steps: Whether Python runs between every two steps, and can draw samples there.

    Raises:
        TypeError: `constant_batch_size` is no bool.
        ValueError: the data are empty or of different lengths, or do not fit the policy.
        NotPrivateError: replicas cannot be given these data exactly.
    """
    arguments = dict(arguments)
    users = _users(arguments, optimizer)
    constant_size = _constant_size(arguments, optimizer, is_compiled)
    if is_dataset(arguments["x"]):
        return _of_dataset(arguments, policy, optimizer, strategy)
    data = _of_arrays(arguments, policy, optimizer, strategy, users, constant_size, between_steps)
    if users is not None:
        optimizer.knows_ids = True
    return data


def _constant_size(arguments: dict[str, Any], optimizer: DPOptimizer, is_compiled: bool) -> bool:
    """Returns whether all samples are padded to one size, and takes what was asked for out of the
    arguments.
    """
    asked = arguments.pop("constant_batch_size")
    if asked is not None and not isinstance(asked, bool):
        raise TypeError(
            f"constant_batch_size must be a bool. Received: constant_batch_size={asked!r}."
        )
    if asked is not None and is_dataset(arguments["x"]):
        raise ValueError(
            "constant_batch_size is about samples that fit draws from arrays. A data set has the "
            "batches that it has: leave constant_batch_size out."
        )
    if optimizer.num_microbatches is None:
        return is_compiled if asked is None else asked
    # The places of microbatches are drawn among all rows, so their number must not follow that of
    # the units: one unit more would move others to other microbatches.
    if asked is False:
        raise ValueError(
            "Microbatches need samples that are padded to one size: leave constant_batch_size out. "
            f"Received: constant_batch_size=False, num_microbatches={optimizer.num_microbatches}."
        )
    return True


def _of_dataset(arguments, policy, optimizer, strategy):
    distributed_data.check_dataset(strategy, arguments["x"])
    inputs.check_beside_dataset(arguments)
    if optimizer.privacy_unit == "microbatch":
        raise ValueError(
            "With privacy_unit='microbatch', `fit` must know which examples of a data set come "
            "and go together. Pass arrays."
        )
    if policy is None:
        warnings.warn(
            "How this data set samples its records is unknown to tfdp, so no amplification is "
            "granted. Pass arrays, or tfdp.sampling.Source(tfdp.sampling.memory_map(dataset, "
            "folder)) of a data set of single examples, from which fit draws; or declare it: "
            "fit(..., sampling=tfdp.sampling.Shuffled(batch_size=..., population_size=...)).",
            stacklevel=5,
        )
        policy = policies.Unknown()
    if policy.is_ordered:
        raise ValueError(
            f"{type(policy).__name__} must know which part of the data a step is about, also where "
            "an epoch ends early and where a run goes on. Pass arrays, from which fit draws in "
            f"order. Received: x={type(arguments['x']).__name__}."
        )
    _check_passes(policy, arguments["steps_per_epoch"])
    class_weight = arguments.pop("class_weight")
    if class_weight is not None:
        arguments["x"] = with_class_weights(arguments["x"], class_weight)
    size, microbatches = policy.expected_batch_size, optimizer.num_microbatches
    look = size is None and microbatches is not None
    example, arguments["x"], rows = peek(arguments["x"], know_rows=look)
    # Where there are as many microbatches as examples, each example was meant to be a record.
    size = rows if look and rows == microbatches else size
    goes_on = _goes_on(arguments["x"], arguments["steps_per_epoch"])
    return FitData(arguments, policy, False, size, example, Raised(), goes_on=goes_on)


def _goes_on(dataset: Any, steps_per_epoch: Any) -> bool | None:
    """Returns whether Keras goes on in a data set at the end of an epoch, or begins anew; None
    where that depends on whether it has ended. Only where it is told the steps of an epoch does
    Keras keep an iterator.
    """
    if isinstance(dataset, Iterator):
        return True
    if steps_per_epoch is None:
        return False
    is_graph = isinstance(dataset, tf.data.Dataset)
    endless = is_graph and int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    return True if endless else None


def _users(arguments: dict[str, Any], optimizer: DPOptimizer) -> Users | None:
    """Returns the users whom `fit` was told of, and takes what tells of them out of its
    arguments.
    """
    ids, most = arguments.pop("privacy_unit"), arguments.pop("max_examples_per_user")
    gradient = arguments.pop("user_gradient")
    if gradient not in ("mean", "sum"):
        raise ValueError(f"user_gradient must be 'mean' or 'sum'. Received: {gradient!r}.")
    if ids is None:
        if most is not None or gradient != "mean":
            raise ValueError(
                "max_examples_per_user and user_gradient are about users: give privacy_unit, an "
                f"array with the id of each row's user. Received: max_examples_per_user={most!r}, "
                f"user_gradient={gradient!r}."
            )
        optimizer.check_ids_given()
        return None
    if isinstance(ids, str):
        raise TypeError(
            "privacy_unit of fit is an array with the id of each row's user. What the unit is "
            f"called is an argument of DPOptimizer. Received: privacy_unit={ids!r}."
        )
    if optimizer.privacy_unit != "user":
        raise ValueError(
            "Ids of users were given, but the events of this optimizer are about a unit "
            f"{optimizer.privacy_unit!r}. Make it with privacy_unit='user'."
        )
    if most is None:
        raise ValueError(
            "Give max_examples_per_user: how many rows of one user take part in a step at most. "
            "Choose it without looking at these data."
        )
    if is_dataset(arguments["x"]):
        raise ValueError(
            "Ids of users go with arrays, from which fit draws users. Received: "
            f"x={type(arguments['x']).__name__}."
        )
    if arguments["validation_split"]:
        raise ValueError(
            "validation_split cuts at a row, so that one user's rows could be on both sides, and "
            "would move where it cuts. Pass validation_data of other users. Received: "
            f"validation_split={arguments['validation_split']}."
        )
    if gradient == "sum" and (optimizer.private_metrics or optimizer.batch_moments):
        raise ValueError(
            "Private metrics and private batch normalization take means over a user's rows. Use "
            "user_gradient='mean'."
        )
    return Users(ids, most)


def _of_arrays(arguments, policy, optimizer, strategy, users, constant_size, between_steps):
    policy = policies.Poisson() if policy is None else policy
    _check_split(arguments["validation_split"], policy)
    if isinstance(arguments["x"], Source):
        source = _source(arguments)
        arrays, example = [source, None, None], source.example
    else:
        *arrays, arguments["validation_data"] = prepare_arrays(
            *(arguments.pop(name) for name in ("x", "y", "sample_weight", "class_weight")),
            arguments.pop("validation_split"),
            arguments["validation_data"],
        )
        example = tf.nest.map_structure(lambda a: None if a is None else a[:1], tuple(arrays))
    batch_size = arguments.pop("batch_size")
    num_units = length(*arrays)
    if users is not None:
        _check_ids(users, num_units)
        num_units = len(users)
    policy, batch_size, together = _resolve(policy, num_units, batch_size, optimizer)
    steps = arguments.pop("steps_per_epoch")
    steps = policy.steps_per_epoch if steps is None else steps
    _check_passes(policy, steps)
    policy = _in_order(policy, steps, optimizer)
    raised = Raised()
    arguments["x"], arguments["steps_per_epoch"], samples = distributed_data.samples(
        strategy,
        tuple(arrays),
        policy,
        together,
        positive_integer("steps_per_epoch", steps),
        raised,
        users,
        constant_size,
        between_steps,
    )
    return FitData(arguments, policy, True, batch_size, example, raised, samples)


def _source(arguments: dict[str, Any]) -> Source:
    """Returns the source of the examples, and takes what may not stand beside one out of the
    arguments.
    """
    source = arguments.pop("x")
    beside = ("y", "sample_weight", "class_weight", "validation_split")
    given = [name for name in beside[:3] if arguments[name] is not None]
    if arguments["validation_split"]:
        given.append("validation_split")
    if given:
        raise ValueError(
            "A Source holds (x, y, sample_weight) itself, and is not split. Let it be "
            "Source((x, y, weights)), or let map return them; pass validation_data. Received: "
            f"{', '.join(given)}."
        )
    if isinstance(arguments["validation_data"], Source):
        raise TypeError("validation_data must be arrays or a data set, as in Keras, no Source.")
    for name in beside:
        del arguments[name]
    sizes = {size for size in (source.batch_size, arguments["batch_size"]) if size is not None}
    if len(sizes) > 1:
        raise ValueError(
            "The source and fit were given different batch sizes. Received: "
            f"{source.batch_size} and {arguments['batch_size']}."
        )
    arguments["batch_size"] = sizes.pop() if sizes else None
    return source.with_floats(keras.config.floatx())


def _check_ids(users: Users, num_examples: int) -> None:
    if users.num_rows != num_examples:
        raise ValueError(
            "privacy_unit must have one id for each row. Received: "
            f"{users.num_rows} ids for {num_examples} rows."
        )


def _in_order(policy: SamplingPolicy, steps: Any, optimizer: DPOptimizer) -> SamplingPolicy:
    """Returns the policy from where the optimizer's run is, if every epoch ends where it began."""
    place = policy.description(0).place
    if place is not None and positive_integer("steps_per_epoch", steps) % place[1]:
        raise ValueError(
            f"Every epoch begins at the same part of the data, so steps_per_epoch must be a "
            f"multiple of their number. Received: steps_per_epoch={steps}, and {place[1]} parts."
        )
    return policy.from_step(optimizer.step_of_run())


def _check_passes(policy: SamplingPolicy, steps: Any) -> None:
    length = policy.steps_per_pass
    if not policy.draws_whole_passes or length is None or steps is None:
        return
    if positive_integer("steps_per_epoch", steps) % length:
        raise ValueError(
            f"The {length} steps of a pass of {type(policy).__name__} are drawn and priced "
            "together, so steps_per_epoch must be a multiple of their number. Received: "
            f"steps_per_epoch={steps}. Leave it out."
        )


def _check_split(validation_split: float, policy: SamplingPolicy) -> None:
    if policy.hides_population and validation_split:
        raise ValueError(
            "validation_split cuts at a share of the number of examples, which is not public "
            "under ADD_OR_REMOVE_ONE: one more would push another one out of the training part. "
            "Pass validation_data, or take ZERO_OUT, the default. Received: "
            f"validation_split={validation_split}, sampling={policy!r}."
        )


def _resolve(
    policy: SamplingPolicy, num_examples: int, batch_size: int | None, optimizer: DPOptimizer
) -> tuple[SamplingPolicy, float | None, int]:
    """Returns (policy for these sizes, batch size, examples that come and go together)."""
    if batch_size is not None:
        batch_size = positive_integer("batch_size", batch_size)
        if policy.hides_population and optimizer.num_microbatches is None:
            raise ValueError(
                "Under ADD_OR_REMOVE_ONE the sampling policy says how large samples are, not "
                f"batch_size: leave it out. Received: batch_size={batch_size}, "
                f"sampling={policy!r}."
            )
        told: int | None = batch_size
    else:
        batch_size = policy.default_batch_size(num_examples)
        told = None if policy.hides_population else batch_size
    is_unit = optimizer.privacy_unit == "microbatch"
    if is_unit and told is None and policy.hides_population:
        raise ValueError(
            "Under ADD_OR_REMOVE_ONE the number of examples is not public, so that the size of a "
            "microbatch, which is the unit here, cannot follow it. Give batch_size, a public "
            "number: a unit is batch_size / num_microbatches examples. Received: batch_size=None, "
            f"num_microbatches={optimizer.num_microbatches}."
        )
    if not is_unit:
        resolved = policy.resolve(num_examples, batch_size)
        return resolved, _as_expected(resolved, told), 1
    if batch_size is None or batch_size % optimizer.num_microbatches:
        raise ValueError(
            "With privacy_unit='microbatch', batch_size must be a multiple of "
            f"num_microbatches. Received: batch_size={batch_size}, "
            f"num_microbatches={optimizer.num_microbatches}."
        )
    size = batch_size // optimizer.num_microbatches
    return policy.resolve(-(-num_examples // size), batch_size // size), batch_size, size


def _as_expected(policy: SamplingPolicy, batch_size: int | None) -> float | None:
    """Returns the expected size of a sample: a policy of somebody's own may not take a size. Where
    the population is hidden it is the one that was given, which does not follow from it.
    """
    expected = policy.expected_batch_size
    if policy.hides_population or batch_size is None or expected is None:
        return batch_size
    return batch_size if abs(expected - batch_size) < 1e-6 * batch_size else expected
