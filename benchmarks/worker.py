"""The measuring side of a benchmark: one process that trains one variant, on request.

`measure.Worker` starts it and talks to it, one JSON object a line, through stdin and stdout. It
imports nothing but the standard library before the threads and the memory of the process are
limited, and runs in the interpreter of any peer. An error ends it; the other side reads the last
line of the traceback.
"""

import importlib
import json
import os
import pathlib
import resource
import sys
import time

WARM_UP_STEPS = 2


def resident_mib(field: str = "VmRSS") -> float:
    """Returns memory of this process from /proc: VmRSS, or its peak VmHWM."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {field}.")


def reset_peak() -> None:
    """Makes VmHWM start again from VmRSS."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def limit(threads: int, memory_gib: float) -> None:
    """Keeps this process to so many cores and so much private memory."""
    cores = sorted(os.sched_getaffinity(0))
    if threads > len(cores):
        raise ValueError(f"threads must be at most {len(cores)} here. Received: {threads}.")
    os.sched_setaffinity(0, cores[:threads])
    size = int(memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


class Session:
    """Answers requests about one variant.

    Args:
        options: module and variant: which steps; threads and memory_gib: limits.
    """

    def __init__(self, options: dict):
        limit(options["threads"], options["memory_gib"])
        start = time.perf_counter()
        self._options = options
        self._module = importlib.import_module(options["module"])
        self._module.set_threads(options["threads"])
        self.import_s = time.perf_counter() - start
        self._base_mib = resident_mib()
        self._step = None

    def build(self, options: dict) -> dict:
        """Makes the model, runs the first step, which traces and compiles, and warms up."""
        self._step = None
        start = time.perf_counter()
        step, facts = self._module.make_step(self._options["variant"], options)
        built, built_cpu = time.perf_counter(), time.process_time()
        step()
        first, first_cpu = time.perf_counter(), time.process_time()
        for _ in range(WARM_UP_STEPS):
            warm = time.perf_counter()
            step()
        end = time.perf_counter()
        self._step = step
        before_steps = resident_mib("VmHWM") - self._base_mib
        reset_peak()
        return {
            **facts,
            "build_s": built - start,
            "first_step_s": first - built,
            "first_step_cpu_s": first_cpu - built_cpu,
            "warm_ms": 1e3 * (end - warm),
            "imports_mib": self._base_mib,
            "growth_before_steps_mib": before_steps,
        }

    def time(self, options: dict) -> dict:
        """Times so many steps, after others that are not timed."""
        wall, cpu = [], []
        for _ in range(options["untimed"]):
            self._step()
        for _ in range(options["steps"]):
            start, start_cpu = time.perf_counter(), time.process_time()
            self._step()
            wall.append(1e3 * (time.perf_counter() - start))
            cpu.append(1e3 * (time.process_time() - start_cpu))
        growth = resident_mib("VmHWM") - self._base_mib
        return {"wall_ms": wall, "cpu_ms": cpu, "growth_in_steps_mib": growth}


def main() -> None:
    # What frameworks print to stdout must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session = None
    for line in sys.stdin:
        request = json.loads(line)
        kind = request.pop("request")
        if kind == "open":
            session = Session(request)
            answer = {"import_s": session.import_s}
        else:
            answer = getattr(session, kind)(request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
