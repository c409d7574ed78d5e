"""Breaks the mechanism on purpose, one way after another, and sees whether the tests notice.

    python tests/mutation/mutants.py [--jobs 2] [--only NAME ...] [--json FILE]

Every mutant of `mutant_table.py` is applied to a temporary copy of the repository, where its tests
are run until the first that fails. At the end the tests that failed are run without any mutant, and
must pass. The script fails where a mutant survives, or its text is no longer in the source. Results
are written to docs/mutants.md once there is one for every mutant; `--json` keeps them between runs.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutation.mutant import Mutant  # noqa: E402
from tests.mutation.mutant_table import MUTANTS  # noqa: E402

_MINUTES = 10
_COPIED = (
    "tfdp",
    "tests",
    "tutorials",
    "benchmarks",
    "docs",
    "pyproject.toml",
    "setup.py",
    "README.md",
)


class Outcome(NamedTuple):
    """What became of a mutant.

    Attributes:
        status: "caught", "survived", or what went wrong.
        by: The first failing test.
        seconds: Processor time.
    """

    status: str
    by: str
    seconds: float


def occurrences(mutant: Mutant, root: pathlib.Path = ROOT) -> int:
    """Returns how often the text of a mutant is in its file."""
    path = root / mutant.file
    return path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else 0


def _copy(folder: str) -> pathlib.Path:
    copy = pathlib.Path(folder, "repository")
    copy.mkdir()
    for name in _COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


def _run_pytest(copy: str, tests: list[str], log: str) -> None:
    """Runs in a process of its own, whose modules of tfdp are the copy's."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(copy)
    os.environ.update(PYTHONPATH=copy, PYTHONDONTWRITEBYTECODE="1", TF_CPP_MIN_LOG_LEVEL="3")
    # A module that changed within a second, and not its length, would be taken from its cache.
    sys.dont_write_bytecode = True
    sys.path[:] = [copy, *(p for p in sys.path if p != str(ROOT))]
    for name in [n for n in sys.modules if n.split(".")[0] in ("tests", "tfdp")]:
        del sys.modules[name]
    import importlib.util

    import pytest

    origin = importlib.util.find_spec("tfdp").origin
    if not origin.startswith(copy):
        raise RuntimeError(f"tfdp is imported from {origin}, not from the copy.")
    code = pytest.main(["-x", "-q", "-rfE", "-p", "no:cacheprovider", *tests])
    sys.stdout.flush()
    os._exit(int(code))


def _pytest(copy: pathlib.Path, tests: list[str]) -> Outcome:
    # Forked, so that TensorFlow is imported once, here, and not once for every mutant.
    import resource

    log = copy.with_name("log")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = multiprocessing.get_context("fork").Process(
        target=_run_pytest, args=(str(copy), tests, str(log))
    )
    process.start()
    process.join(60 * _MINUTES)
    if process.is_alive():
        process.kill()
        process.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    failed = re.search(r"^FAILED (.+?)(?: - .*)?$", text, re.MULTILINE)
    if process.exitcode == 0:
        return Outcome("survived", "", seconds)
    if process.exitcode == 1 and failed:
        return Outcome("caught", failed[1], seconds)
    print(text[-2000:])
    return Outcome(f"exit code {process.exitcode}", "", seconds)


def _try_mutant(name: str, folder: str) -> Outcome:
    mutant = next(m for m in MUTANTS if m.name == name)
    copy = pathlib.Path(folder, f"process{os.getpid()}")
    if not copy.is_dir():
        copy.mkdir()
        import keras  # noqa: F401
        import tensorflow  # noqa: F401

        _copy(str(copy))
    copy /= "repository"
    path = copy / mutant.file
    source = path.read_text(encoding="utf-8")
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return _pytest(copy, list(mutant.tests))
    finally:
        path.write_text(source, encoding="utf-8")


def _without_mutants(tests: set[str]) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return _pytest(_copy(folder), sorted(tests))


def _table(outcomes: dict[str, Outcome]) -> str:
    def row(m: Mutant) -> str:
        by = outcomes[m.name].by.split("[")[0]
        return f"| {m.name} | `{m.file.removeprefix('tfdp/')}` | {m.breaks} | `{by}` |\n"

    rows = "".join(row(m) for m in MUTANTS)
    return f"""# Mutants

What happens to the test suite when the mechanism is broken on purpose. Written by
`python tests/mutation/mutants.py`, which applies each of these changes to a copy of the repository
and runs a few tests there; the changes are in `tests/mutation/mutants_of_*.py`.

| mutant | file in `tfdp/` | what it breaks | first test that fails |
|---|---|---|---|
{rows}"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=[m.name for m in MUTANTS], metavar="NAME")
    parser.add_argument("--json", type=pathlib.Path, help="results, kept and added to")
    parser.add_argument("--markdown", type=pathlib.Path, default=ROOT / "docs" / "mutants.md")
    return parser.parse_args()


def main() -> int:
    """Returns the exit code: zero where every mutant is caught."""
    arguments = _arguments()
    mutants = [m for m in MUTANTS if not arguments.only or m.name in arguments.only]
    stale = [m.name for m in mutants if occurrences(m) != 1]
    if stale:
        print(f"These are not in the source exactly once; edit their table: {', '.join(stale)}")
        return 1
    known: dict[str, Outcome] = {}
    if arguments.json and arguments.json.is_file():
        known = {n: Outcome(*o) for n, o in json.loads(arguments.json.read_text()).items()}
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ProcessPoolExecutor(
            arguments.jobs, multiprocessing.get_context("spawn")
        ) as pool,
    ):
        running = {pool.submit(_try_mutant, m.name, folder): m.name for m in mutants}
        for future in concurrent.futures.as_completed(running):
            name, outcome = running[future], future.result()
            known[name] = outcome
            print(f"{outcome.status:9} {outcome.seconds:6.1f} s  {name}  {outcome.by}", flush=True)
    missed = [m.name for m in mutants if known[m.name].status != "caught"]
    print(f"{len(mutants) - len(missed)} of {len(mutants)} caught. {' '.join(missed)}")
    failed = {known[m.name].by for m in mutants} - {""}
    whole = _without_mutants(failed) if failed else None
    if whole and whole.status != "survived":
        print(f"Without any mutant: {whole.status} {whole.by}")
        return 1
    if arguments.json:
        arguments.json.write_text(json.dumps(known, indent=1), encoding="utf-8")
    if all(m.name in known and known[m.name].status == "caught" for m in MUTANTS):
        arguments.markdown.write_text(_table(known), encoding="utf-8")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
