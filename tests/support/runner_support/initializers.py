"""What workers can be initialized with, and what agents see of it.

The state lives in this module, so each process has its own.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn


class LargeModel:
    """Read-only model that is too large to travel: copying it is an error."""

    limit = 1

    def __reduce__(self) -> NoReturn:
        raise AssertionError("the model must not be copied")


@dataclass
class ProcessState:
    """Calls of :func:`remember` in this process."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    on_main_thread: list[bool] = field(default_factory=list)

    def clear(self) -> None:
        self.calls.clear()
        self.pids.clear()
        self.threads.clear()
        self.on_main_thread.clear()


STATE = ProcessState()
_models: list[LargeModel] = []


def process_model() -> LargeModel:
    """The model that the worker initializer has loaded in this process."""
    return _models[0]


def load_model() -> None:
    """Initializer: load the model of this process."""
    _models.append(LargeModel())


def remember(*args: Any) -> None:
    """Initializer: note that and how it has been called."""
    STATE.calls.append(args)
    STATE.pids.append(os.getpid())
    STATE.threads.append(threading.get_ident())
    STATE.on_main_thread.append(threading.current_thread() is threading.main_thread())


def remember_slowly(*args: Any) -> None:
    """As :func:`remember`, with time for a race if something calls it twice."""
    time.sleep(0.05)
    remember(*args)


def acquire_and_remember(lock: Any) -> None:
    """Initializer that uses a lock of multiprocessing."""
    with lock:
        remember()


def fail_with_exception() -> NoReturn:
    raise LookupError("no model on this machine")


def fail_with_system_exit() -> NoReturn:
    raise SystemExit("initializer wants to leave")


def fail_with_keyboard_interrupt() -> NoReturn:
    raise KeyboardInterrupt("initializer was interrupted")


def _fail_to_rebuild() -> NoReturn:
    raise LookupError("arguments cannot be rebuilt")


class RebuildsNever:
    """Pickles, but cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _fail_to_rebuild, ()
