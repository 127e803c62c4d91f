"""Progress of a run, and warnings beside it."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

from pams.logs.base import MarketStepEndLog
from tqdm import tqdm  # type: ignore[import-untyped]

from ..outcome import RecordingLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pams.logs.base import Log


class ProgressBar(tqdm):  # type: ignore[misc]  # tqdm ships no annotations
    """Bar on standard error that starts neither a thread nor a process."""

    # The monitor is a thread, and forking a process that has threads is unsafe.
    monitor_interval = 0

    @classmethod
    def for_runner(cls, name: str, *, quiet: bool) -> ProgressBar:
        """Make a bar.

        Args:
            name: what stands before the bar.
            quiet: show nothing. Otherwise the bar shows if standard error is a terminal.
        """
        # The default lock is a semaphore of multiprocessing.
        cls.set_lock(threading.RLock())
        disable = True if quiet else None
        return cls(desc=name, unit="step", file=sys.stderr, disable=disable, leave=False)


class ProgressLogger(RecordingLogger):
    """Logger that tells when a step of the simulation is over.

    Args:
        on_step: called after every step.
        keep_rows: record the logs.
    """

    def __init__(self, on_step: Callable[[], object], *, keep_rows: bool) -> None:
        super().__init__()
        self._on_step = on_step
        self._keep_rows = keep_rows

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_on_step": None}

    def write(self, log: Log) -> None:
        """Record a log."""
        if self._keep_rows:
            super().write(log)

    def write_and_direct_process(self, log: Log) -> None:
        """Record a log, and tell that a step is over when the last market has ended it."""
        super().write_and_direct_process(log)
        if isinstance(log, MarketStepEndLog) and log.market is log.simulator.markets[-1]:
            self._on_step()


@contextlib.contextmanager
def short_warnings() -> Iterator[None]:
    """Show a warning once and in one line, and not the one that users of the command know."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        text = " ".join(str(message).split())
        if text not in shown:
            shown.add(text)
            ProgressBar.write(f"pams-parallel: warning: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is experimental", category=UserWarning)
        warnings.showwarning = show
        yield
