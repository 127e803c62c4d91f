"""Main processes of their own that tests start and end."""

from __future__ import annotations

import contextlib
import glob
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import psutil
from runner_support.scripts import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .main_process import Situation

# Promises of a few seconds are tested with this many.
PATIENCE = 60.0


@contextlib.contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own. Whatever is left of it afterwards is killed.

    None of our files may be left in its directory for temporary files. That of multiprocessing
    itself is, if the fork server is used and the process is killed.
    """
    with tempfile.TemporaryDirectory(prefix="pp-") as directory:
        with _started(command, directory) as process:
            yield process
        assert glob.glob(f"{directory}/pams-parallel-*") == []


@contextlib.contextmanager
def _started(command: Sequence[str], directory: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": directory},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for each in of_session(process.pid):
            # The tracker unlinks semaphores when all others are gone, and then ends by itself.
            with contextlib.suppress(psutil.NoSuchProcess):
                if "resource_tracker" not in " ".join(each.cmdline()):
                    each.kill()
        process.communicate()
        assert_all_gone(of_session(process.pid))


def of_session(pid: int) -> list[psutil.Process]:
    """All processes that belong to the one that has begun a session, also if it has ended."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == pid:
                found.append(process)
    return found


@contextlib.contextmanager
def in_situation(
    situation: Situation,
) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A main process that has come into a situation, and all processes that belong to it."""
    with started(situation.command()) as process:
        wait_for(situation.marker)
        children = psutil.Process(process.pid).children(recursive=True)
        yield process, children


def assert_all_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    assert alive == []
