"""Shared by all tests: nothing that a test starts or opens may outlive it."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Generous: a worker that is being ended on a loaded machine is not a leak yet.
GRACE_SECONDS = 30.0
SHARED_MEMORY = Path("/dev/shm")
OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture(autouse=True, scope="session")
def private_temp_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Temporary directory of this run alone, so that only its own files count as left behind."""
    tmp_path_factory.getbasetemp()  # pytest's own directories stay where they would be
    # Short, because the forkserver's socket lies in it and socket paths are limited to ~100 bytes.
    path = Path(tempfile.mkdtemp(prefix="pp-tests-"))
    # After multiprocessing has removed its own directory in it, which has exit priority -100.
    multiprocessing.util.Finalize(
        None, shutil.rmtree, args=(path,), kwargs={"ignore_errors": True}, exitpriority=-200
    )
    os.environ["TMPDIR"] = tempfile.tempdir = str(path)
    return path


@pytest.fixture(autouse=True, scope="session")
def interrupts() -> None:
    """Hear SIGINT although the tests run in the background of a shell, which has it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def multiprocessing_helpers(private_temp_dir: Path, interrupts: None) -> None:
    """Start what multiprocessing starts once per process, so that it does not count as a leak."""
    multiprocessing.util.get_temp_dir()
    multiprocessing.resource_tracker.ensure_running()
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.forkserver.ensure_running()


def _children() -> dict[object, str]:
    multiprocessing.active_children()  # reaps those that have ended
    found: dict[object, str] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            line = f"{process.pid} {process.status()} {' '.join(process.cmdline())}"
            found[process.pid, process.create_time()] = line
        except psutil.NoSuchProcess:
            continue
    return found


def _temp_files(directory: Path) -> dict[object, str]:
    return {
        path: path
        for folder, folders, files in os.walk(directory)
        for path in (os.path.join(folder, name) for name in folders + files)
    }


def _used_by_others(path: Path) -> bool:
    """Whether a process that is not ours has ``path`` open or mapped."""
    family = {os.getpid(), *(p.pid for p in psutil.Process().children(recursive=True))}
    try:
        inode = path.stat().st_ino
    except FileNotFoundError:
        return True  # gone by now
    for process in psutil.process_iter():
        if process.pid in family:
            continue
        try:
            # By number, because a semaphore is mapped under the name that it had when created.
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                fields = line.split()
                if int(fields[4]) == inode and line.find(f" {SHARED_MEMORY}/") > 0:
                    return True
            if any(file.path == str(path) for file in process.open_files()):
                return True
        except (psutil.Error, OSError):
            continue
    return False


def _shared_memory() -> dict[object, str]:
    if not SHARED_MEMORY.is_dir():
        return {}
    return {path.name: str(path) for path in SHARED_MEMORY.iterdir()}


def _open_files() -> dict[object, str]:
    if not OPEN_FILES.is_dir():
        return {}
    found: dict[object, str] = {}
    for number in os.listdir(OPEN_FILES):
        try:
            found[number] = f"{number} -> {os.readlink(OPEN_FILES / number)}"
        except FileNotFoundError:  # the one that listed the directory
            continue
    return found


def _threads() -> dict[object, str]:
    return {thread.ident: repr(thread) for thread in threading.enumerate()}


def _wait_until_gone(
    look: Callable[[], dict[object, str]], before: dict[object, str]
) -> dict[object, str]:
    """New things that ``look`` still finds when the time of grace is over."""
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        new = {key: text for key, text in look().items() if key not in before}
        if not new or time.monotonic() > deadline:
            return new
        gc.collect()
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(private_temp_dir: Path, multiprocessing_helpers: None) -> Iterator[None]:
    """Fail a test that leaves a process, thread, temporary file, shared memory or open file."""

    def temp_files() -> dict[object, str]:
        return _temp_files(private_temp_dir)

    def own_shared_memory() -> dict[object, str]:
        return {
            name: path
            for name, path in _shared_memory().items()
            if name in shared_memory or not _used_by_others(Path(path))
        }

    children, threads, files = _children(), _threads(), temp_files()
    shared_memory, open_files = _shared_memory(), _open_files()
    yield
    new_children = _wait_until_gone(_children, children)
    for key in new_children:  # one leak must not fail all tests after it
        assert isinstance(key, tuple)
        try:
            psutil.Process(key[0]).kill()
        except psutil.NoSuchProcess:
            continue
    assert not new_children, f"processes left: {list(new_children.values())}"
    new_threads = _wait_until_gone(_threads, threads)
    assert not new_threads, f"threads left: {list(new_threads.values())}"
    new_files = _wait_until_gone(temp_files, files)
    assert not new_files, f"temporary files left: {list(new_files.values())}"
    new_memory = _wait_until_gone(own_shared_memory, shared_memory)
    assert not new_memory, f"shared memory left: {list(new_memory.values())}"
    # A test may close a file that it did not open (a number is free again), so the count decides.
    deadline = time.monotonic() + GRACE_SECONDS
    while len(now := _open_files()) > len(open_files) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert len(now) <= len(open_files), f"open files before: {open_files}, now: {now}"
