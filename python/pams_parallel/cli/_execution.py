"""Running a simulation with one of the runners."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pams.runners import SequentialRunner

from .. import JaxAgentParallelRunner, MultiProcessAgentParallelRunner
from ._errors import InputError, SimulationError, describe
from ._progress import ProgressBar, ProgressLogger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._simulation import Simulation

RUNNERS: dict[str, type[SequentialRunner]] = {
    "jax": JaxAgentParallelRunner,
    "process": MultiProcessAgentParallelRunner,
    "sequential": SequentialRunner,
}
"""Choices of ``--runner``; ``compare`` has them without ``sequential``."""


class Timing(NamedTuple):
    """How long a run took.

    Attributes:
        runner: name of the runner's class.
        collect_seconds: wall time inside ``_collect_orders_from_normal_agents``.
        seconds: wall time of the whole run, set-up and workers' start included.
    """

    runner: str
    collect_seconds: float
    seconds: float


def execute(
    simulation: Simulation, runner_name: str, *, quiet: bool, keep_logs: bool = False
) -> tuple[SequentialRunner, Timing]:
    """Run a simulation.

    Everything that is printed meanwhile, by pams, agents or workers, goes to standard error.

    Args:
        simulation: what to run.
        runner_name: key of :data:`RUNNERS`.
        quiet: show no progress bar, which otherwise shows on a terminal.
        keep_logs: record the logs, for :func:`pams_parallel.outcome.outcome`.

    Returns:
        The runner, and how long the run took.

    Raises:
        InputError: the simulation could not be set up.
        SimulationError: the run failed.
    """
    runner_class = RUNNERS[runner_name]
    bar = ProgressBar.for_runner(runner_class.__name__, quiet=quiet)
    with bar, _stdout_as_stderr():
        start = time.perf_counter()
        try:
            runner = runner_class(
                copy.deepcopy(simulation.settings),
                prng=random.Random(simulation.seed),
                logger=ProgressLogger(bar.update, keep_rows=keep_logs),
            )
            for cls in simulation.classes:
                runner.class_register(cls)
            collect_seconds = _time_collect_phase(runner)
            runner._setup()
        except (Exception, SystemExit) as error:
            raise InputError(f"{simulation.name}: {describe(error)}") from error
        bar.reset(sum(session.iteration_steps for session in runner.simulator.sessions))
        try:
            runner._run()
        except (Exception, SystemExit) as error:
            message = f"{simulation.name}: {runner_class.__name__}: {describe(error)}"
            raise SimulationError(message) from error
        seconds = time.perf_counter() - start
    return runner, Timing(runner_class.__name__, sum(collect_seconds), seconds)


def _time_collect_phase(runner: SequentialRunner) -> list[float]:
    """Make a runner append the seconds of each collect phase to the list returned."""
    seconds: list[float] = []
    collect = runner._collect_orders_from_normal_agents

    def timed(session: Any) -> Any:
        start = time.perf_counter()
        try:
            return collect(session)
        finally:
            seconds.append(time.perf_counter() - start)

    runner._collect_orders_from_normal_agents = timed  # type: ignore[method-assign]
    return seconds


@contextlib.contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    """Send to standard error what is written to standard output, by workers as well."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
