"""Command line options."""

from __future__ import annotations

import argparse
import multiprocessing
import platform
from typing import TYPE_CHECKING, NoReturn

from pams.version import __version__ as pams_version

from .. import __version__, examples
from ._compare import compare
from ._execution import RUNNERS
from ._run import run

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Parser(argparse.ArgumentParser):
    """Parser whose errors take one line, like all others of the command."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return number


def _shared_options() -> _Parser:
    shared = _Parser(add_help=False)
    simulation = shared.add_argument_group("simulation")
    simulation.add_argument(
        "--class",
        dest="classes",
        metavar="MODULE:CLASS",
        action="append",
        default=[],
        help="agent, market or event class that CONFIG names; modules in the current "
        "directory are found; may be repeated",
    )
    simulation.add_argument(
        "--seed", type=int, default=1, metavar="S", help="seed of the runner (default: 1)"
    )
    simulation.add_argument(
        "--steps", type=_positive, metavar="N", help="at most N steps in every session"
    )
    workers = shared.add_argument_group("workers")
    workers.add_argument(
        "--workers",
        type=_positive,
        metavar="N",
        help="worker processes, instead of simulation.numParallel",
    )
    workers.add_argument(
        "--start-method",
        choices=multiprocessing.get_all_start_methods(),
        help="how they are started, instead of simulation.startMethod",
    )
    output = shared.add_argument_group("messages")
    output.add_argument("--quiet", action="store_true", help="no progress bar")
    output.add_argument("--traceback", action="store_true", help="show where an error comes from")
    return shared


def _add_config(command: argparse.ArgumentParser, default: str | None) -> None:
    group = command.add_mutually_exclusive_group(required=default is None)
    suffix = "" if default is None else f" (default: the example {default})"
    group.add_argument(
        "config",
        metavar="CONFIG",
        nargs="?",
        default=default,
        help=f"JSON file, or name of a bundled example{suffix}",
    )
    group.add_argument(
        "--example",
        choices=examples.names(),
        help="a bundled example, even where a file has its name",
    )


def _add_runner(command: argparse.ArgumentParser, choices: list[str]) -> None:
    command.add_argument(
        "--runner",
        choices=choices,
        default="process",
        help="jax is for agents that use JAX (default: process)",
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Args:
        argv: arguments without the program's name, ``sys.argv[1:]`` if ``None``.

    Returns:
        The options; ``command`` is the function that carries them out.
    """
    parser = _Parser(
        prog="pams-parallel",
        description="Run simulations of pams with agents in worker processes.",
        epilog="exit codes: 0 done (compare: and identical), 1 outcomes differ, 2 bad input, "
        "3 the simulation failed, 130 interrupted",
        allow_abbrev=False,
    )
    version = f"%(prog)s {__version__} (pams {pams_version}, Python {platform.python_version()})"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    shared = _shared_options()

    comparison = commands.add_parser(
        "compare",
        parents=[shared],
        allow_abbrev=False,
        help="run a config with SequentialRunner and with worker processes",
        description="Run a config with SequentialRunner and with worker processes; print whether "
        "the outcomes are identical, and the seconds of both.",
    )
    _add_config(comparison, "index")
    _add_runner(comparison, sorted(RUNNERS.keys() - {"sequential"}))
    comparison.set_defaults(command=compare)

    single = commands.add_parser(
        "run",
        parents=[shared],
        allow_abbrev=False,
        help="run a config and write a CSV file",
        description="Run a config and write a row per step and market.",
    )
    _add_config(single, None)
    _add_runner(single, sorted(RUNNERS))
    single.add_argument("--output", metavar="FILE.csv", required=True, help="file to write")
    single.set_defaults(command=run)
    return parser.parse_args(argv)
