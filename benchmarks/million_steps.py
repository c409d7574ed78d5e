"""What a run of a million steps costs the host: whether any step costs more than those before it.

    python benchmarks/million_steps.py --sampling poisson --ledger memory

Everything is done that `fit` does on the host, and nothing on the device: each step is charged
(`Charging.commit`), `EpsilonLogger` and `PrivacyBudget` see the end of each step and of each epoch,
and a checkpoint of a small private model is written again and again. Printed for every tenth of the
run: processor time of a step, of an epoch's end and of a checkpoint, resident memory, and the sizes
of the ledger and of the checkpoint.
"""

import argparse
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import keras

import tfdp
from tfdp.factorizations import banded_square_root
from tfdp.keras.sampling_of_steps import Batch
from tfdp.query import CorrelatedGaussianSumQuery

POPULATION = 60_000
SAMPLINGS = ("poisson", "shuffled", "allocation", "correlated")
PARTS = ("step", "epoch_end", "checkpoint")


def make_policy(sampling: str, steps_per_pass: int) -> tfdp.sampling.SamplingPolicy:
    """Returns how samples are drawn; a pass of those that have passes is an epoch."""
    batch = POPULATION // steps_per_pass
    if sampling == "poisson":
        return tfdp.sampling.Poisson(1 / steps_per_pass, POPULATION)
    if sampling == "shuffled":
        return tfdp.sampling.Shuffled(batch, POPULATION)
    if sampling == "allocation":
        return tfdp.sampling.RandomAllocation(steps_per_pass, population_size=POPULATION)
    return tfdp.sampling.FixedOrder(batch, POPULATION)


def resident_mib() -> float:
    """Returns the memory of this process that is not swapped out."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Run:
    """A private model of one layer, its ledger and callbacks, and what was spent on each.

    Args:
        sampling: One of `SAMPLINGS`.
        steps: That it will take at most.
        steps_per_epoch: Which is a pass, where there are any.
        on_disk: Whether the ledger is.
        folder: For files.
    """

    def __init__(
        self, sampling: str, steps: int, steps_per_epoch: int, on_disk: bool, folder: pathlib.Path
    ):
        self.path, self.checkpoint = folder / "run.ledger", folder / "run.weights.h5"
        on_file = tfdp.PrivacyLedger.open(self.path, create=True) if on_disk else None
        self.ledger = tfdp.PrivacyLedger() if on_file is None else on_file
        self.steps_per_epoch = steps_per_epoch
        self.model = tfdp.keras.make_private(
            keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        )
        query = tfdp.GaussianSumQuery(1.0, 8.0)
        if sampling == "correlated":
            query = CorrelatedGaussianSumQuery(
                1.0,
                8.0,
                banded_square_root(8),
                steps + steps_per_epoch,  # Its end would begin another run.
                steps_per_epoch,
                self.model.trainable_variables,
            )
        query = tfdp.NormalizedQuery(query, POPULATION / steps_per_epoch)
        self.optimizer = tfdp.keras.DPOptimizer(
            keras.optimizers.SGD(0.1), query, ledger=self.ledger
        )
        self.model.compile(self.optimizer, loss="mse")
        self.optimizer.build(self.model.trainable_variables)
        state = [v for v in self.optimizer.own_variables if v.name == "query_state"]
        self.position = state[1] if state else None  # After the number of the run.
        self.policy = make_policy(sampling, steps_per_epoch)
        self.callbacks = [
            tfdp.keras.EpsilonLogger(1e-5, name="epsilon_spent"),
            tfdp.keras.PrivacyBudget(1e9, 1e-5),
        ]
        for callback in self.callbacks:
            callback.set_model(self.model)
            callback.set_params({"steps": steps_per_epoch})
        self.weights = [v.value for v in self.model.trainable_variables]
        self.place = (0, 0)
        self.epsilon = 0.0
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.times = dict.fromkeys(PARTS, 0)

    def timed(self, part: str, function: Callable[[], None]) -> None:
        """Calls a function and adds what it takes to a part."""
        start = time.process_time()
        function()
        self.seconds[part] += time.process_time() - start
        self.times[part] += 1

    def step(self) -> None:
        """Charges one step and tells the callbacks of it."""
        charging, batch = self.optimizer.charging, Batch(of_fit=True)

        def event():
            release = self.optimizer.next_event().event
            return charging.samples.sampled(release, "example", batch)

        charging.samples.expect_step_of_fit(self.fit)
        with charging.samples.step_of_fit():
            self.place = charging.commit(event, self.weights, *self.place, batch)
        if self.position is not None:
            self.position.assign_add(1)
        for callback in self.callbacks:
            callback.on_train_batch_end(0, {})

    def end_epoch(self) -> None:
        """Tells the callbacks of the end of an epoch."""
        self.optimizer.charging.samples.end_epoch(self.fit)
        logs: dict[str, float] = {}
        for callback in self.callbacks:
            callback.on_epoch_end(0, logs)
        self.epsilon = logs["epsilon"]

    def save(self) -> None:
        """Writes a checkpoint."""
        self.model.save_weights(self.checkpoint)

    def part(self, steps: int, checkpoint_every: int) -> dict[str, Any]:
        """Takes steps and returns what they took.

        Args:
            steps: How many.
            checkpoint_every: Steps between two checkpoints.
        """
        self.seconds, self.times = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0)
        for _ in range(steps):
            self.timed("step", self.step)
            total = self.ledger.total_count
            if total % self.steps_per_epoch == 0:
                self.timed("epoch_end", self.end_epoch)
            if total % checkpoint_every == 0:
                self.timed("checkpoint", self.save)
        milliseconds = {
            f"{part}_ms": 1e3 * self.seconds[part] / max(1, self.times[part]) for part in PARTS
        }
        return {
            "steps": self.ledger.total_count,
            **milliseconds,
            "entries": len(self.ledger),
            "resident_mib": resident_mib(),
            "ledger_kib": self.path.stat().st_size / 2**10 if self.path.exists() else 0.0,
            "checkpoint_kib": self.checkpoint.stat().st_size / 2**10,
            "epsilon": self.epsilon,
        }

    def parts(self, steps: int, number: int, checkpoint_every: int):
        """Yields what each of so many parts of the run took.

        Args:
            steps: Of the whole run.
            number: Of parts.
            checkpoint_every: Steps between two checkpoints.
        """
        charging = self.optimizer.charging
        fitting = charging.samples.fitting(self.policy, drawn=True)
        with fitting as self.fit, charging.temporary_guards():
            for callback in self.callbacks:
                callback.on_train_begin({})
            for _ in range(number):
                yield self.part(steps // number, checkpoint_every)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sampling", choices=SAMPLINGS, default="poisson")
    parser.add_argument("--ledger", choices=("memory", "file"), default="memory")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--steps-per-epoch", type=int, default=250)
    parser.add_argument("--checkpoint-every", type=int, default=10_000)
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--folder", default=None, help="for the files; by default a temporary one")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        run = Run(
            arguments.sampling,
            arguments.steps,
            arguments.steps_per_epoch,
            arguments.ledger == "file",
            pathlib.Path(folder),
        )
        for k, part in enumerate(
            run.parts(arguments.steps, arguments.parts, arguments.checkpoint_every)
        ):
            if arguments.json:
                print(json.dumps(part), flush=True)
                continue
            if k == 0:
                print(" ".join(f"{name:>14}" for name in part))
            print(" ".join(f"{value:14.4g}" for value in part.values()), flush=True)


if __name__ == "__main__":
    main()
