"""Norms and clipped sums of convolutions against the ordinary filter gradient, layer by layer.

    python benchmarks/convolution.py --layers resnet cnn large depthwise

For every layer all ways run in turn in one process; times are medians of processor time, so that
other programs on the machine matter little. Printed are milliseconds for a batch: the filter
gradient of an ordinary step, which the way stands in for, and norms and sum by every way that does
not cost five times more than another by the model; in brackets the model's prediction. `--patches`
times the ways to make patches instead: `long runs` as the model chooses, and each of its ways.
"""

import argparse
import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import step_time  # noqa: F401  (it makes tfdp importable)
import tensorflow as tf

from tfdp.gradients.forms import convolution_cost as cost
from tfdp.gradients.forms.convolution import ConvolutionGradient, make_windows
from tfdp.gradients.forms.convolution_depthwise import depthwise

# The model counts multiply-adds of a large matrix product; one takes about this long.
NANOSECONDS = 0.01
# With more, the matrix of a row is huge.
_FEW_CHANNELS = 8
# So many layers of one shape run one after the other, as one call.
COPIES = 4


class Layer(NamedTuple):
    """A layer's shape: that of its input (without channels), of its kernel, and how it goes on."""

    records: int
    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    channels: int
    filters: int
    stride: int = 1
    padding: str = "same"

    def counts(self) -> tuple[int, ...]:
        if self.padding == "same":
            return tuple(-(-size // self.stride) for size in self.sizes)
        return tuple(
            (s - k) // self.stride + 1 for s, k in zip(self.sizes, self.kernel, strict=True)
        )

    def __str__(self):
        sizes, kernel = ("x".join(map(str, x)) for x in (self.sizes, self.kernel))
        return f"{sizes}x{self.channels}, {kernel}/{self.stride} {self.padding} to {self.filters}"


def square(records, size, kernel, channels, filters, stride=1, padding="same"):
    return Layer(records, (size,) * 2, (kernel,) * 2, channels, filters, stride, padding)


LAYERS = {
    "resnet": [
        square(64, 32, 3, 3, 32),
        square(64, 32, 3, 32, 32, 2),
        square(64, 16, 3, 32, 32),
        square(64, 32, 1, 32, 32, 2),
        square(64, 16, 3, 32, 64, 2),
        square(64, 8, 3, 64, 64),
        square(64, 16, 1, 32, 64, 2),
        square(64, 8, 3, 64, 128, 2),
        square(64, 4, 3, 128, 128),
        square(64, 8, 1, 64, 128, 2),
    ],
    "unet": [
        square(16, 64, 3, 3, 16),
        square(16, 64, 3, 16, 16),
        square(16, 32, 3, 16, 32),
        square(16, 32, 3, 32, 32),
        square(16, 16, 3, 32, 64),
        square(16, 16, 3, 64, 64),
        square(16, 32, 3, 64, 32),
        square(16, 64, 3, 32, 16),
        square(16, 64, 1, 16, 2),
    ],
    "cnn": [square(256, 28, 8, 1, 16, 2), square(256, 13, 4, 16, 32, 2, "valid")],
    "large": [
        square(8, 224, 7, 3, 64, 2),
        square(8, 56, 3, 64, 64),
        square(8, 28, 3, 128, 128),
        square(8, 28, 3, 128, 256, 2),
        square(8, 14, 3, 256, 256),
        square(8, 14, 3, 256, 512, 2),
        square(8, 7, 3, 512, 512),
        square(8, 14, 1, 1024, 256),
        square(8, 7, 1, 512, 2048),
        Layer(16, (1024,), (5,), 64, 64),
        Layer(16, (32,), (5,), 256, 256),
        Layer(4, (16, 16, 16), (3, 3, 3), 16, 32),
    ],
    # The transposed ones as the convolutions from their outputs to their inputs, which they are.
    "autoencoder": [
        square(32, 32, 3, 1, 32, 2),
        square(32, 16, 3, 32, 64, 2),
        square(32, 8, 3, 64, 128, 2),
        square(32, 8, 3, 64, 128, 2),
        square(32, 16, 3, 32, 64, 2),
        square(32, 32, 3, 16, 32, 2),
        square(32, 32, 3, 16, 10),
    ],
    # One filter for each channel.
    "depthwise": [
        square(64, 32, 3, 32, 1),
        square(64, 16, 3, 64, 1, 2),
        square(64, 16, 3, 64, 2),
        square(64, 14, 5, 96, 1),
        square(64, 14, 7, 64, 1),
        square(64, 2, 3, 256, 1),
        Layer(64, (128,), (5,), 64, 1),
    ],
}


def random(*shape: int, seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def in_sequence(function: Callable, arguments: list) -> Callable[[], None]:
    """Returns a function that runs the given one on all arguments, one after the other."""

    @tf.function(autograph=False)
    def run(arguments):
        done, numbers = [], []
        for tensors in arguments:
            with tf.control_dependencies(done):
                done = tf.nest.flatten(function(*[tf.identity(t) for t in tensors]))
            numbers += [tf.reshape(result, [-1])[0] for result in done]
        return tf.add_n(numbers)

    return lambda: float(run(arguments))


def times(steps: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Returns medians of processor time in milliseconds; the steps run in turn."""
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(spent.values()))) < 3:
        for name, step in steps.items():
            start = time.process_time()
            step()
            spent[name].append(1e3 * (time.process_time() - start) / COPIES)
    return {name: statistics.median(values) for name, values in spent.items()}


def norms_and_sum(gradient):
    squares = gradient.squared_norms()
    return squares, gradient.weighted_sum(tf.minimum(tf.math.rsqrt(squares), 1.0))


def filter_gradient(layer: Layer, is_depthwise: bool) -> Callable:
    """Returns the ordinary gradient, summed over records, as a function."""
    windows = make_windows(layer.kernel, layer.stride, layer.padding, 1)
    if not is_depthwise:
        return windows.filter_gradient
    strides = [1, layer.stride, layer.stride, 1]

    def of_depthwise(inputs, output_gradient):
        if windows.rank == 1:
            inputs, output_gradient = inputs[:, None], output_gradient[:, None]
        kernel = [1] * (2 - windows.rank) + [*layer.kernel, layer.channels, layer.filters]
        return tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
            input=inputs,
            filter_sizes=kernel,
            out_backprop=output_gradient,
            strides=strides,
            padding=layer.padding.upper(),
        )

    return of_depthwise


def measure(layer: Layer, is_depthwise: bool, seconds: float) -> tuple[dict, dict, str]:
    """Returns measured and predicted milliseconds of all ways, and the name of the chosen one."""
    filters = layer.filters * (layer.channels if is_depthwise else 1)
    arguments = [
        (
            random(layer.records, *layer.sizes, layer.channels, seed=i),
            random(layer.records, *layer.counts(), filters, seed=i),
        )
        for i in range(COPIES)
    ]
    options = {"strides": layer.stride, "padding": layer.padding}
    shape = (*layer.kernel, layer.channels, layer.filters)
    ordinary = {"ordinary": filter_gradient(layer, is_depthwise)}
    if is_depthwise:
        predicted, chosen = {}, "depthwise"
        ways = {"depthwise": lambda *t: norms_and_sum(depthwise(*t, shape, **options))}
    else:
        rank = len(layer.kernel)
        geometry = layer.kernel, (layer.stride,) * rank, (1,) * rank, layer.counts()
        costs = cost.costs(*geometry, layer.channels, layer.filters)
        predicted = {w: 1e-6 * NANOSECONDS * layer.records * c for w, c in costs.items()}
        chosen = min(costs, key=costs.get)
        ways = {
            way: lambda *t, way=way: norms_and_sum(
                ConvolutionGradient(*t, shape, **options, way=way)
            )
            for way in costs
            if costs[way] <= 5 * costs[chosen]
        }
    steps = {name: in_sequence(f, arguments) for name, f in {**ordinary, **ways}.items()}
    return times(steps, seconds), predicted, chosen


def measure_patches(layer: Layer, seconds: float) -> dict[str, float]:
    """Returns milliseconds of the ways to make patches."""
    windows = make_windows(layer.kernel, layer.stride, layer.padding, 1)
    counts = layer.counts()
    arguments = [
        (random(layer.records, *layer.sizes, layer.channels, seed=i),) for i in range(COPIES)
    ]
    ways = {
        "gather": lambda x: windows.patches(x, counts),
        "long runs": lambda x: windows.patches_in_long_runs(x, counts),
    }
    if windows.rank == 2 and layer.channels <= _FEW_CHANNELS:
        together = cost.places_together(layer.kernel[:1], (layer.stride,), (1,))
        for rows, by_matrix in itertools.product(sorted({1, together}), (False, True)):
            runs = cost.LongRuns(rows, by_matrix)
            name = f"{rows} row{'s' * (rows > 1)} by {'matrix' if by_matrix else 'convolution'}"
            ways[name] = functools.partial(windows.patches_in_long_runs, counts=counts, runs=runs)
    if windows.rank == 2:
        ways["extract_patches"] = lambda x: tf.image.extract_patches(
            x,
            [1, *layer.kernel, 1],
            [1, layer.stride, layer.stride, 1],
            [1, 1, 1, 1],
            layer.padding.upper(),
        )
    return times({name: in_sequence(f, arguments) for name, f in ways.items()}, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", nargs="*", choices=sorted(LAYERS), default=["resnet", "cnn"])
    parser.add_argument("--patches", action="store_true", help="time only the making of patches")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each layer")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for name in arguments.layers:
        totals = [0.0, 0.0]
        for layer in LAYERS[name]:
            if arguments.patches:
                found = measure_patches(layer, arguments.seconds)
                print(f"{layer!s:40}", *(f"{way} {ms:.2f}" for way, ms in found.items()))
                continue
            found, predicted, chosen = measure(layer, name == "depthwise", arguments.seconds)
            ways = [
                f"{way} {ms:.2f}" + (f" ({predicted[way]:.2f})" if way in predicted else "")
                for way, ms in found.items()
            ]
            print(f"{layer!s:40} chosen {chosen:10}:", ", ".join(ways), flush=True)
            totals[0] += found["ordinary"]
            totals[1] += found[chosen]
        if not arguments.patches:
            print(f"{name}: ordinary {totals[0]:.1f} ms, norms and sum {totals[1]:.1f} ms")


if __name__ == "__main__":
    main()
