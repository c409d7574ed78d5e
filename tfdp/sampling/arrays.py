"""Padded batches of records drawn from arrays and sources."""

import atexit
import collections
import contextlib
import functools
import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdp.events.arguments import positive_integer
from tfdp.noise import host_generator
from tfdp.sampling.mapped import ask_for, is_mapped, native, taken
from tfdp.sampling.pipelines import untuned
from tfdp.sampling.policy import SamplingPolicy
from tfdp.sampling.source import Source
from tfdp.sampling.users import Users

# Of a data set: those that samples still come from.
_KEPT_ITERATORS = 8
# So many samples are asked for before they are read.
_ASKED_AHEAD = 2
# After its last call a thread that prefetches is soon waiting for room, out of Python.
_QUIET_SECONDS = 0.05


class PaddedBatch(NamedTuple):
    """One sample, padded with zeros.

    Attributes:
        x: Inputs, structure of [rows, ...].
        y: Targets, likewise, or None.
        sample_weight: [rows], or None.
        mask: bool [rows]; false marks padding.

    Of users, [users, rows of each] stands everywhere in place of [rows].
    """

    x: Any
    y: Any
    sample_weight: Any
    mask: Any


class _Draw(NamedTuple):
    """What was drawn of a sample.

    Attributes:
        chosen: int64 [n], the examples.
        mask: bool [rows], where they come to stand.
        seeds: int64 [n, 2], for a map that is seeded; else None.
    """

    chosen: np.ndarray
    mask: np.ndarray
    seeds: np.ndarray | None


class Samples(NamedTuple):
    """Padded samples, as Python draws them.

    Attributes:
        make: Returns an iterator without end, each of whose elements holds the arrays of a sample.
        signature: Of these arrays.
        rebuild: From them, or from anything that stands for them, to a `PaddedBatch`.
        nbytes: Of the arrays of a large sample.
    """

    make: Callable[[], Iterator[tuple[np.ndarray, ...]]]
    signature: tuple[tf.TensorSpec, ...]
    rebuild: Callable[..., PaddedBatch]
    nbytes: int

    def dataset(self) -> tf.data.Dataset:
        """Returns an endless data set of them, which are drawn ahead."""
        drawn = _from_iterators(self.make, self.signature, self.rebuild)
        return untuned(drawn.prefetch(2))


def batches(
    x: Any,
    y: Any,
    sample_weight: Any,
    policy: SamplingPolicy,
    examples_per_unit: int = 1,
    generator: np.random.Generator | None = None,
    row_multiple: int = 1,
    users: Users | None = None,
    constant_size: bool = True,
) -> tf.data.Dataset:
    """Returns an endless data set of `PaddedBatch` drawn from arrays or a source.

    Unit u holds the examples u * examples_per_unit to (u + 1) * examples_per_unit - 1; the last may
    be smaller. In a batch, units keep `examples_per_unit` rows each. With `users`, these are the
    units, and each has as many rows in a batch as one has at most.

    Args:
        x: Structure of arrays that share their first axis, or a `Source`, which holds y and
            sample_weight, too. Lists come back as tuples: tf.data makes tensors of lists. Tensors,
            and Series and DataFrames of pandas, become arrays.
        y: Structure of arrays of the same length, or None.
        sample_weight: Array of the same length, or None.
        policy: A resolved policy: `Poisson().resolve(number of units, batch_size)`.
        examples_per_unit: Examples that come and go together.
        generator: Source of the draws; by default keyed by the operating system. Samples of another
            one are secret only if its seed is: declare `Unknown` where it is not.
        row_multiple: What the number of rows is a multiple of, so that replicas can share them.
        users: Whose rows come and go together, instead of `examples_per_unit`.
        constant_size: Whether samples are padded to `policy.padded_size` units, which few exceed,
            so that XLA compiles one step and shapes say next to nothing about a sample. Else they
            are padded to multiples of `policy.size_step`, which takes less time.

    Raises:
        TypeError: there is something else than arrays, or what holds neither numbers nor texts, or
            than a policy.
        ValueError: the policy is not resolved, or was made for another number of units, or arrays,
            or ids of users, have another number of rows.
    """
    options = examples_per_unit, generator, row_multiple, users, constant_size
    return samples(x, y, sample_weight, policy, *options).dataset()


def samples(
    x: Any,
    y: Any,
    sample_weight: Any,
    policy: SamplingPolicy,
    examples_per_unit: int = 1,
    generator: np.random.Generator | None = None,
    row_multiple: int = 1,
    users: Users | None = None,
    constant_size: bool = True,
) -> Samples:
    """Returns the samples of `batches`.

    Args:
        x: As in `batches`, as are all others.
        y: As there.
        sample_weight: As there.
        policy: As there.
        examples_per_unit: As there.
        generator: As there.
        row_multiple: As there.
        users: As there.
        constant_size: As there.
    """
    # tf.nest.map_structure would call the function on None leaves.
    source = x if isinstance(x, Source) else None
    structure = _lists_to_tuples((x, y, sample_weight) if source is None else source.example)
    flat = tf.nest.flatten(structure)
    arrays = [_as_array(leaf) for leaf in flat if leaf is not None]
    if not arrays:
        raise ValueError("There is nothing to draw from. Received: x=None.")
    num_examples = len(arrays[0]) if source is None else len(source)
    if source is None and any(len(array) != num_examples for array in arrays):
        raise ValueError("x, y and sample_weight must have one number of rows, and differ in it.")
    if users is not None:
        if not isinstance(users, Users):
            raise TypeError(
                "users must be a tfdp.sampling.Users(ids, max_examples). Received: an object of "
                f"type {type(users).__name__}."
            )
        examples_per_unit = users.max_examples
        row_multiple *= examples_per_unit  # Replicas share users, and not their rows.
        if users.num_rows != num_examples:
            raise ValueError(
                "Every row has one id of a user, and ids and rows differ in number: rows would be "
                "other users' than the ids say, or nobody's. Pass the ids of these data."
            )
    _check_resolved(policy)
    row_multiple = positive_integer("row_multiple", row_multiple)
    examples_per_unit = positive_integer("examples_per_unit", examples_per_unit)
    population = -(-num_examples // examples_per_unit) if users is None else len(users)
    declared = getattr(policy, "population_size", None)
    if declared not in (None, population):
        raise ValueError(
            f"The policy draws from {declared} units, and the data have another number: samples "
            "would be others than the ledger says. Use policy.resolve(number of units, batch_size)."
        )
    units_of_step = policy.padded_size if constant_size else policy.size_step
    rows = -(-units_of_step * examples_per_unit // row_multiple) * row_multiple
    generator = host_generator(generator)
    columns = arrays if source is None else source.columns
    ahead = _ASKED_AHEAD if any(map(is_mapped, columns)) else 0
    ask = functools.partial(_ask_for_all, arrays) if source is None else source.ask_for

    def draws() -> Iterator[_Draw]:
        for units in policy.draw(generator):
            if users is None:
                examples = units[:, None] * examples_per_unit + np.arange(examples_per_unit)
                present = examples < num_examples
            else:
                examples = users.rows_of(units, generator)
                present = examples >= 0
            examples = examples.reshape(-1)
            total = rows * max(1, -(-len(examples) // rows))
            mask = np.zeros(total, bool)
            mask[: len(examples)] = present.reshape(-1)
            chosen = examples[mask[: len(examples)]]
            seeds = None
            if source is not None and source.seeded:
                seeds = generator.integers(2**63 - 1, size=2 * len(chosen)).reshape(-1, 2)
            yield _Draw(chosen, mask, seeds)

    def padded() -> Iterator[tuple[np.ndarray, ...]]:
        if source is None or source.workers == 1:
            yield from padded_with(None)
        else:
            with ThreadPoolExecutor(source.workers) as pool:
                yield from padded_with(pool)

    def padded_with(pool: ThreadPoolExecutor | None) -> Iterator[tuple[np.ndarray, ...]]:
        for draw in _ahead(draws(), ask, ahead):
            if source is None:
                places = np.zeros(len(draw.mask), np.int64)
                places[draw.mask] = draw.chosen
                found = [_rows(array, places, draw.mask) for array in arrays]
                found = [rows.astype(native(rows.dtype), copy=False) for rows in found]
                parts = [*map(encoded, found), draw.mask]
            else:
                leaves = source.read(draw.chosen, draw.seeds, pool, len(draw.mask))
                parts = [*(_spread(leaf, draw.mask) for leaf in leaves), draw.mask]
            if users is not None:
                parts = [p.reshape(-1, examples_per_unit, *p.shape[1:]) for p in parts]
            yield tuple(parts)

    def rebuild(*leaves):
        remaining = iter(leaves[:-1])
        values = [None if leaf is None else next(remaining) for leaf in flat]
        return PaddedBatch(*tf.nest.pack_sequence_as(structure, values), leaves[-1])

    axes = [None] if users is None else [None, examples_per_unit]
    signature = tuple(tf.TensorSpec([*axes, *a.shape[1:]], a.dtype) for a in arrays)
    signature += (tf.TensorSpec(axes, tf.bool),)
    of_unit = examples_per_unit * sum(a.dtype.itemsize * math.prod(a.shape[1:]) for a in arrays)
    return Samples(padded, signature, rebuild, policy.padded_size * of_unit)


class _Calls:
    """Calls of Python from the threads that prefetch.

    TensorFlow waits for these threads as the process ends. One that wants to come back to Python
    after Python has ended never does. So at the end no new call begins, and those under way are
    waited for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._last = 0.0
        self._is_ending = False
        self._alive: weakref.WeakSet[_Iterators] = weakref.WeakSet()

    @contextlib.contextmanager
    def one_of(self, iterators: "_Iterators") -> Iterator[None]:
        """Holds the end of Python back for as long as the block takes.

        Raises:
            RuntimeError: Python is ending.
        """
        with self._lock:
            self._alive.add(iterators)
            self._last = time.monotonic()
            if self._is_ending:
                raise RuntimeError("The program is ending: there are no more samples.")
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._last = time.monotonic()

    def end(self) -> None:
        """Lets no new call begin, and returns when none is under way."""
        with self._lock:
            self._is_ending = True
        while self._alive or self._under_way:
            with self._lock:
                if not self._under_way and time.monotonic() - self._last > _QUIET_SECONDS:
                    return
            time.sleep(_QUIET_SECONDS / 10)


_calls = _Calls()
atexit.register(_calls.end)


class _Iterators:
    """Iterators that are gone through by name, from inside of graphs.

    An iterator of a data set has one of these, and nothing says when it is gone: so only the last
    few are kept.

    Args:
        make: Returns an iterator without end.
    """

    def __init__(self, make: Callable[[], Iterator[tuple[np.ndarray, ...]]]):
        self._make: Callable[[], Iterator[tuple[np.ndarray, ...]]] | None = make
        self._names = itertools.count()
        self._begun: dict[int, Iterator[tuple[np.ndarray, ...]]] = {}

    def begin(self) -> np.int64:
        """Returns the name of a new one."""
        if self._make is None:
            raise RuntimeError("The data set of these samples is gone: hold on to it.")
        name = next(self._names)
        self._begun[name] = self._make()
        self._begun.pop(name - _KEPT_ITERATORS, None)
        return np.int64(name)

    def next(self, name: np.int64) -> tuple[np.ndarray, ...]:
        """Returns what is next in this one."""
        with _calls.one_of(self):
            return self._next(name)

    def _next(self, name: np.int64) -> tuple[np.ndarray, ...]:
        begun = self._begun.get(int(name))
        if begun is None:
            raise RuntimeError(
                f"Samples come from the last {_KEPT_ITERATORS} iterators of a data set, as long as "
                "it is there. Use fewer iterators at a time, or make a data set for each."
            )
        return next(begun)

    def close(self) -> None:
        """Drops them all, and what they are made from."""
        self._make = None
        self._begun.clear()


def _from_iterators(
    make: Callable[[], Iterator[tuple[np.ndarray, ...]]],
    signature: tuple[tf.TensorSpec, ...],
    rebuild: Callable[..., PaddedBatch],
) -> tf.data.Dataset:
    """Returns a data set each of whose iterators goes through an iterator of its own from `make`.

    That is what `tf.data.Dataset.from_generator` does. But on Python 3.11 that also fixes, for the
    whole process, from which size on memory comes from the operating system and goes back to it
    (`mallopt`), at 128 KiB. Every larger tensor of a step is then new memory, zeroed page by page.

    Args:
        make: Returns an iterator without end. It is dropped with the data set.
        signature: Of what it yields.
        rebuild: From that, as tensors, to an element of the data set.
    """
    iterators = _Iterators(make)

    # AutoGraph would read and rewrite the source of each of them first.
    @tf.autograph.experimental.do_not_convert
    def follow(name: tf.Tensor) -> PaddedBatch:
        parts = tf.numpy_function(iterators.next, [name], [spec.dtype for spec in signature])
        pairs = zip(parts, signature, strict=True)
        return rebuild(*(tf.ensure_shape(part, spec.shape) for part, spec in pairs))

    @tf.autograph.experimental.do_not_convert
    def of_iterator(_: tf.Tensor) -> tf.data.Dataset:
        name = tf.ensure_shape(tf.numpy_function(iterators.begin, [], tf.int64), [])
        return tf.data.Dataset.from_tensors(name).repeat().map(follow)

    result = tf.data.Dataset.from_tensors(0).flat_map(of_iterator)
    # TensorFlow never forgets a function of Python that is part of a graph.
    weakref.finalize(result, iterators.close).atexit = False
    return result


def _ahead(
    draws: Iterator[_Draw], ask: Callable[[np.ndarray], None], samples: int
) -> Iterator[_Draw]:
    """Yields draws, so many samples after the system was asked for their rows."""
    waiting: collections.deque[_Draw] = collections.deque()
    for draw in draws:
        ask(draw.chosen)
        waiting.append(draw)
        if len(waiting) > samples:
            yield waiting.popleft()
    yield from waiting


def _ask_for_all(arrays: list[np.ndarray], rows: np.ndarray) -> None:
    for array in arrays:
        ask_for(array, rows)


def _rows(array: np.ndarray, chosen: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns these rows of an array; zeros where the mask is false."""
    rows = taken(array, chosen)
    rows[~mask] = np.zeros((), array.dtype)
    return rows


def _spread(found: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns the first rows, as many as a mask has places, at these places among zeros."""
    count = np.count_nonzero(mask)
    if mask[:count].all():
        return found  # There they are, with zeros after them.
    rows = np.zeros_like(found)
    rows[mask] = found[:count]
    return rows


def _check_resolved(policy: Any) -> None:
    if not hasattr(policy, "draw"):
        raise TypeError(f"policy must be one from tfdp.sampling. Received: policy={policy!r}.")
    # Other policies need not follow the number of units.
    has_sizes = "population_size" in getattr(policy, "__dataclass_fields__", ())
    if has_sizes and None in (policy.population_size, policy.expected_batch_size):
        raise ValueError(
            f"{type(policy).__name__} does not know yet how many units there are, and how many "
            "are in a sample. Give policy.resolve(number of units, batch_size). Received: "
            f"policy={policy!r}."
        )


def _as_array(leaf: Any) -> np.ndarray:
    """Returns a part of the data as an array, which is read by position."""
    array = leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
    if not array.ndim or array.dtype.kind not in "biufcSU":
        raise TypeError(
            "Samples are drawn from arrays of numbers or texts with a first axis of examples; a "
            "list stands for several of them, and a dict is one of them by names. Received: "
            f"{type(leaf).__name__} of shape {list(array.shape)} and dtype {array.dtype}."
        )
    return array


def encoded(array: np.ndarray) -> np.ndarray:
    """Returns texts as bytes, in UTF-8, and any other array as it is.

    What TensorFlow calls on the host may return letters of ASCII only. Any other one would end the
    run when its record is drawn, and so would half of a surrogate pair where tensors are made.
    """
    if array.dtype.kind != "U":
        return array
    return np.char.encode(array, "utf-8", "surrogatepass")


def _lists_to_tuples(structure: Any) -> Any:
    if isinstance(structure, Mapping):
        return {key: _lists_to_tuples(part) for key, part in structure.items()}
    if isinstance(structure, (list, tuple)):
        parts = [_lists_to_tuples(part) for part in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else tuple(parts)
    return structure
