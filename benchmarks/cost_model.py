"""Whether tfdp.gradients picks the fastest way to norms and clipped sums, layer by layer.

    python benchmarks/cost_model.py

For every shape, all ways to a layer's squared norms and clipped sum run in turn in one process, on
one core; times are medians of processor time. Printed are the way that the cost model picks, the
fastest one, and what the choice costs: its time over the fastest's. "vectorized" is the gradient of
every record by tf.vectorized_map, which the book-keeping engine does not use for these layers.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import step_time  # noqa: E402, F401  (it makes tfdp importable)
import tensorflow as tf  # noqa: E402

from tfdp.gradients import Explicit, PerRecordGradient, Rows, matrix_gradient  # noqa: E402
from tfdp.gradients.forms import convolution_cost as cost
from tfdp.gradients.forms import products as products_module
from tfdp.gradients.forms import rows as rows_module
from tfdp.gradients.forms.convolution import ConvolutionGradient

RECORDS = 32
POSITIONS = (1, 16, 64, 256, 1024)
MATRICES = ((64, 64), (128, 128), (128, 512), (512, 512), (1024, 1024))
EMBEDDINGS = (16, 64, 128, 256, 512, 1024, 2048)
TABLE = 8000, 128
# Side of the input, channels, side of the kernel, stride, padding, filters.
CONVOLUTIONS = {
    "cnn": [(28, 1, 8, 2, "same", 16), (13, 16, 4, 2, "valid", 32)],
    "resnet": [
        (32, 3, 3, 1, "same", 32),
        (32, 32, 3, 2, "same", 32),
        (16, 32, 3, 1, "same", 32),
        (32, 32, 1, 2, "same", 32),
        (16, 32, 3, 2, "same", 64),
        (8, 64, 3, 1, "same", 64),
        (16, 32, 1, 2, "same", 64),
        (8, 64, 3, 2, "same", 128),
        (4, 128, 3, 1, "same", 128),
        (8, 64, 1, 2, "same", 128),
    ],
    "large": [
        (64, 16, 3, 1, "same", 16),
        (64, 48, 3, 1, "same", 16),
        (32, 32, 3, 1, "same", 32),
        (64, 3, 7, 2, "same", 64),
    ],
}


class Case(NamedTuple):
    """A layer's shape: what the engine has at hand, and the ways on from there.

    Attributes:
        name: The shape in words.
        tensors: Arguments of every way.
        ways: Name of a way: function from the tensors to the gradients in some form.
        chosen: The way that the cost model picks.
        predicted: Cost of each way by the model, in multiply-adds of all records; may be empty.
    """

    name: str
    tensors: list[tf.Tensor]
    ways: dict[str, Callable[..., PerRecordGradient]]
    chosen: str
    predicted: dict[str, float]


def random(*shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))


def dense(positions: int, rows: int, columns: int) -> Case:
    """Returns the case of a dense layer of rows x columns."""

    def vectorized(left, right):
        product = functools.partial(tf.matmul, transpose_a=True)
        return Explicit(tf.vectorized_map(lambda pair: product(*pair), (left, right)))

    ways = {"vectorized": vectorized}
    tensors = [random(RECORDS, positions, rows), random(RECORDS, positions, columns)]
    name = f"dense {rows} x {columns}, {positions} positions"
    if positions == 1:
        return Case(name, tensors, {"norms": matrix_gradient, **ways}, "norms", {})
    ways["gram"] = functools.partial(matrix_gradient, gram=True)
    ways["explicit"] = functools.partial(matrix_gradient, gram=False)
    chosen = "gram" if products_module.gram_is_cheaper(positions, rows, columns) else "explicit"
    return Case(name, tensors, ways, chosen, {})


def embedding(positions: int) -> Case:
    """Returns the case of an embedding of so many tokens."""
    num_rows, width = TABLE
    ids = tf.constant(np.random.default_rng(1).integers(0, num_rows, (RECORDS, positions)))
    ways = {
        "matrix": lambda ids, rows: _RowsBy(ids, rows, num_rows, few_positions=positions),
        "sorting": lambda ids, rows: _RowsBy(ids, rows, num_rows, few_positions=0),
    }
    chosen = "matrix" if positions <= rows_module._FEW_POSITIONS else "sorting"
    tensors = [ids, random(RECORDS, positions, width)]
    return Case(f"embedding, {positions} positions", tensors, ways, chosen, {})


class _RowsBy(Rows):
    """Rows with a threshold of its own between a matrix and sorting."""

    def __init__(self, ids, rows, num_rows, few_positions):
        super().__init__(ids, rows, num_rows)
        self._few = few_positions

    def squared_norms(self):
        with _few_positions(self._few):
            return super().squared_norms()


@contextlib.contextmanager
def _few_positions(value: int) -> Iterator[None]:
    before, rows_module._FEW_POSITIONS = rows_module._FEW_POSITIONS, value
    try:
        yield
    finally:
        rows_module._FEW_POSITIONS = before


def convolution(workload: str, side, channels, kernel, stride, padding, filters) -> Case:
    """Returns the case of a two-dimensional convolution."""
    counts = -(-(side if padding == "same" else side - kernel + 1) // stride)
    shape = (kernel, kernel, channels, filters)

    def vectorized(inputs, output_gradient):
        def filter_gradient(pair):
            return tf.raw_ops.Conv2DBackpropFilter(
                input=pair[0][None],
                filter_sizes=shape,
                out_backprop=pair[1][None],
                strides=[1, stride, stride, 1],
                padding=padding.upper(),
            )

        return Explicit(tf.vectorized_map(filter_gradient, (inputs, output_gradient), warn=False))

    costs = cost.costs(
        (kernel, kernel), (stride, stride), (1, 1), (counts, counts), channels, filters
    )
    # Others would take gigabytes: the Gram matrices of large images.
    by_way = {way: value for way, value in costs.items() if value <= 20 * min(costs.values())}
    ways = {
        way: functools.partial(
            ConvolutionGradient, kernel_shape=shape, strides=stride, padding=padding, way=way
        )
        for way in by_way
    }
    return Case(
        f"{workload}: {kernel}x{kernel}/{stride} {padding}, {side}x{side}x{channels} to {filters}",
        [random(RECORDS, side, side, channels), random(RECORDS, counts, counts, filters)],
        {"vectorized": vectorized, **ways},
        min(by_way, key=by_way.get),
        {way: RECORDS * value for way, value in by_way.items()},
    )


def cases(quick: bool) -> list[Case]:
    """Returns all cases, or the small ones."""
    positions = [t for t in POSITIONS if not quick or t <= 64]
    matrices = [m for m in MATRICES if not quick or max(m) <= 512]
    tokens = [t for t in EMBEDDINGS if not quick or t <= 256]
    return [
        *(dense(t, *matrix) for matrix in matrices for t in positions),
        *(embedding(t) for t in tokens),
        *(convolution(name, *shape) for name in CONVOLUTIONS for shape in CONVOLUTIONS[name]),
    ]


def norms_and_sum(way: Callable[..., PerRecordGradient], *tensors: tf.Tensor):
    """Returns the squared norms, and the sum of gradients clipped at norm 1."""
    gradient = way(*tensors)
    squares = gradient.squared_norms()
    return squares, gradient.weighted_sum(tf.minimum(tf.math.rsqrt(squares), 1.0))


def check(case: Case) -> None:
    """Holds the results of all ways against each other.

    Sums are those with the same factors. Norms may be too large, by a bound on rounding errors,
    which at 1024 positions is 3e-3 of the square; but not too small.

    Raises:
        ValueError: two ways disagree.
    """
    factors = tf.constant(np.linspace(0, 1, RECORDS), tf.float32)
    gradients = {name: way(*case.tensors) for name, way in case.ways.items()}
    squares = {name: gradient.squared_norms().numpy() for name, gradient in gradients.items()}
    sums = {name: gradient.weighted_sum(factors).numpy() for name, gradient in gradients.items()}
    least = np.min(list(squares.values()), axis=0)
    for name in case.ways:
        apart = np.linalg.norm(sums[name] - sums[case.chosen])
        if apart > 1e-4 * np.linalg.norm(sums[case.chosen]) or np.any(squares[name] > 1.01 * least):
            raise ValueError(f"{case.name}: {name} and {case.chosen} disagree.")


def measure_case(case: Case, seconds: float) -> dict:
    """Times all ways of a case in turn, and holds their results against each other."""
    steps = {
        name: tf.function(functools.partial(norms_and_sum, way), autograph=False)
        for name, way in case.ways.items()
    }
    for step in steps.values():
        step(*case.tensors)
    check(case)
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[case.chosen]) < 5:
        for name, step in steps.items():
            start = time.process_time()
            np.asarray(step(*case.tensors)[1])
            times[name].append(1e3 * (time.process_time() - start))
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = min(medians, key=medians.get)
    return {
        "case": case.name,
        "ms": medians,
        "chosen": case.chosen,
        "best": best,
        "lost": medians[case.chosen] / medians[best],
        "predicted": case.predicted,
    }


def summary(rows: list[dict], factor: float = 1.25) -> dict[str, float]:
    """Returns how many choices are within a factor of the best, and the worst."""
    lost = [row["lost"] for row in rows]
    return {
        "cases": len(lost),
        "share_within_factor": sum(value <= factor for value in lost) / len(lost),
        "factor": factor,
        "largest_loss": max(lost),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="for each case")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--quick", action="store_true", help="small shapes, a fifth of the time")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    # Of one thread, processor time is what the work costs, whatever else the machine does.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.get_logger().setLevel("ERROR")
    seconds = arguments.seconds / 5 if arguments.quick else arguments.seconds
    rows = []
    for case in cases(arguments.quick):
        if arguments.only not in case.name:
            continue
        rows.append(measure_case(case, seconds))
        if not arguments.json:
            ways = ", ".join(f"{name} {ms:.2f}" for name, ms in rows[-1]["ms"].items())
            print(
                f"{case.name:45} chosen {case.chosen:10} best {rows[-1]['best']:10} "
                f"lost {rows[-1]['lost']:5.2f}  (ms: {ways})",
                flush=True,
            )
    totals = summary(rows)
    if arguments.json:
        print(json.dumps({"cases": rows, "summary": totals}, indent=1))
        return
    print(
        f"{totals['share_within_factor']:.0%} of {totals['cases']} choices are within "
        f"{totals['factor']} of the fastest; the worst costs {totals['largest_loss']:.2f} times it"
    )


if __name__ == "__main__":
    main()
