"""How samples reach the replicas of a strategy."""

import contextlib
import os
import platform
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.keras import charges, distribution
from tfdp.keras.errors import NotPrivateError
from tfdp.keras.records_of_fit import RecordsOfFit
from tfdp.keras.small_samples import SmallSamples, are_small
from tfdp.keras.wrapping import parts
from tfdp.ledger import DurableLedger, PrivacyLedger
from tfdp.sampling import PaddedBatch, SamplingPolicy, Source, Users
from tfdp.sampling.arrays import Samples
from tfdp.sampling.arrays import samples as samples_of
from tfdp.sampling.pipelines import untuned

# In these steps schedules of learning rates are compared.
_STEPS = (0, *(2**i for i in range(20)))


class Raised:
    """Keeps the error that ends a block: a data set that draws ahead has only its text.

    Attributes:
        error: The last one; None if there was none.
    """

    error: Exception | None = None

    def __enter__(self) -> "Raised":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception):
            self.error = error

    def around(self, drawn: Samples) -> Samples:
        """Returns the same samples; what is raised while they are drawn is kept."""

        def make():
            with self:
                yield from drawn.make()

        return drawn._replace(make=make)

    @contextlib.contextmanager
    def in_place_of(self, kind: type[Exception]) -> Iterator[None]:
        """Raises what was kept where the block raises an error of this kind."""
        try:
            yield
        except kind as error:
            kept, self.error = self.error, None  # It may have hold of the data set of these draws.
            if kept is None:
                raise
            raise kept from error


def samples(
    strategy: tf.distribute.Strategy,
    arrays: tuple[Any, Any, Any],
    policy: SamplingPolicy,
    examples_per_unit: int,
    steps: int,
    raised: Raised,
    users: Users | None = None,
    constant_size: bool = True,
    between_steps: bool = False,
) -> tuple[Any, int | None, SmallSamples | None]:
    """Returns (data set of the samples of `steps` steps, `steps_per_epoch` for Keras, samples).

    Samples that are drawn between the steps are in no data set: that only counts the steps then.

    In one process there is one sample a step, whose rows the replicas share. If there are several
    processes, each draws from its own part of the arrays, by itself and with its own random key.
    Every unit has one owner, and is in the sample with the same probability, independently of all
    others. So together they draw the sample that `policy` describes. No two processes need to agree
    on anything.

    Args:
        strategy: Whose replicas take the steps.
        arrays: (x, y, sample_weight) of all examples, or (source, None, None); the same in every
            process.
        policy: A resolved policy for all examples.
        examples_per_unit: Examples that come and go together.
        steps: Steps of an epoch.
        raised: Keeps what is raised while samples are drawn ahead.
        users: Whose rows come and go together, instead of `examples_per_unit`.
        constant_size: Whether all samples are padded to one size.
        between_steps: Whether small samples are drawn between the steps.

    Raises:
        NotPrivateError: there are users, or units of several examples, and several processes, the
            policy needs processes to draw together, or their arrays differ.
        ValueError: there are fewer units than processes.
    """
    local = _local_replicas(strategy)
    if distribution.num_workers(strategy) == 1:
        drawn = samples_of(
            *arrays,
            policy,
            examples_per_unit,
            row_multiple=local,
            users=users,
            constant_size=constant_size,
        )
        if between_steps and are_small(drawn, arrays):
            return untuned(tf.data.Dataset.range(steps)), None, SmallSamples(drawn, steps)
        samples = raised.around(drawn).dataset().take(steps)
        if not distribution.is_none(strategy):
            samples = samples.map(_without_none)
        # If the data had no end, Keras would run all of `steps_per_execution` in the last
        # execution, and so more steps than were asked for.
        return samples.apply(tf.data.experimental.assert_cardinality(steps)), None, None

    if users is not None:
        raise NotPrivateError(
            "Processes have parts of the rows, and none knows all rows of a user. Train on users "
            "(privacy_unit=...) in one process; it may have several devices (MirroredStrategy)."
        )
    if examples_per_unit > 1:
        raise NotPrivateError(
            "A microbatch of several examples would be spread over replicas. Under a strategy of "
            "several processes leave num_microbatches out, and each example is a record."
        )
    _check_same(strategy, arrays)

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        part, part_policy = _part(
            arrays, policy, context.input_pipeline_id, context.num_input_pipelines
        )
        drawn = samples_of(
            *part, part_policy, examples_per_unit, row_multiple=local, constant_size=constant_size
        )
        samples = raised.around(drawn).dataset().map(_without_none)
        samples = samples.flat_map(lambda batch: _shards(batch, local))
        # The number of steps is known, so processes need not ask each other at every step whether
        # there are data left.
        return samples.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    return strategy.distribute_datasets_from_function(of_worker), steps, None


def as_drawn(batch: PaddedBatch) -> PaddedBatch:
    """Returns a batch with None where the arrays had None."""
    return PaddedBatch(*(None if isinstance(part, tuple) and not part else part for part in batch))


@tf.autograph.experimental.do_not_convert
def _without_none(batch: PaddedBatch) -> PaddedBatch:
    # What distributes data sets takes empty structures, but not None.
    return PaddedBatch(*(() if part is None else part for part in batch))


def check_dataset(strategy: tf.distribute.Strategy, dataset: Any) -> None:
    """Refuses data sets whose global batches are not what they declare.

    Raises:
        NotPrivateError: says what to pass instead.
    """
    if isinstance(dataset, tf.distribute.DistributedDataset):
        raise NotPrivateError(
            "Pass the data set itself, as it yields the batches of all replicas together; fit "
            f"distributes it. Received: {type(dataset).__name__}."
        )
    if distribution.num_workers(strategy) > 1:
        raise NotPrivateError(
            "Several processes would each read this data set in an order of its own, so that a "
            "record could be in a step twice. Pass arrays, the same in every process, or train in "
            f"one process (MirroredStrategy). Received: {type(dataset).__name__}."
        )


def _local_replicas(strategy: tf.distribute.Strategy) -> int:
    return strategy.num_replicas_in_sync // distribution.num_workers(strategy)


def _part(
    arrays: tuple[Any, Any, Any], policy: SamplingPolicy, index: int, count: int
) -> tuple[tuple[Any, Any, Any], SamplingPolicy]:
    """Returns (arrays, policy) of process `index` of `count`: consecutive examples."""
    size = policy.population_size
    start, end = index * size // count, (index + 1) * size // count
    part_policy = policy.part(end - start) if size >= count else policy
    if part_policy is None:
        raise NotPrivateError(
            f"{type(policy).__name__} samples cannot be drawn by processes one by one. Under a "
            "strategy of several processes use tfdp.sampling.Poisson (the default) or FullBatch."
        )
    if size < count:
        raise ValueError(f"There are fewer examples than processes. Received: {count} processes.")
    part = tf.nest.map_structure(lambda a: _slice(a, start, end), arrays)
    return part, part_policy


def _slice(part: Any, start: int, end: int) -> Any:
    if isinstance(part, Source):
        return part.part(start, end)
    return None if part is None else part[start:end]


def _shards(batch: PaddedBatch, count: int) -> tf.data.Dataset:
    """Returns `count` consecutive shards of a batch."""
    rows = tf.shape(tf.nest.flatten(batch)[0])[0] // count
    return tf.data.Dataset.range(count, output_type=tf.int32).map(
        lambda i: tf.nest.map_structure(lambda t: t[i * rows : (i + 1) * rows], batch)
    )


def _check_same(strategy: tf.distribute.Strategy, arrays: tuple[Any, Any, Any]) -> None:
    """Raises in every process if their arrays differ in form, or in any of 256 examples."""
    if len(set(_of_processes(strategy, [_digest(arrays)]))) > 1:
        raise NotPrivateError(
            "The processes of the strategy were given different arrays. Each trains on its own "
            "part of what must be one data set, in one order: pass the same x, y and sample_weight "
            "to fit in every process."
        )


def _of_processes(
    strategy: tf.distribute.Strategy, numbers: Sequence[int]
) -> list[tuple[int, ...]]:
    """Returns the numbers of every process. All of them call this, with as many numbers."""
    mine = tf.constant(numbers, tf.int64)

    @tf.function
    def gather():
        def placed():
            return distribution.add_up([distribution.one_hot_of_replica()[:, None] * mine])

        return strategy.run(placed)

    (found,) = gather()
    rows = strategy.experimental_local_results(found)[0].numpy().tolist()
    return [tuple(row) for row in rows[:: _local_replicas(strategy)]]


def check_same_start(
    strategy: tf.distribute.Strategy, model: Any, optimizer: Any, records: RecordsOfFit
) -> None:
    """Refuses, in all processes, a first step that they do not take together: what one of them
    paid for its weights would reach those of the others, whose ledgers know nothing of it.

    Args:
        strategy: Whose processes train; nothing is compared where there is only one.
        model: That is about to train.
        optimizer: Its private optimizer.
        records: How it makes records.

    Raises:
        NotPrivateError: weights or settings differ, or two processes write to one ledger.
    """
    if distribution.num_workers(strategy) == 1:
        return
    values = charges.digests([*model.weights, *optimizer.slots, *optimizer.query_state])
    settings = _settings(optimizer, records), _rates(optimizer), _places_of_trained(model)
    found = _of_processes(
        strategy,
        [
            zlib.crc32(repr([tuple(digest) for digest in values.values()]).encode()),
            zlib.crc32(repr(settings).encode()),
            _file_of(optimizer.ledger),
        ],
    )
    weights, of_settings, files = map(list, zip(*found, strict=True))
    if len(set(weights)) > 1:
        raise NotPrivateError(
            "The processes of the strategy begin with different weights, or states of the "
            "optimizer or the query: load the same file in every process, or in none. (A backup on "
            "a disk that only some of them have is loaded by these only.)"
        )
    if len(set(of_settings)) > 1:
        raise NotPrivateError(
            "The processes of the strategy have different inner optimizers, learning rates, "
            "weights that are trained, loss scales, private metrics, views or users. Configure "
            "them alike in all of them."
        )
    written = [file for file in files if file]
    if len(set(written)) < len(written):
        raise NotPrivateError(
            "Two processes of the strategy write to one ledger, in which every step would count "
            "twice. Give each a file of its own, or only the first one a file."
        )


def _settings(optimizer: Any, records: RecordsOfFit) -> str:
    """Returns the settings that no event holds and no variable."""
    metrics = [metric.keys for metric in optimizer.private_metrics]
    of_records = records._replace(augment=None)  # A function, which has no text of its own.
    inner = [(type(part).__name__, _numbers_of(part)) for part in parts(optimizer.inner_optimizer)]
    return repr((inner, optimizer.loss_scale_factor, metrics, of_records))


def _numbers_of(optimizer: keras.optimizers.Optimizer) -> list[tuple[str, Any]]:
    """Returns what an optimizer was made with, but its learning rate."""
    try:
        config = optimizer.get_config()
    except NotImplementedError:  # Of a schedule that is never saved.
        config = {name: value for name, value in vars(optimizer).items() if name[0] != "_"}
    return [
        (name, value)
        for name, value in sorted(config.items())
        if name not in ("name", "learning_rate") and isinstance(value, (bool, int, float, str))
    ]


def _rates(optimizer: Any) -> list[Any]:
    """Returns the learning rates of all that make updates: what they are now, and in some of the
    steps to come where there is a schedule.
    """
    found: list[Any] = []
    for part in parts(optimizer.inner_optimizer):
        found.append(float(tf.convert_to_tensor(part.learning_rate)))
        for value in vars(part).values():
            if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
                found.append([float(value(tf.constant(step, tf.int64))) for step in _STEPS])
    return found


def _places_of_trained(model: Any) -> list[int]:
    """Returns the places of the weights that are trained among all of a model."""
    trained = {id(variable) for variable in model.trainable_variables}
    return [place for place, weight in enumerate(model.weights) if id(weight) in trained]


def _file_of(ledger: PrivacyLedger) -> int:
    """Returns a number, not zero, that stands for the file of a ledger; zero where it has none."""
    if not isinstance(ledger, DurableLedger):
        return 0
    status = os.stat(ledger.path)
    return 1 + zlib.crc32(repr((platform.node(), status.st_dev, status.st_ino)).encode())


def _digest(arrays: tuple[Any, Any, Any]) -> int:
    digest = 0
    for array in tf.nest.flatten(arrays):
        if array is None:
            continue
        rows = np.unique(np.linspace(0, len(array) - 1, 256).astype(np.int64))
        if isinstance(array, Source):
            leaves = array.read(rows, np.zeros([len(rows), 2], np.int64))
        else:
            leaves = [array[rows]]
        for leaf in leaves:
            form = f"{(len(array), *leaf.shape[1:])} {leaf.dtype}".encode()
            digest = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), zlib.crc32(form, digest))
    return digest
