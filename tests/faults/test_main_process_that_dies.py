"""What is left when the main process is killed: neither workers nor files."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from fault_support.main_process import Situation
from fault_support.observing import assert_all_gone, in_situation
from fault_support.selection import slow_unless
from pams_parallel import _core

START_METHODS = ("fork", "spawn", "forkserver")
SITUATIONS = [
    ("between", "hang up"),
    ("start", "hang up"),
    ("unpickle", "hang up"),
    ("run", "hang up in C"),
    ("return", "hang up"),
]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def n_workers(children: list[psutil.Process]) -> int:
    """Not counting helpers of multiprocessing, which have a command line of their own."""
    helpers = ("resource_tracker", "multiprocessing.forkserver import main")
    forked_from_server = 0
    count = 0
    for child in children:
        line = " ".join(child.cmdline())
        if not any(helper in line for helper in helpers):
            count += 1
        elif "forkserver" in line:
            forked_from_server += 1
    return count + max(forked_from_server - 1, 0)


@pytest.mark.parametrize(
    ("phase", "fault", "start_method"),
    slow_unless(
        lambda phase, _, method: method == "fork" or phase == "run",
        [(*situation, method) for situation in SITUATIONS for method in START_METHODS],
    ),
)
def test_killed(tmp_path: Path, phase: str, fault: str, start_method: str) -> None:
    situation = Situation(str(tmp_path / "marker"), start_method, phase, fault)
    with in_situation(situation) as (process, children):
        assert n_workers(children) >= 1
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert_all_gone(children)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_terminated(tmp_path: Path, start_method: str) -> None:
    """By SIGTERM, which Python does not handle."""
    situation = Situation(str(tmp_path / "marker"), start_method, "run", "hang up in C")
    with in_situation(situation) as (process, children):
        process.terminate()
        assert process.wait() == -signal.SIGTERM
        assert_all_gone(children)


@pytest.mark.parametrize(
    ("phase", "start_method"),
    slow_unless(
        lambda phase, _: phase == "between", itertools.product(["between", "run"], START_METHODS)
    ),
)
def test_killed_with_a_pool_of_the_users_own(tmp_path: Path, phase: str, start_method: str) -> None:
    situation = Situation(str(tmp_path / "marker"), start_method, phase, own_pool=True)
    with in_situation(situation) as (process, children):
        process.kill()
        process.wait()
        assert_all_gone(children)


@pytest.mark.parametrize(
    ("fault", "start_method"),
    slow_unless(
        lambda fault, method: (method == "fork" and fault != "exit") or fault == "SIGKILL",
        itertools.product(["exit", "segfault", "SIGKILL"], START_METHODS),
    ),
)
def test_dies_while_the_simulation_is_pickled(
    tmp_path: Path, start_method: str, fault: str
) -> None:
    situation = Situation(str(tmp_path / "marker"), start_method, "pickle", fault)
    codes = {"exit": 7, "segfault": -signal.SIGSEGV, "SIGKILL": -signal.SIGKILL}
    with in_situation(situation) as (process, children):
        assert process.wait() == codes[fault]
        assert_all_gone(children)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_killed_without_anonymous_memory(tmp_path: Path, start_method: str) -> None:
    """The frames are in a directory, which the workers delete."""
    marker = str(tmp_path / "marker")
    situation = Situation(marker, start_method, "between", memfd=False)
    with in_situation(situation) as (process, children):
        (directory,) = Path(tempfile.gettempdir()).glob("pp-*/pams-parallel-*")
        assert directory.stat().st_mode & 0o777 == 0o700
        files = list(directory.iterdir())
        assert len(files) >= 2  # frames and marks
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
        process.kill()
        process.wait()
        assert_all_gone(children)
        assert not directory.exists()


# ---------------------------------------------------------------------- the watch by itself


def ends_with(pid: Any, start_time: Any, directory: Any = None) -> subprocess.Popen[str]:
    """A process that ends when another one does."""
    code = (
        "import sys, time; from pams_parallel import _core;"
        f"_core.end_with_process({pid}, {start_time}, {directory!r});"
        "print('watches', flush=True); time.sleep(3600)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("knows_time", [True, False])
def test_watching_a_process_that_is_no_parent(tmp_path: Path, knows_time: bool) -> None:
    """As a fork server's children do."""
    (tmp_path / "directory" / "below").mkdir(parents=True)
    (tmp_path / "directory" / "below" / "file").touch()
    with subprocess.Popen(["sleep", "3600"]) as watched:
        start_time = _core.process_start_time(watched.pid) if knows_time else None
        with ends_with(watched.pid, start_time, str(tmp_path / "directory")) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "watches\n"
                watched.kill()  # and it stays a zombie while nobody waits for it
                process.wait(timeout=60)
            finally:
                process.kill()
    assert not (tmp_path / "directory").exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_watching_a_number_that_was_given_to_another_process() -> None:
    start_time = _core.process_start_time(os.getpid())
    assert start_time is not None
    with ends_with(os.getpid(), start_time + 1) as process:
        try:
            process.wait(timeout=60)
        finally:
            process.kill()


def test_start_time_of_no_process() -> None:
    with subprocess.Popen(["sleep", "0"]) as process:
        process.wait()
    assert _core.process_start_time(process.pid) is None
