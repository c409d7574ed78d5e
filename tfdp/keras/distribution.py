"""One private step on several devices: what happens once, and what on every replica.

A step under a `tf.distribute.Strategy` of R replicas is

    charge    once in each process (`once`), before anything else; processes compare (`add_up`)
    gradients on every replica, from its shard of the sample, as if it were alone (`alone`)
    sum       over all replicas (`add_up`)
    noise     on the first replica of all, and nowhere else (`is_first_replica`)

and the replicas' gradients, zero on all but the first, are added up by the inner optimizer, as
Keras' optimizers do under a strategy.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.keras.errors import NotPrivateError


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Refuses strategies whose replicas do not take every step together on devices of their own.

    Raises:
        NotPrivateError: names the strategy and those that work.
    """
    single = isinstance(strategy, (type(_default_strategy()), tf.distribute.OneDeviceStrategy))
    if not (single or is_mirrored(strategy)):
        raise NotPrivateError(
            f"Private training does not know {type(strategy).__name__}: one step must be one sum, "
            "one noise draw and one event. Use tf.distribute.MirroredStrategy (devices of one "
            "process) or MultiWorkerMirroredStrategy (several processes)."
        )


def is_none(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether it is what TensorFlow has where nobody chose a strategy."""
    return isinstance(strategy, type(_default_strategy()))


def is_mirrored(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether replicas, be it only one, have copies of every variable."""
    return isinstance(
        strategy, (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    )


def check_variables(strategy: tf.distribute.Strategy, variables: list[Any]) -> None:
    """Refuses variables that the replicas of `strategy` do not share.

    Raises:
        NotPrivateError: names a variable and the fix.
    """
    for variable in variables:
        value = variable if isinstance(variable, tf.Variable) else variable.value
        if not strategy.extended.variable_created_in_scope(value):
            name = getattr(variable, "path", variable.name)
            raise NotPrivateError(
                f"The variable {name} does not belong to the strategy that trains it "
                f"({type(strategy).__name__}). Make the model private, and create it, its "
                "optimizers and all else that has variables, inside one `with strategy.scope():`."
            )


def check_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Refuses variables, of a step or of its optimizer, that replicas do not share.

    Raises:
        NotPrivateError: a variable is not shared, or the optimizer has no variables yet.
    """
    strategy = tf.distribute.get_strategy()
    check_variables(strategy, variables)
    if not tf.distribute.has_strategy():
        return
    if not optimizer.built:
        raise NotPrivateError(
            "Replicas share the optimizer's variables: call optimizer.build(variables) inside "
            "`with strategy.scope():` before the first step."
        )
    check_variables(strategy, optimizer.variables)


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of processes of a strategy."""
    if strategy.num_replicas_in_sync == 1:
        return 1
    return strategy.num_replicas_in_sync // len(strategy.extended.worker_devices)


# What follows is for use in a step, that is, inside `strategy.run`. Without a strategy there is one
# replica, the first.


def num_replicas() -> int:
    """Returns the number of replicas that take this step together.

    Raises:
        NotPrivateError: no step is under way (cross-replica context), or the strategy is unknown.
    """
    return _replica().num_replicas_in_sync


def replica_index() -> int:
    """Returns which of all replicas, of all processes, this one is."""
    # The number is a constant in every strategy that `check_strategy` accepts.
    return int(tf.get_static_value(_replica().replica_id_in_sync_group))


def is_first_replica() -> bool:
    """Returns whether this replica draws the noise; True without a strategy."""
    return replica_index() == 0


def is_multi_worker() -> bool:
    """Returns whether other processes take part in this step."""
    return num_workers(_replica().strategy) > 1


def once(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `function` once in this process; every replica gets what it returns."""
    replica = _replica()
    if not tf.distribute.has_strategy():
        return function(*arguments)
    return replica.merge_call(lambda strategy: function(*arguments))


def check_divided(examples: Any) -> None:
    """Refuses examples that all replicas of this process have, so that each would count in every
    one of them. What a replica makes by itself cannot be told from a part of its own.

    Args:
        examples: Structure of tensors or arrays, or None; a mask may be that of all replicas.

    Raises:
        NotPrivateError: one of them is what all replicas have.
    """
    replica = _replica()
    if replica.num_replicas_in_sync == num_workers(replica.strategy):
        return

    def divided(_: tf.distribute.Strategy, values: list[Any]) -> bool:
        return all([isinstance(value, tf.distribute.DistributedValues) for value in values])

    leaves = [leaf for leaf in tf.nest.flatten(examples) if leaf is not None]
    if not replica.merge_call(divided, (leaves,)):
        raise NotPrivateError(
            "All replicas were given the same batch, so that each of its records would count once "
            "for every replica. Give each replica a part of its own: strategy.run(step, "
            "args=(batch,)) with a batch of strategy.experimental_distribute_dataset(dataset)."
        )


def add_up(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the sums over the replicas, the same on every replica; of integers exactly."""
    replica = _replica()
    if replica.num_replicas_in_sync == 1 or not tensors:
        return tensors
    sums: list[Any] = [None] * len(tensors)
    # Tensors that are added up together are packed into one, so they have one dtype.
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        added = replica.all_reduce(tf.distribute.ReduceOp.SUM, [tensors[i] for i in places])
        for i, total in zip(places, added, strict=True):
            sums[i] = total
    return sums


def one_hot_of_replica() -> tf.Tensor:
    """Returns int64 [number of replicas]: one at this replica, zero elsewhere."""
    return tf.one_hot(replica_index(), num_replicas(), dtype=tf.int64)


def on_host(
    function: Callable[..., Any], inputs: list[Any], count: int, called: list[Any]
) -> list[tf.Tensor]:
    """Calls a Python function of arrays with side effects, every time that the step runs.

    TensorFlow keeps the functions that graphs call until the process ends, and what they refer to:
    here a model and its weights. So it gets one with a weak reference, and fails if that is dead.

    Args:
        function: Returns integers below 2^63, or raises.
        inputs: Tensors or variables.
        count: How many integers.
        called: Where what a graph calls is kept; whoever holds this list decides for how long.

    Returns:
        int64 [] for each of them.
    """

    def numbers(*arrays):
        return np.array(function(*arrays), np.int64)

    inputs = [tf.convert_to_tensor(value) for value in inputs]
    if tf.executing_eagerly():
        result = tf.constant(numbers(*map(np.asarray, inputs)))
    else:
        called.append(numbers)
        reference = weakref.ref(numbers)

        def call(*arrays):
            numbers = reference()
            if numbers is None:
                raise ReferenceError(
                    "The private optimizer of this step is gone. Keep it while its graphs run."
                )
            return numbers(*arrays)

        # One array: TensorFlow takes ten microseconds or more for each that comes back.
        result = tf.numpy_function(call, inputs, tf.int64, stateful=True)
    return tf.unstack(tf.ensure_shape(result, [count]))


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Runs a replica's part as if there were no others.

    Keras divides losses by the number of replicas, for the sum over replicas that follows. The loss
    of a record is not divided: it would be clipped after the division.
    """
    replica = _replica()
    if replica.num_replicas_in_sync == 1:
        yield
        return
    # Variables are looked up by the replica's number within the process.
    number = replica_index() % len(replica.strategy.extended.worker_devices)
    with tf.distribute.ReplicaContext(_default_strategy(), number):
        yield


def _replica() -> tf.distribute.ReplicaContext:
    replica = tf.distribute.get_replica_context()
    if replica is None:
        raise NotPrivateError(
            "A private step is taken by the replicas of a strategy: call private_gradients and "
            "apply in the function that goes to strategy.run(...), not under strategy.scope()."
        )
    check_strategy(replica.strategy)
    return replica


@functools.cache
def _default_strategy() -> tf.distribute.Strategy:
    # A new graph has the scopes of no strategy, wherever this is called.
    with tf.Graph().as_default():
        return tf.distribute.get_strategy()


def for_keras(logs: dict[str, Any]) -> dict[str, Any]:
    """Returns what a step returns to Keras, in the form that Keras averages over processes.

    Between processes Keras 3 takes a mean over the first axis, which a scalar does not have.
    """
    cluster = _replica().strategy.cluster_resolver
    if not cluster or not cluster.cluster_spec().as_dict():
        return logs
    return tf.nest.map_structure(lambda value: tf.reshape(value, [1]), logs)
