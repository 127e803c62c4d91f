"""What the main process does when worker processes have died.

A worker can be killed by the system when memory runs out, crash in an extension module, or exit.
Its pool is of no use then, and ends the other workers as well. The batch is repeated with a new
pool, since its tasks are pure functions, unless that has been done too often in this run, or the
same task has ended its worker for the second time: then it is probably the fault of an agent.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

from ..executors import exit_code
from ..marks import Phase
from .attempts import Attempt, RunningChunk, agent_key, describe_chunk

_SIGKILL = getattr(signal, "SIGKILL", 9)  # Windows has none
# Seconds in which a worker of a broken pool should be seen to have ended.
_TIME_TO_SEE = 0.3
# How often the same task may end its worker.
_MAX_DEATHS_BY_CHUNK = 2


class WorkerDiedError(BrokenProcessPool):
    """Worker processes have died, and the batch is not repeated any more.

    Attributes:
        exit_code: exit code of the worker, minus the number of the signal that has ended it, as
            :attr:`multiprocessing.Process.exitcode` gives it; ``None`` if it is not known.
        agents: pairs of the name of an agent's class and its ``agent_id``: the agents that died
            workers were asking, or whose results they were sending back.
    """

    def __init__(
        self,
        message: str,
        exit_code: int | None = None,
        agents: Iterable[tuple[str, int]] = (),
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.agents = tuple(agents)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.exit_code, self.agents)


class Deaths(NamedTuple):
    """Workers that have died of themselves, i.e. were not ended by their pool or the runner.

    Attributes:
        exit_codes: their exit codes.
        chunks: what they were running.
        is_certain: whether there is no other explanation.
    """

    exit_codes: tuple[int, ...]
    chunks: tuple[RunningChunk, ...]
    is_certain: bool


class Scene:
    """What can be seen of a broken pool before anybody else ends its workers.

    Args:
        attempt: the attempt whose pool has broken.
    """

    def __init__(self, attempt: Attempt) -> None:
        deadline = time.monotonic() + _TIME_TO_SEE
        self._ended = attempt.ended_workers()
        while not self._ended and time.monotonic() < deadline:
            time.sleep(0.001)
            self._ended = attempt.ended_workers()
        self._workers = attempt.workers
        self._running = attempt.running_chunks()

    def deaths(self) -> Deaths:
        """Find out who has died of themselves, once the pool has ended."""
        codes = {pid: exit_code(process) for pid, process in self._workers.items()}
        busy = {chunk.pid for chunk in self._running} & codes.keys()
        is_certain = True
        # The pool ends the others by SIGTERM, and abandon() those that do not react by SIGKILL.
        # Code 0 has a worker that was told to end.
        died = [
            pid
            for pid, code in codes.items()
            if code not in (None, 0, -signal.SIGTERM, -_SIGKILL)
            or (code == -_SIGKILL and pid in self._ended)
            or (code == 0 and pid in busy)
        ]
        if not died:
            # Somebody else has sent SIGTERM; if only one worker was busy, probably to that one.
            terminated = {pid for pid, code in codes.items() if code == -signal.SIGTERM}
            died = list(terminated & busy or terminated & self._ended)
            is_certain = len(died) == 1
        chunks = tuple(chunk for chunk in self._running if chunk.pid in died)
        found = {code for pid in died if (code := codes.get(pid)) is not None}
        return Deaths(tuple(sorted(found)), chunks, is_certain)


class Restarts:
    """Counts the restarts of a run, and decides whether there is another one.

    Args:
        runner_name: name of the runner's class, for messages.
    """

    def __init__(self, runner_name: str) -> None:
        self.count = 0
        self._runner_name = runner_name

    def decide(self, deaths: Deaths, by_chunk: Counter[int], limit: int) -> str:
        """Decide whether a batch is repeated, and count that.

        Args:
            deaths: who has died.
            by_chunk: how often each chunk of the batch has ended its worker; updated.
            limit: most restarts of a run.

        Returns:
            Text of the warning.

        Raises:
            WorkerDiedError: the batch is not repeated.
        """
        if deaths.is_certain:
            by_chunk.update({chunk.number for chunk in deaths.chunks})
        is_repeated = max(by_chunk.values(), default=0) >= _MAX_DEATHS_BY_CHUNK
        if not is_repeated and self.count < limit:
            self.count += 1
            return (
                f"{self._what_happened(deaths)}. The batch is repeated with new workers (restart "
                f"{self.count} of at most {limit}, simulation.maxWorkerRestarts)."
            )
        if is_repeated:
            reason = "The same task has ended its worker twice"
        elif limit == 0:
            reason = "simulation.maxWorkerRestarts is 0, so the batch is not repeated"
        else:
            reason = f"Workers have been restarted {self.count} times in this run"
            reason += f" (simulation.maxWorkerRestarts: {limit})"
        agents = [
            agent_key(agent)
            for chunk in deaths.chunks
            if chunk.phase is not Phase.READING
            for agent in chunk.agents
        ]
        raise WorkerDiedError(
            f"{self._what_happened(deaths)}. {reason}. No agent of this batch has changed. "
            f"{_remedy(deaths)}",
            deaths.exit_codes[0] if deaths.exit_codes else None,
            agents,
        )

    def _what_happened(self, deaths: Deaths) -> str:
        code = deaths.exit_codes[0] if deaths.exit_codes else None
        text = f"A worker process of {self._runner_name} has died ({_describe_code(code)})"
        if deaths.chunks and deaths.is_certain:
            return f"{text} while it was {' or '.join(map(describe_chunk, deaths.chunks))}"
        if deaths.chunks:
            return f"{text}; workers were {'; '.join(map(describe_chunk, deaths.chunks))}"
        return f"{text} while it was starting or had nothing to do, not in a task of this batch"


def _describe_code(code: int | None) -> str:
    if code is None:
        return "exit code unknown"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")


def _remedy(deaths: Deaths) -> str:
    code = deaths.exit_codes[0] if deaths.exit_codes else None
    description = _describe_code(code)
    if description.endswith("SIGKILL"):
        return (
            "The system kills processes in this way when memory runs out: use fewer workers "
            "(simulation.numParallel) or a smaller simulation. If it was only that once, raise "
            "simulation.maxWorkerRestarts."
        )
    if description.endswith(_CRASHES):
        return (
            "That is a crash in native code, e.g. of an extension module: set the environment "
            "variable PYTHONFAULTHANDLER=1 to see where, and try the agents under "
            "SequentialRunner."
        )
    if not deaths.chunks:
        return (
            "Workers that are not forked import the main module when they start, so it needs "
            "'if __name__ == \"__main__\":'; what they print there, or the worker initializer, "
            "may tell more."
        )
    if code is not None and code < 0:
        return (
            "Somebody else has ended it. If it was only that once, raise "
            "simulation.maxWorkerRestarts."
        )
    return (
        "Something has called os._exit() or exit(): an agent should raise an exception instead, "
        "and a library that exits often says why on standard error."
    )
