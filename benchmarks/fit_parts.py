"""Where the time of a step of `fit` goes: the input, the step itself, and what is around both.

    python benchmarks/fit_parts.py --model two_layers tabular --batch-size 8 256

Processor time on one thread, in milliseconds a step, plain / private. `fit` is an epoch of the
model as in `fit.py`, by its steps. The input alone is the same data set, taken through once more,
or the same draws where `fit` draws between the steps; the step alone is the same compiled function
or loop on one of its batches, again and again. Everything is done in turn, and the numbers are
medians.
"""

import inspect
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import step_time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

PARTS = ("fit", "input alone", "step alone")


def parts_of(name: str, batch_size: int, variant: str, steps: int) -> dict[str, Callable[[], Any]]:
    """Returns functions that take so many steps of a part."""
    from keras.src.backend.tensorflow import trainer
    from peers import fit_steps

    from tfdp.keras import distributed_data, small_samples

    options = {"model": name, "batch_size": batch_size, "steps": steps, "engine": "auto"}
    epoch, _ = fit_steps.make_step(variant, options)
    epoch()  # One step, which traces.
    seen = []

    class Watched(trainer.TFEpochIterator):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            seen.append(self._distributed_dataset)

    drawn = []

    class Noted(small_samples.SmallSamples):
        def take_steps(self, loop: Any, *arguments: Any) -> Any:
            drawn.append((self, loop))
            return super().take_steps(loop, *arguments)

    with (
        mock.patch.object(trainer, "TFEpochIterator", Watched),
        mock.patch.object(distributed_data, "SmallSamples", Noted),
    ):
        epoch()
    model = inspect.getclosurevars(epoch).nonlocals["model"]
    if variant == "private" and drawn:
        parts = parts_between_steps(*drawn[-1], steps)
    else:
        parts = parts_of_data_set(seen[-1], model.train_function, steps)
    parts[-1]()
    return dict(zip(PARTS, (epoch, *parts), strict=True))


def parts_of_data_set(data: Any, step: Any, steps: int) -> tuple[Callable[[], None], ...]:
    """Returns functions that go through a data set, and that step on one of its batches."""
    import tensorflow as tf

    same = iter(tf.data.Dataset.from_tensors(next(iter(data))).repeat())

    def take_all() -> None:
        batches = iter(data)
        for _ in range(steps):
            next(batches)

    def step_often() -> None:
        for _ in range(steps):
            step(same)

    return take_all, step_often


def parts_between_steps(samples: Any, loop: Any, steps: int) -> tuple[Callable[[], None], ...]:
    """As `parts_of_data_set`, of samples that `fit` draws between the steps."""
    same, traced = samples.draw(), loop.traced(samples.samples)

    def draw_all() -> None:
        for _ in range(steps):
            samples.draw()

    def step_often() -> None:
        loop.run(traced, lambda: same, steps)

    return draw_all, step_often


def measure(name: str, batch_size: int, steps: int, rounds: int) -> dict[str, list[float]]:
    """Returns milliseconds of processor time a step: of each part, plain and private."""
    variants = [parts_of(name, batch_size, variant, steps) for variant in ("keras", "private")]
    found: dict[str, list[list[float]]] = {part: [[], []] for part in PARTS}
    for _ in range(rounds):
        for part in PARTS:
            for number, parts in enumerate(variants):
                start = time.process_time()
                parts[part]()
                found[part][number].append((time.process_time() - start) * 1e3 / steps)
    return {part: [statistics.median(times) for times in found[part]] for part in PARTS}


def main() -> None:
    """Prints a table."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import fit_models
    import tensorflow as tf

    parser = step_time.parser_of(__doc__)
    parser.add_argument("--model", nargs="+", choices=list(fit_models.MODELS), required=True)
    parser.add_argument("--batch-size", nargs="+", type=int, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    for set_threads in (
        tf.config.threading.set_intra_op_parallelism_threads,
        tf.config.threading.set_inter_op_parallelism_threads,
    ):
        set_threads(1)
    print(f"| model | {' | '.join(PARTS)} |\n|---|---|---|---|")
    for name in arguments.model:
        for batch_size in arguments.batch_size:
            found = measure(name, batch_size, arguments.steps, arguments.rounds)
            cells = [f"{plain:.2f} / {private:.2f}" for plain, private in found.values()]
            print(f"| {name}, batch {batch_size} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
