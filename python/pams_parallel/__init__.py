"""Runners for pams that ask the agents of a simulation in worker processes.

Changing one import is all that a pams script needs::

    from pams_parallel import MultiProcessAgentParallelRunner

For agents that use JAX there is ``JaxAgentParallelRunner``. Importing it does not import JAX.

:mod:`pams_parallel.snapshot`, which copies the simulation to the workers, can be used alone.
"""

from __future__ import annotations

from .compatibility import check_interpreter

check_interpreter()  # before the extension is loaded

from . import snapshot  # noqa: E402
from ._core import __version__  # noqa: E402
from .runners import (  # noqa: E402
    JaxAgentParallelRunner,
    MultiProcessAgentParallelRunner,
    WorkerDiedError,
)

__all__ = [
    "JaxAgentParallelRunner",
    "MultiProcessAgentParallelRunner",
    "WorkerDiedError",
    "__version__",
    "snapshot",
]
