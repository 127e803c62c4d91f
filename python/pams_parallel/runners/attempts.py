"""One attempt to have the tasks of a batch done: submitting them, waiting, and what went wrong.

Tasks are pure functions of the frame and the agents, so a batch whose pool has broken can be tried
again with the same snapshot and new workers: these read the latest keyframe and the deltas after
it, like any worker that is new. ``deaths`` decides whether that is done.

While the attempt waits, it looks once in a while for what nobody would tell it: a task that takes
longer than allowed, and a worker that has died without the pool's noticing, e.g. while it was
sending a large result, for whose rest the pool waits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, NamedTuple

from ..executors import has_ended, worker_processes
from ..forking import logging_paused
from ..interrupts import interrupts_deferred
from ..marks import Marks, Phase
from ..worker import Result, Task, run_chunk
from .batches import Batch, has_ended_normally, results_of, wait_until_decided

if TYPE_CHECKING:
    from pams.agents import Agent

# Most seconds between two looks at the workers.
_LOOK_INTERVAL = 1.0
_SHORTEST_LOOK_INTERVAL = 0.01
# Part of the allowed time of a task by which it may be exceeded.
_PRECISION = 0.05
# Seconds by which a look may be late before the main process counts as having been stopped.
_LATENESS = 1.0
# Seconds after which a pool should have noticed that a worker has ended.
_UNNOTICED_TIME = 0.9
# Seconds, in addition to the allowed time of a task, in which some worker has to begin one.
START_ALLOWANCE = 300.0


class RunningChunk(NamedTuple):
    """A chunk whose task a worker has begun, and whose result has not arrived.

    Attributes:
        number: which one of the attempt.
        pid: process that has begun it; 0 if that is not known.
        phase: what that process is doing.
        agents: its agents, or the one that is being asked.
    """

    number: int
    pid: int
    phase: Phase
    agents: Sequence[Agent]


class Attempt:
    """Tasks of a batch on one executor.

    Args:
        batch: the batch.
        executor: the executor.
        marks: marks of its tasks, if it is a pool of processes.

    Attributes:
        futures: positions in the batch of a chunk's agents by the future of its task.
        workers: worker processes of the pool that were seen, by their number.
    """

    def __init__(self, batch: Batch, executor: Executor, marks: Marks | None) -> None:
        self.futures: dict[Future[Result], range] = {}
        self.workers: dict[int, BaseProcess] = {}
        self._batch = batch
        self._executor = executor
        self._marks = marks
        self._is_submitting = False
        # When a worker was first seen to have ended, by its number.
        self._ended_since: dict[int, float] = {}

    @property
    def has_ended_normally(self) -> bool:
        """Whether all tasks are done, and their workers are still there."""
        return not self._is_submitting and all(map(has_ended_normally, self.futures))

    def submit(self, tasks: Iterable[tuple[Task, range]]) -> None:
        """Submit the tasks.

        Args:
            tasks: tasks with the positions in the batch of their agents.
        """
        # An interrupted submit() can have started a task without returning its future, or a
        # process that the pool does not know.
        with contextlib.ExitStack() as stack:
            if isinstance(self._executor, ProcessPoolExecutor):
                stack.enter_context(interrupts_deferred())
                if not worker_processes(self._executor):  # they may be forked now
                    stack.enter_context(logging_paused())
            self._is_submitting = True
            self._look_at_workers()
            try:
                for task, positions in tasks:
                    self.futures[self._executor.submit(run_chunk, task)] = positions
            finally:
                self._look_at_workers()
            self._is_submitting = False

    def wait(self, task_timeout: float | None) -> list[tuple[range, Result]]:
        """Wait until all tasks are done or one has failed.

        Args:
            task_timeout: most seconds that a task may take from its start.

        Returns:
            Positions and result of every chunk.

        Raises:
            TimeoutError: a task has taken too long.
            BrokenExecutor: a worker has died.
            BaseException: a task has failed.
        """
        interval = _LOOK_INTERVAL
        clock = None
        if task_timeout is not None:
            interval = min(interval, max(task_timeout * _PRECISION, _SHORTEST_LOOK_INTERVAL))
            clock = _TaskClock(self, task_timeout, interval)
        while not wait_until_decided(self.futures, interval):
            if clock is not None:
                clock.check()
            if isinstance(self._executor, ProcessPoolExecutor):
                self._look_for_unnoticed_deaths(self._executor)
        return results_of(self._batch, self.futures)

    def ended_workers(self) -> set[int]:
        """Numbers of the workers that have ended, whoever ended them."""
        self._look_at_workers()
        return {pid for pid, process in self.workers.items() if has_ended(process)}

    def running_chunks(self) -> list[RunningChunk]:
        """The chunks that workers have begun, as far as their results have not arrived."""
        running = []
        for index, (future, positions) in enumerate(self.futures.items()):
            if future.done() and future.exception() is None:
                continue
            agents = self._batch.agents[positions.start : positions.stop]
            if self._marks is None:
                if future.running():
                    running.append(RunningChunk(index, 0, Phase.ASKING, agents))
                continue
            mark = self._marks.read(index)
            if mark is not None:
                if mark.position is not None:
                    agents = agents[mark.position : mark.position + 1]
                running.append(RunningChunk(index, mark.pid, mark.phase, agents))
        return running

    def _look_at_workers(self) -> None:
        if isinstance(self._executor, ProcessPoolExecutor):
            self.workers.update(worker_processes(self._executor))

    def _look_for_unnoticed_deaths(self, pool: ProcessPoolExecutor) -> None:
        processes = worker_processes(pool)
        self.workers.update(processes)
        now = time.monotonic()
        ended = [pid for pid, process in processes.items() if has_ended(process)]
        self._ended_since = {pid: self._ended_since.get(pid, now) for pid in ended}
        if now - min(self._ended_since.values(), default=now) > _UNNOTICED_TIME:
            raise BrokenProcessPool("a worker process has ended unnoticed by its pool")


class _TaskClock:
    """Raises when a task takes too long.

    Its time stands still while the main process does, e.g. is stopped by Ctrl-Z, since its workers
    are stopped then as well.

    Args:
        attempt: the attempt with the tasks.
        timeout: most seconds for a task.
        interval: seconds between two looks.
    """

    def __init__(self, attempt: Attempt, timeout: float, interval: float) -> None:
        self._attempt = attempt
        self._timeout = timeout
        self._longest_step = interval + _LATENESS
        self._latest_look = time.monotonic()
        self._now = 0.0
        # When a chunk was first seen running.
        self._starts: dict[int, float] = {}
        self._latest_progress = 0.0
        self._n_done = 0

    def check(self) -> None:
        """Compare the times of the running tasks with what is allowed.

        Raises:
            TimeoutError: a task is over it, or no worker begins one.
        """
        look = time.monotonic()
        self._now += min(look - self._latest_look, self._longest_step)
        self._latest_look = look
        now = self._now
        running = self._attempt.running_chunks()
        for chunk in running:
            self._starts.setdefault(chunk.number, now)
        times = {chunk.number: now - self._starts[chunk.number] for chunk in running}
        if max(times.values(), default=0.0) > self._timeout:
            running.sort(key=lambda chunk: -times[chunk.number])
            tasks = "; ".join(
                f"{describe_chunk(chunk)}, for {times[chunk.number]:.3g} s" for chunk in running
            )
            raise TimeoutError(
                f"A task has taken longer than simulation.taskTimeout ({self._timeout:g} s). "
                f"Running: {tasks}. No agent of this batch has changed."
            )
        n_done = sum(future.done() for future in self._attempt.futures)
        if running or n_done > self._n_done:
            self._n_done = n_done
            self._latest_progress = now
        elif now - self._latest_progress > self._timeout + START_ALLOWANCE:
            raise TimeoutError(
                f"No worker has begun a task for {now - self._latest_progress:.0f} s: "
                "simulation.taskTimeout and the time allowed for workers to start are over. They "
                "may hang while they import the main module, or in the worker initializer."
            )


# Agents that a message names.
_MAX_NAMED = 5


def describe_chunk(chunk: RunningChunk) -> str:
    """Say what a worker is doing, e.g. ``asking FCNAgent (agent_id=3)``.

    Args:
        chunk: chunk whose task it has begun.
    """
    names = [f"{name} (agent_id={agent_id})" for name, agent_id in map(agent_key, chunk.agents)]
    if len(names) > _MAX_NAMED:
        names[_MAX_NAMED:] = [f"{len(names) - _MAX_NAMED} more"]
    agents = ", ".join(names)
    if chunk.phase is Phase.ASKING:
        return f"asking {agents}"
    if chunk.phase is Phase.READING:
        return f"reading the simulation, before asking {agents}"
    return f"sending back the results of {agents}"


def agent_key(agent: Any) -> tuple[str, int]:
    """Name of an agent's class, and its ``agent_id``."""
    return type(agent).__name__, getattr(agent, "agent_id", -1)
