"""Forking workers beside other threads of the main process.

A forked process has only the thread that forked, and a lock that another thread held at that moment
is held for ever. :mod:`logging` makes its own locks anew in the child, but not the lock of the
stream below them: a worker that logs, or that flushes its standard streams when it ends, would wait
for ever. So nobody logs while workers are being forked.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

# Seconds to wait for a thread that is logging; one that takes longer may be waiting for this one.
_PATIENCE = 1.0


@contextlib.contextmanager
def logging_paused() -> Iterator[None]:
    """Let other threads wait that want to write a log entry."""
    handlers = [reference() for reference in getattr(logging, "_handlerList", ())]
    held: list[Any] = []
    try:
        for handler in handlers:
            lock = getattr(handler, "lock", None)
            if lock is not None and lock.acquire(timeout=_PATIENCE):
                held.append(lock)
        yield
    finally:
        for lock in reversed(held):
            lock.release()
