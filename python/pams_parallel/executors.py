"""The processes of a pool: which there are, which have ended, and ending them.

:meth:`concurrent.futures.Executor.shutdown` lets running tasks finish, which can take for ever.
The processes of a pool can be ended; that they are only reachable through private attributes
is the reason for this module.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.context
import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from .interrupts import interrupts_deferred

# Seconds for workers to react to SIGTERM before they are killed.
_TERMINATION_TIME = 0.5
# Seconds without any worker after which the pool counts as blocked.
_BLOCKED_TIME = 1.0
# Seconds after which a pool that does not end is left alone.
_TIME_LIMIT = 30.0


def worker_processes(pool: ProcessPoolExecutor) -> dict[int, BaseProcess]:
    """Worker processes of a pool by their number, as far as they are known.

    Args:
        pool: the pool. Once it is shut down, it does not know them any more.
    """
    processes: Any = getattr(pool, "_processes", None)
    return processes.copy() if isinstance(processes, dict) else {}


def has_ended(process: BaseProcess) -> bool:
    """Whether a process has ended.

    Args:
        process: a child of this process.
    """
    try:
        if wait([process.sentinel], timeout=0):
            return True
        if isinstance(process, _CHILDREN_OF_FORK_SERVER):
            # The exit code comes through the sentinel and can be read only once, by the thread
            # that waits for it; this one only looks whether that has happened.
            return getattr(getattr(process, "_popen", None), "returncode", None) is not None
        # A process that the worker has forked can keep the sentinel from telling.
        return not process.is_alive()
    except ValueError:  # closed by the pool, so it has ended
        return True


_CHILDREN_OF_FORK_SERVER: tuple[type[BaseProcess], ...] = tuple(
    filter(None, [getattr(multiprocessing.context, "ForkServerProcess", None)])
)


def exit_code(process: BaseProcess) -> int | None:
    """Exit code of a process whose pool has ended; ``None`` if it is not known.

    Args:
        process: a child of this process.
    """
    with contextlib.suppress(ValueError):
        return process.exitcode
    return None


def shut_down(executor: Executor) -> None:
    """Shut an executor down whose tasks are all done.

    Worker processes that have not ended after a while, e.g. because they hang in a function that is
    called at exit, are ended.

    Args:
        executor: executor.
    """
    if not isinstance(executor, ProcessPoolExecutor):
        executor.shutdown(wait=True)
        return
    shutdown = threading.Thread(target=executor.shutdown, daemon=True)
    processes = list(worker_processes(executor).values())
    shutdown.start()
    shutdown.join(_TIME_LIMIT)
    if not shutdown.is_alive():
        return
    for process in processes:
        if not has_ended(process):
            process.kill()
    shutdown.join(_TIME_LIMIT)


def abandon(executor: Executor, futures: Iterable[Future[Any]]) -> None:
    """Shut an executor down without waiting for tasks that still run.

    Worker processes of a :class:`~concurrent.futures.ProcessPoolExecutor` are ended. Threads
    cannot be; they finish their task, whose result nobody reads.

    Args:
        executor: executor.
        futures: futures that it returned for the tasks.
    """
    if isinstance(executor, ProcessPoolExecutor):
        with interrupts_deferred():
            _end_process_pool(executor)
        return
    for future in futures:
        future.cancel()
    try:
        executor.shutdown(wait=False, cancel_futures=True)
    except TypeError:  # an executor written for the signature of Python 3.8
        executor.shutdown(wait=False)


def _end_process_pool(pool: ProcessPoolExecutor) -> None:
    internals: Any = pool
    call_queue, result_queue = internals._call_queue, internals._result_queue
    # With wait=False the pool would drop what its manager thread may be using at that moment,
    # and the futures are left to it because the thread fails, on some versions of Python, if
    # somebody else has cancelled one of them. The thread can still start a new worker in place
    # of one that has done its number of tasks, so the workers are looked up again and again.
    shutdown = threading.Thread(
        target=pool.shutdown, kwargs={"wait": True, "cancel_futures": True}, daemon=True
    )
    processes = set((internals._processes or {}).values())
    shutdown.start()
    # What can keep the pool from ending when no worker is left: the manager thread waits for
    # the rest of a result that a worker was sending when it was ended, since this process has
    # the sending end open, too; on Python 3.10 it waits for the thread that feeds the call queue,
    # which writes into a full pipe, since this process has the receiving end open, too.
    ends = [call_queue._reader, result_queue._writer] if call_queue is not None else []
    terminated: set[BaseProcess] = set()
    began = last_seen = time.monotonic()
    while True:
        processes.update((internals._processes or {}).copy().values())
        alive = [process for process in processes if not has_ended(process)]
        now = time.monotonic()
        if now - began > _TIME_LIMIT or not (alive or shutdown.is_alive()):
            return
        for process in alive:
            if now - began > _TERMINATION_TIME:
                process.kill()
            elif process not in terminated:
                process.terminate()
                terminated.add(process)
        if alive:
            last_seen = now
        elif ends and now - last_seen > _BLOCKED_TIME:
            last_seen = now
            with contextlib.suppress(OSError):
                _disconnect(ends.pop())
        time.sleep(0.002)


def _disconnect(connection: Any) -> None:
    """Close an end of a pipe, but leave the object to the thread that waits for that.

    The thread closes it as well, possibly before close() has returned here.
    """
    if os.name != "posix":
        connection.close()
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nothing, connection.fileno(), inheritable=False)
    finally:
        os.close(nothing)
