"""Runners for pams that ask the agents of a simulation in worker processes.

Changing one import is all that a pams script needs::

    from pams_parallel import MultiProcessAgentParallelRunner

For agents that use JAX there is ``JaxAgentParallelRunner``. Importing it does not import JAX.

:mod:`pams_parallel.snapshot`, which copies the simulation to the workers, can be used alone.
"""

from __future__ import annotations

from . import snapshot
from ._core import __version__
from .runners import JaxAgentParallelRunner, MultiProcessAgentParallelRunner, WorkerDiedError

__all__ = [
    "JaxAgentParallelRunner",
    "MultiProcessAgentParallelRunner",
    "WorkerDiedError",
    "__version__",
    "snapshot",
]
