"""Workers that end together with the main process, however it ends.

A worker process of a pool waits for its next task on a pipe, and forked siblings hold the other end
of that pipe open, so it would wait for ever if the main process was killed. Neither is the fork
server, which is the parent of some workers, anything to go by. So a thread of each worker, which
needs no GIL, waits for the end of the main process (``rust/process_watch.rs``) and then ends the
worker. It is started by the initializer of the pool. A pool that a user has made is given one if it
has started no worker yet (:func:`watch_from_workers_of`); otherwise the thread is started before
the first task of each worker.

The workers of other executors are left alone: they can be threads, or on another machine.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from ._core import end_with_process, process_start_time
from .transport import private_directory


class MainProcess(NamedTuple):
    """The process in whose service a worker is. Picklable.

    Attributes:
        pid: its number.
        start_time: when it started, since numbers are given again.
        directory: directory with its files, which has to be deleted if it is killed.
    """

    pid: int
    start_time: int | None
    directory: str | None

    @classmethod
    def current(cls) -> MainProcess:
        """The calling process."""
        pid = os.getpid()
        return cls(pid, process_start_time(pid), private_directory())


# Pairs of a process, since a forked child inherits the set but no thread, and whom it watches.
_watches: set[tuple[int, MainProcess]] = set()


def end_with(main_process: MainProcess) -> None:
    """Have this worker process end when the main process does. Calls after the first do nothing.

    Args:
        main_process: the main process; if it is this process, nothing happens.
    """
    watch = os.getpid(), main_process
    if main_process.pid == os.getpid() or watch in _watches:
        return
    _watches.add(watch)
    # A worker that cannot have another thread works nevertheless.
    with contextlib.suppress(OSError):
        if not end_with_process(*main_process):
            threading.Thread(target=_end_with_parent, daemon=True).start()


def watch_from_workers_of(pool: ProcessPoolExecutor, main_process: MainProcess) -> None:
    """Have the workers of a pool that somebody else has made end with the main process.

    Workers that never get a task are among them, so it is not enough to tell each with a task.

    Args:
        pool: the pool. Nothing happens if it has started workers, or if its attributes are not
            those of Python 3.10 to 3.14.
        main_process: the main process.
    """
    internals: Any = pool
    if getattr(pool, "_processes", None) != {} or not hasattr(pool, "_initializer"):
        return
    if internals._initializer is not _watch_and_initialize:
        arguments = main_process, internals._initializer, internals._initargs
        internals._initializer, internals._initargs = _watch_and_initialize, arguments


def _watch_and_initialize(
    main_process: MainProcess, initializer: Callable[..., object] | None, args: tuple[Any, ...]
) -> None:
    end_with(main_process)
    if initializer is not None:
        initializer(*args)


def _end_with_parent() -> None:
    """Where a process cannot be watched otherwise, i.e. on Windows, whose sentinels are handles."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
