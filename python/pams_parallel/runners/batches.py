"""One batch on the main process: its snapshot, the wait for its tasks, their decoded results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future, as_completed
from concurrent.futures import TimeoutError as FuturesTimeoutError
from typing import Any, NamedTuple

from pams.agents import Agent

from ..failures import Failure
from ..synced import ATTRIBUTE, listed_names
from ..worker import Result
from .snapshots import Snapshot


class BatchRecord(NamedTuple):
    """What a batch cost.

    Attributes:
        n_agents: agents that were asked.
        n_tasks: tasks, i.e. chunks that are not empty.
        frame_kind: ``"keyframe"`` or ``"delta"``; ``"checkpoint"`` for a delta together with the
            keyframe with which new workers begin from then on; ``"full"`` for a whole snapshot
            that workers do not keep.
        frame_bytes: bytes of the frame, which is encoded once whatever the number of tasks.
        result_bytes: bytes of all results.
        encode_seconds: time until the frame was encoded.
        wait_seconds: time from then until all results had arrived: tasks on their way, frames being
            applied, agents being asked, results on their way.
        decode_seconds: time in which results were decoded and the agents updated.
    """

    n_agents: int
    n_tasks: int
    frame_kind: str
    frame_bytes: int
    result_bytes: int
    encode_seconds: float
    wait_seconds: float
    decode_seconds: float


class Batch:
    """Agents that are asked together, and the snapshot that their tasks see.

    Args:
        agents: agents in the order in which they are asked.
        snapshot: the snapshot.

    Attributes:
        agents: as given.
        snapshot: as given.
        names: names in ``synced_attributes`` by position.

    Raises:
        ValueError: ``synced_attributes`` of an agent is invalid.
    """

    def __init__(self, agents: list[Agent], snapshot: Snapshot) -> None:
        self.agents = agents
        self.snapshot = snapshot
        self.names = listed_names(agents, snapshot.positions_with(ATTRIBUTE))

    def names_at(self, positions: range) -> dict[int, tuple[str, ...]]:
        """Names by position in the chunk of the agents at ``positions``."""
        if not self.names:
            return {}
        return {
            i: self.names[position]
            for i, position in enumerate(positions)
            if position in self.names
        }


class Answers:
    """Decoded result of a chunk.

    Args:
        batch: batch.
        positions: positions of the chunk's agents in the batch.
        result: what the worker returned.

    Attributes:
        agents: agents of the chunk on the main process.
        names: names in ``synced_attributes`` by position in the chunk.
        states: states of the generators.
        roots: orders etc. by position in the chunk; see :class:`~pams_parallel.worker.Result`.
        lost: names of attributes whose changes are lost.
    """

    __slots__ = ("agents", "lost", "names", "roots", "states")

    def __init__(self, batch: Batch, positions: range, result: Result) -> None:
        self.agents = batch.agents[positions.start : positions.stop]
        self.names = batch.names_at(positions)
        self.lost = result.lost
        roots, self.states = batch.snapshot.decode(positions, result)
        self.roots: dict[int, Sequence[Any]] = dict(zip(result.positions, roots, strict=True))

    def prng_state(self, position: int) -> Any:
        """State of an agent's generator as ``getstate()`` gives it, ``None`` if it has none."""
        root = self.roots.get(position)
        if root is not None and root[1] is not None:
            return root[1][0]
        return self.states.getstate(position)

    def set_prng_state(self, position: int) -> None:
        """Update the generator of an agent."""
        agent = self.agents[position]
        if not self.states.apply(position, getattr(agent, "prng", None)):
            state = self.prng_state(position)
            if state is not None:
                agent.prng.setstate(state)

    def set_prng_states(self, start: int, stop: int) -> None:
        """Update the generators of the agents from ``start`` to before ``stop``."""
        position = start
        while position < stop:
            position = self.states.apply_recorded(position, stop)
            if position < stop:
                self.set_prng_state(position)
                position += 1


def wait_until_decided(futures: Iterable[Future[Result]], timeout: float) -> bool:
    """Wait until all tasks are done or one has failed.

    Args:
        futures: futures of the tasks.
        timeout: most seconds to wait.

    Returns:
        Whether it is so.
    """
    try:
        return all(_failure(future) is None for future in as_completed(futures, timeout)) or True
    except FuturesTimeoutError:
        return False


def results_of(batch: Batch, futures: Mapping[Future[Result], range]) -> list[tuple[range, Result]]:
    """The results of a batch's tasks, which are all done unless one has failed.

    Args:
        batch: batch.
        futures: positions in the batch of a chunk's agents by the future of its task.

    Returns:
        Positions and result of every chunk, in the order of the futures.

    Raises:
        BaseException: a task has failed. Of several failures known at this moment, the one of the
            agent asked first counts.
    """
    if all(future.done() and _failure(future) is None for future in futures):
        return [(positions, future.result()) for future, positions in futures.items()]
    failures: list[tuple[int, BaseException | Failure]] = []
    for future, positions in futures.items():
        failure = _failure(future) if future.done() else None
        if isinstance(failure, Failure):
            failures.append((positions.start + failure.position, failure))
        elif failure is not None:
            failures.append((positions.start, failure))
    position, first = min(failures, key=lambda item: item[0])
    if isinstance(first, Failure):
        raise first.to_exception(batch.agents[position], batch.names.get(position, ()))
    raise first


def warnings_of_workers(futures: Iterable[Future[Result]]) -> Iterator[str]:
    """What workers want the main process to warn of, as far as their tasks are done."""
    for future in futures:
        if future.done() and not future.cancelled() and future.exception() is None:
            yield from future.result().warnings


def has_ended_normally(future: Future[Result]) -> bool:
    """Whether a task is done and the worker that ran it is still there."""
    return future.done() and not isinstance(_failure(future), (BrokenExecutor, CancelledError))


def _failure(future: Future[Result]) -> BaseException | Failure | None:
    if future.cancelled():
        return CancelledError()
    error = future.exception()
    return future.result().failure if error is None else error
