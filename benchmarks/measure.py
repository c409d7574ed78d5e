"""The asking side of a benchmark: starts workers, times them in turn, summarises."""

import dataclasses
import json
import os
import pathlib
import re
import selectors
import statistics
import subprocess
import sys
import tempfile
from typing import NamedTuple

Rounds = dict[int, list[float]]
HERE = pathlib.Path(__file__).parent

# Variant: module that makes its step. Keras' and tfdp's run in this interpreter.
MODULES = {
    "keras": "peers.keras_steps",
    "keras_xla": "peers.keras_steps",
    "private": "peers.keras_steps",
    "private_xla": "peers.keras_steps",
    "torch": "peers.torch_steps",
    "opacus": "peers.torch_steps",
    "opacus_ew": "peers.torch_steps",
    "opacus_ghost": "peers.torch_steps",
    "jax": "peers.jax_steps",
    "jax_privacy": "peers.jax_steps",
}
ORDINARY = ("keras", "keras_xla")
PRIVATE = ("private", "private_xla")
# A peer's own ordinary step.
ORDINARY_OF = {
    "opacus": "torch",
    "opacus_ew": "torch",
    "opacus_ghost": "torch",
    "jax_privacy": "jax",
}


class WorkerError(RuntimeError):
    """A worker could not do what it was asked for."""


class Worker:
    """A process that trains one variant on request. A context manager.

    Args:
        variant: Name of the step.
        module: Module that makes it.
        python: Interpreter; this one by default.
        threads: Cores, and threads of every pool.
        memory_gib: Most private memory; a variant that needs more fails.
        timeout_s: Longest wait for one answer.
    """

    def __init__(
        self,
        variant: str,
        module: str,
        *,
        python: str | None = None,
        threads: int,
        memory_gib: float,
        timeout_s: float = 900,
    ):
        path = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": str(threads),
        }
        self._timeout_s = timeout_s
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            [python or sys.executable, str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        opening = {"variant": variant, "module": module}
        try:
            self.ask("open", **opening, threads=threads, memory_gib=memory_gib)
        except WorkerError:
            self.close()
            raise

    def ask(self, request: str, **options) -> dict:
        """Sends a request and returns the answer.

        Raises:
            WorkerError: it failed, died or took too long.
        """
        try:
            self._process.stdin.write(json.dumps({"request": request, **options}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._epitaph()) from None
        if not self._selector.select(self._timeout_s):
            self._process.kill()
            raise WorkerError(f"no answer within {self._timeout_s} s")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(self._epitaph())
        return json.loads(line)

    def _epitaph(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        return f"exit status {code}: {last_error(self._log.read())}"

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        self._selector.close()
        self._process.stdin.close()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def last_error(log: str) -> str:
    """Returns what is left of a traceback when the calls are left out, in 300 characters."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [i for i, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return " / ".join(lines[errors[-1] :] if errors else lines[-1:])[:300] or "no message"


@dataclasses.dataclass
class Timings:
    """Times of one variant, in ms: for a round, those of its steps."""

    wall_ms: Rounds = dataclasses.field(default_factory=dict)
    cpu_ms: Rounds = dataclasses.field(default_factory=dict)


def alternate(
    workers: dict[str, Worker],
    warm_ms: dict[str, float],
    rounds: int,
    block_s: float,
) -> tuple[dict[str, Timings], dict[str, float], dict[str, str]]:
    """Times all workers in turn, a block of steps each, so that what else happens hits all.

    Args:
        workers: The processes, built.
        warm_ms: About how long a step takes.
        rounds: Most blocks of each.
        block_s: About how long a block is to take.

    Returns:
        (timings, largest growth of memory in MiB, what failed and why), by name.
    """
    timings = {name: Timings() for name in workers}
    growth = dict.fromkeys(workers, 0.0)
    failures: dict[str, str] = {}
    for index in range(rounds):
        for name, worker in workers.items():
            block = Block.of(warm_ms[name], rounds, block_s)
            if name in failures or index % block.every:
                continue
            try:
                answer = worker.ask("time", steps=block.steps, untimed=block.untimed)
            except WorkerError as error:
                failures[name] = str(error)
                continue
            timings[name].wall_ms[index] = answer["wall_ms"]
            timings[name].cpu_ms[index] = answer["cpu_ms"]
            growth[name] = max(growth[name], answer["growth_in_steps_mib"])
    return timings, growth, failures


class Block(NamedTuple):
    """How many steps to time in a block, and how many to run before; and in which rounds."""

    steps: int
    untimed: int
    every: int

    @classmethod
    def of(cls, step_ms: float, rounds: int, block_s: float) -> "Block":
        """Returns a block of about `block_s`; longer steps are timed one at a time, and less often,
        but in five rounds at least.
        """
        blocks_per_step = step_ms / (1e3 * block_s)
        if blocks_per_step < 1:
            # The step before those that are timed finds cold caches and sleeping threads.
            return cls(min(round(1 / blocks_per_step), 50), 1, 1)
        return cls(1, 0, max(min(round(blocks_per_step), rounds // 5), 1))


def summary(values: list[float]) -> dict[str, float]:
    """Returns median and quartiles."""
    if len(values) < 2:
        return dict.fromkeys(("median", "lower_quartile", "upper_quartile"), values[0])
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "lower_quartile": lower, "upper_quartile": upper}


def ratio(numerator: Rounds, denominator: Rounds) -> dict[str, float]:
    """Returns the ratio of the medians, and the quartiles of the ratios of the rounds' medians."""
    medians = [
        statistics.median(numerator[index]) / statistics.median(denominator[index])
        for index in sorted(numerator.keys() & denominator.keys())
    ]
    spread = summary(medians)
    return {
        "ratio": statistics.median(flat(numerator)) / statistics.median(flat(denominator)),
        "lower_quartile": spread["lower_quartile"],
        "upper_quartile": spread["upper_quartile"],
    }


def flat(rounds: Rounds) -> list[float]:
    """Returns the steps of all rounds."""
    return [value for steps in rounds.values() for value in steps]


def default_memory_gib() -> float:
    """Returns half of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**31
