"""Ctrl-C while processes are being started or ended, and in workers.

A ``KeyboardInterrupt`` can come between any two instructions, e.g. when a worker has been started
and nobody knows of it yet. So it waits while that would leave something behind. Workers hear Ctrl-C
in a terminal as well; it is not for them, since the main process ends them.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let an interrupt (SIGINT) of the main thread wait until the context is left."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled on the main thread
        return
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        yield  # ignored, or handled by something else than Python
        return
    received: list[tuple[int, FrameType | None]] = []

    def note(signal_number: int, frame: FrameType | None) -> None:
        received.append((signal_number, frame))

    try:
        signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main interpreter
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[-1])


def leave_interrupts_to_main_process() -> None:
    """Have this worker process take no notice of Ctrl-C.

    Programs that agents start hear it, unlike if the signal was ignored. A handler of the user's
    stays.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGINT)
    is_ours = getattr(handler, "__module__", None) == __name__
    if handler is signal.default_int_handler or is_ours:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, _take_no_notice)


def _take_no_notice(*_: Any) -> None:
    pass
