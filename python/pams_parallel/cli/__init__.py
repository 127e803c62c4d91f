"""The command ``pams-parallel``; ``python -m pams_parallel`` is the same.

Exit codes: 0 done (``compare``: and the outcomes are identical), 1 the outcomes differ,
2 bad input, 3 the simulation failed, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

from ._arguments import parse
from ._errors import CommandError
from ._progress import short_warnings

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: arguments without the program's name, ``sys.argv[1:]`` by default.

    Returns:
        The exit code.

    Raises:
        SystemExit: after ``--help``, ``--version`` and bad options, as argparse does it.
    """
    arguments = parse(argv)
    try:
        with short_warnings():
            code: int = arguments.command(arguments)
        sys.stdout.flush()
    except CommandError as error:
        if arguments.traceback:
            traceback.print_exception(error.__cause__ or error)
        hint = "" if arguments.traceback or error.is_explained else " (try --traceback)"
        print(f"pams-parallel: error: {error}{hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("pams-parallel: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
