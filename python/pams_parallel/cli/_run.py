"""``pams-parallel run``."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ._errors import InputError
from ._execution import execute
from ._simulation import read_simulation

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pams.simulator import Simulator

HEADER = (
    "time",
    "market",
    "market_price",
    "fundamental_price",
    "executed_volume",
    "buy_orders",
    "sell_orders",
)


def run(arguments: argparse.Namespace) -> int:
    """Run a config with one runner, and write its history.

    Args:
        arguments: options of the command line.

    Returns:
        0.
    """
    simulation = read_simulation(arguments)
    with _replaced(arguments.output) as file:
        runner, timing = execute(simulation, arguments.runner, quiet=arguments.quiet)
        n_rows = _write(runner.simulator, file)
    if not arguments.quiet:
        print(
            f"{arguments.output}: {n_rows} rows, {timing.seconds:.3f} seconds with {timing.runner}",
            file=sys.stderr,
        )
    return 0


def _write(simulator: Simulator, file: TextIO) -> int:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADER)
    n_steps = sum(session.iteration_steps for session in simulator.sessions)
    for time in range(n_steps):
        for market in simulator.markets:
            writer.writerow(
                (
                    time,
                    market.name,
                    market.get_market_price(time),
                    market.get_fundamental_price(time),
                    market.get_executed_volume(time),
                    market.get_n_buy_order(time),
                    market.get_n_sell_order(time),
                )
            )
    return n_steps * len(simulator.markets)


@contextlib.contextmanager
def _replaced(name: str) -> Iterator[TextIO]:
    """Open a file that takes the place of ``name`` only when it is complete.

    It is opened first, so a folder that cannot be written to is known before the run.
    """
    path = Path(os.path.realpath(name))
    # A device or a pipe must be written to, not replaced. So must /dev/stdout, which may be
    # a link to a regular file.
    special = (path.exists() and not path.is_file()) or os.path.abspath(name).startswith("/dev/")
    temporary = Path(name) if special else path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        file = temporary.open("a" if special else "x", encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"--output {name}: {error.strerror}") from error
    try:
        try:
            with file:
                yield file
        except BrokenPipeError:
            raise
        except OSError as error:
            raise InputError(f"--output {name}: {error.strerror}") from error
        if not special:
            if path.exists():
                shutil.copymode(path, temporary)
            temporary.replace(path)
    finally:
        if not special:
            temporary.unlink(missing_ok=True)
