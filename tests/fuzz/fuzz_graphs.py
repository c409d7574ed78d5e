"""Compares book-keeping with the loop on random models: run by hand; the test suite has a few.

    python tests/fuzz/fuzz_graphs.py --first 0 --count 400
    python tests/fuzz/fuzz_graphs.py --first 0 --count 400 --blocks

With `--blocks` a model is one block of random code that has weights of its own.
A finding is a model for which the two disagree, and is printed.
"""

import argparse
import os
import pathlib
import sys


def main() -> None:
    """Runs the models and counts what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="number of the first model")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--blocks", action="store_true")
    arguments = parser.parse_args()
    sys.path.insert(0, os.fspath(pathlib.Path(__file__).resolve().parents[2]))
    from tests.fuzz import random_blocks, random_graphs

    make = random_blocks.random_model if arguments.blocks else random_graphs.random_model
    counts = dict.fromkeys(["agree", "differ", "refused", "both fail"], 0)
    for seed in range(arguments.first, arguments.first + arguments.count):
        outcome = random_graphs.compare(seed, make)
        counts[random_graphs.verdict(outcome)] += 1
        if random_graphs.verdict(outcome) == "differ":
            print(
                f"model {seed}: {outcome.difference:.1e}", *outcome.parts, sep="\n    ", flush=True
            )
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main()
