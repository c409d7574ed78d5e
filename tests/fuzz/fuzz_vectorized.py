"""Compares operations on all records at once with as many separate calls: run by hand.

    python tests/fuzz/fuzz_vectorized.py --seconds 2 --out vectorized.json
    python tests/fuzz/fuzz_vectorized.py --only Roll Squeeze array_gather --seconds 20

An operation is called on arguments of which some follow a record, as `map_records` calls it, for as
many records as some axis is long: TensorFlow's conversions that take another axis for that of
records raise nothing then, and mix records. Results, and gradients where there are, are compared
with those of the operation itself. Lists, control flow and functions of several operations are in
`vectorized_calls.py`.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

sys.path.insert(0, os.fspath(pathlib.Path(__file__).resolve().parents[2]))
from tests.fuzz import fuzz_kernels  # noqa: E402

# The verdicts that are findings, the worst first. TensorFlow may differ between operations that run
# at once and those of a graph, and its numbers may be whatever was in the memory.
WORST = ("wrong", "raises", "NaN", "not equal to itself")
# The largest number of records; findings that are kept of one operation; how often arguments are
# tried that tfdp has refused to let follow a record; and how many kinds of records one call gets.
MOST_RECORDS, KEPT, TRIES, KINDS = 8, 6, 2, 6


def main() -> None:
    """Runs the operations in processes of their own, as a crash ends one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", help="names of operations; by default all")
    parser.add_argument("--seconds", type=float, default=2, help="for each operation, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, help="file for all results")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.worker:
        import tensorflow as tf

        tf.zeros([])
        for line in sys.stdin:
            name, seed = line.split()
            print(json.dumps(compared(name, arguments.seconds, int(seed))), flush=True)
        return
    results = {}
    worker = Worker(arguments.seconds, arguments.seed)
    for name in arguments.only or names():
        results[name] = found = worker.result(name)
        if found["verdict"] != "equal":
            print(name, found["verdict"], found.get("how", ""), flush=True)
    worker.stop()
    print(dict(collections.Counter(found["verdict"] for found in results.values())))
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1))


class Worker(fuzz_kernels.Worker):
    """As that of `fuzz_kernels`, of this script."""

    def __init__(self, seconds: float, seed: int):
        self._seconds, self._seed = seconds, seed
        self._command = [sys.executable, __file__, "--worker", "--seconds", str(seconds)]
        self._start()


def names() -> list[str]:
    """Returns those of functions of several operations, and of operations that TensorFlow converts
    or that tfdp calls on a record's numbers, without those of lists and variables.
    """
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry
    from tensorflow.python.ops.parallel_for import pfor

    from tests.fuzz import vectorized_calls

    handles = {tf.variant.as_datatype_enum, tf.resource.as_datatype_enum}
    definitions = filter(None, map(op_def_registry.get, pfor._pfor_converter_registry))
    converted = {d.name for d in definitions if not handles & {a.type for a in d.input_arg}}
    return [*vectorized_calls.FUNCTIONS, *sorted(converted | set(fuzz_kernels.operations()))]


def compared(name: str, seconds: float, seed: int) -> dict[str, Any]:
    """Returns what came of one operation.

    Args:
        name: The operation, or a function of `vectorized_calls`.
        seconds: How long to try, at most.
        seed: Of what is drawn.
    """
    from tensorflow.python.framework import op_def_registry

    from tests.fuzz import vectorized_calls

    definition = op_def_registry.get(name)
    draws = definition is not None and definition.is_stateful
    draw = random.Random(f"{name} {seed}")
    end = time.monotonic() + seconds
    counts: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[Any] = collections.Counter()
    findings: dict[Any, str] = {}
    why: collections.Counter[str] = collections.Counter()
    calls = 0
    while time.monotonic() < end:
        if name in vectorized_calls.FUNCTIONS:
            call = vectorized_calls.Call(name, draw)
        else:
            try:
                call = fuzz_kernels.Call(name, draw)
            except AttributeError as error:  # It is not in `tf.raw_ops`.
                return {"verdict": "not called", "how": str(error)}
        message = call.outcome(call.inputs)
        if message is not None:
            why[message[:80]] += 1
            continue
        calls += 1
        case = Case(call, draw, draws)
        for own, count in case.kinds():
            if time.monotonic() > end:
                break
            if any(refused[o] >= TRIES and set(o) <= set(own) for o in list(refused)):
                continue
            rows, known = draw.random() < 0.5, draw.random() < 0.7
            described = f"{case.described(own)} n={count} rows={rows} lengths={known}"
            print("doing", described, flush=True)
            verdict, how = case.verdict(own, count, rows, known)
            if verdict == "refused":
                refused[own] += how.startswith(("RecordDependentShape", "RefusedKernel"))
                verdict = f"refused: {how[:100]}"
            counts[verdict] += 1
            if verdict in WORST:
                findings.setdefault((verdict, own), f"{verdict}: {described}: {how}")
        print("doing", flush=True)
    found: dict[str, Any] = {"calls": calls, "counts": dict(counts)}
    if findings:
        worst = next(verdict for verdict in WORST if counts[verdict])
        texts = sorted(findings.values(), key=lambda text: not text.startswith(worst))[:KEPT]
        return {"verdict": worst, "how": "\n    ".join(["", *texts])} | found
    if counts["equal"] or counts["equal in turn"]:
        return {"verdict": "equal"} | found
    if calls:
        return {
            "verdict": "refused",
            "how": max(counts, key=counts.__getitem__, default=""),
        } | found
    return {"verdict": "not called", "how": max(why, key=why.__getitem__, default="")} | found


class Case:
    """A call of which some arguments may follow a record.

    Args:
        call: Of `fuzz_kernels` or `vectorized_calls`, after it was called.
        draw: For what is drawn.
        draws: Whether every call gives other results.
    """

    def __init__(self, call: Any, draw: random.Random, draws: bool):
        import tensorflow as tf

        self._call, self._draw, self._draws = call, draw, draws
        self._flat = [np.asarray(leaf) for leaf in tf.nest.flatten(call.inputs)]
        self._lengths = {n for leaf in self._flat for n in leaf.shape}
        self._lengths |= {n for shape in call.shapes for n in shape}

    def kinds(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yields places of arguments that follow a record, and how many records there are."""
        draw, places = self._draw, range(len(self._flat))
        counts = sorted(n for n in self._lengths | {1, 2} if 0 < n <= MOST_RECORDS)
        for _ in range(KINDS if self._flat else 0):
            own = tuple(i for i in places if draw.random() < 0.5) or (draw.choice(places),)
            yield (tuple(places) if draw.random() < 0.2 else own), draw.choice(counts)

    def described(self, own: tuple[int, ...]) -> str:
        """Returns the arguments, in a line, and which of them follow a record."""
        shapes = [
            f"{'own ' * (i in own)}{leaf.dtype}{list(leaf.shape)}"
            for i, leaf in enumerate(self._flat)
        ]
        call = self._call
        return f"{', '.join(shapes)} {call.described({})} {call.described(call.inputs)}"

    def verdict(self, own: tuple[int, ...], count: int, rows: bool, known: bool) -> tuple[str, str]:
        """Returns what `map_records` makes of the call, and how.

        Args:
            own: Which arguments follow a record.
            count: How many records there are.
            rows: Whether that is told.
            known: Whether the lengths of what follows a record are.
        """
        import tensorflow as tf

        from tfdp.gradients.mapping import map_records

        leaves = [self._others(self._flat[i], count) for i in own]
        weights = [self._weights(shape) for shape in self._call.shapes]
        specs = [
            tf.TensorSpec(leaf.shape if known else [count, *[None] * (leaf.ndim - 1)], leaf.dtype)
            for leaf in leaves
        ]
        for with_gradients in [True, False]:
            given = weights if with_gradients else None

            def one(record, given=given):
                return self._one(own, [leaf[0] for leaf in record], given)

            with warnings.catch_warnings(record=True) as notes:
                warnings.simplefilter("always")
                try:
                    mapped = map_records(one, specs, count if rows else None)[0]
                    break
                except Exception as error:  # Nothing ran, and whoever trains is told.
                    how = f"{type(error).__name__}: {error}".replace("\n", " ")
        else:
            return "refused", how
        try:
            expected = [self._one(own, [leaf[i] for leaf in leaves], given) for i in range(count)]
        except (tf.errors.OpError, ValueError, TypeError, AttributeError, LookupError) as error:
            return "not for these numbers", str(error)
        if not all(_shapes(e) == _shapes(expected[0]) for e in expected):
            return "results of another size", ""
        in_turn = any("one example at a time" in str(note.message) for note in notes)
        try:
            found = [t.numpy() for t in mapped(*map(tf.constant, leaves))]
        except (tf.errors.OpError, ValueError) as error:
            verdict, how = "raises", f"{type(error).__name__}: {error}".replace("\n", " ")[-300:]
        else:
            verdict, how = ("draws", "") if self._draws else _verdict(found, expected)
        if verdict not in WORST:
            return f"{verdict} in turn" if in_turn else verdict, how
        one_specs = [tf.TensorSpec([1, *spec.shape[1:]], spec.dtype) for spec in specs]
        alone = []
        try:
            for i in range(count):  # Each in a graph of its own, as some keep what they write.
                of_one = tf.function(lambda *record: one(list(record)), autograph=False)
                of_one = of_one.get_concrete_function(*one_specs)
                tensors = of_one(*(tf.constant(leaf[i : i + 1]) for leaf in leaves))
                alone.append([t.numpy() for t in tensors])
        except (tf.errors.OpError, ValueError):
            return "raises in a graph, too", how
        if verdict != "raises" and _verdict(found, alone)[0] == "equal":
            return "equal in a graph only", how
        itself = _verdict([np.stack(parts) for parts in zip(*alone, strict=True)], expected)[0]
        return verdict if itself == "equal" else "not equal to itself", how

    def _one(self, own: tuple[int, ...], record: list[Any], weights: Any = None) -> list[Any]:
        """Returns the results of one record, and the gradients of a sum of them."""
        import tensorflow as tf

        flat: list[Any] = [tf.constant(leaf) for leaf in self._flat]
        for i, leaf in zip(own, record, strict=True):
            flat[i] = tf.convert_to_tensor(leaf)
        smooth = [t for t in flat if t.dtype.is_floating or t.dtype.is_complex]
        with tf.GradientTape() as tape:
            tape.watch(smooth)
            results = self._call.outputs(tf.nest.pack_sequence_as(self._call.inputs, flat))
            results = [t for t in results if t.dtype not in (tf.variant, tf.resource)]
            sums = []
            if weights is not None:
                for t, weight in zip(results, weights, strict=True):
                    if t.dtype.is_floating or t.dtype.is_complex:
                        product = tf.math.real(t * tf.cast(weight, t.dtype))
                        sums.append(tf.cast(tf.reduce_sum(product), tf.float64))
            total = tf.add_n(sums) if sums else None
        if total is None or not smooth:
            return _plain(results)
        zero = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(total, smooth, unconnected_gradients=zero)
        return _plain([*results, *map(tf.convert_to_tensor, gradients)])

    def _weights(self, shape: Any) -> Any:
        size = int(np.prod(shape.as_list()))
        return np.array([self._draw.gauss(0, 1) for _ in range(size)]).reshape(shape)

    def _others(self, value: Any, count: int) -> Any:
        """Returns as many arrays like one, the first of which it is."""
        return np.stack([value, *(self._other(value) for _ in range(count - 1))])

    def _other(self, value: Any) -> Any:
        draw, flat = self._draw, value.ravel().tolist()
        if value.dtype == object:
            flat = [draw.choice([b"a", b"bc", b"1"]) for _ in flat]
        elif value.dtype == bool:
            flat = [draw.random() < 0.5 for _ in flat]
        elif value.dtype.kind in "iu":
            if draw.random() < 0.5:
                draw.shuffle(flat)
            else:
                low, high = (min(flat), max(flat)) if flat else (0, 0)
                flat = [draw.randint(min(low, 0), max(high, 1)) for _ in flat]
        else:
            draw.shuffle(flat)
            flat = [number * draw.uniform(0.5, 1.5) for number in flat]
        return np.array(flat, value.dtype).reshape(value.shape)


def _plain(results: list[Any]) -> list[Any]:
    """Returns arrays in the place of tensors that have numbers."""
    return [t.numpy() if hasattr(t, "numpy") else t for t in results]


def _shapes(arrays: list[Any]) -> list[Any]:
    return [np.shape(array) for array in arrays]


def _verdict(found: list[Any], expected: list[list[Any]]) -> tuple[str, str]:
    """Returns whether results of all records are those of each, and how they differ."""
    wanted = [np.stack(parts) for parts in zip(*expected, strict=True)]
    differences = [_difference(a, b) for a, b in zip(found, wanted, strict=False)]
    for worst in ("wrong", "NaN"):
        for i, difference in enumerate(differences):
            if difference is not None and difference[0] == worst:
                return worst, f"result {i}: {difference[1]}"
    return "equal", ""


def _difference(found: Any, wanted: Any) -> tuple[str, str] | None:
    """Returns whether and how arrays of records differ, by more than rounding."""
    if found.shape != wanted.shape:
        return "wrong", f"shape {found.shape}, not {wanted.shape}"
    if wanted.dtype.kind in "biuSO" or wanted.size == 0:
        same = np.array_equal(found, wanted)
        return None if same else ("wrong", f"{found.tolist()}, not {wanted.tolist()}")
    is_complex = wanted.dtype.kind == "c"
    tolerance = {2: 0.06, 4: 2e-3}.get(wanted.dtype.itemsize // (2 if is_complex else 1), 1e-6)
    kind = "complex128" if is_complex else "float64"
    found, wanted = found.astype(kind), wanted.astype(kind)
    sizes = np.abs(wanted).reshape(len(wanted), -1)
    sizes = np.max(np.where(np.isfinite(sizes), sizes, 0), 1).reshape(
        [-1] + [1] * (wanted.ndim - 1)
    )
    with np.errstate(all="ignore"):
        near = np.abs(found - wanted) <= tolerance * (sizes + 1e-6)
    near |= found == wanted
    # What kernels leave beside numbers that are none is whatever was in the memory.
    axes = tuple(range(1, wanted.ndim))
    near |= np.isnan(found).any(axes, keepdims=True) & np.isnan(wanted).any(axes, keepdims=True)
    if near.all():
        return None
    how = f"{found.tolist()}, not {wanted.tolist()}"[:600]
    return "NaN" if (near | np.isnan(found)).all() else "wrong", how


if __name__ == "__main__":
    main()
