"""The command line: what ledgers hold and cost, and what a privacy budget buys. No TensorFlow.

Every command is a module with its line of help (`HELP`) and an example (`EXAMPLE`),
`add_arguments(parser)`, and `run(arguments)`, which returns what is printed, at once or in parts.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from tfdp import __version__
from tfdp.cli import (
    audit,
    calibrate,
    colors,
    common,
    completion,
    doctor,
    export,
    extensions,
    plan,
    replay,
    report,
    verify,
)

__all__ = ["main", "make_parser"]

_COMMANDS = {
    "replay": replay,
    "verify": verify,
    "export": export,
    "calibrate": calibrate,
    "plan": plan,
    "report": report,
    "audit": audit,
    "doctor": doctor,
    "completion": completion,
}


class _Parser(argparse.ArgumentParser):
    """A parser that refuses what it does not know itself, with the usage of its own command."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # argparse leaves that to the parser of all commands.
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    parser = _Parser(prog="tfdp", description="Differential privacy: ledgers and what they cost.")
    parser.add_argument("--version", action="version", version=f"tfdp {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in _COMMANDS.items():
        described = common.described(command.HELP, command.EXAMPLE)
        command.add_arguments(commands.add_parser(name, **described))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status.

    Returns:
        0, or 2 after an error on stderr; 130 where it was interrupted, and 141 where nobody reads
        on what it prints, as shells have it.
    """
    try:
        extensions.load_extensions()
        arguments = make_parser().parse_args(argv)
        output = _COMMANDS[arguments.command].run(arguments)
        for part in [f"{output}\n"] if isinstance(output, str) else output:
            shown = colors.colored(common.printable(part), sys.stdout)
            sys.stdout.write(_encodable(shown, sys.stdout))
        sys.stdout.flush()
    except SystemExit as stop:  # argparse has said what there is to say.
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Python would try to write the rest when it ends, and complain.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OSError, ValueError, ModuleNotFoundError) as error:
        said = common.printable(" ".join(f"{error}{_how_to_install(error)}".split()))
        shown = colors.colored(f"tfdp: {said}", sys.stderr)
        print(_encodable(shown, sys.stderr), file=sys.stderr)
        return 2
    return 0


def _how_to_install(error: Exception) -> str:
    # The one package that an auditor may lack and a choice on the command line may need.
    name = getattr(error, "name", None) or ""
    return ". Install it: pip install dp-accounting" if name.startswith("dp_accounting") else ""


def _encodable(text: str, stream: TextIO) -> str:
    """Returns `text` with escapes for what the stream has no bytes for."""
    encoding = stream.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)
