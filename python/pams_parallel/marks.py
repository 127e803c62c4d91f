"""Marks that tell the main process how far each task is, also when its worker is dead.

The workers map a small file of the main process (:class:`~.transport.Store`). Each chunk of a batch
has a record in it: the process that has begun it, and its state, a number that says whether it is
reading the simulation, which agent it is asking, or whether it is sending the results back. The
worker writes the number of an agent with one store to memory (``Watch.begin`` in ``_core``), and
the main process reads the file only if it has a reason to.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
import struct
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from .transport import Store, no_memory

# Bytes of a record, a cache line, so that workers do not wait for each other's stores.
_RECORD_SIZE = 64
_LAYOUT = struct.Struct("=II")

_NOT_STARTED = 0
_READING = 1
# The states in between are positions of agents.
_FIRST_AGENT = 2
_RETURNING = 0xFFFF_FFFF


class Phase(enum.Enum):
    """What a worker that has begun a task is doing."""

    READING = "reading the simulation"
    ASKING = "asking an agent"
    RETURNING = "sending the results back"


class Mark(NamedTuple):
    """How far a task is.

    Attributes:
        pid: process that has begun it.
        phase: what it is doing.
        position: position in the chunk of the agent that it is asking, if it is.
    """

    pid: int
    phase: Phase
    position: int | None


class Marks:
    """The marks of one executor's tasks, on the main process.

    Args:
        n_chunks: largest number of chunks of a batch.

    Raises:
        OSError: there is no memory to share.
    """

    def __init__(self, n_chunks: int) -> None:
        self.n_chunks = n_chunks
        self._token = uuid.uuid4().bytes
        self._store = Store("pams-marks")
        try:
            # Written, not only made longer, so that there is memory for all of it.
            self._store.file.write(bytes(n_chunks * _RECORD_SIZE))
            self._store.file.flush()
        except OSError as error:
            self._store.close()
            raise no_memory(error) from error

    def clear(self, n_chunks: int) -> None:
        """Forget how far the first ``n_chunks`` tasks are."""
        self._store.file.seek(0)
        self._store.file.write(bytes(n_chunks * _RECORD_SIZE))
        self._store.file.flush()

    def place(self, number: int) -> MarkPlace:
        """Where the worker finds the record of a chunk."""
        return MarkPlace(self._token, self._store.path, self.n_chunks, number)

    def read(self, number: int) -> Mark | None:
        """How far the task of a chunk is; ``None`` if no worker has begun it."""
        # Reading a file shows what has been stored in mappings of it.
        descriptor = self._store.file.fileno()
        self._store.file.seek(number * _RECORD_SIZE)
        pid, state = _LAYOUT.unpack(os.read(descriptor, _LAYOUT.size))
        if state == _NOT_STARTED:
            return None
        if state == _READING:
            return Mark(pid, Phase.READING, None)
        if state == _RETURNING:
            return Mark(pid, Phase.RETURNING, None)
        return Mark(pid, Phase.ASKING, state - _FIRST_AGENT)

    def close(self) -> None:
        """Release the memory."""
        self._store.close()


class MarksOfExecutor:
    """Keeps the marks of the executor that had the latest batch.

    Those of another one are not used again: its workers may still write to them.
    """

    def __init__(self) -> None:
        self._owner: Callable[[], object] = lambda: None
        self._marks: Marks | None = None

    def of_batch(self, executor: Executor, n_chunks: int) -> Marks:
        """Marks for a batch, that say that no task has begun.

        Args:
            executor: executor of its tasks.
            n_chunks: how many chunks it has.

        Raises:
            OSError: there is no memory to share.
        """
        marks = self._marks
        if marks is not None and self._owner() is executor and marks.n_chunks >= n_chunks:
            marks.clear(n_chunks)
            return marks
        self.close()
        self._owner, self._marks = weakref.ref(executor), Marks(n_chunks)
        return self._marks

    def close(self) -> None:
        """Release the memory."""
        marks, self._marks = self._marks, None
        if marks is not None:
            marks.close()


class MarkPlace(NamedTuple):
    """Where a worker finds the record of its chunk. Picklable.

    Attributes:
        token: bytes that no other :class:`Marks` have.
        path: file with the records.
        n_chunks: how many records there are.
        number: number of the record, from 0.
    """

    token: bytes
    path: str
    n_chunks: int
    number: int


class WorkerMark:
    """The record of a chunk, on the worker that has begun it.

    Args:
        place: where it is.

    Attributes:
        state: the word with the state, to which ``Watch`` writes.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file cannot be mapped.
    """

    def __init__(self, place: MarkPlace) -> None:
        start = place.number * _RECORD_SIZE
        words = memoryview(_mapped(place))[start : start + _LAYOUT.size].cast("I")
        words[0] = os.getpid()
        self.state = words[1:]
        self.state[0] = _READING

    def returning(self) -> None:
        """All agents have been asked, or one has failed."""
        self.state[0] = _RETURNING


def begin(place: MarkPlace | None) -> WorkerMark | None:
    """Mark that this worker has begun a chunk, if there is a place for it that can be opened."""
    if place is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        return WorkerMark(place)
    return None


# The file that is mapped, by its token: a worker has mostly tasks of one executor.
_latest: tuple[bytes, mmap.mmap] | None = None


def _mapped(place: MarkPlace) -> mmap.mmap:
    global _latest
    if _latest is None or _latest[0] != place.token:
        descriptor = os.open(place.path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
        try:
            memory = mmap.mmap(descriptor, place.n_chunks * _RECORD_SIZE)
        finally:
            os.close(descriptor)
        # Views of the old one can still exist; it goes with the last of them.
        _latest = place.token, memory
    return _latest[1]
